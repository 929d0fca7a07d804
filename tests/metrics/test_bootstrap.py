import numpy as np
import pytest
import torch

from surefind import metrics
from surefind.errors import DegenerateError, InputError


def seeded(seed=0):
    return np.random.default_rng(seed)


def test_the_interval_of_a_mean_is_the_normal_one():
    values = np.random.default_rng(0).normal(2, 3, size=2000)
    found = metrics.bootstrap_interval(values, generator=seeded(), n_resamples=4000)
    error = 1.96 * values.std() / 2000**0.5
    assert found.estimate == pytest.approx(values.mean())
    assert found.low == pytest.approx(values.mean() - error, abs=0.1 * error)
    assert found.high == pytest.approx(values.mean() + error, abs=0.1 * error)
    assert (found.confidence, found.n_resamples) == (0.95, 4000)
    narrow = metrics.bootstrap_interval(values, generator=seeded(), confidence=0.5)
    assert found.low < narrow.low < narrow.high < found.high


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say():
    covered = 0
    for seed in range(200):
        values = np.random.default_rng(seed).random(80) < 0.7
        found = metrics.bootstrap_interval(values, generator=seeded(seed), n_resamples=400)
        covered += found.low <= 0.7 <= found.high
    assert 180 <= covered <= 199


def test_a_statistic_of_paired_arrays_keeps_the_pairs():
    values = torch.arange(50.0)
    found = metrics.bootstrap_interval(
        values, -values, statistic=lambda a, b: float(np.abs(a + b).max()), generator=seeded()
    )
    assert (found.estimate, found.low, found.high) == (0, 0, 0)


def test_two_sets_are_drawn_independently():
    known = np.random.default_rng(0).normal(size=300)
    unknown = 1 + np.random.default_rng(1).normal(size=200)
    draw = lambda: metrics.bootstrap_interval(
        known,
        unknown,
        statistic=metrics.auroc,
        independent=True,
        generator=seeded(5),
        n_resamples=300,
    )
    found = draw()
    assert found.low < found.estimate < found.high
    assert found.estimate == metrics.auroc(known, unknown)
    # Hanley & McNeil (1982): the standard error of an AUROC.
    a = found.estimate
    q1, q2 = a / (2 - a), 2 * a * a / (1 + a)
    error = ((a * (1 - a) + 199 * (q1 - a * a) + 299 * (q2 - a * a)) / (300 * 200)) ** 0.5
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(error, rel=0.2)
    again = draw()
    assert (again.low, again.high) == (found.low, found.high)


def test_the_mean_path_equals_the_statistic_path():
    values = np.random.default_rng(0).random(40)
    mean = metrics.bootstrap_interval(values, generator=seeded())
    same = metrics.bootstrap_interval(values, statistic=np.mean, generator=seeded())
    assert mean.low == pytest.approx(same.low, abs=0.03)
    assert mean.high == pytest.approx(same.high, abs=0.03)


def test_one_query_has_no_spread():
    found = metrics.bootstrap_interval([0.25], generator=seeded())
    assert found.low == found.high == found.estimate == 0.25


def test_draws_without_a_value_are_left_out_and_counted():
    correct, uncertainty = [1, 1, 1, 0], [0.0, 1.0, 2.0, 3.0]
    found = metrics.bootstrap_interval(
        correct, uncertainty, statistic=metrics.r_auroc, generator=seeded(), n_resamples=200
    )
    assert 100 < found.n_resamples < 200

    def only_with_all(a):
        if len(set(a.tolist())) < 4:
            raise DegenerateError("by chance")
        return 1.0

    with pytest.raises(DegenerateError, match=r"undefined on .* of 200 resamples"):
        metrics.bootstrap_interval(
            [1, 2, 3, 4], statistic=only_with_all, generator=seeded(), n_resamples=200
        )


@pytest.mark.parametrize(
    ("samples", "options", "field"),
    [
        (([1.0], [1.0]), {}, "samples"),
        (([],), {}, "samples"),
        (([np.nan],), {}, "samples"),
        (([np.inf],), {}, "samples"),
        (([1.0],), {"confidence": 1.0}, "confidence"),
        (([1.0],), {"n_resamples": 0}, "n_resamples"),
        ((), {"statistic": np.mean}, "samples"),
        ((1.0,), {"statistic": np.mean}, "samples"),
        (([],), {"statistic": np.mean}, "samples"),
        (([1.0], [1.0, 2.0]), {"statistic": metrics.auroc}, "samples"),
    ],
)
def test_what_cannot_be_resampled_is_refused(samples, options, field):
    with pytest.raises(InputError) as refused:
        metrics.bootstrap_interval(*samples, generator=seeded(), **options)
    assert refused.value.field == field
