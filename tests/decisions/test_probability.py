import numpy as np
import pytest
from decisions.worlds import (
    WORLDS,
    everything_useful,
    faces,
    kappa_useless,
    of_four,
    only_kappa,
    step,
)
from scipy.optimize import minimize
from scipy.stats import norm, rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from surefind.decisions import Signals, probability
from surefind.decisions.probability import (
    LOWEST_BIAS,
    choose_strength,
    cross_fitted,
    fit_logistic,
    fit_probability,
    measure_contributions,
    normal_scale,
    sigmoid,
)
from surefind.metrics import ece, r_auroc


@pytest.mark.parametrize("world", WORLDS)
def test_the_combination_is_not_worse_than_the_best_signal(world):
    rng = np.random.default_rng(3)
    fresh, truth = world(20000, rng)
    best = max(roc_auc_score(truth, column) for column in fresh.oriented().T)
    for _ in range(3):
        chance = fit_probability(*world(1000, rng))(fresh)
        assert roc_auc_score(truth, chance) > best - 0.005


def test_the_combination_is_better_where_signals_differ():
    rng = np.random.default_rng(4)
    for world, gain in [(everything_useful, 0.06), (lambda n, r: faces(n, r)[:2], 0.02)]:
        fresh, truth = world(20000, rng)
        best = max(roc_auc_score(truth, column) for column in fresh.oriented().T)
        chance = fit_probability(*world(1000, rng))(fresh)
        assert roc_auc_score(truth, chance) > best + gain


@pytest.mark.parametrize("world", WORLDS)
def test_a_better_signal_never_lowers_the_probability(world):
    rng = np.random.default_rng(5)
    for n in (30, 300):
        model = fit_probability(*world(n, rng))
        signals, _ = world(200, rng)
        for j, sign in enumerate(Signals.signs):
            better = signals.matrix()
            better[:, j] += sign * rng.exponential(size=200)
            assert (model(Signals(*better.T)) >= model(signals) - 1e-12).all()


@pytest.mark.parametrize(("world", "error"), [(everything_useful, 0.03), (step, 0.05)])
def test_probabilities_are_calibrated(world, error):
    rng = np.random.default_rng(6)
    model = fit_probability(*world(2000, rng))
    fresh, truth = world(20000, rng)
    chance = model(fresh)
    assert abs(chance.mean() - truth.mean()) < 0.02
    assert ece(chance, truth) < error


def test_a_query_does_not_depend_on_its_batch():
    rng = np.random.default_rng(7)
    signals, right = everything_useful(301, rng)
    model = fit_probability(signals, right)
    one_by_one = np.concatenate([model(signals[[i]]) for i in range(len(signals))])
    np.testing.assert_array_equal(model(signals), one_by_one)


def test_units_do_not_matter():
    signals, right = everything_useful(300, np.random.default_rng(8))
    stretched = Signals(*(signals.matrix() * [5, 0.1, 3, 100, 0.5, 2] + 7).T)
    np.testing.assert_allclose(
        fit_probability(signals, right)(signals), fit_probability(stretched, right)(stretched)
    )


def test_a_constant_signal_adds_nothing():
    signals, right = everything_useful(300, np.random.default_rng(9))
    constant = of_four(np.full(300, 2.0), signals.distance, signals.margin, signals.density)
    changed = of_four(np.full(300, 9.0), signals.distance, signals.margin, signals.density)
    model = fit_probability(constant, right)
    np.testing.assert_array_equal(model(constant), model(changed))


@pytest.mark.parametrize("outcome", [True, False])
def test_one_outcome_ranks_by_all_signals_alike(outcome):
    signals, _ = everything_useful(50, np.random.default_rng(10))
    model = fit_probability(signals, np.full(50, outcome))
    assert {weights[0] for weights in model.weights} == {1.0}
    assert model.bias == pytest.approx(np.log(101) * (1 if outcome else -1))


def test_normal_scores_are_those_of_mid_ranks():
    values = np.array([3.0, 1.0, 1.0, 7.0, 5.0])
    expected = norm.ppf((rankdata(values) - 0.5) / 5)
    np.testing.assert_allclose(normal_scale(values)(values), expected)


def test_normal_scores_of_many_values_use_few_knots():
    values = np.random.default_rng(11).exponential(size=5000)
    scale = normal_scale(values)
    assert len(scale.knots) == 33
    expected = norm.ppf((rankdata(values) - 0.5) / 5000)
    middle = np.abs(expected) < 1.8
    np.testing.assert_allclose(scale(values)[middle], expected[middle], atol=0.08)


def test_cross_fitting_leaves_the_query_out():
    signals, right = everything_useful(60, np.random.default_rng(12))
    folds = np.arange(60) % 3
    chance = cross_fitted(signals, right, folds)
    rest = folds != 1
    model = fit_probability(signals[rest], right[rest])
    np.testing.assert_array_equal(chance[~rest], model(signals[~rest]))


def one_signal_decides(n, rng):
    """Distance tells right from wrong almost without error; margin and density are poor copies of it."""
    right = rng.random(n) < 0.5
    distance = np.where(right, 0.6, 1.2) + 0.09 * rng.normal(size=n)
    copies = distance + 0.3 * rng.normal(size=(2, n))
    return of_four(rng.normal(size=n), distance, 3 - copies[0], copies[1]), right


def test_penalties_give_way_where_one_signal_decides_and_stay_where_there_is_noise():
    rng = np.random.default_rng(7)
    fresh, truth = one_signal_decides(20_000, rng)
    signals, right = one_signal_decides(600, rng)
    strength, chance = choose_strength(signals, right, np.arange(600) % 5)
    assert strength < 1
    np.testing.assert_array_equal(
        chance, cross_fitted(signals, right, np.arange(600) % 5, strength=strength)
    )
    alone = r_auroc(truth, fresh.distance)
    together = r_auroc(truth, -fit_probability(signals, right, strength=strength)(fresh))
    timid = r_auroc(truth, -fit_probability(signals, right)(fresh))
    assert timid < together
    assert together > alone - 0.001
    for world in (everything_useful, kappa_useless):
        assert choose_strength(*world(600, rng), np.arange(600) % 5)[0] == 1


def test_without_two_outcomes_there_is_nothing_to_choose():
    signals, _ = kappa_useless(50, np.random.default_rng(8))
    assert choose_strength(signals, np.ones(50, dtype=bool), np.arange(50) % 5)[0] == 1


def draw(rng, n, weights):
    features = rng.normal(size=(n, len(weights)))
    return features, rng.random(n) < sigmoid(features @ np.array(weights) + 0.7)


@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
def test_it_is_plain_logistic_regression_where_signs_are_right(ridge):
    features, right = draw(np.random.default_rng(1), 400, [2.0, 1.0, 0.5])
    expected = LogisticRegression(C=1 / ridge, tol=1e-10, max_iter=1000).fit(features, right)
    bias, weights = fit_logistic(features, right, ridge=np.full(3, ridge))
    np.testing.assert_allclose(weights, expected.coef_[0], rtol=1e-5)
    np.testing.assert_allclose(bias, expected.intercept_[0], rtol=1e-5)


@pytest.mark.parametrize("lasso", [0.0, 10.0])
def test_it_finds_the_constrained_minimum(lasso):
    rng = np.random.default_rng(2)
    features, right = draw(rng, 300, [1.5, -1.0, 0.3, 0.0, -0.2])
    ridge = np.array([0.3, 1.0, 1.0, 0.5, 2.0])

    def loss(w):
        logit = w[0] + features @ w[1:]
        fit = np.logaddexp(0, np.where(right, -logit, logit)).sum()
        return fit + (ridge * w[1:] ** 2).sum() / 2 + lasso * w[1:].sum()

    bounds = [(None, None)] + [(0, None)] * 5
    slow = minimize(loss, np.zeros(6), bounds=bounds, options={"ftol": 1e-14, "gtol": 1e-9})
    bias, weights = fit_logistic(features, right, ridge=ridge, lasso=lasso)
    found = np.append(bias, weights)
    assert loss(found) <= loss(slow.x) + 1e-6
    np.testing.assert_allclose(found, slow.x, atol=2e-3)
    assert (weights >= 0).all()
    assert weights[1] == 0


def test_separable_answers_stay_finite():
    features = np.linspace(-1, 1, 40)[:, None]
    bias, weights = fit_logistic(features, features[:, 0] > 0, ridge=np.ones(1))
    assert np.isfinite([bias, *weights]).all()
    assert LOWEST_BIAS < bias < 1


def test_figures_are_those_of_scikit_learn():
    signals, right = everything_useful(300, np.random.default_rng(0))
    found = measure_contributions(signals, right, rng=np.random.default_rng(1))
    order = np.random.default_rng(1).permutation(300)
    chance = cross_fitted(signals[order], right[order], np.arange(300) % 5)
    assert found.auroc == pytest.approx(roc_auc_score(right[order], chance))
    assert found.log_loss == pytest.approx(log_loss(right[order], chance))
    margin = found.signals[Signals.names.index("margin")]
    assert margin.name == "margin"
    assert margin.alone_auroc == pytest.approx(roc_auc_score(right, signals.margin))
    assert margin.gain == pytest.approx(margin.without_log_loss - found.log_loss)
    assert margin.without_auroc < found.auroc
    assert margin.alone_log_loss > found.log_loss


def test_many_queries_are_sampled(monkeypatch):
    monkeypatch.setattr(probability, "MOST_QUERIES", 60)
    signals, right = everything_useful(500, np.random.default_rng(5))
    rng = np.random.default_rng(6)
    measure_contributions(signals, right, rng=rng)
    # A sample of one outcome says nothing; all queries are used then.
    rare = np.arange(500) > 0
    found = measure_contributions(signals, rare, rng=rng)
    assert 0 <= found.auroc <= 1


@pytest.mark.parametrize(
    ("world", "useful"),
    [
        (everything_useful, ["log_kappa", "distance", "margin", "density"]),
        (kappa_useless, ["distance", "margin", "density"]),
        (only_kappa, ["log_kappa"]),
    ],
)
def test_useful_signals_are_named(world, useful):
    rng = np.random.default_rng(2)
    found = measure_contributions(*world(600, rng), rng=rng)
    assert [signal.name for signal in found.signals if signal.adds] == useful
    assert f"{', '.join(useful)} {'add' if useful[1:] else 'adds'}." in found.sentence
    assert ("κ adds nothing" in found.sentence) == ("log_kappa" not in useful)
