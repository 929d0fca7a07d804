from dataclasses import replace

import numpy as np
import pytest
import torch

import surefind as sf
from surefind.learning.seeds import seeded
from surefind.paper import protocols
from surefind.paper.ood_sets import OodSet
from surefind.paper.protocols import PROTOCOLS, load_problem, on_backbone, shrunk_ink
from surefind.paper.results import read_result
from surefind.paper.running import run_problem
from surefind.paper.vocabulary import BENCHMARKS


@pytest.mark.parametrize(
    ("name", "ood", "numbers"),
    [
        ("fashion-mnist", ["mnist", "test"], (0.7, 6, 6, 64, 64, 1e-3, 0.68)),
        ("cifar10", ["svhn", "test"], (0.7, 20, 20, 64, 64, 1e-3)),
        ("digits", ["digits", "ood"], (0.7, 10, 10, 64, 64, 1e-3)),
    ],
)
def test_results_that_are_kept_stay_comparable(name, ood, numbers):
    keys = ["margin", "epochs", "online_epochs", "batch_size", "online_batch_size", "learning_rate"]
    recorded = {"ood": ood} | dict(zip([*keys, "decay"], numbers, strict=False))
    loss = "Contrastive(margin=0.7, negative_weight=0.5, negatives='inside', mining=None, max_pairs=5000)"
    channels = {"augment": True, "channels": [[0.491, 0.482, 0.447], [0.247, 0.243, 0.262]]}
    recorded |= channels if name == "cifar10" else {}
    assert PROTOCOLS[name].settings() == recorded | {"loss": loss}


def test_settings_that_differ_from_the_default_are_recorded():
    recorded = replace(PROTOCOLS["lfw"], backbone="resnet-50").settings()
    assert recorded["examples_per_class"] == 2
    assert recorded["validation"] == "class"
    assert recorded["backbone"] == "resnet-50"
    assert "gallery" not in recorded
    assert PROTOCOLS["msls"].settings()["gallery"] == "database"


def test_every_protocol_is_named_and_described():
    assert set(PROTOCOLS) == set(BENCHMARKS)
    for name in PROTOCOLS:
        assert f"| {name} |" in protocols.__doc__


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


@pytest.fixture
def cities(tmp_path, folders):
    """MSLS of two cities: images of one place have one colour."""
    for city in ("cph", "oslo"):
        for side in ("query", "database"):
            images = folders(f"msls/train_val/{city}/{side}/images", range(6), images=2)
            rows = []
            for path in sorted(images.glob("*/*.png")):
                key = f"{path.parent.name}-{path.stem}"
                path.rename(images / f"{key}.jpg")
                rows.append(f"{len(rows)},{key},{100 * int(path.parent.name[5:])},0")
            header = ",key,easting,northing\n"
            (images.parent / "postprocessed.csv").write_text(header + "\n".join(rows))
    return tmp_path


def test_omniglot_is_shrunk_and_divided_by_class(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(30), 3)
    ink = rng.integers(0, 2, (90, 105, 105), dtype=np.uint8)
    (tmp_path / "omniglot").mkdir()
    np.savez(
        tmp_path / "omniglot" / "omniglot.npz",
        images_packed=np.packbits(ink, axis=2),
        label=label,
        drawer=np.tile([1, 2, 3], 30),
        split=(label >= 20).astype(np.int8),
        class_names=np.array([f"a/{i}" for i in range(30)]),
    )
    monkeypatch.setitem(
        PROTOCOLS, "omniglot", replace(PROTOCOLS["omniglot"], ood=(OodSet("digits", "ood"),))
    )
    problem = load_problem("omniglot", tmp_path)
    assert problem.examples == {"train": 54, "test": 30, "ood": 500}
    assert problem.test.inputs.shape == (30, 28, 28)
    assert problem.build(seeded(0))(problem.test.read(slice(0, 2))).shape == (2, 64)


def test_places_need_a_backbone_and_say_which(cities, backbone, tmp_path):
    with pytest.raises(sf.InputError, match="backbone"):
        load_problem("msls", cities)
    problem = load_problem("msls", cities, backbone=backbone)
    assert problem.examples == {"train": 24, "test": 12, "gallery": 12}
    assert problem.protocol.settings()["backbone"] == "tiny-resnet"
    assert not problem.preprocessing.flip
    short = replace(problem, protocol=replace(problem.protocol, epochs=1, ece_samples=2))
    results = tmp_path / "r"
    run_problem(short, ["laplace-posthoc"], [0], results=results, work=tmp_path / "w")
    result = read_result(results / "msls" / "laplace-posthoc-seed0.json")
    assert result.protocol["ood"] is None
    assert set(result.corruptions) == {"blur", "noise", "occlusion"}
    assert {"recall@1", "ausc"} <= set(result.values)


def test_training_images_of_fine_grained_sets_are_augmented(backbone):
    build, wanted = on_backbone(backbone, augment=True)
    assert wanted.flip
    assert wanted.random_area == (0.08, 1.0)
    assert (wanted.resize, wanted.crop, wanted.mean) == (16, 16, (0.5, 0.5, 0.5))
    assert build(seeded(0)).head.weight.shape == (8, 8)
    (backbone / "preprocessor_config.json").unlink()
    _, wanted = on_backbone(backbone, augment=False)
    assert wanted.crop == 224
    assert not wanted.flip


def test_a_set_with_a_network_of_its_own_takes_no_backbone(backbone):
    with pytest.raises(sf.InputError, match="backbone"):
        load_problem("digits", backbone=backbone)


def test_what_cannot_be_benchmarked_is_refused(tiny):
    train, test = tiny.train, tiny.test
    with pytest.raises(sf.DegenerateError, match="1 class"):
        replace(tiny, train=train[train.labels == 1])
    one_each = sf.Dataset(torch.rand(5, 4), torch.arange(5), name="pets")
    with pytest.raises(sf.DegenerateError, match="pets"):
        replace(tiny, train=one_each)
    with pytest.raises(sf.InputError, match="11 examples"):
        replace(tiny, test=test[:5])
    with pytest.raises(sf.InputError, match="noise is empty"):
        replace(tiny, ood=tiny.ood[:0])
