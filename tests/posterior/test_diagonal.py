import pytest
import torch

import surefind as sf


def test_clipping_scale_and_prior_are_in_the_precision(normal):
    mean = normal(2, 3)
    curvature = torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, 0.0]], dtype=torch.float64)
    posterior = sf.HeadPosterior.from_curvature(mean, curvature, scale=10.0, prior_precision=0.5)
    assert posterior.precision.tolist() == [[10.5, 0.5, 30.5], [0.5, 40.5, 0.5]]
    assert posterior.clipped == pytest.approx(2 / 10)


def test_output_moments_are_those_of_independent_weights(normal):
    mean, precision, features = normal(2, 3), normal(2, 3).exp(), normal(5, 3)
    posterior = sf.HeadPosterior(mean, precision)
    mu, v = posterior.output_moments(features)
    for i, h in enumerate(features):
        for k in range(2):
            assert float(mu[i, k]) == pytest.approx(sum(float(mean[k, q] * h[q]) for q in range(3)))
            expected = sum(float(h[q] ** 2 / precision[k, q]) for q in range(3))
            assert float(v[i, k]) == pytest.approx(expected)


def test_features_without_the_ones_have_the_same_variance(normal):
    features = torch.cat([normal(5, 3), torch.ones(5, 1, dtype=torch.float64)], dim=1)
    posterior = sf.HeadPosterior(normal(2, 4), normal(2, 4).exp())
    expected = posterior.output_moments(features)[1]
    torch.testing.assert_close(posterior.output_variance(features[:, :3]), expected)
    torch.testing.assert_close(posterior.output_variance(features), expected)


def test_far_inputs_are_no_surer_and_unseen_directions_are_less_sure():
    """Weights that the data determine have high precision; a feature never seen has the prior's."""
    mean = torch.ones(2, 2, dtype=torch.float64)
    posterior = sf.HeadPosterior(mean, torch.tensor([[1e4, 1.0], [1e4, 1.0]], dtype=torch.float64))
    seen, unseen, far = torch.tensor([[1.0, 0.0], [0.0, 1.0], [100.0, 0.0]], dtype=torch.float64)
    kappa = posterior.predict(torch.stack([seen, unseen, far])).kappa
    assert kappa[0] > 100 * kappa[1]
    torch.testing.assert_close(kappa[0], kappa[2])


def test_float32_prediction_has_float32_accuracy(normal):
    mean, precision, features = normal(16, 40), normal(16, 40).exp() * 1e3, normal(20, 40)
    exact = sf.HeadPosterior(mean, precision).predict(features)
    single = sf.HeadPosterior(mean.float(), precision.float()).predict(features.float())
    assert single.mean.dtype == single.kappa.dtype == torch.float32
    torch.testing.assert_close(single.kappa.double(), exact.kappa, rtol=1e-5, atol=0)
    torch.testing.assert_close(single.mean.double(), exact.mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("mean", "precision", "message"),
    [
        (torch.ones(2, 3), torch.zeros(2, 3), "every precision must be above 0; the smallest is 0"),
        (
            torch.ones(2, 3),
            -torch.ones(2, 3),
            "every precision must be above 0; the smallest is -1",
        ),
        (
            torch.ones(2, 3),
            torch.full((2, 3), 1e-39),
            r"at least 1\.18e-38 .* in torch\.float32; the smallest is 1e-39\. Use a larger prior",
        ),
        (torch.ones(2, 3), torch.full((2, 3), torch.nan), "precision holds 6 NaN"),
        (torch.ones(2, 3), torch.ones(3, 2), "same shape and dtype"),
        (torch.ones(2, 3), torch.ones(2, 3).double(), "same shape and dtype"),
        (torch.ones(2, 3).half(), torch.ones(2, 3), "mean must be float32 or float64"),
    ],
)
def test_what_is_no_gaussian_is_refused(mean, precision, message):
    with pytest.raises(sf.InputError, match=message):
        sf.HeadPosterior(mean, precision)


def test_nan_in_the_curvature_is_refused():
    with pytest.raises(sf.InputError, match="curvature holds 6 NaN"):
        sf.HeadPosterior.from_curvature(
            torch.ones(2, 3), torch.full((2, 3), torch.nan), scale=1.0, prior_precision=1.0
        )


def test_the_smallest_precision_gives_embeddings_or_says_why_not():
    tiny = torch.finfo(torch.float32).tiny
    posterior = sf.HeadPosterior(torch.ones(2, 3), torch.full((2, 3), tiny))
    assert (posterior.predict(torch.ones(1, 3)).kappa < 1e-6).all()
    with pytest.raises(
        sf.NumericalError, match=r"too large for torch\.float32.* Use a larger prior"
    ):
        posterior.predict(torch.full((1, 3), 10.0))
