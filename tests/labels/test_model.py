"""The label model: what it answers, what it says without its own vectors, and its policies."""

import copy

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import surefind as sf
from surefind.labels import left_out
from surefind.labels.gaussian import Centres, LabelSums, fit_space
from surefind.labels.left_out import Folds, fit_correction, fit_level, log_loss, log_total
from surefind.labels.model import LabelModel


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    items = order[y[order] < 8][:480]
    queries = np.setdiff1d(order, items, assume_unique=True)
    return x[items], y[items], x[queries], y[queries]


@pytest.fixture(scope="module")
def model(digits):
    return LabelModel().fit(*digits[:2])


def test_answers_digits_better_than_ten_lines(digits, model):
    items, labels, queries, truth = digits
    known = truth < 8
    found = model.posterior(queries)
    right = (found.label == truth) & known
    rival = LogisticRegression(C=10, max_iter=2000).fit(
        items / np.linalg.norm(items, axis=1, keepdims=True), labels
    )
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    chance, guess = rival.predict_proba(unit), rival.predict(unit)
    theirs = (guess == truth) & known
    assert right[known].mean() >= theirs[known].mean() - 0.01
    ours = sf.metrics.auroc(-found.label_probability[right, 0], -found.label_probability[~right, 0])
    assert ours >= sf.metrics.auroc(-chance.max(1)[theirs], -chance.max(1)[~theirs]) - 0.01
    assert sf.metrics.auroc(-found.known[known], -found.known[~known]) > 0.93
    assert sf.metrics.ece(found.label_probability[:, 0], right) <= 0.08


def test_probabilities_are_those_of_the_logits(digits, model):
    found = model.posterior(digits[2][:50])
    np.testing.assert_allclose(found.probability.sum(axis=1) + found.none, 1, atol=1e-9)
    logits = model._now.logits(model._read(model._now, digits[2][:50]))
    weights = np.exp(np.column_stack([logits, np.full(50, model.settings.level)]))
    expected = weights / weights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.none, expected[:, -1], atol=1e-9)
    np.testing.assert_allclose(found.probability, expected[:, :-1], atol=1e-9)


def test_left_out_is_a_refit_without_the_fold(world):
    """Each fold's scores are those of a space and centres made of the other folds alone, with loops."""
    vectors, codes, *_ = world(labels=6, each=10)
    folds = Folds(vectors, codes, np.arange(len(codes)), None, np.random.default_rng(0))
    trial = folds.gaussian(True, 1)
    seen = np.zeros(len(codes), dtype=int)
    for fold in folds.items:
        rest = np.setdiff1d(np.arange(len(codes)), fold.rows)
        seen[fold.rows] += 1
        space = fit_space(LabelSums.of(vectors[rest], codes[rest], 6), normalize=True)
        centres = Centres.of(space(vectors[rest]), codes[rest], 6, space.spread)
        expected = trial.settings.sharpness * centres.scores(space(vectors[fold.rows]))
        np.testing.assert_allclose(trial.logits[fold.rows], expected, rtol=1e-3, atol=1e-3)
    assert (seen == 1).all()
    for fold in folds.of_labels:
        gone = np.unique(codes[fold.rows])
        assert not np.isin(codes[fold.train], gone).any()
        assert np.isneginf(trial.unknown[fold.rows][:, gone]).all()
    assert trial.settings.nats == pytest.approx(log_loss(trial.logits, codes))


def test_left_out_answers_as_new_queries_are_answered(digits, model):
    """Honest: the share of its own vectors that it calls right is about that of others."""
    out = model.left_out()
    own = (out.known.label == out.truth).mean()
    queries, truth = digits[2][digits[3] < 8], digits[3][digits[3] < 8]
    assert own == pytest.approx((model.posterior(queries).label == truth).mean(), abs=0.02)
    assert not (out.unknown.label == out.truth).any()
    assert 0.3 < np.mean(out.novelty < 0.5) < 0.7


def test_copies_and_groups_are_left_out_together():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(60, 16))  # no label can be told by anything but a copy
    vectors, labels = np.repeat(noise, 2, axis=0), np.repeat(np.arange(60) % 6, 2)
    alone = LabelModel().fit(vectors, labels).left_out()
    assert (alone.known.label == alone.truth).mean() < 0.4
    near = vectors + 1e-3 * rng.normal(size=vectors.shape)
    together = LabelModel().fit(near, labels, groups=np.repeat(np.arange(60), 2)).left_out()
    assert (together.known.label == together.truth).mean() < 0.4
    apart = LabelModel().fit(near, labels).left_out()
    assert (apart.known.label == apart.truth).mean() > (
        together.known.label == together.truth
    ).mean() + 0.2


def test_a_weak_correction_is_the_gaussian_and_a_free_one_logistic_regression(world):
    vectors, codes, queries, _ = world(labels=4, each=30, spread=0.8)
    spread, offsets = np.geomspace(9, 0.1, vectors.shape[1]), np.zeros((len(codes), 4))
    scale = np.sqrt(spread / (spread + 1))
    scale = scale / np.sqrt(np.square(vectors.astype(np.float64) * scale).mean())
    factor, none = fit_correction(vectors.astype(np.float64), spread, offsets, codes, 1e9)
    assert factor == pytest.approx(1)
    assert abs(none).max() < 1e-6
    ridge = 0.5
    _, delta = fit_correction(vectors.astype(np.float64), spread, offsets, codes, ridge)
    rival = LogisticRegression(C=1 / ridge, fit_intercept=False, tol=1e-8, max_iter=2000)
    rival.fit(vectors * scale, codes)
    expected = rival.predict_proba(queries * scale)
    logits = queries @ delta.T
    found = np.exp(logits - log_total(logits)[:, None])
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_the_level_of_none_is_not_below_zero_and_rises_when_labels_left_out_ask_for_it():
    rng = np.random.default_rng(0)
    assert fit_level(rng.normal(8, 1, 500), rng.normal(-8, 1, 500))[0] == pytest.approx(0, abs=2)
    assert fit_level(rng.normal(0, 1, 500), rng.normal(-9, 1, 500))[0] == 0
    level, loss = fit_level(rng.normal(8, 1, 500), rng.normal(4, 1, 500))
    assert 4 < level < 8
    assert 0 < loss < np.log(2)


def test_enrolling_and_removing_cost_a_centre_and_undo_each_other(digits):
    items, labels, queries, _ = digits
    model = LabelModel().fit(items[40:], labels[40:])
    before = model.posterior(queries[:20])
    kept = copy.copy(model)
    model.add(items[:40], [None if y == 3 else int(y) for y in labels[:40]])
    assert model.counts[4] == (labels == 4).sum()
    model.add(queries[:2], ["new", "new"])
    assert model.posterior(queries[:2]).label.tolist() == ["new", "new"]
    np.testing.assert_allclose(kept.posterior(queries[:20]).probability, before.probability)
    some = labels[:40] != 3
    model.remove(items[:40][some], labels[:40][some]).remove(queries[:2], ["new", "new"])
    assert "new" not in model.labels
    after = model.posterior(queries[:20])
    np.testing.assert_allclose(after.none, before.none, atol=1e-4)
    assert (after.label == before.label).all()


def test_only_some_labels_can_be_possible(digits, model):
    found = model.posterior(digits[2][:30], labels=[1, 2])
    whole = model.posterior(digits[2][:30])
    columns = [list(whole.labels).index(name) for name in (1, 2)]
    mass = whole.probability[:, columns]
    expected = mass / (mass.sum(axis=1) + whole.none)[:, None]
    listed = {name: column for column, name in enumerate(found.labels)}
    np.testing.assert_allclose(found.probability[:, [listed[1], listed[2]]], expected, rtol=1e-6)


def test_it_is_stored_and_read_whole(digits, model):
    again = LabelModel.from_stored(model.to_stored())
    np.testing.assert_array_equal(
        again.posterior(digits[2][:9]).probability, model.posterior(digits[2][:9]).probability
    )
    np.testing.assert_array_equal(again.novelty(digits[2][:9]), model.novelty(digits[2][:9]))
    assert again.settings == model.settings


def test_novelty_is_a_conformal_p_value(digits, model):
    queries, truth = digits[2], digits[3]
    p = model.novelty(queries[truth < 8])
    assert np.mean(p <= 0.1) == pytest.approx(0.1, abs=0.05)
    assert (model.novelty(np.random.default_rng(0).normal(size=(20, 64))) < 0.01).all()


def same(seed=0):
    return np.tile(np.random.default_rng(seed).normal(size=(1, 8)), (12, 1))


def ring(n, d=8, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


@pytest.mark.parametrize(
    ("vectors", "labels"),
    [
        pytest.param(ring(30), ["one"] * 30, id="one label"),
        pytest.param(ring(30), ["one", "two"] * 15, id="two labels"),
        pytest.param(ring(12), [f"person {i}" for i in range(12)], id="one vector a label"),
        pytest.param(ring(1), ["one"], id="one vector"),
        pytest.param(ring(30), [None, "b", "c"] * 10, id="some without a label"),
        pytest.param(same(), ["a", "b", "c"] * 4, id="equal vectors"),
        pytest.param(ring(40, 300), [1, 2, 3, 4] * 10, id="more dimensions than vectors"),
        pytest.param(ring(20, 5000).astype(np.float16), [1, 2] * 10, id="5,000 of half precision"),
        pytest.param(ring(210), [0] * 200 + list(range(1, 11)), id="200 of one and one of ten"),
    ],
)
def test_policies_answer_with_probabilities(vectors, labels):
    model = LabelModel().fit(vectors, labels)
    found = model.posterior(vectors[:5])
    assert np.isfinite(found.probability).all()
    assert set(found.label) <= set(labels) | {None}
    assert set(model.labels) == set(labels) - {None}
    out = model.left_out()
    assert len(out.known) == len(out.rows) == len(out.novelty)
    model.remove(vectors[:1], labels[:1])


def test_one_label_is_told_from_what_is_far_from_it():
    rng = np.random.default_rng(0)
    centre = np.zeros(8)
    centre[0] = 1
    model = LabelModel().fit(centre + 0.1 * rng.normal(size=(60, 8)), ["one"] * 60)
    near, away = (c + 0.1 * rng.normal(size=(50, 8)) for c in (centre, -centre))
    assert np.median(model.posterior(near).none) < 0.5 < np.median(model.posterior(away).none)
    assert (model.novelty(away) < 0.05).all()


def test_background_says_how_vectors_of_a_label_vary():
    rng = np.random.default_rng(0)
    shape = np.diag(np.concatenate([np.full(4, 0.1), np.full(12, 1.5)]))  # what identity is not in
    people = rng.normal(size=(260, 16))
    pictures = people[:, None] + rng.normal(size=(260, 4, 16)) @ shape
    enrolled, asked = pictures[200:, 0], pictures[200:, 1:].reshape(-1, 16)
    truth, names = np.repeat(np.arange(60), 3), np.arange(60)
    others = pictures[:200].reshape(-1, 16), np.repeat(np.arange(200), 4)
    alone = LabelModel().fit(enrolled, names).posterior(asked)
    helped = LabelModel().fit(enrolled, names, background=others).posterior(asked)
    assert (helped.label == truth).mean() > (alone.label == truth).mean() + 0.05


def test_many_labels_list_the_most_probable(monkeypatch, world):
    vectors, codes, queries, _ = world(labels=30, each=6)
    whole = LabelModel().fit(vectors, codes)
    monkeypatch.setattr(left_out, "LISTED", 40)
    every = whole.posterior(queries)
    monkeypatch.setattr(left_out, "LISTED", 8)
    some = whole.posterior(queries)
    assert some.probability.shape[1] == 8
    assert (some.label == every.label).all()
    np.testing.assert_allclose(some.among, every.among, atol=0.05)


def test_the_same_vectors_make_the_same_model_and_another_order_the_same_answers(digits):
    items, labels, queries, _ = digits
    first, again = (LabelModel(seed=3).fit(items, labels).posterior(queries[:40]) for _ in "ab")
    np.testing.assert_array_equal(first.probability, again.probability)


@pytest.mark.parametrize(
    ("call", "error", "field"),
    [
        (lambda m: LabelModel().fit(ring(4), [None] * 4), sf.DegenerateError, "labels"),
        (lambda m: LabelModel().fit(np.zeros((4, 3)), [1, 2, 3, 4]), sf.DegenerateError, "vectors"),
        (lambda m: LabelModel().fit(ring(4), [1, 2, 3]), sf.InputError, "labels"),
        (lambda m: LabelModel().posterior(ring(4)), sf.InputError, None),
        (lambda m: m.posterior(ring(4, 9)), sf.InputError, "vectors"),
        (lambda m: m.posterior(ring(4), labels=["nobody"]), sf.InputError, "labels"),
        (lambda m: m.remove(ring(40), [1] * 40), sf.InputError, "labels"),
        (lambda m: LabelModel.from_stored(m.to_stored()).left_out(), sf.InputError, None),
    ],
)
def test_refuses(call, error, field):
    model = LabelModel().fit(ring(30), [0, 1, 2] * 10)
    with pytest.raises(error) as refused:
        call(model)
    assert refused.value.field == field
