"""Evidence of neighbours against definitions in plain loops, for whatever a database returns."""

import json
from dataclasses import replace
from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import surefind as sf
from surefind.files import from_stored, to_stored
from surefind.labels.votes import LISTED, USUAL, VoteSettings
from tests.oracles import neighbour_loss, neighbour_posterior

K = 30
VOTES = {"temperature": 0.05, "sharpness": 1.7, "prior": 0.6, "none_level": 12.0, "none_slope": 0.7}


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def world(queries, seed=0, *, sizes=(15,) * 60, unknown=20, spread=0.8, dim=24, k=K):
    """Return cosines, labels and truth of queries, some of them of labels that are not enrolled."""
    rng, fixed = np.random.default_rng([7, seed]), np.random.default_rng(3)
    means, own = fixed.normal(size=(len(sizes) + unknown, dim)), np.repeat(range(len(sizes)), sizes)
    items = unit(means[own] + spread * fixed.normal(size=(len(own), dim)))
    asked = rng.choice([*own, *np.repeat(len(sizes) + np.arange(unknown), 15)], size=queries)
    cosines = unit(means[asked] + spread * rng.normal(size=(queries, dim))) @ items.T
    near = np.argsort(-cosines, axis=1)[:, :k]
    truth = [f"p{a}" if a < len(sizes) else None for a in asked.tolist()]
    names = np.array([f"p{label}" for label in own], dtype=object)
    return np.take_along_axis(cosines, near, axis=1), names[near], truth


@pytest.fixture(scope="module")
def model():
    return sf.NeighbourModel("cosine").fit(*world(500))


def of_settings(k, counts=None, **others):
    made = VoteSettings(k, 1, ("integers",), None if counts is None else tuple(counts.items()))
    return sf.NeighbourModel("cosine", replace(made, **VOTES | others))


def same(found, expected, **tolerance):
    """Whether two posteriors are the same; labels that tie may change places."""
    np.testing.assert_allclose(found.label_probability, expected.label_probability, **tolerance)
    np.testing.assert_allclose(found.none, expected.none, **tolerance)
    clear = expected.among > 1e-6
    assert (found.label[clear] == expected.label[clear]).all()


def some_neighbours(seed, k=9):
    """Rows of different lengths, with ties, items without a label and neighbours that are missing."""
    rng = np.random.default_rng(seed)
    for _ in range(12):
        n = int(rng.integers(1, k + 1))
        labels = [None if x == 5 else x for x in rng.integers(6, size=n).tolist()]
        yield np.sort(rng.uniform(0.2, 0.9, n).round(1))[::-1].tolist(), labels


@pytest.mark.parametrize(
    "counts", [None, {0: 1, 1: 4, 2: 9, 3: 2, 4: 30}, dict.fromkeys(range(5), 1)]
)
@pytest.mark.parametrize("seed", range(4))
def test_the_posterior_is_the_definition(seed, counts):
    rows, names = zip(*some_neighbours(seed), strict=True)
    found = of_settings(9, counts).posterior([*rows], [*names])
    for q, (scores, labels) in enumerate(zip(rows, names, strict=True)):
        expected, none = neighbour_posterior(scores, labels, counts, **VOTES)
        assert found.none[q] == pytest.approx(none, abs=1e-12)
        listed = {x: p for x, p in zip(found.labels[q], found.probability[q], strict=True) if p}
        assert listed == pytest.approx({x: (1 - none) * p for x, p in expected.items()}, abs=1e-12)
        assert sorted(found.probability[q], reverse=True) == found.probability[q].tolist()


def test_temperature_and_sharpness_have_the_least_loss_and_none_is_platts():
    cosines, labels, truth = world(160)
    fitted = sf.NeighbourModel().fit(cosines, labels, truth).settings
    known = np.array([t is not None for t in truth])
    n, m = known.sum(), (~known).sum()
    assert (fitted.enrolled, fitted.unknown) == (n, m)
    at = fitted.temperature, fitted.sharpness
    given = cosines[known].tolist(), labels[known].tolist(), [t for t in truth if t is not None]
    best = neighbour_loss(*given, *at, usual=USUAL)
    for step in ((1.6, 1.0), (0.6, 1.0), (1.0, 1.1), (1.0, 0.9), (1.5, 1.2), (0.6, 0.8)):
        assert best < neighbour_loss(*given, at[0] * step[0], at[1] * step[1], usual=USUAL)
    votes = VOTES | {"temperature": at[0], "none_level": 0.0, "none_slope": 1.0}
    none = [
        neighbour_posterior(*row, None, **votes)[1] for row in zip(cosines, labels, strict=True)
    ]
    x = np.tile(np.log(1 / np.array(none) - 1), 2)[:, None]
    target = np.where(known, (n + 1) / (n + 2), 1 / (m + 2))
    platt = LogisticRegression(C=1e8, tol=1e-10, max_iter=1000).fit(
        x, np.repeat([1, 0], n + m), np.concatenate([target, 1 - target])
    )
    assert fitted.none_slope == pytest.approx(platt.coef_[0, 0], rel=1e-3)
    assert fitted.none_level == pytest.approx(-platt.intercept_[0] / platt.coef_[0, 0], rel=1e-3)


RETURNED = {
    "cosine": lambda cosines: cosines,
    "cosine-distance": lambda cosines: 1 - cosines,
    "negative-cosine": lambda cosines: -cosines,
    "euclidean": lambda cosines: np.sqrt(2 - 2 * cosines),
    "squared-euclidean": lambda cosines: 2 - 2 * cosines,
    "elasticsearch": lambda cosines: (1 + cosines) / 2,
}
"""What a database of that metric returns for unit vectors."""
SIMILARITIES = "cosine", "elasticsearch"


@pytest.mark.parametrize("metric", RETURNED)
def test_unit_vectors_have_the_same_posterior_whatever_the_metric(metric, model):
    cosines, labels, truth = world(500)
    other = sf.NeighbourModel(metric).fit(RETURNED[metric](cosines), labels, truth)
    later, names, _ = world(200, 1)
    same(other.posterior(RETURNED[metric](later), names), model.posterior(later, names), atol=1e-9)


def test_distances_of_vectors_of_any_length_have_their_own_unit():
    (cosines, labels, truth), (later, names, real) = world(500), world(300, 1)
    found = []
    for scale in (1.0, 130.0):
        model = sf.NeighbourModel("distance").fit(scale * np.sqrt(2 - 2 * cosines), labels, truth)
        found.append(model.posterior(scale * np.sqrt(2 - 2 * later), names))
    same(found[1], found[0], atol=1e-9)
    known = np.array([label is not None for label in real])
    assert (found[0].label == np.array(real, dtype=object))[known].mean() > 0.95
    assert found[0].none[~known].mean() > 0.7 > 0.2 > found[0].none[known].mean()


def test_order_length_and_type_of_rows_do_not_matter(model):
    cosines, labels, _ = world(50, 1)
    order = np.argsort(np.random.default_rng(0).random(cosines.shape), axis=1)
    shuffled = [np.take_along_axis(x, order, axis=1) for x in (cosines, labels)]
    expected = model.posterior(cosines, labels)
    same(model.posterior(*shuffled), expected)
    longer = np.hstack([cosines, np.zeros((50, 1))]), np.hstack([labels, labels[:, :1]])
    same(model.posterior(*(x.tolist() for x in longer)), expected)
    columns = pd.DataFrame({"near": cosines.tolist(), "labels": labels.tolist()})
    same(model.posterior(columns["near"], columns["labels"]), expected)
    numbers = np.vectorize(lambda name: int(name[1:]))(labels)
    counted = of_settings(K)
    tensors = counted.posterior(torch.from_numpy(cosines), torch.from_numpy(numbers))
    same(tensors, counted.posterior(cosines, numbers.astype(float)))
    assert {type(label) for label in tensors.label} == {int}
    nearest = of_settings(1).posterior(cosines[:, 0], numbers[:, 0])  # one neighbour per query
    assert (nearest.label == numbers[:, 0]).all()


def test_labels_of_sixteen_are_listed_and_the_rest_counts_against_the_answer():
    found = of_settings(30).posterior([np.linspace(0.9, 0.85, 30)], [[*range(30)]])
    assert found.labels.tolist() == [[*range(LISTED)]]
    assert found.probability.sum() + found.none[0] < 0.9
    assert found.among[0] < 0


def test_unlabelled_items_never_answer_and_far_queries_are_unknown(model):
    cosines, labels, _ = world(20, 1)
    lost = model.posterior(np.sort(0.1 * np.random.default_rng(0).random((20, K)))[:, ::-1], labels)
    assert (lost.none > 0.9).all()
    nameless = model.posterior(cosines, np.full(labels.shape, None, dtype=object))
    assert (nameless.none == 1).all()
    assert all(label is None for label in nameless.label)
    extreme = sf.NeighbourModel("distance", replace(model.settings, fewest=1))
    far = extreme.posterior(
        [[0, 1e6, 1e7], [1e7, 1e7, 1e7], [1e7, np.inf, np.inf]], [["a", "b", "b"]] * 3
    )
    assert np.isfinite([far.probability[:, 0], far.among, far.known]).all()


def test_a_label_that_was_never_seen_can_be_the_answer(model):
    cosines, labels, _ = world(50, 1)
    found = model.posterior(cosines, np.where(labels == "p7", "newcomer", labels)).label
    expected = model.posterior(cosines, labels).label
    assert ["p7" if x == "newcomer" else x for x in found] == expected.tolist()


def test_how_often_labels_are_asked_for_is_learnt_where_items_are_counted():
    uneven = {"sizes": range(1, 41), "unknown": 0, "spread": 1.0, "dim": 8, "k": 60}
    counts = {f"p{label}": label + 1 for label in range(40)}
    model = sf.NeighbourModel().fit(*world(500, 0, **uneven), counts=counts)
    assert model.settings.prior >= 0.5
    equal = sf.NeighbourModel("cosine", replace(model.settings, prior=0.0))
    cosines, labels, truth = world(2000, 1, **uneven)
    answers = [m.posterior(cosines, labels).label for m in (model, equal)]
    right, *others = (np.mean(x == np.array(truth, object)) for x in (*answers, labels[:, 0]))
    assert right > max(others)


def test_few_queries_or_one_side_have_policies():
    cosines, labels, truth = world(40)
    few = sf.NeighbourModel().fit(cosines[:15], labels[:15], truth[:15]).settings
    assert (few.temperature, few.sharpness, few.prior) == (*USUAL, 0.0)
    known = np.flatnonzero([label is not None for label in truth])
    closed = sf.NeighbourModel().fit(cosines[known], labels[known], [truth[i] for i in known])
    assert closed.settings.unknown == 0
    assert closed.posterior(cosines, labels).none is None


def test_what_is_stored_is_an_equal_model(model):
    counts = {np.int64(1): 3, 2: np.int64(4)}
    counted = sf.NeighbourModel().fit(NEAR, [[1, 2]] * 40, [1] * 40, counts=counts)
    for made in (model, counted):
        stored = json.loads(json.dumps(to_stored(sf.NeighbourModel, made)))
        assert from_stored(sf.NeighbourModel, stored, "evidence") == made


def test_items_as_their_own_queries_are_refused_and_a_few_are_told(model):
    cosines, labels, truth = world(100)
    own = np.array([name or "p0" for name in truth], dtype=object)
    found = np.concatenate([np.ones((100, 1)), cosines], axis=1)
    names = np.concatenate([own[:, None], labels], axis=1)
    with pytest.raises(sf.InputError) as refused:
        sf.NeighbourModel().fit(found, names, truth)
    assert refused.value.field == "distances"
    found[20:, 0], names[20:, 0] = found[20:, 1], names[20:, 1]
    (note,) = sf.NeighbourModel().fit(found, names, truth).settings.notes
    assert "at distance 0" in note


NEAR, NAMES = [[0.9, 0.5]] * 40, [["a", "b"]] * 40
ROW, P1 = [0.5] * K, ["p1"] * K


def fit(truth="a", metric="cosine", sign=1, counts=None):
    near = sign * np.array(NEAR)
    return sf.NeighbourModel(metric).fit(near, NAMES, [truth] * 40, counts=counts)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (
            lambda m: m.posterior([ROW, [0.5] * 3], [P1, ["p1"] * 3]),
            "distances",
        ),  # fewer than in fit
        (lambda m: m.posterior([[5.0] * K], [P1]), "distances"),  # no cosine
        (lambda m: m.posterior([[np.nan] * K], [[None] * K]), "distances"),
        (lambda m: m.posterior([["x"] * K], [P1]), "distances"),
        (lambda m: m.posterior([ROW], [[["p1"]] * K]), "distances"),
        (lambda m: m.posterior([[*ROW[1:], np.nan]], [P1]), "distances"),  # a label and no number
        (lambda m: m.posterior([np.linspace(0.1, 0.9, K)], [P1]), "distances"),  # of distances
        (lambda m: m.posterior(np.empty((0, K)), np.empty((0, K), object)), "distances"),
        (lambda m: m.posterior([ROW], [P1[1:]]), "labels"),
        (lambda m: m.posterior([ROW], [[-1] * K]), "labels"),
        (lambda m: m.posterior([ROW], [[1] * K]), "labels"),  # strings were learned from
        (lambda m: m.posterior([ROW], [[2.5] * K]), "labels"),
        (lambda m: sf.NeighbourModel().posterior([ROW], [P1]), None),
        (lambda m: sf.NeighbourModel("hamming"), "metric"),
        (lambda m: sf.NeighbourModel().fit(NEAR, NAMES, ["a"]), "truth"),
        (lambda m: fit("c"), "truth"),
        (lambda m: fit(None), "truth"),
        (lambda m: fit(counts={"a": 3}), "counts"),
        (lambda m: fit(counts={"a": 3, "b": 0.5}), "counts"),
        (lambda m: fit(metric="euclidean", sign=-1), "distances"),
        (lambda m: fit(metric="distance", sign=-1), "distances"),
    ],
)
def test_what_is_no_evidence_is_refused(model, call, field):
    with pytest.raises(sf.InputError) as refused:
        call(model)
    assert refused.value.field == field


def test_similarities_called_distances_are_refused_and_the_other_way_round():
    cosines, labels, truth = world(30)
    for metric, real in permutations(RETURNED, 2):
        if (metric in SIMILARITIES) != (real in SIMILARITIES):
            with pytest.raises(sf.InputError):
                sf.NeighbourModel(metric).fit(RETURNED[real](cosines), labels, truth)
