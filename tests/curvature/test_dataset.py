import numpy as np
import oracles
import pytest
import torch

import surefind as sf
from surefind.curvature import dataset as module
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
    k = sf.dataset_curvature(
        features, outputs, labels, structure="kronecker", distance=distance, margin=1.2
    )
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
    ("change", "field"),
    [
        (lambda h, z, y: (h, z, y * 0), None),
        (lambda h, z, y: (h, z, torch.arange(N)), None),
        (lambda h, z, y: (h, z, y[:-1]), "outputs"),
        (lambda h, z, y: (h, z * 0, y), "outputs"),
        (lambda h, z, y: (h[:-1], z, y), "features"),
        (lambda h, z, y: (torch.cat([h, h]).split(9), z, y), "features"),
        (lambda h, z, y: ([], z, y), "features"),
        (lambda h, z, y: ([h[:9], h[9:, :5]], z, y), "features"),
        (lambda h, z, y: (h[0], z, y), "features"),
        (lambda h, z, y: (list(h), z, y), "features"),
        (lambda h, z, y: (h * torch.nan, z, y), "features"),
    ],
)
def test_unusable_input_is_refused(problem, change, field):
    features, outputs, labels = change(*problem, torch.arange(N) % 4)
    with pytest.raises(sf.InputError) as refusal:
        sf.dataset_curvature(features, outputs, labels, distance="arccos", margin=1.0)
    assert refusal.value.field == field


def test_a_range_without_rows_needs_the_width(problem, normal):
    options = {"rows": slice(5, 5), "distance": "arccos", "margin": 1.2}
    with pytest.raises(sf.InputError, match=r"give a matrix of shape \(0, d\)"):
        sf.dataset_curvature([], problem[1], relation_of("labels", normal), **options)
