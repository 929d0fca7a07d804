import pytest
import torch
from torch import nn

import surefind as sf
from surefind.learning.methods.dropout import (
    Dropout,
    dropping,
    joint_samples,
    marginal_samples,
    mask_seeds,
    with_dropout,
)
from surefind.models.encoder import Encoder
from surefind.models.networks import cifar10_net, fashion_mnist_net, small_net


def seeded(seed):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def encoder(generator):
    return with_dropout(small_net(1, 8, 4, generator=generator), 0.3).eval()


@pytest.fixture
def x(generator):
    return torch.rand(6, 1, 8, 8, generator=generator)


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 6)

    def forward(self, x):
        return self.second(self.first(x))


def kinds(encoder):
    return [type(m).__name__ for m in encoder.backbone]


def test_layers_go_between_all_trainable_layers(generator):
    fashion = with_dropout(fashion_mnist_net(generator=generator))
    assert kinds(fashion) == ([
        "Conv2d",
        "ReLU",
        "Dropout",
        "Conv2d",
        "MaxPool2d",
        "ReLU",
        "FlattenPositions",
        "Dropout",
    ])
    assert [m.rate for m in fashion.modules() if isinstance(m, Dropout)] == [0.2, 0.2]
    cifar = with_dropout(cifar10_net(generator=generator))
    assert sum(isinstance(m, Dropout) for m in cifar.modules()) == 3


def test_norm_layers_stay_with_their_layer_and_nested_blocks_are_entered():
    block = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    backbone = nn.Sequential(nn.Flatten(), block, nn.Sequential(nn.ReLU(), nn.Linear(3, 3)))
    new = with_dropout(Encoder(backbone, nn.Linear(3, 2)))
    assert kinds(new) == ["Flatten", "Sequential", "Sequential", "Dropout"]
    assert [type(m).__name__ for m in new.backbone[1]] == ["Linear", "BatchNorm1d"]
    assert [type(m).__name__ for m in new.backbone[2]] == ["ReLU", "Dropout", "Linear"]


def test_the_copy_keeps_names_values_and_modes_and_shares_nothing(generator, x):
    plain = small_net(1, 8, 4, generator=generator)
    plain.backbone[0].eval()
    new = with_dropout(plain)
    a, b = plain.state_dict(), new.state_dict()
    assert list(a) == list(b)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not new.backbone[0].training
    assert all(m.training for m in new.modules() if isinstance(m, Dropout))
    assert torch.equal(new.eval()(x), plain(x))
    with torch.no_grad():
        new.head.weight.zero_()
    assert plain.head.weight.any()


def test_masks_keep_the_mean_and_drop_the_rate(generator):
    layer = Dropout(0.3)
    with dropping(generator):
        y = layer(torch.ones(100, 1000))
    assert float((y == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert y.max().item() == pytest.approx(1 / 0.7)
    assert float(y.mean()) == pytest.approx(1, abs=0.01)


def test_training_masks_differ_by_example_and_call_and_follow_the_seed(encoder, x):
    encoder.train()
    alike = x[:1].expand_as(x)
    with dropping(seeded(1)):
        first, second = encoder(alike), encoder(alike)
    with dropping(seeded(1)):
        again = encoder(alike)
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])


def test_outside_it_evaluation_is_deterministic_and_training_refuses(encoder, x):
    assert torch.equal(encoder(x), encoder(x))
    with pytest.raises(sf.InputError, match="dropout in training mode needs a generator"):
        encoder.train()(x)


def test_the_context_ends_with_an_error(encoder, x, generator):
    with pytest.raises(RuntimeError), dropping(generator):
        raise RuntimeError
    assert torch.equal(encoder(x), encoder(x))


def test_joint_samples_are_whole_sampled_networks(encoder, x):
    seeds = mask_seeds(3, seeded(1))
    samples = joint_samples(encoder, x, seeds)
    assert samples.shape == (3, 6, 4)
    assert not samples.requires_grad
    for seed, sample in zip(seeds, samples, strict=True):
        with dropping(seeded(seed), joint=True):
            torch.testing.assert_close(sample, encoder(x).detach())


def test_equal_inputs_agree_jointly_and_differ_marginally(encoder, x):
    alike = x[:1].expand_as(x)
    joint = joint_samples(encoder, alike, mask_seeds(3, seeded(1)))
    torch.testing.assert_close(joint, joint[:, :1].expand_as(joint))
    assert not torch.allclose(joint[0], joint[1])
    marginal = marginal_samples(encoder, alike, 3, seeded(1))
    assert marginal.shape == (3, 6, 4)
    assert not torch.allclose(marginal[:, 0], marginal[:, 1])


def test_joint_and_marginal_samples_have_the_same_distribution(encoder, x):
    joint = joint_samples(encoder, x, mask_seeds(400, seeded(1))).mean(dim=0)
    marginal = marginal_samples(encoder, x, 400, seeded(2)).mean(dim=0)
    torch.testing.assert_close(joint, marginal, rtol=0, atol=0.1)


def test_what_comes_before_the_first_dropout_runs_once(generator):
    calls = []
    body = Opaque()
    new = with_dropout(Encoder(body, nn.Linear(6, 2))).eval()
    new.backbone[0].register_forward_hook(lambda *_: calls.append(1))
    joint_samples(new, torch.rand(3, 4, generator=generator), [1, 2, 3, 4])
    assert len(calls) == 1


def test_dropout_inside_an_opaque_backbone_is_sampled_too(generator):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout = Dropout(0.5)

        def forward(self, x):
            return self.dropout(x)

    encoder = Encoder(Own(), nn.Linear(20, 3)).eval()
    samples = joint_samples(encoder, torch.rand(2, 20, generator=generator), [1, 2])
    assert not torch.allclose(samples[0], samples[1])


REFUSED = {
    "rate below": lambda e, x, g: Dropout(-0.1),
    "rate one": lambda e, x, g: Dropout(1.0),
    "rate nan": lambda e, x, g: Dropout(float("nan")),
    "twice": lambda e, x, g: with_dropout(e),
    "no sample": lambda e, x, g: mask_seeds(0, g),
    "a negative number": lambda e, x, g: marginal_samples(e, x, -1, g),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_dropped_or_sampled_is_refused(encoder, x, generator, name):
    with pytest.raises(sf.InputError):
        REFUSED[name](encoder, x, generator)
