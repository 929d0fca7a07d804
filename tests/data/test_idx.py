import gzip
import struct

import numpy as np
import pytest

import surefind as sf
from surefind.data.small_images import load_idx, read_idx


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


def test_one_part_may_be_alone(tmp_path, write_part):
    write_part("t10k", 3)
    assert list(load_idx(tmp_path)) == ["test"]


def test_missing_files_are_named(tmp_path, write_part):
    with pytest.raises(sf.InputError, match="holds no idx files; expected train-images"):
        load_idx(tmp_path)
    write_part("train", 2)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(sf.InputError, match=r"only one of train-images.* copy the other"):
        load_idx(tmp_path)


def test_unequal_counts_are_refused(tmp_path, write_part):
    write_part("train", 2)
    labels = np.zeros(3, np.uint8)
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx_bytes(labels)))
    with pytest.raises(sf.InputError, match="labels must have one entry per example"):
        load_idx(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("x", lambda d: d[:-1], r"announces 12 values, shape \(3, 4\), but holds 11"),
        ("x", lambda d: d + b"!", "announces 12 values.* but holds more"),
        ("x", lambda d: d[:6], "damaged or half copied"),
        ("x", lambda d: b"", "not an idx file of unsigned bytes: it begins with b''"),
        ("x", lambda d: b"\x00\x00\x0d" + d[3:], "not an idx file of unsigned bytes"),
        ("x", lambda d: b"\x89PNG" + d, "not an idx file of unsigned bytes"),
        ("x", lambda d: bytes([0, 0, 8, 2]) + b"\xff" * 8, "announces .* but holds 0"),
        ("x.gz", lambda d: gzip.compress(d)[:-9], "damaged or half copied"),
        ("x.gz", lambda d: gzip.compress(d)[:5] + b"\x07" * 20, "damaged or half copied"),
        ("x.gz", lambda d: d, "damaged or half copied"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, damage, message):
    path = tmp_path / name
    path.write_bytes(damage(idx_bytes(np.zeros((3, 4), np.uint8))))
    with pytest.raises(sf.InputError, match=message):
        read_idx(path)
