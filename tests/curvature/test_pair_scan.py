import numpy as np
import oracles
import pytest
import torch

import surefind as sf
from surefind.curvature import pair_scan
from surefind.curvature.head import dense_curvature, kronecker_curvature
from surefind.curvature.pair_scan import PrunedClasses, entries_above, sampled_curvature, scan_pairs
from surefind.models.vectors import Vectors
from surefind.pairs.relations import Classes


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 64, 131])
@pytest.mark.parametrize("threshold", [-9.0, 0.5, 9.0])
def test_lists_what_a_comparison_finds(columns, threshold, generator):
    scores = torch.randn(7, columns, generator=generator)
    i, j = entries_above(scores, threshold)
    found = sorted(zip(i.tolist(), j.tolist(), strict=True))
    assert found == [(a, b) for a in range(7) for b in range(columns) if scores[a, b] >= threshold]


@pytest.fixture
def clusters(normal, generator):
    def make(n, z, classes, noise):
        labels = torch.randint(classes, (n,), generator=generator)
        centres = normal(classes, z)
        return labels, oracles.normalize(centres[labels] + noise * normal(n, z))

    return make


@pytest.mark.parametrize("kept", [1, 3, 7])
@pytest.mark.parametrize("margin", [0.3, 1.0, 4.0])
def test_any_number_of_columns_gives_the_sum_over_the_definition(
    clusters, kept, margin, monkeypatch
):
    monkeypatch.setattr(pair_scan, "BLOCK_ROWS", 13)
    monkeypatch.setattr(pair_scan, "BLOCK_COLUMNS", 37)
    monkeypatch.setattr(pair_scan, "PAIRS", 100)
    labels, u = clusters(60, 8, 6, 1.0)
    u[5] = u[50]  # a duplicate, whatever its class
    expected = torch.zeros_like(u)
    for i in range(60):
        for j in range(60):
            near = float(((u[i] - u[j]) ** 2).sum()) <= margin
            if labels[i] != labels[j] and near:
                expected[i] += u[j]
    found = PrunedClasses(labels)._pruned_sums(u, u, margin, kept)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_set_is_pruned_and_equals_the_plain_scan(clusters, dtype):
    labels, u = clusters(5000, 24, 40, 0.5)
    u = u.to(dtype)
    assert pair_scan._kept_columns(u, 0.5, 25) is not None
    vectors = torch.cat([u, u.new_ones(len(u), 1)], dim=1)
    everything = slice(0, len(u))
    plain, fast = Classes(labels), PrunedClasses(labels)
    expected = plain.negative_sums(vectors, u, 0.5, everything).to(dtype)
    assert expected[:, -1].sum() > 0
    torch.testing.assert_close(fast.negative_sums(vectors, u, 0.5, everything), expected)
    same = plain.positive_sums(vectors, everything).to(dtype)
    torch.testing.assert_close(fast.positive_sums(vectors, everything), same)


def test_rest_of_almost_nothing_does_not_lose_pairs(generator):
    # ρ is below rounding for one side only: too small a ρ would rule the pair out.
    u = torch.zeros(40, 6)
    u[:, 0], u[20:, 0], u[20:, 5] = 1, 0.65, 1 - 0.65**2
    u[20:] = torch.nn.functional.normalize(u[20:], dim=1)
    labels = torch.arange(40) // 20
    for kept in (1, 5):
        found = PrunedClasses(labels)._pruned_sums(u[:, :1], u, 0.7, kept)
        expected = Classes(labels).negative_sums(u[:, :1], u, 0.7, slice(0, 40)).float()
        torch.testing.assert_close(found, expected)


def test_a_crowded_set_is_scanned_plainly(clusters):
    _, u = clusters(5000, 8, 40, 0.01)
    assert pair_scan._kept_columns(u, 3.9, 9) is None


def test_a_range_of_rows_is_scanned_plainly(clusters):
    labels, u = clusters(50, 4, 5, 1.0)
    fast = PrunedClasses(labels)
    whole = fast.negative_sums(u, u, 1.0, slice(0, 50))
    torch.testing.assert_close(fast.negative_sums(u, u, 1.0, slice(10, 20)), whole[10:20])
    same = fast.positive_sums(u, slice(0, 50))
    torch.testing.assert_close(fast.positive_sums(u, slice(10, 20)), same[10:20])


@pytest.fixture
def problem():
    g = np.random.default_rng(3)
    labels = g.integers(8, size=300)
    X = g.standard_normal((8, 5))[labels] + g.standard_normal((300, 5))
    weights = torch.from_numpy(g.standard_normal((4, 6)))
    return Vectors(X), weights, Classes(torch.from_numpy(labels))


def estimate(problem, columns, seed=0, distance="arccos", margin=1.0):
    vectors, weights, classes = problem
    return sampled_curvature(
        vectors,
        weights,
        classes,
        distance=distance,
        margin=margin,
        columns=columns,
        generator=torch.Generator().manual_seed(seed),
    )


def exact(problem, distance="arccos", margin=1.0):
    vectors, weights, classes = problem
    features = vectors.features(slice(None))
    return sf.dataset_curvature(
        features, features @ weights.T, classes, distance=distance, margin=margin
    )


@pytest.mark.parametrize("distance", ["arccos", "euclidean"])
@pytest.mark.parametrize("dense", [0.0, 1.0])
@pytest.mark.parametrize("columns", [300, 10_000])
def test_all_columns_are_exact(problem, distance, dense, columns, monkeypatch):
    monkeypatch.setattr(pair_scan, "DENSE", dense)
    found = estimate(problem, columns, distance=distance)
    torch.testing.assert_close(found.curvature, exact(problem, distance))
    assert found.relative_error == 0


@pytest.mark.slow
def test_the_estimate_is_unbiased_and_its_error_is_as_stated(problem):
    truth = exact(problem)
    runs = [estimate(problem, 60, seed) for seed in range(80)]
    values = torch.stack([r.curvature for r in runs])
    deviation = values.std(0)
    bias = (values.mean(0) - truth) / (deviation / len(runs) ** 0.5)
    assert bias.abs().max() < 4.5
    stated = torch.stack([r.error**2 for r in runs]).mean(0).sqrt()
    torch.testing.assert_close(stated, deviation, rtol=0.35, atol=0)
    relative = float((values - truth).norm(dim=(1, 2)).square().mean().sqrt() / truth.norm())
    mean_stated = float(np.sqrt(np.mean([r.relative_error**2 for r in runs])))
    assert mean_stated == pytest.approx(relative, rel=0.25)


def test_more_columns_leave_less_error(problem):
    errors = [
        np.mean([estimate(problem, c, seed).relative_error for seed in range(4)])
        for c in (32, 128, 256)
    ]
    assert errors[0] > errors[1] > errors[2] > 0


def test_the_same_generator_draws_the_same_columns(problem):
    assert torch.equal(estimate(problem, 60, 5).curvature, estimate(problem, 60, 5).curvature)
    assert not torch.equal(estimate(problem, 60, 5).curvature, estimate(problem, 60, 6).curvature)


def test_blocks_of_rows_add_up(problem, monkeypatch):
    whole = estimate(problem, 60)
    monkeypatch.setattr("surefind.models.vectors.BLOCK_ELEMENTS", 70)
    torch.testing.assert_close(estimate(problem, 60).curvature, whole.curvature)


def test_too_few_columns_for_an_error_are_refused(problem):
    with pytest.raises(sf.DegenerateError, match=r"at least 16 columns .* got 10"):
        estimate(problem, 10)


def small(vectors, weights, classes):
    options = {"distance": "arccos", "margin": 1.0}
    h = vectors.features(slice(None))
    return h, h @ weights.T, classes, options


@pytest.mark.parametrize("structure", ["diagonal", "kronecker", "dense"])
@pytest.mark.parametrize("pruned", [True, False])
def test_every_structure_is_that_of_the_batch_of_all_examples(
    problem, structure, pruned, monkeypatch
):
    monkeypatch.setattr(pair_scan, "SMALL", 0 if pruned else 10_000)
    monkeypatch.setattr("surefind.models.vectors.BLOCK_ELEMENTS", 170)
    vectors, weights, classes = problem
    h, outputs, _, options = small(*problem)
    targets = sf.pair_targets(classes.labels, oracles.normalize(outputs), margin=1.0)
    kind = {
        "diagonal": sf.head_curvature,
        "kronecker": kronecker_curvature,
        "dense": dense_curvature,
    }[structure]
    expected = kind(h, outputs, targets, distance="arccos", approximation="fixed")
    scanned, error = scan_pairs(
        vectors,
        weights,
        classes,
        structure=structure,
        columns="all",
        generator=torch.Generator(),
        **options,
    )
    halves = [
        sf.dataset_curvature(h[rows], outputs, classes, structure=structure, rows=rows, **options)
        for rows in (slice(0, 100), slice(100, 100), slice(100, 300))
    ]
    assert error == 0.0
    for found in (scanned, halves[0] + halves[1] + halves[2]):
        for name in ("left", "right") if structure == "kronecker" else ("data",):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))


def test_a_dense_curvature_of_many_weights_is_refused(problem, monkeypatch):
    monkeypatch.setattr("surefind.curvature.dataset.DENSE_WEIGHTS", 23)
    h, outputs, classes, options = small(*problem)
    with pytest.raises(sf.InputError, match="24 weights"):
        sf.dataset_curvature(h, outputs, classes, structure="dense", **options)


def test_only_the_diagonal_of_labelled_examples_is_sampled(problem, monkeypatch):
    vectors, weights, classes = problem
    options = {"distance": "arccos", "margin": 1.0, "generator": torch.Generator()}
    with pytest.raises(sf.InputError, match="scan_columns"):
        scan_pairs(vectors, weights, classes, structure="dense", columns=60, **options)
    monkeypatch.setattr(pair_scan, "EXACT_ROWS", 100)
    monkeypatch.setattr(pair_scan, "COLUMNS", 60)
    errors = [
        scan_pairs(vectors, weights, classes, structure=s, columns="auto", **options)[1]
        for s in ("diagonal", "kronecker")
    ]
    assert errors[0] > 0 == errors[1]
