"""A module of one's own: its head is found by what it computes, or refused with the way out."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from surefind.errors import InputError
from surefind.models.splitting import Split, joined, split_module


def inputs(n=16):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(3))


class Twisted(nn.Module):
    """Layers that are defined in another order than they run in, with one that never does."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 5)
        self.first = nn.Linear(6, 8)
        self.unused = nn.Linear(5, 5)

    def forward(self, x):
        return normalize(self.last(self.first(x).relu()), dim=1)


class Auxiliary(Twisted):
    """A second branch runs last, and its result is thrown away."""

    def forward(self, x):
        z = super().forward(x)
        self.unused(z)
        return 3 * z


def normed(**options):
    torch_rng = torch.Generator().manual_seed(0)
    norm = nn.BatchNorm1d(5, **options)
    norm.running_mean.copy_(torch.randn(5, generator=torch_rng))
    norm.running_var.copy_(torch.rand(5, generator=torch_rng) + 0.5)
    if norm.affine:
        norm.weight.data.copy_(torch.randn(5, generator=torch_rng))
        norm.bias.data.copy_(torch.randn(5, generator=torch_rng))
    return norm


class Normalize(nn.Module):
    def forward(self, x):
        return normalize(x, dim=1)


def trunk():
    return nn.Linear(6, 8), nn.ReLU()


TAKEN = {
    "linear": (lambda: nn.Linear(6, 5), "", None),
    "sequential": (lambda: nn.Sequential(*trunk(), nn.Linear(8, 5)), "2", None),
    "normalised": (lambda: nn.Sequential(*trunk(), nn.Linear(8, 5), Normalize()), "2", None),
    "batch norm": (lambda: nn.Sequential(*trunk(), nn.Linear(8, 5), normed()), "2", "3"),
    "both": (
        lambda: nn.Sequential(*trunk(), nn.Linear(8, 5, bias=False), normed(), Normalize()),
        "2",
        "3",
    ),
    "plain norm": (
        lambda: nn.Sequential(*trunk(), nn.Linear(8, 5), normed(affine=False)),
        "2",
        "3",
    ),
    "dropout": (lambda: nn.Sequential(*trunk(), nn.Linear(8, 5), nn.Dropout()), "2", None),
    "twisted": (Twisted, "last", None),
    "auxiliary": (Auxiliary, "last", None),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(*trunk()), nn.Sequential(nn.Linear(8, 5))),
        "1.0",
        None,
    ),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_encoder_embeds_as_the_module_does(name):
    make, layer, folded = TAKEN[name]
    module = make().train()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    encoder, split = split_module(module, inputs())
    assert (split.layer, split.folded) == (layer, folded)
    assert module.training
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())
    fresh = torch.randn(7, 6, generator=torch.Generator().manual_seed(9))
    wanted = normalize(module.eval()(fresh), dim=1)
    torch.testing.assert_close(encoder.eval()(fresh), wanted, rtol=0, atol=1e-6)
    again = joined(make(), split)
    again.load_state_dict(encoder.state_dict())
    torch.testing.assert_close(again(fresh), wanted, rtol=0, atol=1e-6)


def test_the_fold_is_exact():
    """By definition: batch norm of the linear layer's outputs, in float64, before any normalisation."""
    linear, norm = nn.Linear(6, 5).double(), normed().double()
    encoder, split = split_module(nn.Sequential(linear, norm), inputs().double())
    z = inputs().double() @ linear.weight.T + linear.bias
    wanted = (
        norm.weight * (z - norm.running_mean) / (norm.running_var + norm.eps) ** 0.5 + norm.bias
    )
    torch.testing.assert_close(encoder.outputs(inputs().double()), wanted, rtol=1e-12, atol=1e-12)
    assert "'1'" in str(split)


class Pooled(nn.Module):
    def forward(self, x):
        return x.abs()


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(self.layer(x))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 5)

    def forward(self, x):
        return {"embedding": self.layer(x)}


REFUSED = {
    "no linear layer": Pooled(),
    "an activation follows": nn.Sequential(nn.Linear(6, 5), nn.ReLU()),
    "a layer norm follows": nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)),
    "statistics of the batch": nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5, track_running_stats=False)
    ),
    "runs twice": Twice(),
    "no tensor": Several(),
    "maps": nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 5)),
    "other inputs": nn.Linear(7, 5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_split_is_refused_with_the_way_out(name):
    with pytest.raises(InputError) as refusal:
        split_module(REFUSED[name], inputs())
    assert refusal.value.field == "encoder"


def test_a_saved_split_needs_the_same_module():
    with pytest.raises(InputError) as refusal:
        joined(Twisted(), Split("first", None, (5, 8), True))
    assert refusal.value.field == "encoder"


class Fickle(Twisted):
    def forward(self, x):
        return super().forward(x) if len(x) > 3 else x[:, :5]


def test_a_module_that_does_not_come_to_its_layer_is_refused():
    encoder, _ = split_module(Fickle(), inputs())
    with pytest.raises(InputError) as refusal:
        encoder(inputs(2))
    assert refusal.value.field == "encoder"
