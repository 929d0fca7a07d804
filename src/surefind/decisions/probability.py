"""One calibrated probability that the answered label is right, from six signals a query.

**Signals** are what the neighbours of a query say about the label it is answered with.
With distances d_1 <= ... <= d_k to the nearest items, and the answer a, the most probable label
(`surefind.decisions.label_posterior`),

    consensus = log-odds of a against all other labels          larger is better
    evidence  = log-odds of a against all else, none included   larger is better
    log_kappa = log κ of the query                              larger is better
    distance  = min {d_i : l_i = a}                             smaller is better
    margin    = min {d_i : l_i != a} - distance                 larger is better; < 0 if a rival is nearer
    density   = mean of the first `DENSE` of d_1 ... d_k        smaller is better

Distances are angles or Euclidean distances of unit vectors, so none exceeds π. Where no neighbour has
another label the margin is π: nothing competes. Where no neighbour has a label at all, the distance is d_1
and the margin 0. κ is kept between 1e-12 and 1e12, so that a query without uncertainty (κ = ∞) has a
finite signal; if all have it, the signal is constant and adds nothing.

**Probability.** Each signal x, signed so that larger is better, first becomes a normal score by its rank
among the queries of the fit, then a monotone piecewise linear function of it is learned:

    z = Φ⁻¹(F(x))                      F: mid-rank distribution function, linear between at most 33 knots
    f(z) = w_0 z + Σ_m w_m clip((z - e_m) / (e_{m+1} - e_m), 0, 1),   all w >= 0
    logit P(right) = b + Σ_signals f(z)

Ranks make the fit indifferent to units and outliers; beyond the values seen in the fit, f is constant.
All w >= 0, so a better signal never lowers the probability (a law of every fit, also a bad one). Weights
are regularised (ridge and lasso), the lasso in units of the noise √(n p (1-p)) of a feature's gradient.
The lasso also shrinks what is useful, which would leave probabilities underconfident; so bias and one
common factor are fitted again without it (the relaxed lasso). That does not change the order of queries.

**Fit.** Logistic regression with non-negative coefficients is convex:

    minimise   Σ_i log(1 + exp(-(±)_i (b + x_i w))) + ½ Σ_j ridge_j w_j² + lasso Σ_j w_j     over w >= 0, b

where the sign is + for a right answer. The lasso removes features without information, because the
constraint leaves them only one side to be wrong on. Each Newton step minimises the quadratic model under
the constraint, exactly: with H = L Lᵀ it is the non-negative least squares problem min ‖Lᵀ v - L⁻¹ r‖,
v >= 0 (`scipy.optimize.nnls`). SciPy's L-BFGS-B with bounds solves the same problem, but at full penalties
takes 1.1 to 2.4 times as long (2,000 queries: 5 ms against 3) and at the weakest 3 to 12 times (10 to 52 ms
against 4), with weights that are off by up to 7e-5.

**Strength.** Both penalties have one common factor. At full strength they guard against noise. But where
one signal alone separates right from wrong almost without error (faces, for example) the ridge spreads its
weight over lesser signals, and the combination is worse than that signal. So the factor is lowered
tenfold, at most twice, while queries that the fit did not see show that this helps (`choose_strength`).

**Contributions.** What each signal adds is measured in five folds; every query is scored by a fit to the
other four. For each signal: how well it does alone, and how much worse the rest does without it.

    AUROC     P(right answer scores above a wrong one) + ½ P(equal)            ½: no information
    log loss  mean of -log p(what happened)                                    smaller is better
    gain      log loss without the signal - log loss with all

A signal *adds something* if its gain is above 1.645 of its standard errors (paired, one-sided 5 %) and
above 0.0001, because fits that differ by rounding only can differ all the same way. At most 2,000 queries,
drawn at random, are used: the figures are for a report and decide nothing.

Policy: where all answers of the fit have one outcome nothing can be learned. The normal scores then
weigh the same, and the bias is the log-odds of (right + ½) / (n + 1).

Axes: ``q`` queries; in the fit ``n`` queries, ``p`` features.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.decisions.label_posterior import LabelPosterior, sigmoid
from surefind.errors import InputError

MARGIN_CAP = float(np.pi)
"""The largest distance of two directions, by angle or by chord."""

KAPPA_RANGE = 1e-12, 1e12
DENSE = 10


@dataclass(frozen=True, eq=False)
class Signals:
    """Six signals for each query, finite and in float64.

    Attributes:
        consensus: Log-odds of the answer against its rivals (q).
        evidence: Log-odds of the answer against its rivals and none (q).
        log_kappa: Logarithm of the query's κ (q).
        distance: Distance to the answer's nearest item (q).
        margin: How much farther the nearest item of another label is (q).
        density: Mean distance to the nearest items (q).
    """

    names: ClassVar[tuple[str, ...]] = (
        "consensus",
        "evidence",
        "log_kappa",
        "distance",
        "margin",
        "density",
    )
    signs: ClassVar[tuple[float, ...]] = (1.0, 1.0, 1.0, -1.0, 1.0, -1.0)

    consensus: np.ndarray
    evidence: np.ndarray
    log_kappa: np.ndarray
    distance: np.ndarray
    margin: np.ndarray
    density: np.ndarray

    def __len__(self) -> int:
        return len(self.log_kappa)

    def __getitem__(self, rows: Any) -> "Signals":
        return Signals(*(getattr(self, name)[rows] for name in self.names))

    def matrix(self) -> Float[np.ndarray, "q s"]:
        """Return the signals as columns, in the order of ``names``."""
        return np.stack([getattr(self, name) for name in self.names], axis=1)

    def oriented(self) -> Float[np.ndarray, "q s"]:
        """Return the signals as columns, signed so that larger is better."""
        return np.asarray(self.matrix() * SIGNS)

    def rows(self) -> Float[np.ndarray, "s q"]:
        """Return the same as rows, which are quicker to go through."""
        columns = [getattr(self, name) for name in self.names]
        return np.asarray(np.concatenate(columns).reshape(len(columns), -1) * SIGNS[:, None])


SIGNS = np.array(Signals.signs)


def neighbour_signals(
    kappa: Float[np.ndarray, " q"],
    distances: Float[np.ndarray, "q k"],
    labels: np.ndarray,
    posterior: LabelPosterior,
) -> Signals:
    """Compute the signals from the neighbours that a search found, and the posterior over their labels.

    Args:
        kappa: Concentration of each query (q), above 0; infinity for a query without uncertainty.
        distances: Distances to the neighbours (q, k), ascending; infinity where there is none.
        labels: Numbers of their labels (q, k), below 0 for an item without one.
        posterior: Of the labels of the same neighbours.

    Returns:
        One row a query.

    Raises:
        InputError: If a query has no neighbour.
    """
    there, (low, high) = np.isfinite(distances), KAPPA_RANGE
    complete = bool(there.all())
    if not distances.shape[1] or not (complete or there[:, 0].all()):
        raise InputError(
            "a query has no neighbour: search a gallery that holds at least one item.",
            field="distances",
        )
    columns = posterior.candidates[:, 0]
    answered = columns >= 0
    places = np.arange(0, distances.size, distances.shape[1]) + np.maximum(columns, 0)
    own = distances.take(places)
    other = labels != labels.take(places)[:, None]
    near, dense = distances[:, :DENSE], there[:, :DENSE]
    if not complete:
        other &= there
        near = np.where(dense, near, 0)
    margin = np.minimum(np.where(other, distances, np.inf).min(axis=1) - own, MARGIN_CAP)
    if not answered.all():
        own = np.where(answered, own, distances[:, 0])
        margin = np.where(answered, margin, 0.0)
    return Signals(
        consensus=posterior.consensus,
        evidence=posterior.evidence,
        log_kappa=np.log(np.minimum(np.maximum(kappa, low), high)),
        distance=own,
        margin=margin,
        density=near.sum(axis=1) / dense.sum(axis=1),
    )


KNOTS = 33
EDGES = (-2.0, -1.25, -0.65, 0.0, 0.65, 1.25, 2.0)
"""Normal scores between which a ramp rises: at 2 %, 11 %, 26 %, 50 % … of the queries of the fit."""

RAMPS = np.array(EDGES[:-1]), np.diff(EDGES)
"""Where each ramp begins, and how wide it is."""

RIDGE = (0.3,) + (1.0,) * (len(EDGES) - 1)
LASSO = 0.5
STRENGTHS = 1.0, 0.1, 0.01
"""Common factors of both penalties, in the order in which they are tried."""

BEYOND_CHANCE = 1.645
"""Standard errors of a paired gain that it must exceed: one-sided 5 %."""

MOST_SURPRISE = 3.0
"""Nats that one query may cost where strengths are compared: a wrong label must not outvote all others."""

FOLDS = 5
LEAST_GAIN = 1e-4
MOST_QUERIES = 2000
"""Queries that contributions are measured on."""

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


@dataclass(frozen=True)
class NormalScale:
    """A monotone map from a signal to normal scores.

    Attributes:
        knots: Values of the signal, rising.
        scores: Their normal scores, rising.
    """

    knots: tuple[float, ...]
    scores: tuple[float, ...]

    @cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        # Turning tuples into arrays would take longer than looking a value up.
        return np.array(self.knots), np.array(self.scores)

    def __call__(self, values: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
        """Return the normal scores of values."""
        return np.asarray(np.interp(values, *self._columns))


@dataclass(frozen=True)
class MatchProbability:
    """The probability that an answered label is right.

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

    @cached_property
    def _weights(self) -> Float[np.ndarray, "f s 1"]:
        return np.array(self.weights).T[:, :, None]

    def parts(self, signals: Signals) -> Float[np.ndarray, "q s"]:
        """Return what each signal adds to the log-odds."""
        scores = signals.rows()
        for column, scale in zip(scores, self.scales, strict=True):
            column[:] = scale(column)
        # Sums in a fixed order: a query's value must not depend on its batch, because it may lie exactly on
        # a threshold.
        return np.ascontiguousarray(_in_order(self._weights * _shapes(scores)).T)

    def probability(self, parts: Float[np.ndarray, "q s"]) -> Float[np.ndarray, " q"]:
        """Return the probability that each answer is right, by what each signal adds."""
        terms = np.empty((1 + parts.shape[1], len(parts)))
        terms[0], terms[1:] = self.bias, parts.T
        return sigmoid(_in_order(terms))

    def __call__(self, signals: Signals) -> Float[np.ndarray, " q"]:
        """Return the probability that each answer is right."""
        return self.probability(self.parts(signals))


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
        right: Whether each answer is right.
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
    shapes = np.concatenate([_shapes(scales[j](columns[j])) for j in used])
    features = np.ascontiguousarray(shapes.T)
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
    """Return for each query the probability by a fit that did not see it.

    Args:
        signals: Signals of the queries.
        right: Whether each answer is right.
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
    """Choose the strength of the penalties; return it and its `cross_fitted` probabilities."""
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
    """Return -log p(what happened) of each query."""
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


def _in_order(terms: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Add up along the first axis, one after the other."""
    # NumPy adds in pairs from eight terms on, and only where they lie side by side.
    assert len(terms) < 8
    return np.asarray(np.add.reduce(terms, axis=0))


def _shapes(score: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "..."]:
    """Return the functions that weights multiply, first the score itself, then a ramp between all edges."""
    shapes = np.empty((len(EDGES), *score.shape))
    shapes[0] = score
    low, width = (x.reshape(-1, *(1,) * score.ndim) for x in RAMPS)
    ramps = np.divide(score - low, width, out=shapes[1:])
    np.minimum(np.maximum(ramps, 0, out=ramps), 1, out=ramps)
    return shapes


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


@dataclass(frozen=True)
class Contribution:
    """What one signal adds.

    Attributes:
        name: The signal.
        alone_auroc: AUROC of the signal itself, better values ranked higher; nothing is fitted.
        alone_log_loss: Log loss of a probability from this signal only.
        without_auroc: AUROC of the probability from the other signals.
        without_log_loss: Its log loss.
        gain: How much the log loss rises without the signal.
        gain_error: Standard error of the gain.
    """

    name: str
    alone_auroc: float
    alone_log_loss: float
    without_auroc: float
    without_log_loss: float
    gain: float
    gain_error: float

    @property
    def adds(self) -> bool:
        """Whether the gain is more than chance."""
        return self.gain > max(BEYOND_CHANCE * self.gain_error, LEAST_GAIN)


@dataclass(frozen=True)
class Contributions:
    """How well all signals do together, and what each one adds.

    Attributes:
        auroc: AUROC of the probability from all signals.
        log_loss: Its log loss.
        signals: One entry a signal.
    """

    auroc: float
    log_loss: float
    signals: tuple[Contribution, ...]

    @property
    def sentence(self) -> str:
        """Which signals add something and which do not, in a sentence or two."""
        text = f"All signals together reach an AUROC of {self.auroc:.3f}"
        best = max(self.signals, key=lambda signal: signal.alone_auroc)
        text += f"; the best alone is {best.name} with {best.alone_auroc:.3f}."
        useful = [signal.name for signal in self.signals if signal.adds]
        if useful:
            text += f" Beside the others, {', '.join(useful)} {'add' if useful[1:] else 'adds'}."
        if "log_kappa" not in useful:
            text += " κ adds nothing beside the other signals on these queries."
        return text


def measure_contributions(
    signals: Signals,
    right: Bool[np.ndarray, " q"],
    *,
    strength: float = 1.0,
    rng: np.random.Generator,
) -> Contributions:
    """Measure what each signal adds.

    Args:
        signals: Signals of the queries.
        right: Whether each answer is right; both occur.
        strength: A factor of the penalties.
        rng: Draws the queries and the folds.

    Returns:
        The figures.
    """
    from surefind.metrics import auroc  # with it comes PyTorch, which deciding does not need

    chosen = rng.permutation(len(right))[:MOST_QUERIES]
    if right[chosen].all() or not right[chosen].any():
        chosen = np.arange(len(right))
    signals, right = signals[chosen], right[chosen]
    folds = np.arange(len(right)) % FOLDS
    chance = cross_fitted(signals, right, folds, strength=strength)
    loss = log_losses(chance, right)
    found = []
    for name, raw in zip(signals.names, signals.oriented().T, strict=True):
        others = [s for s in signals.names if s != name]
        alone = cross_fitted(signals, right, folds, use=[name], strength=strength)
        rest = cross_fitted(signals, right, folds, use=others, strength=strength)
        rise = log_losses(rest, right) - loss
        found.append(
            Contribution(
                name=name,
                alone_auroc=auroc(-raw[right], -raw[~right]),
                alone_log_loss=float(log_losses(alone, right).mean()),
                without_auroc=auroc(-rest[right], -rest[~right]),
                without_log_loss=float(log_losses(rest, right).mean()),
                gain=float(rise.mean()),
                gain_error=float(rise.std() / np.sqrt(len(rise))),
            )
        )
    return Contributions(auroc(-chance[right], -chance[~right]), float(loss.mean()), tuple(found))
