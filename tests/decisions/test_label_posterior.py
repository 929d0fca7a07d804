"""The posterior over labels against a float64 definition over all items, its bound, and its policies."""

import math
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from surefind.decisions.label_posterior import (
    CAP,
    LEAST,
    MOST_SURPRISE,
    USUAL,
    LabelModel,
    Votes,
    fit_label_model,
    fit_prior,
    label_densities,
    label_losses,
    label_posterior,
)
from tests.oracles import label_posterior_oracle, vote_fit_loss

MODEL = LabelModel(temperature=0.05, sharpness=2.5, none_level=12.0, none_slope=0.7)
BY_SIZE = replace(MODEL, prior=1.3)
NUMBERS = ("temperature", "sharpness", "none_level", "none_slope", "prior")


def numbers(model):
    return {name: getattr(model, name) for name in NUMBERS}


def votes(scores, labels, gallery_labels=None, k=None):
    """Votes of the k best of one or several queries' scores of all items."""
    scores, labels = np.atleast_2d(np.asarray(scores, float)), np.asarray(labels)
    everything = labels if gallery_labels is None else np.asarray(gallery_labels)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    own = np.broadcast_to(labels, scores.shape)[np.arange(len(scores))[:, None], order]
    sizes = np.array([
        [max((everything == x).sum(), 1) if x >= 0 else 1 for x in row] for row in own
    ])
    near = np.take_along_axis(scores, order, axis=1)
    return Votes(near, own, sizes, scores.shape[1] - near.shape[1])


def world(seed, q=20, n=300, labels=12):
    rng = np.random.default_rng(seed)
    names = rng.choice(labels, size=n, p=rng.dirichlet(np.full(labels, 0.5)))
    names[rng.random(n) < 0.05] = -1
    centre = rng.uniform(0.3, 0.8, size=(q, labels + 1))
    scores = centre[:, names] + 0.1 * rng.normal(size=(q, n))
    return scores, names


@pytest.mark.parametrize("model", [MODEL, BY_SIZE], ids=["equal priors", "by size"])
@pytest.mark.parametrize("seed", range(5))
def test_all_items_give_the_definition(seed, model):
    scores, names = world(seed)
    found = label_posterior(votes(scores, names), model)
    own = votes(scores, names).labels
    plain = [None if x < 0 else x for x in names.tolist()]
    for q, row in enumerate(scores):
        expected, none = label_posterior_oracle(row.tolist(), plain, **numbers(model))
        assert found.none[q] == pytest.approx(none, abs=1e-12)
        listed = [own[q, c] for c in found.candidates[q] if c >= 0]
        best = sorted((x for x in expected if not isinstance(x, tuple)), key=lambda x: -expected[x])
        assert listed == best[:5]
        assert found.probability[q, : len(listed)] == pytest.approx(
            [expected[x] for x in listed], abs=1e-12
        )
        rivals = math.fsum(expected.values()) - expected[listed[0]]
        assert found.consensus[q] == pytest.approx(
            np.clip(math.log(expected[listed[0]] / rivals), -CAP, CAP), abs=1e-9
        )
        assert found.evidence[q] == pytest.approx(
            np.clip(math.log(expected[listed[0]] / (rivals + none)), -CAP, CAP), abs=1e-9
        )


def test_the_nearest_of_many_are_exact_to_a_millionth_where_the_rest_is_far():
    rng = np.random.default_rng(0)
    names = np.repeat(np.arange(100), 50)
    scores = np.where(names < 2, 0.8, 0.0)[None] + 0.05 * rng.normal(size=(10, len(names)))
    some = label_posterior(votes(scores, names, k=110), MODEL)
    every = label_posterior(votes(scores, names), MODEL)
    assert some.probability[:, 0] == pytest.approx(every.probability[:, 0], abs=1e-6)
    assert some.none == pytest.approx(every.none, abs=1e-6)


def test_labels_that_tie_are_equally_probable_and_the_first_neighbour_answers():
    found = label_posterior(votes([0.7, 0.7, 0.5, 0.5], [4, 2, 2, 4]), MODEL)
    assert found.candidates[0, 0] == 0
    assert found.probability[0, 0] == pytest.approx(found.probability[0, 1], rel=1e-12)
    assert found.consensus[0] == pytest.approx(0, abs=1e-9)


def test_items_without_a_label_compete_and_never_answer():
    found = label_posterior(votes([0.9, 0.8], [-1, 5]), MODEL)
    assert found.candidates[0, 0] == 1
    assert found.consensus[0] < 0
    nobody = label_posterior(votes([0.9, 0.8], [-1, -1]), MODEL)
    assert (nobody.candidates == -1).all()
    assert nobody.none[0] == 1
    assert nobody.consensus[0] == nobody.evidence[0] == -CAP


def test_without_a_rival_an_unseen_item_is_one():
    alone = replace(votes([0.9, 0.8], [0, 0]), unseen=0)
    assert label_posterior(alone, MODEL).consensus[0] == CAP
    more = label_posterior(replace(alone, unseen=5, sizes=np.full((1, 2), 7)), MODEL)
    assert 0 < more.consensus[0] < CAP


def test_neighbours_that_are_missing_do_not_count():
    whole = label_posterior(votes([0.9, 0.8, 0.7], [0, 1, 0]), MODEL)
    padded = Votes(
        np.array([[0.9, 0.8, 0.7, -np.inf]]), np.array([[0, 1, 0, 1]]), np.array([[2, 1, 2, 1]])
    )
    found = label_posterior(padded, MODEL)
    assert found.probability[0, :2] == pytest.approx(whole.probability[0, :2], abs=1e-12)


def test_scores_of_any_size_stay_finite():
    scores = np.array([[1e6, 1e6 - 1, -1e6], [-1e6, -1e6 - 1, -2e6]])
    found = label_posterior(votes(scores, [0, 1, 2]), MODEL)
    for name in ("probability", "none", "consensus", "evidence"):
        assert np.isfinite(getattr(found, name)).all(), name


def left_out(seed, n=600, spread=0.06, wrong=0.15):
    """Draw votes in which the own label's items are nearer, and strangers' whose label is missing."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(20, size=n)
    labels = rng.integers(20, size=(n, 60))
    labels[:, :15] = truth[:, None]
    true = np.where(rng.random(n) < wrong, 0.0, 0.15)
    scores = 0.5 + spread * rng.normal(size=(n, 60)) + true[:, None] * (labels == truth[:, None])
    sizes = np.full_like(labels, 15)
    stranger = 0.5 + spread * rng.normal(size=(n, 60))
    return Votes(scores, labels, sizes, 100), truth, Votes(stranger, labels % 19, sizes, 100)


def fit_loss(enrolled, truth, temperature, sharpness, prior=0.0):
    """What T, c and γ are chosen by, one query at a time."""
    shares = []
    for scores, labels, sizes in zip(enrolled.scores, enrolled.labels, enrolled.sizes, strict=True):
        size = dict(zip(labels.tolist(), np.log(sizes).tolist(), strict=True))
        weight = {}
        for label in size:
            density = np.logaddexp.reduce(scores[labels == label] / temperature) - size[label]
            weight[label] = sharpness * density + prior * size[label]
        total = np.logaddexp.reduce(list(weight.values()))
        shares.append({label: math.exp(w - total) for label, w in weight.items()})
    # γ has a standard normal prior.
    return vote_fit_loss(shares, truth.tolist(), MOST_SURPRISE) + prior**2 / 2 / len(truth)


@pytest.mark.parametrize("wrong", [0.0, 0.1])
def test_the_fit_is_at_least_as_likely_as_any_other_model(wrong):
    enrolled, truth, unknown = left_out(0, n=120, wrong=wrong)
    model = fit_label_model(enrolled, truth, unknown)
    assert model.nats == pytest.approx(label_losses(enrolled, truth, model).mean())
    best = fit_loss(enrolled, truth, model.temperature, model.sharpness)
    for temperature in np.geomspace(0.005, 0.5, 10):
        for sharpness in np.geomspace(0.1, 30, 10):
            assert fit_loss(enrolled, truth, temperature, sharpness) >= best - 2e-3


@pytest.mark.parametrize("far", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("n", [40, 400])
def test_items_without_a_mistake_promise_no_more_than_one_in_as_many(n, far):
    enrolled, truth, unknown = left_out(0, n=n, spread=0.02, wrong=0.0)
    own = enrolled.labels == truth[:, None]
    enrolled = replace(enrolled, scores=np.where(own, enrolled.scores, enrolled.scores - far))
    model = fit_label_model(enrolled, truth, unknown)
    found = label_posterior(enrolled, model)
    sure = found.probability[:, 0] / (1 - found.none)
    assert (enrolled.labels[np.arange(n), found.candidates[:, 0]] == truth).all()
    assert 1 - sure.mean() == pytest.approx(1 / (n + 2), rel=0.3)


def asked(seed, by_items, n=1500, labels=30):
    """Draw queries of labels that overlap, alike for all or as often as there are items."""
    rng = np.random.default_rng(seed)
    size = rng.integers(2, 40, size=labels)
    names = np.repeat(np.arange(labels), size)
    truth = rng.choice(labels, size=n, p=size / size.sum() if by_items else None)
    # Each label has one score for a query, which all of its items share but for a little.
    level = 0.5 + 0.08 * rng.normal(size=(n, labels))
    level[np.arange(n), truth] += 0.1
    return votes(level[:, names] + 0.01 * rng.normal(size=(n, len(names))), names), truth


@pytest.mark.parametrize(("by_items", "expected"), [(False, 0.0), (True, 1.0)])
def test_the_prior_alone_is_as_likely_as_any_other(by_items, expected):
    enrolled, truth = asked(1, by_items, n=400)
    # Scores that a label shares, moved by 0.1 with a deviation of 0.08: log odds of 0.1 / 0.08² each.
    start = LabelModel(0.05, 0.05 * 0.1 / 0.08**2, enrolled=7, nats=0.5, prior=0.7)
    model = fit_prior(enrolled, truth, start)
    assert replace(model, prior=start.prior) == start
    assert model.prior == pytest.approx(expected, abs=0.3)

    fixed = enrolled, truth, start.temperature, start.sharpness
    best = fit_loss(*fixed, model.prior)
    for prior in (0.0, model.prior / 2, model.prior + 0.2, model.prior + 0.6):
        assert best <= fit_loss(*fixed, prior) + 1e-4


def test_queries_that_found_nothing_do_not_say_how_often_labels_are_asked_for():
    enrolled, truth = asked(1, by_items=True, n=200)
    expected = fit_prior(enrolled, truth, MODEL)
    given = enrolled.scores, enrolled.labels, enrolled.sizes
    empty = Votes(*(np.concatenate([x, x[:5]]) for x in given))
    empty.scores[200:] = -np.inf
    assert fit_prior(empty, np.concatenate([truth, truth[:5]]), MODEL) == expected
    assert fit_prior(empty.some(np.arange(200, 205)), truth[:5], MODEL).prior == 0


def test_few_queries_or_labels_of_one_size_leave_equal_priors():
    enrolled, truth = asked(2, by_items=True, n=LEAST - 1)
    assert fit_prior(enrolled, truth, MODEL).prior == 0
    even, names, _ = left_out(2, n=100)
    assert fit_prior(even, names, BY_SIZE).prior == 0


def test_one_mistake_among_easy_items_does_not_make_the_rest_certain():
    enrolled, truth, unknown = left_out(0, n=400, spread=0.02, wrong=0.0)
    easy = fit_label_model(enrolled, truth, unknown)
    truth = truth.copy()
    truth[0] = (truth[0] + 1) % 20
    model = fit_label_model(enrolled, truth, unknown)
    assert model.sharpness / model.temperature <= easy.sharpness / easy.temperature


def test_none_is_a_logistic_regression_of_the_best_density():
    enrolled, truth, unknown = left_out(2, n=3000)
    model = fit_label_model(enrolled, truth, unknown)
    best = np.concatenate([
        label_densities(v, model.temperature).max(axis=1) for v in (enrolled, unknown)
    ])
    kind = np.repeat([1, 0], [len(enrolled), len(unknown)])
    peer = LogisticRegression(C=1e9).fit(best[:, None], kind)
    assert model.none_slope == pytest.approx(peer.coef_[0, 0], rel=0.02)
    assert model.none_level == pytest.approx(-peer.intercept_[0] / peer.coef_[0, 0], abs=0.02)


def test_probabilities_of_the_fit_are_calibrated_where_the_votes_are_not_independent():
    enrolled, truth, unknown = left_out(3, n=2000)
    model = fit_label_model(enrolled, truth, unknown)
    fresh, names, _ = left_out(4, n=2000)
    found = label_posterior(fresh, model)
    right = fresh.labels[np.arange(2000), found.candidates[:, 0]] == names
    share = found.probability[:, 0] / (1 - found.none)
    assert share.mean() == pytest.approx(right.mean(), abs=0.03)


def test_a_gallery_that_cannot_say_has_the_usual_model():
    enrolled, truth, unknown = left_out(6, n=LEAST - 1)
    model = fit_label_model(enrolled, truth, unknown)
    assert (model.temperature, model.sharpness) == USUAL
    assert model.nats is None
    nobody = Votes(np.empty((0, 1)), np.empty((0, 1), dtype=int), np.ones((0, 1)))
    strangers = fit_label_model(nobody, np.empty(0, dtype=int), unknown)
    chance = label_posterior(unknown, strangers).none
    assert np.median(chance) == pytest.approx(0.95, abs=0.01)
    assert (chance < 0.5).mean() == pytest.approx(0.05, abs=0.06)
    companions = fit_label_model(enrolled, truth, nobody)
    assert np.median(label_posterior(enrolled, companions).none) == pytest.approx(0.05, abs=0.01)


def test_sides_that_do_not_overlap_have_a_finite_answer():
    enrolled, truth, unknown = left_out(7)
    far = replace(unknown, scores=unknown.scores - 3)
    model = fit_label_model(enrolled, truth, far)
    assert math.isfinite(model.none_level)
    assert math.isfinite(model.none_slope)
    assert (label_posterior(enrolled, model).none < 0.01).all()
    assert (label_posterior(far, model).none > 0.99).all()


@pytest.mark.parametrize("most", [2**20, 0], ids=["by number", "numbered anew"])
def test_each_label_has_one_best_neighbour_and_an_item_without_one_its_own(monkeypatch, most):
    # The package has a function of the module's name.
    monkeypatch.setattr(import_module("surefind.decisions.label_posterior"), "NUMBERS", most)
    rng = np.random.default_rng(3)
    scores, names = rng.normal(size=(7, 30)).round(1), rng.integers(-1, 5, size=(7, 30))
    scores[2, 25:] = -np.inf
    segment, first = Votes(scores, names, np.ones((7, 30), dtype=int)).segments
    together = {}
    for q in range(7):
        for c in range(30):
            key = (q, names[q, c]) if names[q, c] >= 0 else (q, "item", c)
            together.setdefault(key, []).append((q, c))
    assert len({segment[members[0]] for members in together.values()}) == len(together)
    for members in together.values():
        assert len({segment[place] for place in members}) == 1
        best = max(members, key=lambda place: (scores[place], -place[1]))
        chosen = [place for place in members if first[place]]
        assert chosen == ([best] if np.isfinite(scores[best]) else [])
