"""The probability that an answer is right: two monotone maps of a posterior's log-odds.

    P(right) = P(right | enrolled) P(enrolled) = σ(w₀ + w₁ among) · σ(v₀ + v₁ known)

`surefind.labels.posterior` has *among* (which of the labels) and *known* (any of them). Each map is Platt's
(1999), its slope never negative: the second is fitted to which queries are enrolled, the first to which of
the enrolled are answered right. Without *known* one map says both, and is fitted to all queries.

**Platt's targets.** Of n₊ and n₋ outcomes a map is fitted to (n₊ + 1)/(n₊ + 2) and 1/(n₋ + 2) in place of 1
and 0: one error more than was seen. A ridge keeps slopes near 1 and biases near 0, as a posterior that is
right needs them; it is worth a query or two. Log-odds are clipped at ±30.

**One outcome.** If all n queries have the outcome, nothing tells better evidence from worse. The map is
then the constant (n + 1)/(n + 2); for evidence that speaks against the answer, and more than any of theirs
does, log-odds fall as its own do. So no query of a sample that was all right has less than the share that
was right.

**κ**, the concentration of a query, enters a map as one term more, u log κ with u >= 0, only where that
lowers the cross-validated log loss by more than a standard error.

**Another share** of unknown queries than the sample has is a weight of each kind of query.

    Platt: Probabilistic Outputs for Support Vector Machines. Advances in Large Margin Classifiers, 1999.

Axes: ``q`` queries.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from surefind.decisions.risk import Flags, Values
from surefind.labels.posterior import LabelPosterior

CLIP = 30.0
FOLDS = 5
RIDGE = np.array([0.1, 1.0, 1.0])
"""Of bias, slope and weight of log κ, in queries."""

CENTRE = np.array([0.0, 1.0, 0.0])
"""Where the ridge pulls them."""


@dataclass(frozen=True)
class PlattMap:
    """A monotone map from log-odds to a probability.

    Attributes:
        bias: Log-odds where all else is 0.
        slope: Of the log-odds given; at least 0.
        cap: Above it they count no more.
        kappa: Weight of log κ; at least 0.
    """

    bias: float
    slope: float
    cap: float = CLIP
    kappa: float = 0.0

    def __call__(self, odds: Values, log_kappa: Values | None) -> Values:
        """Return the probabilities; log κ is needed where it has a weight."""
        logit = self.bias + self.slope * np.minimum(np.maximum(odds, -CLIP), self.cap)
        if self.kappa and log_kappa is not None:
            logit += self.kappa * log_kappa
        return np.asarray(1 / (1 + np.exp(np.minimum(np.maximum(-logit, -CLIP), CLIP))))


@dataclass(frozen=True)
class MatchProbability:
    """The probability that an answer is right.

    Attributes:
        among: Whether it is the right label, if any is.
        known: Whether any label is right; None where the posterior does not say.
    """

    among: PlattMap
    known: PlattMap | None

    @property
    def uses_kappa(self) -> bool:
        """Whether a query must have a κ."""
        return self.among.kappa > 0 or (self.known is not None and self.known.kappa > 0)

    def __call__(self, posterior: LabelPosterior, log_kappa: Values | None = None) -> Values:
        """Return the probability that each answer is right."""
        right, enrolled = self.factors(posterior, log_kappa)
        return np.asarray(right * enrolled)

    def factors(self, posterior: LabelPosterior, log_kappa: Values | None) -> tuple[Values, Values]:
        """Return P(right | enrolled) and P(enrolled), 0 for a query that no label is possible for."""
        right = self.among(posterior.among, log_kappa) * (posterior.label_probability[:, 0] > 0)
        if self.known is None:
            return right, np.ones(len(right))
        return right, self.known(posterior.known, log_kappa)


def fit_map(
    odds: Values, outcome: Flags, weight: Values, log_kappa: Values | None = None
) -> PlattMap:
    """Fit a map by the weighted log loss of Platt's targets.

    Args:
        odds: Log-odds.
        outcome: What they should tell.
        weight: Of each query; those of weight 0 do not count.
        log_kappa: To enter as well; None if it should not.

    Returns:
        The map.
    """
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    there = weight > 0
    x, good = np.clip(odds[there], -CLIP, CLIP), outcome[there]
    n, wins = len(x), int(good.sum())
    if wins == n:
        if not n:
            return PlattMap(0.0, 1.0)
        cap = min(float(x.min()), 0.0)
        return PlattMap(float(np.log(n + 1)) - cap, 1.0, cap=cap)
    columns = [np.ones(n), x] + ([] if log_kappa is None else [log_kappa[there]])
    design, weights = np.stack(columns, axis=1), weight[there]
    target = np.where(good, (wins + 1) / (wins + 2), 1 / (n - wins + 2))
    ridge, centre = RIDGE[: len(columns)], CENTRE[: len(columns)]

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        z = design @ w
        chance = 1 / (1 + np.exp(-np.clip(z, -700, 700)))
        value = weights @ (np.logaddexp(0, z) - target * z) + ridge @ (w - centre) ** 2 / 2
        return float(value), design.T @ (weights * (chance - target)) + ridge * (w - centre)

    bounds = [(None, None)] + [(0, None)] * (len(columns) - 1)
    options = {"ftol": 1e-13, "gtol": 1e-9, "maxiter": 500}
    found = minimize(loss, centre, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x
    bias, slope, *more = map(float, found)
    return PlattMap(bias, slope, kappa=more[0] if more else 0.0)


def fit_probability(
    posterior: LabelPosterior,
    right: Flags,
    enrolled: Flags,
    *,
    weight: Values | None = None,
    log_kappa: Values | None = None,
) -> tuple[MatchProbability, Values]:
    """Fit both maps.

    Args:
        posterior: Of the queries, in random order.
        right: Whether each answer is right.
        enrolled: Whether any label is.
        weight: Of each query, 1 on average; None for equal ones.
        log_kappa: Of each query; None if one has no κ.

    Returns:
        The probability, and that of each query by a fit that did not see it (q).
    """
    n = len(posterior)
    weights = np.ones(n) if weight is None else weight
    folds = np.arange(n) % FOLDS
    asked = posterior.none is not None
    some = enrolled if asked else np.ones(n, dtype=bool)
    among, unseen = _chosen(posterior.among, right, weights * some, folds, log_kappa)
    if not asked:
        return MatchProbability(among, None), unseen
    known, other = _chosen(posterior.known, enrolled, weights, folds, log_kappa)
    return MatchProbability(among, known), unseen * other


def _chosen(
    odds: Any, outcome: Any, weight: Any, folds: Int[np.ndarray, " q"], log_kappa: Any
) -> tuple[PlattMap, Values]:
    """Fit a map, with κ where that is better; return it, and probabilities by fits without the query."""

    def held_out(kappa: Any) -> Values:
        chance = np.empty(len(odds))
        for fold in range(FOLDS):
            held = folds == fold
            fitted = fit_map(odds, outcome, weight * ~held, kappa)
            chance[held] = fitted(odds, kappa)[held]
        return chance

    plain = held_out(None)
    if log_kappa is not None:
        better, there = held_out(log_kappa), weight > 0
        gain = (weight * np.log(np.where(outcome, better / plain, (1 - better) / (1 - plain))))[
            there
        ]
        if len(gain) > 1 and gain.mean() > gain.std() / np.sqrt(len(gain)):
            return fit_map(odds, outcome, weight, log_kappa), better
    return fit_map(odds, outcome, weight), plain
