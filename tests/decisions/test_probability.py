"""The two maps: maximum likelihood by another optimiser, monotone, and never below what was seen."""

import numpy as np
import pytest
from decisions.worlds import asked, is_right
from scipy.optimize import minimize

from surefind.decisions.probability import CLIP, PlattMap, fit_map, fit_probability
from surefind.labels.posterior import LabelPosterior


def fitted(posterior, truth, **options):
    known = np.array([name is not None for name in truth])
    return fit_probability(posterior, is_right(posterior, truth), known, **options)


def penalised_loss(w, x, good, weight):
    """Platt's targets in Platt's loss, query by query."""
    wins, losses = good.sum(), (~good).sum()
    total = 0.1 * w[0] ** 2 / 2 + (w[1] - 1) ** 2 / 2
    for odds, right, share in zip(x, good, weight, strict=True):
        target = (wins + 1) / (wins + 2) if right else 1 / (losses + 2)
        p = 1 / (1 + np.exp(-(w[0] + w[1] * odds)))
        total -= share * (target * np.log(p) + (1 - target) * np.log(1 - p))
    return total


@pytest.mark.parametrize("seed", range(3))
def test_a_map_has_the_least_penalised_log_loss(seed):
    rng = np.random.default_rng(seed)
    x, weight = 2 * rng.normal(size=80), rng.choice([0.5, 2.0], size=80)
    good = rng.random(80) < 1 / (1 + np.exp(-0.4 * x - 0.5))
    found = fit_map(x, good, weight)
    best = minimize(penalised_loss, [0.0, 1.0], (x, good, weight), "Nelder-Mead", tol=1e-12)
    assert (found.bias, found.slope) == pytest.approx(best.x, abs=1e-4)


def test_maps_never_fall():
    rng = np.random.default_rng(1)
    x, log_kappa = rng.normal(size=200), rng.normal(size=200)
    for good in (x < 0, rng.random(200) < 0.5):
        found = fit_map(x, good, np.ones(200), -x)
        assert found.slope >= 0
        assert found.kappa >= 0
    grid = np.linspace(-50, 50, 301)
    assert (np.diff(fit_map(x, x + log_kappa > 0, np.ones(200))(grid, None)) >= 0).all()


@pytest.mark.parametrize("n", [1, 30, 300])
def test_all_right_is_never_less_than_the_share_that_was_right(n):
    """Where all were right nothing says which evidence is bad, so none like theirs is called so."""
    rng = np.random.default_rng(n)
    share = rng.dirichlet(np.full(4, 0.7), size=n)
    none = 0.3 * rng.random(n)
    posterior = LabelPosterior(list("abcd"), share * (1 - none)[:, None], none)
    model, unseen = fitted(posterior, posterior.label.tolist())
    least = ((n + 1) / (n + 2)) ** 2 - 1e-12
    assert (model(posterior) >= least).all()
    if n > 1:
        assert (unseen >= (0.75 * n / (0.75 * n + 2)) ** 2 - 0.35).all()
    worse = LabelPosterior(list("abcd"), [[1e-4] * 4], [1 - 4e-4])
    assert model(worse)[0] < 0.9 * least


def test_all_wrong_is_hardly_ever_right():
    posterior, truth, _ = asked(200, np.random.default_rng(0), unknown=1.0)
    model, _ = fitted(posterior, truth)
    assert (model(posterior) < 0.03).all()
    assert fit_map(np.zeros(0), np.zeros(0, bool), np.zeros(0)) == PlattMap(0.0, 1.0)


@pytest.mark.parametrize("none", [True, False])
def test_probabilities_mean_what_they_say(none):
    """Without P(none) one map says both."""
    rng = np.random.default_rng(2)
    posterior, truth, _ = asked(1500, rng, none=none)
    model, unseen = fitted(posterior, truth)
    assert (model.known is None) == (not none)
    fresh, theirs, _ = asked(20_000, rng, none=none)
    chance, right = model(fresh), is_right(fresh, theirs)
    for low in np.arange(0.1, 0.9, 0.2):
        there = (chance >= low) & (chance < low + 0.2)
        assert right[there].mean() == pytest.approx(chance[there].mean(), abs=0.08)
    assert np.abs(unseen - model(posterior)).max() < 0.1


def test_weights_are_another_share_of_unknown_queries():
    rng = np.random.default_rng(3)
    posterior, truth, _ = asked(4000, rng, unknown=0.5)
    known = np.array([name is not None for name in truth])
    weight = np.where(known, 0.9, 0.1) / np.where(known, known.mean(), 1 - known.mean())
    model, _ = fitted(posterior, truth, weight=weight)
    fresh, theirs, _ = asked(20_000, rng, unknown=0.1)
    assert model(fresh).mean() == pytest.approx(is_right(fresh, theirs).mean(), abs=0.02)
    without, _ = fitted(posterior, truth, weight=known / known.mean())
    assert without.known(np.array([0.0]), None)[0] > 0.99


def test_kappa_counts_only_where_it_tells_more():
    rng = np.random.default_rng(4)
    posterior, truth, _ = asked(1500, rng)
    right = is_right(posterior, truth)
    telling, noise = right + 0.7 * rng.normal(size=1500), rng.normal(size=1500)
    assert fitted(posterior, truth, log_kappa=telling)[0].uses_kappa
    assert not fitted(posterior, truth, log_kappa=-telling)[0].uses_kappa
    kept = [
        fitted(posterior, truth, log_kappa=noise + seed * rng.normal(size=1500))[0].uses_kappa
        for seed in range(8)
    ]
    assert sum(kept) <= 4  # a standard error is passed by luck one time in six, in each of two maps


def test_certainty_is_clipped():
    posterior = LabelPosterior(["a", "b"], [[1.0, 0.0]], [0.0])
    chance = PlattMap(0.0, 5.0)(posterior.among, None)
    assert chance[0] == pytest.approx(1 / (1 + np.exp(-CLIP)))
    assert chance[0] < 1


def test_a_query_without_any_label_is_never_right():
    posterior, truth, _ = asked(200, np.random.default_rng(5))
    model, _ = fitted(posterior, truth)
    nothing = LabelPosterior(posterior.labels, np.zeros((1, len(posterior.labels))), [1.0])
    assert nothing.label[0] is None
    assert model(nothing)[0] == 0
