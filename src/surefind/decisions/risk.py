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
would therefore always fail, and the loosest have the most errors. The test starts where the fitting part,
by probabilities of fits that did not see the query, predicts the highest chance to pass:

    P(pass at t) = Σ_n P(N(t) = n) ∫ P(Binomial(n, r) <= c(n)) dP(r)       c(n): most errors that pass

Neither N(t) nor R(t) is known, so both vary. For t the k-th highest of m values of the fitting part, the
fraction of all queries above it is Beta(k, m + 1 - k), whatever their distribution; N(t) is then
beta-binomial (here the normal distribution of equal mean and variance).

Of the rate r the fitting part knows little where it saw no error among a few accepted queries. So the
probability lends its shape: with p(t) the mean of 1 - probability among the accepted, the rate at t is

    r(t) = p(t) min_{s <= t} r_s / p(s)      r_s: posterior of what was counted at s, prior Beta(½, ½)

In effect counts at loose thresholds, which are large, set the scale, and the probability says how much
better a stricter threshold is. Of starts whose chance to fail is within a tenth of the least the loosest is
taken, to stay clear of n_0: to *expect* 299 accepted queries is to fail half of the time. A poor prediction
costs coverage and never the guarantee, because the testing part has no influence on it. Were the start
chosen by the observed N(t), the accepted ones would no longer be independent draws given their number.

Two starts that share the error (the fallback procedure, Wiens 2003: level δ_i at start i, plus the level of
the step before if that passed) control it too. They are left out: half of the error raises n_0 from 299 to
368, and in a first trial on simulated worlds they refused about as often as one start.

**Two promises.** With ``max_fpir`` a threshold passes only if its FPIR, the share of unknown queries that
are a match (below), has an upper bound of at most that too. A threshold that
breaks either promise is chosen only if t*, now the first that breaks one of them, passed both tests, so
also that of the promise it breaks: the error is not divided (an intersection-union test, Berger 1982). The
chance to pass both is predicted as the product of the two.

**Another share of unknown queries.** To promise R' = P(wrong | match) for queries of which a share π is
unknown, no query is thrown away: known and unknown ones are two strata. Of n known queries that test, A
are accepted, a share α, and W of these are wrong, a share ρ; of m unknown ones B, a share β, and all of
them are wrong:

    R' = ((1-π) α ρ + π β) / ((1-π) α + π β)

R' falls with α, so a lower bound of α takes its place, at a fiftieth of the error allowed. Given A, W and B
are independent binomials. The p-value of R' > r is the highest P(V <= what was found) of the weighted
errors V = (1-π)/n W + π/m B for all ρ and β of R' = r: no other is higher, as it falls with either. It is
found on a grid; the chance is smooth, and between two points at most 1 % higher. A threshold passes if
R' > max_wrong is refused, and the upper bound of R' is the lowest r that is.

**Two error rates of identification**, each among its own kind of query:

    FPIR(t) = P(match | unknown)                            a stranger is answered "match"
    FNIR(t) = P(no match with the own label | enrolled)     one who is enrolled is not answered, or wrongly

"No match" is what people see: a query that a gate stopped, or that goes to a review, is none. FPIR never
rises with t and FNIR never falls. Neither depends on how many of the queries are unknown, as R(t) does;
FPIR is therefore the promise to ask for where that share is not known. Of queries that nothing was fitted
to, those unknown ones that are a match are binomial, so the Clopper-Pearson bound is exact, and for FNIR
the same. For a highest FPIR f, thresholds are tested from the strictest on, each at full level, up to the
first whose upper bound is above f; the last that passed is used. With u unknown queries and none a match
the bound is 1 - (1 - confidence)^(1/u): 1 %, 0.3 % and 0.1 %, the levels at which NIST's FRTE 1:N reports
FNIR, need 299, 998 and 2,995 at 95 %.

**Nothing below ½ is a match**, whatever the target allows.

**Floor.** `safe_floor` bounds a quantile by an order statistic (a one-sided tolerance limit, Wilks 1941).

**More queries.** For a target that was not reached, `more_queries` finds the number with which the chance
to pass, as above but at the observed error rates, is 90 %; it guarantees nothing. Each calibration may
break its promise with probability 1 - confidence: whoever repeats it until one passes, with other splits of
the same queries, adds these up and has no guarantee.

Ties: queries of equal probability are accepted together; equal thresholds are one.

    Angelopoulos, Bates, Candès, Jordan, Lei: Learn then Test: Calibrating Predictive Algorithms to Achieve
        Risk Control. arXiv:2110.01052, 2021.
    Berger: Multiparameter Hypothesis Testing and Acceptance Sampling. Technometrics 24, 1982.
    Geifman, El-Yaniv: Selective Classification for Deep Neural Networks. NeurIPS 2017.
    Clopper, Pearson: The Use of Confidence or Fiducial Limits Illustrated in the Case of the Binomial.
        Biometrika 26, 1934.
    Grother, Ngan, Hanaoka: Face Recognition Technology Evaluation (FRTE), Part 2: Identification. NIST
        Interagency Report 8271.
    Wiens: A Fixed Sequence Bonferroni Procedure for Testing Multiple Endpoints. Pharm. Stat. 2, 2003.
    Wilks: Determination of Sample Sizes for Setting Tolerance Limits. Ann. Math. Stat. 12, 1941.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

Values = Float[np.ndarray, " n"]
"""A number for each query."""

Flags = Bool[np.ndarray, " n"]
Levels = Float[np.ndarray, " t"]
"""A number for each threshold."""

GRID = 100
"""Thresholds planned: one for each per cent of the fitting part accepted."""

LEAST_SEEN = 30
"""Accepted queries below which an error rate is luck."""

RATES = 8
"""Equally likely values that stand for the distribution of R(t)."""

DEVIATIONS = np.linspace(-4, 4, 33)
"""Standard deviations from its mean at which N(t) is looked at."""

AS_GOOD = 1.1
"""Starts are as good as the best if their chance to fail is at most so many times its chance."""

LEAST_MATCH = 0.5
"""Lowest threshold that is planned."""

GRIDS = 2, 17
"""How often, and by how many points, the worst division of the errors is looked for."""

LIKELY = 0.9
"""Chance to pass with as many queries as are asked for."""

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
class RiskCurve:
    """What each planned threshold gave on the testing part, the strictest first.

    Attributes:
        thresholds: Least probability of a match, falling.
        accepted: Queries at or above it.
        wrong: Wrong answers among them.
        coverage: Fraction of the queries accepted; those that a gate stopped are among the queries.
        wrong_rate: Fraction of wrong answers among the accepted; 0 where there is none.
        upper_bound: Of the true rate, each by itself. Where a share of unknown queries is expected, this,
            coverage and wrong rate are for that share; beside the chosen threshold it is then max_wrong for
            one that passed, and 1 for one that did not or was not tested.
        first: Index of the first threshold tested.
        chosen: Index of the last that passed before a failure; None if the first failed.
        unknown: Unknown queries.
        enrolled: Enrolled ones.
        false_positives: Of the unknown, how many are a match at each threshold.
        missed: Of the enrolled, how many are not a match with their own label.
        confidence: Of the bounds.
    """

    thresholds: tuple[float, ...]
    accepted: tuple[int, ...]
    wrong: tuple[int, ...]
    coverage: tuple[float, ...]
    wrong_rate: tuple[float, ...]
    upper_bound: tuple[float, ...]
    first: int
    chosen: int | None
    unknown: int
    enrolled: int
    false_positives: tuple[int, ...]
    missed: tuple[int, ...]
    confidence: float

    @property
    def threshold(self) -> float | None:
        """Least probability of a match, None if no threshold is known to be good enough."""
        return None if self.chosen is None else self.thresholds[self.chosen]

    @property
    def informative(self) -> tuple[int, ...]:
        """Indices of thresholds that accepted 30 queries or more, or else as many as any did."""
        least = max(1, min(LEAST_SEEN, max(self.accepted)))
        return tuple(i for i, accepted in enumerate(self.accepted) if accepted >= least)

    @property
    def fpir(self) -> tuple[float, ...]:
        """Share of unknown queries that are a match, at each threshold; 0 without any."""
        return tuple(count / max(self.unknown, 1) for count in self.false_positives)

    @property
    def fnir(self) -> tuple[float, ...]:
        """Share of enrolled queries that are missed, at each threshold; 0 without any."""
        return tuple(count / max(self.enrolled, 1) for count in self.missed)

    @property
    def fpir_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """One-sided exact bounds of FPIR from below and from above."""
        return self._bounds(self.false_positives, self.unknown)

    @property
    def fnir_bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """One-sided exact bounds of FNIR from below and from above."""
        return self._bounds(self.missed, self.enrolled)

    def at(self, max_fpir: float) -> OperatingPoint:
        """Return the loosest threshold that keeps an FPIR, and what it costs."""
        run = _run(np.array(self.fpir_bounds[1]) <= max_fpir)
        needed = least_accepted(max_fpir, self.confidence)
        if not run:
            return OperatingPoint(max_fpir, None, 0.0, 1.0, 1.0, 1.0, needed)
        rates = self.fpir, self.fpir_bounds[1], self.fnir, self.fnir_bounds[1]
        a, b, c, d = (values[run - 1] for values in rates)
        return OperatingPoint(max_fpir, self.thresholds[run - 1], a, b, c, d, needed)

    @property
    def operating_points(self) -> tuple[OperatingPoint, ...]:
        """FNIR at the levels that NIST reports."""
        return tuple(self.at(level) for level in LEVELS)

    def _bounds(
        self, counts: tuple[int, ...], of: int
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        low, high = (bound(counts, of, self.confidence) for bound in (lower_bound, upper_bound))
        return tuple(low.tolist()), tuple(high.tolist())


@dataclass(frozen=True, eq=False)
class Strangers:
    """Unknown queries, for the promise that few of them are a match.

    Attributes:
        fitted: Probabilities of those of the fitting part, by fits that did not see them; below every
            threshold if a gate stopped them.
        tested: Probabilities of those of the testing part.
        max_fpir: Highest share of them that may be a match.
    """

    fitted: np.ndarray
    tested: np.ndarray
    max_fpir: float


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


MOST = 10**12
"""Queries that nobody has: a target that needs more of them is as much out of reach as any."""


def least_accepted(max_wrong: float, confidence: float) -> int:
    """Return n_0: how many accepted queries without an error are needed to pass."""
    least = np.log1p(-confidence) / np.log1p(-max(max_wrong, 1 / MOST))
    return int(np.ceil(min(least, MOST)))


def plan_thresholds(
    probability: Values,
    unseen: Values,
    right: Flags,
    *,
    trials: int,
    max_wrong: float,
    confidence: float,
    strangers: Strangers | None = None,
    weight: Values | None = None,
) -> ThresholdPlan:
    """Fix thresholds and the place to start, from the fitting part alone.

    Args:
        probability: Probabilities of the fitting part by the final fit.
        unseen: The same queries' probabilities by fits that did not see them.
        right: Which of their answers are right.
        trials: How many queries the testing part has.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.
        strangers: Unknown queries, if few of them may be a match; how many are tested counts, not how.
        weight: Of the queries, where another share of unknown ones is expected than there is: as if there
            were fewer queries, each as heavy as those answered wrong.

    Returns:
        The sequence to test.
    """
    from scipy.special import betaincinv

    n = len(probability)
    counts = np.unique(np.ceil(np.arange(1, GRID + 1) * n / GRID).astype(int))
    levels = np.maximum(np.sort(probability)[::-1][counts - 1], LEAST_MATCH)
    thresholds = np.unique(levels)[::-1]
    taken, _ = _counts(thresholds, probability, right)
    if not taken[-1]:
        return ThresholdPlan((LEAST_MATCH,), 0)
    # The fits that did not see a query have scales of their own: the same fraction is compared.
    comparable = np.sort(unseen)[::-1][np.maximum(taken, 1) - 1]
    w = np.ones(n) if weight is None else weight / weight.mean()
    errors = w * ~right
    heavy = float(w @ errors / errors.sum()) if errors.any() else float(w.max())
    order = np.argsort(-unseen, kind="stable")
    last = np.searchsorted(-unseen[order], -comparable, side="right") - 1
    accepted, wrong, doubt = (
        x[order].cumsum()[last] / heavy for x in (w, errors, w * (1 - unseen))
    )
    quantiles = (np.arange(RATES) + 0.5) / RATES
    counted = betaincinv((wrong + 0.5)[:, None], (accepted - wrong + 0.5)[:, None], quantiles)
    # A saturated probability must not divide by 0.
    shape = np.maximum(doubt / accepted, 1e-9)[:, None]
    rates = shape * np.minimum.accumulate((counted / shape)[::-1])[::-1]
    target: dict[str, Any] = {"max_wrong": max_wrong, "confidence": confidence}
    seen, tested = n / heavy, int(trials / heavy)
    chance = chance_to_pass(accepted / (seen + 1), rates, seen=int(seen), trials=tested, **target)
    if strangers is not None:
        chance = chance * _chance_with(strangers, comparable, quantiles, confidence)
    # With too few queries none can pass; the loosest then says most about the data. Nor can any if the
    # target is at the end of the numbers, where there is no chance to compute.
    failure = 1 - np.minimum(np.nan_to_num(chance), 1)
    first = int(np.flatnonzero(failure <= AS_GOOD * failure.min())[-1])
    return ThresholdPlan(tuple(map(float, thresholds)), first)


def _chance_with(
    strangers: Strangers, thresholds: Levels, quantiles: Float[np.ndarray, " r"], confidence: float
) -> Levels:
    """Predict the probability that each threshold keeps the FPIR, from unknown queries of the fit."""
    from scipy.special import bdtr, betaincinv

    trials = len(strangers.tested)
    if trials < least_accepted(strangers.max_fpir, confidence):
        return np.zeros(len(thresholds))
    matched = (strangers.fitted[None] >= thresholds[:, None]).sum(axis=1)
    missed = len(strangers.fitted) - matched
    rates = betaincinv((matched + 0.5)[:, None], (missed + 0.5)[:, None], quantiles)
    allowed = most_wrong(trials, strangers.max_fpir, confidence)
    return np.asarray(bdtr(allowed, trials, rates).mean(axis=1))


def chance_to_pass(
    share: Levels,
    rates: Float[np.ndarray, "t r"],
    *,
    seen: int,
    trials: int,
    max_wrong: float,
    confidence: float,
) -> Levels:
    """Predict the probability that each threshold passes, by itself.

    Args:
        share: Expected fraction accepted.
        rates: Equally likely wrong-match rates of each threshold.
        seen: How many queries of the fitting part the share rests on.
        trials: How many queries the testing part has.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.

    Returns:
        The chances.
    """
    from scipy.special import bdtr

    spread = np.sqrt(share * (1 - share) * trials * (seen + 1 + trials) / (seen + 2))
    accepted = np.round(share[:, None] * trials + spread[:, None] * DEVIATIONS)
    accepted = np.clip(accepted, 0, trials).astype(int)
    t, some = np.nonzero(accepted >= least_accepted(max_wrong, confidence))
    n, which = np.unique(accepted[t, some], return_inverse=True)
    allowed = most_wrong(n, max_wrong, confidence)[which]
    passes = np.zeros(accepted.shape)
    passes[t, some] = bdtr(allowed[:, None], n[which, None], rates[t]).mean(axis=1)
    weights = np.exp(-(DEVIATIONS**2) / 2)
    return np.asarray(passes @ (weights / weights.sum()))


def most_wrong(accepted: Any, max_wrong: float, confidence: float) -> np.ndarray:
    """Return how many errors still pass; ``accepted`` is n_0 or more."""
    from scipy.special import bdtr, bdtrik

    most = np.floor(bdtrik(1 - confidence, accepted, max_wrong))
    # The inverse may miss a whole number by rounding.
    return np.asarray(most + (bdtr(most + 1, accepted, max_wrong) <= 1 - confidence))


def walk_thresholds(
    plan: ThresholdPlan,
    probability: Values,
    right: Flags,
    *,
    max_wrong: float,
    confidence: float,
    strangers: Strangers | None = None,
    unknown: Flags | None = None,
    share: float | None = None,
) -> RiskCurve:
    """Test the planned thresholds in order on the testing part, which nothing was fitted to.

    Args:
        plan: What to test.
        probability: Of the queries; below every threshold if a gate stopped it.
        right: Which of their answers are right.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.
        strangers: Unknown queries, if few of them may be a match.
        unknown: Which queries are unknown, if another share of them is expected.
        share: That share.

    Returns:
        What each threshold gave.
    """
    thresholds, known = np.array(plan.thresholds), np.ones(len(right), dtype=bool)
    if unknown is not None:
        known = ~unknown
    accepted, wrong = _counts(thresholds, probability, right)
    own, errors = _counts(thresholds, probability[known], right[known])
    matched, (n, m) = accepted - own, (trials := (int(known.sum()), int((~known).sum())))
    coverage, rate = accepted / len(right), wrong / np.maximum(accepted, 1)
    kept = np.ones(len(thresholds), dtype=bool)
    if strangers is not None:
        reached = (strangers.tested[None] >= thresholds[:, None]).sum(axis=1)
        kept = upper_bound(reached, len(strangers.tested), confidence) <= strangers.max_fpir
    if share is None:
        bound = upper_bound(wrong, accepted, confidence)
    else:
        strange = share / max(m, 1) * matched
        coverage = (1 - share) / n * own + strange
        rate = ((1 - share) / n * errors + strange) / np.maximum(coverage, 1e-300)

        def refused(highest: float, i: int) -> bool:
            counts = (int(own[i]), int(matched[i])), int(errors[i]), trials
            p = mixture_p_value(highest, *counts, share=share, spent=(1 - confidence) / 50)
            return p <= 1 - confidence

        bound, i = np.ones(len(thresholds)), plan.first
        while i < len(thresholds) and kept[i] and refused(max_wrong, i):
            bound[i], i = max_wrong, i + 1
        low = 0.0
        while i > plan.first and bound[i - 1] - low > max_wrong / 1000:
            middle = (low + bound[i - 1]) / 2
            low, bound[i - 1] = (low, middle) if refused(middle, i - 1) else (middle, bound[i - 1])
    run = _run((kept & (bound <= max_wrong))[plan.first :])
    counts = {"accepted": accepted, "wrong": wrong, "false_positives": matched}
    rates = {"coverage": coverage, "wrong_rate": rate, "upper_bound": bound}
    found = {**counts, **rates, "missed": n - own + errors}
    columns: Any = {name: tuple(values.tolist()) for name, values in found.items()}
    return RiskCurve(
        thresholds=plan.thresholds,
        first=plan.first,
        chosen=plan.first + run - 1 if run else None,
        unknown=m,
        enrolled=n,
        confidence=float(confidence),
        **columns,
    )


def _run(passed: Bool[np.ndarray, " t"]) -> int:
    """Return how many pass before the first that does not."""
    return len(passed) if passed.all() else int(passed.argmin())


def _counts(
    thresholds: Levels, probability: Values, right: Flags
) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " t"]]:
    """Count the queries that reach each threshold, and the wrong answers among them."""
    order = np.argsort(-probability, kind="stable")
    accepted = np.searchsorted(-probability[order], -thresholds, side="right")
    return accepted, np.append(0, (~right[order]).cumsum())[accepted]


def mixture_p_value(
    rate: float,
    accepted: tuple[int, int],
    wrong: int,
    trials: tuple[int, int],
    *,
    share: float,
    spent: float,
) -> float:
    """Return the p-value of R' being above a rate, where a share of unknown queries is expected.

    Args:
        rate: r, above 0 and below 1.
        accepted: Accepted queries, known and unknown.
        wrong: Wrong answers among the known ones.
        trials: Queries of either kind, at least one of each that has a share.
        share: π.
        spent: Error that the bound of α is allowed.

    Returns:
        The p-value, that error included.
    """
    from scipy.special import bdtr, gammaln, xlog1py, xlogy

    (n, m), (a, b) = trials, accepted
    least = float(lower_bound(a, n, 1 - spent)) if share else 1.0
    if not least or not a:
        return 1.0
    if not share:
        return float(bdtr(wrong, a, rate))
    known, unknown = (1 - share) / n, share / m
    total = (known * wrong + unknown * b) * (1 + 1e-12)
    strange = np.arange(min(m, int(total / unknown)) + 1)
    others = np.minimum((total - unknown * strange) // known, a)
    ways = gammaln(m + 1) - gammaln(strange + 1) - gammaln(m - strange + 1)
    odds = (1 - share) * least / share
    (rounds, points), low, high = GRIDS, 0.0, min(1.0, odds * rate / (1 - rate))
    for _ in range(rounds):
        beta = np.linspace(low, high, points)
        rho = np.clip(rate - (1 - rate) * beta / odds, 0, 1)
        likely = np.exp(ways + xlogy(strange, beta[:, None]) + xlog1py(m - strange, -beta[:, None]))
        chance = (likely * bdtr(others, a, rho[:, None])).sum(axis=1)
        worst = int(chance.argmax())
        low, high = beta[max(worst - 1, 0)], beta[min(worst + 1, points - 1)]
    return float(chance.max()) + spent


def safe_floor(right_probability: Values, *, max_missed: float, confidence: float) -> float:
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
    curve: RiskCurve, queries: int, *, fitted_share: float, max_wrong: float, confidence: float
) -> int | None:
    """Estimate how many more calibration queries are needed for a chance of 90 % to pass.

    Error rates are taken to stay as they are: as the median of their posteriors (Jeffreys' prior), since
    none is known to be 0. One that is too high, but by its exact lower bound may be so by chance, is taken
    as half of ``max_wrong``. Thresholds that accepted a handful of queries are uninformative and left out.
    Numbers are tried in steps of 5 %.

    Args:
        curve: What was measured.
        queries: Calibration queries so far.
        fitted_share: Fraction of the queries that is not tested.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.

    Returns:
        A number of queries, 0 if the target is reached; None if at every threshold even the lower bound of
        the rate is too high.
    """
    from scipy.special import betaincinv

    if curve.chosen is not None:
        return 0
    target = {"max_wrong": max_wrong, "confidence": confidence}
    rows = list(curve.informative)
    share, rates = np.array(curve.coverage)[rows], np.array(curve.wrong_rate)[rows]
    accepted = np.rint(share * queries * (1 - fitted_share))
    wrong = np.rint(rates * accepted)
    hopeful = lower_bound(wrong, accepted, confidence) <= max_wrong
    if not hopeful.any():
        return None
    rate = betaincinv(wrong + 0.5, accepted - wrong + 0.5, 0.5)
    rate = np.where(rate < max_wrong, rate, max_wrong / 2)[hopeful, None]
    share = share[hopeful]

    def likely(size: int) -> bool:
        seen = max(int(fitted_share * size), 1)
        chance = chance_to_pass(share, rate, seen=seen, trials=size - seen, **target)
        return bool(chance.max() >= LIKELY)

    # From n_0 up to 200,000 times that: beyond, nobody will collect queries.
    sizes = np.ceil(least_accepted(**target) * 1.05 ** np.arange(251)).astype(int).tolist()
    i = bisect_left(sizes, True, key=likely)
    # If as many as there are should have done, luck was against it: as few as could ever help are asked.
    return max(sizes[i] - queries, least_accepted(**target)) if i < len(sizes) else None
