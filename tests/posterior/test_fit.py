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


def test_zero_weights_have_no_best_prior():
    with pytest.raises(sf.DegenerateError, match="weights are all zero"):
        tune_prior_precision(torch.zeros(2, 3), torch.ones(2, 3), scale=1.0)


@pytest.mark.parametrize(
    ("mean", "curvature", "message"),
    [
        (torch.full((2, 3), torch.nan), torch.ones(2, 3), "mean holds NaN"),
        (torch.ones(2, 3), torch.full((2, 3), torch.nan), "curvature holds NaN"),
        (
            torch.ones(2, 3),
            torch.ones(2, 4),
            r"each of the 6 weights \(2, 3\).* got shape \(2, 4\)",
        ),
        (torch.ones(2, 3), torch.ones(2), r"or all eigenvalues; got shape \(2,\)"),
        (torch.ones(2, 3), torch.ones(2, 3).long(), "curvature must be float32 or float64"),
    ],
)
def test_what_has_no_evidence_is_refused(mean, curvature, message):
    with pytest.raises(sf.InputError, match=message):
        tune_prior_precision(mean, curvature, scale=1.0)


def test_eigenvalues_may_come_in_any_shape(normal):
    mean, curvature = normal(4, 6), normal(4, 6).abs()
    expected = tune_prior_precision(mean, curvature, scale=3.0)
    assert tune_prior_precision(mean, curvature.flatten(), scale=3.0) == pytest.approx(expected)
