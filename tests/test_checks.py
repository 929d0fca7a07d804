"""One rule for labels and vectors, in library, commands and files; wrong arguments by their names."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from command_line import command

import surefind as sf
from surefind.checks import (
    as_scores,
    as_vectors,
    check_choice,
    complete_labels,
    id_values,
    label_values,
    payload_values,
)

LABELS = {
    "integers": np.arange(12) % 3,
    "int8": (np.arange(12) % 3).astype(np.int8),
    "floats": (np.arange(12) % 3).astype(np.float64),
    "objects": np.array([float(i % 3) for i in range(12)], dtype=object),
    "tensor": torch.arange(12) % 3,
    "list of tensors": [torch.tensor(i % 3) for i in range(12)],
    "texts": np.array(["a", "b", "c"] * 4),
    "text objects": np.array(["a", "b", "c"] * 4, dtype=object),
    "bytes": np.array([b"a", b"b", b"c"] * 4),
    "booleans": [False, True, 2] * 4,
}
WRONG = {
    "fractions": np.arange(12) / 2,
    "infinite": np.full(12, np.inf),
    "complex": np.arange(12) * 1j,
    "lists": [[1]] * 12,
    "too large": [2**128] * 12,
    "no Unicode": ["\ud800"] * 12,
    "no UTF-8": [b"\xff"] * 12,
}


def vectors(n=12, z=4, seed=0):
    x = np.eye(z)[np.arange(n) % 3] + 0.1 * np.random.default_rng(seed).normal(size=(n, z))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def by_dataset(labels):
    found = sf.Dataset(vectors(), labels)
    return [found.classes[x] if found.classes else x for x in found.labels.tolist()]


def by_gallery(labels):
    gallery = sf.Gallery()
    gallery.add(vectors(), ids=range(12), labels=labels)
    return [gallery.get(i).label for i in range(12)]


READERS = {
    "dataset": by_dataset,
    "gallery": by_gallery,
    "fit": lambda labels: complete_labels("labels", labels).tolist(),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_read_alike(reader, kind):
    expected = list("abc" * 4) if "text" in kind or kind == "bytes" else [0, 1, 2] * 4
    assert READERS[reader](LABELS[kind]) == expected


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_label_is_refused_by_its_name(reader, kind):
    with pytest.raises(sf.InputError) as refused:
        READERS[reader](WRONG[kind])
    assert refused.value.field in ("labels", None)


def test_a_missing_label_is_none_in_a_gallery_and_refused_in_a_fit():
    labels = np.where(np.arange(12) == 5, np.nan, np.arange(12) % 3)
    assert by_gallery(labels)[4:7] == [1, None, 0]
    with pytest.raises(sf.InputError, match="row 5 has none"):
        by_dataset(labels)


def test_neighbours_labels_are_read_by_the_same_rule():
    rng = np.random.default_rng(0)
    cosines = np.sort(rng.uniform(0.2, 1, (200, 5)))[:, ::-1]
    labels = rng.integers(0, 2, (200, 5))
    truth = [None if i % 10 == 0 else labels[i, 0] for i in range(200)]
    floats = np.array([np.nan if x is None else x for x in truth], dtype=float)
    answers = [
        sf.NeighbourModel().fit(cosines, given, right).posterior(cosines, given).label.tolist()
        for given, right in ((labels, truth), (labels.astype(float), floats), (labels == 1, truth))
    ]
    assert answers[0] == answers[1] == answers[2]


def test_pandas_labels_are_read():
    import pandas as pd

    assert label_values("labels", pd.Series([1, 2, None], dtype="Int64")) == [1, 2, None]
    assert label_values("labels", pd.Series([1, None, 3])) == [1, None, 3]
    assert label_values("labels", pd.Series(["a", None])) == ["a", None]


NESTED = {"x": [[]]}
for _ in range(100):
    NESTED = {"x": NESTED}


@pytest.mark.parametrize(
    ("read", "value"),
    [
        (complete_labels, [1, "1"]),
        (complete_labels, [2**63]),
        (label_values, np.zeros((2, 2))),
        (id_values, ["a", "a"]),
        (id_values, [1, None]),
        (as_vectors, np.zeros(3)),
        (as_vectors, np.zeros((3, 2)) > 0),
        (as_vectors, [[1.0, 2.0], [3.0]]),
        (as_vectors, np.zeros((0, 2))),
        (as_scores, []),
        (as_scores, [[1.0]]),
        (lambda name, value: payload_values(name, value, count=1), [NESTED]),
        (lambda name, value: payload_values(name, value, count=1), [{"x": "\ud800"}]),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(read, value):
    with pytest.raises(sf.InputError) as refused:
        read("given", value)
    assert refused.value.field == "given"


def test_rows_that_hold_no_number_are_named():
    x = np.zeros((200, 3))
    x[[3, 17, 40, 41]] = np.nan
    with pytest.raises(sf.InputError, match=r"holds NaN in rows 3, 17, 40, … \(4 of 200\)"):
        as_vectors("vectors", x)
    x[3] = np.inf
    with pytest.raises(sf.InputError, match="NaN and infinity in rows 3"):
        sf.Gallery().add(x)


def test_a_similar_choice_is_suggested():
    with pytest.raises(sf.InputError, match="Did you mean 'laplace-posthoc'"):
        check_choice("method", "laplace_posthoc", ("deterministic", "laplace-posthoc"))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.float16, np.float64])
def test_vectors_of_any_numbers_are_read_alike(dtype):
    x = np.round(100 * vectors() + 120).astype(dtype)
    np.testing.assert_array_equal(sf.Dataset(x).read().numpy(), x.astype(np.float32))
    gallery = sf.Gallery(normalize=True)
    gallery.add(x, ids=range(12))
    unit = x / np.linalg.norm(x.astype(float), axis=1, keepdims=True)
    np.testing.assert_allclose(gallery.get(3).vector, unit[3], atol=1e-3)


SCRIPT = """
import torch
import surefind as sf
from surefind.pairs.losses import mine_pairs

h, z, y = torch.randn(4, 3), torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
u = torch.nn.functional.normalize(z, dim=1)
t = sf.pair_targets(y, u, margin=1)
calls = {
    "distance": lambda: sf.head_curvature(h, z, t, distance="cosine", approximation="fixed"),
    "approximation": lambda: sf.head_curvature(h, z, t, distance="arccos", approximation="exact"),
    "kind": lambda: mine_pairs(y, u, kind="easy", max_pairs=5, margin=1, generator=torch.Generator()),
    "negatives": lambda: sf.objectives.Contrastive(negatives="outside"),
    "margin": lambda: sf.pair_targets(y, u, margin="wide"),
    "dim": lambda: sf.vmf_log_normalizer(torch.ones(1), 3.5),
    "dataset": lambda: sf.MetricLearner(sf.Encoder(torch.nn.Identity(), torch.nn.Linear(3, 2))).fit(h),
}
for field, call in calls.items():
    try:
        call()
    except sf.InputError as error:
        assert error.field == field, error
    else:
        raise AssertionError(field)
"""


@pytest.mark.slow
def test_a_wrong_argument_is_refused_by_its_name_without_the_checks_of_tests():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True)


@pytest.mark.slow
def test_files_are_read_alike_by_every_command(tmp_path, monkeypatch):
    """Float labels with a gap, and int8 vectors: fitted and indexed."""
    monkeypatch.chdir(tmp_path)
    x = np.round(100 * vectors(90)).astype(np.int8)
    y = np.where(np.arange(90) % 9 == 8, np.nan, np.arange(90) % 3)
    np.savez("a.npz", features=x, labels=y)
    code, out, _ = command("fit", "a.npz", "--out", "run")
    assert code == 0
    assert "10 examples have no label" in out
    assert command("index", "a.npz", "--out", "h", "--run", "run")[0] == 0
    with sf.Gallery.open("h", mode="r") as gallery:
        labels = [gallery.get(i).label for i in gallery]
    assert {x: labels.count(x) for x in labels} == {"0": 30, "1": 30, "2": 20, None: 10}
