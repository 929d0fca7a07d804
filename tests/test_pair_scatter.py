import numpy as np
import oracles
import pytest
import torch

import surefind as sf
from surefind.pairs import relations as blocks
from surefind.whitening import (
    centred,
    check_difference,
    factors,
    pair_scatter,
    spectrum,
    whitening,
)

N = 14


def rows(seed=0, d=5):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((N, d)) + 3)


def relations():
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1, 2, 3, 3, 3, 4, 4, 4])
    at = torch.from_numpy(np.random.default_rng(1).uniform(0, 60, (N, 2)))
    left, right = torch.tensor([0, 3, 9, 2]), torch.tensor([5, 1, 4, 7])
    judged = torch.tensor([True, True, False, True])
    return {
        "classes": sf.Classes(labels),
        "positions": sf.Positions(at),
        "pairs": sf.PairList(left, right, judged, N),
    }


def brute_force(h, relation):
    """Add up the pairs that the relation's own mask calls positive, one by one."""
    positive = relation.block(slice(0, N), slice(0, N))[0]
    total, count = np.zeros((h.shape[1], h.shape[1])), 0
    for i in range(N):
        for j in range(i):
            if positive[i, j]:
                total += np.outer(h[i] - h[j], h[i] - h[j])
                count += 1
    return total, count


@pytest.mark.parametrize("kind", ["classes", "positions", "pairs"])
@pytest.mark.parametrize("size", [4096, 3])
def test_the_scatter_is_the_sum_over_positive_pairs_of_any_relation(monkeypatch, kind, size):
    monkeypatch.setattr(blocks, "BLOCK_ROWS", size)
    monkeypatch.setattr(blocks, "BLOCK_COLUMNS", size)
    h, relation = rows(), relations()[kind]
    found, pairs = pair_scatter(h, relation)
    expected, count = brute_force(h.numpy(), relation)
    assert pairs == count > 0
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    assert torch.equal(found, found.T)


def test_the_scatter_does_not_care_where_zero_is():
    relation = relations()["positions"]
    near, far = pair_scatter(rows(), relation)[0], pair_scatter(rows() + 1e6, relation)[0]
    torch.testing.assert_close(near, far, rtol=1e-6, atol=1e-6)


def test_tight_places_far_apart_keep_their_scatter():
    g = np.random.default_rng(2)
    offsets = 1e-4 * g.standard_normal((N, 3))
    h = 10 * g.standard_normal((N // 2, 3))[np.arange(N) // 2] + offsets
    relation = sf.Classes(torch.arange(N) // 2)
    expected, _ = brute_force(h, relation)
    np.testing.assert_allclose(
        pair_scatter(torch.from_numpy(h), relation)[0], expected, rtol=1e-5, atol=1e-12
    )


@pytest.mark.parametrize("copies", [2, 3, 5, 8])
@pytest.mark.parametrize("d", [4, 64, 512])
def test_what_rounding_leaves_of_equal_features_is_nothing(copies, d):
    own = torch.arange(7 * copies) // copies
    h = torch.from_numpy(np.random.default_rng(d).standard_normal((7, d)))[own]
    at = 100 * own[:, None] * torch.ones(1, 2, dtype=torch.float64)
    for relation in (sf.Classes(own), sf.Positions(at)):
        scatter, pairs = pair_scatter(h, relation)
        assert pairs == 7 * copies * (copies - 1) // 2
        assert not scatter.any()
        with pytest.raises(sf.DegenerateError) as refusal:
            check_difference(scatter, "head")
        assert refusal.value.field == "head"


def test_no_positive_pair_has_no_scatter():
    found, pairs = pair_scatter(rows(), sf.Classes(torch.arange(N)))
    assert pairs == 0
    np.testing.assert_allclose(found, 0, atol=1e-12)


def test_a_centred_head_is_the_inverse_root_behind_a_shift():
    scatter = brute_force(rows().numpy(), relations()["classes"])[0]
    mean = rows().numpy().mean(0)
    found = centred(torch.from_numpy(scatter), torch.from_numpy(mean), 0.3)
    np.testing.assert_allclose(found, oracles.centred_whitening(scatter, mean, 0.3), rtol=1e-9)


def test_differences_are_isotropic_after_whitening_without_a_ridge():
    relation = relations()["classes"]
    scatter, pairs = pair_scatter(rows(), relation)
    after, _ = pair_scatter(rows() @ whitening(scatter, 0.0), relation)
    torch.testing.assert_close(after, float(scatter.trace()) / 5 * torch.eye(5).double())
    assert pairs == relation.n_positive // 2


def test_factors_belong_to_the_spectrum():
    scatter = pair_scatter(rows(), relations()["classes"])[0]
    variances, directions = spectrum(scatter)
    assert float(variances.mean()) == pytest.approx(1)
    root = (directions * factors(variances, 2.0)) @ directions.T
    torch.testing.assert_close(root, whitening(scatter, 2.0))
