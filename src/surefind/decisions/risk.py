"""The wrong-match rate, a bound on it that holds for any sample size, and the threshold it allows.

A query is answered "match" if its probability is at least a threshold t. The rate that is bounded is

    R(t) = P(answer is wrong | answered "match")

for queries drawn like the calibration queries: the fraction of wrong ones among the matches given, not
among all queries. In the terms of selective prediction R(t) is the selective risk at the coverage
P(answered "match"), and choosing t so that R(t) <= max_wrong is selection with guaranteed risk (Geifman
and El-Yaniv 2017). They search t by bisection and pay for it with a union bound over the steps; here the
same Clopper-Pearson bound is used in a fixed-sequence test, which pays nothing.

**Bound.** Of a sample that was not used to fit the probability, N(t) queries reach t and W(t) of those are
wrong. Given N(t) = n, the n queries are independent draws from the accepted ones, so W(t) is binomial
(n, R(t)), exactly. The Clopper-Pearson (1934) bound U(t) is the largest rate r for which
P(Binomial(n, r) <= W) is at least 1 - confidence; hence P(U(t) < R(t)) <= 1 - confidence for every n.
U(t) <= max_wrong is the same as an exact binomial test that rejects R(t) > max_wrong, at this level.

**Fixed-sequence testing.** Thresholds t_1 > t_2 > ... and the first one to test come from the fitting part
alone. They are tested in that order, each at full level (pass: U(t) <= max_wrong), up to the first
failure; the last that passed is used. This is Learn-then-Test (Angelopoulos, Bates, Candès, Jordan and Lei
2021) with binomial p-values and fixed-sequence testing as the procedure that controls the family-wise
error; the split chooses where the sequence starts. It needs no correction for many tests: let t* be the
first threshold, from the start on, with R(t*) > max_wrong; it is fixed, though unknown. A threshold of too
high a rate can be chosen only if t* itself passed, and that has a probability of at most 1 - confidence.

So P(R(chosen) > max_wrong) <= 1 - confidence, for any signals, any fit and any number of queries, as long
as future queries come from the same distribution, unknown ones in the same proportion. It does not hold
for each kind of query separately.

**Where to start.** With n accepted queries and no error U = 1 - (1 - confidence)^(1/n), so fewer than
n_0 = ⌈log(1 - confidence) / log(1 - max_wrong)⌉ never pass (299 for 1 % at 95 %). The strictest thresholds
would therefore always fail. The test starts where the fitting part, by probabilities of fits that did not
see the query, predicts the highest chance to pass; the testing part has no influence on it.

**Floor.** `safe_floor` bounds a quantile by an order statistic (a one-sided tolerance limit, Wilks 1941).

**More queries.** For a target that was not reached, `more_queries` estimates how many more would do at the
observed error rates; it guarantees nothing.

Ties: queries of equal probability are accepted together; equal thresholds are one.

    Angelopoulos, Bates, Candès, Jordan, Lei: Learn then Test: Calibrating Predictive Algorithms to Achieve
        Risk Control. arXiv:2110.01052, 2021.
    Geifman, El-Yaniv: Selective Classification for Deep Neural Networks. NeurIPS 2017.
    Clopper, Pearson: The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial.
        Biometrika 26, 1934.
    Wilks: Determination of Sample Sizes for Setting Tolerance Limits. Ann. Math. Stat. 12, 1941.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

GRID = 100
"""Thresholds planned: one for each per cent of the fitting part accepted."""

LEAST_SEEN = 30
"""Accepted queries below which an error rate is luck."""


@dataclass(frozen=True)
class RiskCurve:
    """What each planned threshold gave on the testing part, the strictest first.

    Attributes:
        thresholds: Least probability of a match, falling.
        accepted: Queries at or above it.
        wrong: Wrong answers among them.
        coverage: Fraction of the testing part accepted.
        wrong_rate: Fraction of wrong answers among the accepted; 0 where there is none.
        upper_bound: Clopper-Pearson bound of the true rate, each by itself.
        first: Index of the first threshold tested.
        chosen: Index of the last that passed before a failure; None if the first failed.
    """

    thresholds: tuple[float, ...]
    accepted: tuple[int, ...]
    wrong: tuple[int, ...]
    coverage: tuple[float, ...]
    wrong_rate: tuple[float, ...]
    upper_bound: tuple[float, ...]
    first: int
    chosen: int | None

    @property
    def threshold(self) -> float | None:
        """Least probability of a match, None if no threshold is known to be good enough."""
        return None if self.chosen is None else self.thresholds[self.chosen]

    @property
    def informative(self) -> tuple[int, ...]:
        """Indices of thresholds that accepted 30 queries or more, or else as many as any did."""
        least = max(1, min(LEAST_SEEN, max(self.accepted)))
        return tuple(i for i, accepted in enumerate(self.accepted) if accepted >= least)


@dataclass(frozen=True)
class ThresholdPlan:
    """Thresholds to test, fixed before the testing part is looked at.

    Attributes:
        thresholds: Falling.
        first: Index of the first one to test.
    """

    thresholds: tuple[float, ...]
    first: int


def upper_bound(wrong: Any, trials: Any, confidence: float) -> np.ndarray:
    """Return the exact (Clopper-Pearson) one-sided upper confidence bound of a rate; 1 without a trial."""
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    w, n = np.broadcast_arrays(np.asarray(wrong, float), np.asarray(trials, float))
    all_wrong = w >= n
    return np.where(all_wrong, 1.0, betaincinv(w + 1, np.where(all_wrong, 1, n - w), confidence))


def lower_bound(wrong: Any, trials: Any, confidence: float) -> np.ndarray:
    """Return the exact one-sided lower confidence bound of a rate; 0 without an error."""
    from scipy.special import betaincinv

    w, n = np.broadcast_arrays(np.asarray(wrong, float), np.asarray(trials, float))
    none = w <= 0
    return np.where(none, 0.0, betaincinv(np.where(none, 1, w), n - w + 1, 1 - confidence))


def least_accepted(max_wrong: float, confidence: float) -> int:
    """Return n_0: how many accepted queries without an error are needed to pass."""
    return int(np.ceil(np.log1p(-confidence) / np.log1p(-max_wrong)))


def plan_thresholds(
    probability: Float[np.ndarray, " n"],
    unseen: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    trials: int,
    max_wrong: float,
    confidence: float,
) -> ThresholdPlan:
    """Fix thresholds and the place to start, from the fitting part alone.

    Args:
        probability: Probabilities of the fitting part by the final fit.
        unseen: The same queries' probabilities by fits that did not see them.
        right: Which of their answers are right.
        trials: How many queries the testing part has.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.

    Returns:
        The sequence to test.
    """
    from scipy.special import bdtr, bdtrik

    n = len(probability)
    counts = np.unique(np.ceil(np.arange(1, GRID + 1) * n / GRID).astype(int))
    thresholds = np.unique(np.sort(probability)[::-1][counts - 1])[::-1]
    taken, _ = _counts(thresholds, probability, right)
    # The fits that did not see a query have scales of their own: the same fraction is compared.
    accepted, wrong = _counts(np.sort(unseen)[::-1][taken - 1], unseen, right)
    # Half an error more than seen: no rate is known to be 0.
    rate = (wrong + 0.5) / (accepted + 1)
    expected = np.maximum(np.round(taken / n * trials), 1).astype(int)
    possible = expected >= least_accepted(max_wrong, confidence)
    errors = np.where(possible, bdtrik(1 - confidence, expected, max_wrong), 0)
    chance = np.where(possible, bdtr(np.floor(errors), expected, rate), 0.0)
    # With too few queries none can pass; the loosest then says most about the data.
    first = int(chance.argmax()) if possible.any() else len(thresholds) - 1
    return ThresholdPlan(tuple(map(float, thresholds)), first)


def walk_thresholds(
    plan: ThresholdPlan,
    probability: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    max_wrong: float,
    confidence: float,
) -> RiskCurve:
    """Test the planned thresholds in order on the testing part, which nothing was fitted to."""
    accepted, wrong = _counts(np.array(plan.thresholds), probability, right)
    bound = upper_bound(wrong, accepted, confidence)
    passed = bound[plan.first :] <= max_wrong
    run = len(passed) if passed.all() else int(passed.argmin())
    return RiskCurve(
        thresholds=plan.thresholds,
        accepted=tuple(map(int, accepted)),
        wrong=tuple(map(int, wrong)),
        coverage=tuple(map(float, accepted / len(right))),
        wrong_rate=tuple(map(float, wrong / np.maximum(accepted, 1))),
        upper_bound=tuple(map(float, bound)),
        first=plan.first,
        chosen=plan.first + run - 1 if run else None,
    )


def _counts(
    thresholds: Float[np.ndarray, " t"],
    probability: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " t"]]:
    """Count the queries that reach each threshold, and the wrong answers among them."""
    order = np.argsort(-probability, kind="stable")
    accepted = np.searchsorted(-probability[order], -thresholds, side="right")
    return accepted, np.append(0, (~right[order]).cumsum())[accepted]


def safe_floor(
    right_probability: Float[np.ndarray, " n"], *, max_missed: float, confidence: float
) -> float:
    """Return the highest floor below which at most ``max_missed`` of right answers fall.

    The k-th smallest of n independent values has a fraction distributed as Beta(k, n + 1 - k) below it; the
    largest k is taken for which that fraction is at most ``max_missed`` with probability ``confidence``.

    Args:
        right_probability: Probabilities of right answers that nothing was fitted to.
        max_missed: Highest fraction of right answers below the floor.
        confidence: With what probability.

    Returns:
        The floor; 0 if there are too few right answers for any other.
    """
    from scipy.special import betainc

    n = len(right_probability)
    k = np.arange(1, n + 1)
    good = int((betainc(k, n + 1.0 - k, max_missed) >= confidence).sum())
    return float(np.sort(right_probability)[good - 1]) if good else 0.0


def more_queries(
    curve: RiskCurve, queries: int, tested: int, *, max_wrong: float, confidence: float
) -> int | None:
    """Estimate how many more calibration queries are needed.

    Args:
        curve: What was measured.
        queries: Calibration queries so far.
        tested: Those of the testing part.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.

    Returns:
        A number of queries, 0 if the target is reached; None if more of the same would not help.
    """
    if curve.chosen is not None:
        return 0
    needed = queries_needed(curve, max_wrong=max_wrong, confidence=confidence)
    if needed is None:
        return None
    # If as many as there are should have done, luck was against it: as few as could ever help are asked.
    least = least_accepted(max_wrong, confidence)
    return max(int(np.ceil(needed * queries / tested)) - queries, least)


def queries_needed(curve: RiskCurve, *, max_wrong: float, confidence: float) -> int | None:
    """Estimate how large a testing part would pass, if its error rates stayed as they are.

    For each threshold the smallest n is sought that passes with the expected ⌈rate · n⌉ errors, in steps of
    5 %; then the threshold that needs the fewest queries in all counts. Thresholds that accepted a handful
    of queries are uninformative and left out. A rate that is too high, but by its exact lower bound may be
    so by chance, is taken as half of ``max_wrong``. With so many queries the chance to pass is about
    even.

    Args:
        curve: What was measured.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.

    Returns:
        A number of queries; None if at every threshold even the lower bound of the rate is too high.
    """
    from scipy.special import bdtr

    # From n_0 up to 200,000 times that: beyond, nobody will collect queries.
    sizes = np.ceil(least_accepted(max_wrong, confidence) * 1.05 ** np.arange(251)).astype(int)
    lowest = lower_bound(curve.wrong, curve.accepted, confidence)
    best = None
    for i in curve.informative:
        if lowest[i] > max_wrong:
            continue
        rate = curve.wrong_rate[i] if curve.wrong_rate[i] < max_wrong else max_wrong / 2
        # P(so few errors | rate = max_wrong) is small enough: the same as the bound, but faster.
        passes = bdtr(np.ceil(rate * sizes), sizes, max_wrong) <= 1 - confidence
        if passes.any():
            total = int(np.ceil(sizes[passes.argmax()] / curve.coverage[i]))
            best = total if best is None else min(best, total)
    return best
