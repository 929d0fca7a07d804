import pytest
import torch
from torch import nn

import surefind as sf
from surefind.learning.frozen import cut_backbone
from surefind.models.backbones import tower_of
from surefind.models.networks import GeM

RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 12], "depths": [1, 1]}
CONVNEXT = {"model_type": "convnext", "hidden_sizes": [8, 8, 12, 16], "depths": [1, 1, 1, 1]}


def sequential():
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU()]
    return nn.Sequential(*layers, GeM())


def tower(config, pooling):
    """A tower whose weights are drawn by the test's seed, as `transformers` has no generator."""
    net = tower_of({"config": config, "pooling": pooling})
    for values in net.parameters():
        nn.init.normal_(values, std=0.3)
    return net


@pytest.mark.parametrize("above", [0, 1])
@pytest.mark.parametrize("kind", ["sequential", "resnet gem", "resnet mean", "convnext mean"])
def test_both_parts_together_are_the_network(kind, above, generator):
    name, _, pooling = kind.partition(" ")
    configs = {"resnet": RESNET, "convnext": CONVNEXT}
    net = tower(configs[name], pooling) if pooling else sequential()
    net.eval()
    images = torch.rand(2, 3, 64, 64, generator=generator)
    cut = cut_backbone(net, above)
    with torch.no_grad():
        torch.testing.assert_close(cut.above(cut.below(images)), net(images))
    for names, part in ((cut.names_below, cut.below), (cut.names_above, cut.above)):
        for whole, there in names.items():
            assert net.get_submodule(whole) is part.get_submodule(there)
    weights = [p for part in (cut.below, cut.above) for p in part.parameters()]
    assert {id(p) for p in weights} == {id(p) for p in net.parameters()}


def test_a_norm_and_a_pooling_belong_to_the_layer_before_them():
    cut = cut_backbone(sequential(), 1)
    assert [n for n, _ in cut.below.named_children()] == ["0", "1", "2"]
    assert [n for n, _ in cut.above.named_children()] == ["3", "4", "5"]


def test_too_many_stages_and_networks_without_any_are_refused():
    vit = {"model_type": "dinov2", "hidden_size": 8, "num_hidden_layers": 2, "image_size": 28}
    vit |= {"num_attention_heads": 2, "patch_size": 14}
    wrong = [
        (sequential(), 2),
        (tower(RESNET, "gem"), 2),
        (tower(vit, "cls"), 1),
        (nn.Conv2d(3, 4, 3), 1),
        (sequential(), -1),
    ]
    for net, above in wrong:
        with pytest.raises(sf.InputError) as refusal:
            cut_backbone(net, above)
        assert refusal.value.field == "trained_stages" or above < 0
    net = nn.Conv2d(3, 4, 3)
    assert cut_backbone(net, 0).below is net
