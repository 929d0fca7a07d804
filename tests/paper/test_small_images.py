import gzip
import os
import pickle
import struct

import numpy as np
import pytest
import scipy.io
from PIL import Image

import surefind as sf
from surefind.paper.small_images import (
    load_cifar10,
    load_cifar100,
    load_idx,
    load_omniglot,
    load_svhn,
    read_python_batch,
)


def idx_bytes(values, kind=8):
    header = bytes([0, 0, kind, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.tobytes()


@pytest.fixture
def write_part(tmp_path, rng):
    def write(prefix, n, *, packed=True):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        for values, name in ((images, "images-idx3"), (labels, "labels-idx1")):
            path = tmp_path / f"{prefix}-{name}-ubyte{'.gz' if packed else ''}"
            data = idx_bytes(values)
            path.write_bytes(gzip.compress(data) if packed else data)
        return images, labels

    return write


@pytest.mark.parametrize("packed", [True, False])
def test_both_parts_are_read(tmp_path, write_part, packed):
    train, test = write_part("train", 5, packed=packed), write_part("t10k", 3, packed=packed)
    splits = load_idx(tmp_path, name="MNIST", classes="0123456789")
    for part, (images, labels) in (("train", train), ("test", test)):
        np.testing.assert_array_equal(splits[part].inputs, images)
        assert splits[part].labels.tolist() == labels.tolist()
        assert splits[part].name == "MNIST"
    assert splits.train.read().shape == (5, 1, 28, 28)


def test_one_idx_part_may_be_alone(tmp_path, write_part):
    write_part("t10k", 3)
    assert list(load_idx(tmp_path, name="MNIST", classes="0123456789")) == ["test"]


NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def as_sheet(images, columns):
    n = len(images)
    tiles = images.reshape(n // columns, columns, 3, 32, 32).transpose(0, 3, 1, 4, 2)
    return Image.fromarray(tiles.reshape(n // columns * 32, columns * 32, 3))


@pytest.fixture
def batches(rng):
    return {
        name: (rng.integers(0, 256, (4, 3072), dtype=np.uint8), rng.integers(0, 10, 4).tolist())
        for name in NAMES
    }


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("inner", ["", "cifar-10-batches-py"])
def test_python_batches_are_read(tmp_path, batches, protocol, inner):
    folder = tmp_path / inner
    folder.mkdir(exist_ok=True)
    for name, (data, labels) in batches.items():
        content = {b"data": data, b"labels": labels, b"batch_label": b"x", b"filenames": [b"a"]}
        (folder / name).write_bytes(pickle.dumps(content, protocol=protocol))
    splits = load_cifar10(tmp_path)
    assert [len(splits[p]) for p in splits] == [20, 4]
    np.testing.assert_array_equal(
        splits.test.inputs, batches["test_batch"][0].reshape(4, 3, 32, 32)
    )
    assert splits.train.labels[4:8].tolist() == batches["data_batch_2"][1]
    assert splits.train.classes[3] == "cat"


def test_a_batch_written_by_python_2_is_read(tmp_path):
    """The publisher's files: protocol 2, str as bytes, NumPy's old module names."""
    data = np.arange(3072, dtype=np.uint8)[None]
    text = pickle.dumps({b"data": data, b"labels": [7]}, protocol=2)
    old = text.replace(b"cnumpy._core.multiarray", b"cnumpy.core.multiarray")
    (tmp_path / "batch").write_bytes(old)
    images, labels = read_python_batch(tmp_path / "batch")
    np.testing.assert_array_equal(images.reshape(1, -1), data)
    assert labels.tolist() == [7]


class Attack:
    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, np.load, getattr, np.fromfile])
def test_a_pickle_that_would_run_code_is_refused(tmp_path, function):
    (tmp_path / "batch").write_bytes(pickle.dumps(Attack(function, "echo no")))
    with pytest.raises(pickle.UnpicklingError, match=r"it asks for .*, which data does not need"):
        read_python_batch(tmp_path / "batch")


def write_sheets(folder, batches, **labels):
    for name, (data, _) in batches.items():
        as_sheet(data.reshape(4, 3, 32, 32), 2).save(folder / f"{name}.webp", lossless=True)
    np.savez(folder / "labels.npz", **labels)


def test_sheets_are_cut_row_by_row(tmp_path, batches):
    train = np.concatenate([batches[n][1] for n in NAMES[:5]])
    write_sheets(tmp_path, batches, y_train=train, y_test=batches["test_batch"][1])
    splits = load_cifar10(tmp_path)
    expected = np.concatenate([batches[n][0] for n in NAMES[:5]]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(splits.train.inputs, expected)
    assert splits.train.labels.tolist() == train.tolist()


@pytest.fixture
def svhn(rng):
    return rng.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8), np.array([1, 10, 3, 9, 10, 2])


def test_svhn_mat_files_are_read(tmp_path, svhn):
    images, labels = svhn
    for name in ("train", "test"):
        content = {"X": images.transpose(2, 3, 1, 0), "y": labels[:, None]}
        scipy.io.savemat(tmp_path / f"{name}_32x32.mat", content)
    splits = load_svhn(tmp_path)
    assert list(splits) == ["train", "test"]
    np.testing.assert_array_equal(splits.test.inputs, images)
    assert splits.test.labels.tolist() == [1, 0, 3, 9, 0, 2]


def test_an_svhn_sheet_is_read(tmp_path, svhn):
    images, labels = svhn
    as_sheet(images, 3).save(tmp_path / "svhn_test_first6.webp", lossless=True)
    np.save(tmp_path / "labels.npy", labels % 10)
    test = load_svhn(tmp_path).test
    np.testing.assert_array_equal(test.inputs, images)
    assert test.labels.tolist() == [1, 0, 3, 9, 0, 2]
    np.save(tmp_path / "labels.npy", labels[:5])
    with pytest.raises(sf.InputError, match="6"):
        load_svhn(tmp_path)


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


def write_classes(folder, classes, images=2):
    for c in classes:
        (folder / c).mkdir(parents=True)
        for i in range(images):
            Image.new("RGB", (32, 32), (i, 2, 3)).save(folder / c / f"{c}_s_{i:06d}.png")


def test_cifar100_is_read_as_folders_of_classes(tmp_path):
    write_classes(tmp_path / "train", ["apple", "worm"], 3)
    write_classes(tmp_path / "test", ["apple", "worm"])
    (tmp_path / "README.md").write_text("CIFAR-100 dataset by classes folder")
    (tmp_path / ".git").mkdir()
    splits = load_cifar100(tmp_path)
    assert {part: len(splits[part]) for part in splits} == {"train": 6, "test": 4}
    assert splits.test.classes == ("apple", "worm")
    assert splits.test.labels.tolist() == [0, 0, 1, 1]
    assert splits.test.name == "CIFAR-100"
    assert splits.test.read().shape == (4, 3, 32, 32)


def test_a_folder_that_is_not_cifar100_is_refused(tmp_path):
    write_classes(tmp_path, ["apple"])
    with pytest.raises(sf.InputError, match="CIFAR-100"):
        load_cifar100(tmp_path)
