import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest

from surefind.decisions.risk import (
    Strangers,
    ThresholdPlan,
    chance_to_pass,
    least_accepted,
    lower_bound,
    mixture_p_value,
    more_queries,
    most_wrong,
    plan_thresholds,
    safe_floor,
    upper_bound,
    walk_thresholds,
)

TARGET = {"max_wrong": 0.05, "confidence": 0.95}
USUAL = {"max_wrong": 0.01, "confidence": 0.95}


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(
    ("wrong", "trials"), [(0, 1), (0, 299), (3, 40), (39, 40), (40, 40), (7, 9000)]
)
def test_bounds_are_clopper_pearson(wrong, trials, confidence):
    above = binomtest(wrong, trials, alternative="less").proportion_ci(confidence).high
    below = binomtest(wrong, trials, alternative="greater").proportion_ci(confidence).low
    assert upper_bound(wrong, trials, confidence) == pytest.approx(above, rel=1e-9)
    assert lower_bound(wrong, trials, confidence) == pytest.approx(below, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("max_wrong", [0.001, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_least_accepted_is_the_first_number_that_passes(max_wrong, confidence):
    n = least_accepted(max_wrong, confidence)
    assert upper_bound(0, n, confidence) <= max_wrong * (1 + 1e-12)
    assert n == 1 or upper_bound(0, n - 1, confidence) > max_wrong


@pytest.mark.parametrize("max_wrong", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_one_error_more_than_the_most_fails(max_wrong, confidence):
    n = least_accepted(max_wrong, confidence) + np.arange(0, 900, 7)
    most = most_wrong(n, max_wrong, confidence)
    assert (upper_bound(most, n, confidence) <= max_wrong * (1 + 1e-9)).all()
    assert (upper_bound(most + 1, n, confidence) > max_wrong).all()


@pytest.mark.parametrize(
    ("seen", "trials", "rank", "rate"),
    [
        (216, 434, 160, 0.0),  # counts decide
        (216, 434, 216, 0.002),  # errors decide
        (300, 900, 150, 0.004),  # both
        (500, 100, 400, 0.0),  # never enough
    ],
)
def test_the_chance_to_pass_is_that_of_simulated_walks(seen, trials, rank, rate):
    """Uniform scores with one rate of errors everywhere; the threshold is an order statistic."""
    rng, passed, runs = np.random.default_rng(4), 0, 800
    for _ in range(runs):
        threshold = np.sort(rng.random(seen))[-rank]
        score, right = rng.random(trials), rng.random(trials) >= rate
        plan = ThresholdPlan((float(threshold),), 0)
        passed += walk_thresholds(plan, score, right, **USUAL).chosen is not None
    share, rates = np.array([rank / (seen + 1)]), np.array([[rate]])
    chance = chance_to_pass(share, rates, seen=seen, trials=trials, **USUAL)
    assert chance[0] == pytest.approx(passed / runs, abs=0.06)  # 3.5 standard errors


def test_unknown_rates_are_averaged():
    share, options = np.full(1, 0.9), {"seen": 200, "trials": 500, **USUAL}
    alone = [chance_to_pass(share, np.array([[r]]), **options)[0] for r in (0.0, 0.001, 0.01)]
    together = chance_to_pass(share, np.array([[0.0, 0.001, 0.01]]), **options)[0]
    assert together == pytest.approx(np.mean(alone))


def slow_walk(thresholds, first, probability, right, max_wrong, confidence):
    chosen = None
    for i in range(first, len(thresholds)):
        taken = [r for p, r in zip(probability, right, strict=True) if p >= thresholds[i]]
        n, w = len(taken), sum(not r for r in taken)
        bound = beta.ppf(confidence, w + 1, n - w) if w < n else 1.0
        if bound > max_wrong:
            break
        chosen = i
    return chosen


@pytest.mark.parametrize("first", [0, 3, 9])
def test_the_walk_stops_at_the_first_failure(first):
    rng = np.random.default_rng(first)
    for _ in range(20):
        probability = np.round(rng.random(200), 2)  # with ties
        right = rng.random(200) < 0.9 + 0.1 * probability
        plan = ThresholdPlan(tuple(np.linspace(0.9, 0, 10)), first)
        curve = walk_thresholds(plan, probability, right, **TARGET)
        expected = slow_walk(plan.thresholds, first, probability, right, **TARGET)
        assert curve.chosen == expected
        for t, n, w in zip(curve.thresholds, curve.accepted, curve.wrong, strict=True):
            assert n == (probability >= t).sum()
            assert w == (~right & (probability >= t)).sum()


def test_nothing_after_a_failure_is_used():
    # The strictest fails by one error, all that follow would pass by far.
    probability = np.linspace(1, 0, 1000)
    right = np.arange(1000) != 0
    curve = walk_thresholds(ThresholdPlan((0.95, 0.5, 0.0), 0), probability, right, **TARGET)
    assert curve.upper_bound[2] < 0.05 < curve.upper_bound[0]
    assert curve.chosen is None
    assert curve.threshold is None


def test_the_plan_starts_where_the_test_can_pass():
    score = (1 + np.random.default_rng(0).random(400)) / 2
    plan = plan_thresholds(score, score, np.ones(400, dtype=bool), trials=400, **TARGET)
    assert (np.diff(plan.thresholds) < 0).all()
    assert plan.thresholds[-1] == score.min()
    accepted = (score >= plan.thresholds[plan.first]).sum()
    assert accepted >= least_accepted(**TARGET)


def test_the_plan_starts_before_errors_come():
    score = np.linspace(0.5, 1, 1000)
    plan = plan_thresholds(score, score, score > 0.75, trials=1000, **TARGET)
    assert 0.7 < plan.thresholds[plan.first] < 0.85


def test_the_plan_of_too_few_queries_starts_at_the_loosest():
    score = np.linspace(0.5, 1, 30)
    plan = plan_thresholds(score, score, np.ones(30, dtype=bool), trials=30, **TARGET)
    assert plan.first == len(plan.thresholds) - 1


def test_equal_probabilities_are_one_threshold_and_none_is_below_a_half():
    score = np.repeat([0.2, 0.6, 0.9], 50)
    plan = plan_thresholds(score, score, score > 0.5, trials=150, **TARGET)
    assert plan.thresholds == (0.9, 0.6, 0.5)
    low = plan_thresholds(score / 2, score / 2, score > 0, trials=150, **TARGET)
    assert low.thresholds == (0.5,)
    curve = walk_thresholds(low, score / 2, score > 0, **TARGET)
    assert curve.chosen is None


MANY = [pytest.param(200, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.nightly)]


@pytest.mark.parametrize("runs", MANY)
def test_the_guarantee_holds_in_many_calibrations(runs):
    """With s uniform and P(wrong | s) = 0.3 (1-s)², R(t) = 0.1 (1-t)²: at most 5 % from 0.293 up."""
    n = 900
    exceeded, coverage = 0, []
    for seed in range(runs):
        rng = np.random.default_rng([2, seed])
        score = rng.random(2 * n)
        right = rng.random(2 * n) >= 0.3 * (1 - score) ** 2
        chance = (1 + score) / 2
        plan = plan_thresholds(chance[:n], chance[:n], right[:n], trials=n, **TARGET)
        found = walk_thresholds(plan, chance[n:], right[n:], **TARGET).threshold
        if found is not None:
            threshold = 2 * found - 1
            exceeded += 0.1 * (1 - threshold) ** 2 > 0.05
            coverage.append(1 - threshold)
    # Binomial slack: with 5 % in truth, more than this happens once in fifty times.
    assert 0 < exceeded <= binom.isf(0.02, runs, 0.05)
    assert len(coverage) > 0.95 * runs
    assert np.mean(coverage) > 0.5  # 0.707 would be perfect knowledge


@pytest.mark.parametrize("runs", MANY)
def test_650_right_answers_are_hardly_ever_refused(runs):
    right, refused = np.ones(650, dtype=bool), 0
    for seed in range(runs):
        score = (1 + np.random.default_rng([6, seed]).random(650)) / 2
        fit, test = score[:216], score[216:]
        plan = plan_thresholds(fit, fit, right[:216], trials=434, **USUAL)
        refused += walk_thresholds(plan, test, right[216:], **USUAL).chosen is None
    assert refused < runs / 100


def test_the_floor_keeps_right_answers():
    kept = 0
    for seed in range(400):
        values = np.random.default_rng([3, seed]).random(150)
        floor = safe_floor(values, max_missed=0.05, confidence=0.9)
        kept += floor <= 0.05  # uniform: the share below the floor is the floor
        assert floor > 0
    assert 0.87 < kept / 400 <= 1


def test_the_floor_of_too_few_answers_is_zero():
    assert safe_floor(np.full(58, 0.7), max_missed=0.05, confidence=0.95) == 0
    assert safe_floor(np.full(59, 0.7), max_missed=0.05, confidence=0.95) == 0.7
    assert safe_floor(np.empty(0), max_missed=0.05, confidence=0.95) == 0


def curve_of(accepted, wrong, queries):
    return walk_thresholds(
        ThresholdPlan((0.5,), 0),
        np.repeat([1.0, 0.0], [accepted, queries - accepted]),
        np.arange(queries) >= wrong,
        max_wrong=0.01,
        confidence=0.95,
    )


def needed(curve, queries=0, fitted_share=1 / 3):
    """How many pass with a chance of 90 %; the curve is of those that tested."""
    more = more_queries(curve, queries, fitted_share=fitted_share, **USUAL)
    return None if more is None else queries + more


@pytest.mark.parametrize(("accepted", "wrong", "queries"), [(290, 0, 434), (400, 2, 400)])
def test_queries_needed_pass_nine_times_in_ten(accepted, wrong, queries):
    total = needed(curve_of(accepted, wrong, queries), 1.5 * queries)
    rate = beta.median(wrong + 0.5, accepted - wrong + 0.5)

    def passed(size):
        rng, seen = np.random.default_rng(5), size // 3
        share = rng.beta(accepted / queries * seen, (1 - accepted / queries) * seen + 1e-9, 1000)
        n = rng.binomial(size - seen, share)
        return (upper_bound(rng.binomial(n, rate), n, 0.95) <= 0.01).mean()

    assert passed(total) > 0.87
    assert passed(int(0.8 * total)) < 0.9


def test_queries_needed_are_never_the_bare_minimum():
    # 299 accepted of those tested, when the half is accepted and a third fits: that would be 897.
    assert 897 < needed(curve_of(280, 0, 600), 900) < 2000


def test_no_number_of_queries_helps_a_rate_that_is_too_high():
    assert needed(curve_of(400, 12, 400), 600) is None


def test_one_error_of_a_few_queries_does_not_rule_out_the_target():
    assert 897 < needed(curve_of(40, 1, 40), 60) < 5000


def test_the_luck_of_a_handful_promises_nothing():
    # The four best answers are right by luck, half of the others are wrong.
    probability, right = np.linspace(1, 0, 400), np.arange(400) % 2 == 0
    right[:4] = True
    plan = ThresholdPlan((0.99, 0.5, 0.0), 2)
    curve = walk_thresholds(plan, probability, right, **USUAL)
    assert (curve.accepted[0], curve.wrong[0]) == (4, 0)
    assert needed(curve, 600) is None


def test_a_target_that_is_reached_needs_no_more():
    assert more_queries(curve_of(400, 0, 400), 600, fitted_share=1 / 3, **USUAL) == 0


def test_bad_luck_asks_for_as_few_as_could_ever_help():
    # Only the strict start failed, by one error; a looser threshold would pass by far.
    probability, right = np.linspace(1, 0, 3000), np.arange(3000) != 100
    curve = walk_thresholds(ThresholdPlan((0.9, 0.0), 0), probability, right, **USUAL)
    assert curve.chosen is None
    assert more_queries(curve, 4500, fitted_share=1 / 3, **USUAL) == 299


def slow_p_value(rate, accepted, wrong, trials, share, spent):
    """Every pair of counts, for many divisions of the errors between known and unknown queries."""
    (n, m), (a, b) = trials, accepted
    least = lower_bound(a, n, 1 - spent)
    cost = np.array([(1 - share) / n, share / m])
    w, u = (x.ravel() for x in np.meshgrid(np.arange(a + 1), np.arange(m + 1)))
    as_good = cost[0] * w + cost[1] * u <= cost[0] * wrong + cost[1] * b + 1e-12
    worst = 0.0
    for rho in np.linspace(0, rate, 201):
        # (1-π) α (ρ - r) + π β (1 - r) = 0
        beta = (1 - share) * least * (rate - rho) / (share * (1 - rate))
        if beta <= 1:
            p = binom.pmf(w, a, rho) * binom.pmf(u, m, beta)
            worst = max(worst, p[as_good].sum())
    return worst + spent


@pytest.mark.parametrize(
    ("accepted", "wrong", "trials", "share"),
    [
        ((60, 0), 0, (80, 30), 0.2),
        ((60, 2), 1, (80, 30), 0.2),
        ((60, 1), 6, (80, 30), 0.05),
        ((30, 3), 0, (31, 60), 0.5),
        ((9, 0), 9, (10, 5), 0.9),
    ],
)
def test_the_p_value_of_a_mixture_is_that_of_the_worst_division(accepted, wrong, trials, share):
    for rate in (0.03, 0.1, 0.3):
        found = mixture_p_value(rate, accepted, wrong, trials, share=share, spent=0.001)
        slow = slow_p_value(rate, accepted, wrong, trials, share, 0.001)
        assert found == pytest.approx(slow, rel=0.01)


def test_without_unknown_queries_to_expect_the_mixture_is_binomial():
    exact = binom.cdf(3, 50, 0.1)
    found = mixture_p_value(0.1, (50, 7), 3, (80, 30), share=0.0, spent=0.001)
    assert found == pytest.approx(exact)
    assert mixture_p_value(0.1, (0, 0), 0, (80, 30), share=0.2, spent=0.001) == 1


def mixture(rng, n, share=0.5):
    """P(right | s) of known queries is s^¼; unknown ones have low s."""
    unknown = rng.random(n) < share
    s = np.where(unknown, rng.beta(1, 4, size=n), rng.beta(4, 1, size=n))
    return s, ~unknown & (rng.random(n) < s**0.25), unknown


def walked(s, right, unknown, *, share, **target):
    """Plan on a third of the queries and test on the others."""
    test = np.arange(len(s)) >= len(s) // 3
    weight = np.where(unknown, share / unknown.mean(), (1 - share) / (1 - unknown.mean()))[~test]
    fit = s[~test], s[~test], right[~test]
    plan = plan_thresholds(*fit, trials=test.sum(), weight=weight, **target)
    parts = {"unknown": unknown[test], "share": share, **target}
    return walk_thresholds(plan, s[test], right[test], **parts)


@pytest.mark.parametrize("runs", MANY)
@pytest.mark.parametrize(("have", "share"), [(0.5, 0.1), (0.15, 0.4)])
def test_the_guarantee_holds_for_another_share_of_unknown_queries(runs, have, share):
    target = {"max_wrong": 0.07, "confidence": 0.95}
    s, right, unknown = mixture(np.random.default_rng(99), 100_000)
    order = np.argsort(-s)
    weight = np.where(unknown, share, 1 - share)[order]
    rates = (weight * ~right[order]).cumsum() / weight.cumsum()
    exceeded, reached = 0, 0
    for seed in range(runs):
        queries = mixture(np.random.default_rng([7, seed]), 1000, have)
        threshold = walked(*queries, share=share, **target).threshold
        if threshold is not None:
            reached += 1
            exceeded += rates[np.searchsorted(-s[order], -threshold) - 1] > 0.07
    assert reached > 0.4 * runs
    assert exceeded <= binom.isf(0.02, runs, 0.05)


def test_a_weighted_curve_counts_queries_and_weighs_shares():
    target = {"max_wrong": 0.07, "confidence": 0.95}
    s, right, unknown = mixture(np.random.default_rng(3), 3000)
    curve = walked(s, right, unknown, share=0.1, **target)
    s, right, unknown = s[1000:], right[1000:], unknown[1000:]
    i = curve.chosen
    high = s >= curve.threshold
    weight = np.where(unknown, 0.1 / unknown.sum(), 0.9 / (~unknown).sum())
    assert (curve.accepted[i], curve.wrong[i]) == (high.sum(), (high & ~right).sum())
    assert curve.coverage[i] == pytest.approx(weight[high].sum())
    assert curve.wrong_rate[i] == pytest.approx(weight[high & ~right].sum() / weight[high].sum())
    counts = (
        ((high & ~unknown).sum(), (high & unknown).sum()),
        (high & ~unknown & ~right).sum(),
        ((~unknown).sum(), unknown.sum()),
    )
    at_bound = mixture_p_value(curve.upper_bound[i], *counts, share=0.1, spent=0.001)
    assert at_bound == pytest.approx(0.05, rel=0.02)
    # Few unknown queries may be a match: a stricter threshold, or none.
    planned = ThresholdPlan(curve.thresholds, curve.first)
    parts = {"unknown": unknown, "share": 0.1, **target}
    for fpir in (0.5, 0.001):
        strangers = Strangers(s[unknown], s[unknown], fpir)
        kept = walk_thresholds(planned, s, right, strangers=strangers, **parts)
        assert (kept.chosen == i) == (fpir > 0.1)
