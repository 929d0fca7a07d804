import mpmath
import numpy as np
import pytest
import torch

from surefind.embeddings import Embeddings
from surefind.gallery.engine import Records
from surefind.gallery.gallery import Gallery
from surefind.gallery.ranking import (
    RANKS,
    candidates,
    find,
    match_scores,
    mean_resultant_length,
    score,
)
from surefind.posterior.vmf import vmf_match_score


def unit(rng, *shape):
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.parametrize("dim", [2, 3, 16, 128, 1024])
@pytest.mark.parametrize("kappa", [1e-3, 1.0, 37.0, 900.0, 1e6])
def test_the_mean_resultant_length_is_a_ratio_of_bessel_functions(dim, kappa):
    with mpmath.workdps(60):
        ratio = mpmath.besseli(dim / 2, kappa) / mpmath.besseli(dim / 2 - 1, kappa)
    assert mean_resultant_length(np.array([kappa]), dim)[0] == pytest.approx(float(ratio), rel=1e-9)


def test_no_and_full_certainty():
    lengths = mean_resultant_length(np.array([[np.inf, 0.0], [1e-9, 1e20]]), 8)
    np.testing.assert_allclose(lengths, [[1, 0], [1e-9 / 8, 1]], rtol=1e-6)


def draw_vmf(mean, kappa, n, rng):
    """Draw from a vMF by accepting points of the sphere with the density's share of its maximum."""
    x = unit(rng, n, len(mean))
    return x[rng.uniform(size=n) < np.exp(kappa * (x @ mean - 1))]


def test_the_expected_cosine_is_that_of_draws():
    rng = np.random.default_rng(0)
    a, b = unit(rng, 2, 4)
    left, right = draw_vmf(a, 3.0, 200_000, rng), draw_vmf(b, 5.0, 200_000, rng)
    n = min(len(left), len(right))
    products = (left[:n] * right[:n]).sum(1)
    gap = np.array([[1 - a @ b]])
    expected = score("expected", gap, np.array([3.0]), np.array([[5.0]]), 4)[0, 0]
    assert expected == pytest.approx(products.mean(), abs=4 * products.std() / n**0.5)


def test_match_is_the_vmf_match_score():
    rng = np.random.default_rng(1)
    q, g = unit(rng, 3, 6), unit(rng, 5, 6)
    kq, kg = rng.uniform(1, 90, 3), rng.uniform(1, 90, 5)
    ours = score("match", 1 - q @ g.T, kq, np.repeat(kg[None], 3, 0), 6)
    theirs = vmf_match_score(
        Embeddings(torch.tensor(q), torch.tensor(kq)), Embeddings(torch.tensor(g), torch.tensor(kg))
    )
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-9)


def test_a_sure_item_comes_before_a_slightly_nearer_unsure_one():
    query = np.array([[1.0, 0, 0, 0]])
    near, far = np.array([[0.98, 0.199, 0, 0]]), np.array([[0.96, 0.28, 0, 0]])
    items = np.concatenate([near, far])
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    gallery = Gallery()
    gallery.add(Embeddings(items, np.array([5.0, 500.0])), ids=["unsure", "sure"])
    asked = Embeddings(query, np.array([50.0]))
    assert gallery.search(asked).ids[0].tolist() == ["unsure", "sure"]
    for rank in ("expected", "match"):
        assert gallery.search(asked, rank=rank).ids[0].tolist() == ["sure", "unsure"]


def test_expected_needs_no_finite_kappa():
    rng = np.random.default_rng(2)
    gallery = Gallery()
    x = unit(rng, 20, 5)
    gallery.add(x)
    plain, expected = gallery.search(x, k=5), gallery.search(x, k=5, rank="expected")
    assert plain.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(plain.scores, expected.scores)


def test_more_candidates_are_looked_at_when_they_are_reordered():
    assert candidates(10, "distance") > 10
    assert candidates(1, "expected") >= 64
    assert candidates(1000, "match") >= 4000


def test_candidates_come_by_cosine_whatever_the_rank():
    rng = np.random.default_rng(3)
    engine = Gallery()._engine
    x = unit(rng, 300, 6).astype(np.float32)
    engine.put(
        Records(
            list(range(300)), x, rng.uniform(1, 90, 300), np.full(300, np.nan), *[[None] * 300] * 3
        )
    )
    q = unit(rng, 4, 6).astype(np.float32)
    for rank in RANKS:
        found = find(engine, q, np.full(4, 30.0), 5, rank, voters=100)
        assert found.ids.shape[1] >= 100
        expected = np.argsort(-(q.astype(float) @ x.T.astype(float)), axis=1)[:, :100]
        assert (found.ids[:, :100] == expected).all()
        np.testing.assert_allclose(
            found.gaps[:, :100], 1 - np.take_along_axis(q @ x.T, expected, 1), atol=1e-6
        )
        scores = score(rank, found.gaps, np.full(4, 30.0), found.kappa, 6)
        np.testing.assert_array_equal(found.scores, np.take_along_axis(scores, found.best, 1))
        assert (found.scores[:, 0] == scores.max(1)).all()


def test_an_infinite_kappa_is_the_limit_of_large_ones():
    gaps, items = np.array([[0.1, 0.3]]), np.array([[40.0, 90.0]])
    infinite = match_scores(gaps, np.array([np.inf]), items, 8)
    large = match_scores(gaps, np.array([1e12]), items, 8)
    np.testing.assert_allclose(infinite, large, rtol=1e-6)
