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

Frozen values back from plain JSON.

A value is rebuilt by the types of its fields: dataclasses from objects, tuples from lists, None where it
may be. Floats come back exactly: JSON writes them in the shortest form that reads back the same.

What a calibration found, in sentences.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from jaxtyping import Bool, Float

from surefind.decisions.decision import Decisions, ReasonLimits, decide, measure_limits
from surefind.decisions.groups import (
    FIT_SHARE,
    GroupThreshold,
    as_number,
    fit_split,
    group_names,
    group_thresholds,
)
from surefind.decisions.probability import Contributions, MatchProbability, measure_contributions
from surefind.decisions.risk import RiskCurve, least_accepted, more_queries, safe_floor
from surefind.decisions.signals import Signals
from surefind.errors import DegenerateError, InputError
from surefind.metrics.inputs import as_correct


def restore(kind: Any, stored: Any) -> Any:
    """Rebuild a value of a type.

    Args:
        kind: A dataclass, tuple[X, ...], X | None, or a plain type.
        stored: Plain JSON.

    Returns:
        The value.

    Raises:
        InputError: If a field is missing or unknown, or a value has another type.
    """
    if isinstance(kind, UnionType):
        kind = next(k for k in get_args(kind) if k is not type(None))
        return None if stored is None else restore(kind, stored)
    if is_dataclass(kind):
        names = {field.name for field in fields(kind)}
        if not isinstance(stored, dict) or set(stored) != names:
            odd = sorted(names ^ set(stored)) if isinstance(stored, dict) else type(stored).__name__
            raise InputError(
                f"a stored {getattr(kind, '__name__', kind)} does not have the expected fields: {odd}. "
                "The file is damaged or of another version; calibrate again."
            )
        hints = get_type_hints(kind)
        return kind(**{name: restore(hints[name], stored[name]) for name in names})  # type: ignore[operator]
    if kind is float and type(stored) is int:  # other writers of JSON leave out the ".0"
        return float(stored)
    expected = list if get_origin(kind) is tuple else kind
    if not isinstance(stored, expected) or isinstance(stored, bool):
        raise InputError(
            f"a stored value should be {expected.__name__}; got {stored!r}. "
            "The file is damaged; calibrate again."
        )
    if expected is list:
        return tuple(restore(get_args(kind)[0], entry) for entry in stored)
    return stored


def result_sentence(
    curve: RiskCurve, *, max_wrong: float, confidence: float, more_queries: int | None
) -> str:
    """Say whether the target was reached, and if not, what would help.

    Args:
        curve: What the thresholds gave.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.
        more_queries: How many more calibration queries are needed; None if more would not help.

    Returns:
        A few sentences.
    """
    target = f"{max_wrong:.2%} wrong matches with {confidence:.0%} confidence"
    i = curve.chosen
    if i is not None:
        text = (
            f"Target reached: {target}. From a probability of {curve.thresholds[i]:.4f} up "
            f"an answer is a match: {curve.accepted[i]:,} held-out queries ({curve.coverage[i]:.1%}), "
            f"{curve.wrong[i]:,} of them wrong, at most {curve.upper_bound[i]:.2%} "
            "in truth."
        )
    elif more_queries is not None:
        text = (
            f"Target not reached: {target}. Nothing is answered as a match. At the error rates "
            f"seen, about {more_queries:,} more calibration queries are needed."
        )
    else:
        lowest = min((curve.wrong_rate[i] for i in curve.telling), default=1.0)
        text = (
            f"Target not reached: {target}. Nothing is answered as a match, and more queries like "
            f"these will not help: at every threshold at least {lowest:.2%} of the answers were "
            "wrong. Allow a higher max_wrong, or improve the embeddings or the gallery."
        )
    return text


def calibration_notes(
    right: Bool[np.ndarray, " q"], enrolled: Bool[np.ndarray, " q"], groups: list[GroupThreshold]
) -> tuple[str, ...]:
    """Say what to keep in mind: what the calibration queries did not show.

    Args:
        right: Which answers are right.
        enrolled: Which queries have their label in the gallery.
        groups: Thresholds of groups.

    Returns:
        A sentence each.
    """
    notes = []
    if enrolled.all():
        notes.append(
            "No unknown queries were calibrated on, so the promise does not cover queries whose label "
            "is not in the gallery."
        )
    if not enrolled.any():
        notes.append("All calibration queries were unknown: no answer could be right.")
    if right.all():
        notes.append("All answers were right, so nothing was learned about how wrong ones look.")
    notes += [
        f"Group {group.name}: {group.wrong} of {group.accepted} matches would be wrong at the common "
        "threshold, so nothing in it is a match."
        for group in groups
        if group.status == "refused"
    ]
    return tuple(notes)


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
