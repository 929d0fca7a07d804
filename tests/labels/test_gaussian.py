"""Gaussian evidence against dense Gaussians of scipy, and the laws of its sums."""

import numpy as np
import pytest
from oracles import covariances
from scipy.stats import multivariate_normal

from surefind.labels.gaussian import COORDINATES, Centres, LabelSums, fit_space, principal


def dense_evidence(query, items, mean, between, within):
    """Log p(x | label of these items) - log p(x | none), by conditioning one joint Gaussian."""
    d, n = len(query), len(items)
    joint = np.kron(np.ones((n + 1, n + 1)), between) + np.kron(np.eye(n + 1), within)
    seen = joint[d:, d:]
    gain = joint[:d, d:] @ np.linalg.inv(seen)
    given = mean + gain @ (items - mean).ravel()
    spread = joint[:d, :d] - gain @ joint[d:, :d]
    return multivariate_normal(given, spread).logpdf(query) - multivariate_normal(
        mean, between + within
    ).logpdf(query)


def test_evidence_is_that_of_dense_gaussians(world):
    vectors, codes, queries, _ = world(labels=5, each=4, d=4)
    keep = np.ones(len(codes), dtype=bool)
    keep[1:4] = False  # the first label has one vector
    vectors, codes = vectors[keep], codes[keep]
    space = fit_space(LabelSums.of(vectors, codes, 5), normalize=False)
    centres = Centres.of(space(vectors), codes, 5, space.spread)
    parts = covariances(vectors, codes)
    expected = [
        [dense_evidence(q, vectors[codes == label].astype(float), *parts) for label in range(5)]
        for q in queries[:7].astype(float)
    ]
    np.testing.assert_allclose(centres.scores(space(queries[:7])), expected, rtol=1e-3, atol=1e-3)


def test_the_space_makes_both_covariances_diagonal(world):
    vectors, codes, *_ = world()
    space = fit_space(LabelSums.of(vectors, codes, 12), normalize=False)
    mean, between, within = covariances(vectors, codes)
    t = space.transform
    np.testing.assert_allclose(t @ within @ t.T, np.eye(len(t)), atol=1e-6)
    np.testing.assert_allclose(t @ between @ t.T, np.diag(space.spread), atol=1e-5)
    np.testing.assert_allclose(space.mean, mean, atol=1e-6)
    lengths = np.square(fit_space(LabelSums.of(vectors, codes, 12), normalize=True)(vectors)).sum(1)
    np.testing.assert_allclose(lengths, (space.spread + 1).sum(), rtol=1e-5)


def test_far_is_the_mahalanobis_distance_under_none(world):
    vectors, codes, queries, _ = world(d=4)
    space = fit_space(LabelSums.of(vectors, codes, 12), normalize=True)
    mean, between, within = covariances(vectors, codes)
    away = queries[:5] - mean
    expected = np.einsum("qd,de,qe->q", away, np.linalg.inv(between + within), away)
    np.testing.assert_allclose(space.far(queries[:5]), expected, rtol=1e-4)


def test_several_centres_are_a_mixture(world):
    vectors, codes, queries, _ = world(labels=3, each=20)
    space = fit_space(LabelSums.of(vectors, codes, 3), normalize=False)
    rng = np.random.default_rng(0)
    centres = Centres.of(space(vectors), codes, 3, space.spread, each=4, rng=rng)
    found = centres.scores(space(queries[:6]))
    x = space(queries[:6])
    for label in range(3):
        parts = []
        for c in np.flatnonzero(centres.owner == label):
            n = centres.counts[c]
            v = 1 / (1 / space.spread + n)
            near = multivariate_normal(v * centres.totals[c], np.diag(v + 1)).logpdf(x)
            none = multivariate_normal(np.zeros(len(v)), np.diag(space.spread + 1)).logpdf(x)
            parts.append(np.log(n / 20) + near - none)
        np.testing.assert_allclose(
            found[:, label], np.logaddexp.reduce(parts), rtol=1e-3, atol=1e-3
        )


def test_sums_add_subtract_and_stand_beside(world):
    vectors, codes, *_ = world()
    whole = LabelSums.of(vectors, codes, 12)
    some = np.arange(len(codes)) % 3 == 0
    one, two = (LabelSums.of(vectors[rows], codes[rows], 12) for rows in (some, ~some))
    low, high = codes < 5, codes >= 5
    beside = LabelSums.of(vectors[low], codes[low], 5).beside(
        LabelSums.of(vectors[high], codes[high] - 5, 7)
    )
    for name in ("counts", "totals", "second"):
        expected = getattr(whole, name)
        for found in (one + two, whole - one + one, beside):
            np.testing.assert_allclose(getattr(found, name), expected, atol=1e-9)
    order = np.random.default_rng(1).permutation(len(codes))
    shuffled = fit_space(LabelSums.of(vectors[order], codes[order], 12), normalize=True)
    np.testing.assert_allclose(shuffled.spread, fit_space(whole, normalize=True).spread, rtol=1e-6)


@pytest.mark.parametrize("n", [40, 850])
def test_many_dimensions_are_projected_on_principal_ones(n):
    rng = np.random.default_rng(0)
    d = COORDINATES + 40
    vectors = (rng.normal(size=(n, d)) * np.geomspace(1, 1e-3, d)).astype(np.float32)
    basis = principal(vectors)
    np.testing.assert_allclose(basis @ basis.T, np.eye(len(basis)), atol=1e-6)
    rows = vectors - vectors.mean(axis=0)
    kept = np.square(rows @ basis.T).sum() / np.square(rows).sum()
    best = np.square(np.linalg.svd(rows, compute_uv=False))
    assert kept == pytest.approx(best[: len(basis)].sum() / best.sum(), abs=1e-6)
    assert principal(vectors[:, :20]) is None
