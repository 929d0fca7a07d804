"""The gate: an input unlike the training data is never a match, however probable its label.

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

Axes: ``q`` queries.
"""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.checks import as_scores
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

    def __post_init__(self) -> None:
        if not isinstance(self.max_false_alarms, Real) or not 0 < self.max_false_alarms < HIGHEST:
            raise InputError(
                f"max_false_alarms must lie between 0 and {HIGHEST:g}, both excluded; got "
                f"{self.max_false_alarms!r}.",
                field="max_false_alarms",
            )

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
