"""Match, review or no match: one decision a query, with reasons that a person can act on.

    match      probability >= threshold
    no_match   probability <  floor, and < threshold
    review     what lies between

A threshold of infinity stands for none: nothing is a match. What the gate does not let through is
no match either way. Reasons why an answer is no match:

    unlike anything seen    the gate: another kind of thing than all that was trained on
    unusual input           the gate: few inputs like those of the training are as unusual
    unclear input           log κ is below that of 95 % of right answers: take a better picture
    split neighbourhood     consensus below that of 95 % of right answers, and rivals have 5 % or more: look
    not enrolled            none of these, but less evidence than 95 % of right answers have: add it
    target not reached      nothing is wrong with this query; the calibration could not guarantee its rate

A split is given with what competes, where the caller says it: "split neighbourhood: 0.55 a, 0.41 b".

Limits are quantiles of the calibration queries that were answered right. They are stored with the
calibration. Each answer that is no match has at least one reason. If no limit is passed,
it is "not enrolled" for a no_match; for a review it is that of the signal that costs the most log-odds
against a typical right answer, unless there was no threshold to miss.

**Gate.** An input unlike the training data is never a match, however probable its label.
Each query may come with a novelty p-value: the share of inputs like those of the training that are at least
as unusual. With α = ``max_false_alarms``,

         p <= α       unlike    no_match, "unlike anything seen"
    α  < p <= 10 α    unusual   at most review, "unusual input"
         p >  10 α    pass      decided by its probability

so of inputs like those of the training a fraction α is stopped by mistake, and 9 α goes to a person. What
neighbours say about an input that is like nothing seen was never tested, so it gives no other reason.

**The gate is calibrated too.** It is fixed before the calibration queries are looked at (novelty must not
be fitted on them), and depends on a query's own p-value alone. Given that they pass, queries are therefore
independent draws from those that pass: probability, thresholds and floor are fitted to and tested on them.
Every match has passed, so what is tested is P(wrong | match) itself, and its bound is exact for any
p-values, good or bad. A gate put on afterwards has no such guarantee: it changes who is a match, and if it
stops right answers more often than wrong ones, the rate among those left rises.

What is *not* guaranteed is α itself: it holds for inputs like those that novelty was fitted on. If enrolled
queries are stopped significantly more often (exact binomial test at 1 %), `GateCounts.suspicious` says so.

Axes: ``q`` queries, ``s`` signals.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.checks import as_scores
from surefind.decisions.probability import MatchProbability, Signals
from surefind.decisions.risk import lower_bound
from surefind.errors import InputError

UNLIKE = "unlike anything seen"
UNUSUAL = "unusual input"

HIGHEST = 0.1
"""Where every query would be unusual."""

FACTOR = 10
"""From α up to so many times α an input is unusual."""

SMALLEST = 1e-4
"""p-values below it are written as such: what novelty is fitted on is seldom enough to tell them apart."""

SURE = 0.99
"""Confidence with which more queries are stopped than α before a calibration says so."""


@dataclass(frozen=True)
class Gate:
    """Which queries may be a match at all.

    Attributes:
        max_false_alarms: α, above 0 and below 0.1.
    """

    max_false_alarms: float = 0.01

    @property
    def unusual_below(self) -> float:
        """10 α: an input with at most this p-value is no match."""
        return FACTOR * self.max_false_alarms

    def outcome(self, novelty: Float[np.ndarray, " q"]) -> np.ndarray:
        """Return "unlike", "unusual" or "pass" for each query (q)."""
        unlike, unusual = novelty <= self.max_false_alarms, novelty <= self.unusual_below
        return np.where(unlike, "unlike", np.where(unusual, "unusual", "pass"))

    def decide(
        self,
        novelty: Float[np.ndarray, " q"],
        decision: np.ndarray,
        reasons: list[tuple[str, ...]],
    ) -> tuple[np.ndarray, list[tuple[str, ...]]]:
        """Take back what the gate does not allow.

        Args:
            novelty: p-value of each query.
            decision: What its probability says.
            reasons: Why.

        Returns:
            The decisions and reasons with the gate.
        """
        found = self.outcome(novelty)
        allowed = np.where((found == "unusual") & (decision == "match"), "review", decision)
        explained: list[tuple[str, ...]] = []
        for outcome, p, others in zip(found, novelty.tolist(), reasons, strict=True):
            if outcome == "unlike":
                explained.append((f"{UNLIKE} ({p_text(p)})",))
            elif outcome == "unusual":
                explained.append((f"{UNUSUAL} ({p_text(p)})", *others))
            else:
                explained.append(others)
        return np.where(found == "unlike", "no_match", allowed), explained


@dataclass(frozen=True)
class GateCounts:
    """What a gate did to the calibration queries.

    Attributes:
        unlike: Queries that it stopped.
        unusual: Queries that it let through as review at most.
        enrolled: Queries whose label is in the gallery.
        enrolled_unlike: Those of them that it stopped.
        enrolled_unusual: Those of them that it let through as review at most.
    """

    unlike: int
    unusual: int
    enrolled: int
    enrolled_unlike: int
    enrolled_unusual: int

    @classmethod
    def of(cls, outcome: np.ndarray, enrolled: Bool[np.ndarray, " q"]) -> "GateCounts":
        """Count the outcomes of a gate."""
        unlike, unusual = outcome == "unlike", outcome == "unusual"
        sets = (unlike, unusual, enrolled, enrolled & unlike, enrolled & unusual)
        return cls(*(int(some.sum()) for some in sets))

    def suspicious(self, gate: Gate) -> bool:
        """Return whether more enrolled queries are stopped than chance and the gate's α explain."""
        least = float(lower_bound(self.enrolled_unlike, self.enrolled, SURE))
        return least > gate.max_false_alarms


def read_novelty(novelty: Any, length: int) -> Float[np.ndarray, " q"]:
    """Read the p-values that a gate needs.

    Args:
        novelty: One for each query, or None where there is none.
        length: How many queries there are.

    Returns:
        The p-values in float64.

    Raises:
        InputError: If there are none, or they are no p-values.
    """
    if novelty is None:
        raise InputError(
            "the calibration stops inputs that are unlike anything seen, and these queries come without a "
            "novelty p-value.",
            field="novelty",
            hint="Give novelty, one p-value for each vector: embed the queries with the model whose "
            "novelty was fitted; or calibrate again with queries that have none.",
        )
    values = as_scores("novelty", novelty, length=length)
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError("novelty must be p-values from 0 to 1.", field="novelty")
    return values


def p_text(p: float) -> str:
    """Write a p-value in a few characters: "p = 0.0004", "p < 0.0001"."""
    return f"p < {SMALLEST:g}" if p < SMALLEST else f"p = {p:.2g}"


UNCLEAR = "unclear input"
SPLIT = "split neighbourhood"
NOT_ENROLLED = "not enrolled"
TARGET_NOT_REACHED = "target not reached"

USUAL = 0.95
COMPETING = float(np.log(0.95 / 0.05))
"""Log-odds of the answer from which no other label has enough votes to speak of a split."""

OF_SIGNAL = (SPLIT, NOT_ENROLLED, UNCLEAR, NOT_ENROLLED, SPLIT, NOT_ENROLLED)
"""The reason that belongs to each signal, in the order of ``Signals.names``."""

IS_UNCLEAR, IS_SPLIT, IS_ABSENT, NO_TARGET = 1, 2, 4, 8
"""Reasons as numbers that add up."""
NUMBERED = {
    UNCLEAR: IS_UNCLEAR,
    SPLIT: IS_SPLIT,
    NOT_ENROLLED: IS_ABSENT,
    TARGET_NOT_REACHED: NO_TARGET,
}
BLAMED = np.array([NUMBERED[reason] for reason in OF_SIGNAL])
TOLD = [tuple(name for name, bit in NUMBERED.items() if bit & number) for number in range(16)]
"""The reasons that each sum stands for."""


@dataclass(frozen=True)
class ReasonLimits:
    """Where the calibration's usual queries end.

    Attributes:
        low_log_kappa: Below it: unclear input.
        low_consensus: Below it: split neighbourhood.
        low_evidence: Below it: not enrolled.
        typical_parts: Median log-odds that each signal adds for a right answer; None if the probability
            does not use the signal.
    """

    low_log_kappa: float
    low_consensus: float
    low_evidence: float
    typical_parts: tuple[float | None, ...]

    @cached_property
    def typical(self) -> Float[np.ndarray, " s"]:
        """`typical_parts`, -inf for a signal that does not count, which is never to blame."""
        return np.array([-np.inf if part is None else part for part in self.typical_parts])


def measure_limits(
    signals: Signals,
    parts: Float[np.ndarray, "q s"],
    right: Bool[np.ndarray, " q"],
    used: tuple[bool, ...],
) -> ReasonLimits:
    """Compute the limits from the calibration queries; if none was answered right, all count.

    Args:
        signals: Their signals.
        parts: What each signal adds to their log-odds.
        right: Which were answered right.
        used: Which signals the probability uses.

    Returns:
        The limits.
    """
    usual = right if right.any() else np.ones_like(right)
    return ReasonLimits(
        low_log_kappa=float(np.quantile(signals.log_kappa[usual], 1 - USUAL)),
        low_consensus=float(np.quantile(signals.consensus[usual], 1 - USUAL)),
        low_evidence=float(np.quantile(signals.evidence[usual], 1 - USUAL)),
        typical_parts=tuple(
            float(part) if counts else None
            for part, counts in zip(np.median(parts[usual], axis=0), used, strict=True)
        ),
    )


@dataclass(frozen=True, eq=False)
class Decisions:
    """A decision for each query.

    Attributes:
        probability: That the answered label is right (q); of queries that do not pass the gate it was never
            tested.
        decision: "match", "review" or "no_match" (q).
        reasons: None for a match, at least one for the others.
        gate: "unlike", "unusual" or "pass" (q); None without a gate.
    """

    probability: np.ndarray
    decision: np.ndarray
    reasons: list[tuple[str, ...]]
    gate: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.probability)

    def without(self, unanswered: Bool[np.ndarray, " q"]) -> "Decisions":
        """Return them with no match where there is no label that could be right."""
        rows = zip(unanswered, self.reasons, strict=True)
        return replace(
            self,
            probability=np.where(unanswered, 0.0, self.probability),
            decision=np.where(unanswered, "no_match", self.decision),
            reasons=[own or (NOT_ENROLLED,) if empty else own for empty, own in rows],
        )


def decide(
    model: MatchProbability,
    limits: ReasonLimits,
    signals: Signals,
    *,
    threshold: Float[np.ndarray, " q"],
    floor: float,
    gate: Gate | None = None,
    novelty: Float[np.ndarray, " q"] | None = None,
    rivals: Callable[[np.ndarray], list[str]] | None = None,
) -> Decisions:
    """Decide each query.

    Args:
        model: The probability that an answer is right.
        limits: Of the reasons.
        signals: Of the queries.
        threshold: Of each query.
        floor: Below it there is no match.
        gate: What may be a match at all; None for everything.
        novelty: p-value of each query, for the gate.
        rivals: Says what competes for queries, in words, given their rows; asked where that is a reason.

    Returns:
        One decision a query.
    """
    parts = model.parts(signals)
    probability = model.probability(parts)
    decision = np.where(
        probability >= threshold,
        "match",
        np.where(probability < np.minimum(floor, threshold), "no_match", "review"),
    )
    reasons = _reasons(limits, signals, parts, decision, np.isfinite(threshold))
    if rivals is not None:
        rows = [query for query, found in enumerate(reasons) if SPLIT in found]
        named = rivals(np.array(rows)) if rows else []
        for query, text in zip(rows, named, strict=True):
            reasons[query] = tuple(
                _named(text) if reason == SPLIT else reason for reason in reasons[query]
            )
    if gate is None or novelty is None:
        return Decisions(probability, decision, reasons)
    decision, reasons = gate.decide(novelty, decision, reasons)
    return Decisions(probability, decision, reasons, gate.outcome(novelty))


def _named(rivals: str) -> str:
    return f"{SPLIT}: {rivals}" if rivals else SPLIT


def _reasons(
    limits: ReasonLimits,
    signals: Signals,
    parts: Float[np.ndarray, "q s"],
    decision: np.ndarray,
    reachable: Bool[np.ndarray, " q"],
) -> list[tuple[str, ...]]:
    """Return no reason for a match, at least one for every other answer."""
    match = decision == "match"
    if match.all():
        return [()] * len(decision)
    unclear = signals.log_kappa < limits.low_log_kappa
    competing = signals.consensus <= COMPETING
    split = (signals.consensus < limits.low_consensus) & competing
    absent = (signals.evidence < limits.low_evidence) & ~unclear & ~split
    blamed = BLAMED[(limits.typical - parts).argmax(axis=1)]
    blamed = np.where((blamed == IS_SPLIT) & ~competing, IS_ABSENT, blamed)
    alone = np.where(decision == "no_match", IS_ABSENT, np.where(reachable, blamed, NO_TARGET))
    found = IS_UNCLEAR * unclear + IS_SPLIT * split + IS_ABSENT * absent
    found = np.where(match, 0, np.where(found > 0, found, alone))
    return [TOLD[number] for number in found.tolist()]
