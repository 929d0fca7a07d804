import oracles
import pytest
import torch

from surefind.curvature import pair_scan as pruned
from surefind.curvature.pair_scan import PrunedClasses
from surefind.pairs.relations import Classes, Relation


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
    monkeypatch.setattr(pruned, "BLOCK_ROWS", 13)
    monkeypatch.setattr(pruned, "BLOCK_COLUMNS", 37)
    monkeypatch.setattr(pruned, "PAIRS", 100)
    labels, u = clusters(60, 8, 6, 1.0)
    u[5] = u[50]  # a duplicate, whatever its class
    expected = torch.zeros_like(u)
    for i in range(60):
        for j in range(60):
            near = float(((u[i] - u[j]) ** 2).sum()) <= margin
            if labels[i] != labels[j] and near:
                expected[i] += u[j]
    found = PrunedClasses(Classes(labels))._pruned_sums(u, u, margin, kept)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_large_set_is_pruned_and_equals_the_plain_scan(clusters, dtype):
    labels, u = clusters(5000, 24, 40, 0.5)
    u = u.to(dtype)
    assert pruned._kept_columns(u, 0.5, 25) is not None
    vectors = torch.cat([u, u.new_ones(len(u), 1)], dim=1)
    everything = slice(0, len(u))
    plain, fast = Classes(labels), PrunedClasses(Classes(labels))
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
        found = PrunedClasses(Classes(labels))._pruned_sums(u[:, :1], u, 0.7, kept)
        expected = Classes(labels).negative_sums(u[:, :1], u, 0.7, slice(0, 40)).float()
        torch.testing.assert_close(found, expected)


def test_a_crowded_set_is_scanned_plainly(clusters):
    _, u = clusters(5000, 8, 40, 0.01)
    assert pruned._kept_columns(u, 3.9, 9) is None


def test_a_range_of_rows_is_scanned_plainly(clusters):
    labels, u = clusters(50, 4, 5, 1.0)
    fast = PrunedClasses(Classes(labels))
    whole = fast.negative_sums(u, u, 1.0, slice(0, 50))
    torch.testing.assert_close(fast.negative_sums(u, u, 1.0, slice(10, 20)), whole[10:20])
    same = fast.positive_sums(u, slice(0, 50))
    torch.testing.assert_close(fast.positive_sums(u, slice(10, 20)), same[10:20])


def test_is_a_relation_like_the_labels():
    plain = Classes(torch.tensor([0, 0, 1, 2]))
    relation = PrunedClasses(plain).to(torch.device("cpu"))
    assert isinstance(relation, Relation)
    assert (len(relation), relation.n_positive, relation.n_negative) == (4, 2, 10)
    everything = slice(0, 4)
    for a, b in zip(
        relation.block(everything, everything), plain.block(everything, everything), strict=True
    ):
        assert torch.equal(a, b)
