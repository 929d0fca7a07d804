"""Logistic regression whose coefficients cannot be negative.

    minimise   Σ_i log(1 + exp(-(±)_i (b + x_i w))) + ½ Σ_j ridge_j w_j² + lasso Σ_j w_j     over w >= 0, b

The sign is + for a right answer. With features that are better when larger, w >= 0 makes the probability
monotone; the lasso then removes features that say nothing, because the constraint leaves them only one
side to be wrong on. The problem is convex. Each Newton step minimises the quadratic model under the
constraint, exactly: with H = L Lᵀ it is the non-negative least squares problem min ‖Lᵀ v - L⁻¹ r‖, v >= 0.

Axes: ``n`` queries, ``p`` features.
"""

import numpy as np
from jaxtyping import Bool, Float

STEPS = 100
TOLERANCE = 1e-9
"""Ends the iteration when a Newton step promises less than this, in nats for all queries together."""

LOWEST_BIAS = -60.0
"""Stands for -∞, so that the bias is one more bounded variable; e⁻⁶⁰ is no probability to meet."""


def fit_logistic(
    features: Float[np.ndarray, "n p"],
    right: Bool[np.ndarray, " n"],
    *,
    ridge: Float[np.ndarray, " p"],
    lasso: float = 0.0,
) -> tuple[float, Float[np.ndarray, " p"]]:
    """Fit bias and non-negative weights.

    Args:
        features: Larger is better (n, p).
        right: Whether each answer is right; both outcomes occur.
        ridge: Quadratic penalty of each weight, above 0 unless the data determine the weight.
        lasso: Linear penalty of all weights.

    Returns:
        The bias, which is not penalised, and the weights.
    """
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    n, p = features.shape
    design = np.concatenate([np.ones((n, 1)), features], axis=1)
    quadratic, linear = np.append(1e-9, ridge), np.append(0.0, np.full(p, lasso))
    lower = np.append(LOWEST_BIAS, np.zeros(p))
    sign = np.where(right, -1.0, 1.0)

    def loss(weights: np.ndarray) -> float:
        fit = np.logaddexp(0, sign * (design @ weights)).sum()
        return float(fit + (quadratic * weights**2).sum() / 2 + linear @ weights)

    weights = np.append(np.log(right.sum() / (~right).sum()), np.zeros(p))
    value = loss(weights)
    for _ in range(STEPS):
        chance = sigmoid(design @ weights)
        gradient = design.T @ (chance - right) + quadratic * weights + linear
        hessian = (design * (chance * (1 - chance))[:, None]).T @ design + np.diag(quadratic)
        # The quadratic model in v = new weights - lower >= 0 is ½ vᵀHv - rᵀv.
        factor = np.linalg.cholesky(hessian)
        residual = np.linalg.solve(factor, hessian @ (weights - lower) - gradient)
        step = nnls(factor.T, residual, maxiter=100 * (p + 1))[0] + lower - weights
        promise = float(gradient @ step)
        if promise > -TOLERANCE:
            break
        length = 1.0
        while (new := loss(weights + length * step)) > value + 1e-4 * length * promise:
            length /= 2
            if length < 1e-9:  # rounding, not the slope, decides now
                return float(weights[0]), weights[1:]
        weights, value = np.maximum(weights + length * step, lower), new
    return float(weights[0]), weights[1:]


def sigmoid(logit: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Turn log-odds into a probability, without overflow."""
    return np.asarray((1 + np.tanh(logit / 2)) / 2)
