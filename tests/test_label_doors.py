"""One rule for labels and vectors, by every door: Dataset, LaplaceHead, Gallery and the commands."""

import sys

import numpy as np
import pytest
import torch

import surefind as sf
from surefind.checks import complete_labels, label_values
from surefind.cli import main

WHOLE = {
    "integers": np.arange(12) % 3,
    "small": (np.arange(12) % 3).astype(np.int8),
    "floats": (np.arange(12) % 3).astype(np.float64),
    "objects": np.array([float(i % 3) for i in range(12)], dtype=object),
    "tensor": torch.arange(12) % 3,
    "list": [i % 3 for i in range(12)],
}
TEXTS = {
    "texts": np.array(["a", "b", "c"] * 4),
    "objects": np.array(["a", "b", "c"] * 4, dtype=object),
    "bytes": np.array([b"a", b"b", b"c"] * 4),
}
WRONG = {
    "fractions": np.arange(12) / 2,
    "infinite": np.full(12, np.inf),
    "complex": np.arange(12) * 1j,
    "lists": [[1]] * 12,
}


def vectors(n=12, z=4, seed=0):
    x = np.eye(z)[np.arange(n) % 3] + 0.1 * np.random.default_rng(seed).normal(size=(n, z))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def by_dataset(labels):
    found = sf.Dataset(vectors(), labels)
    return [found.classes[x] if found.classes else x for x in found.labels.tolist()]


def by_head(labels):
    head = sf.LaplaceHead(scale=1.0, prior_precision=1.0).fit(vectors(), labels)
    relation = head._relation(labels, 12).labels.tolist()
    expected = [label_values("y", labels).index(x) for x in label_values("y", labels)]
    first = [relation.index(x) for x in relation]
    assert first == expected  # equal labels, and no others, are one class
    return label_values("y", labels)


def by_gallery(labels):
    gallery = sf.Gallery()
    gallery.add(vectors(), ids=range(12), labels=labels)
    return [gallery.get(i).label for i in range(12)]


DOORS = {"dataset": by_dataset, "head": by_head, "gallery": by_gallery}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(("kind", "labels"), [*WHOLE.items(), *TEXTS.items()])
def test_labels_are_read_alike(door, kind, labels):
    expected = list("abc" * 4) if kind in TEXTS and labels is TEXTS[kind] else [0, 1, 2] * 4
    assert DOORS[door](labels) == expected


@pytest.mark.parametrize("door", DOORS)
def test_booleans_are_zero_and_one(door):
    labels = np.arange(12) % 2 == 1
    assert DOORS[door](labels) == [0, 1] * 6


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_label_is_refused_by_its_name(door, kind):
    with pytest.raises(sf.InputError) as caught:
        DOORS[door](WRONG[kind])
    assert caught.value.field in ("labels", "y", None)


def test_a_missing_label_is_none_in_a_gallery_and_refused_in_a_fit():
    labels = np.where(np.arange(12) == 5, np.nan, np.arange(12) % 3)
    assert by_gallery(labels)[4:7] == [1, None, 0]
    for door in ("dataset", "head"):
        with pytest.raises(sf.InputError, match="row 5 has none"):
            DOORS[door](labels)


def test_texts_and_numbers_are_not_mixed_in_a_fit():
    with pytest.raises(sf.InputError, match="1 of 2 are texts"):
        complete_labels("labels", [1, "1"])
    with pytest.raises(sf.InputError, match="64 bits"):
        complete_labels("labels", [2**70])
    with pytest.raises(sf.InputError, match="UTF-8"):
        label_values("labels", [b"\xff"])


def test_pandas_labels_are_read(monkeypatch):
    import pandas as pd

    column = pd.Series([1, 2, None], dtype="Int64")
    assert label_values("labels", column.tolist()) == [1, 2, None]
    assert label_values("labels", pd.Series([1, None, 3])) == [1, None, 3]
    assert label_values("labels", pd.Series(["a", None])) == ["a", None]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int64, np.float16, np.float64])
def test_vectors_of_any_numbers_are_read_alike(dtype):
    x = np.round(100 * vectors() + 120).astype(dtype)
    y = np.arange(12) % 3
    read = sf.Dataset(x, y).read()
    np.testing.assert_array_equal(read.numpy(), x.astype(np.float32))
    gallery = sf.Gallery(normalize=True)
    gallery.add(x, ids=range(12), labels=y)
    unit = x / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(gallery.get(3).vector, unit[3], atol=1e-3)
    head = sf.LaplaceHead(scale=1.0, prior_precision=1.0)
    assert np.isfinite(head.fit(x, y).embed(x).kappa).all()


def test_booleans_are_no_vectors():
    x = vectors() > 0
    for call in (lambda: sf.Dataset(x, [0] * 12), lambda: sf.Gallery(normalize=True).add(x)):
        with pytest.raises(sf.InputError):
            call()


def command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["surefind", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0


@pytest.mark.slow
def test_files_are_read_alike_by_every_command(tmp_path, monkeypatch, capsys):
    """Float labels with a gap, and int8 vectors: fitted, indexed, calibrated and searched."""
    monkeypatch.chdir(tmp_path)
    x = np.round(100 * vectors(90)).astype(np.int8)
    y = np.where(np.arange(90) % 9 == 8, np.nan, np.arange(90) % 3)
    np.savez("a.npz", features=x, labels=y)
    assert command(monkeypatch, "fit", "a.npz", "--out", "run") == 0
    assert "10 examples have no label" in capsys.readouterr().out
    assert command(monkeypatch, "index", "a.npz", "--out", "g", "--normalize") == 0
    assert command(monkeypatch, "index", "a.npz", "--out", "h", "--run", "run") == 0
    for name in ("g", "h"):
        with sf.Gallery.open(name, mode="r") as gallery:
            assert gallery.labels() == {"0": 30, "1": 30, "2": 20}
    options = ("--max-wrong", "0.3", "--normalize")
    assert command(monkeypatch, "calibrate", "g", "a.npz", *options) == 0
    assert command(monkeypatch, "search", "g", "a.npz", "--normalize", "--out", "b.csv") == 0
