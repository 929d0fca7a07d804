from dataclasses import replace

import numpy as np
import pytest
import torch

import surefind as sf
from surefind.evaluation.bench import PROTOCOLS, protocols
from surefind.evaluation.bench.protocols import identity_net, shrunk_ink


@pytest.mark.parametrize(
    ("name", "ood", "numbers"),
    [
        ("fashion-mnist", ["mnist", "test"], (0.7, 6, 6, 64, 64, 1e-3, 0.68)),
        ("cifar10", ["svhn", "test"], (0.7, 20, 20, 64, 64, 1e-3)),
        ("digits", ["digits", "ood"], (0.7, 10, 10, 64, 64, 1e-3)),
    ],
)
def test_cells_that_are_kept_stay_valid(name, ood, numbers):
    keys = ["margin", "epochs", "online_epochs", "batch_size", "online_batch_size", "learning_rate"]
    told = {"ood": ood} | dict(zip([*keys, "decay"], numbers, strict=False))
    loss = "Contrastive(margin=0.7, negative_weight=0.5, negatives='inside', mining=None, max_pairs=5000)"
    channels = {"augment": True, "channels": [[0.491, 0.482, 0.447], [0.247, 0.243, 0.262]]}
    told |= channels if name == "cifar10" else {}
    assert PROTOCOLS[name].settings() == told | {"loss": loss}


def test_settings_that_differ_from_the_default_are_told():
    told = replace(PROTOCOLS["lfw"], backbone="resnet-50").settings()
    assert told["examples_per_class"] == 2
    assert told["validation"] == "class"
    assert told["backbone"] == "resnet-50"
    assert "gallery" not in told
    assert PROTOCOLS["msls"].settings()["gallery"] == "database"


def test_every_protocol_is_described():
    for name in PROTOCOLS:
        assert f"| {name} |" in protocols.__doc__


def test_a_linear_layer_that_starts_as_the_identity(normal):
    encoder = identity_net(6)
    x = normal(5, 6).float()
    torch.testing.assert_close(encoder(x), torch.nn.functional.normalize(x, dim=1))
    assert [p.requires_grad for p in encoder.parameters()] == [True, True]


def test_drawings_shrink_by_area_to_bright_ink():
    white = np.full((3, 56, 56), 255, dtype=np.uint8)
    white[1, :4, :2] = 0  # two of the small pixels, one above the other
    white[2] = 0
    small = shrunk_ink(sf.Dataset(white, [0, 1, 2], name="drawings"))
    assert small.inputs.shape == (3, 28, 28)
    assert small.inputs.dtype == torch.uint8
    assert small.inputs[0].max() == 0
    assert small.inputs[1].sum() == 2 * 255
    assert small.inputs[1][1, 0] == 255
    assert small.inputs[2].min() == 255
    assert small.labels.tolist() == [0, 1, 2]
