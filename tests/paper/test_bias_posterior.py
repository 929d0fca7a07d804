"""Variance by biases against exact Jacobians; probes against their mean; samples against both."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

import surefind as sf
from surefind.paper.bias_curvature import pullback
from surefind.paper.bias_posterior import (
    HEAD_SHARE,
    BiasPosterior,
    fit_biases,
    layer_variances,
    orthonormal,
    tangents,
)


@pytest.fixture
def encoder():
    layers = [nn.Conv2d(1, 3, 3), nn.ReLU(inplace=True), nn.Conv2d(3, 4, 2), nn.ReLU(inplace=True)]
    return sf.Encoder(nn.Sequential(*layers, nn.Flatten()), nn.Linear(16, 5)).double().eval()


@pytest.fixture
def inputs(normal):
    return normal(6, 1, 5, 5)


def tangent_covariances(encoder, inputs, variance):
    """(I - u uᵀ) J Σ Jᵀ (I - u uᵀ), layer by layer, from the whole Jacobian of each example."""
    network = encoder.unnormalized
    everything = {k: v.detach() for k, v in network.named_parameters()}
    names = {k: f"backbone.{k}.bias" for k in variance}

    def one(biases, x):
        return functional_call(network, {**everything, **biases}, (x[None],))[0]

    chosen = {name: everything[name] for name in names.values()}
    found = vmap(jacrev(one), (None, 0))(chosen, inputs)
    u = encoder(inputs).detach()
    project = torch.eye(5, dtype=u.dtype) - u[:, :, None] * u[:, None, :]
    return {
        k: project @ torch.einsum("nzp,p,nyp->nzy", found[name], variance[k], found[name]) @ project
        for k, name in names.items()
    }


@pytest.fixture
def variance(normal):
    return {"0": normal(3).exp(), "2": normal(4).exp()}


def test_tangents_are_orthonormal_and_orthogonal_to_the_output(normal, generator):
    outputs = torch.cat([normal(20, 5), torch.eye(5).double(), -torch.eye(5).double()])
    found = tangents(outputs, orthonormal(4, 4, outputs, generator))
    everything = torch.cat([sf.models.encoder.on_sphere(outputs)[None], found])
    products = torch.einsum("anz,bnz->nab", everything, everything)
    torch.testing.assert_close(products, torch.eye(5).double().expand_as(products))


def test_all_probes_give_the_exact_trace(encoder, inputs, variance, generator):
    found = layer_variances(
        pullback(encoder, inputs), variance, orthonormal(4, 9, inputs, generator)
    )
    for name, covariance in tangent_covariances(encoder, inputs, variance).items():
        exact = covariance.diagonal(dim1=1, dim2=2).sum(1)
        torch.testing.assert_close(found[name], exact)


@pytest.mark.parametrize("count", [1, 2])
def test_few_probes_are_unbiased(encoder, inputs, variance, generator, count):
    pull = pullback(encoder, inputs)
    draws = 400
    estimates = torch.stack([
        BiasPosterior(
            {k: 1 / v for k, v in variance.items()}, orthonormal(4, count, inputs, generator)
        ).tangent_variance(pull)
        for _ in range(draws)
    ])
    covariances = tangent_covariances(encoder, inputs, variance).values()
    exact = sum(c.diagonal(dim1=1, dim2=2).sum(1) for c in covariances)
    error = estimates.std(0) / draws**0.5
    assert ((estimates.mean(0) - exact).abs() < 5 * error).all()


def test_drawn_biases_change_outputs_with_the_exact_covariance(
    encoder, inputs, variance, generator
):
    posterior = BiasPosterior(
        {k: 1 / v for k, v in variance.items()}, orthonormal(4, 2, inputs, generator)
    )
    change = posterior.draw(pullback(encoder, inputs), 40_000, generator)
    u = encoder(inputs).detach()
    flat = change - (change * u).sum(2, keepdim=True) * u
    found = torch.einsum("snz,sny->nzy", flat, flat) / len(flat)
    exact = sum(tangent_covariances(encoder, inputs, variance).values())
    size = exact.diagonal(dim1=1, dim2=2).sum(1)[:, None, None]
    torch.testing.assert_close(found / size, exact / size, atol=0.03, rtol=0)


def head_posterior(encoder):
    weights = encoder.head_weights()
    return sf.HeadPosterior(weights, torch.full_like(weights, 40.0))


def test_layers_have_equal_shares_and_the_level_stays(encoder, normal, generator):
    """For the median example of those that it was fitted to."""
    x, head = normal(41, 1, 5, 5), head_posterior(encoder)
    curvature = {"0": normal(3) ** 2, "2": normal(4) ** 2}
    fitted, biases = fit_biases(
        head, curvature, lambda: [pullback(encoder, x[:20]), pullback(encoder, x[20:])], generator
    )
    pull = pullback(encoder, x)
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


def test_layers_that_nothing_responds_to_are_left_out_and_none_is_refused(
    encoder, inputs, generator
):
    head, curvature = head_posterior(encoder), {"0": torch.zeros(3), "2": torch.ones(4)}
    pulls = [pullback(encoder, inputs)]
    doubles = {k: v.double() for k, v in curvature.items()}
    _, biases = fit_biases(head, doubles, lambda: pulls, generator)
    assert list(biases.precision) == ["2"]
    with pytest.raises(sf.DegenerateError, match="no bias below the head"):
        fit_biases(head, {"0": doubles["0"]}, lambda: pulls, generator)


def test_one_output_has_no_tangent(encoder, generator):
    posterior = head_posterior(encoder)
    one = replace(posterior, mean=posterior.mean[:1], precision=posterior.precision[:1])
    with pytest.raises(sf.InputError, match="at least two outputs"):
        fit_biases(one, {}, list, generator)
