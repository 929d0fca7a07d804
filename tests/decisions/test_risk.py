import numpy as np
import pytest
from scipy.stats import beta, binom, binomtest

from surefind.decisions.risk import (
    ThresholdPlan,
    least_accepted,
    lower_bound,
    more_queries,
    plan_thresholds,
    queries_needed,
    safe_floor,
    upper_bound,
    walk_thresholds,
)

TARGET = {"max_wrong": 0.05, "confidence": 0.95}


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
@pytest.mark.parametrize(
    ("wrong", "trials"), [(0, 1), (0, 299), (3, 40), (39, 40), (40, 40), (7, 9000)]
)
def test_bounds_are_clopper_pearson(wrong, trials, confidence):
    above = binomtest(wrong, trials, alternative="less").proportion_ci(confidence).high
    below = binomtest(wrong, trials, alternative="greater").proportion_ci(confidence).low
    assert upper_bound(wrong, trials, confidence) == pytest.approx(above, rel=1e-9)
    assert lower_bound(wrong, trials, confidence) == pytest.approx(below, rel=1e-9, abs=1e-15)


def test_bounds_without_a_trial_say_nothing():
    assert upper_bound(0, 0, 0.95) == 1
    assert lower_bound(0, 0, 0.95) == 0


@pytest.mark.parametrize("max_wrong", [0.001, 0.01, 0.05, 0.3])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_least_accepted_is_the_first_number_that_passes(max_wrong, confidence):
    n = least_accepted(max_wrong, confidence)
    assert upper_bound(0, n, confidence) <= max_wrong * (1 + 1e-12)
    assert n == 1 or upper_bound(0, n - 1, confidence) > max_wrong


def test_the_usual_target_needs_299():
    assert least_accepted(0.01, 0.95) == 299


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
    score = np.random.default_rng(0).random(400)
    plan = plan_thresholds(score, score, np.ones(400, dtype=bool), trials=400, **TARGET)
    assert (np.diff(plan.thresholds) < 0).all()
    assert plan.thresholds[-1] == score.min()
    accepted = (score >= plan.thresholds[plan.first]).sum()
    assert accepted >= least_accepted(**TARGET)


def test_the_plan_starts_before_errors_come():
    score = np.linspace(0, 1, 1000)
    plan = plan_thresholds(score, score, score > 0.5, trials=1000, **TARGET)
    assert 0.4 < plan.thresholds[plan.first] < 0.7


def test_the_plan_of_too_few_queries_starts_at_the_loosest():
    score = np.linspace(0, 1, 30)
    plan = plan_thresholds(score, score, np.ones(30, dtype=bool), trials=30, **TARGET)
    assert plan.first == len(plan.thresholds) - 1


def test_equal_probabilities_are_one_threshold():
    score = np.repeat([0.2, 0.9], 50)
    plan = plan_thresholds(score, score, score > 0.5, trials=100, **TARGET)
    assert plan.thresholds == (0.9, 0.2)


def test_the_guarantee_holds_in_a_thousand_calibrations():
    """Uniform scores with P(wrong | s) = 0.3 (1-s)² have R(t) = 0.1 (1-t)²: at most 5 % from 0.293 up."""
    runs, n = 1000, 900
    exceeded, coverage = 0, []
    for seed in range(runs):
        rng = np.random.default_rng([2, seed])
        score = rng.random(2 * n)
        right = rng.random(2 * n) >= 0.3 * (1 - score) ** 2
        plan = plan_thresholds(score[:n], score[:n], right[:n], trials=n, **TARGET)
        threshold = walk_thresholds(plan, score[n:], right[n:], **TARGET).threshold
        if threshold is not None:
            exceeded += 0.1 * (1 - threshold) ** 2 > 0.05
            coverage.append(1 - threshold)
    # Binomial slack: with 5 % in truth, more than 6.5 % in 1,000 happens once in fifty times.
    assert binom.sf(65, runs, 0.05) < 0.02
    assert 0 < exceeded / runs <= 0.065
    assert len(coverage) > 0.95 * runs
    assert np.mean(coverage) > 0.5  # 0.707 would be perfect knowledge


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


def test_queries_needed_without_an_error_is_the_least_number():
    curve = curve_of(100, 0, 200)
    assert queries_needed(curve, max_wrong=0.01, confidence=0.95) == 2 * 299


def test_queries_needed_would_pass():
    curve = curve_of(400, 2, 400)
    n = queries_needed(curve, max_wrong=0.01, confidence=0.95)
    assert upper_bound(np.ceil(0.005 * n), n, 0.95) <= 0.01
    assert upper_bound(np.ceil(0.005 * 0.85 * n), 0.85 * n, 0.95) > 0.01


def test_no_number_of_queries_helps_a_rate_that_is_too_high():
    assert queries_needed(curve_of(400, 12, 400), max_wrong=0.01, confidence=0.95) is None


def test_one_error_of_a_few_queries_does_not_rule_out_the_target():
    needed = queries_needed(curve_of(40, 1, 40), max_wrong=0.01, confidence=0.95)
    assert upper_bound(np.ceil(0.005 * needed), needed, 0.95) <= 0.01
    assert needed < 2000


def test_the_luck_of_a_handful_promises_nothing():
    # The four best answers are right by luck, half of the others are wrong.
    probability, right = np.linspace(1, 0, 400), np.arange(400) % 2 == 0
    right[:4] = True
    plan = ThresholdPlan((0.99, 0.5, 0.0), 2)
    target = {"max_wrong": 0.01, "confidence": 0.95}
    curve = walk_thresholds(plan, probability, right, **target)
    assert (curve.accepted[0], curve.wrong[0]) == (4, 0)
    assert queries_needed(curve, **target) is None


def test_more_queries_are_of_both_parts():
    target = {"max_wrong": 0.01, "confidence": 0.95}
    curve = curve_of(100, 0, 200)
    assert queries_needed(curve, **target) == 598
    assert more_queries(curve, 300, 200, **target) == 598 * 300 / 200 - 300
    assert more_queries(curve_of(400, 12, 400), 600, 400, **target) is None
    assert more_queries(curve_of(400, 0, 400), 600, 400, **target) == 0


def test_bad_luck_asks_for_as_few_as_could_ever_help():
    target = {"max_wrong": 0.01, "confidence": 0.95}
    curve = curve_of(470, 1, 470)
    assert queries_needed(curve, **target) * 705 / 470 - 705 < 299
    assert more_queries(curve, 705, 470, **target) == 299
