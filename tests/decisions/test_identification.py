import numpy as np
import pytest
from decisions.worlds import asked
from scipy.stats import binom

from surefind.decisions.calibration import calibrate
from surefind.decisions.risk import RiskCurve, ThresholdPlan, walk_thresholds


def curve(thresholds, *counts):
    nothing = (0,) * len(thresholds)
    return RiskCurve(thresholds, *[nothing] * 5, 0, None, *counts, 0.95)


def test_counts_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    chance, enrolled = rng.random(400), rng.random(400) < 0.6
    right = enrolled & (rng.random(400) < chance)
    chance[rng.random(400) < 0.1] = -np.inf
    thresholds = (0.9, 0.5, 0.1)
    plan = ThresholdPlan(thresholds, 0)
    found = walk_thresholds(plan, chance, right, max_wrong=0.05, confidence=0.95, unknown=~enrolled)
    for i, t in enumerate(thresholds):
        strangers = sum(c >= t for c, e in zip(chance, enrolled, strict=True) if not e)
        missed = sum(
            not (c >= t and r) for c, r, e in zip(chance, right, enrolled, strict=True) if e
        )
        assert (found.false_positives[i], found.missed[i]) == (strangers, missed)
        assert found.fpir[i] == strangers / (~enrolled).sum()
        assert found.fnir[i] == missed / enrolled.sum()


def test_bounds_are_the_rates_at_which_the_counts_become_improbable():
    found = curve((0.9,), 500, 200, (3,), (20,))
    (low,), (high,) = found.fpir_bounds
    assert binom.cdf(3, 500, high) == pytest.approx(0.05)
    assert binom.sf(2, 500, low) == pytest.approx(0.05)
    (low,), (high,) = found.fnir_bounds
    assert binom.cdf(20, 200, high) == pytest.approx(0.05)
    assert binom.sf(19, 200, low) == pytest.approx(0.05)


def test_an_operating_point_is_the_loosest_before_the_first_that_fails():
    found = curve((0.9, 0.8, 0.7, 0.6), 3000, 1000, (0, 1, 40, 1), (500, 300, 200, 100))
    assert found.at(0.01).threshold == 0.8
    assert found.at(0.001).threshold == 0.9
    assert found.at(0.001).fnir == 0.5
    few = curve((0.9,), 298, 10, (0,), (0,)).at(0.01)
    assert (few.threshold, few.fnir, few.unknown_needed) == (None, 1.0, 299)
    assert curve((0.9,), 299, 10, (0,), (0,)).at(0.01).threshold == 0.9
    assert [p.unknown_needed for p in found.operating_points] == [299, 998, 2995]


def test_without_unknown_queries_no_fpir_is_kept():
    found = curve((0.9,), 0, 10, (0,), (3,))
    assert found.fpir == (0.0,)
    assert found.at(0.5).threshold is None


def test_a_promise_about_strangers_costs_coverage():
    posterior, truth, _ = asked(6000, np.random.default_rng(1))
    alone, both = (calibrate(posterior, truth, max_wrong=0.05, max_fpir=f) for f in (None, 0.02))
    i, j = alone.risk_curve.chosen, both.risk_curve.chosen
    assert both.risk_curve.fpir_bounds[1][j] <= 0.02 < alone.risk_curve.fpir_bounds[1][i]
    assert both.risk_curve.coverage[j] < alone.risk_curve.coverage[i]
    assert "and 2 % of unknown queries are a match" in both.summary
