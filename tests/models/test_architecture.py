import json

import pytest
import torch
from torch import nn

from surefind.models.encoder import Encoder
from surefind.models.networks import GeM
from surefind.models.saving import build, describe, load_state

BACKBONES = {
    "circular convolution": [nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten()],
    "average pooling": [nn.AvgPool2d(3, 2, padding=1, count_include_pad=False), nn.Flatten()],
    "dilated pooling": [nn.MaxPool2d(2, 1, dilation=2, ceil_mode=True), nn.Flatten()],
    "generalised mean": [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), GeM(2.0, eps=0.1)],
    "tanh gelu": [nn.Flatten(), nn.Linear(64, 7, bias=False), nn.GELU(approximate="tanh")],
    "layer norm": [nn.Flatten(), nn.LayerNorm(64, eps=0.1, elementwise_affine=False)],
    "nested": [
        nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.SiLU()),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ],
}


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_a_network_rebuilt_from_its_description_is_the_same_network(name, channels_last, generator):
    backbone = nn.Sequential(*BACKBONES[name])
    x = torch.rand(3, 1, 8, 8, generator=generator)
    with torch.no_grad():
        width = backbone(x).shape[1]
    encoder = Encoder(backbone, nn.Linear(width, 4)).eval()
    if channels_last:
        encoder.to(memory_format=torch.channels_last)
    again = build(json.loads(json.dumps(describe(encoder))))
    load_state(again, encoder.state_dict())
    with torch.no_grad():
        assert torch.equal(again(x), encoder(x))


def test_what_cannot_be_described_is_not():
    class Odd(nn.Module):
        pass

    assert describe(Encoder(Odd(), nn.Linear(3, 2))) is None
    assert describe(Encoder(nn.Sequential(nn.Flatten(), Odd()), nn.Linear(3, 2))) is None


def test_an_unknown_layer_is_refused():
    description = describe(Encoder(nn.Identity(), nn.Linear(3, 2)))
    description["backbone"] = {"layer": "Teleport", "arguments": {}}
    with pytest.raises(ValueError, match="layer 'Teleport' that this version does not know"):
        build(description)
