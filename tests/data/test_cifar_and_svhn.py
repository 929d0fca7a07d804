import os
import pickle

import numpy as np
import pytest
import scipy.io
from PIL import Image

import surefind as sf
from surefind.data.formats import read_mat, read_sheet
from surefind.data.small_images import load_cifar10, load_svhn, read_python_batch

NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def as_sheet(images, columns):
    n = len(images)
    tiles = images.reshape(n // columns, columns, 3, 32, 32).transpose(0, 3, 1, 4, 2)
    return Image.fromarray(tiles.reshape(n // columns * 32, columns * 32, 3))


@pytest.fixture
def batches(rng):
    return {
        name: (
            rng.integers(0, 256, (4, 3072), dtype=np.uint8),
            rng.integers(0, 10, 4).tolist(),
        )
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
    with pytest.raises(sf.InputError, match=r"it asks for .*, which data does not need"):
        read_python_batch(tmp_path / "batch")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({b"data": np.zeros((2, 3072), np.uint8), b"labels": [1]}), "3072 bytes per"),
        (pickle.dumps({b"data": np.zeros((1, 3072)), b"labels": [1]}), "got float64"),
        (pickle.dumps({b"data": 1}), "not a whole CIFAR-10 batch"),
        (pickle.dumps([1, 2]), "not a whole CIFAR-10 batch"),
        (b"", "not a whole CIFAR-10 batch"),
        (b"garbage", "not a whole CIFAR-10 batch"),
        (pickle.dumps({b"data": np.zeros((9, 3072), np.uint8)})[:5000], "not a whole CIFAR-10"),
    ],
)
def test_broken_batches_are_refused(tmp_path, content, message):
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(sf.InputError, match=message):
        read_python_batch(tmp_path / "batch")


def test_missing_batches_are_named(tmp_path):
    with pytest.raises(sf.InputError, match="holds no CIFAR-10; expected data_batch_1"):
        load_cifar10(tmp_path)
    (tmp_path / "test_batch").write_bytes(b"")
    with pytest.raises(sf.InputError, match="data_batch_1 is missing"):
        load_cifar10(tmp_path)


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


@pytest.mark.parametrize(
    ("labels", "got"), [({"y_train": np.zeros(19, int)}, "got 19"), ({"y_test": [0]}, "got none")]
)
def test_labels_must_fit_the_tiles(tmp_path, batches, labels, got):
    write_sheets(tmp_path, batches, **labels)
    with pytest.raises(sf.InputError, match=f"must hold y_train with 20 entries.* {got}"):
        load_cifar10(tmp_path)


def test_a_sheet_is_a_whole_number_of_tiles(save_image):
    with pytest.raises(sf.InputError, match="64 × 40 pixels, which is not a whole number of tiles"):
        read_sheet(save_image("s.png", size=(64, 40)))


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
    with pytest.raises(sf.InputError, match=r"has svhn_test_first6\.webp but not its labels\.npy"):
        load_svhn(tmp_path)
    np.save(tmp_path / "labels.npy", labels % 10)
    test = load_svhn(tmp_path).test
    np.testing.assert_array_equal(test.inputs, images)
    assert test.labels.tolist() == [1, 0, 3, 9, 0, 2]
    np.save(tmp_path / "labels.npy", labels[:5])
    with pytest.raises(sf.InputError, match="has 5 entries for the 6 tiles"):
        load_svhn(tmp_path)


def test_svhn_that_is_missing_or_wrong_is_refused(tmp_path, svhn):
    with pytest.raises(sf.InputError, match="holds no SVHN; expected train_32x32"):
        load_svhn(tmp_path)
    images, labels = svhn
    path = tmp_path / "test_32x32.mat"
    scipy.io.savemat(path, {"X": images, "y": labels})
    with pytest.raises(sf.InputError, match=r"X of shape \(32, 32, 3, 6\)"):
        load_svhn(tmp_path)
    scipy.io.savemat(path, {"X": images})
    with pytest.raises(sf.InputError, match="has no variable 'y'"):
        load_svhn(tmp_path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(sf.InputError, match="damaged or half copied"):
        load_svhn(tmp_path)
    with pytest.raises(sf.InputError, match=r"gone\.mat does not exist"):
        read_mat(tmp_path / "gone.mat", "X")
