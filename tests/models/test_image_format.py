import pytest

from surefind.data.inputs import Preprocessing
from surefind.models.backbones import image_format

STATISTICS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.1]}


@pytest.mark.parametrize(
    ("config", "resize", "crop"),
    [
        ({"size": 224, "crop_pct": 0.875}, 256, 224),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, 256, 224),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875}, 384, 384),
        ({"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}, 256, 224),
        ({"size": 224, "crop_size": 224, "do_center_crop": True}, 224, 224),
        ({"size": 256, "crop_size": 224, "do_center_crop": False}, 256, 256),
        ({"size": {"height": 224, "width": 224}}, 224, 224),
    ],
)
def test_each_way_to_write_sizes(config, resize, crop):
    found = image_format(config | STATISTICS)
    assert (found["resize"], found["crop"]) == (resize, crop)
    assert (found["mean"], found["std"]) == ([0.5, 0.4, 0.3], [0.2, 0.2, 0.1])
    assert image_format({"image_processor": config | STATISTICS}) == found
    assert Preprocessing.from_dict(found).to_dict().items() >= found.items()


@pytest.mark.parametrize(("number", "name"), [(2, "bilinear"), (3, "bicubic"), (None, "bicubic")])
def test_interpolation(number, name):
    config = {"size": 8, "resample": number} | STATISTICS
    assert image_format(config)["interpolation"] == name


def test_no_normalisation_is_mean_zero_and_deviation_one():
    found = image_format({"size": 8, "do_normalize": False} | STATISTICS)
    assert (found["mean"], found["std"]) == ([0, 0, 0], [1, 1, 1])


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"size": 224},
        {"size": 224, "image_mean": [0.5] * 3},
        STATISTICS,
        STATISTICS | {"size": {"height": 224, "width": 192}},
        STATISTICS | {"size": {"longest_edge": 224}},
        STATISTICS | {"size": 224, "crop_size": {"height": 1, "width": 2}},
    ],
)
def test_what_is_not_written_down_is_not_guessed(config):
    assert image_format(config) is None
