"""How often strangers get in and how often the enrolled are missed: FPIR and FNIR, with exact bounds.

Biometrics states two error rates of an open-set search at a threshold t, each among its own kind of query:

    FPIR(t) = P(match | unknown)                            a stranger is answered "match"
    FNIR(t) = P(no match with the own label | enrolled)     one who is enrolled is not answered, or wrongly

"No match" is what people see: a query that a gate stopped, or that goes to a review, is none. FPIR never
rises with t and FNIR never falls. Neither depends on how many of the queries are unknown, as the rate of
wrong matches does (`surefind.decisions.risk`); FPIR is therefore the promise to ask for where that share is
not known.

**Bounds.** Of queries that nothing was fitted to, the u unknown ones are independent draws; those that are
a match are binomial (u, FPIR(t)), so the Clopper-Pearson bound of `surefind.decisions.risk` is exact, and
for FNIR the same.

**Operating points.** For a highest FPIR f, thresholds are tested from the strictest on, each at full level,
up to the first whose upper bound is above f (fixed-sequence testing, as in `surefind.decisions.risk`); the
last that passed is used. With u unknown queries and none a match the bound is 1 - (1 - confidence)^(1/u):
1 %, 0.3 % and 0.1 %, the levels at which NIST's FRTE 1:N reports FNIR, need 299, 998 and 2,995 at 95 %.

    Grother, Ngan, Hanaoka: Face Recognition Technology Evaluation (FRTE), Part 2: Identification. NIST
        Interagency Report 8271.

Axes: ``t`` thresholds, ``q`` queries.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from surefind.decisions.risk import least_accepted, lower_bound, upper_bound

LEVELS = (0.01, 0.003, 0.001)
"""FPIR at which NIST reports FNIR."""


@dataclass(frozen=True)
class OperatingPoint:
    """FNIR at a stated FPIR.

    Attributes:
        max_fpir: The FPIR that is kept, with the confidence of the calibration.
        threshold: Least probability of a match; None if there are too few unknown queries, or none passed.
        fpir: Share of unknown queries that are a match there.
        fpir_bound: Its upper bound.
        fnir: Share of enrolled queries that are missed there; 1 without a threshold.
        fnir_bound: Its upper bound.
        unknown_needed: Unknown queries, none of them a match, that would suffice.
    """

    max_fpir: float
    threshold: float | None
    fpir: float
    fpir_bound: float
    fnir: float
    fnir_bound: float
    unknown_needed: int


@dataclass(frozen=True)
class Identification:
    """What each planned threshold does to unknown and to enrolled queries, the strictest first.

    Attributes:
        thresholds: Least probability of a match, falling.
        unknown: Unknown queries that nothing was fitted to.
        enrolled: Enrolled ones.
        false_positives: Of the unknown, how many are a match at each threshold.
        missed: Of the enrolled, how many are not a match with their own label.
        confidence: Of the bounds.
    """

    thresholds: tuple[float, ...]
    unknown: int
    enrolled: int
    false_positives: tuple[int, ...]
    missed: tuple[int, ...]
    confidence: float

    @classmethod
    def count(
        cls,
        thresholds: tuple[float, ...],
        chance: Float[np.ndarray, " q"],
        right: Bool[np.ndarray, " q"],
        enrolled: Bool[np.ndarray, " q"],
        confidence: float,
    ) -> "Identification":
        """Count over queries that nothing was fitted to.

        Args:
            thresholds: Falling.
            chance: Probability of each query's answer; below every threshold if a gate stopped it.
            right: Which answers are right.
            enrolled: Whose label is in the gallery.
            confidence: Of the bounds.

        Returns:
            The counts at each threshold.
        """
        matched = chance[None] >= np.array(thresholds)[:, None]
        return cls(
            thresholds,
            int((~enrolled).sum()),
            int(enrolled.sum()),
            tuple((matched & ~enrolled).sum(axis=1).tolist()),
            tuple((~(matched & right) & enrolled).sum(axis=1).tolist()),
            confidence,
        )

    @property
    def fpir(self) -> tuple[float, ...]:
        """Share of unknown queries that are a match, at each threshold; 0 without any."""
        return _shares(self.false_positives, self.unknown)

    @property
    def fnir(self) -> tuple[float, ...]:
        """Share of enrolled queries that are missed, at each threshold; 0 without any."""
        return _shares(self.missed, self.enrolled)

    @property
    def fpir_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """One-sided exact bounds of FPIR from below and from above."""
        return _bounds(self.false_positives, self.unknown, self.confidence)

    @property
    def fnir_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """One-sided exact bounds of FNIR from below and from above."""
        return _bounds(self.missed, self.enrolled, self.confidence)

    def at(self, max_fpir: float) -> OperatingPoint:
        """Return the loosest threshold that keeps an FPIR, and what it costs."""
        passed = np.array(self.fpir_bounds[1]) <= max_fpir
        run = len(passed) if passed.all() else int(passed.argmin())
        needed = least_accepted(max_fpir, self.confidence)
        if not run:
            return OperatingPoint(max_fpir, None, 0.0, 1.0, 1.0, 1.0, needed)
        i = run - 1
        fpir, fnir = self.fpir[i], self.fnir[i]
        bounds = self.fpir_bounds[1][i], self.fnir_bounds[1][i]
        return OperatingPoint(
            max_fpir, self.thresholds[i], fpir, bounds[0], fnir, bounds[1], needed
        )

    @property
    def operating_points(self) -> tuple[OperatingPoint, ...]:
        """FNIR at the levels that NIST reports."""
        return tuple(self.at(level) for level in LEVELS)


def _shares(counts: tuple[int, ...], of: int) -> tuple[float, ...]:
    return tuple(count / max(of, 1) for count in counts)


def _bounds(
    counts: tuple[int, ...], of: int, confidence: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    low, high = (bound(counts, of, confidence) for bound in (lower_bound, upper_bound))
    return tuple(low.tolist()), tuple(high.tolist())
