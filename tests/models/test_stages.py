import threading
from itertools import pairwise

import oracles
import pytest
import small_learners
import torch
import transformers
from torch import nn

import surefind as sf
from surefind.models import layers as module
from surefind.models.backbones import tower_of
from surefind.models.layers import (
    HEAD,
    MOST,
    OUTPUT,
    Layers,
    StageWatch,
    choose_stages,
    encoder_places,
)
from surefind.models.networks import cifar10_net, fashion_mnist_net
from surefind.models.vectors import UnitRows

VIT = {
    "hidden_size": 16,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 16,
    "intermediate_size": 32,
}
DINO = {k: v for k, v in VIT.items() if k != "intermediate_size"}
RESNET = {"embedding_size": 8, "hidden_sizes": [16, 16, 24, 32], "depths": [2, 1, 3, 2]}
CONVNEXT = {"hidden_sizes": [8, 8, 8, 20], "depths": [1, 2, 3, 1], "num_stages": 4}


@pytest.fixture(scope="module", autouse=True)
def quiet():
    transformers.utils.logging.set_verbosity_error()


def tower(kind, **config):
    return tower_of({"config": {"model_type": kind, **config}, "pooling": "auto"})


class Block(nn.Module):
    """A residual block as torchvision has it: one ReLU, run more than once."""

    def __init__(self, inputs, outputs, stride, narrow):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs // narrow, 3, stride, 1)
        self.bn1 = nn.BatchNorm2d(outputs // narrow)
        self.conv2 = nn.Conv2d(outputs // narrow, outputs, 3, 1, 1)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and inputs == outputs
        self.downsample = None if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride))

    def forward(self, x):
        out = self.conv2(self.relu(self.bn1(self.conv1(x))))
        return self.relu(out + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, widths=(8, 16, 24, 32), narrow=1):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 2, 1)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(2)
        before = 8
        for i, width in enumerate(widths, 1):
            blocks = (
                Block(before, width, 1 if i == 1 else 2, narrow),
                Block(width, width, 1, narrow),
            )
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
            before = width

    def forward(self, x):
        x = self.maxpool(self.relu(self.conv1(x)))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


class Attention(nn.Module):
    """A transformer's layer with its GELU as a module: shapes change inside."""

    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        x = x + self.attention(x, x, x)[0]
        return x + self.mlp(x)


class Functional(nn.Module):
    """Activations as functions."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)

    def forward(self, x):
        return self.conv2(self.conv1(x).relu()).relu().flatten(1)


class OneActivation(Functional):
    """One module for all activations."""

    def __init__(self):
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.relu(self.conv2(self.relu(self.conv1(x)))).flatten(1)


def convolutions(*widths, pool_after=()):
    layers, before = [], 1
    for width in widths:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
        if width in pool_after:
            layers.append(nn.MaxPool2d(2))
        before = width
    return nn.Sequential(*layers, nn.Flatten())


def multilayer(*widths):
    pairs = pairwise(widths)
    return nn.Sequential(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())))


GENERATOR = torch.Generator().manual_seed(0)
CASES = {
    "small": (small_learners.encoder().backbone, (1, 8, 8), ["1", "4"]),
    "fashion": (fashion_mnist_net(generator=GENERATOR).backbone, (1, 28, 28), ["1", "4"]),
    "cifar": (cifar10_net(generator=GENERATOR).backbone, (3, 32, 32), ["2", "5", "7"]),
    "two shapes": (convolutions(4, 4, 8, pool_after=(8,)), (1, 8, 8), ["1", "3", "5"]),
    "one shape": (convolutions(*[4] * 9), (1, 8, 8), ["3", "5", "7", "11", "15", "17"]),
    "mlp": (multilayer(6, 8, 7, 5), (6,), ["1", "3", "5"]),
    "even mlp": (multilayer(6, 8, 8, 8), (6,), ["1", "3", "5"]),
    "user resnet": (ResNet(), (3, 64, 64), ["relu", *(f"layer{i}.1" for i in (1, 2, 3, 4))]),
    "user bottlenecks": (
        ResNet(narrow=4),
        (3, 64, 64),
        ["relu", *(f"layer{i}.1" for i in (1, 2, 3, 4))],
    ),
    "user transformer": (
        nn.Sequential(nn.Linear(5, 8), *(Attention() for _ in range(7))),
        (9, 5),
        ["1", "2", "4", "5", "6", "7"],
    ),
    "functional": (Functional(), (1, 8, 8), ["conv1", "conv2"]),
    "one activation": (OneActivation(), (1, 8, 8), ["conv1", "conv2"]),
    "identity": (nn.Identity(), (6,), []),
    "unit rows": (UnitRows(), (6,), []),
    "flatten": (nn.Sequential(nn.Flatten()), (1, 8, 8), []),
}


@pytest.mark.parametrize("name", CASES)
def test_stages_of_networks(name):
    network, shape, expected = CASES[name]
    assert list(choose_stages(network.eval(), torch.rand(2, *shape))) == expected


@pytest.mark.parametrize("layer_type", ["basic", "bottleneck"])
def test_stages_of_a_resnet_are_its_residual_stages(layer_type):
    network = tower("resnet", **RESNET, layer_type=layer_type)
    chosen = choose_stages(network, torch.rand(2, 3, 64, 64))
    stages = [f"model.encoder.stages.{i}" for i in range(4)]
    assert list(chosen) == ["model.embedder.embedder", *stages]


@pytest.mark.parametrize("kind", ["convnext", "convnextv2"])
def test_stages_of_a_convnext_are_its_own(kind):
    chosen = choose_stages(tower(kind, **CONVNEXT), torch.rand(2, 3, 64, 64))
    assert list(chosen) == [f"model.encoder.stages.{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("kind", "config", "where"),
    [
        ("dinov2", DINO, "model.encoder.layer"),
        ("dinov2_with_registers", DINO, "model.encoder.layer"),
        ("clip_vision_model", {**VIT, "projection_dim": 12}, "model.vision_model.encoder.layers"),
        ("siglip_vision_model", VIT, "model.encoder.layers"),
    ],
)
@pytest.mark.parametrize(
    ("layers", "places"), [(2, [0, 1]), (6, [0, 1, 2, 3, 4, 5]), (12, [1, 3, 5, 7, 9, 11])]
)
def test_stages_of_a_transformer_are_blocks_evenly_spaced(kind, config, where, layers, places):
    network = tower(kind, **config, num_hidden_layers=layers)
    chosen = choose_stages(network, torch.rand(2, 3, 32, 32))
    assert list(chosen) == [f"{where}.{i}" for i in places]
    with StageWatch(network, Layers(chosen)).watching() as watch:
        network(torch.rand(3, 3, 32, 32))
    assert [tuple(x.shape) for x in watch.take(3)] == [(3, 32)] * len(places)


@pytest.mark.parametrize("parts", [0, 2, 4])
@pytest.mark.parametrize("deviations", [True, False])
def test_statistics_are_means_deviations_and_parts(normal, parts, deviations):
    if parts and not deviations:
        return  # no budget asks for it
    for shape in [(3, 5, 4, 6), (3, 3, 9, 11), (3, 7, 5), (3, 8), (2, 3, 3, 3), (2, 1, 1)]:
        output = normal(*shape).float()
        torch.testing.assert_close(
            Layers(("x",), parts, deviations).statistics(output).double(),
            oracles.stage_statistics_oracle(output, parts=parts, deviations=deviations),
            atol=1e-3 if 1 in shape[1:] else 1e-5,
            rtol=1e-4,
        )


def test_statistics_of_large_outputs_are_of_some_channels_on_a_grid(normal):
    maps = normal(2, 130, 33, 16).float()
    expected = oracles.stage_statistics_oracle(
        maps, range(0, 130, 3), (list(range(0, 33, 3)), list(range(16))), deviations=False
    )
    found = Layers(("x",), 0, False, 3).statistics(maps)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)
    tokens = normal(2, 257, 65).float()
    expected = oracles.stage_statistics_oracle(tokens, range(0, 65, 2), list(range(0, 257, 2)))
    found = Layers(("x",), thinning=2).statistics(tokens)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-4)
    vectors = normal(2, 600).float()
    torch.testing.assert_close(Layers(("x",), thinning=3).statistics(vectors), vectors[:, ::3])
    torch.testing.assert_close(Layers(("x",), thinning=3).statistics(vectors, OUTPUT), vectors)


@pytest.mark.parametrize(
    ("name", "expected", "count"),
    [
        ("fashion", (4, True, 1), 96 * 18),
        ("cifar", (2, True, 1), 160 * 6),
        ("user resnet", (4, True, 1), 56 * 18 + 32 * 2),
        ("user transformer", (4, True, 1), 6 * 8 * 2),
        ("mlp", (4, True, 1), 20),
        ("wide", (0, False, 3), -(-3000 // 3) + -(-2500 // 3)),
    ],
)
def test_a_budget_decides_what_is_kept(name, expected, count):
    wide = nn.Sequential(
        nn.Conv2d(1, 3000, 1), nn.ReLU(), nn.Conv2d(3000, 2500, 2), nn.ReLU(), nn.Flatten()
    )
    network, shape, _ = {**CASES, "wide": (wide, (1, 4, 4), None)}[name]
    inputs = torch.rand(2, *shape)
    layers = Layers.of(network.eval(), inputs, output=True)
    assert (layers.parts, layers.deviations, layers.thinning) == expected
    with torch.no_grad(), StageWatch(network, layers).watching() as watch:
        network(inputs)
    *stages, output = watch.take(2)
    assert sum(x.shape[1] for x in stages) == count <= MOST
    assert output.shape[1] <= 2 * MOST
    assert layers.names[-1] == OUTPUT
    if layers.parts:  # a stage's last numbers are of the grid
        assert len(layers.of_parts) == len(stages)
        assert sum(layers.of_parts) <= count


def test_what_comes_last_is_the_output():
    assert Layers.of(nn.Identity(), torch.rand(2, 6), output=False).names == (OUTPUT,)
    network = nn.Sequential(nn.Linear(6, 2))
    assert Layers.of(network, torch.rand(2, 6), ["0"], output=False).names == ("0", HEAD)
    assert Layers.of(network, torch.rand(2, 6), ["0"], output=True).names == ("0", OUTPUT)
    assert encoder_places(["0", OUTPUT, HEAD]) == ["backbone.0", "backbone", "head"]


def test_watching_gives_what_hooks_by_hand_give(normal):
    network = ResNet().eval()
    stages = ["relu", "layer2.1", "layer4"]
    images = normal(3, 3, 12, 12).float()
    by_hand, hooks = {}, []
    for name in stages:
        keep = lambda _m, _x, y, name=name: by_hand.__setitem__(name, y.clone())
        hooks.append(network.get_submodule(name).register_forward_hook(keep))
    with torch.no_grad():
        network(images)
    for hook in hooks:
        hook.remove()
    with torch.no_grad(), StageWatch(network, Layers(tuple(stages))).watching() as watch:
        network(images)
    for found, name in zip(watch.take(3), stages, strict=True):
        expected = oracles.stage_statistics_oracle(by_hand[name])
        torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-3)


def test_a_relu_that_works_in_place_is_seen_after_it(normal):
    conv = nn.Conv2d(1, 3, 3)
    network = nn.Sequential(conv, nn.ReLU(inplace=True), nn.Flatten())
    images = normal(2, 1, 6, 6).float()
    with torch.no_grad(), StageWatch(network, Layers(("1",))).watching() as watch:
        network(images)
    expected = oracles.stage_statistics_oracle(conv(images).relu().detach())
    torch.testing.assert_close(watch.take(2)[0].double(), expected, atol=1e-5, rtol=1e-4)


def test_half_precision_is_summed_in_single(normal):
    output = (normal(2, 3, 12, 12) + 100).half()
    found = Layers(("x",)).statistics(output)
    assert found.dtype == torch.float32
    expected = oracles.stage_statistics_oracle(output)
    torch.testing.assert_close(found.double(), expected, rtol=1e-2, atol=0)


def hooks_of(network):
    return sum(len(m._forward_hooks) for m in network.modules())


def state_of(network):
    return {k: v.clone() for k, v in network.state_dict().items()}


def test_the_network_is_left_as_it_was():
    network = ResNet().eval()
    before = state_of(network)
    stages = choose_stages(network, torch.rand(2, 3, 32, 32))
    with StageWatch(network, Layers(stages)).watching():
        assert hooks_of(network) == len(stages)
        network(torch.rand(2, 3, 32, 32))
    assert hooks_of(network) == 0
    assert small_learners.tensors_equal(before, state_of(network))
    assert not any(p.grad is not None for p in network.parameters())


def test_hooks_go_also_when_something_breaks():
    network = convolutions(4, 8)
    with pytest.raises(RuntimeError):
        choose_stages(network, torch.rand(2, 3, 8, 8))
    assert hooks_of(network) == 0

    def broken():
        with StageWatch(network, Layers(("1",))).watching():
            network(torch.rand(2, 3, 8, 8))

    with pytest.raises(RuntimeError):
        broken()
    assert hooks_of(network) == 0


def test_unknown_names_are_refused():
    with pytest.raises(sf.InputError) as refused:
        StageWatch(convolutions(4), Layers(("1", "layer9")))
    assert refused.value.field == "stages"


class Skips(nn.Module):
    """Runs one of two layers, and one that mixes the rows."""

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.mixed = nn.Linear(3, 3), nn.Linear(3, 3), nn.Identity()

    def forward(self, x):
        return self.used(x) + self.mixed(x.reshape(1, -1)).sum()


@pytest.mark.parametrize("stage", ["unused", "mixed"])
def test_stages_that_no_input_passes_are_refused(stage):
    network = Skips()
    with StageWatch(network, Layers(("used", stage))).watching() as watch:
        network(torch.rand(4, 3))
    with pytest.raises(sf.InputError) as refused:
        watch.take(4)
    assert refused.value.field == "stages"


def test_outputs_that_are_no_maps_are_refused(normal):
    network = nn.Sequential(nn.Conv3d(1, 2, 1), nn.Flatten())
    with StageWatch(network, Layers(("0",))).watching() as watch:
        network(normal(2, 1, 3, 3, 3).float())
    with pytest.raises(sf.InputError) as refused:
        watch.take(2)
    assert refused.value.field == "stages"


def test_a_pass_in_another_thread_is_not_looked_at():
    network = convolutions(4)
    mine, others = torch.zeros(2, 1, 8, 8), torch.ones(5, 1, 8, 8)
    with torch.no_grad(), StageWatch(network, Layers(("1",))).watching() as watch:
        network(mine)
        expected = watch.take(2)[0].clone()
        thread = threading.Thread(target=network, args=(others,))
        thread.start()
        thread.join()
        assert torch.equal(watch.take(2)[0], expected)


@pytest.mark.parametrize(
    "output", [torch.rand(2), [torch.arange(2), torch.rand(2)], {"a": torch.rand(2)}]
)
def test_the_first_numbers_of_an_answer_are_taken(output):
    assert module.first_tensor(output) is not None
    assert module.first_tensor([torch.arange(2), None]) is None
