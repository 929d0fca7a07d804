import pytest
import torch

import surefind as sf
from surefind.posterior.fit import tune_prior_precision


def evidence_at(mean, curvature, scale, delta):
    posterior = sf.HeadPosterior.from_curvature(
        mean, curvature, scale=scale, prior_precision=delta, loss=0.0
    )
    return posterior.log_evidence()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("weights", [1e-3, 1.0, 1e3])
def test_tuned_prior_has_the_largest_evidence(normal, size, weights):
    mean, curvature = weights * normal(4, 6), size * normal(4, 6)
    best = tune_prior_precision(mean, curvature, scale=3.0)
    top = evidence_at(mean, curvature, 3.0, best)
    for factor in (0.5, 0.99, 1.01, 2.0, 1e-3, 1e3):
        assert evidence_at(mean, curvature, 3.0, best * factor) < top


def test_tuned_prior_satisfies_mackays_fixed_point(normal):
    mean, curvature = normal(4, 6), normal(4, 6).abs()
    best = tune_prior_precision(mean, curvature, scale=20.0)
    determined = float((20 * curvature / (20 * curvature + best)).sum())
    assert best == pytest.approx(determined / float((mean**2).sum()))


@pytest.mark.parametrize(
    ("mean", "curvature", "field"),
    [
        (torch.full((2, 3), torch.nan), torch.ones(2, 3), "mean"),
        (torch.zeros(2, 3), torch.ones(2, 3), "mean"),
        (torch.ones(2, 3), torch.full((2, 3), torch.nan), "curvature"),
        (torch.ones(2, 3), torch.ones(2, 4), "curvature"),
        (torch.ones(2, 3), torch.ones(2, 3).long(), "curvature"),
    ],
)
def test_what_has_no_evidence_is_refused(mean, curvature, field):
    with pytest.raises(sf.InputError) as refusal:
        tune_prior_precision(mean, curvature, scale=1.0)
    assert refusal.value.field == field


def test_eigenvalues_may_come_in_any_shape(normal):
    mean, curvature = normal(4, 6), normal(4, 6).abs()
    expected = tune_prior_precision(mean, curvature, scale=3.0)
    assert tune_prior_precision(mean, curvature.flatten(), scale=3.0) == pytest.approx(expected)
