"""Wrong labels: the pooled posterior, and the fraction of errors, against definitions and simulations."""

import numpy as np
import pytest
from oracles import logistic_regression
from scipy.special import logsumexp, softmax

from surefind.decisions import label_errors
from surefind.decisions.label_errors import (
    FOLDS,
    NOTHING,
    RIDGES,
    VARIANCE,
    WHITENING,
    Pooling,
    axes_within,
    deal,
    fit_classifier,
    fit_pooling,
    inverse_variances,
    log_softmax,
    odds_against,
    wrong_labels,
)
from surefind.decisions.label_posterior import USUAL


def test_odds_are_those_of_a_softmax():
    rng = np.random.default_rng(0)
    weights = 5 * rng.normal(size=(50, 7))
    own = rng.integers(7, size=50)
    p = softmax(weights, axis=1)[np.arange(50), own]
    np.testing.assert_allclose(odds_against(weights, own), np.log((1 - p) / p), rtol=1e-9)


def test_a_label_without_density_has_no_weight():
    kernel = np.array([[1.0, -np.inf, 2.0]])
    gaussian = np.array([[-3.0, -1.0, -np.inf]])
    np.testing.assert_allclose(
        Pooling(2.0, 0.5).log_weights(kernel, gaussian), [[0.5, NOTHING, NOTHING]]
    )
    np.testing.assert_allclose(Pooling(2.0).log_weights(kernel), [[2.0, NOTHING, 4.0]])
    np.testing.assert_allclose(
        Pooling(2.0, 0.5, 3.0).log_weights(kernel, gaussian, np.array([[-1.0, -2.0, -4.0]])),
        [[-2.5, NOTHING, NOTHING]],
    )


def simulated(n, labels, fraction, rng, gap=4.0):
    """Draw log-odds against labels, a fraction of which was replaced at random, from known densities."""
    truth = rng.integers(labels, size=n)
    x = rng.normal(size=(n, labels))
    x[np.arange(n), truth] += gap
    log_density = gap * x  # log N(x; gap e_l, I), up to a constant
    wrong = rng.random(n) < fraction
    given = np.where(wrong, (truth + rng.integers(1, labels, n)) % labels, truth)
    return odds_against(log_density, given), wrong


@pytest.mark.parametrize("fraction", [0.005, 0.02, 0.2])
def test_the_fraction_of_random_errors_is_estimated_and_each_is_as_probable_as_said(fraction):
    against, wrong = simulated(20_000, 30, fraction, np.random.default_rng(1))
    p, found = wrong_labels(against, 30)
    assert found == pytest.approx(wrong.mean(), rel=0.1)
    assert found == pytest.approx(p.mean(), abs=1e-5)
    assert (np.diff(p[np.argsort(against)]) >= 0).all()
    sure, unsure = p >= 0.5, (p > 0.1) & (p < 0.9)
    assert wrong[sure].mean() == pytest.approx(p[sure].mean(), abs=0.05)
    assert wrong[unsure].mean() == pytest.approx(p[unsure].mean(), abs=0.25)


def test_no_errors_are_none():
    against, _ = simulated(5000, 30, 0.0, np.random.default_rng(2))
    p, found = wrong_labels(against, 30)
    assert found < 0.001
    assert (p >= 0.5).sum() <= 2


def test_items_that_are_alone_do_not_count_for_the_fraction():
    against, _ = simulated(2000, 30, 0.05, np.random.default_rng(3))
    p, found = wrong_labels(against, 30)
    alone = np.append(np.zeros(2000, dtype=bool), [True, True])
    more, again = wrong_labels(np.append(against, [5.0, -5.0]), 30, alone)
    assert again == found
    np.testing.assert_array_equal(more[:2000], p)
    odds = found / (1 - found) * np.exp([5.0, -5.0])  # any of the others is a rival, not one of 29
    np.testing.assert_allclose(more[2000:], odds / (1 + odds))
    nothing, none = wrong_labels(np.array([3.0]), 30, np.array([True]))
    assert (nothing.tolist(), none) == ([0.0], 0.0)


def two_views(n, rng, labels=8):
    """Log densities of two independent, equally noisy looks at a label, the second in another unit."""
    truth = rng.integers(labels, size=n)
    views = rng.normal(size=(2, n, labels))
    views[:, np.arange(n), truth] += 2.0
    return 2 * views[0], 100 * views[1], truth


def test_pooling_takes_of_each_what_it_is_worth():
    kernel, gaussian, truth = two_views(4000, np.random.default_rng(4))
    useless = np.random.default_rng(5).normal(size=gaussian.shape)
    found = fit_pooling(kernel, np.stack([useless, gaussian], axis=2), None, truth, 2.5, 8)
    assert found.ridge == 1
    assert found.kernel == pytest.approx(1.0, rel=0.1)  # log density is gap x = 2 x
    assert found.gaussian == pytest.approx(0.02, rel=0.1)
    pooled = found.kernel * kernel + found.gaussian * gaussian
    losses = logsumexp(pooled, axis=1) - pooled[np.arange(4000), truth]
    assert found.nats == pytest.approx(losses.mean(), abs=1e-3)  # nothing is wrong here
    alone = fit_pooling(kernel, np.zeros((*kernel.shape, 0)), None, truth, 1.5, 8)
    assert alone == Pooling(1.5)


def test_a_third_view_is_worth_what_the_others_leave():
    rng = np.random.default_rng(9)
    kernel, gaussian, truth = two_views(4000, rng)
    third = rng.normal(size=kernel.shape)
    third[np.arange(4000), truth] += 2.0
    found = fit_pooling(kernel, gaussian[:, :, None], 0.5 * third, truth, 2.5, 8)
    worth = (found.kernel, found.gaussian, found.classifier)
    assert worth == pytest.approx((1.0, 0.02, 4.0), rel=0.1)


def test_wrong_labels_do_not_change_the_pooling_much():
    rng = np.random.default_rng(6)
    kernel, gaussian, truth = two_views(4000, rng)
    wrong = np.where(rng.random(4000) < 0.1, rng.integers(8, size=4000), truth)
    clean, dirty = (
        fit_pooling(kernel, gaussian[:, :, None], None, labels, 2.5, 8) for labels in (truth, wrong)
    )
    assert dirty.kernel == pytest.approx(clean.kernel, rel=0.15)
    assert dirty.gaussian == pytest.approx(clean.gaussian, rel=0.15)


def test_too_few_items_fit_nothing():
    kernel, gaussian, truth = two_views(19, np.random.default_rng(7))
    assert fit_pooling(kernel, gaussian[:, :, None], None, truth, USUAL[1], 8) == Pooling()


def test_the_spread_within_labels_comes_from_the_other_folds():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(60, 4)).astype(np.float32) * [1, 2, 3, 4]
    labels, folds = rng.integers(5, size=60), np.arange(60) % FOLDS
    for fold, (values, axes) in enumerate(axes_within(x, labels, folds)):
        kept = np.flatnonzero(folds != fold)
        rest = np.stack([
            x[i] - x[kept[labels[kept] == labels[i]]].mean(axis=0, dtype=float) for i in kept
        ])
        wanted = rest.T @ rest / (len(kept) - len({*labels[kept]}))
        np.testing.assert_allclose(axes @ np.diag(values) @ axes.T, wanted, rtol=1e-5, atol=1e-6)


def test_without_two_items_of_a_label_or_any_spread_there_is_no_covariance():
    x, folds = np.eye(10, dtype=np.float32), np.arange(10) % FOLDS
    assert axes_within(x, np.arange(10), folds) is None
    assert axes_within(np.ones((10, 3), dtype=np.float32), np.arange(10) // 5, folds) is None


def test_shrinkage_keeps_the_mean_variance():
    values = np.array([0.0, 1.0, 5.0])
    variances = 1 / inverse_variances(values)
    assert variances.shape == (3, len(RIDGES))
    np.testing.assert_allclose(variances.mean(axis=0), 2.0)
    np.testing.assert_allclose(variances[:, 0], (values + 2) / 2)


def test_a_group_is_dealt_to_one_fold_and_a_label_to_all():
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1, 2, -1], [10, 5, 1, 200])
    labels = np.where(groups >= 0, 7, rng.permutation(216) % 40)
    folds = deal(labels, groups, rng)
    assert all(len({*folds[groups == g]}) == 1 for g in range(3))
    lone = groups < 0
    for label in range(40):
        sizes = np.bincount(folds[lone & (labels == label)], minlength=FOLDS)
        if label != 7:  # the one that has groups too
            assert sizes.max() - sizes.min() <= 1
    assert len(deal(np.zeros(3, dtype=int), np.full(3, -1), rng)) == 3
    assert len(deal(np.zeros(0, dtype=int), np.zeros(0, dtype=int), rng)) == 0


@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_the_classifier_is_a_logistic_regression_of_whitened_vectors(monkeypatch, scale):
    monkeypatch.setattr(label_errors, "STEPS", 500)
    rng = np.random.default_rng(10)
    labels = rng.integers(4, size=80)
    labels[labels == 2] = 4  # no item has label 2
    x = (rng.normal(size=(80, 6)) * [1, 2, 3, 1, 2, 3] + labels[:, None]) * scale
    within = np.cov((x - np.stack([x[labels == own].mean(axis=0) for own in labels])).T)
    weights, offsets = fit_classifier(x.astype(np.float32), labels, 5, *np.linalg.eigh(within))
    shrunk = (within + WHITENING * np.trace(within) / 6 * np.eye(6)) / (1 + WHITENING)
    values, axes = np.linalg.eigh(shrunk)
    whiten = axes / np.sqrt(values) @ axes.T
    z = (x - x.mean(axis=0)) @ whiten
    wanted = z @ logistic_regression(z, labels, 6 / VARIANCE).T
    found = log_softmax((x @ weights + offsets)[:, [0, 1, 3, 4]])
    np.testing.assert_allclose(found, np.log(softmax(wanted, axis=1)), atol=0.02)
    assert np.isneginf(offsets).tolist() == [False, False, True, False, False]
