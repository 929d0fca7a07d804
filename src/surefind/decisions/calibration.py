"""When the answer of a posterior may be called a match, with a stated risk.

Calibration queries are split once, at random (`Split`): a quarter, and at most `ENOUGH` times what
the target needs, fits the probability that an answer is right (`surefind.decisions.probability`) and plans
a sequence of thresholds; nothing is fitted to the others, which test them (`surefind.decisions.risk`). So
for any number of queries

    P(wrong | match) <= max_wrong   with probability at least ``confidence`` over the calibration queries,

and with ``max_fpir`` also P(match | unknown) <= max_fpir, both at once. With ``unknown_share`` the first is
about queries of which that share is unknown: queries are weighted, none is thrown away. What each threshold
does to unknown and to enrolled queries: FPIR and FNIR of the risk curve.

**Floor.** Below it an answer is no match: the highest value with at most 5 % of right answers below it (at
the same confidence, from the testing part), and never above ½ or the threshold.

**Gate.** Queries with a novelty p-value pass the gate of `surefind.decisions.decision` first. The
probability is fitted to those that pass; coverage, FPIR and FNIR count all, the others as no match.

**Unknown queries.** A posterior of queries whose own label was left out (``left_out``) stands for unknown
ones: how many of them would be a match is counted at the threshold; and if max_fpir is to be kept and no
query is unknown, they test it, all but those that plan.

**Groups.** A group whose own queries pass the test gets its own threshold, with the same guarantee for that
group. One whose wrong-match rate at the common threshold is significantly above max_wrong (exact lower
bound at ``confidence``) is *refused*: nothing in it is a match. All others use the common threshold, whose
guarantee holds on average over all queries. Groups are distinguished by their text; None is no group.

**Not reached.** If no threshold passes, nothing is a match, and ``more_queries`` estimates how many more
are needed for a chance of 90 %; None if more of the same would not help.

Axes: ``q`` queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool

from surefind.checks import as_correct, as_scores, check_int, label_values
from surefind.decisions import risk
from surefind.decisions.answers import Answers, Columns
from surefind.decisions.decision import HIGHEST, UNTESTED, Gate, GateCounts, Limits, read_novelty
from surefind.decisions.probability import MatchProbability, fit_probability
from surefind.decisions.risk import Flags, Values
from surefind.errors import DegenerateError, InputError
from surefind.files import Array
from surefind.labels.posterior import LabelPosterior

FIT_FRACTION, ENOUGH = 1 / 4, 8
"""Two maps need few queries, while each one that is tested tightens the bound."""

MAX_MISSED = 0.05
HIGHEST_FLOOR = 0.5
LEAST_QUERIES = 20
UNKNOWN = frozenset({None, -1})
"""Truths of a query that nothing enrolled is right for."""

KAPPA_RANGE = 1e-6, 1e12


@dataclass(frozen=True)
class Target:
    """What is guaranteed, and how the queries are split; a renewal repeats it.

    Attributes:
        max_wrong: Highest fraction of wrong answers among matches.
        max_fpir: Highest share of unknown queries that may be a match, or None.
        confidence: With what probability both are kept.
        max_false_alarms: α of the gate.
        unknown_share: The share of unknown queries to expect; None: that of the calibration queries.
        seed: Splits the queries.

    Raises:
        InputError: If a value is impossible.
    """

    max_wrong: float = 0.01
    max_fpir: float | None = None
    confidence: float = 0.95
    max_false_alarms: float = 0.01
    unknown_share: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        between = {"max_wrong": 1, "max_fpir": 1, "confidence": 1, "max_false_alarms": HIGHEST}
        for name, high in between.items():
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Real) and 0 < float(value) < high):
                raise InputError(
                    f"{name} must lie between 0 and {high:g}, both excluded; got {value!r}.",
                    field=name,
                )
        share = self.unknown_share
        if share is not None and not (isinstance(share, Real) and 0 <= share < 1):
            raise InputError(
                f"unknown_share must lie from 0 to below 1; got {share!r}.", field="unknown_share"
            )
        check_int("seed", self.seed, least=0)

    def changed(self, **parts: float | int | None) -> "Target":
        """Return it with other parts; None leaves one as it is."""
        return replace(self, **{name: x for name, x in parts.items() if x is not None})  # type: ignore[arg-type]

    @property
    def risk(self) -> dict[str, float]:
        """What a threshold is tested for."""
        return {"max_wrong": float(self.max_wrong), "confidence": float(self.confidence)}

    @property
    def most_fitted(self) -> int:
        """How many calibration queries fit and plan at most."""
        strictest = min(self.max_wrong, self.max_fpir or 1.0)
        return ENOUGH * risk.least_accepted(strictest, self.confidence)

    @property
    def least_queries(self) -> int:
        """How many calibration queries could pass if all were a match and none was wrong."""
        return max(LEAST_QUERIES, int(risk.least_accepted(**self.risk) / (1 - FIT_FRACTION)) + 1)


@dataclass(frozen=True, eq=False)
class Evidence(Columns):
    """What is known of queries.

    Attributes:
        posterior: Of their labels.
        novelty: p-values (q), or None.
        kappa: Concentrations (q), infinite where one is not known, or None.
    """

    posterior: LabelPosterior
    novelty: Any = None
    kappa: Any = None


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of calibration queries that fit, and rows that test; both in random order.

    Attributes:
        fit: Those that fit: of those that pass the gate, then of those that do not.
        test: The others.
    """

    fit: Array
    test: Array

    @classmethod
    def draw(cls, through: Flags, target: Target) -> "Split":
        """Draw both parts: of queries that passed the gate, and of the others."""
        rng = np.random.default_rng(target.seed)
        parts = [
            np.array_split(rows, [min(int(FIT_FRACTION * len(rows)), target.most_fitted)])
            for rows in (rng.permutation(np.flatnonzero(kind)) for kind in (through, ~through))
        ]
        return cls(*(np.concatenate(both) for both in zip(*parts, strict=True)))


@dataclass(frozen=True, eq=False)
class Measured:
    """Calibration queries with their probabilities.

    Attributes:
        split: Their parts.
        chance: Probability of each (q), -∞ if a gate stopped it.
        unseen: The same by fits that did not see the query (q); of the fitting part only.
        right: Which answers are right (q).
        enrolled: Which queries have a label that is enrolled (q).
        left_out: Probabilities of queries whose label was left out that plan, and of those that test.
    """

    split: Split
    chance: np.ndarray
    unseen: np.ndarray
    right: np.ndarray
    enrolled: np.ndarray
    left_out: tuple[np.ndarray, np.ndarray] | None = None

    def curve(self, members: Flags, target: Target) -> risk.RiskCurve | None:
        """Plan thresholds on the fitting part and test them on the other, of the members only.

        Args:
            members: Which queries.
            target: What to guarantee.

        Returns:
            What was found; None if no query plans or tests, or a kind of queries is missing.
        """
        fit, test = (rows[members[rows]] for rows in (self.split.fit, self.split.test))
        some, share, unknown = fit[self.chance[fit] > -np.inf], target.unknown_share, ~self.enrolled
        strange = unknown[test]
        lacking = share is not None and (strange.all() or (share > 0 and not strange.any()))
        if not len(some) or not len(test) or lacking:
            return None
        options: dict[str, Any] = dict(target.risk)
        if target.max_fpir is not None:
            own = self.unseen[fit][unknown[fit]], self.chance[test][strange]
            planning, testing = self.left_out or own
            options["strangers"] = risk.Strangers(planning, testing, float(target.max_fpir))
        chance, right = self.chance[test], self.right[test]
        plan = risk.plan_thresholds(
            *(values[some] for values in (self.chance, self.unseen, self.right)),
            trials=int((chance > -np.inf).sum()),
            weight=_weights(self.enrolled, share)[some],
            **options,
        )
        return risk.walk_thresholds(plan, chance, right, unknown=strange, share=share, **options)


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

    @classmethod
    def find(
        cls, name: str, members: Flags, found: Measured, common: float, target: Target
    ) -> "GroupThreshold":
        """Choose between a group's own threshold, the common one (infinity for none) and none."""
        test = found.split.test
        test = test[members[test] & (found.chance[test] > -np.inf)]
        enough = len(test) >= risk.least_accepted(**target.risk)
        own = found.curve(members, target) if enough else None
        if own is not None and own.chosen is not None:
            i = own.chosen
            return cls(name, "own", own.thresholds[i], len(test), own.accepted[i], own.wrong[i])
        taken = found.chance[test] >= common
        accepted, wrong = int(taken.sum()), int((taken & ~found.right[test]).sum())
        refused = float(risk.lower_bound(wrong, accepted, target.confidence)) > target.max_wrong
        threshold = None if refused or common == np.inf else common
        return cls(name, "refused" if refused else "common", threshold, len(test), accepted, wrong)


def group_names(groups: Sequence[Any] | None, length: int) -> np.ndarray:
    """Return the group of each query as text, None staying None; ``groups`` None: no query has one."""
    read = [None] * length if groups is None else label_values("groups", groups, count=length)
    return np.array([None if g is None else str(g) for g in read] + [None], dtype=object)[:-1]


@dataclass(frozen=True)
class Calibration:
    """A probability, thresholds with a stated risk, and what they rest on.

    Attributes:
        target: What is guaranteed.
        model: The probability that an answer is right.
        limits: Of the reasons.
        risk_curve: Error rates and their bounds over the planned thresholds.
        floor: Below it there is no match.
        groups: Groups of queries, if they were given.
        gate: Which queries may be a match at all; None if the calibration queries had no novelty.
        gate_counts: What it did to them; None without a gate.
        queries: Calibration queries.
        unknown: Those whose label is not enrolled.
        right: Those answered right.
        left_out_queries: Queries whose label was left out that nothing was fitted to.
        left_out_matched: Those of them that would be a match.
        more_queries: If not reached: how many more are needed, None if more would not help. 0 if reached.
        notes: What to keep in mind.
        tested_probability: Of each query, NaN if the probability was fitted to it or a gate stopped it (q).
        novelty: p-value of each query (q); None without a gate.
        made: When it was made or last renewed.
        renewals: How often it was renewed since.
        stale: Whether the items have changed since.
        labels: Those that may be a match; None for all.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "strict": True}

    target: Target
    model: MatchProbability
    limits: Limits
    risk_curve: risk.RiskCurve
    floor: float
    groups: tuple[GroupThreshold, ...]
    gate: Gate | None
    gate_counts: GateCounts | None
    queries: int
    unknown: int
    right: int
    left_out_queries: int
    left_out_matched: int
    more_queries: int | None
    notes: tuple[str, ...]
    tested_probability: Array = field(compare=False)
    novelty: Array | None = field(compare=False)
    made: datetime | None = field(default=None, compare=False)
    renewals: int = field(default=0, compare=False)
    stale: bool = field(default=False, compare=False)
    labels: tuple[str | int, ...] | None = None

    @property
    def threshold(self) -> float | None:
        """Least probability of a match, where no group has its own; None: nothing is a match."""
        return self.risk_curve.threshold

    @property
    def reached(self) -> bool:
        """Whether the wrong-match rate could be guaranteed."""
        return self.threshold is not None

    def decide(
        self,
        posterior: LabelPosterior,
        *,
        novelty: Any = None,
        kappa: Any = None,
        groups: Sequence[Any] | None = None,
    ) -> Answers:
        """Answer match, review or no match, with reasons.

        Args:
            posterior: Of the queries, from the evidence that was calibrated.
            novelty: p-value of each query; without a gate it has no effect, with one it must be there.
            kappa: Concentration of each query, if the calibration's queries had one.
            groups: The group of each query; None, and a group that was not calibrated, use the common
                threshold.

        Returns:
            The answers.
        """
        length, log_kappa = len(posterior), _log_kappa(kappa, len(posterior))
        factors = self._factors(posterior, log_kappa)
        chance = np.asarray(factors[0] * factors[1])
        threshold = np.full(length, as_number(self.threshold))
        if groups is not None:
            names = group_names(groups, length)
            for group in self.groups:
                threshold[names == group.name] = as_number(group.threshold)
        low = chance < np.minimum(self.floor, threshold)
        decision = np.where(chance >= threshold, "match", np.where(low, "no_match", "review"))
        reasons = np.empty(length, dtype=object)
        reasons.fill(())
        short = np.flatnonzero(chance < threshold).tolist()
        if short:
            why = self.limits.reasons(posterior, factors, log_kappa, np.isfinite(threshold))
            reasons[short] = np.fromiter(map(why, short), dtype=object, count=len(short))
        for row, label in enumerate(posterior.label) if self.labels is not None else ():
            if label not in self._tested and decision[row] != "no_match":
                decision[row], reasons[row] = "review", (UNTESTED, *reasons[row])
        values = None if self.gate is None and novelty is None else read_novelty(novelty, length)
        if self.gate is not None and values is not None:
            self.gate.hold_back(values, decision, reasons)
        return Answers.of(
            posterior,
            probability=chance,
            decision=decision,
            reasons=reasons,
            novelty=values,
            kappa=None if kappa is None else as_scores("kappa", kappa),
            stale=self.stale,
        )

    @cached_property
    def _tested(self) -> frozenset[str | int | None]:
        return frozenset({*(self.labels or ()), None})

    def _factors(
        self, posterior: LabelPosterior, log_kappa: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        if self.model.known is not None and posterior.none is None:
            raise InputError(
                "the calibration's queries had a probability of none of the labels, and these have none.",
                field="posterior",
                hint="Give none=, or calibrate again without it.",
            )
        if self.model.uses_kappa and log_kappa is None:
            raise InputError(
                "the calibration uses the queries' concentration kappa, and these have none.",
                field="kappa",
                hint="Give a finite kappa for each query, or calibrate again without it.",
            )
        return self.model.factors(posterior, log_kappa)

    @property
    def summary(self) -> str:
        """What is guaranteed and what it costs, in six lines, and a line for each note."""
        target, found = self.target, self.risk_curve
        i, tested = found.chosen, found.unknown + found.enrolled
        promised = f"at most {_percent(target.max_wrong)} of matches are wrong"
        if target.max_fpir is not None:
            promised += f" and {_percent(target.max_fpir)} of unknown queries are a match"
        share = target.unknown_share
        expected = "" if share is None else f" at {_percent(share)} unknown"
        wrongly, missed, at_least = 0, found.enrolled, "none"
        answered = f"0 of {tested:,} test queries: {self._missing()}"
        if i is not None:
            wrongly, missed = found.false_positives[i], found.missed[i]
            at_least = f"probability >= {found.thresholds[i]:.3f}"
            answered = (
                f"{found.accepted[i]:,} of {tested:,} test queries ({_percent(found.coverage[i])}"
                f"{expected}), {found.wrong[i]:,} wrong (upper bound {_percent(found.upper_bound[i])})"
            )
        counts = (
            (wrongly, found.unknown, "unknown queries"),
            (self.left_out_matched, self.left_out_queries, "with their label left out"),
        )
        bounds = (_percent(risk.upper_bound(k, n, target.confidence)) for k, n, _ in counts)
        unknown = [
            f"{k:,} of {n:,} {what} (FPIR, upper bound {bound})"
            for (k, n, what), bound in zip(counts, bounds, strict=True)
            if n
        ] or ["not tested: give queries with the truth None"]
        fnir = missed / max(found.enrolled, 1)
        lines = {
            "match threshold": at_least,
            "answered as a match": answered,
            "unknown but matched": "; ".join(unknown),
            "known but missed": f"{missed:,} of {found.enrolled:,} (FNIR {_percent(fnir)})",
            "OOD rejection": self._gated(),
        }
        return "\n".join([
            f"{'Not reached' if i is None else 'Guarantee'}: {promised} "
            f"({_percent(target.confidence)} confidence)",
            *(f"  {name:<20}  {text}" for name, text in lines.items()),
            *(f"Note: {note}" for note in self.notes),
        ])

    def _missing(self) -> str:
        """Say what a target that was not reached lacks."""
        curve, more, needed = self.risk_curve, self.more_queries, 0
        if self.target.max_fpir is not None:
            needed = risk.least_accepted(self.target.max_fpir, self.target.confidence)
        if needed > (tested := curve.unknown or self.left_out_queries):
            return f"max_fpir needs {needed:,} unknown queries to test it, there were {tested:,}"
        if more is not None:
            return f"about {more:,} more would reach it (chance {_percent(risk.LIKELY)})"
        lowest = min((curve.wrong_rate[i] for i in curve.informative), default=1.0)
        return f"more queries will not help, at least {_percent(lowest)} of the answers are wrong"

    def _gated(self) -> str:
        if (n := self.gate_counts) is None:
            return "off: pass novelty= to reject inputs unlike the training data"
        stopped = (
            f"{n.unlike:,} of {self.queries:,} queries, {n.enrolled_unlike:,} of them enrolled"
        )
        return f"{stopped}; to review {n.unusual:,}, {n.enrolled_unusual:,} enrolled"


def as_number(threshold: float | None) -> float:
    """Return a threshold as a number: infinity where nothing is a match."""
    return float("inf") if threshold is None else threshold


def _percent(share: Any) -> str:
    return f"{round(100 * float(share), 1 if 0.01 <= share <= 0.99 else 2):g} %"


def _log_kappa(kappa: Any, length: int) -> Values | None:
    """Return log κ of each query; None if one has no κ, which is infinite then."""
    if kappa is None:
        return None
    values = as_scores("kappa", kappa, length=length)
    if not (values >= 0).all():
        raise InputError(f"kappa must not be below 0; got {values.min():g}.", field="kappa")
    return np.log(np.clip(values, *KAPPA_RANGE)) if np.isfinite(values).all() else None


def calibrate(
    posterior: LabelPosterior,
    truth: Any,
    *,
    max_wrong: float = 0.01,
    max_fpir: float | None = None,
    confidence: float = 0.95,
    max_false_alarms: float = 0.01,
    novelty: Any = None,
    kappa: Any = None,
    groups: Sequence[Any] | None = None,
    enrolled: Any = None,
    unknown_share: float | None = None,
    left_out: Evidence | None = None,
    notes: Sequence[str] = (),
    seed: int = 0,
) -> Calibration:
    """Choose the match threshold so that at most ``max_wrong`` of the matches are wrong.

    Args:
        posterior: Evidence about labelled queries that were held out from all that made it.
        truth: The label of each query (q); None or -1 for one that nothing enrolled is right for.
        max_wrong: Highest fraction of wrong answers among matches, between 0 and 1.
        max_fpir: Highest share of unknown queries that may be a match, between 0 and 1; None to guarantee
            nothing about it.
        confidence: With what probability this is kept, between 0 and 1.
        max_false_alarms: α of the gate, between 0 and 0.1.
        novelty: p-value of each query (q); None for no gate.
        kappa: Concentration of each query (q), infinite where it is not known.
        groups: The group of each query, for thresholds of their own; None for no group.
        enrolled: Whether each label is enrolled (q); by default, whether the posterior names it.
        unknown_share: The share of unknown queries to expect, where it is another one than among these.
        left_out: What is known of other queries, whose own label was left out
            (`surefind.decisions.calibration.Evidence`).
        notes: What to keep in mind about the queries, a sentence each.
        seed: Splits the queries.

    Returns:
        The calibration; ask ``reached`` whether the target was reached.

    Raises:
        InputError: If lengths differ, a fraction is not between 0 and 1, an answer is right for a query
            that is not enrolled, or truth and labels are of different kinds.
        DegenerateError: If there are too few queries, or none of a kind that the target is about.

    Examples:
        >>> import surefind as sf
        >>> posterior = sf.LabelPosterior(["cat", "dog"], [[0.95, 0.05], [0.1, 0.9]] * 100)
        >>> calibration = sf.calibrate(posterior, ["cat", "dog"] * 100, max_wrong=0.05)
        >>> calibration.decide(posterior).decision[:2].tolist()
        ['match', 'match']
    """
    target = Target(max_wrong, max_fpir, confidence, max_false_alarms, unknown_share, seed)
    length, log_kappa = len(posterior), _log_kappa(kappa, len(posterior))
    good, known = _checked(posterior, truth, enrolled)
    gate = None if novelty is None else Gate(float(max_false_alarms))
    through, counts, values = np.ones(length, dtype=bool), None, None
    if gate is not None:
        values = read_novelty(novelty, length)
        outcome = gate.outcome(values)
        through, counts = outcome == "pass", GateCounts.of(outcome, known)
    split = Split.draw(through, target)
    _check(through, known, known[split.test], target, left_out is not None)
    left_kappa = None if left_out is None else _log_kappa(left_out.kappa, len(left_out))
    if left_out is not None and left_kappa is None:
        log_kappa = None  # otherwise these could not be compared
    fit, test = split.fit[through[split.fit]], split.test
    chance, unseen = np.full((2, length), -np.inf)
    model, unseen[fit] = fit_probability(
        posterior[fit],
        good[fit],
        known[fit],
        weight=_weights(known, unknown_share)[fit],
        log_kappa=None if log_kappa is None else log_kappa[fit],
    )
    chance[through] = model(posterior, log_kappa)[through]
    strange, aside = np.empty(0), None
    if left_out is not None:
        strange = model(left_out.posterior, left_kappa)
        if gate is not None:
            passed = gate.outcome(read_novelty(left_out.novelty, len(left_out))) == "pass"
            strange[~passed] = -np.inf
        if max_fpir is not None and known.all():
            parts = Split.draw(np.ones(len(strange), dtype=bool), target)
            aside = strange[parts.fit], strange[parts.test]
            strange = aside[1]
    measured = Measured(split, chance, unseen, good, known, aside)
    curve = measured.curve(np.ones(length, dtype=bool), target)
    assert curve is not None
    common, names = as_number(curve.threshold), group_names(groups, length)
    by_group = tuple(
        GroupThreshold.find(name, names == name, measured, common, target)
        for name in sorted({*names} - {None})
    )
    floor = risk.safe_floor(
        chance[test][(good & through)[test]], max_missed=MAX_MISSED, confidence=confidence
    )
    usual_kappa = None if log_kappa is None else log_kappa[through]
    share = 1 - len(test) / length
    tested = np.full(length, np.nan)
    tested[test] = np.where(through, chance, np.nan)[test]
    return Calibration(
        target=target,
        model=model,
        limits=Limits.measure(posterior[through], usual_kappa, good[through]),
        risk_curve=curve,
        floor=min(floor, HIGHEST_FLOOR),
        groups=by_group,
        gate=gate,
        gate_counts=counts,
        queries=length,
        unknown=int((~known).sum()),
        right=int(good.sum()),
        left_out_queries=len(strange),
        left_out_matched=int((strange >= common).sum()),
        more_queries=risk.more_queries(curve, length, fitted_share=share, **target.risk),
        notes=(*notes, *_notes(good[through], known, by_group, gate, counts)),
        tested_probability=tested,
        novelty=values,
        made=datetime.now(UTC),
    )


def _checked(posterior: LabelPosterior, truth: Any, enrolled: Any) -> tuple[Flags, Flags]:
    """Return which answers are right, and which queries are enrolled."""
    length = len(posterior)
    named = [None if x in UNKNOWN else x for x in label_values("truth", truth, count=length)]
    labels = {*posterior.labels.ravel().tolist()} - {None}
    there = {*named} - {None}
    if there and labels and not {*map(type, there)} & {*map(type, labels)}:
        raise InputError(
            f"truth has labels such as {next(iter(there))!r} and the posterior such as "
            f"{next(iter(labels))!r}: texts and whole numbers are never equal.",
            field="truth",
        )
    known = np.array([name in labels for name in named])
    if enrolled is not None:
        known = as_correct("enrolled", enrolled, length=length)
    good = np.array([a == b and a is not None for a, b in zip(posterior.label, named, strict=True)])
    if (good & ~known).any():
        raise InputError(
            f"query {int((good & ~known).argmax())} is answered right but not enrolled: its label cannot "
            "be found where it is not. Check the labels.",
            field="enrolled",
        )
    return good, known


def _check(
    through: Flags, known: Flags, tested: Bool[np.ndarray, " t"], target: Target, left_out: bool
) -> None:
    """Require enough queries, and some of each kind that the target is about."""
    length, passing, share = len(through), int(through.sum()), target.unknown_share

    def require(met: Any, field_: str, message: str) -> None:
        if not met:
            raise DegenerateError(message, field=field_)

    least = f"at least {LEAST_QUERIES}"
    few = f"{length} calibration queries are too few: give {least}, for this target"
    require(length >= LEAST_QUERIES, "truth", f"{few} at least {target.least_queries}.")
    stopped = (
        f"only {passing} of {length} calibration queries pass the gate, and {least} must: give"
    )
    advice = "queries like those to come, or fit novelty on other data like them."
    require(passing >= LEAST_QUERIES, "novelty", f"{stopped} {advice}")
    strange = "max_fpir is about queries whose label is not enrolled, and there are none: give some"
    lacking = target.max_fpir is not None and known.all() and not left_out
    require(not lacking, "max_fpir", f"{strange} with the label None, or leave max_fpir out.")
    kinds = {"known": tested.any(), "unknown": share == 0 or not tested.all()}
    lacks = " or ".join(kind for kind, there in kinds.items() if not there)
    needed = f"unknown_share = {share} needs known and unknown queries, and no {lacks} one tests it: give"
    require(share is None or not lacks, "unknown_share", f"{needed} some, or leave it out.")


def _weights(known: Flags, share: float | None) -> Values:
    """Return what each query counts where a share of unknown ones is expected."""
    if share is None:
        return np.ones(len(known))
    expected = np.where(known, 1 - share, share)
    return np.asarray(expected / np.where(known, known.mean(), 1 - known.mean()))


def _notes(
    right: Bool[np.ndarray, " p"],
    enrolled: Flags,
    groups: tuple[GroupThreshold, ...],
    gate: Gate | None,
    counts: GateCounts | None,
) -> tuple[str, ...]:
    """Return what the calibration queries did not show, those that pass and all, a sentence each."""
    said = {
        "No query was unknown, so the guarantee covers enrolled labels only.": enrolled.all(),
        "All calibration queries were unknown: no answer could be right.": not enrolled.any(),
        "All answers were right, so nothing says how wrong ones look.": right.all(),
        "The gate stops too many of these enrolled queries: fit novelty on data like them.": gate
        and counts
        and counts.suspicious(gate),
    }
    refused = (
        f"Group {group.name}: {group.wrong} of {group.accepted} matches would be wrong at the common "
        "threshold, so nothing in it is a match."
        for group in groups
        if group.status == "refused"
    )
    return (*(note for note, holds in said.items() if holds), *refused)
