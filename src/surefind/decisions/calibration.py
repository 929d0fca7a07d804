"""Match, review or no match, with a stated risk.

Calibration queries are split at random (`groups.fit_split`). One part fits the probability that the
answered label is right and plans a sequence of thresholds; the other, which nothing was fitted to, tests
them (`risk`). Because the parts are independent, the guarantee holds for any number of queries:

    P(wrong | match) <= max_wrong   with probability at least ``confidence`` over the calibration queries,

and with ``max_fpir`` also P(match | unknown) <= max_fpir, both at once (`risk`). What each threshold does
to unknown and to enrolled queries: `identification`.

The floor, below which there is no match, is the highest value with at most ``max_missed`` of right
answers below it (with the same confidence, from the testing part), and never above ½ or the threshold:
whatever is rejected is more likely wrong than right. How a query is then answered: `decision`.

**Gate.** Queries with a novelty p-value pass the gate first (`gate`), in the calibration as in a search.
The probability is fitted to those that pass; coverage, FPIR and FNIR count all of them, those that are
stopped as no match. ``max_missed`` is about right answers that pass.

**Not reached.** If no threshold passes, ``threshold`` is None, nothing is a match, and ``more_queries``
estimates how many more are needed for a chance of 90 %; None if more of the same would not help.

**Groups.** A group with enough data has a threshold of its own, see `groups`.

**Without unknown queries** (all enrolled) everything works, but the guarantee covers enrolled queries
only; a note says so.

A calibration is stored as plain JSON. Floats come back exactly: JSON writes them in the shortest form that
reads back the same. What does not have the shape of a calibration is refused (pydantic, imported only to
read one).

Axes: ``q`` queries, ``p`` those that pass the gate.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float

from surefind.checks import as_correct, require
from surefind.decisions.decision import Decisions, ReasonLimits, decide, measure_limits
from surefind.decisions.gate import Gate, GateCounts, read_novelty
from surefind.decisions.groups import (
    FIT_FRACTION,
    GroupThreshold,
    as_number,
    draw_parts,
    fit_split,
    group_names,
    group_thresholds,
)
from surefind.decisions.identification import Identification
from surefind.decisions.probability import Contributions, MatchProbability, measure_contributions
from surefind.decisions.risk import LIKELY, RiskCurve, least_accepted, more_queries, safe_floor
from surefind.decisions.signals import KAPPA_RANGE, Signals
from surefind.errors import DegenerateError, InputError

FORMAT = 5
LEAST_QUERIES = 20
HIGHEST_FLOOR = 0.5
QUANTILES = 101
"""Quantiles of log κ that are kept: 0 %, 1 %, … 100 %."""


UNLIKE_TRAINING = (
    "More enrolled queries were stopped than max_false_alarms allows, so these queries are unlike what "
    "novelty was fitted on: fit novelty on other data like them."
)


@dataclass(frozen=True)
class Calibration:
    """A probability, thresholds with a stated risk, and what they rest on.

    Attributes:
        model: The probability that an answered label is right.
        risk_curve: Coverage, wrong rate and bound over the planned thresholds.
        identification: What they do to unknown and to enrolled queries.
        floor: Below it there is no match.
        no_match: Fraction of the testing part that is no match, at each threshold of the risk curve; what
            is neither this nor covered needs review.
        groups: Groups of queries, if they were given.
        max_wrong: Highest wrong-match rate allowed.
        max_fpir: Highest share of unknown queries that may be a match; None if nothing was promised.
        confidence: With what probability.
        max_missed: Highest fraction of right answers below the floor, of those that pass the gate.
        gate: Which queries may be a match at all; None if the calibration queries had no novelty.
        gate_counts: What it did to them; None without a gate.
        queries: Calibration queries.
        unknown: Those whose label is not in the gallery.
        right: Those answered right.
        fitted: Queries that the probability was fitted to; the others that passed the gate tested it.
        more_queries: If not reached: how many more are needed, None if more would not help. 0 if reached.
        contributions: What each signal adds; None if not measured or all answers have one outcome.
        limits: Limits of the reasons.
        log_kappa_quantiles: Quantiles 0 %, 1 %, … 100 % of the calibration queries.
        notes: What to keep in mind.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    model: MatchProbability
    risk_curve: RiskCurve
    identification: Identification
    floor: float
    no_match: tuple[float, ...]
    groups: tuple[GroupThreshold, ...]
    max_wrong: float
    max_fpir: float | None
    confidence: float
    max_missed: float
    gate: Gate | None
    gate_counts: GateCounts | None
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
    def knows_kappa(self) -> bool:
        """Whether every calibration query had a κ, so that others must have one to be decided about."""
        return self.log_kappa_quantiles[-1] < math.log(KAPPA_RANGE[1]) - 1e-9

    @property
    def summary(self) -> str:
        """The result, what the gate did, what each signal contributes, and the notes, in sentences."""
        contributed = () if self.contributions is None else (self.contributions.sentence,)
        return " ".join((self._result(), self._guard(), *contributed, *self.notes))

    def probability(self, signals: Signals) -> Float[np.ndarray, " q"]:
        """Return the probability that each answer is right."""
        return self.model(signals)

    def decide(
        self,
        signals: Signals,
        groups: Sequence[Any] | None = None,
        *,
        novelty: Any = None,
        rivals: Callable[[np.ndarray], list[str]] | None = None,
    ) -> Decisions:
        """Answer match, review or no match, with reasons.

        Args:
            signals: Signals of the queries.
            groups: The group of each query; None, and a group that was not calibrated, use the common
                threshold.
            novelty: p-value of each query; without a gate it has no effect, with one it must be there.
            rivals: Says which labels compete for queries, in words, given their rows; for the reasons.

        Returns:
            One decision a query.
        """
        threshold = np.full(len(signals), as_number(self.threshold))
        if groups is not None:
            names = group_names(groups, len(signals))
            for group in self.groups:
                threshold[names == group.name] = as_number(group.threshold)
        return decide(
            self.model,
            self.limits,
            signals,
            threshold=threshold,
            floor=self.floor,
            gate=self.gate,
            novelty=None if self.gate is None else read_novelty(novelty, len(signals)),
            rivals=rivals,
        )

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values; `from_json` restores it exactly."""
        plain: dict[str, Any] = json.loads(json.dumps({"format": FORMAT, **asdict(self)}))
        return plain

    @staticmethod
    def from_json(stored: dict[str, Any]) -> "Calibration":
        """Restore what `to_json` returned.

        Args:
            stored: Plain JSON values.

        Returns:
            An equal calibration.

        Raises:
            InputError: If it is of another format, or a field is missing, unknown or of another type.
        """
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            raise InputError(
                f"this is no calibration of format {FORMAT}; calibrate again with this version.",
                field="stored",
            )
        fields = {name: value for name, value in stored.items() if name != "format"}
        adapter = _adapter()
        try:
            calibration: Calibration = adapter.validate_json(json.dumps(fields))
        except ValueError as error:  # pydantic's ValidationError is one
            raise InputError(
                f"a stored calibration is damaged or of another version; calibrate again. {error}",
                field="stored",
            ) from error
        return calibration

    def _result(self) -> str:
        strangers = (
            "" if self.max_fpir is None else f" and {self.max_fpir:.2%} of the unknown matched"
        )
        target = (
            f"{self.max_wrong:.2%} wrong matches{strangers} with {self.confidence:.0%} confidence"
        )
        curve, i = self.risk_curve, self.risk_curve.chosen
        if i is not None:
            return (
                f"Target reached: {target}. From a probability of {curve.thresholds[i]:.4f} up "
                f"an answer is a match: {curve.accepted[i]:,} held-out queries "
                f"({curve.coverage[i]:.1%}), {curve.wrong[i]:,} of them wrong; the true rate is at "
                f"most {curve.upper_bound[i]:.2%}.{self._of_kinds(i)}"
            )
        failed = f"Target not reached: {target}. Nothing is answered as a match"
        if self.max_fpir is not None and self._strangers_needed > self.identification.unknown:
            return (
                f"{failed}: that promise needs {self._strangers_needed:,} unknown queries to test it, even "
                f"if none is a match, and {self.identification.unknown:,} tested it."
            )
        if self.more_queries is not None:
            return (
                f"{failed}. At the observed error rates, about {self.queries + self.more_queries:,} "
                f"calibration queries in all, {self.more_queries:,} more than these, would reach it with "
                f"a chance of {LIKELY:.0%}. Another split of the same queries is no remedy: who tries "
                "until one passes has no guarantee."
            )
        lowest = min((curve.wrong_rate[i] for i in curve.informative), default=1.0)
        return (
            f"{failed}, and more queries like these will not help: at every threshold at least "
            f"{lowest:.2%} of the answers were wrong. Allow a higher max_wrong, or improve the "
            "embeddings or the gallery."
        )

    @property
    def _strangers_needed(self) -> int:
        return 0 if self.max_fpir is None else least_accepted(self.max_fpir, self.confidence)

    def _of_kinds(self, i: int) -> str:
        """Say what a threshold does to unknown and to enrolled queries."""
        found, said = self.identification, ""
        if found.unknown:
            said += (
                f" Of {found.unknown:,} unknown ones {found.false_positives[i]:,} are a match (FPIR "
                f"at most {found.fpir_bounds[1][i]:.2%})."
            )
        if found.enrolled:
            said += (
                f" Of {found.enrolled:,} enrolled ones {found.missed[i]:,} are not answered right (FNIR "
                f"{found.fnir[i]:.1%})."
            )
        return said

    def _guard(self) -> str:
        """Say what the gate did, or that there is none."""
        gate, counts = self.gate, self.gate_counts
        if gate is None or counts is None:
            return (
                "The queries came without novelty, so inputs that are far from all that was trained on are "
                "not guarded against."
            )
        return (
            f"The gate stopped {counts.unlike:,} of {self.queries:,} queries as unlike anything seen "
            f"(p <= {gate.max_false_alarms:g}), {counts.enrolled_unlike:,} of the {counts.enrolled:,} "
            f"enrolled among them, and let {counts.unusual:,} unusual ones (p <= {gate.unusual_below:g}), "
            f"{counts.enrolled_unusual:,} of them enrolled, be a review at most."
        )


@cache
def _adapter() -> Any:
    return require("pydantic", "read a stored calibration", extra=None).TypeAdapter(
        Calibration
    )


def calibrate(
    signals: Signals,
    right: Any,
    *,
    enrolled: Any,
    novelty: Any = None,
    max_wrong: float = 0.01,
    max_fpir: float | None = None,
    confidence: float = 0.95,
    max_false_alarms: float = 0.01,
    max_missed: float = 0.05,
    groups: Sequence[Any] | None = None,
    contributions: bool = True,
    rng: np.random.Generator,
) -> Calibration:
    """Learn when an answer may be called a match.

    Args:
        signals: Signals of calibration queries that were held out from training and from the gallery.
        right: Whether the answered label is the query's (q).
        enrolled: Whether the query's label is in the gallery at all (q).
        novelty: p-value of each query (q); None for no gate.
        max_wrong: Highest fraction of wrong answers among matches, between 0 and 1.
        max_fpir: Highest share of unknown queries that may be a match, between 0 and 1; None to promise
            nothing about it.
        confidence: With what probability this is kept, between 0 and 1.
        max_false_alarms: α of the gate, between 0 and 0.1.
        max_missed: Highest fraction of right answers, of those that pass the gate, that become no_match,
            between 0 and 1.
        groups: The group of each query, for thresholds of their own; None for no group.
        contributions: Whether to measure what each signal adds, which takes most of the time.
        rng: Splits the queries.

    Returns:
        The calibration; ask ``reached`` whether the target was reached.

    Raises:
        InputError: If lengths differ, a fraction is not between 0 and 1, or an answer is right for a
            query that is not enrolled.
        DegenerateError: If there are fewer than 20 queries, or fewer than 20 pass the gate.
    """
    good, known = _checked(signals, right, enrolled)
    _check_target(
        len(signals),
        max_wrong=max_wrong,
        max_fpir=max_fpir,
        confidence=confidence,
        max_missed=max_missed,
    )
    if max_fpir is not None and known.all():
        raise DegenerateError(
            "max_fpir is about queries whose label is not in the gallery, and there are none.",
            field="max_fpir",
            hint="Give some with the label None, or leave max_fpir out.",
        )
    names = group_names(groups, len(signals))
    gate = Gate(float(max_false_alarms))
    counts, outcome = None, np.full(len(signals), "pass")
    if novelty is not None:
        outcome = gate.outcome(read_novelty(novelty, len(signals)))
        counts = GateCounts.of(outcome, known)
        _check_passing(int((outcome == "pass").sum()), len(signals), gate)
    through = outcome == "pass"
    target = {"max_wrong": float(max_wrong), "confidence": float(confidence)}
    split = fit_split(signals, good, known, through, rng=rng)
    model, held = split.model, split.held
    promised = target | {"max_fpir": None if max_fpir is None else float(max_fpir)}
    curve = split.curve(np.ones(len(signals), dtype=bool), **promised)  # type: ignore[arg-type]
    by_group = group_thresholds(names, split, curve.threshold, **promised)  # type: ignore[arg-type]
    tested, answered = signals[through], good[through]
    reliable = split.chance[held][(good & through)[held]]
    floor = min(safe_floor(reliable, max_missed=max_missed, confidence=confidence), HIGHEST_FLOOR)
    # The gate's "unusual" are a review or no match by their probability, which the curve does not count.
    chance = np.where(outcome == "unlike", -np.inf, model(signals))[held]
    one_outcome = bool(answered.all() or not answered.any())
    return Calibration(
        model=model,
        risk_curve=curve,
        identification=Identification.count(
            curve.thresholds, split.chance[held], good[held], known[held], float(confidence)
        ),
        floor=floor,
        no_match=tuple(float((chance < min(floor, t)).mean()) for t in curve.thresholds),
        groups=tuple(by_group),
        max_missed=float(max_missed),
        gate=None if counts is None else gate,
        gate_counts=counts,
        queries=len(signals),
        unknown=int((~known).sum()),
        right=int(good.sum()),
        fitted=int(through[split.fit].sum()),
        more_queries=more_queries(
            curve, len(signals), fitted_share=len(split.fit) / len(signals), **target
        ),
        contributions=(
            measure_contributions(tested, answered, strength=split.strength, rng=rng)
            if contributions and not one_outcome
            else None
        ),
        limits=measure_limits(tested, model.parts(tested), answered, model.used),
        log_kappa_quantiles=tuple(
            map(float, np.quantile(signals.log_kappa, np.linspace(0, 1, QUANTILES)))
        ),
        notes=(
            *_notes(answered, known, by_group),
            *((UNLIKE_TRAINING,) if counts is not None and counts.suspicious(gate) else ()),
        ),
        **promised,  # type: ignore[arg-type]
    )


def held_out_probability(
    calibration: Calibration, signals: Signals, *, novelty: Any = None, rng: np.random.Generator
) -> Float[np.ndarray, " q"]:
    """Return the probability of the calibration's own queries, of those that it was not fitted to.

    Args:
        calibration: Made of these queries.
        signals: Theirs, as they were given to `calibrate`.
        novelty: As it was given to `calibrate`.
        rng: In the state in which `calibrate` got its own, so that it draws the same split.

    Returns:
        Probabilities (q); NaN for queries that fitted them, and for those that did not pass the gate.
    """
    through = np.ones(len(signals), dtype=bool)
    if calibration.gate is not None:
        through = calibration.gate.outcome(read_novelty(novelty, len(signals))) == "pass"
    (_, tested), _ = draw_parts(through, rng)
    found = np.full(len(signals), np.nan)
    found[tested] = calibration.probability(signals)[tested]
    return found


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


def least_queries(max_wrong: float, confidence: float) -> int:
    """Return how many calibration queries could pass if all were a match and none was wrong."""
    tested = least_accepted(max_wrong, confidence) / (1 - FIT_FRACTION)
    return max(LEAST_QUERIES, int(tested) + 1)


def _check_target(queries: int, **fractions: float | None) -> None:
    for name, value in fractions.items():
        if value is not None and not 0 < value < 1:
            raise InputError(
                f"{name} must lie between 0 and 1, both excluded; got {value!r}.", field=name
            )
    if queries < LEAST_QUERIES:
        least = least_queries(fractions["max_wrong"], fractions["confidence"])  # type: ignore[arg-type]
        raise DegenerateError(
            f"{queries} calibration queries are too few: give at least {LEAST_QUERIES}, and for this "
            f"target at least {least}."
        )


def _check_passing(passing: int, queries: int, gate: Gate) -> None:
    if passing < LEAST_QUERIES:
        raise DegenerateError(
            f"only {passing} of {queries} calibration queries pass the gate (p > {gate.unusual_below:g}), "
            f"and at least {LEAST_QUERIES} must: the others are unlike what novelty was fitted on.",
            field="novelty",
            hint="Fit novelty on other data like these queries, or give queries like those to come.",
        )


def _notes(
    right: Bool[np.ndarray, " p"], enrolled: Bool[np.ndarray, " q"], groups: list[GroupThreshold]
) -> tuple[str, ...]:
    """Return what the calibration queries did not show, those that pass and all, a sentence each."""
    notes = []
    if enrolled.all():
        notes.append(
            "No unknown queries were calibrated on, so the guarantee does not cover queries whose "
            "label is not in the gallery."
        )
    if not enrolled.any():
        notes.append("All calibration queries were unknown: no answer could be right.")
    if right.all():
        notes.append("All answers were right, so nothing was learned about how wrong ones look.")
    notes += [
        f"Group {group.name}: {group.wrong} of {group.accepted} matches would be wrong at the "
        "common threshold, so nothing in it is a match."
        for group in groups
        if group.status == "refused"
    ]
    return tuple(notes)
