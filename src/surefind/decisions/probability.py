"""One calibrated probability that the top answer is right, from four signals.

Each signal x, signed so that larger is better, first becomes a normal score by its rank among the
queries of the fit, then a monotone piecewise linear function of it is learned:

    z = Φ⁻¹(F(x))                      F: mid-rank distribution function, linear between at most 33 knots
    f(z) = w_0 z + Σ_m w_m clip((z - e_m) / (e_{m+1} - e_m), 0, 1),   all w >= 0
    logit P(right) = b + Σ_signals f(z)

Ranks make the fit indifferent to units and outliers; beyond the values seen in the fit, f is constant.
All w >= 0, so a better signal never lowers the probability (law of every fit, also a bad one). Weights
are regularised (ridge and lasso of `logistic`), the lasso in units of the noise √(n p (1-p)) of a
feature's gradient. The lasso also shrinks what is useful, which would leave probabilities too timid; so
bias and one common factor are fitted again without it. That does not change the order of queries.

**Strength.** Both penalties have one common factor. At full strength they guard against noise. But where
one signal alone tells right from wrong almost without error (faces, for example) the ridge spreads its
weight over lesser signals, and the combination is worse than that signal. So the factor is lowered
tenfold, at most twice, while queries that the fit did not see say that this helps (`choose_strength`).

Policy: where all answers of the fit have one outcome nothing can be learned. The four normal scores then
weigh the same, and the bias is the log-odds of (right + ½) / (n + 1).
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.decisions.logistic import fit_logistic, sigmoid
from surefind.decisions.signals import Signals

KNOTS = 33
EDGES = (-2.0, -1.25, -0.65, 0.0, 0.65, 1.25, 2.0)
"""Normal scores between which a ramp rises: at 2 %, 11 %, 26 %, 50 % … of the queries of the fit."""

RIDGE = (0.3,) + (1.0,) * (len(EDGES) - 1)
LASSO = 0.5
STRENGTHS = 1.0, 0.1, 0.01
"""Common factors of both penalties, in the order in which they are tried."""

BEYOND_CHANCE = 1.645
"""Standard errors of a paired gain that it must exceed: one-sided 5 %."""

MOST_SURPRISE = 3.0
"""Nats that one query may cost where strengths are compared: a wrong label must not outvote all others."""


@dataclass(frozen=True)
class NormalScale:
    """A monotone map from a signal to normal scores.

    Attributes:
        knots: Values of the signal, rising.
        scores: Their normal scores, rising.
    """

    knots: tuple[float, ...]
    scores: tuple[float, ...]

    def __call__(self, values: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
        """Give the normal scores of values."""
        return np.asarray(np.interp(values, self.knots, self.scores))


@dataclass(frozen=True)
class MatchProbability:
    """The probability that a top answer is right.

    Attributes:
        scales: A map to normal scores for each signal.
        bias: Log-odds where all functions are 0.
        weights: For each signal the weight of its score and of each ramp, none negative.
    """

    scales: tuple[NormalScale, ...]
    bias: float
    weights: tuple[tuple[float, ...], ...]

    @property
    def used(self) -> tuple[bool, ...]:
        """Whether each signal counts at all."""
        return tuple(any(weights) for weights in self.weights)

    def parts(self, signals: Signals) -> Float[np.ndarray, "q 4"]:
        """Give what each signal adds to the log-odds."""
        columns = []
        for column, scale, weights in zip(
            signals.oriented().T, self.scales, self.weights, strict=True
        ):
            # A fixed order of sums: a query's value must not depend on its batch, because it may lie
            # exactly on a threshold.
            columns.append(sum(w * f for w, f in zip(weights, _shapes(scale(column)), strict=True)))
        return np.stack(columns, axis=1)

    def __call__(self, signals: Signals) -> Float[np.ndarray, " q"]:
        """Give the probability that each top answer is right."""
        logit = self.bias
        for part in self.parts(signals).T:
            logit = logit + part
        return sigmoid(np.asarray(logit))


def fit_probability(
    signals: Signals,
    right: Bool[np.ndarray, " q"],
    *,
    use: Collection[str] = Signals.names,
    strength: float = 1.0,
) -> MatchProbability:
    """Learn the probability from queries whose answers were checked.

    Args:
        signals: Signals of the queries.
        right: Whether each top answer is right.
        use: Names of the signals that may count.
        strength: A factor of the penalties.

    Returns:
        The probability as a function of signals.
    """
    columns = signals.oriented().T
    scales = tuple(normal_scale(column) for column in columns)
    n, wins = len(right), int(right.sum())
    if wins in (0, n):
        one = tuple((float(name in use),) + (0.0,) * (len(RIDGE) - 1) for name in signals.names)
        return MatchProbability(scales, float(np.log((wins + 0.5) / (n - wins + 0.5))), one)
    used = [j for j, name in enumerate(signals.names) if name in use]
    features = np.stack([f for j in used for f in _shapes(scales[j](columns[j]))], axis=1)
    noise = float(np.sqrt(wins * (n - wins) / n))
    ridge = strength * np.tile(RIDGE, len(used))
    bias, flat = fit_logistic(features, right, ridge=ridge, lasso=strength * LASSO * noise)
    bias, factor = _relaxed(bias + features @ flat, bias, right, strength)
    weights = np.zeros((len(scales), len(RIDGE)))
    weights[used] = factor * flat.reshape(len(used), -1)
    return MatchProbability(scales, bias, tuple(tuple(map(float, row)) for row in weights))


def cross_fitted(
    signals: Signals,
    right: Bool[np.ndarray, " q"],
    folds: Int[np.ndarray, " q"],
    *,
    use: Collection[str] = Signals.names,
    strength: float = 1.0,
) -> Float[np.ndarray, " q"]:
    """Give each query the probability of a fit that did not see it.

    Args:
        signals: Signals of the queries.
        right: Whether each top answer is right.
        folds: The fold of each query; its fit is on the other folds. At least two.
        use: Names of the signals that may count.
        strength: A factor of the penalties.

    Returns:
        Probabilities.
    """
    chance = np.empty(len(right))
    for fold in np.unique(folds):
        held = folds == fold
        fitted = fit_probability(signals[~held], right[~held], use=use, strength=strength)
        chance[held] = fitted(signals[held])
    return chance


def choose_strength(
    signals: Signals, right: Bool[np.ndarray, " q"], folds: Int[np.ndarray, " q"]
) -> tuple[float, Float[np.ndarray, " q"]]:
    """Lower the penalties as long as queries that the fit did not see say that it helps.

    Args:
        signals: Signals of the queries.
        right: Whether each top answer is right.
        folds: As for `cross_fitted`.

    Returns:
        The strength, and the probabilities of its `cross_fitted`.
    """
    best, *weaker = STRENGTHS
    chance = cross_fitted(signals, right, folds, strength=best)
    for strength in weaker:
        other = cross_fitted(signals, right, folds, strength=strength)
        before, after = (np.minimum(log_losses(p, right), MOST_SURPRISE) for p in (chance, other))
        gain = before - after
        # Rounding alone may differ all the same way; a millionth of a nat is no gain.
        if gain.mean() <= max(BEYOND_CHANCE * gain.std() / np.sqrt(len(gain)), 1e-6):
            break
        best, chance = strength, other
    return best, chance


def log_losses(
    chance: Float[np.ndarray, " q"], right: Bool[np.ndarray, " q"]
) -> Float[np.ndarray, " q"]:
    """Give -log p(what happened) of each query."""
    # A fold may be certain where its fit saw one outcome only; rounding must not make that infinite.
    return -np.log(np.maximum(np.where(right, chance, 1 - chance), 1e-15))


def normal_scale(values: Float[np.ndarray, " q"]) -> NormalScale:
    """Fit the map to normal scores; equal values share their mean rank."""
    knots, counts = np.unique(values, return_counts=True)
    ranks = (counts.cumsum() - counts / 2) / len(values)
    if len(knots) > KNOTS:
        chosen = np.unique(np.searchsorted(ranks, np.linspace(ranks[0], ranks[-1], KNOTS)))
        knots, ranks = knots[chosen], ranks[chosen]
    inverse = NormalDist().inv_cdf
    return NormalScale(tuple(map(float, knots)), tuple(inverse(float(r)) for r in ranks))


def _shapes(score: Float[np.ndarray, " q"]) -> list[Float[np.ndarray, " q"]]:
    """Give the functions that weights multiply: the score itself and a ramp between all edges."""
    ramps = [np.clip((score - low) / (high - low), 0, 1) for low, high in pairwise(EDGES)]
    return [score, *ramps]


def _relaxed(
    logit: Float[np.ndarray, " q"], bias: float, right: Bool[np.ndarray, " q"], strength: float
) -> tuple[float, float]:
    """Fit the bias and a common factor of the weights again, without the lasso."""
    spread = float(logit.std())
    if spread < 1e-9:
        return bias, 1.0
    # In units of its spread, the factor has the prior that one signal's score has.
    shift, slope = fit_logistic(
        ((logit - logit.mean()) / spread)[:, None], right, ridge=strength * np.array(RIDGE[:1])
    )
    factor = float(slope[0]) / spread
    return float(shift + factor * (bias - logit.mean())), factor
