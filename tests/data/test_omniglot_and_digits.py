import numpy as np
import pytest
import torch
from PIL import Image

import surefind as sf
from surefind.data.digits import load_digits
from surefind.data.omniglot import load_omniglot

CLASSES = np.array(["Greek/character01", "Greek/character02", "Tifinagh/character01"])


@pytest.fixture
def drawings(rng):
    return {
        "ink": rng.random((6, 105, 105)) < 0.1,
        "label": np.array([0, 0, 1, 1, 2, 2], np.int16),
        "drawer": np.array([1, 2, 1, 2, 1, 2], np.uint8),
        "split": np.array([0, 0, 0, 0, 1, 1], np.uint8),
    }


def write_npz(path, drawings, **changes):
    fields = {k: drawings[k] for k in ("label", "drawer", "split")}
    fields |= {"images_packed": np.packbits(drawings["ink"], axis=2), "class_names": CLASSES}
    fields |= changes
    np.savez(path / "omniglot.npz", **{k: v for k, v in fields.items() if v is not None})


def write_folders(path, drawings):
    for i, ink in enumerate(drawings["ink"]):
        part = ("images_background", "images_evaluation")[drawings["split"][i]]
        folder = path / part / CLASSES[drawings["label"][i]]
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{drawings['label'][i]:04}_{drawings['drawer'][i]:02}.png"
        Image.fromarray(~ink).save(folder / name)


@pytest.mark.parametrize("write", [write_npz, write_folders])
def test_both_forms_are_the_same_drawings(tmp_path, drawings, write):
    write(tmp_path, drawings)
    splits = load_omniglot(tmp_path)
    expected = np.where(drawings["ink"], 0, 255)
    np.testing.assert_array_equal(splits.train.inputs, expected[:4])
    np.testing.assert_array_equal(splits.test.inputs, expected[4:])
    for part, classes in (("train", CLASSES[[0, 0, 1, 1]]), ("test", CLASSES[[2, 2]])):
        data = splits[part]
        assert [data.classes[i] for i in data.labels] == classes.tolist()
    assert splits.test.names[0].startswith("Tifinagh/character01/")


def test_one_part_may_be_alone(tmp_path, drawings):
    write_npz(tmp_path, drawings, split=np.ones(6, np.uint8))
    assert list(load_omniglot(tmp_path)) == ["test"]


def test_omniglot_that_is_not_whole_is_refused(tmp_path, drawings):
    with pytest.raises(sf.InputError, match="holds no Omniglot"):
        load_omniglot(tmp_path)
    write_npz(tmp_path, drawings, label=None)
    with pytest.raises(sf.InputError, match="is not the packed Omniglot: it has no 'label'"):
        load_omniglot(tmp_path)
    write_npz(tmp_path, drawings, drawer=np.zeros(5, np.uint8))
    with pytest.raises(sf.InputError, match="6 images, 6, 5 and 6"):
        load_omniglot(tmp_path)
    path = tmp_path / "omniglot.npz"
    path.write_bytes(path.read_bytes()[:400])
    with pytest.raises(sf.InputError, match="damaged or half copied"):
        load_omniglot(tmp_path)


def test_folders_of_omniglot_that_are_wrong_are_refused(tmp_path, save_image):
    (tmp_path / "images_background").mkdir()
    with pytest.raises(sf.InputError, match="images_background holds no drawings"):
        load_omniglot(tmp_path)
    save_image("images_background/Greek/character01/0001_01.png", size=(105, 100))
    with pytest.raises(sf.InputError, match="is 105 × 100; Omniglot's drawings are 105 × 105"):
        load_omniglot(tmp_path)
    save_image("images_background/Greek/0001_01.png")
    with pytest.raises(sf.InputError, match="is not in an alphabet's and a character's folder"):
        load_omniglot(tmp_path)


def test_digits_and_photographs():
    splits = load_digits(n_ood=50)
    assert {p: len(splits[p]) for p in splits} == {"train": 1198, "test": 599, "ood": 50}
    assert splits.train.labels.unique().tolist() == list(range(10))
    assert splits.train.read().shape[1:] == splits["ood"].read().shape[1:] == (1, 8, 8)
    assert splits.train.inputs.max() == 255
    assert splits["ood"].labels is None
    assert torch.equal(splits["ood"].read(), load_digits(n_ood=50)["ood"].read())
    assert not torch.equal(splits["ood"].read(), load_digits(n_ood=50, seed=1)["ood"].read())
    with pytest.raises(sf.InputError, match="n_ood must be a whole number of at least 1"):
        load_digits(n_ood=0)
