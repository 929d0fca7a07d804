"""Derivatives in biases against autograd's own Jacobian, their curvature against that of any parameters."""

import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap

import surefind as sf
from surefind.curvature.dataset import dataset_output_hessians
from surefind.curvature.network import network_curvature
from surefind.models.pooling import GeM
from surefind.paper.bias_curvature import bias_curvature, bias_layers, pullback
from surefind.paper.bias_posterior import orthonormal


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


def test_another_thread_does_not_notice(encoder, normal):
    """Hooks are on the shared layers for a moment; only the own forward pass is watched."""
    x, seen, owner = normal(3, 2, 6, 6), [], threading.get_ident()
    layer = next(iter(bias_layers(encoder.backbone).values()))

    def elsewhere(*_):
        def run():
            with torch.no_grad():
                seen.append(encoder.outputs(x[:2]).requires_grad)

        if not seen and threading.get_ident() == owner:
            other = threading.Thread(target=run)
            other.start()
            other.join()

    handle = layer.register_forward_pre_hook(elsewhere)
    pull = pullback(encoder, x)
    handle.remove()
    assert seen == [False]
    assert len(pull.outputs) == 3


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


def test_a_backbone_without_biases_is_refused():
    encoder = sf.Encoder(nn.Identity(), nn.Linear(4, 3))
    with pytest.raises(sf.InputError, match="no convolution, linear layer or normalisation"):
        pullback(encoder, torch.ones(2, 4))


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
