import subprocess
import sys

import pytest

from surefind.learning.methods import METHODS as CLASSES
from surefind.paper.vocabulary import (
    ABLATION,
    DATASETS,
    DISTANCE_BASELINES,
    METHODS,
    ablation_parts,
    base_set,
    dataset_title,
    kind_of,
    method_order,
    method_title,
    metric_of,
)


def test_names_are_those_of_the_library():
    assert list(METHODS) == [*CLASSES, "layers"]


def test_every_name_has_a_kind_and_a_place():
    names = [*METHODS, "mine", *DISTANCE_BASELINES, *ABLATION]
    assert sorted(set(names), key=method_order) == names
    assert kind_of("mine") == kind_of("pfe") == "method"
    assert kind_of("margin") == "baseline"
    assert {kind_of(name) for name in ABLATION} == {"ablation"}
    assert len(ABLATION) == 12
    assert ablation_parts(ABLATION[0]) == ("post-hoc", "euclidean", "fixed")
    assert ablation_parts(ABLATION[-1]) == ("online", "arccos", "full")


@pytest.mark.parametrize(
    ("name", "base", "title"),
    [
        ("cifar10-paper", "cifar10", "CIFAR10, the paper's recipe"),
        ("cifar10-released", "cifar10", "CIFAR10, the recipe with its code's learning rate"),
        ("cub200-frozen-resnet50", "cub200", "CUB200, frozen resnet50"),
        ("cub200-last1-resnet50", "cub200", "CUB200, last stage of resnet50 trained"),
        ("lfw-last2-mobilefacenet", "lfw", "LFW, last 2 stages of mobilefacenet trained"),
        (
            "gardens-point-left-frozen-efficientnet-lite0",
            "gardens-point-left",
            "Gardens Point, left, frozen efficientnet-lite0",
        ),
        ("cub200", "cub200", "CUB200"),
        ("noise", "noise", "Noise"),
        ("paper", "paper", "paper"),
        ("mine-frozen-resnet50", "mine-frozen-resnet50", "mine-frozen-resnet50"),
        ("cub200-last0-resnet50", "cub200-last0-resnet50", "cub200-last0-resnet50"),
        ("cub200-frozen-", "cub200-frozen-", "cub200-frozen-"),
    ],
)
def test_a_protocol_of_another_name_is_named_after_its_set(name, base, title):
    assert (base_set(name), dataset_title(name)) == (base, title)


def test_every_set_is_its_own_base():
    assert [base_set(name) for name in DATASETS] == list(DATASETS)


def test_what_is_not_known_keeps_its_name():
    assert method_title("mine") == "mine"
    assert (metric_of("zeal").title, metric_of("zeal").better) == ("zeal", "")


def test_names_are_read_without_pytorch():
    code = "import sys, surefind.paper.vocabulary; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
