import numpy as np

from surefind.decisions.risk import (
    ThresholdPlan,
    more_queries,
    queries_needed,
    upper_bound,
    walk_thresholds,
)


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
