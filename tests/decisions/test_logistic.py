import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression

from surefind.decisions.probability import LOWEST_BIAS, fit_logistic, sigmoid


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


def test_sigmoid_does_not_overflow():
    np.testing.assert_allclose(sigmoid(np.array([-1e4, 0.0, 1e4])), [0, 0.5, 1])
