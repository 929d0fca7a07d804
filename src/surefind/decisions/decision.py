"""Match, review or no match: the gate that an input must pass, and reasons that a person can act on.

    match      probability >= threshold
    no_match   probability <  floor, and < threshold
    review     what lies between

Reasons why an answer is no match:

    unlike anything seen    the gate: another kind of thing than all that was trained on
    unusual input           the gate: few inputs like those of the training are as unusual
    label not tested        the label is new since the calibration: no query could test it
    unclear input           κ is below that of 95 % of right answers: take a better picture
    labels compete          the posterior is divided more than for 95 % of right answers: look
    not enrolled            that any label is right is less probable than for 95 % of right answers: add it
    target not reached      nothing is wrong with this query; the calibration could not guarantee its rate

Labels that compete are named with their shares: "labels compete: 0.55 a, 0.41 b". If no limit is passed,
the reason is the factor of the probability that is lower (`surefind.decisions.probability`), unless there
was no threshold to miss.

**Gate.** An input unlike the training data is never a match, however probable its label. Each query may
come with a novelty p-value: the share of inputs like those of the training that are at least as unusual.
With α = ``max_false_alarms``,

         p <= α       unlike    no_match, "unlike anything seen"
    α  < p <= 10 α    unusual   at most review, "unusual input"
         p >  10 α    pass      decided by its probability

so of inputs like those of the training a fraction α is stopped by mistake, and 9 α goes to a person.

**The gate is calibrated too.** It depends on a query's own p-value alone. Given that they pass, queries are
therefore independent draws from those that pass: probability, thresholds and floor are fitted to and tested
on them, and the bound is exact for any p-values, good or bad. What is *not* guaranteed is α itself: it
holds for inputs like those that novelty was fitted on. If enrolled queries are stopped significantly more
often (exact binomial test at 1 %), `GateCounts.suspicious` says so.

Axes: ``q`` queries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefind.checks import as_scores
from surefind.decisions.risk import Flags, Values, lower_bound
from surefind.errors import InputError
from surefind.labels.posterior import LabelPosterior

UNLIKE = "unlike anything seen"
UNUSUAL = "unusual input"
UNTESTED = "label not tested"
UNCLEAR = "unclear input"
COMPETE = "labels compete"
NOT_ENROLLED = "not enrolled"
TARGET_NOT_REACHED = "target not reached"

HIGHEST = 0.1
"""Where every query would be unusual."""

FACTOR = 10
"""From α up to so many times α an input is unusual."""

SMALLEST = 1e-4
"""p-values below it are written as such: what novelty is fitted on is seldom enough to tell them apart."""

SURE = 0.99
"""Confidence with which more queries are stopped than α before a calibration says so."""

USUAL = 0.95
COMPETING = float(np.log(0.95 / 0.05))
"""Log-odds of the answer from which no other label has enough to compete."""


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

    def outcome(self, novelty: Values) -> np.ndarray:
        """Return "unlike", "unusual" or "pass" for each query (q)."""
        unlike, unusual = novelty <= self.max_false_alarms, novelty <= self.unusual_below
        return np.where(unlike, "unlike", np.where(unusual, "unusual", "pass"))

    def hold_back(self, novelty: Values, decision: np.ndarray, reasons: np.ndarray) -> None:
        """Take back decisions that the gate does not allow, in place."""
        for row in np.flatnonzero(novelty <= self.unusual_below).tolist():
            p = p_text(float(novelty[row]))
            if novelty[row] <= self.max_false_alarms:
                decision[row], reasons[row] = "no_match", (f"{UNLIKE} ({p})",)
            else:
                decision[row] = "review" if decision[row] == "match" else decision[row]
                reasons[row] = (f"{UNUSUAL} ({p})", *reasons[row])


@dataclass(frozen=True)
class GateCounts:
    """What a gate did to the calibration queries.

    Attributes:
        unlike: Queries that it stopped.
        unusual: Queries that it let through as review at most.
        enrolled: Queries whose label is enrolled.
        enrolled_unlike: Those of them that it stopped.
        enrolled_unusual: Those of them that it let through as review at most.
    """

    unlike: int
    unusual: int
    enrolled: int
    enrolled_unlike: int
    enrolled_unusual: int

    @classmethod
    def of(cls, outcome: np.ndarray, enrolled: Flags) -> "GateCounts":
        """Count the outcomes of a gate."""
        unlike, unusual = outcome == "unlike", outcome == "unusual"
        sets = (unlike, unusual, enrolled, enrolled & unlike, enrolled & unusual)
        return cls(*(int(some.sum()) for some in sets))

    def suspicious(self, gate: Gate) -> bool:
        """Return whether more enrolled queries are stopped than chance and the gate's α explain."""
        least = float(lower_bound(self.enrolled_unlike, self.enrolled, SURE))
        return least > gate.max_false_alarms


def read_novelty(novelty: Any, length: int) -> Values:
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
            hint="Give one p-value for each query, or calibrate again with queries that have none.",
        )
    values = as_scores("novelty", novelty, length=length)
    if not ((values >= 0) & (values <= 1)).all():
        raise InputError("novelty must be p-values from 0 to 1.", field="novelty")
    return values


def p_text(p: float) -> str:
    """Write a p-value in a few characters: "p = 0.0004", "p < 0.0001"."""
    return f"p < {SMALLEST:g}" if p < SMALLEST else f"p = {p:.2g}"


@dataclass(frozen=True)
class Limits:
    """Where the calibration's usual queries end: 5 % quantiles of those that were answered right.

    Attributes:
        among: Below it labels compete.
        known: Below it the label is not enrolled.
        log_kappa: Below it the input is unclear; None where κ is not known.
    """

    among: float
    known: float
    log_kappa: float | None

    @classmethod
    def measure(cls, posterior: LabelPosterior, log_kappa: Values | None, right: Flags) -> "Limits":
        """Measure the limits; if no query was answered right, all count."""
        usual = right if right.any() else np.ones_like(right)
        signals = (posterior.among, np.minimum(posterior.known, 1e3), log_kappa)
        return cls(
            *(None if x is None else float(np.quantile(x[usual], 1 - USUAL)) for x in signals)  # type: ignore[arg-type]
        )

    def reasons(
        self,
        posterior: LabelPosterior,
        factors: tuple[Values, Values],
        log_kappa: Values | None,
        reachable: Flags,
    ) -> Callable[[int], tuple[str, ...]]:
        """Say of queries whose probability makes no match why it does not, at least one reason each.

        Args:
            posterior: Of the queries.
            factors: Of their probabilities.
            log_kappa: Of the queries, None where κ is not known.
            reachable: Whether there is a threshold to miss.

        Returns:
            The reasons of a query, given its row.
        """
        right, enrolled = factors
        competing = (posterior.among <= COMPETING) & (posterior.label_probability[:, 0] > 0)
        compete = competing & (posterior.among < self.among)
        absent = posterior.known < self.known
        unclear = np.zeros(len(right), dtype=bool)
        if log_kappa is not None and self.log_kappa is not None:
            unclear = log_kappa < self.log_kappa
        plain = ~(compete | absent | unclear)
        missed, torn = plain & ~reachable, competing & (right < enrolled)
        compete = np.where(compete & absent, torn, compete | (plain & reachable & torn))
        named = (UNCLEAR, unclear), (COMPETE, compete), (TARGET_NOT_REACHED, missed)

        def reasons(row: int) -> tuple[str, ...]:
            found = [name for name, holds in named if holds[row]] or [NOT_ENROLLED]
            return tuple(_rivals(posterior, row) if name == COMPETE else name for name in found)

        return reasons


def _rivals(posterior: LabelPosterior, row: int) -> str:
    """Name the labels that compete, with their shares among the labels."""
    # How many are enrolled is another question than which of them it is.
    some = 1.0 if posterior.none is None else max(1 - float(posterior.none[row]), 1e-300)
    two = zip(
        posterior.candidates[row, :2], posterior.label_probability[row, :2].tolist(), strict=True
    )
    shares = ", ".join(f"{p / some:.2f} {name}" for name, p in two if name is not None)
    return f"{COMPETE}: {shares}"
