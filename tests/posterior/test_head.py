"""What every posterior must do, whatever its structure. A new one adds a line to BUILDERS."""

from dataclasses import replace

import oracles
import pytest
import torch
from torch.distributions import MultivariateNormal

import surefind as sf
from surefind.curvature.head import KroneckerCurvature, dense_curvature, kronecker_curvature
from surefind.posterior.head import (
    POSTERIORS,
    DensePosterior,
    HeadPosterior,
    KroneckerPosterior,
    posterior_tensors,
    restored_posterior,
)

N, D, Z = 30, 4, 3
OPTIONS = {"distance": "arccos", "approximation": "fixed"}
SETTINGS = {"scale": 50.0, "prior_precision": 0.7}


def diagonal(mean, features, outputs, targets, **settings):
    curvature = sf.head_curvature(features, outputs, targets, **OPTIONS)
    return HeadPosterior.from_curvature(mean, curvature, **settings)


def kronecker(mean, features, outputs, targets, **settings):
    curvature = kronecker_curvature(features, outputs, targets, **OPTIONS)
    return KroneckerPosterior.from_curvature(mean, curvature, **settings)


def dense(mean, features, outputs, targets, **settings):
    curvature = dense_curvature(features, outputs, targets, **OPTIONS)
    return DensePosterior.from_curvature(mean, curvature, **settings)


BUILDERS = {"diagonal": diagonal, "kronecker": kronecker, "dense": dense}


def dense_precision(posterior):
    """The posterior's precision matrix over all weights, row by row."""
    if isinstance(posterior, HeadPosterior):
        return torch.diag(posterior.precision.flatten())
    if isinstance(posterior, DensePosterior):
        basis = posterior.basis
        return basis @ torch.diag(posterior.precision) @ basis.T
    basis = torch.kron(posterior.left, posterior.right)
    return basis @ torch.diag(posterior.precision.flatten()) @ basis.T


@pytest.fixture
def problem(normal):
    features, mean = normal(N, D), normal(Z, D)
    outputs = features @ mean.T
    targets = sf.pair_targets(torch.arange(N) % 5, oracles.normalize(outputs), margin=0.7)
    return mean, features, outputs, targets


@pytest.fixture(params=BUILDERS)
def build(request):
    return BUILDERS[request.param]


@pytest.fixture
def posterior(build, problem):
    return build(*problem, **SETTINGS)


def output_samples(posterior, features, n, generator):
    """Outputs under heads drawn from the dense Gaussian, by torch's own distribution."""
    covariance = torch.linalg.inv(dense_precision(posterior))
    root = torch.linalg.cholesky(covariance)
    noise = torch.randn(n, Z * D, generator=generator, dtype=torch.float64)
    heads = posterior.mean + (noise @ root.T).view(n, Z, D)
    return features @ heads.mT


def test_prediction_agrees_with_samples_of_the_dense_gaussian(posterior, problem, generator):
    features = problem[1][:5]
    u = oracles.normalize(output_samples(posterior, features, 200_000, generator))
    mean = u.mean(0)
    predicted = posterior.predict(features)
    torch.testing.assert_close(predicted.mean, oracles.normalize(mean), atol=1e-2, rtol=0)
    kappa = sf.vmf_concentration(mean.norm(dim=1), Z)
    torch.testing.assert_close(predicted.kappa, kappa, rtol=2e-2, atol=0)


@pytest.mark.parametrize("joint", [True, False])
@pytest.mark.slow
def test_samples_have_the_predicted_moments(posterior, problem, generator, joint):
    features, n = problem[1][:5], 50_000 if joint else 400_000  # heads are drawn one by one
    u = posterior.sample(features, n, joint=joint, generator=generator)
    assert u.shape == (n, 5, Z)
    torch.testing.assert_close(u.norm(dim=2), torch.ones(n, 5, dtype=u.dtype))
    predicted = posterior.predict(features)
    torch.testing.assert_close(oracles.normalize(u.mean(0)), predicted.mean, atol=1e-2, rtol=0)
    kappa = sf.vmf_concentration(u.mean(0).norm(dim=1), Z)
    torch.testing.assert_close(predicted.kappa, kappa, rtol=3e-2, atol=0)


def test_joint_samples_move_together_and_marginal_ones_do_not(posterior, problem, generator):
    """Two equal inputs: one sampled head sends both to one point."""
    twice = problem[1][:1].expand(2, D)
    together = posterior.sample(twice, 50, joint=True, generator=generator)
    torch.testing.assert_close(together[:, 0], together[:, 1])
    apart = posterior.sample(twice, 50, joint=False, generator=generator)
    assert (apart[:, 0] - apart[:, 1]).norm(dim=1).min() > 1e-4


@pytest.mark.parametrize("joint", [True, False])
def test_same_generator_same_samples_and_the_global_one_is_not_touched(posterior, problem, joint):
    state = torch.get_rng_state()
    draws = [
        posterior.sample(problem[1], 3, joint=joint, generator=torch.Generator().manual_seed(5))
        for _ in range(2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(torch.get_rng_state(), state)


def test_without_scale_the_posterior_is_the_prior(build, problem):
    posterior = build(*problem, scale=1e-12, prior_precision=0.7)
    expected = 0.7 * torch.eye(Z * D, dtype=torch.float64)
    torch.testing.assert_close(dense_precision(posterior), expected)


def test_kappa_falls_with_the_width_of_the_posterior(build, problem):
    kappas = torch.stack([
        build(*problem, scale=scale, prior_precision=0.7 * scale).predict(problem[1]).kappa
        for scale in torch.logspace(5, -2, 40).tolist()
    ])
    assert (kappas.diff(dim=0) < 0).all()


def test_log_evidence_is_that_of_the_dense_gaussian(build, problem):
    """Loss, prior density at the mean, and the Gaussian volume, by torch's own distribution."""
    posterior = build(*problem, **SETTINGS, loss=0.3)
    zero = torch.zeros(Z * D, dtype=torch.float64)
    prior = MultivariateNormal(zero, precision_matrix=0.7 * torch.eye(Z * D, dtype=zero.dtype))
    volume = -MultivariateNormal(zero, precision_matrix=dense_precision(posterior)).log_prob(zero)
    expected = -50 * 0.3 + prior.log_prob(posterior.mean.flatten()) + volume
    assert posterior.log_evidence() == pytest.approx(float(expected), rel=1e-9)


def test_curvature_of_another_dtype_follows_the_weights(build, problem):
    mean, *rest = problem
    posterior = build(mean.float(), *rest, **SETTINGS)
    assert posterior.predict(problem[1].float()).mean.dtype == torch.float32


ANY = [
    ("mean", lambda x: x * torch.nan),
    ("mean", lambda x: x[0]),
    ("mean", lambda x: x.half()),
    ("precision", lambda x: x[1:]),
    ("precision", lambda x: x.float()),
    ("precision", lambda x: x * 0),
    ("precision", lambda x: -x),
    ("precision", lambda x: x * torch.nan),
]
OWN = {
    "diagonal": [],
    "kronecker": [
        ("left", lambda x: x[1:]),
        ("right", lambda x: x[1:]),
        ("right", lambda x: x / 0),
    ],
    "dense": [("basis", lambda x: x[1:])],
}
BROKEN = [(kind, *case) for kind, own in OWN.items() for case in (*ANY, *own)]


@pytest.mark.parametrize(("kind", "part", "change"), BROKEN)
def test_parts_that_do_not_fit_are_refused(problem, kind, part, change):
    posterior = BUILDERS[kind](*problem, **SETTINGS)
    with pytest.raises(sf.InputError) as refusal:
        replace(posterior, **{part: change(getattr(posterior, part))})
    assert refusal.value.field == part


def test_says_its_structure_and_comes_back_from_its_tensors(posterior, problem):
    assert POSTERIORS[posterior.structure] is type(posterior)
    tensors = posterior_tensors(posterior)
    assert "mean" not in tensors
    again = restored_posterior(posterior.structure, posterior.mean, tensors)
    assert again.clipped == posterior.clipped
    one, two = posterior.predict(problem[1]), again.predict(problem[1])
    assert torch.equal(one.mean, two.mean)
    assert torch.equal(one.kappa, two.kappa)


def test_features_without_the_ones_predict_the_same(build, problem):
    mean, features, _, targets = problem
    h = torch.cat([features[:, :-1], torch.ones(N, 1, dtype=torch.float64)], dim=1)
    posterior = build(mean, h, h @ mean.T, targets, **SETTINGS)
    expected = posterior.predict(h)
    for plain in (h[:, :-1], h):
        found = posterior.predict_plain(plain, h @ mean.T)
        torch.testing.assert_close(found.kappa, expected.kappa)
        torch.testing.assert_close(found.mean, expected.mean)


def test_relative_variance_is_that_of_the_dense_gaussian(posterior, problem):
    covariance = torch.linalg.inv(dense_precision(posterior)).view(Z, D, Z, D)
    h = problem[1]
    variance = torch.einsum("nq,kqkr,nr->n", h, covariance, h)
    expected = variance / (h @ posterior.mean.T).square().sum(1)
    torch.testing.assert_close(posterior.relative_variance(h), expected)


def test_reports_what_was_clipped(posterior):
    assert 0 <= posterior.clipped < 1


def test_one_input_keeps_its_axis(posterior, problem, generator):
    one = problem[1][:1]
    assert posterior.predict(one).mean.shape == (1, Z)
    assert posterior.sample(one, 1, joint=True, generator=generator).shape == (1, 1, Z)


def test_an_input_without_direction_is_unknown(posterior):
    e = posterior.predict(torch.zeros(1, D, dtype=torch.float64))
    assert e.kappa.tolist() == [0]
    torch.testing.assert_close(e.mean.norm(dim=1), torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h[:, :-1],
        lambda h: h.float(),
        lambda h: h * torch.nan,
        lambda h: h[:0],
        lambda h: h[0],
    ],
)
def test_unusable_features_are_refused(posterior, problem, generator, change):
    features = change(problem[1])
    for use in (
        posterior.predict,
        lambda h: posterior.sample(h, 2, joint=True, generator=generator),
        lambda h: posterior.sample(h, 2, joint=False, generator=generator),
    ):
        with pytest.raises(sf.InputError) as refusal:
            use(features)
        assert refusal.value.field == "features"


def test_a_missing_column_of_ones_is_named(posterior, problem):
    with pytest.raises(sf.InputError, match="append a column of ones"):
        posterior.predict(problem[1][:, :-1])


NAN = float("nan")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        *(({"scale": value}, "scale") for value in (0.0, -1.0, float("inf"), NAN)),
        *(({"prior_precision": value}, "prior_precision") for value in (0.0, -1.0, NAN)),
        *(({"loss": value}, "loss") for value in (NAN, float("inf"))),
    ],
)
def test_settings_out_of_range_are_refused(build, problem, settings, field):
    with pytest.raises(sf.InputError) as refusal:
        build(*problem, **(SETTINGS | settings))
    assert refusal.value.field == field


def test_a_prior_whose_variance_overflows_is_refused(build, problem):
    with pytest.raises(sf.InputError, match=r"at least 1\.18e-38"):
        build(*(x.float() for x in problem), scale=1e-45, prior_precision=1e-39)


@pytest.mark.parametrize("change", [lambda w: w[:, :-1], lambda w: w[:-1]])
def test_curvature_of_another_head_is_refused(build, problem, change):
    mean, *rest = problem
    with pytest.raises(sf.InputError) as refusal:
        build(change(mean), *rest, **SETTINGS)
    assert refusal.value.field == "curvature"


def test_curvature_without_numbers_is_refused(problem):
    mean, nan = problem[0], torch.full((12, 12), torch.nan, dtype=torch.float64)
    for kind, curvature in (
        (HeadPosterior, nan[:3, :4]),
        (DensePosterior, nan),
        (KroneckerPosterior, KroneckerCurvature(nan[:3, :3], torch.eye(4))),
        (KroneckerPosterior, KroneckerCurvature(torch.eye(3), nan[:4, :4])),
    ):
        with pytest.raises(sf.InputError, match=r"curvature.* holds NaN"):
            kind.from_curvature(mean, curvature, **SETTINGS)


def test_curvature_of_which_nothing_is_left_is_refused(build, problem):
    mean, features, outputs, targets = problem
    with pytest.raises(sf.DegenerateError, match="the posterior would be the prior alone"):
        build(mean, features, outputs, targets * 0, **SETTINGS)


def test_no_samples_and_no_evidence_are_refused(posterior, problem, generator):
    with pytest.raises(sf.InputError) as refusal:
        posterior.sample(problem[1], 0, joint=True, generator=generator)
    assert refusal.value.field == "n_samples"
    with pytest.raises(sf.InputError, match="does not know its loss and prior"):
        posterior.log_evidence()


# The diagonal one alone.


def test_clipping_scale_and_prior_are_in_the_precision(normal):
    mean = normal(2, 3)
    curvature = torch.tensor([[1.0, -2.0, 3.0], [0.0, 4.0, 0.0]], dtype=torch.float64)
    posterior = HeadPosterior.from_curvature(mean, curvature, scale=10.0, prior_precision=0.5)
    assert posterior.precision.tolist() == [[10.5, 0.5, 30.5], [0.5, 40.5, 0.5]]
    assert posterior.clipped == pytest.approx(2 / 10)


def test_output_moments_are_those_of_independent_weights(normal):
    mean, precision, features = normal(2, 3), normal(2, 3).exp(), normal(5, 3)
    posterior = HeadPosterior(mean, precision)
    mu, v = posterior.output_moments(features)
    for i, h in enumerate(features):
        for k in range(2):
            assert float(mu[i, k]) == pytest.approx(sum(float(mean[k, q] * h[q]) for q in range(3)))
            expected = sum(float(h[q] ** 2 / precision[k, q]) for q in range(3))
            assert float(v[i, k]) == pytest.approx(expected)


def test_features_without_the_ones_have_the_same_variance(normal):
    features = torch.cat([normal(5, 3), torch.ones(5, 1, dtype=torch.float64)], dim=1)
    posterior = HeadPosterior(normal(2, 4), normal(2, 4).exp())
    expected = posterior.output_moments(features)[1]
    torch.testing.assert_close(posterior.output_variance(features[:, :3]), expected)
    torch.testing.assert_close(posterior.output_variance(features), expected)


def test_far_inputs_are_no_surer_and_unseen_directions_are_less_sure():
    """Weights that the data determine have high precision; a feature never seen has the prior's."""
    mean = torch.ones(2, 2, dtype=torch.float64)
    posterior = HeadPosterior(mean, torch.tensor([[1e4, 1.0], [1e4, 1.0]], dtype=torch.float64))
    seen, unseen, far = torch.tensor([[1.0, 0.0], [0.0, 1.0], [100.0, 0.0]], dtype=torch.float64)
    kappa = posterior.predict(torch.stack([seen, unseen, far])).kappa
    assert kappa[0] > 100 * kappa[1]
    torch.testing.assert_close(kappa[0], kappa[2])


def test_float32_prediction_has_float32_accuracy(normal):
    mean, precision, features = normal(16, 40), normal(16, 40).exp() * 1e3, normal(20, 40)
    exact = HeadPosterior(mean, precision).predict(features)
    single = HeadPosterior(mean.float(), precision.float()).predict(features.float())
    assert single.mean.dtype == single.kappa.dtype == torch.float32
    torch.testing.assert_close(single.kappa.double(), exact.kappa, rtol=1e-5, atol=0)
    torch.testing.assert_close(single.mean.double(), exact.mean, rtol=0, atol=1e-6)


def test_the_smallest_precision_gives_embeddings_or_says_why_not():
    tiny = torch.finfo(torch.float32).tiny
    posterior = HeadPosterior(torch.ones(2, 3), torch.full((2, 3), tiny))
    assert (posterior.predict(torch.ones(1, 3)).kappa < 1e-6).all()
    with pytest.raises(
        sf.NumericalError, match=r"too large for torch\.float32.* Use a larger prior"
    ):
        posterior.predict(torch.full((1, 3), 10.0))
