import numpy as np
import pytest
import torch

import surefind as sf
from surefind.curvature import pair_scan as sampled
from surefind.curvature.pair_scan import sampled_curvature
from surefind.curvature.rows import Source
from surefind.pairs.relations import Classes


@pytest.fixture
def problem():
    g = np.random.default_rng(3)
    labels = g.integers(8, size=300)
    X = g.standard_normal((8, 5))[labels] + g.standard_normal((300, 5))
    weights = torch.from_numpy(g.standard_normal((4, 6)))
    return Source(X), weights, Classes(torch.from_numpy(labels))


def estimate(problem, columns, seed=0, distance="arccos", margin=1.0):
    source, weights, classes = problem
    return sampled_curvature(
        source,
        weights,
        classes,
        distance=distance,
        margin=margin,
        columns=columns,
        generator=torch.Generator().manual_seed(seed),
    )


def exact(problem, distance="arccos", margin=1.0):
    source, weights, classes = problem
    features = source.features(slice(None))
    return sf.dataset_curvature(
        features, features @ weights.T, classes, distance=distance, margin=margin
    )


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("dense", [0.0, 1.0])
@pytest.mark.parametrize("columns", [300, 10_000])
def test_all_columns_are_exact(problem, distance, dense, columns, monkeypatch):
    monkeypatch.setattr(sampled, "DENSE", dense)
    found = estimate(problem, columns, distance=distance)
    torch.testing.assert_close(found.curvature, exact(problem, distance))
    assert found.relative_error == 0


def test_the_estimate_is_unbiased_and_its_error_is_as_stated(problem):
    truth = exact(problem)
    runs = [estimate(problem, 60, seed) for seed in range(80)]
    values = torch.stack([r.curvature for r in runs])
    deviation = values.std(0)
    bias = (values.mean(0) - truth) / (deviation / len(runs) ** 0.5)
    assert bias.abs().max() < 4.5
    stated = torch.stack([r.error**2 for r in runs]).mean(0).sqrt()
    torch.testing.assert_close(stated, deviation, rtol=0.35, atol=0)
    relative = float((values - truth).norm(dim=(1, 2)).square().mean().sqrt() / truth.norm())
    mean_stated = float(np.sqrt(np.mean([r.relative_error**2 for r in runs])))
    assert mean_stated == pytest.approx(relative, rel=0.25)


def test_more_columns_leave_less_error(problem):
    errors = [
        np.mean([estimate(problem, c, seed).relative_error for seed in range(4)])
        for c in (32, 128, 256)
    ]
    assert errors[0] > errors[1] > errors[2] > 0


def test_the_same_generator_draws_the_same_columns(problem):
    assert torch.equal(estimate(problem, 60, 5).curvature, estimate(problem, 60, 5).curvature)
    assert not torch.equal(estimate(problem, 60, 5).curvature, estimate(problem, 60, 6).curvature)


def test_blocks_of_rows_add_up(problem, monkeypatch):
    whole = estimate(problem, 60)
    monkeypatch.setattr("surefind.curvature.rows.BLOCK_ELEMENTS", 70)
    torch.testing.assert_close(estimate(problem, 60).curvature, whole.curvature)


def test_too_few_columns_for_an_error_are_refused(problem):
    with pytest.raises(sf.DegenerateError, match=r"at least 16 columns .* got 10"):
        estimate(problem, 10)
