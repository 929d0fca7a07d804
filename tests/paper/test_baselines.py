"""Distances, votes and Mahalanobis distances against their definitions; each on a small problem."""

import numpy as np
import oracles
import pytest
import torch

from surefind.errors import DegenerateError
from surefind.neighbours import unit64
from surefind.paper import baselines as module
from surefind.paper.baselines import (
    NeighbourDistance,
    PointEstimate,
    baseline_scores,
    fit_mahalanobis,
    fit_margin,
    fit_votes,
    neighbourhood,
    vote_shares,
)
from surefind.paper.running import NEED_CLASSES, train_method
from surefind.paper.vocabulary import DISTANCE_BASELINES


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


def test_labelled_margin_compares_with_another_label(directions, labels):
    train, queries = directions(30, 3), directions(20, 3)
    d = chords(queries, train)
    expected = []
    for row in d:
        first = int(row.argmin())
        expected.append(float(row[first] - row[labels != labels[first]].min()))
    scores = fit_margin(train, labels).score(queries)
    torch.testing.assert_close(scores, torch.tensor(expected).double(), atol=1e-6, rtol=0)


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


def margins(d, labels):
    """d_1 - d_o of each row, by looking at every column."""
    out = []
    for row in d:
        first = int(row.argmin())
        out.append(row[first] - row[labels != labels[first]].min())
    return np.array(out)


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


def test_a_vote_doubts_the_nearest_answer_in_the_gallery_and_any_answer_among_training_data(
    point, tiny
):
    scores = baseline_scores("knn-vote", point)
    assert tiny.held_out[0] == "train"  # there is no validation part
    vectors, known, ood = (point.unit(part) for part in (tiny.train, tiny.test, tiny.ood))
    model = fit_votes(neighbourhood(vectors, tiny.train.labels))
    fitted = 100, model.temperature, model.sharpness, model.prior
    train, test = tiny.train.labels.tolist(), tiny.test.labels.tolist()
    for queries, got in ((known, scores.id), (ood, scores.ood)):
        for query, found in zip(queries.double(), got, strict=True):
            cosines = (vectors.double() @ query).tolist()
            shares, _ = oracles.label_shares(cosines, cosines, train, *fitted)
            assert found == pytest.approx(1 - max(shares.values()), abs=1e-5)
    for i, query in enumerate(known.double()):
        cosines = (known.double() @ query).tolist()
        cosines[i] = None
        shares, nearest = oracles.label_shares(cosines, cosines, test, *fitted)
        assert scores.retrieval[i] == pytest.approx(1 - shares[nearest], abs=1e-5)


def test_a_vote_over_places_doubts_the_disc_around_the_nearest_item(placed, tmp_path):
    point = PointEstimate(placed, train_method("norm", placed, 0, tmp_path, lambda *_: None))
    scores = baseline_scores("knn-vote", point)
    model = fit_votes(neighbourhood(point.unit(placed.train), placed.train.positions))
    for found, part, pick in (
        (scores.retrieval, placed.gallery, lambda shares: shares[0]),
        (scores.id, placed.train, max),
    ):
        places, items = part.positions.tolist(), point.unit(part)
        for query, got in zip(point.unit(placed.test).double(), found, strict=True):
            cosines = (items.double() @ query).tolist()
            discs = oracles.disc_shares(cosines, cosines, places, 100, model.temperature, 25.0)
            assert got == pytest.approx(1 - pick([share for _, share in discs]), abs=1e-5)


@pytest.mark.parametrize("name", sorted(set(DISTANCE_BASELINES) - set(NEED_CLASSES)))
def test_a_gallery_of_its_own_is_searched_whole(placed, name, tmp_path, novel):
    point = PointEstimate(placed, train_method(name, placed, 0, tmp_path, lambda *_: None))
    scores = baseline_scores(name, point)
    assert scores.ood is None
    if name == "nearest-distance":
        wanted = chords(point.unit(placed.test), point.unit(placed.gallery)).min(1).values
        np.testing.assert_allclose(scores.retrieval, wanted, atol=1e-6)


N, Z = 40, 3


@pytest.fixture
def world(generator):
    """Vectors of four classes that overlap, of uneven sizes."""
    labels = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3])[torch.arange(N) % 8]
    centres = torch.randn(4, Z, generator=generator, dtype=torch.float64)
    noise = torch.randn(N, Z, generator=generator, dtype=torch.float64)
    mean = torch.nn.functional.normalize(centres[labels] + 0.6 * noise, dim=1)
    return mean, labels


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "gallery"])
@pytest.mark.parametrize("voters", [100, 7])
def test_the_fit_is_as_likely_as_any_other_and_shares_equal_their_definition(
    world, monkeypatch, closed, voters
):
    monkeypatch.setattr(module, "VOTERS", voters)
    mean, labels = world
    queries, asked = (mean, labels) if closed else (mean[:15], labels[:15])
    items, names = (mean, labels) if closed else (mean[15:], labels[15:])
    found = neighbourhood(queries, asked, *(() if closed else (items, names)))
    model = fit_votes(found)
    cosines = (queries @ items.T).tolist()
    for i in range(len(queries)):
        cosines[i][i] = None if closed else cosines[i][i]

    def shares(*fitted):
        listed = names.tolist()
        return [oracles.label_shares(row, row, listed, voters, *fitted) for row in cosines]

    def loss(*fitted):
        # γ has a standard normal prior.
        found = [share for share, _ in shares(*fitted)]
        return oracles.vote_fit_loss(found, asked.tolist()) + fitted[2] ** 2 / 2 / len(queries)

    fitted = model.temperature, model.sharpness, model.prior
    voted, of_nearest = vote_shares(found, model)
    for i, (share, nearest) in enumerate(shares(*fitted)):
        assert voted[i] == pytest.approx(max(share.values()), rel=1e-9)
        assert of_nearest[i] == pytest.approx(share[nearest], rel=1e-9)
    if closed and voters == 100:
        for factor in (0.3, 0.7, 1.5, 3.0):
            assert loss(*fitted) <= loss(fitted[0] * factor, *fitted[1:]) + 1e-3
            assert loss(*fitted) <= loss(fitted[0], fitted[1] * factor, fitted[2]) + 1e-3


def test_an_example_does_not_find_itself_among_its_copies():
    same = torch.nn.functional.normalize(torch.ones(4, Z, dtype=torch.float64), dim=1)
    items = torch.cat([same, -same])
    found = neighbourhood(same, torch.arange(4) % 2, items, torch.arange(8) % 2, enrolled=True)
    assert (found.votes.sizes == np.where(found.votes.labels == found.truth[:, None], 3, 4)).all()


def test_a_label_of_the_query_alone_has_no_companion(world):
    mean, labels = world
    lone = labels.clone()
    lone[5] = 77
    assert np.flatnonzero(~neighbourhood(mean, lone).companion).tolist() == [5]
    elsewhere = neighbourhood(mean[:6], lone[:6], mean[6:], lone[6:])
    assert elsewhere.truth[5] == -1
    assert not elsewhere.companion[5]
    with pytest.raises(DegenerateError) as refused:
        fit_votes(neighbourhood(mean, torch.arange(N)))
    assert refused.value.field == "held_out"
