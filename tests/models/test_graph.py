import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import surefind as sf
from surefind.models.architecture import build, describe
from surefind.models.backbones import load_backbone, resnet50, with_linear_head
from surefind.models.checkpoint import load_state
from surefind.models.graph import GraphNet, SamePad, graph_of, node, with_pooling
from surefind.novelty.statistics import choose_stages

CONV = {"in_channels": 3, "out_channels": 4, "kernel_size": [3, 3], "stride": [2, 2]}
NODES = [
    node("stem_pad", "same_pad", "images", kernel_size=[3, 3], stride=[2, 2]),
    node("stem", "conv", "stem_pad", **CONV, bias=False),
    node("norm", "batch_norm", "stem", num_features=4, eps=0.01),
    node("stem_relu", "relu6", "norm"),
    node("branch", "conv", "stem_relu", in_channels=4, out_channels=4, kernel_size=3, padding=1),
    node("slopes", "prelu", "branch", num_parameters=4),
    node("total", "add", "slopes", "stem_relu"),
]
ANY = [3, None, None]


class Same(nn.Module):
    """The network of NODES, written by hand."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, images):
        get = self.layers
        x = functional.pad(images, (0, 1, 0, 1))  # even sides
        x = functional.relu6(get["norm"](get["stem"](x)))
        return (get["slopes"](get["branch"](x)) + x).mean(dim=(2, 3))


@pytest.fixture
def folder(tmp_path):
    """A folder with the network and weights that were drawn."""
    net = graph_of({"nodes": with_pooling(NODES, ANY, "mean"), "image_shape": ANY})
    weights = {
        k: torch.rand_like(v) if v.is_floating_point() else v for k, v in net.state_dict().items()
    }
    config = {"model_type": "graph", "image_shape": ANY, "nodes": NODES}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    given = {"size": 9, "crop_size": 8, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    return tmp_path


@pytest.fixture
def images(generator):
    return torch.randn(3, 3, 8, 12, generator=generator)


def test_a_folder_gives_the_network(folder, images):
    before = torch.get_rng_state()
    net = load_backbone(folder, pooling="mean")
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(m.training for m in net.modules())
    assert net.width == 4
    assert net.preprocessing["resize"] == 9
    assert net.preprocessing["crop"] == 8
    assert net.layers["norm"].eps == 0.01
    torch.testing.assert_close(net(images), Same(net.layers)(images))


def test_maps_are_pooled_by_gem_unless_told(folder, images):
    assert torch.equal(load_backbone(folder)(images), load_backbone(folder, pooling="gem")(images))
    net = load_backbone(folder)
    maps = []
    net.layers["total"].register_forward_hook(lambda *found: maps.append(found[2]))
    features = net(images)
    expected = (maps[0].clamp(min=1e-6) ** 3).mean(dim=(2, 3)) ** (1 / 3)
    torch.testing.assert_close(features, expected)


def test_a_saved_pooling_may_be_exchanged(folder, images):
    net = load_backbone(folder)
    with torch.no_grad():
        net.layers["pooling_gem"].p.fill_(2.0)
    config = {"model_type": "graph", **net.recipe}
    (folder / "config.json").write_text(json.dumps(config))
    expected = net(images)
    save_file(net.state_dict(), folder / "model.safetensors")
    assert torch.equal(load_backbone(folder)(images), expected)
    mean = load_backbone(folder, pooling="mean")
    torch.testing.assert_close(mean(images), Same(net.layers)(images))


@pytest.mark.parametrize("channels_last", [False, True])
def test_description_and_weights_rebuild_it_bit_for_bit(folder, images, generator, channels_last):
    encoder = with_linear_head(load_backbone(folder), 5, generator=generator)
    if channels_last:
        encoder.to(memory_format=torch.channels_last)
    again = build(json.loads(json.dumps(describe(encoder))))
    load_state(again, encoder.state_dict())
    assert torch.equal(again(images), encoder(images))
    assert again.backbone.preprocessing == encoder.backbone.preprocessing


def test_novelty_finds_its_stages(folder, images):
    assert choose_stages(load_backbone(folder), images) == ("layers.stem_relu", "layers.slopes")


def test_half_precision_weights_are_read_as_float32(folder):
    net = load_backbone(folder, pooling="mean")
    half = {k: v.half() if v.is_floating_point() else v for k, v in net.state_dict().items()}
    save_file(half, folder / "model.safetensors")
    assert {p.dtype for p in load_backbone(folder).parameters()} == {torch.float32}


@pytest.mark.parametrize("size", [7, 8, 9])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 2, 1), (5, 2, 1), (3, 1, 2), (1, 2, 1)]
)
def test_same_padding_keeps_the_ratio(size, kernel, stride, dilation):
    padded = SamePad([kernel] * 2, [stride] * 2, [dilation] * 2)(torch.ones(1, 1, size, 7))
    out = functional.conv2d(
        padded, torch.ones(1, 1, kernel, kernel), stride=stride, dilation=dilation
    )
    assert out.shape[2:] == (-(-size // stride), -(-7 // stride))
    rows = padded[0, 0].sum(1).nonzero().flatten()
    above, below = int(rows[0]), padded.shape[2] - 1 - int(rows[-1])
    assert below - above in (0, 1)


def test_images_that_do_not_fit_are_refused():
    net = GraphNet([node("flat", "flatten", "images")], [1, 4, 4])
    assert net.width == 16
    with pytest.raises(sf.InputError, match=r"images must be \(n, 1, 4, 4\); got \(2, 1, 4, 5\)"):
        net(torch.zeros(2, 1, 4, 5))
    with pytest.raises(sf.InputError, match=r"got \(2, 16\)"):
        net(torch.zeros(2, 16))
    free = GraphNet(with_pooling(NODES, ANY, "mean"), ANY)
    with pytest.raises(sf.InputError, match=r"images must be \(n, 3, height, width\)"):
        free(torch.zeros(2, 1, 8, 8))


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "at least one node"),
        ([node("a", "teleport", "images")], "node 'a' is of kind 'teleport'; there are conv, "),
        ([node("a", "conv", "images", colour=1)], "'a' .conv. cannot be built"),
        ([node("a", "relu", "b")], "takes 'b', and no node before it"),
        ([node("a", "relu", "images")] * 2, "'a' cannot be a node's name"),
        ([node("a.b", "relu", "images")], "'a.b' cannot be a node's name"),
        ([node("values", "relu", "images")], "'values' cannot be a node's name"),
        (
            [node("a", "linear", "images", in_features=3, out_features=2)],
            "'a' .linear. does not fit",
        ),
        ([node("a", "add", "images")], "'a' .add. does not fit"),
        ([node("a", "relu", "images")], "ends with maps"),
    ],
)
def test_graphs_that_cannot_be_built_are_refused(nodes, message):
    with pytest.raises(sf.InputError, match=message):
        GraphNet(nodes, ANY)


@pytest.mark.parametrize("missing", ["nodes", "image_shape"])
def test_a_configuration_without_its_parts_is_refused(folder, missing):
    config = json.loads((folder / "config.json").read_text())
    del config[missing]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(sf.InputError, match=f"has no {missing}"):
        load_backbone(folder)


def test_weights_that_do_not_fit_are_refused(folder, generator):
    net = load_backbone(folder, pooling="mean")
    weights = net.state_dict()
    del weights["layers.stem.weight"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(sf.InputError, match=r"layers\.stem\.weight is missing"):
        load_backbone(folder)
    (folder / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(sf.InputError, match="cannot be read"):
        load_backbone(folder)


def test_a_graph_is_no_resnet50(folder, generator):
    with pytest.raises(sf.InputError, match="is not a ResNet-50"):
        resnet50(pretrained=folder, generator=generator)
