import subprocess
import sys

import numpy as np
import oracles
import pytest
import torch

import surefind as sf
from surefind.curvature import dataset as module
from surefind.curvature.dataset import dataset_kronecker_curvature
from surefind.curvature.head import kronecker_curvature
from surefind.pairs import relations as blocks

N, D, Z = 40, 7, 3


@pytest.fixture
def problem(normal):
    features = normal(N, D)
    return features, features @ normal(D, Z)


def relation_of(kind, normal):
    if kind == "labels":
        return torch.tensor([0] * 15 + [1] * 10 + [2] * 14 + [3])
    if kind == "positions":
        return sf.Positions(40 * normal(N, 2), 25.0, 60.0)
    every = torch.tensor([(i, j) for i in range(N) for j in range(i)])[::3]
    return sf.PairList(every[:, 0], every[:, 1], torch.arange(len(every)) % 2 == 0, n=N)


@pytest.mark.parametrize("kind", ["labels", "positions", "list"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
@pytest.mark.parametrize("small_blocks", [False, True])
def test_equals_head_curvature_on_the_whole_set(
    problem, normal, monkeypatch, kind, distance, small_blocks
):
    if small_blocks:
        monkeypatch.setattr(blocks, "BLOCK_ROWS", 11)
        monkeypatch.setattr(blocks, "BLOCK_COLUMNS", 7)
        monkeypatch.setattr(module, "FEATURE_ELEMENTS", 6 * D)
    features, outputs = problem
    labels = relation_of(kind, normal)
    targets = sf.pair_targets(labels, oracles.normalize(outputs), margin=1.2)
    expected = sf.head_curvature(
        features, outputs, targets, distance=distance, approximation="fixed"
    )
    curvature = sf.dataset_curvature(features, outputs, labels, distance=distance, margin=1.2)
    torch.testing.assert_close(curvature, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
def test_kronecker_equals_that_of_the_batch(problem, normal, monkeypatch, distance):
    monkeypatch.setattr(module, "FEATURE_ELEMENTS", 6 * D)
    features, outputs = problem
    labels = relation_of("labels", normal)
    targets = sf.pair_targets(labels, oracles.normalize(outputs), margin=1.2)
    expected = kronecker_curvature(
        features, outputs, targets, distance=distance, approximation="fixed"
    )
    k = dataset_kronecker_curvature(features, outputs, labels, distance=distance, margin=1.2)
    torch.testing.assert_close(k.left, expected.left)
    torch.testing.assert_close(k.right, expected.right)


def test_features_may_be_mapped_or_streamed(problem, normal, tmp_path):
    features, outputs = problem
    labels = relation_of("labels", normal)
    options = {"distance": "arccos", "margin": 1.2}
    expected = sf.dataset_curvature(features, outputs, labels, **options)
    np.save(tmp_path / "features.npy", features.numpy())
    mapped = np.load(tmp_path / "features.npy", mmap_mode="r")
    stream = (part for part in features.split(9))
    arrays = [part.numpy() for part in features.split(9)]
    holes = [features[:0], features[:9], features[:0].numpy(), features[9:]]
    for source in (mapped, stream, list(features.split(40)), arrays, iter(arrays), holes):
        torch.testing.assert_close(
            sf.dataset_curvature(source, outputs, labels, **options), expected
        )


@pytest.mark.parametrize("kind", ["labels", "positions", "list"])
def test_row_ranges_add_up(problem, normal, kind):
    """As processes share the work: each has its rows' features and everybody's outputs."""
    features, outputs = problem
    labels = relation_of(kind, normal)
    options = {"distance": "arccos", "margin": 1.2}
    ranges = [slice(0, 13), slice(13, 14), slice(14, N)]
    parts = [sf.dataset_curvature(features[r], outputs, labels, rows=r, **options) for r in ranges]
    whole = sf.dataset_curvature(features, outputs, labels, **options)
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("kind", ["labels", "positions", "list"])
@pytest.mark.parametrize("distance", ["euclidean", "arccos"])
@pytest.mark.parametrize("rows", [slice(13, 13), slice(N, N), slice(9, 3)])
def test_a_range_without_rows_adds_zeros(problem, normal, kind, distance, rows):
    """A process that got no rows must still have something to add."""
    features, outputs = problem
    labels = relation_of(kind, normal)
    nothing = torch.zeros(Z, D, dtype=torch.float64)
    for source in (features[rows], features[:0].numpy(), [features[:0]]):
        part = sf.dataset_curvature(
            source, outputs, labels, rows=rows, distance=distance, margin=1.2
        )
        torch.testing.assert_close(part, nothing)


def test_a_range_without_rows_needs_the_width(problem, normal):
    _, outputs = problem
    options = {"rows": slice(5, 5), "distance": "arccos", "margin": 1.2}
    with pytest.raises(sf.InputError, match=r"hold no batch.* give a matrix of shape \(0, d\)"):
        sf.dataset_curvature([], outputs, relation_of("labels", normal), **options)


REFUSED = """
import numpy as np
import torch
import surefind as sf

h, z, y = torch.randn(4, 3), torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
for features, outputs in ((h, z.numpy()), ([[1.0, 2.0, 3.0]] * 4, z)):
    try:
        sf.dataset_curvature(features, outputs, y, distance="arccos", margin=1)
    except sf.InputError as error:
        print(error)
"""


def test_other_kinds_are_refused_with_what_to_do():
    """In a process without the tests' type checks, which would come first."""
    run = subprocess.run(
        [sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [
        "outputs must be a tensor of float32 or float64; got ndarray. "
        "Convert it: torch.from_numpy(array), or tensor.float().",
        "features must be a matrix or batches that are; got list for a batch.",
    ]


def test_balanced_classes_all_inside_the_margin_give_exactly_zero(problem):
    features, outputs = problem
    curvature = sf.dataset_curvature(
        features, outputs, torch.arange(N) % 4, distance="euclidean", margin=4.0
    )
    assert not curvature.any()


def test_float32_stays_float32_and_close(problem, normal):
    features, outputs = problem
    labels = relation_of("labels", normal)
    options = {"distance": "arccos", "margin": 1.2}
    exact = sf.dataset_curvature(features, outputs, labels, **options)
    single = sf.dataset_curvature(features.float(), outputs.float(), labels, **options)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, z, y: (h, z, y * 0), "there is only one class"),
        (lambda h, z, y: (h, z, torch.arange(N)), "no two examples are the same"),
        (lambda h, z, y: (h, z, y[:-1]), "outputs has 40 rows where the other arguments have 39"),
        (lambda h, z, y: (h[:-1], z, y), "features have 39 rows where 40 are expected"),
        (lambda h, z, y: (torch.cat([h, h]).split(9), z, y), "more rows than the 40"),
        (lambda h, z, y: ([], z, y), "features have 0 rows where 40 are expected"),
        (lambda h, z, y: ([h[:9], h[9:, :5]], z, y), "batches of 7 and of 5 columns; give all"),
        (lambda h, z, y: (h[0], z, y), "features must be a matrix"),
        (lambda h, z, y: (list(h), z, y), r"features must be a matrix \(n, d\); got shape \(7,\)"),
        (lambda h, z, y: (h * torch.nan, z, y), "features holds NaN"),
        (lambda h, z, y: (h, z * 0, y), "outputs is zero in rows 0, 1, 2, …"),
    ],
)
def test_unusable_input_is_refused(problem, change, message):
    features, outputs, labels = change(*problem, torch.arange(N) % 4)
    with pytest.raises(sf.InputError, match=message):
        sf.dataset_curvature(features, outputs, labels, distance="arccos", margin=1.0)
