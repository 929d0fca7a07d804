"""A posterior over biases: derivatives against autograd's own Jacobian, curvature against that of any
parameters, variance against exact Jacobians, samples against both; and the method on digits."""

from dataclasses import replace

import pytest
import small_learners
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

import surefind as sf
from surefind.curvature.dataset import dataset_output_hessians
from surefind.curvature.network import network_curvature
from surefind.models.encoder import on_sphere
from surefind.models.networks import GeM
from surefind.paper.biases import (
    HEAD_SHARE,
    BiasPosterior,
    LaplaceBiases,
    bias_curvature,
    bias_layers,
    fit_biases,
    layer_variances,
    orthonormal,
    pullback,
    tangents,
)

LAYERED = [LaplaceBiases(small_learners.GIVEN), LaplaceBiases(small_learners.ONLINE)]


def convolutional():
    layers = [nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.ReLU(inplace=True), nn.Conv2d(4, 5, 2)]
    return nn.Sequential(*layers, nn.BatchNorm2d(5), nn.ReLU(inplace=True), GeM()), 5


def linear():
    """With a layer norm, one layer that is used twice, and positions before the last axis."""
    shared = nn.Linear(6, 6)
    steps = [nn.Flatten(2), nn.Linear(36, 6), nn.LayerNorm(6), shared, nn.Tanh(), shared]
    return nn.Sequential(*steps, nn.Flatten()), 12


@pytest.fixture(params=[convolutional, linear])
def encoder(request):
    backbone, width = request.param()
    return sf.Encoder(backbone, nn.Linear(width, 3)).double().eval()


def jacobians(encoder, inputs):
    """Of the outputs in every bias of the backbone, example by example, by reverse mode over parameters."""
    network = encoder.unnormalized
    parameters = dict(network.named_parameters())
    chosen = {
        k: v.detach() for k, v in parameters.items() if k.startswith("backbone") and "bias" in k
    }
    rest = {k: v.detach() for k, v in parameters.items() if k not in chosen}
    rest |= {k: v.detach() for k, v in network.named_buffers()}

    def one(biases, x):
        return functional_call(network, {**rest, **biases}, (x[None],))[0]

    found = vmap(jacrev(one), (None, 0))(chosen, inputs)
    return {k.removeprefix("backbone.").removesuffix(".bias"): v for k, v in found.items()}


def test_directions_are_pulled_back_as_by_the_full_jacobian(encoder, normal):
    x, v = normal(7, 2, 6, 6), normal(7, 3)
    pull = pullback(encoder, x)
    torch.testing.assert_close(pull.outputs, encoder.outputs(x).detach())
    expected = jacobians(encoder, x)
    found = pull(v)
    assert found.keys() == expected.keys()
    for name, jacobian in expected.items():
        torch.testing.assert_close(found[name], torch.einsum("nz,nzp->np", v, jacobian))


def test_the_network_is_left_as_it_was(encoder, normal):
    pullback(encoder, normal(3, 2, 6, 6))(normal(3, 3))
    assert all(p.grad is None for p in encoder.parameters())
    assert not any(m._forward_hooks for m in encoder.modules())


def test_curvature_is_that_of_any_parameters(encoder, normal, generator):
    x, labels = normal(9, 2, 6, 6), torch.arange(9) % 3
    options = {"distance": "arccos", "margin": 0.7}
    names = [f"backbone.{k}.bias" for k in bias_layers(encoder.backbone)]
    expected = network_curvature(encoder.unnormalized, x, labels, parameters=names, **options)
    with torch.no_grad():
        outputs = encoder.outputs(x)
    hessians = dataset_output_hessians(outputs, labels, **options)
    found = bias_curvature(encoder, x.split(4), hessians, orthonormal(3, 3, x, generator))
    for name, value in found.items():
        torch.testing.assert_close(value, expected[f"backbone.{name}.bias"])


def test_fewer_directions_estimate_the_same_curvature(normal, generator):
    backbone, width = convolutional()
    encoder = sf.Encoder(backbone, nn.Linear(width, 6)).double().eval()
    x, labels = normal(6, 2, 6, 6), torch.arange(6) % 2
    with torch.no_grad():
        outputs = encoder.outputs(x)
    hessians = dataset_output_hessians(outputs, labels, distance="euclidean", margin=0.7)

    def curvature(count):
        basis = orthonormal(6, count, x, generator)
        return torch.cat([*bias_curvature(encoder, [x], hessians, basis).values()])

    exact = curvature(6)
    estimates = torch.stack([curvature(2) for _ in range(150)])
    error = estimates.std(0) / 150**0.5
    assert ((estimates.mean(0) - exact).abs() <= 5 * error + 1e-12).all()


def test_a_layer_that_mixes_examples_is_refused():
    class Folded(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x):
            return self.layer(x.reshape(-1, 2)).reshape(len(x), -1)

    encoder = sf.Encoder(Folded(), nn.Linear(4, 3))
    with pytest.raises(sf.InputError, match="gives 6 rows for 3 inputs"):
        pullback(encoder, torch.ones(3, 4))


@pytest.fixture
def deep():
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 2), nn.ReLU(inplace=True)]
    return sf.Encoder(nn.Sequential(*layers, nn.Flatten()), nn.Linear(16, 5)).double().eval()


@pytest.fixture
def inputs(normal):
    return normal(6, 1, 5, 5)


def tangent_covariances(deep, inputs, variance):
    """(I - u uᵀ) J Σ Jᵀ (I - u uᵀ), layer by layer, from the whole Jacobian of each example."""
    found = jacobians(deep, inputs)
    u = deep(inputs).detach()
    project = torch.eye(5, dtype=u.dtype) - u[:, :, None] * u[:, None, :]
    return {
        k: project @ torch.einsum("nzp,p,nyp->nzy", found[k], v, found[k]) @ project
        for k, v in variance.items()
    }


@pytest.fixture
def variance(normal):
    return {"0": normal(3).exp(), "2": normal(4).exp()}


def test_tangents_are_orthonormal_and_orthogonal_to_the_output(normal, generator):
    outputs = torch.cat([normal(20, 5), torch.eye(5).double(), -torch.eye(5).double()])
    found = tangents(outputs, orthonormal(4, 4, outputs, generator))
    everything = torch.cat([on_sphere(outputs)[None], found])
    products = torch.einsum("anz,bnz->nab", everything, everything)
    torch.testing.assert_close(products, torch.eye(5).double().expand_as(products))


def test_all_probes_give_the_exact_trace(deep, inputs, variance, generator):
    found = layer_variances(pullback(deep, inputs), variance, orthonormal(4, 9, inputs, generator))
    for name, covariance in tangent_covariances(deep, inputs, variance).items():
        exact = covariance.diagonal(dim1=1, dim2=2).sum(1)
        torch.testing.assert_close(found[name], exact)


def test_few_probes_are_unbiased(deep, inputs, variance, generator):
    pull = pullback(deep, inputs)
    draws = 400
    estimates = torch.stack([
        BiasPosterior(
            {k: 1 / v for k, v in variance.items()}, orthonormal(4, 1, inputs, generator)
        ).tangent_variance(pull)
        for _ in range(draws)
    ])
    covariances = tangent_covariances(deep, inputs, variance).values()
    exact = sum(c.diagonal(dim1=1, dim2=2).sum(1) for c in covariances)
    error = estimates.std(0) / draws**0.5
    assert ((estimates.mean(0) - exact).abs() < 5 * error).all()


def test_drawn_biases_change_outputs_with_the_exact_covariance(deep, inputs, variance, generator):
    posterior = BiasPosterior(
        {k: 1 / v for k, v in variance.items()}, orthonormal(4, 2, inputs, generator)
    )
    change = posterior.draw(pullback(deep, inputs), 40_000, generator)
    u = deep(inputs).detach()
    flat = change - (change * u).sum(2, keepdim=True) * u
    found = torch.einsum("snz,sny->nzy", flat, flat) / len(flat)
    exact = sum(tangent_covariances(deep, inputs, variance).values())
    size = exact.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    torch.testing.assert_close(found / size, exact / size, atol=0.03, rtol=0)


def head_posterior(deep):
    weights = deep.head_weights()
    return sf.HeadPosterior(weights, torch.full_like(weights, 40.0))


def test_layers_have_equal_shares_and_the_level_stays(deep, normal, generator):
    """For the median example of those that it was fitted to."""
    x, head = normal(41, 1, 5, 5), head_posterior(deep)
    curvature = {"0": normal(3) ** 2, "2": normal(4) ** 2}
    fitted, biases = fit_biases(
        head, curvature, lambda: [pullback(deep, x[:20]), pullback(deep, x[20:])], generator
    )
    pull = pullback(deep, x)
    squares = pull.outputs.square().sum(1)
    tangential = 1 - pull.outputs.square() / squares[:, None]

    def level(posterior):
        return float(
            ((posterior.output_variance(pull.plain) * tangential).sum(1) / squares).median()
        )

    shares = layer_variances(pull, {k: 1 / v for k, v in biases.precision.items()}, biases.probes)
    whole = level(head)
    assert level(fitted) == pytest.approx(HEAD_SHARE * whole)
    for share in shares.values():
        assert float((share / squares).median()) == pytest.approx((1 - HEAD_SHARE) * whole / 2)


def test_layers_that_nothing_responds_to_are_left_out_and_none_is_refused(deep, inputs, generator):
    head, curvature = head_posterior(deep), {"0": torch.zeros(3), "2": torch.ones(4)}
    pulls = [pullback(deep, inputs)]
    doubles = {k: v.double() for k, v in curvature.items()}
    _, biases = fit_biases(head, doubles, lambda: pulls, generator)
    assert list(biases.precision) == ["2"]
    with pytest.raises(sf.DegenerateError, match="no bias below the head"):
        fit_biases(head, {"0": doubles["0"]}, lambda: pulls, generator)


@pytest.fixture(scope="module", params=LAYERED, ids=lambda m: type(m.head).__name__)
def layered(request):
    return small_learners.learner(request.param, epochs=4, novelty=False).fit(
        small_learners.digits()[0]
    )


def test_layers_give_every_input_a_concentration_whatever_its_company(layered):
    test = small_learners.digits()[1]
    e = layered.embed(test)
    assert (torch.isfinite(e.kappa) & (e.kappa > 0)).all()
    assert torch.equal(layered.embed(test).kappa, e.kappa)
    backwards = torch.arange(len(test) - 1, -1, -1)
    turned = layered.embed(test[backwards], batch_size=7)
    torch.testing.assert_close(turned.kappa[backwards], e.kappa, rtol=1e-3, atol=0)
    torch.testing.assert_close(turned.mean[backwards], e.mean)


def test_layers_leave_directions_and_the_head_alone(layered):
    """The same training, the same head; half of the head's variance goes to the layers below."""
    method = layered.method.head
    plain = small_learners.learner(method, epochs=4, novelty=False).fit(small_learners.digits()[0])
    test = small_learners.digits()[1]
    assert small_learners.tensors_equal(
        plain.fitted.encoder.state_dict(), layered.fitted.network.state_dict()
    )
    torch.testing.assert_close(
        2 * plain.fitted.posterior.precision, layered.fitted.posterior.precision
    )
    cosine = (plain.embed(test).mean * layered.embed(test).mean).sum(1)
    assert float(cosine.min()) > 0.99
    ratio = layered.embed(test).kappa.median() / plain.embed(test).kappa.median()
    assert 0.5 < float(ratio) < 2


@pytest.mark.parametrize("joint", [True, False])
def test_samples_of_layers_agree_with_their_concentration(layered, joint):
    test = small_learners.digits()[1][:12]
    draws = layered.sample(test, 3000, joint=joint, generator=torch.Generator().manual_seed(2))
    kappa = sf.vmf_concentration(draws.double().mean(0).norm(dim=1), 3)
    # What is left beside Monte Carlo error: the variance of the biases is not the same in all directions.
    torch.testing.assert_close(kappa.float(), layered.embed(test).kappa, rtol=0.2, atol=0)


def test_an_embedder_is_put_together_again(layered):
    x = small_learners.digits()[1].read()
    again = layered.method.restore(layered.encoder, layered.fitted.tensors())
    assert torch.equal(again.embed(x).kappa, layered.fitted.embed(x).kappa)


def test_layers_detect_digits_that_fade(layered):
    """What the head's posterior cannot: it does not change with the contrast of a network's features."""
    x = small_learners.digits()[1].read()
    kappa = [layered.embed(x * contrast).kappa.median() for contrast in (1.0, 0.5, 0.25)]
    assert kappa[0] > kappa[1] > kappa[2]


def test_a_head_that_is_not_diagonal_and_a_backbone_without_biases_are_refused():
    train = small_learners.digits()[0]
    method = LaplaceBiases(replace(small_learners.GIVEN, structure="kronecker"))
    with pytest.raises(sf.InputError) as refusal:
        small_learners.learner(method, epochs=0).fit(train)
    assert refusal.value.field == "structure"
    vectors = sf.Dataset(train.read().flatten(1), train.labels)
    encoder = sf.Encoder(nn.Identity(), nn.Linear(64, 3))
    learner = sf.MetricLearner(encoder, method=LAYERED[0], epochs=0)
    with pytest.raises(sf.InputError, match="nothing below the head"):
        learner.fit(vectors)
