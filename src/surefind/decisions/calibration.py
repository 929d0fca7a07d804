"""Match, review or no match, with a stated risk.

Calibration queries are split at random (`split`). One part fits the probability that the top answer is
right and plans a sequence of thresholds; the other, which nothing was fitted to, tests them (`risk`).
Because the parts are independent, the promise holds for any number of queries:

    P(wrong | match) <= max_wrong   with probability at least ``confidence`` over the calibration queries.

The floor, below which there is no match, is the highest value with at most ``max_missed`` of right answers
below it (with the same confidence, from the testing part), and never above ½ or the threshold: whatever is
thrown away is more likely wrong than right. What an answer then is: `decision`.

**Not reached.** If no threshold passes, ``threshold`` is None, nothing is a match, and ``more_queries``
estimates how many more are needed (`shortfall`); None if more of the same would not help.

**Groups.** A group with data enough has a threshold of its own, see `groups`.

**Without unknown queries** (all enrolled) everything works, but the promise covers enrolled queries only; a
note says so.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.decisions.contributions import Contributions, measure_contributions
from surefind.decisions.decision import Decisions, decide
from surefind.decisions.groups import (
    GroupThreshold,
    as_number,
    group_names,
    group_thresholds,
)
from surefind.decisions.probability import MatchProbability
from surefind.decisions.reasons import ReasonLimits, measure_limits
from surefind.decisions.risk import RiskCurve, least_accepted, safe_floor
from surefind.decisions.sentences import calibration_notes, result_sentence
from surefind.decisions.shortfall import more_queries
from surefind.decisions.signals import Signals
from surefind.decisions.split import FIT_SHARE, fit_split
from surefind.decisions.stored import restore
from surefind.errors import DegenerateError, InputError
from surefind.metrics.inputs import as_correct

FORMAT = 1
LEAST_QUERIES = 20
HIGHEST_FLOOR = 0.5
METER = 101
"""Quantiles of log κ that are kept: 0 %, 1 %, … 100 %."""


@dataclass(frozen=True)
class Calibration:
    """A probability, thresholds with a stated risk, and what they rest on.

    Attributes:
        model: The probability that a top answer is right.
        risk_curve: Coverage, wrong rate and bound over the planned thresholds.
        floor: Below it there is no match.
        groups: Groups of queries, if they were given.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.
        max_missed: Highest share of right answers below the floor.
        queries: Calibration queries.
        unknown: Those whose label is not in the gallery.
        right: Those answered right.
        fitted: Queries of the fitting part; the others tested the thresholds.
        more_queries: If not reached: how many more are needed, None if more would not help. 0 if reached.
        contributions: What each signal adds; None if not measured or all answers have one outcome.
        limits: Limits of the reasons.
        log_kappa_quantiles: Quantiles 0 %, 1 %, … 100 % of the calibration queries.
        notes: What to keep in mind.
    """

    model: MatchProbability
    risk_curve: RiskCurve
    floor: float
    groups: tuple[GroupThreshold, ...]
    max_wrong: float
    confidence: float
    max_missed: float
    queries: int
    unknown: int
    right: int
    fitted: int
    more_queries: int | None
    contributions: Contributions | None
    limits: ReasonLimits
    log_kappa_quantiles: tuple[float, ...]
    notes: tuple[str, ...]

    @property
    def threshold(self) -> float | None:
        """Least probability of a match, where no group has its own; None: nothing is a match."""
        return self.risk_curve.threshold

    @property
    def reached(self) -> bool:
        """Whether the wrong-match rate could be promised."""
        return self.threshold is not None

    @property
    def summary(self) -> str:
        """Say in a few sentences what was found."""
        told = result_sentence(
            self.risk_curve,
            max_wrong=self.max_wrong,
            confidence=self.confidence,
            more_queries=self.more_queries,
        )
        added = () if self.contributions is None else (self.contributions.sentence,)
        return " ".join((told, *added, *self.notes))

    def probability(self, signals: Signals) -> Float[np.ndarray, " q"]:
        """Give the probability that each top answer is right.

        Args:
            signals: Signals of the queries.

        Returns:
            One probability a query.
        """
        return self.model(signals)

    def decide(self, signals: Signals, groups: Sequence[Any] | None = None) -> Decisions:
        """Answer match, review or no match.

        Args:
            signals: Signals of the queries.
            groups: The group of each query; None, and a group that was not calibrated, use the common
                threshold.

        Returns:
            A decision with reasons for each query.
        """
        threshold = np.full(len(signals), as_number(self.threshold))
        names = group_names(groups, len(signals))
        for group in self.groups:
            threshold[names == group.name] = as_number(group.threshold)
        return decide(self.model, self.limits, signals, threshold=threshold, floor=self.floor)

    def to_json(self) -> dict[str, Any]:
        """Give everything as plain JSON values; `from_json` restores it exactly."""
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return plain

    @staticmethod
    def from_json(stored: dict[str, Any]) -> "Calibration":
        """Restore what `to_json` gave.

        Args:
            stored: Plain JSON values.

        Returns:
            An equal calibration.

        Raises:
            InputError: If it is of another format or something is missing.
        """
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise InputError(
                f"this is no calibration of format {FORMAT}; calibrate again with this version."
            )
        calibration: Calibration = restore(
            Calibration, {key: value for key, value in stored.items() if key != "format"}
        )
        return calibration


def calibrate(
    signals: Signals,
    right: Any,
    *,
    enrolled: Any,
    max_wrong: float = 0.01,
    confidence: float = 0.95,
    max_missed: float = 0.05,
    groups: Sequence[Any] | None = None,
    contributions: bool = True,
    rng: np.random.Generator,
) -> Calibration:
    """Learn when an answer may be called a match.

    Args:
        signals: Signals of calibration queries that were held out from training and from the gallery.
        right: Whether the top answer has the query's label (q).
        enrolled: Whether the query's label is in the gallery at all (q).
        max_wrong: Highest share of wrong answers among matches, between 0 and 1.
        confidence: With what probability this is kept, between 0 and 1.
        max_missed: Highest share of right answers that become no_match, between 0 and 1.
        groups: The group of each query, for thresholds of their own; None for no group.
        contributions: Whether to measure what each signal adds, which takes most of the time.
        rng: Splits the queries.

    Returns:
        The calibration; ask ``reached`` whether the target was reached.

    Raises:
        InputError: If lengths differ, a share is not between 0 and 1, or an answer is right for a query
            that is not enrolled.
        DegenerateError: If there are fewer than 20 queries.
    """
    good, known = _checked(signals, right, enrolled)
    _check_target(len(signals), max_wrong=max_wrong, confidence=confidence, max_missed=max_missed)
    names = group_names(groups, len(signals))
    target = {"max_wrong": float(max_wrong), "confidence": float(confidence)}
    split = fit_split(signals, good, rng=rng)
    model, held = split.model, split.held
    curve = split.curve(np.ones(len(signals), dtype=bool), **target)
    by_group = group_thresholds(names, split, curve.threshold, **target)
    floor = safe_floor(split.chance[held][good[held]], max_missed=max_missed, confidence=confidence)
    one_outcome = bool(good.all() or not good.any())
    return Calibration(
        model=model,
        risk_curve=curve,
        floor=min(floor, HIGHEST_FLOOR),
        groups=tuple(by_group),
        max_missed=float(max_missed),
        queries=len(signals),
        unknown=int((~known).sum()),
        right=int(good.sum()),
        fitted=len(split.fit),
        more_queries=more_queries(curve, len(signals), len(held), **target),
        contributions=(
            measure_contributions(signals, good, strength=split.strength, rng=rng)
            if contributions and not one_outcome
            else None
        ),
        limits=measure_limits(signals, model.parts(signals), good, model.used),
        log_kappa_quantiles=tuple(
            map(float, np.quantile(signals.log_kappa, np.linspace(0, 1, METER)))
        ),
        notes=calibration_notes(good, known, by_group),
        **target,
    )


def _checked(
    signals: Signals, right: Any, enrolled: Any
) -> tuple[Bool[np.ndarray, " q"], Bool[np.ndarray, " q"]]:
    good = as_correct("right", right, length=len(signals))
    known = as_correct("enrolled", enrolled, length=len(signals))
    if (good & ~known).any():
        raise InputError(
            f"query {int((good & ~known).argmax())} is answered right but not enrolled: its label "
            "cannot be found in a gallery that does not hold it. Check the labels."
        )
    return good, known


def _check_target(queries: int, *, max_wrong: float, confidence: float, max_missed: float) -> None:
    shares = {"max_wrong": max_wrong, "confidence": confidence, "max_missed": max_missed}
    for name, share in shares.items():
        if not 0 < share < 1:
            raise InputError(f"{name} must lie between 0 and 1, both excluded; got {share!r}.")
    if queries < LEAST_QUERIES:
        least = int(least_accepted(max_wrong, confidence) / (1 - FIT_SHARE)) + 1
        raise DegenerateError(
            f"{queries} calibration queries are too few: give at least {LEAST_QUERIES}, and for this "
            f"target at least {least}."
        )
