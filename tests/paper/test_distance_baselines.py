from dataclasses import replace

import numpy as np
import oracles
import pytest
import torch

import surefind as sf
from surefind.paper.distance_baselines import PointEstimate, baseline_scores
from surefind.paper.label_vote import Asked, fit_votes
from surefind.paper.running import NEED_CLASSES, train_method
from surefind.paper.vocabulary import DISTANCE_BASELINES


@pytest.fixture(scope="module")
def point(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("point")
    return PointEstimate(tiny, train_method("norm", tiny, 0, folder, lambda *_: None))


def chords(a, b):
    return np.array([[float((x - y).norm()) for y in b.double()] for x in a.double()])


def margins(d, labels):
    """d_1 - d_o of each row, by looking at every column."""
    out = []
    for row in d:
        first = int(row.argmin())
        out.append(row[first] - row[labels != labels[first]].min())
    return np.array(out)


def test_embeddings_are_those_of_the_learner(point, tiny):
    mean = point.learner.embed(tiny.test).mean
    torch.testing.assert_close(point.test, mean)
    torch.testing.assert_close(point.train, point.learner.embed(tiny.train).mean)
    assert point.gallery is None


@pytest.mark.parametrize("name", ["nearest-distance", "knn-density", "margin"])
def test_ood_inputs_are_scored_against_the_training_set_and_queries_against_the_gallery(
    point, tiny, name
):
    scores = baseline_scores(name, point)
    ood = torch.nn.functional.normalize(point.ood, dim=1)
    to_train, to_others = chords(point.test, point.train), chords(point.test, point.test)
    np.fill_diagonal(to_others, np.inf)
    outside = chords(ood, point.train)
    k = 10 if name == "knn-density" else 1
    if name == "margin":
        train, test = tiny.train.labels.numpy(), tiny.test.labels.numpy()
        expected = margins(to_others, test), margins(to_train, train), margins(outside, train)
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
    exact = sf.Embeddings(point.train, torch.full((len(point.train),), torch.inf))
    model = fit_votes(Asked(exact, tiny.train.labels))["plain"]
    fitted = 100, model.temperature, model.sharpness, model.prior
    train, test = tiny.train.labels.tolist(), tiny.test.labels.tolist()
    ood = torch.nn.functional.normalize(point.ood, dim=1)
    for queries, got in ((point.test, scores.id), (ood, scores.ood)):
        for query, found in zip(queries.double(), got, strict=True):
            cosines = (point.train.double() @ query).tolist()
            shares, _ = oracles.label_shares(cosines, cosines, train, *fitted)
            assert found == pytest.approx(1 - max(shares.values()), abs=1e-5)
    for i, query in enumerate(point.test.double()):
        cosines = (point.test.double() @ query).tolist()
        cosines[i] = None
        shares, nearest = oracles.label_shares(cosines, cosines, test, *fitted)
        assert scores.retrieval[i] == pytest.approx(1 - shares[nearest], abs=1e-5)


def test_a_vote_over_places_doubts_the_disc_around_the_nearest_item(placed, tmp_path):
    point = PointEstimate(placed, train_method("norm", placed, 0, tmp_path, lambda *_: None))
    scores = baseline_scores("knn-vote", point)
    exact = sf.Embeddings(point.train, torch.full((len(point.train),), torch.inf))
    model = fit_votes(Asked(exact, placed.train.positions))["plain"]
    for found, items, part, pick in (
        (scores.retrieval, point.gallery, placed.gallery, lambda shares: shares[0]),
        (scores.id, point.train, placed.train, max),
    ):
        places = part.positions.tolist()
        for query, got in zip(point.test.double(), found, strict=True):
            cosines = (items.double() @ query).tolist()
            discs = oracles.disc_shares(cosines, cosines, places, 100, model.temperature, 25.0)
            assert got == pytest.approx(1 - pick([share for _, share in discs]), abs=1e-5)


@pytest.mark.parametrize("name", ["mahalanobis", "norm", "novelty"])
def test_scores_without_a_gallery_answer_both_questions(point, name, novel):
    scores = baseline_scores(name, point)
    np.testing.assert_array_equal(scores.retrieval, scores.id)
    assert scores.ood.shape == (20,)


@pytest.mark.parametrize("name", sorted(set(DISTANCE_BASELINES) - set(NEED_CLASSES)))
def test_a_gallery_of_its_own_is_searched_whole(placed, name, tmp_path, novel):
    point = PointEstimate(placed, train_method(name, placed, 0, tmp_path, lambda *_: None))
    scores = baseline_scores(name, point)
    assert scores.ood is None
    if name == "nearest-distance":
        wanted = chords(point.test, point.gallery).min(1)
        np.testing.assert_allclose(scores.retrieval, wanted, atol=1e-6)


def test_novelty_is_minus_the_logarithm_of_the_p_value(point, tiny, novel):
    scores = baseline_scores("novelty", point)
    expected = [-np.log(p) for p in point.learner.embed(tiny.ood).novelty.tolist()]
    np.testing.assert_allclose(scores.ood, expected, rtol=1e-6)


def test_a_learner_without_novelty_is_refused_by_field(point, plain):
    assert not point.has_novelty
    with pytest.raises(sf.InputError) as refused:
        baseline_scores("novelty", point)
    assert refused.value.field == "novelty"


@pytest.mark.parametrize("name", DISTANCE_BASELINES)
def test_further_ood_sets_are_scored_as_the_first_is(tiny, point, name, novel):
    more = PointEstimate(replace(tiny, more_ood={"again": tiny.ood}), point.learner)
    scores = baseline_scores(name, more)
    np.testing.assert_array_equal(scores.more_ood["again"], scores.ood)
    assert baseline_scores(name, point).more_ood == {}
