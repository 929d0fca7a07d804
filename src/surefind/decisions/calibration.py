"""Match, review or no match, with a stated risk.

Calibration queries are split at random (`fit_split`). One part fits the probability that the
answered label is right and plans a sequence of thresholds; the other, which nothing was fitted to, tests
them (`risk`). Because the parts are independent, the guarantee holds for any number of queries:

    P(wrong | match) <= max_wrong   with probability at least ``confidence`` over the calibration queries,

and with ``max_fpir`` also P(match | unknown) <= max_fpir, both at once (`risk`). What each threshold does
to unknown and to enrolled queries: `identification`.

The floor, below which there is no match, is the highest value with at most ``max_missed`` of right
answers below it (with the same confidence, from the testing part), and never above ½ or the threshold:
whatever is rejected is more likely wrong than right. How a query is then answered: `decision`.

**Gate.** Queries with a novelty p-value pass the gate first (`decision`), here and in every search. The
probability is fitted to those that pass; coverage, FPIR and FNIR count all of them, those that are
stopped as no match. ``max_missed`` is about right answers that pass.

**Not reached.** If no threshold passes, ``threshold`` is None, nothing is a match, and ``more_queries``
estimates how many more are needed for a chance of 90 %; None if more of the same would not help.

**Split.** A third of the queries, drawn at random, fits the probability and plans the thresholds (`risk`);
nothing is fitted to the other two thirds, so what they say of a threshold is independent of how it was
planned. Each query of the fitting part also has a probability by a fit that did not see it, from `FOLDS`
folds. Folds that take turns (cross-fitting) would test every query, but the model of one fold depends on
queries that another one tests, so their pooled counts are not binomial; we know no exact bound for them.
Of queries that a gate stopped, a third is set aside too: nothing is fitted to them, and the others count
among those that are tested, with a probability below every threshold.

**Groups.** A group whose own queries pass the fixed-sequence test gets its own threshold, with the same
guarantee for that group. A group whose wrong-match rate at the common threshold is significantly above
max_wrong (exact lower bound at ``confidence``) is *refused*: nothing in it is a match. All others use the
common threshold, whose guarantee holds on average over all queries and not for each group. Each guarantee
holds by itself with probability ``confidence``, not all of them together.

Groups are distinguished by their text, str(group). None is no group.

**Without unknown queries** (all enrolled) everything works, but the guarantee covers enrolled queries
only; a note says so.

Axes: ``q`` queries, ``p`` those that pass the gate.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.checks import as_correct, check_int
from surefind.decisions.decision import (
    HIGHEST,
    Decisions,
    Gate,
    GateCounts,
    ReasonLimits,
    decide,
    measure_limits,
    read_novelty,
)
from surefind.decisions.identification import Identification
from surefind.decisions.probability import (
    FOLDS,
    KAPPA_RANGE,
    Contributions,
    MatchProbability,
    Signals,
    choose_strength,
    fit_probability,
    measure_contributions,
)
from surefind.decisions.risk import (
    LIKELY,
    RiskCurve,
    Strangers,
    least_accepted,
    lower_bound,
    more_queries,
    plan_thresholds,
    safe_floor,
    walk_thresholds,
)
from surefind.errors import DegenerateError, InputError

FIT_FRACTION = 1 / 3
"""A small fit ranks nearly as well as a large one, while each tested query tightens the bound: with a half
instead of a third, the accepted fraction was smaller in every simulated world. Less than a third is better
where answers are wrong often, and worse where the few wrong ones must be learned from: in a simulated world
with 1 % promised of 1,300 queries, a third, a quarter and a fifth refused 17, 22 and 31 % of 200 runs."""


@dataclass(frozen=True, eq=False)
class Split:
    """A fitted probability and its values on both parts.

    Attributes:
        model: Fitted to the fitting part.
        strength: Of its penalties, see `choose_strength`.
        fit: Rows of the fitting part.
        held: Rows of the testing part.
        through: Which queries passed the gate (q).
        chance: Probability of each query (q), -∞ if a gate stopped it.
        unseen: The same by fits that did not see the query (q); of the fitting part only.
        right: Which answers are right (q).
        enrolled: Which queries have a label that is in the gallery (q).
    """

    model: MatchProbability
    strength: float
    fit: np.ndarray
    held: np.ndarray
    through: np.ndarray
    chance: np.ndarray
    unseen: np.ndarray
    right: np.ndarray
    enrolled: np.ndarray

    def curve(
        self,
        members: Bool[np.ndarray, " q"],
        *,
        max_wrong: float,
        confidence: float,
        max_fpir: float | None = None,
    ) -> RiskCurve:
        """Plan thresholds on the fitting part and test them on the other, of the members only."""
        own, test = self.fit[members[self.fit]], self.held[members[self.held]]
        target: dict[str, Any] = {"max_wrong": max_wrong, "confidence": confidence}
        if max_fpir is not None:
            fitted, tested = (rows[~self.enrolled[rows]] for rows in (own, test))
            target["strangers"] = Strangers(self.unseen[fitted], self.chance[tested], max_fpir)
        some = own[self.through[own]]
        trials = int(self.through[test].sum())
        plan = plan_thresholds(
            self.chance[some], self.unseen[some], self.right[some], trials=trials, **target
        )
        return walk_thresholds(plan, self.chance[test], self.right[test], **target)


def fit_split(
    signals: Signals,
    right: Bool[np.ndarray, " q"],
    enrolled: Bool[np.ndarray, " q"],
    through: Bool[np.ndarray, " q"],
    *,
    rng: np.random.Generator,
) -> Split:
    """Draw the parts and fit the probability to those of the fitting part that passed the gate."""
    (some, tested), (aside, stopped) = draw_parts(through, rng)
    fit, held = np.concatenate([some, aside]), np.concatenate([tested, stopped])
    unseen = np.full(len(signals), -np.inf)
    strength, unseen[some] = choose_strength(
        signals[some], right[some], np.arange(len(some)) % FOLDS
    )
    model = fit_probability(signals[some], right[some], strength=strength)
    chance = np.where(through, model(signals), -np.inf)
    return Split(model, strength, fit, held, through, chance, unseen, right, enrolled)


def check_share(unknown_share: float) -> None:
    """Require a share of unknown queries from 0 to below 1."""
    if not 0 <= unknown_share < 1:
        raise InputError(
            f"unknown_share must lie from 0 to below 1; got {unknown_share!r}.",
            field="unknown_share",
        )


def draw_share(
    unknown: Bool[np.ndarray, " q"], share: float, rng: np.random.Generator
) -> Int[np.ndarray, " r"]:
    """Draw as many queries as can be had of which a given share is unknown.

    Dropping queries at random, with probabilities that depend on whether they are unknown and on nothing
    else, leaves independent draws from the mixture that is expected: what is then promised is promised for
    that mixture, exactly, if the unknown queries to come are like these.

    Args:
        unknown: Which queries are.
        share: The share to expect, from 0 to below 1.
        rng: Draws them.

    Returns:
        Their rows, rising.

    Raises:
        DegenerateError: If there are no queries of one kind that is expected.
    """
    check_share(share)
    strange, known = np.flatnonzero(unknown), np.flatnonzero(~unknown)
    if (share and not len(strange)) or not len(known):
        raise DegenerateError(
            f"a share of {share:.0%} unknown queries cannot be drawn from {len(strange)} unknown and "
            f"{len(known)} enrolled ones.",
            field="unknown_share",
            hint="Give queries of both kinds.",
        )
    total = min(len(known) / (1 - share), len(strange) / share if share else np.inf)
    drawn = (
        rng.permutation(rows)[: round(part * total)]
        for rows, part in ((strange, share), (known, 1 - share))
    )
    return np.sort(np.concatenate([*drawn]))


def draw_parts(
    through: Bool[np.ndarray, " q"], rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draw rows to fit and rows to test with: of queries that passed the gate, and of the others."""
    passed, stopped = (
        np.array_split(rows, [int(FIT_FRACTION * len(rows))])
        for rows in (rng.permutation(np.flatnonzero(kind)) for kind in (through, ~through))
    )
    return passed, stopped


@dataclass(frozen=True)
class GroupThreshold:
    """The threshold of one group of queries.

    Attributes:
        name: The group.
        status: "own" (its own test passed), "common" (it uses the common threshold), or "refused".
        threshold: Least probability of a match; None: nothing is.
        queries: Queries of the group in the testing part that passed the gate.
        accepted: Those at or above the threshold that was looked at: its own, else the common one.
        wrong: Wrong answers among them.
    """

    name: str
    status: str
    threshold: float | None
    queries: int
    accepted: int
    wrong: int


def group_thresholds(
    names: np.ndarray,
    split: Split,
    common: float | None,
    *,
    max_wrong: float,
    confidence: float,
    max_fpir: float | None = None,
) -> list[GroupThreshold]:
    """Return the threshold of every group, sorted by name; ``names`` are those of `group_names`."""
    target = {"max_wrong": max_wrong, "confidence": confidence}
    thresholds = []
    for name in sorted({name for name in names if name is not None}):
        members = names == name
        test = split.held[(members & split.through)[split.held]]
        enough = (
            len(test) >= least_accepted(**target) and (members & split.through)[split.fit].any()
        )
        own = split.curve(members, max_fpir=max_fpir, **target) if enough else None
        thresholds.append(
            _group_threshold(name, own, common, split.chance[test], split.right[test], **target)
        )
    return thresholds


def _group_threshold(
    name: str,
    own: RiskCurve | None,
    common: float | None,
    chance: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    max_wrong: float,
    confidence: float,
) -> GroupThreshold:
    """Choose between a group's own threshold, the common one and none; ``own`` None: too few queries."""
    if own is not None and own.chosen is not None:
        i = own.chosen
        return GroupThreshold(
            name, "own", own.thresholds[i], len(right), own.accepted[i], own.wrong[i]
        )
    taken = chance >= as_number(common)
    accepted, wrong = int(taken.sum()), int((taken & ~right).sum())
    refused = float(lower_bound(wrong, accepted, confidence)) > max_wrong
    status, threshold = ("refused", None) if refused else ("common", common)
    return GroupThreshold(name, status, threshold, len(right), accepted, wrong)


def group_names(groups: Sequence[Any] | None, length: int) -> np.ndarray:
    """Return the group of each query as text, None staying None; ``groups`` None: no query has one."""
    if groups is None:
        return np.full(length, None, dtype=object)
    if len(groups) != length:
        raise InputError(
            f"groups has {len(groups)} entries for {length} queries; give one each, or None.",
            field="groups",
        )
    return np.array([None if g is None else str(g) for g in groups] + [None], dtype=object)[:-1]


def as_number(threshold: float | None) -> float:
    """Return a threshold as a number: infinity where nothing is a match."""
    return float("inf") if threshold is None else threshold


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
        made: When it was made or last renewed.
        renewals: How often it was renewed since.
        stale: Whether the items of a gallery have changed since.
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
    made: datetime | None = field(default=None, compare=False)
    renewals: int = field(default=0, compare=False)
    stale: bool = field(default=False, compare=False)

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


@dataclass(frozen=True)
class Target:
    """What is guaranteed, and how the queries are split; a renewal repeats it.

    Attributes:
        max_wrong: Highest fraction of wrong answers among matches.
        max_fpir: Highest share of unknown queries that may be a match, or None.
        confidence: With what probability both are kept.
        max_false_alarms: α of the gate.
        seed: Splits the queries.

    Raises:
        InputError: If a value is impossible.
    """

    max_wrong: float = 0.01
    max_fpir: float | None = None
    confidence: float = 0.95
    max_false_alarms: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_wrong", "max_fpir", "confidence"):
            if getattr(self, name) is not None:
                check_between(name, getattr(self, name))
        check_between("max_false_alarms", self.max_false_alarms, HIGHEST)
        check_int("seed", self.seed, least=0)

    def changed(self, **parts: float | int | None) -> "Target":
        """Return it with other parts; None leaves one as it is."""
        return replace(self, **{name: x for name, x in parts.items() if x is not None})  # type: ignore[arg-type]

    @property
    def rng(self) -> np.random.Generator:
        """What splits the queries, the same each time."""
        return np.random.default_rng(self.seed)


def check_between(name: str, value: Any, high: float = 1.0) -> None:
    """Require a number above 0 and below a highest one."""
    if not isinstance(value, Real) or not 0 < float(value) < high:
        raise InputError(
            f"{name} must lie between 0 and {high:g}, both excluded; got {value!r}.", field=name
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
    Target(max_wrong, max_fpir, confidence, max_false_alarms)
    check_between("max_missed", max_missed)
    if len(signals) < LEAST_QUERIES:
        raise DegenerateError(
            f"{len(signals)} calibration queries are too few: give at least {LEAST_QUERIES}, and for this "
            f"target at least {least_queries(max_wrong, confidence)}."
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
        made=datetime.now(UTC),
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
