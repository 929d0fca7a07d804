import oracles
import pytest
import torch
from torch import nn

import surefind as sf
from surefind.curvature import network as module

LABELS = torch.tensor([0, 1, 0, 2, 1, 2, 0])


@pytest.fixture
def net(normal):
    """Two layers with bias, 3 → 4 → 2, in float64 and with weights from the test's generator."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(normal(*p.shape))
    return net


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
@pytest.mark.parametrize("chunk", [1 << 24, 1])
def test_all_parameters_equal_gauss_newton_by_definition(net, normal, monkeypatch, distance, chunk):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    x = normal(7, 3)
    shapes = {k: v.shape for k, v in net.named_parameters()}
    sizes = [s.numel() for s in shapes.values()]

    def embed(flat, one):
        parts = [p.view(s) for p, s in zip(flat.split(sizes), shapes.values(), strict=True)]
        return torch.func.functional_call(net, dict(zip(shapes, parts, strict=True)), (one,))

    flat = torch.cat([p.detach().flatten() for p in net.parameters()])
    targets = oracles.pair_targets(
        oracles.class_kind(LABELS), oracles.normalize(net(x).detach()), 1.5
    )
    G = oracles.gauss_newton(embed, flat, x, targets, distance, "fixed")
    curvature = sf.network_curvature(net, x, LABELS, distance=distance, margin=1.5)
    assert list(curvature) == list(shapes)
    assert all(curvature[k].shape == s for k, s in shapes.items())
    together = torch.cat([c.flatten() for c in curvature.values()])
    torch.testing.assert_close(together, G.diagonal(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_last_layer_agrees_with_the_closed_form(net, normal, distance):
    x = normal(7, 3)
    with torch.no_grad():
        features = torch.cat([net[:2](x), torch.ones(7, 1, dtype=x.dtype)], dim=1)
        outputs = net(x)
    closed = sf.dataset_curvature(features, outputs, LABELS, distance=distance, margin=1.5)
    names = ["2.weight", "2.bias"]
    general = sf.network_curvature(net, x, LABELS, distance=distance, margin=1.5, parameters=names)
    assert list(general) == names
    torch.testing.assert_close(general["2.weight"], closed[:, :-1])
    torch.testing.assert_close(general["2.bias"], closed[:, -1])


def test_convolutions_and_frozen_batch_norm_work(normal):
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)
    )
    net = net.double().eval()
    curvature = sf.network_curvature(
        net, normal(7, 1, 5, 5), LABELS, distance="euclidean", margin=1.0
    )
    assert all(torch.isfinite(c).all() for c in curvature.values())
    assert curvature["0.weight"].any()


def test_the_module_and_the_generator_are_left_alone(normal):
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    state = torch.get_rng_state()
    with pytest.raises(sf.InputError):
        sf.network_curvature(net, normal(7, 3), LABELS, distance="arccos", margin=1.0)
    assert net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in net.parameters())


def test_chance_and_company_are_refused(normal):
    net = nn.Sequential(nn.Linear(3, 40), nn.Dropout(0.5), nn.Linear(40, 2)).double().train()
    with pytest.raises(sf.InputError, match="does not give an example the same output twice"):
        sf.network_curvature(net, normal(7, 3), LABELS, distance="arccos", margin=1.0)


def test_unknown_parameters_are_refused(net, normal):
    with pytest.raises(sf.InputError, match=r"got \['3.weight'\]. It has: 0.weight"):
        sf.network_curvature(
            net, normal(7, 3), LABELS, distance="arccos", margin=1.0, parameters=["3.weight"]
        )
