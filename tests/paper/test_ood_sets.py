import numpy as np
import pytest
import torch
from PIL import Image

import surefind as sf
from surefind.data.images import ImageFiles
from surefind.data.sources import load_digits
from surefind.paper import ood_sets
from surefind.paper.ood_sets import OodSet, like_images, load_ood_sets, noise_like, shrunk_ink
from surefind.paper.protocols import PROTOCOLS, load_problem
from surefind.paper.vocabulary import NOISE

DIGITS = OodSet("digits", "ood")


@pytest.fixture
def grey():
    return load_digits().test


def coloured(n=6, side=5):
    rng = np.random.default_rng(0)
    return sf.Dataset(rng.integers(0, 256, (n, 3, side, side), dtype=np.uint8), name="photos")


def test_the_papers_set_comes_first_and_only_cifar100_is_near():
    first = {"fashion-mnist": "mnist", "cifar10": "svhn"}
    for name, protocol in PROTOCOLS.items():
        kinds = {s.name: s.kind for s in protocol.ood}
        assert len(kinds) == len(protocol.ood)
        assert [s for s, kind in kinds.items() if kind == "near"] == (
            ["cifar100"] if name == "cifar10" else []
        )
        if name in first:
            assert protocol.ood[0][:2] == (first[name], "test")
            assert len(protocol.ood) >= 5


def test_the_digits_are_also_asked_about_noise():
    problem = load_problem("digits")
    assert list(problem.ood_parts) == ["digits", NOISE]
    assert problem.ood_parts["digits"] is problem.ood
    assert problem.more_ood[NOISE].inputs.shape == (3000, 8, 8)
    assert problem.ood_kind(NOISE) == "far"
    assert problem.examples == {"train": 1078, "test": 599, "ood": 500}


def test_colours_turn_grey_and_sizes_become_the_tests(grey):
    photos = coloured()
    made = like_images(photos, grey)
    assert made.inputs.shape == (6, 8, 8)
    assert made.inputs.dtype == torch.uint8
    flat = sf.Dataset(np.full((2, 3, 5, 5), 1, np.uint8) * np.uint8([200, 100, 50])[:, None, None])
    assert set(like_images(flat, grey).inputs.unique().tolist()) == {
        round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    }


def test_grey_images_have_the_same_value_in_each_channel():
    digits = load_digits().test[:4]
    made = like_images(digits, coloured(side=16))
    assert made.inputs.shape == (4, 3, 16, 16)
    assert torch.equal(made.inputs[:, 0], made.inputs[:, 2])
    same = like_images(digits, sf.Dataset(np.zeros((1, 3, 8, 8), np.uint8)))
    np.testing.assert_array_equal(same.inputs[:, 1], digits.inputs)
    assert same.labels.tolist() == digits.labels.tolist()


def test_files_are_read_in_the_form_of_the_test_data(tmp_path, grey):
    Image.fromarray(np.full((20, 30, 3), 90, np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(np.full((9, 9, 3), 30, np.uint8)).save(tmp_path / "b.png")
    files = sf.Dataset(ImageFiles([tmp_path / "a.png", tmp_path / "b.png"]))
    made = like_images(files, grey)
    assert made.inputs.shape == (2, 8, 8)
    assert made.inputs.amin((1, 2)).tolist() == made.inputs.amax((1, 2)).tolist() == [90, 30]


def test_drawings_have_bright_ink(grey):
    drawings = np.full((2, 105, 105), 255, np.uint8)
    drawings[1, 40:60] = 0
    made = like_images(sf.Dataset(drawings, name="Omniglot"), grey, drawn="omniglot").inputs
    assert made[0].max() == 0
    assert made[1, 0].max() == 0
    assert made[1, 3].min() > 100
    assert shrunk_ink(sf.Dataset(drawings)).inputs.shape == (2, 28, 28)


@pytest.mark.parametrize("shape", [(8, 8), (3, 12, 12)])
def test_noise_is_of_three_kinds_and_the_same_each_time(shape):
    like = sf.Dataset(np.zeros((2, *shape), np.uint8))
    noise = noise_like(like, 300)
    assert noise.inputs.shape == (300, *shape)
    assert torch.equal(noise.inputs, noise_like(like, 300).inputs)
    uniform, gaussian, smooth = noise.inputs.float().split(100)
    assert uniform.std() == pytest.approx(255 / np.sqrt(12), rel=0.05)
    assert gaussian.std() == pytest.approx(0.25 * 255, rel=0.1)
    assert gaussian.mean() == pytest.approx(127.5, rel=0.05)
    step = lambda x: float((x[..., 1:] - x[..., :-1]).abs().mean())
    assert step(smooth) < 0.5 * min(step(uniform), step(gaussian))


def test_what_is_not_on_the_disk_is_left_out_with_what_to_do(grey, tmp_path):
    sets = (DIGITS, OodSet("cifar100", "test", "near"), OodSet(NOISE, "all"))
    found = load_ood_sets(sets, grey, tmp_path)
    assert len(found.first) == 500
    assert list(found.more) == [NOISE]
    assert len(found.notes) == 1
    assert "github.com/cyizhuo/CIFAR-100-dataset" in found.notes[0]
    assert str(tmp_path / "cifar100") in found.notes[0]
    other = load_ood_sets((OodSet("mnist", "test"), DIGITS), grey, tmp_path)
    assert other.first is None
    assert list(other.more) == ["digits"]
    assert other.more["digits"].inputs.shape == (500, 8, 8)
    assert "no part" in load_ood_sets((OodSet("digits", "all"), DIGITS), grey).notes[0]


def test_no_set_of_files_at_all_is_refused(grey, tmp_path):
    sets = (OodSet("mnist", "test"), OodSet("lfw", "test"), OodSet(NOISE, "all"))
    with pytest.raises(sf.InputError, match="MNIST") as refused:
        load_ood_sets(sets, grey, tmp_path)
    assert refused.value.field == "folder"
    assert load_ood_sets((), grey).first is None


def test_what_has_no_form_of_images_is_refused():
    features = sf.Dataset(torch.rand(4, 6), name="features")
    for make in (lambda: noise_like(features), lambda: like_images(coloured(), features)):
        with pytest.raises(sf.InputError, match="features has none"):
            make()


def test_images_are_resized_in_blocks(grey, monkeypatch):
    photos = coloured(9)
    whole = like_images(photos, grey).inputs
    monkeypatch.setattr(ood_sets, "BLOCK", 2)
    assert torch.equal(like_images(photos, grey).inputs, whole)
