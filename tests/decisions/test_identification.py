import numpy as np
import pytest
from decisions.worlds import faces
from scipy.stats import binom

from surefind.decisions import Identification, calibrate
from surefind.errors import DegenerateError, InputError


def calibrated(n, *, seed=0, world_seed=1, **options):
    signals, right, enrolled = faces(n, np.random.default_rng(world_seed))
    options = {"max_wrong": 0.05, "contributions": False} | options
    return calibrate(signals, right, enrolled=enrolled, rng=np.random.default_rng(seed), **options)


def test_counts_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    chance, enrolled = rng.random(400), rng.random(400) < 0.6
    right = enrolled & (rng.random(400) < chance)
    chance[rng.random(400) < 0.1] = -np.inf
    thresholds = (0.9, 0.5, 0.1)
    found = Identification.count(thresholds, chance, right, enrolled, 0.95)
    for i, t in enumerate(thresholds):
        strangers = sum(c >= t for c, e in zip(chance, enrolled, strict=True) if not e)
        missed = sum(
            not (c >= t and r) for c, r, e in zip(chance, right, enrolled, strict=True) if e
        )
        assert (found.false_positives[i], found.missed[i]) == (strangers, missed)
        assert found.fpir[i] == strangers / (~enrolled).sum()
        assert found.fnir[i] == missed / enrolled.sum()


def test_bounds_are_the_rates_at_which_the_counts_become_improbable():
    found = Identification((0.9,), 500, 200, (3,), (20,), 0.95)
    (low,), (high,) = found.fpir_bounds
    assert binom.cdf(3, 500, high) == pytest.approx(0.05)
    assert binom.sf(2, 500, low) == pytest.approx(0.05)
    (low,), (high,) = found.fnir_bounds
    assert binom.cdf(20, 200, high) == pytest.approx(0.05)
    assert binom.sf(19, 200, low) == pytest.approx(0.05)


def test_an_operating_point_is_the_loosest_before_the_first_that_fails():
    found = Identification(
        (0.9, 0.8, 0.7, 0.6), 3000, 1000, (0, 1, 40, 1), (500, 300, 200, 100), 0.95
    )
    assert found.at(0.01).threshold == 0.8
    assert found.at(0.001).threshold == 0.9
    assert found.at(0.001).fnir == 0.5
    few = Identification((0.9,), 298, 10, (0,), (0,), 0.95).at(0.01)
    assert (few.threshold, few.fnir, few.unknown_needed) == (None, 1.0, 299)
    assert Identification((0.9,), 299, 10, (0,), (0,), 0.95).at(0.01).threshold == 0.9
    assert [p.unknown_needed for p in found.operating_points] == [299, 998, 2995]


def test_without_unknown_queries_no_fpir_is_kept():
    found = Identification((0.9,), 0, 10, (0,), (3,), 0.95)
    assert found.fpir == (0.0,)
    assert found.at(0.5).threshold is None


def test_a_promise_about_strangers_costs_coverage_and_is_kept():
    alone = calibrated(9000)
    both = calibrated(9000, max_fpir=0.01)
    assert alone.reached
    assert both.reached
    i, j = alone.risk_curve.chosen, both.risk_curve.chosen
    assert both.identification.fpir_bounds[1][j] <= 0.01 < alone.identification.fpir_bounds[1][i]
    assert both.risk_curve.coverage[j] < alone.risk_curve.coverage[i]
    assert "1.00% of the unknown matched" in both.summary
    assert f"FNIR {both.identification.fnir[j]:.1%}" in both.summary


@pytest.mark.parametrize(
    "runs", [pytest.param(20, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.nightly)]
)
def test_both_promises_are_kept_in_nearly_all_calibrations(runs):
    """The population is the distribution, so the true rates are counts."""
    population = 8000
    everyone, right, enrolled = faces(population, np.random.default_rng(5))
    broken = reached = 0
    for seed in range(runs):
        rng = np.random.default_rng([2, seed])
        drawn = rng.integers(population, size=3000)
        made = calibrate(
            everyone[drawn],
            right[drawn],
            enrolled=enrolled[drawn],
            max_wrong=0.04,
            max_fpir=0.04,
            contributions=False,
            rng=rng,
        )
        if made.threshold is None:
            continue
        reached += 1
        match = made.probability(everyone) >= made.threshold
        broken += (~right[match]).mean() > 0.04 or match[~enrolled].mean() > 0.04
    assert reached >= 0.85 * runs
    assert broken / runs <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / runs)


def test_gated_strangers_are_no_false_positives_and_gated_enrolled_are_missed():
    signals, right, enrolled = faces(3000, np.random.default_rng(1))
    rng = np.random.default_rng(7)
    novelty = np.where(rng.random(3000) < 0.3, 0.001, 0.9)
    made = calibrate(
        signals,
        right,
        enrolled=enrolled,
        novelty=novelty,
        max_wrong=0.05,
        contributions=False,
        rng=np.random.default_rng(0),
    )
    found = made.identification
    assert found.unknown + found.enrolled == pytest.approx(2000, abs=2)
    # Everything that passes is a match at the loosest threshold, and no more than that.
    assert found.fpir[-1] == pytest.approx((novelty[~enrolled] > 0.1).mean(), abs=0.05)
    assert found.fnir[-1] >= 0.25


def test_too_few_strangers_are_said():
    made = calibrated(900, max_fpir=0.001)
    assert not made.reached
    assert "needs 2,995 unknown queries" in made.summary
    signals, right, enrolled = faces(300, np.random.default_rng(1))
    known = {"rng": np.random.default_rng(0), "contributions": False}
    with pytest.raises(DegenerateError) as refused:
        calibrate(
            signals[enrolled], right[enrolled], enrolled=enrolled[enrolled], max_fpir=0.1, **known
        )
    assert refused.value.field == "max_fpir"
    with pytest.raises(InputError) as wrong:
        calibrate(signals, right, enrolled=enrolled, max_fpir=0.0, **known)
    assert wrong.value.field == "max_fpir"
