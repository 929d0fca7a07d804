"""Distances, votes and Mahalanobis distances against their definitions; each on a small problem."""

import math

import numpy as np
import pytest
import torch

from surefind import metrics
from surefind.errors import DegenerateError
from surefind.neighbours import unit64
from surefind.paper import baselines as module
from surefind.paper.baselines import (
    CLASSIFIERS,
    NeighbourDistance,
    PointEstimate,
    answers_in_folds,
    baseline_scores,
    fit_mahalanobis,
    fit_margin,
)
from surefind.paper.running import NEED_CLASSES, train_method
from surefind.paper.vocabulary import BASELINES


@pytest.fixture
def labels():
    return torch.tensor([3, 1, 3, 7, 1, 1, 7, 3, 3, 1] * 3)


def chords(queries, train):
    return torch.cdist(
        queries.double(), train.double(), compute_mode="donot_use_mm_for_euclid_dist"
    )


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_density_is_the_mean_distance_to_the_nearest(directions, k, dtype):
    train, queries = directions(30, 3), directions(8, 3)
    fitted = NeighbourDistance(unit64(train), k)
    scores = fitted.score(queries.to(dtype))
    expected = chords(queries, train).sort(1).values[:, :k].mean(1)
    assert scores.dtype == dtype
    torch.testing.assert_close(scores.double(), expected, atol=1e-6, rtol=0)


def test_margin_compares_with_the_second(directions):
    train, queries = directions(30, 3), directions(8, 3)
    d = chords(queries, train).sort(1).values
    scores = fit_margin(train).score(queries)
    torch.testing.assert_close(scores, d[:, 0] - d[:, 1], atol=1e-6, rtol=0)


def margins(d, labels):
    """d_1 - d_o of each row, by looking at every column."""
    out = []
    for row in d:
        first = int(row.argmin())
        out.append(float(row[first] - row[labels != labels[first]].min()))
    return np.array(out)


def test_labelled_margin_compares_with_another_label(directions, labels):
    train, queries = directions(30, 3), directions(20, 3)
    scores = fit_margin(train, labels).score(queries)
    np.testing.assert_allclose(scores, margins(chords(queries, train), labels), atol=1e-6)


@pytest.mark.parametrize("labelled", [False, True])
def test_margin_among_the_training_vectors_leaves_each_out(directions, labels, labelled):
    train = directions(30, 3)
    train[4] = train[3]  # a duplicate of another label
    d = chords(train, train).fill_diagonal_(torch.inf)
    expected = []
    for row in d:
        first = int(row.argmin())
        others = row[labels != labels[first]] if labelled else row.sort().values[1:]
        expected.append(float(row[first] - others.min()))
    fitted = fit_margin(train, labels if labelled else None)
    scores = fitted.score(train, exclude_self=True)
    torch.testing.assert_close(scores, torch.tensor(expected).double(), atol=1e-6, rtol=0)


def slow_mahalanobis(x, y, queries, shrinkage):
    """By the definition, with an explicit inverse."""
    x, y, queries = x.numpy(), y.numpy(), queries.numpy()
    means = {c: x[y == c].mean(0) for c in np.unique(y)}
    residual = np.stack([row - means[c] for row, c in zip(x, y, strict=True)])
    S = residual.T @ residual / len(x)
    d = len(S)
    inverse = np.linalg.inv((1 - shrinkage) * S + shrinkage * np.trace(S) / d * np.eye(d))
    return np.array([
        min(((q - m) @ inverse @ (q - m)) ** 0.5 for m in means.values()) for q in queries
    ])


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_mahalanobis_equals_the_definition(normal, labels, offset):
    x = offset + normal(30, 5) @ normal(5, 5) + labels[:, None]
    queries = offset + 3 * normal(9, 5)
    scores = fit_mahalanobis(x, labels).score(queries)
    np.testing.assert_allclose(scores, slow_mahalanobis(x, labels, queries, 0.1), rtol=1e-8)
    with pytest.raises(DegenerateError):
        fit_mahalanobis(x, torch.arange(30))


def test_wide_features_keep_the_principal_directions(normal, labels, monkeypatch):
    """Six strong directions and a little of everything else: the low-rank form is nearly exact."""
    d = 60
    labels = labels.repeat(20)
    axes = torch.linalg.qr(normal(d, d)).Q
    spread = torch.cat([
        torch.tensor([9.0, 8, 7, 6, 5, 4]).double(),
        0.1 * torch.ones(d - 6).double(),
    ])
    x = normal(600, d) * spread @ axes.T + labels[:, None]
    queries = 5 * normal(20, d)
    exact = fit_mahalanobis(x, labels).score(queries)
    for name, value in (("EXACT_DIM", 10), ("ROWS", 128), ("RANK", 6)):
        monkeypatch.setattr(module, name, value)
    fitted = fit_mahalanobis(x, labels)
    assert fitted.directions.shape == (d, 6)
    torch.testing.assert_close(fitted.score(queries), exact, rtol=0.01, atol=0)
    single = fit_mahalanobis(x.float(), labels).score(queries.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, rtol=0.01, atol=0)


def test_fewer_examples_than_directions_are_exact(normal, labels, monkeypatch):
    x, queries = normal(30, 50), normal(7, 50)
    exact = slow_mahalanobis(x, labels, queries, 0.1)
    monkeypatch.setattr(module, "EXACT_DIM", 10)
    monkeypatch.setattr(module, "RANK", 40)
    np.testing.assert_allclose(fit_mahalanobis(x, labels).score(queries), exact, rtol=1e-6)


@pytest.fixture(scope="module")
def point(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("point")
    return PointEstimate(tiny, train_method("norm", tiny, 0, folder, lambda *_: None))


@pytest.mark.parametrize("name", ["nearest-distance", "knn-density", "margin"])
def test_ood_inputs_are_scored_against_the_training_set_and_queries_against_the_gallery(
    point, tiny, name
):
    scores = baseline_scores(name, point)
    known, train, ood = (point.unit(part) for part in (tiny.test, tiny.train, tiny.ood))
    to_train, to_others = chords(known, train).numpy(), chords(known, known).numpy()
    np.fill_diagonal(to_others, np.inf)
    outside = chords(ood, train).numpy()
    k = 10 if name == "knn-density" else 1
    if name == "margin":
        of_train, of_test = tiny.train.labels.numpy(), tiny.test.labels.numpy()
        expected = [margins(to_others, of_test), margins(to_train, of_train)]
        expected.append(margins(outside, of_train))
    else:
        expected = [np.sort(d, axis=1)[:, :k].mean(1) for d in (to_others, to_train, outside)]
    found = scores.retrieval, scores.id, scores.ood
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


def shares(cosines, alike):
    """Of the ten nearest, the share that is like each of them, one by one."""
    nearest = sorted((c, i) for i, c in enumerate(cosines) if c is not None)[::-1][:10]
    return [sum(alike(i, j) for _, j in nearest) / len(nearest) for _, i in nearest]


def same(labels):
    return lambda i, j: labels[i] == labels[j]


def test_a_vote_doubts_the_nearest_answer_in_the_gallery_and_any_answer_among_training_data(
    point, tiny
):
    scores = baseline_scores("vote", point)
    vectors, known, ood = (point.unit(part) for part in (tiny.train, tiny.test, tiny.ood))
    for queries, got in ((known, scores.id), (ood, scores.ood)):
        for query, found in zip(queries.double(), got, strict=True):
            cosines = (vectors.double() @ query).tolist()
            assert found == pytest.approx(1 - max(shares(cosines, same(tiny.train.labels))))
    for i, query in enumerate(known.double()):
        cosines = (known.double() @ query).tolist()
        cosines[i] = None
        assert scores.retrieval[i] == pytest.approx(1 - shares(cosines, same(tiny.test.labels))[0])


def test_a_vote_over_places_doubts_the_disc_around_the_nearest_item(placed, tmp_path):
    point = PointEstimate(placed, train_method("norm", placed, 0, tmp_path, lambda *_: None))
    scores = baseline_scores("vote", point)
    for found, part, pick in (
        (scores.retrieval, placed.gallery, lambda shares: shares[0]),
        (scores.id, placed.train, max),
    ):
        at, items = part.positions.tolist(), point.unit(part)
        near = lambda i, j, at=at: math.dist(at[i], at[j]) <= 25
        for query, got in zip(point.unit(placed.test).double(), found, strict=True):
            assert got == pytest.approx(1 - pick(shares((items.double() @ query).tolist(), near)))


@pytest.fixture
def blobs():
    """Unit vectors of three labels, one of them with a single item."""
    g = np.random.default_rng(0)
    labels = np.array([4, 7, 7, 4, 7] * 12 + [9])
    mean = {4: [1, 0, 0], 7: [0, 1, 0], 9: [0, 0, 1]}
    vectors = np.array([mean[label] for label in labels]) + 0.4 * g.standard_normal((61, 3))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), labels


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_answers_what_lies_with_others_and_knows_what_lies_elsewhere(blobs, name):
    vectors, labels = blobs
    answer, doubt, known = CLASSIFIERS[name](vectors[:60], labels[:60])(vectors)
    right = answer == labels
    assert right[:60].mean() > 0.9
    assert metrics.r_auroc(right, doubt) > 0.8
    assert known[60] > np.median(known[:60])


def test_no_vector_of_a_closed_set_is_answered_by_a_classifier_that_was_fitted_to_it(blobs):
    vectors, labels = blobs
    seen = []

    def fit(fitted, their):
        assert set(their) == {4, 7} | ({9} if len(seen) else set())

        def answer(queries):
            assert not {row.tobytes() for row in fitted} & {row.tobytes() for row in queries}
            seen.extend(row.tobytes() for row in queries)
            first = np.array([their[(fitted @ query).argmax()] for query in queries])
            return first, queries[:, 0], queries[:, 1]

        return answer

    answers, doubt = answers_in_folds(fit, vectors, labels)
    assert sorted(seen) == sorted(row.tobytes() for row in vectors)
    np.testing.assert_array_equal(doubt, vectors[:, 0])
    assert (answers == labels)[:60].mean() > 0.9
    assert answers[60] != 9


@pytest.mark.parametrize("name", sorted(set(BASELINES) - set(NEED_CLASSES)))
def test_a_gallery_of_its_own_is_searched_whole(placed, name, tmp_path, novel):
    point = PointEstimate(placed, train_method(name, placed, 0, tmp_path, lambda *_: None))
    scores = baseline_scores(name, point)
    assert scores.ood is None
    if name == "nearest-distance":
        wanted = chords(point.unit(placed.test), point.unit(placed.gallery)).min(1).values
        np.testing.assert_allclose(scores.retrieval, wanted, atol=1e-6)
