"""Distance baselines: uncertainties from the embeddings and features of a point estimate.

**Higher means less sure.** With |·| the chord between unit vectors, d_1 <= d_2 <= … a query's distances:

    nearest-distance  d_1
    knn-density       (d_1 + … + d_10) / 10             far from its neighbours: a thin region
    margin            d_1 - d_o, o the nearest of another label than the first (the second nearest if there
                      are no labels): who else could it be?
    vote              one minus the share of the 10 nearest that have the nearest one's label, or place
    mahalanobis       min_c sqrt( (h - μ_c)ᵀ Σ^-1 (h - μ_c) ), h features, μ_c class means in training
    norm              -|z|, z the head's output before normalisation
    novelty           -log of the p-value that the learner gives with its embeddings

Neighbours are searched in two references. For *OOD detection*, in-distribution and OOD inputs are scored
against the training set, which is what one has before any gallery. For *error detection*, a query is scored
against the gallery it is looked up in, without itself in a closed set, which is what a search returns
anyway. Distances are computed from differences in float64, so near duplicates do not drown in the rounding
of 2 - 2 cos.

For OOD detection the vote is for the label, or the place, that most of the 10 have. A place is the disc of
the radius around an item.

**Classifiers** answer with a label of their own, and their error detection is of these answers:

    label-model           `surefind.LabelModel`: the log-odds of the answer among labels; for OOD, of none
    logistic-regression   scikit-learn's, C = 10: one minus the largest probability, for both

They are fitted to the gallery. A closed set is its own gallery: each fifth of every label's items is asked
of a classifier of the others. For OOD detection they are fitted to `SAMPLE` examples of the training set.

**Mahalanobis** distance has one covariance for all classes, shrunk towards a sphere:

    S = 1/n Σ_i (h_i - μ_{y_i})(h_i - μ_{y_i})ᵀ              within-class covariance
    Σ = (1 - a) S + a tr(S)/d · I

For wide features S is never formed: it is replaced by its ``rank`` largest principal directions V with
variances λ, and one variance σ² for all directions left (what of the trace is left, spread evenly),

    S ≈ V diag(λ) Vᵀ + σ² (I - V Vᵀ)

whose inverse is explicit: inside V divide by the shrunk λ, outside by the shrunk σ². The directions
come from block power iteration started at evenly spaced residuals, which needs no random numbers and
is exact when there are no more examples than directions. Up to ``EXACT_DIM`` features all directions
are kept and nothing is approximated. Work is O(n d rank), memory O(d rank) beside the features.

Axes: ``n`` training examples, ``q`` queries, ``g`` gallery, ``z`` embedding, ``k`` neighbours, ``d``
features, ``c`` classes, ``p`` principal directions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.checks import require
from surefind.data.batches import batches
from surefind.data.dataset import Dataset
from surefind.errors import DegenerateError
from surefind.estimators.learner import MetricLearner
from surefind.evaluation.evaluate import novelty_score
from surefind.labels.model import LabelModel
from surefind.models.encoder import Encoder, on_sphere
from surefind.neighbours import as_rows, highest_cosines, nearest, unit64
from surefind.pairs.relations import POSITIVE_RADIUS
from surefind.paper.protocols import Problem

NEIGHBOURS = 10
FARTHEST = 2.0
"""The longest chord: how far a runner-up is that is not there."""
FOLDS = 5
"""In which the items of a closed set are left out."""
SAMPLE = 10_000
"""Training examples that a classifier is fitted to, at most."""
SHRINKAGE = 0.1
"""The fraction a of the sphere in the covariance."""
RANK = 128
"""Principal directions of wide features."""


@dataclass(frozen=True, eq=False)
class Scores:
    """The scores of a distance baseline.

    Attributes:
        retrieval: Of each query, against the gallery (q).
        id: Of each query, against the training set (q).
        ood: Of each out-of-distribution input, against the training set; None if there are none.
        more_ood: The same of the further out-of-distribution sets, by name.
        answers: The labels that a classifier gives the queries (q); None for the nearest item's.
    """

    retrieval: np.ndarray
    id: np.ndarray
    ood: np.ndarray | None
    more_ood: Mapping[str, np.ndarray] = field(default_factory=dict)
    answers: np.ndarray | None = None


class PointEstimate:
    """The outputs of a point estimate on every part of a problem, each computed when first asked for.

    Args:
        problem: The data.
        learner: A fitted learner of the method "deterministic", or of all layers.
    """

    def __init__(self, problem: Problem, learner: MetricLearner) -> None:
        self.problem = problem
        self.learner = learner
        self.encoder: Encoder = learner.embedder_for(problem.test).network
        self._outputs: dict[int, Tensor] = {}

    def outputs(self, part: Dataset) -> Tensor:
        """Return the outputs of a part before normalisation."""
        if id(part) not in self._outputs:
            self._outputs[id(part)] = self.apply(self.encoder.outputs, part)
        return self._outputs[id(part)]

    def unit(self, part: Dataset) -> Tensor:
        """Return the unit vectors of a part: of the network's own output, or of all layers."""
        if self.learner.embedding == "layers":
            return as_rows("embeddings", self.learner.embed(part).mean)
        return on_sphere(self.outputs(part))

    @property
    def has_novelty(self) -> bool:
        """Whether the learner gives novelty with its embeddings."""
        return self.learner.embed(self.problem.test[:1]).novelty is not None

    @torch.no_grad()
    def apply(self, function: Callable[[Tensor], Tensor], part: Dataset) -> Tensor:
        """Apply a function of batches to a part, without a second copy of the answers."""
        out, at = torch.empty(0), 0
        for x in batches(part, self.encoder, preprocessing=self.learner.input_spec_):
            batch = function(x)
            if not at:
                out = batch.new_empty(len(part), *batch.shape[1:])
            out[at : at + len(batch)] = batch
            at += len(batch)
        return out


def baseline_scores(name: str, point: PointEstimate) -> Scores:
    """Score the test and out-of-distribution data by one of `DISTANCE_BASELINES`."""
    problem, answers = point.problem, None
    if name in CLASSIFIERS:
        score, in_gallery, answers = _classified(CLASSIFIERS[name], point)
    else:
        score, in_gallery = _scorer(name, point)
    known = _array(score(problem.test))
    return Scores(
        known if in_gallery is None else _array(in_gallery),
        known,
        None if problem.ood is None else _array(score(problem.ood)),
        {name: _array(score(part)) for name, part in problem.more_ood.items()},
        answers,
    )


def _scorer(name: str, point: PointEstimate) -> tuple[Callable[[Dataset], Any], Any]:
    """Return what scores a part against the training set, and the queries' scores in the gallery if any."""
    train, test, gallery = point.problem.train, point.problem.test, point.problem.gallery
    if name == "norm":
        return lambda part: -torch.linalg.vector_norm(point.outputs(part), dim=1), None
    if name == "novelty":
        return lambda part: novelty_score(point.learner.embed(part).novelty), None
    if name == "mahalanobis":
        backbone = point.encoder.backbone
        fitted = fit_mahalanobis(point.apply(backbone, train), train.labels)
        return partial(point.apply, lambda x: fitted.score(backbone(x))), None
    items = test if gallery is None else gallery
    if name == "vote":
        shares = partial(vote_shares, point.unit(train), _known(train))
        asked = vote_shares(
            point.unit(items), _known(items), point.unit(test), exclude_self=gallery is None
        )
        return lambda part: 1 - shares(point.unit(part)).amax(1), 1 - asked[:, 0]
    known = _neighbours(name, point.unit(train), train)
    searched = _neighbours(name, point.unit(items), items)
    found = searched.score(point.unit(test), exclude_self=gallery is None)
    return lambda part: known.score(point.unit(part)), found


def _neighbours(name: str, vectors: Tensor, part: Dataset) -> "Margin | NeighbourDistance":
    if name == "margin":
        return fit_margin(vectors, part.labels)
    most = 1 if name == "nearest-distance" else min(NEIGHBOURS, len(vectors) - 1)
    return NeighbourDistance(unit64(vectors), most)


def _array(scores: Any) -> np.ndarray:
    return np.asarray(scores, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class NeighbourDistance:
    """Mean distance to the ``k`` nearest training vectors.

    Attributes:
        vectors: Training vectors (n, z), float64, unit.
        k: Number of neighbours.
    """

    vectors: Float[Tensor, "n z"]
    k: int

    def score(self, queries: Tensor, *, exclude_self: bool = False) -> Float[Tensor, " q"]:
        """Return the mean chord (q) to the nearest; without themselves if they are the vectors."""
        u = unit64(queries)
        indices, _ = highest_cosines(u, self.vectors, self.k, exclude_self=exclude_self)
        total = sum(_chord(u, self.vectors[indices[:, i]]) for i in range(self.k))
        return torch.as_tensor(total / self.k).to(queries.dtype)


@dataclass(frozen=True, eq=False)
class Margin:
    """How much nearer the nearest is than the runner-up.

    Attributes:
        vectors: Training vectors (n, z), float64, unit; sorted by label if there are labels.
        bounds: Where each label's vectors begin, and the end (c + 1); None without labels.
        order: The row that each vector had before it was sorted (n); None without labels.
    """

    vectors: Float[Tensor, "n z"]
    bounds: Int[Tensor, " bounds"] | None = None
    order: Int[Tensor, " n"] | None = None

    def score(self, queries: Tensor, *, exclude_self: bool = False) -> Float[Tensor, " q"]:
        """Return d_1 - d_2 (q), or d_1 - d_o with labels; without themselves if they are the vectors."""
        u = unit64(queries)
        if self.bounds is None or self.order is None:
            indices, _ = highest_cosines(u, self.vectors, 2, exclude_self=exclude_self)
            first, second = (_chord(u, self.vectors[indices[:, i]]) for i in (0, 1))
            return (first - second).to(queries.dtype)
        if exclude_self:
            u = u[self.order]
        found = highest_cosines(u, self.vectors, 1, exclude_self=exclude_self)[0][:, 0]
        margin = _chord(u, self.vectors[found])
        label = torch.searchsorted(self.bounds, found, right=True) - 1
        for near in sorted(set(label.tolist())):
            who = (label == near).nonzero()[:, 0]
            own = who if exclude_self else None
            start, stop = self.bounds[near : near + 2].tolist()
            margin[who] -= self._distance_outside(u[who], start, stop, own)
        if exclude_self:
            margin = torch.empty_like(margin).index_copy_(0, self.order, margin)
        return margin.to(queries.dtype)

    def _distance_outside(
        self, u: Float[Tensor, "r z"], start: int, stop: int, own: Int[Tensor, " r"] | None
    ) -> Float[Tensor, " r"]:
        """Return the distance to the nearest vector outside a range, and other than one's own."""
        best = u.new_full((len(u),), FARTHEST)
        for first, others in ((0, self.vectors[:start]), (stop, self.vectors[stop:])):
            if len(others):
                # One more than needed: one of the two is not the query itself.
                k = 1 if own is None else min(2, len(others))
                indices = highest_cosines(u, others, k, exclude_self=False)[0]
                for found in indices.T:
                    distance = _chord(u, others[found])
                    if own is not None:
                        distance[found + first == own] = FARTHEST
                    best = torch.minimum(best, distance)
        return best


def fit_margin(vectors: Tensor, labels: Any = None) -> Margin:
    """Keep unit vectors (n, z) to compare the nearest with the runner-up, of another label if there are."""
    if labels is None:
        return Margin(unit64(vectors))
    codes, counts = _codes(labels)
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    order = codes.argsort(stable=True)
    return Margin(unit64(vectors)[order], bounds, order)


def _codes(labels: Any) -> tuple[Int[Tensor, " n"], Int[Tensor, " c"]]:
    """Number the labels from 0, and count each."""
    _, codes, counts = torch.unique(
        torch.as_tensor(labels), return_inverse=True, return_counts=True
    )
    return codes, counts


def _chord(a: Float[Tensor, "q z"], b: Float[Tensor, "q z"]) -> Float[Tensor, " q"]:
    chord: Tensor = torch.linalg.vector_norm(a - b, dim=1)
    return chord


def vote_shares(
    items: Float[Tensor, "g z"],
    known: Tensor,
    queries: Float[Tensor, "q z"],
    *,
    exclude_self: bool = False,
) -> Float[Tensor, "q k"]:
    """Return for each of the nearest items which share of them has its label, or lies in its disc.

    Args:
        items: Unit vectors.
        known: Their labels (g) or positions (g, 2).
        queries: Unit vectors.
        exclude_self: Whether the queries are the items, and none finds itself.

    Returns:
        The shares, those of the nearest item first.
    """
    k = min(NEIGHBOURS, len(items) - exclude_self)
    near = known[nearest(queries.double(), items.double(), k, exclude_self=exclude_self).indices]
    apart = near[:, :, None] - near[:, None]
    same = apart.square().sum(-1) <= POSITIVE_RADIUS**2 if known.ndim == 2 else apart == 0
    return same.double().mean(2)


def _known(part: Dataset) -> Tensor:
    """Return the labels of a part, or its positions."""
    return torch.as_tensor(part.positions if part.labels is None else part.labels)


Answer = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Gives queries (q, z) labels, and says how uncertain these are, and whether the query is known at all."""


def label_model(vectors: np.ndarray, labels: np.ndarray) -> Answer:
    """Fit the label model."""
    model = LabelModel().fit(vectors, labels)

    def answer(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        found = model.posterior(queries)
        return found.label.astype(np.int64), -found.among, -found.known

    return answer


def logistic_regression(vectors: np.ndarray, labels: np.ndarray) -> Answer:
    """Fit logistic regression."""
    linear = require("sklearn.linear_model", "compare with logistic regression")
    model = linear.LogisticRegression(C=10, max_iter=300).fit(vectors, labels)

    def answer(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shares = model.predict_proba(queries)
        doubt = 1 - shares.max(axis=1)
        return model.classes_[shares.argmax(axis=1)], doubt, doubt

    return answer


CLASSIFIERS = {
    "label-model": label_model,
    "layers-label-model": label_model,
    "logistic-regression": logistic_regression,
}


def _classified(
    fit: Callable[[np.ndarray, np.ndarray], Answer], point: PointEstimate
) -> tuple[Callable[[Dataset], np.ndarray], np.ndarray, np.ndarray]:
    """Return what scores a part against the training set, and the queries' scores and answers."""
    train, test, gallery = point.problem.train, point.problem.test, point.problem.gallery
    rows = np.linspace(0, len(train) - 1, min(len(train), SAMPLE)).astype(int)
    known = fit(point.unit(train).numpy()[rows], _known(train).numpy()[rows])
    queries = point.unit(test).numpy()
    if gallery is None:
        answers, doubt = answers_in_folds(fit, queries, _known(test).numpy())
    else:
        answers, doubt, _ = fit(point.unit(gallery).numpy(), _known(gallery).numpy())(queries)
    return lambda part: known(point.unit(part).numpy())[2], doubt, answers


def answers_in_folds(
    fit: Callable[[np.ndarray, np.ndarray], Answer], vectors: np.ndarray, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Answer each vector by a classifier of the other folds; every label is in as many as it can be."""
    order = labels.argsort(kind="stable")
    place = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    fold = np.empty(len(labels), dtype=int)
    fold[order] = place % FOLDS
    answers, doubt = np.zeros(len(labels), dtype=np.int64), np.zeros(len(labels))
    for asked in range(fold.max() + 1):
        rows = fold == asked
        answers[rows], doubt[rows], _ = fit(vectors[~rows], labels[~rows])(vectors[rows])
    return answers, doubt


EXACT_DIM = 1024
"""Up to this many features the covariance is decomposed as a whole."""

ROWS = 256
"""Examples worked on at once: small enough that the allocator gives the same memory again."""

OVERSAMPLING, POWER_STEPS = 16, 2
"""Extra directions and passes over the data of the power iteration: halving either loses accuracy."""


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Class means and the inverse of their shared covariance.

    Attributes:
        means: Class means (c, d), less the centre.
        centre: Mean of all features (d).
        directions: Orthonormal principal directions (d, p).
        variances: Shrunk variance along each (p).
        rest: Shrunk variance along every other direction.
    """

    means: Float[Tensor, "c d"]
    centre: Float[Tensor, " d"]
    directions: Float[Tensor, "d p"]
    variances: Float[Tensor, " p"]
    rest: float

    def score(self, queries: Any) -> Float[Tensor, " q"]:
        """Return the distance of features (q, d) to the nearest class mean, in their dtype."""
        rows = as_rows("queries", queries)
        parts = [self._squared(rows[i : i + ROWS].double()) for i in range(0, len(rows), ROWS)]
        return torch.cat(parts).sqrt().to(rows.dtype)

    def _squared(self, rows: Float[Tensor, "r d"]) -> Float[Tensor, " r"]:
        x = rows - self.centre
        along, mean_along = x @ self.directions, self.means @ self.directions
        inside = _gaps(along / self.variances.sqrt(), mean_along / self.variances.sqrt())
        outside = _gaps(x, self.means) - _gaps(along, mean_along)
        return (inside + outside.clamp(min=0) / self.rest).min(dim=1).values


def fit_mahalanobis(features: Any, labels: Any) -> Mahalanobis:
    """Learn class means and their shared covariance.

    Args:
        features: Training features (n, d).
        labels: A label per example (n).

    Returns:
        The fitted baseline.

    Raises:
        DegenerateError: If features do not vary within classes.
    """
    x = as_rows("features", features)
    codes, counts = _codes(labels)
    d = x.shape[1]
    means = torch.zeros(len(counts), d, dtype=torch.float64)
    for i in range(0, len(x), ROWS):
        means.index_add_(0, codes[i : i + ROWS], x[i : i + ROWS].double())
    centre = means.sum(0) / len(x)
    means /= counts[:, None]
    directions, variances, trace = _principal(x, means, codes, d if d <= EXACT_DIM else RANK)
    if not trace > 0:
        raise DegenerateError(
            "features do not vary within any class, so there is no covariance: give classes with "
            "several different examples.",
            field="features",
        )
    keep, sphere = len(variances), SHRINKAGE * trace / d
    left = max(trace - float(variances.sum()), 0.0) / max(d - keep, 1)
    shrunk = (1 - SHRINKAGE) * variances.clamp(min=0) + sphere
    rest = (1 - SHRINKAGE) * left + sphere
    return Mahalanobis(means - centre, centre, directions, shrunk, rest if keep < d else 1.0)


def _principal(
    x: Float[Tensor, "n d"], means: Float[Tensor, "c d"], codes: Int[Tensor, " n"], keep: int
) -> tuple[Float[Tensor, "d p"], Float[Tensor, " p"], float]:
    """Return principal directions of the residuals, their variances, and the sum of all variances."""
    n, d = x.shape
    near = means.to(x.dtype)
    if d <= EXACT_DIM:
        S = torch.zeros(d, d, dtype=torch.float64, device=x.device)
        for i in range(0, n, ROWS):
            residual = (x[i : i + ROWS] - near[codes[i : i + ROWS]]).double()
            S += residual.T @ residual
        variances, directions = torch.linalg.eigh(S / n)
        return directions[:, -keep:], variances[-keep:], float(S.trace()) / n
    width = min(keep + OVERSAMPLING, d)
    start = torch.linspace(0, n - 1, min(width, n), device=x.device).round().long()
    basis = torch.linalg.qr((x[start] - near[codes[start]]).T).Q
    for _ in range(POWER_STEPS):
        product = torch.zeros_like(basis)
        for i in range(0, n, ROWS):
            residual = x[i : i + ROWS] - near[codes[i : i + ROWS]]
            product += residual.T @ (residual @ basis)
        basis = torch.linalg.qr(product).Q
    inner = torch.zeros(basis.shape[1], basis.shape[1], dtype=torch.float64, device=x.device)
    trace = 0.0
    for i in range(0, n, ROWS):
        residual = x[i : i + ROWS] - near[codes[i : i + ROWS]]
        along = (residual @ basis).double()
        inner += along.T @ along
        trace += float(residual.double().square().sum())
    variances, turn = torch.linalg.eigh(inner / n)
    keep = min(keep, len(variances))
    return basis.double() @ turn[:, -keep:], variances[-keep:], trace / n


def _gaps(a: Float[Tensor, "r m"], b: Float[Tensor, "c m"]) -> Float[Tensor, "r c"]:
    """Return squared distances; float64 and centred rows keep the product's cancellation harmless."""
    return (a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)).clamp(min=0)
