"""A posterior over labels, with a place for "none", from the neighbours that a search found.

A query has K nearest items g with scores m_g (higher is nearer) and labels l_g; label l has n_l items in
the gallery. With five numbers T, c, γ, a, b (`LabelModel`),

    s_l = log (1/n_l) Σ_{l_g = l} exp(m_g / T)                    log density of label l at the query
    P(none | q)         = σ(b (a - max_l s_l))                      nobody who is enrolled
    P(l | q, not none)  = n_l^γ exp(c s_l) / Σ_k n_k^γ exp(c s_k)   who, if somebody is
    P(l | q)            = (1 - P(none | q)) P(l | q, not none)

s_l is a kernel estimate, with von Mises-Fisher kernels, of the density of label l: m is the cosine, and T
one over the kernel's concentration. The answer is the most probable label, which need not be the nearest
item's.

**Why n_l.** Σ without 1/n_l has a prior that is proportional to n_l, which is another question: how many
pictures of somebody happen to be enrolled need not say how often that person is asked for. On CUB200 with
25 items of one half of the classes and 3 of the other, queries alike for all: right 0.35 with the sum (0.12
where there are 3 items), 0.44 with 1/√n_l (0.28), 0.49 with 1/n_l (0.49); with at most 3, 5, 10 votes a
label 0.40, 0.39, 0.36. The mean also does not mind if every item of a label is there twice.

**Why γ.** Where queries do come as items do, equal priors are a mistake. γ is 0 if labels are asked for
alike, 1 if in proportion to their items, and fitted like c to queries that came as they will come, those of
a calibration (`fit_prior`). A gallery's own items cannot say, and γ stays 0. On LFW's training people
(ResNet-50 as it is; a tenth of the people fitted to, half of them tested on, three divisions), asked for as
often as there are images: right 0.357 by the nearest item, 0.346 with γ = 0, 0.396 with the fitted γ of
0.8, 1.1 and 1.3; asked for alike: 0.245, 0.293, and 0.292 with 0.1, 0.0 and 0.3.

**Why c and b.** With c = b = 1 and a sum over labels in place of the maximum this is one softmax with a
weight w_0 = e^a for none, and the data then ask T for three things: whose votes count, how far to trust the
majority, how far to trust the distance. Kernels that overlap so much that many neighbours have a say (which
gives the best answers) leave flat shares, and K neighbours of one label are not K independent witnesses. On
CUB200 the likelihood of labels left out is 0.99 nats with (T, c) = (0.047, 2.6) and 1.12 with T = 0.020
alone; right are 0.705 and 0.678. T stays free to choose the best voters; c and b say what they are worth.

**Fit.** Maximum likelihood on the gallery's own items (`fit_label_model`): an item that is left out should
find its label, one whose label is left out should find none. T, c and γ together, by the first; a and b by
both, each half of the weight. They have Platt's (1999) targets, which count one more error than was seen:
of n items whose label was found, the next is wrong with probability 1 / (n + 2). So sides that do not
overlap have a finite answer, and n easy items cannot make votes surer than n items can. With r the
strongest rival of the true label, T, c and γ have the least

    (1/n) Σ_q min(-log P(true | q, not none), 7) + 1/(n (n + 1)) Σ_q -log P(r | q, not none)

The errors that were seen cost 7 nats at most, since some are wrong labels; without the second term that
made one mistake among hundreds as good as none. With ten of CUB200's training classes (ResNet-50, eight
draws) c is up to 6.2 without it and 3.3 with it, and on 40 other classes log loss is 0.520 and 0.496 nats.
γ, from 0 to `MOST_PRIOR`, has a standard normal prior besides, since labels of about one size say nothing
of it. Of T that are equally good the one nearest to `USUAL` is taken. Policies: with fewer than `LEAST`
items that have a companion of their label, T and c are `USUAL` and γ is 0; where one side is missing, a and
b put the other side's median at 0.05 or 0.95 and its 5 % tail at ½.

Axes: ``q`` queries, ``k`` neighbours, ``c`` candidates.

    Platt: Probabilistic Outputs for Support Vector Machines. Advances in Large Margin Classifiers, 1999.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

CANDIDATES = 5
"""Labels that are listed with their probabilities."""

USUAL = 0.05, 2.5
"""T for cosines and c, where a gallery cannot say: what CUB200's features have."""

LEAST = 20
"""Items with a companion below which T, c and γ are not fitted."""

TEMPERATURES = np.geomspace(2**-10, 1.0, 11)
SHARPNESS = 0.05, 50.0
SLOPES = 0.01, 50.0
MOST_PRIOR = 2.0
"""Largest γ."""
NO_BETTER, PRIOR = 1e-3, 1e-4
"""Nats an item by which T must be better than one nearer to the usual, and that log c costs, squared."""

MOST_SURPRISE = 7.0
"""Nats that one item may cost where T, c and γ are chosen: a wrong label must not outvote all others."""

TAIL_SHARE = 0.05
CAP = 50.0
"""Largest log-odds, for a query without a rival."""

NUMBERS = 2**20
"""Labels of all queries that are told apart by their numbers; more are numbered anew."""


@dataclass(frozen=True)
class LabelModel:
    """How neighbours' scores become probabilities of labels.

    Attributes:
        temperature: T, in units of the score.
        sharpness: c, what the votes are worth.
        none_level: a, the log density at which an enrolled label and none are equally probable.
        none_slope: b, how fast that changes.
        enrolled: Items that were left out to find their label again.
        unknown: Items that were asked with their label left out.
        nats: Mean log loss of the label of the former.
        prior: γ, by which labels with more items are more probable before anything is seen.
    """

    temperature: float = USUAL[0]
    sharpness: float = USUAL[1]
    none_level: float = 0.0
    none_slope: float = 1.0
    enrolled: int = 0
    unknown: int = 0
    nats: float | None = None
    prior: float = 0.0


@dataclass(frozen=True, eq=False)
class Votes:
    """The neighbours of some queries, and which of them agree.

    Attributes:
        scores: m (q, k); -inf where there is none.
        labels: Numbers from 0 up (q, k); below 0 for an item without a label.
        sizes: n_l of each one's label (q, k), at least 1; 1 for an item without a label.
        unseen: How many more items the gallery holds.
    """

    scores: np.ndarray
    labels: np.ndarray
    sizes: np.ndarray
    unseen: int = 0

    def __len__(self) -> int:
        return len(self.scores)

    def some(self, which: np.ndarray) -> "Votes":
        """Return the neighbours of some of the queries, by a boolean each or by row numbers."""
        return Votes(self.scores[which], self.labels[which], self.sizes[which], self.unseen)

    @cached_property
    def there(self) -> Bool[np.ndarray, "q k"]:
        """Which neighbours there are."""
        return np.asarray(np.isfinite(self.scores))

    @cached_property
    def log_sizes(self) -> Float[np.ndarray, "q k"]:
        """The logarithm of n_l of each one's label."""
        return np.asarray(np.log(self.sizes))

    @cached_property
    def complete(self) -> bool:
        """Whether no query has fewer neighbours than others."""
        return bool(self.there.all())

    @cached_property
    def segments(self) -> tuple[Int[np.ndarray, "q k"], Bool[np.ndarray, "q k"]]:
        """Numbers of the labels, distinct between rows, and each label's neighbour of highest score."""
        q, k = self.scores.shape
        # An item without a label is a label of its own, below all others.
        own = self.labels + k
        if (self.labels < 0).any():
            own = np.where(self.labels < 0, np.arange(k), own)
        width = k + 1 + int(self.labels.max(initial=0))
        numbers = (own + np.arange(0, q * width, width)[:, None]).ravel()
        if q * width > NUMBERS:
            numbers = np.unique(numbers, return_inverse=True)[1]
        order = (-self.scores).argsort(axis=1, kind="stable")
        falling = (order + np.arange(0, q * k, k)[:, None]).ravel()[::-1]
        # A label's number is the place of its best neighbour: of several that are written, the last stays.
        best = np.empty(int(numbers.max(initial=0)) + 1, dtype=np.int64)
        best[numbers[falling]] = falling
        segment = best[numbers].reshape(q, k)
        first = segment == np.arange(q * k).reshape(q, k)
        return segment, first if self.complete else first & self.there


@dataclass(frozen=True, eq=False)
class LabelPosterior:
    """Probabilities of labels, and the evidence for the most probable one.

    Attributes:
        candidates: Columns (q, c) of the neighbours that are nearest among those of their label, the most
            probable label first; -1 where there are fewer labels. The first column is the answer's.
        probability: P(l | q) of these labels (q, c); 0 where there is none.
        none: P(none | q) (q).
        consensus: Log-odds of the answer against all rivals, none apart (q).
        evidence: Log-odds of the answer against all else, none among it (q).
    """

    candidates: np.ndarray
    probability: np.ndarray
    none: np.ndarray
    consensus: np.ndarray
    evidence: np.ndarray

    def __len__(self) -> int:
        return len(self.none)


def label_posterior(votes: Votes, model: LabelModel) -> LabelPosterior:
    """Compute the probabilities of the labels among each query's neighbours, and of none."""
    density = label_densities(votes, model.temperature)
    q, k = density.shape
    starts = np.arange(0, q * k, k)[:, None]
    weights = log_weights(votes, density, model.sharpness, model.prior)
    labelled = votes.labels >= 0
    answerable, named = weights, density
    if not labelled.all():
        answerable, named = (np.where(labelled, x, -np.inf) for x in (weights, density))
    best = named.max(axis=1)
    order = (-answerable).argsort(axis=1, kind="stable")[:, :CANDIDATES]
    places = order + starts
    found = np.isfinite(answerable.take(places))
    shares = np.exp(weights - _or_zero(weights.max(axis=1, keepdims=True)))
    total = shares.sum(axis=1)
    safe_total = np.maximum(total, 1e-300)
    leaning = np.tanh(model.none_slope * (best - model.none_level) / 2)
    enrolled, none = (1 + leaning) / 2, (1 - leaning) / 2  # the sigmoid of both signs
    given = np.where(found, shares.take(places), 0.0)
    probability = enrolled[:, None] * given / safe_total[:, None]
    own = probability[:, 0]
    others = none + enrolled * (total - given[:, 0]) / safe_total
    answer = _Answer(places[:, 0], found[:, 0], weights.take(places[:, 0]))
    return LabelPosterior(
        candidates=np.where(found, order, -1),
        probability=probability,
        none=none,
        consensus=_consensus(votes, weights, model, answer),
        evidence=_capped(np.log(np.maximum(own, 1e-300) / np.maximum(others, 1e-300))),
    )


def label_densities(votes: Votes, temperature: float) -> Float[np.ndarray, "q k"]:
    """Return s_l in the column of each label's best neighbour, -inf in every other column."""
    segment, first = votes.segments
    scaled = votes.scores / temperature
    # Seen from its own best neighbour no label vanishes, however far it is from another one.
    best = scaled.ravel()[segment]
    away = (
        scaled - best if votes.complete else np.where(votes.there, scaled - _or_zero(best), -np.inf)
    )
    mass = np.bincount(segment.ravel(), weights=np.exp(away).ravel())[segment]
    with np.errstate(divide="ignore"):
        return np.where(first, np.log(mass / votes.sizes) + best, -np.inf)


def log_weights(
    votes: Votes, density: Float[np.ndarray, "q k"], sharpness: float, prior: float
) -> Float[np.ndarray, "q k"]:
    """Return c s_l + γ log n_l where there is a density, -inf in every other column."""
    weights = sharpness * density
    return weights + prior * votes.log_sizes if prior else weights


def _log_total(weights: Float[np.ndarray, "q k"]) -> Float[np.ndarray, " q"]:
    """Return the logarithm of the sum over labels."""
    top = weights.max(axis=1)
    return np.asarray(top + np.log(np.exp(weights - top[:, None]).sum(axis=1)))


def fit_label_model(
    enrolled: Votes,
    truth: Int[np.ndarray, " n"],
    unknown: Votes,
    *,
    as_asked: bool = False,
) -> LabelModel:
    """Fit T, c, a and b, and γ, to items of a gallery that were left out of it, or to other queries.

    Args:
        enrolled: Neighbours of items that were left out, and have a companion of their label.
        truth: Their labels.
        unknown: Neighbours of items whose label was left out.
        as_asked: Whether labels come as often as they will be asked for, so that γ can be fitted; else it
            is 0.

    Returns:
        The model of least loss, as above.
    """
    fitted = len(enrolled) >= LEAST
    found = Trial(*USUAL)
    if fitted:
        found = fit_temperature(partial(_fit_weights, enrolled, truth, as_asked))
    temperature = found.temperature
    inside, outside = (
        np.where(votes.labels >= 0, label_densities(votes, temperature), -np.inf).max(1)
        for votes in (enrolled, unknown)
    )
    model = LabelModel(
        temperature,
        found.sharpness,
        *_fit_none(inside[np.isfinite(inside)], outside[np.isfinite(outside)]),
        len(enrolled),
        len(unknown),
        prior=found.prior,
    )
    if not fitted:
        return model
    return replace(model, nats=float(label_losses(enrolled, truth, model).mean()))


def label_numbers(labels: np.ndarray) -> tuple[Int[np.ndarray, "..."], list[Any]]:
    """Number labels in the order in which they come; None is -1.

    Args:
        labels: An array of any shape.

    Returns:
        The numbers, and the labels that these stand for.
    """
    numbers, names = listed_numbers(labels.ravel().tolist())
    return numbers.reshape(labels.shape), names


def listed_numbers(listed: list[Any]) -> tuple[Int[np.ndarray, " n"], list[Any]]:
    """Number the labels of a list, as `label_numbers` does."""
    names = [name for name in dict.fromkeys(listed) if name is not None]
    code: dict[Any, int] = {name: number for number, name in enumerate(names)}
    code[None] = -1
    return np.fromiter(map(code.__getitem__, listed), np.int64, len(listed)), names


def sigmoid(logit: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Turn log-odds into a probability, without overflow."""
    return np.asarray((1 + np.tanh(logit / 2)) / 2)


def _or_zero(values: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    """Return values with 0 where they are infinite, which they seldom are."""
    finite = np.isfinite(values)
    return values if finite.all() else np.where(finite, values, 0.0)


@dataclass(frozen=True, eq=False)
class _Answer:
    """The place of each query's answer in a matrix (q, k), whether there is one, and its log weight."""

    place: np.ndarray
    found: np.ndarray
    weight: np.ndarray

    @cached_property
    def own(self) -> np.ndarray:
        """The log weight, 0 without an answer (q)."""
        return self.weight if self.found.all() else np.where(self.found, self.weight, 0.0)


def _capped(odds: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
    return np.asarray(np.minimum(np.maximum(odds, -CAP), CAP))


def _safe_exp(logarithm: Float[np.ndarray, "*n"]) -> Float[np.ndarray, "*n"]:
    # Seen from the answer's density, nothing overflows that could matter.
    return np.asarray(np.exp(np.minimum(logarithm, 700)))


def _rivals(weights: Float[np.ndarray, "q k"], answer: _Answer) -> Float[np.ndarray, "q k"]:
    rivals = weights.copy()
    rivals.ravel()[answer.place] = -np.inf
    return rivals


def _odds(
    rivals: Float[np.ndarray, "q k"], own: Float[np.ndarray, " q"]
) -> Float[np.ndarray, " q"]:
    """Return the odds of all rivals against the answer, from log weights."""
    return np.asarray(_safe_exp(rivals - own[:, None]).sum(axis=1))


def _beyond(votes: Votes, model: LabelModel) -> Float[np.ndarray, " q"]:
    """Return m_K / T, the most that an unseen item can have; -inf if there is none."""
    if not votes.unseen:
        return np.full(len(votes), -np.inf)
    if votes.complete:
        return np.asarray(votes.scores.min(axis=1) / model.temperature)
    last = np.where(votes.there, votes.scores, np.inf).min(axis=1)
    return np.asarray(np.where(np.isfinite(last), last, -np.inf) / model.temperature)


def _consensus(
    votes: Votes, weights: Float[np.ndarray, "q k"], model: LabelModel, answer: _Answer
) -> Float[np.ndarray, " q"]:
    """Return the log-odds against the rivals."""
    odds = _odds(_rivals(weights, answer), answer.own)
    if votes.unseen:
        # One unseen item as near as the last neighbour, of a label as large as the answer's: where there is
        # no rival, the answer is no certainty.
        size = np.log(votes.sizes.take(answer.place))
        one_more = model.sharpness * (_beyond(votes, model) - size) + model.prior * size
        odds = odds + _safe_exp(one_more - answer.own)
    against = _capped(-np.log(np.maximum(odds, 1e-300)))
    return against if answer.found.all() else np.where(answer.found, against, -CAP)


@dataclass(frozen=True)
class Trial:
    """T, c and γ, and what they lose on the items that were left out."""

    temperature: float
    sharpness: float
    prior: float = 0.0
    loss: float = 0.0


def _fit_weights(
    votes: Votes, truth: Int[np.ndarray, " n"], as_asked: bool, temperature: float
) -> Trial:
    """Find c and γ of least loss at a temperature: c alone first, which finds its way from far away."""
    from scipy.optimize import minimize, minimize_scalar  # type: ignore[import-untyped]

    loss = _loss_at(votes, truth, temperature)

    def penalised(log_sharpness: float, prior: float = 0.0) -> float:
        away = float(log_sharpness - np.log(USUAL[1]))
        return loss(float(np.exp(log_sharpness)), prior) + PRIOR * away**2 + _doubt(prior, votes)

    bounds = np.log(SHARPNESS)
    at = minimize_scalar(penalised, bounds=bounds, method="bounded", options={"xatol": 0.03}).x
    prior = 0.0
    if as_asked and _sizes_differ(votes):
        start, limits = np.array([at, prior]), [tuple(bounds), (0.0, MOST_PRIOR)]
        found = minimize(lambda x: penalised(*x), start, bounds=limits, method="L-BFGS-B")
        at, prior = found.x
    sharpness, prior = float(np.exp(at)), float(prior)
    return Trial(temperature, sharpness, prior, loss(sharpness, prior))


def fit_prior(votes: Votes, truth: Int[np.ndarray, " n"], model: LabelModel) -> LabelModel:
    """Fit γ alone, to queries that come as often as they will; the rest of the model stays.

    Args:
        votes: Their neighbours.
        truth: Their labels.
        model: Fitted to something else, such as a gallery's own items.

    Returns:
        The model with γ, which is 0 with fewer than `LEAST` queries, or labels of one size.
    """
    from scipy.optimize import minimize_scalar

    rows = np.flatnonzero(votes.there.any(axis=1))
    votes, truth = votes.some(rows), truth[rows]
    if len(votes) < LEAST or not _sizes_differ(votes):
        return replace(model, prior=0.0)
    loss = _loss_at(votes, truth, model.temperature)

    def penalised(prior: float) -> float:
        return loss(model.sharpness, prior) + _doubt(prior, votes)

    found = minimize_scalar(
        penalised, bounds=(0.0, MOST_PRIOR), method="bounded", options={"xatol": 0.01}
    )
    # The search never tries the end itself.
    prior = float(found.x) if found.fun < penalised(0.0) else 0.0
    return replace(model, prior=prior)


def _sizes_differ(votes: Votes) -> bool:
    sizes = votes.sizes[votes.there]
    return bool(len(sizes) and np.ptp(sizes) > 0)


def _doubt(prior: float, votes: Votes) -> float:
    """Return what γ costs: it has a standard normal prior."""
    return prior**2 / 2 / len(votes)


def _loss_at(
    votes: Votes, truth: Int[np.ndarray, " n"], temperature: float
) -> Callable[[float, float], float]:
    """Return the loss at a temperature, one error that was not seen among it, as a function of c and γ."""
    density = label_densities(votes, temperature)
    own, n = votes.labels == truth[:, None], len(votes)

    def loss(sharpness: float, prior: float) -> float:
        weights = log_weights(votes, density, sharpness, prior)
        right, wrong = (np.where(some, weights, -np.inf).max(axis=1) for some in (own, ~own))
        total = _log_total(weights)
        rivalled = np.isfinite(wrong)  # a rival that no neighbour speaks for was not weighed
        unseen = (total - wrong)[rivalled].sum() / n / (n + 1)
        return float(np.minimum(total - right, MOST_SURPRISE).mean() + unseen)

    return loss


def label_losses(
    votes: Votes, truth: Int[np.ndarray, " n"], model: LabelModel
) -> Float[np.ndarray, " n"]:
    """Return -log P(true label | q, not none), at most `MOST_SURPRISE` each."""
    density = label_densities(votes, model.temperature)
    weights = log_weights(votes, density, model.sharpness, model.prior)
    own = np.where(votes.labels == truth[:, None], weights, -np.inf).max(axis=1)
    return np.asarray(np.minimum(_log_total(weights) - own, MOST_SURPRISE))


def fit_temperature(fit: Callable[[float], Trial]) -> Trial:
    """Return what has the least loss; of equally good T the one nearest to the usual.

    Args:
        fit: Finds the rest at a temperature.
    """
    usual, step = USUAL[0], TEMPERATURES[1] / TEMPERATURES[0]

    def tried(temperatures: Iterable[float]) -> list[Trial]:
        return [fit(float(t)) for t in temperatures]

    def best(trials: list[Trial]) -> Trial:
        least = min(trial.loss for trial in trials) + NO_BETTER
        good = [trial for trial in trials if trial.loss <= least]
        return min(good, key=lambda trial: abs(np.log(trial.temperature / usual)))

    trials = tried(TEMPERATURES)
    for root in (0.5, 0.25):
        middle = best(trials).temperature
        trials += tried((middle * step**-root, middle * step**root))
    return best(trials)


def _fit_none(
    inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"]
) -> tuple[float, float]:
    """Return a and b from log densities of enrolled and of unknown queries."""
    from scipy.optimize import minimize

    if not len(inside) and not len(outside):
        return 0.0, 1.0
    if not (len(inside) and len(outside)):
        alone, tail = (inside, TAIL_SHARE) if len(inside) else (outside, 1 - TAIL_SHARE)
        level, middle = np.quantile(alone, [tail, 0.5])
        away = max(abs(float(level - middle)), 1e-6)
        return float(level), float(np.clip(np.log(1 / TAIL_SHARE - 1) / away, *SLOPES))
    values = np.concatenate([inside, outside])
    target = np.repeat(
        [(len(inside) + 1) / (len(inside) + 2), 1 / (len(outside) + 2)],
        [len(inside), len(outside)],
    )
    weight = np.repeat([0.5 / len(inside), 0.5 / len(outside)], [len(inside), len(outside)])
    centre, spread = float(values.mean()), max(float(values.std()), 1e-9)
    x = (values - centre) / spread

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        bias, slope = parameters
        logit = bias + slope * x
        value = weight @ (np.logaddexp(0, logit) - target * logit)
        error = weight * (sigmoid(logit) - target)
        return float(value), np.array([error.sum(), error @ x])

    limits = [(None, None), (SLOPES[0] * spread, SLOPES[1] * spread)]
    start = np.array([0.0, float(np.clip(1.0, *limits[1]))])
    bias, slope = minimize(loss, start, jac=True, bounds=limits, method="L-BFGS-B").x
    return float(centre - bias * spread / slope), float(slope / spread)
