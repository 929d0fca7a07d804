import numpy as np
import pytest
import torch

from surefind import metrics
from surefind.errors import DegenerateError, InputError


def slow_scores(neighbours, query_labels, gallery_labels, k, closed):
    """recall@k and AP@k of each answerable query, by their definitions."""
    recalls, precisions = [], []
    for i, row in enumerate(neighbours):
        relevant = sum(1 for label in gallery_labels if label == query_labels[i]) - closed
        if relevant == 0:
            continue
        found, total = 0, 0.0
        for r in range(1, k + 1):
            if gallery_labels[row[r - 1]] == query_labels[i]:
                found += 1
                total += found / r
        recalls.append(float(found > 0))
        precisions.append(total / min(k, relevant))
    return np.array(recalls), np.array(precisions)


@pytest.fixture
def closed():
    """Thirty examples in seven classes, one of them alone, in random orders without themselves."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 6, 30)
    labels[11] = 99
    neighbours = np.stack([rng.permutation(np.delete(np.arange(30), i)) for i in range(30)])
    return neighbours, labels


@pytest.fixture
def open_set():
    rng = np.random.default_rng(4)
    neighbours = np.stack([rng.permutation(25) for _ in range(9)])
    return neighbours, np.array([0, 1, 2, 3, 4, 7, 0, 1, 8]), rng.integers(0, 5, 25)


@pytest.mark.parametrize("k", [1, 5, 10, 29])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_closed_set_equals_the_definition(closed, k, kind):
    neighbours, labels = closed
    recalls, precisions = slow_scores(neighbours, labels, labels, k, closed=1)
    n, y = kind(neighbours), kind(labels)
    assert metrics.recall_at_k(n, y, y, k) == pytest.approx(recalls.mean(), abs=1e-14)
    assert metrics.map_at_k(n, y, y, k) == pytest.approx(precisions.mean(), abs=1e-14)
    relevant = metrics.relevance(n, y, y)
    assert relevant.unanswerable == 1
    assert len(relevant) == 30
    np.testing.assert_allclose(metrics.recall_per_query(relevant, k), recalls)
    np.testing.assert_allclose(metrics.average_precision_per_query(relevant, k), precisions)


@pytest.mark.parametrize("k", [1, 3, 25])
def test_open_set_equals_the_definition(open_set, k):
    neighbours, queries, gallery = open_set
    recalls, precisions = slow_scores(neighbours, queries, gallery, k, closed=0)
    assert metrics.recall_at_k(neighbours, queries, gallery, k) == pytest.approx(recalls.mean())
    assert metrics.map_at_k(neighbours, queries, gallery, k) == pytest.approx(precisions.mean())
    assert metrics.relevance(neighbours, queries, gallery).unanswerable == 2


def test_a_gallery_in_the_queries_order_is_known_by_a_query_that_finds_its_twin():
    neighbours, labels = np.array([[0, 1], [0, 1], [2, 0]]), np.array([5, 6, 7])
    assert metrics.recall_at_k(neighbours, labels, labels, 1) == pytest.approx(2 / 3)
    missed = np.array([[2, 1], [0, 2], [1, 0]])
    with pytest.raises(DegenerateError) as refused:
        metrics.recall_at_k(missed, labels, labels, 1)
    assert refused.value.field == "self_in_gallery"
    assert metrics.recall_at_k(missed, labels, labels, 1, self_in_gallery=False) == 0


def test_perfect_and_reversed_rankings():
    labels = np.array([0, 0, 0, 1, 1, 1])
    others = [[j for j in range(6) if j != i] for i in range(6)]
    best = np.array([sorted(o, key=lambda j: labels[j] != labels[i]) for i, o in enumerate(others)])
    for k in (1, 2, 5):
        assert metrics.recall_at_k(best, labels, labels, k) == 1
        assert metrics.map_at_k(best, labels, labels, k) == 1
    worst = best[:, ::-1].copy()
    assert metrics.recall_at_k(worst, labels, labels, 3) == 0
    assert metrics.map_at_k(worst, labels, labels, 3) == 0


def test_names_are_labels_too():
    neighbours = np.array([[1], [0], [1]])
    names = np.array(["cat", "cat", "dog"])
    assert metrics.recall_at_k(neighbours, names, names, 1) == 1
    assert metrics.recall_at_k(neighbours, names.astype(object), names.tolist(), 1) == 1


def test_one_query():
    assert metrics.recall_at_k([[0, 1]], [3], [2, 3], 1) == 0
    assert metrics.map_at_k([[0, 1]], [3], [2, 3], 2) == 0.5


@pytest.mark.parametrize("in_gallery", [False, True])
def test_places_are_relevant_within_a_radius(in_gallery):
    rng = np.random.default_rng(0)
    gallery = 5e6 + 20 * rng.normal(size=(40, 2))
    queries = gallery if in_gallery else 5e6 + 20 * rng.normal(size=(6, 2))
    neighbours = np.stack([rng.permutation(40)[:10] for _ in queries])
    if in_gallery:
        neighbours = (np.arange(40)[:, None] + np.arange(1, 11)) % 40
    found = metrics.relevance_within(
        neighbours, queries, torch.as_tensor(gallery), 25.0, self_in_gallery=in_gallery
    )
    apart = np.array([[np.hypot(*(q - g)) for g in gallery] for q in queries])
    np.testing.assert_array_equal(found.counts, (apart <= 25).sum(1) - in_gallery)
    expected = np.take_along_axis(apart, neighbours, 1) <= 25
    np.testing.assert_array_equal(found.hits, expected)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (([[0.0]], [0], [0], 1), "neighbours"),
        (([0], [0], [0], 1), "neighbours"),
        (([[0]], [0, 1], [0], 1), "neighbours"),
        (([[1]], [0], [0], 1), "neighbours"),
        (([[-1]], [0], [0], 1), "neighbours"),
        (([[0]], [0], [0], 0), "k"),
        (([[0]], [0], [0], 2), "k"),
        (([[0]], [1], [0], 1), "self_in_gallery"),
        (([[0]], [0.5], [0], 1), "query_labels"),
        (([[0]], [0], [[0]], 1), "gallery_labels"),
        (([[0]], ["a"], [0], 1), None),
        (([[0]], [], [0], 1), "query_labels"),
        (([[0]], np.array([], int), [0], 1), "query_labels"),
        (([[0, 0]], [0], [0], 1), "hits"),
        ((np.zeros((1, 0), int), [0], [0], 1), "hits"),
    ],
)
def test_what_cannot_be_ranked_is_refused(arguments, field):
    for metric in (metrics.recall_at_k, metrics.map_at_k):
        with pytest.raises(InputError) as refused:
            metric(*arguments)
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("neighbours", "gallery", "field"),
    [([[0], [0]], [0, 0], "self_in_gallery"), ([[0], [1]], [0, 1], "hits")],
)
def test_queries_said_to_be_in_the_gallery_must_be_there(neighbours, gallery, field):
    with pytest.raises(InputError) as refused:
        metrics.relevance(neighbours, [0, 1], gallery, self_in_gallery=True)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("hits", "counts", "field"),
    [
        (np.zeros((2, 3)), np.ones(2, int), "hits"),
        (np.zeros(2, bool), np.ones(2, int), "hits"),
        (np.zeros((2, 3), bool), np.ones(3, int), "counts"),
        (np.zeros((2, 3), bool), np.ones(2), "counts"),
    ],
)
def test_relevance_by_hand_is_checked(hits, counts, field):
    with pytest.raises(InputError) as refused:
        metrics.Relevance(hits, counts)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("queries", "gallery", "radius", "field"),
    [
        (np.zeros((1, 2)), np.zeros((1, 3)), 1.0, "gallery_positions"),
        (np.zeros((1, 2)), np.zeros((1, 2)), 0.0, "radius"),
        (np.full((1, 2), np.nan), np.zeros((1, 2)), 1.0, "query_positions"),
    ],
)
def test_positions_that_do_not_fit_are_refused(queries, gallery, radius, field):
    with pytest.raises(InputError) as refused:
        metrics.relevance_within([[0]], queries, gallery, radius)
    assert refused.value.field == field
