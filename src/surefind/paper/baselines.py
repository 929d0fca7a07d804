"""Distance baselines: uncertainties from the embeddings and features of a point estimate.

**Higher means less sure.** With |·| the chord between unit vectors, d_1 <= d_2 <= … a query's distances:

    nearest-distance  d_1
    knn-density       (d_1 + … + d_10) / 10             far from its neighbours: a thin region
    margin            d_1 - d_o, o the nearest of another label than the first (the second nearest if there
                      are no labels): who else could it be?
    knn-vote          one minus the share of a label, or of a place, in the votes of the 100 nearest
    mahalanobis       min_c sqrt( (h - μ_c)ᵀ Σ^-1 (h - μ_c) ), h features, μ_c class means in training
    norm              -|z|, z the head's output before normalisation
    novelty           -log of the p-value that the learner gives with its embeddings

Neighbours are searched in two references. For *OOD detection*, in-distribution and OOD inputs are scored
against the training set, which is what one has before any gallery. For *error detection*, a query is scored
against the gallery it is looked up in, without itself in a closed set, which is what a search returns
anyway. Distances are computed from differences in float64, so near duplicates do not drown in the rounding
of 2 - 2 cos.

**Votes** are the posterior of `surefind.decisions.label_posterior`; every query that is scored has an
answer in its gallery, so "none" has no place here. Against the training set the share is that of the most
voted label, in the gallery that of the nearest item's. Where there are positions in place of labels, a
neighbour's label is the disc of the radius around it (`place_shares`). The model is fitted to data that are
no test data: the part that the protocol leaves out of training, each example without itself; where there is
no such part, or it has one class only, the training data. A part of other classes than the training data's
is searched in both together: ten classes among themselves are easily told apart, and the likelihood is then
best for votes that are sure of everything. A share says nothing of how far away the voters are: an OOD
input among examples of one class has the vote of all of them.

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
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surefind import metrics
from surefind.data.batches import batches
from surefind.data.dataset import Dataset
from surefind.decisions.label_posterior import (
    LEAST,
    MOST_SURPRISE,
    USUAL,
    LabelModel,
    Trial,
    Votes,
    fit_label_model,
    fit_temperature,
    label_densities,
    log_weights,
)
from surefind.errors import DegenerateError
from surefind.estimators.learner import MetricLearner
from surefind.evaluation.evaluate import novelty_score
from surefind.models.encoder import Encoder, on_sphere
from surefind.neighbours import as_rows, highest_cosines, nearest, unit64
from surefind.pairs.relations import POSITIVE_RADIUS
from surefind.paper.protocols import HeldOut, Problem

NEIGHBOURS = 10
FARTHEST = 2.0
"""The longest chord: how far a runner-up is that is not there."""
VOTERS = 100
"""Neighbours that vote."""
QUERIES = 128
"""Queries whose neighbours\' positions are compared at once."""

SAMPLE = 10_000
"""Examples that votes are fitted to, at most."""
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
    """

    retrieval: np.ndarray
    id: np.ndarray
    ood: np.ndarray | None
    more_ood: Mapping[str, np.ndarray] = field(default_factory=dict)


class PointEstimate:
    """The outputs of a point estimate on every part of a problem, each computed when first asked for.

    Args:
        problem: The data.
        learner: A fitted learner of the method "deterministic".
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
        """Return the unit vectors of a part."""
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
    score, in_gallery = _scorer(name, point)
    problem, known = point.problem, _array(score(point.problem.test))
    return Scores(
        known if in_gallery is None else _array(in_gallery),
        known,
        None if problem.ood is None else _array(score(problem.ood)),
        {name: _array(score(part)) for name, part in problem.more_ood.items()},
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
    if name == "knn-vote":
        return _vote_scores(point)
    known = _neighbours(name, point.unit(train), train)
    items = test if gallery is None else gallery
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


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The nearest neighbours of some queries, ready to vote.

    Attributes:
        votes: By cosine, the nearest first.
        truth: The queries' labels, numbered as the votes' are (q).
        companion: Whether something in the gallery has the query's label, or place (q).
        positions: The neighbours' (q, k, 2), in place of labels, which then do not matter.
        right: Whether each lies within the radius of its query (q, k).
    """

    votes: Votes
    truth: Int[np.ndarray, " q"]
    companion: Bool[np.ndarray, " q"]
    positions: Float[np.ndarray, "q k 2"] | None = None
    right: Bool[np.ndarray, "q k"] | None = None

    def select(self, rows: Any) -> "Neighbourhood":
        """Keep some of the queries."""
        v = self.votes
        votes = Votes(v.scores[rows], v.labels[rows], v.sizes[rows], v.unseen)
        placed = (None if x is None else x[rows] for x in (self.positions, self.right))
        return Neighbourhood(votes, self.truth[rows], self.companion[rows], *placed)


def neighbourhood(
    queries: Tensor,
    known: Any,
    items: Tensor | None = None,
    item_known: Any = None,
    *,
    enrolled: bool = False,
) -> Neighbourhood:
    """Search the neighbours that vote.

    Args:
        queries: Unit vectors (q, z).
        known: Labels of the queries (q) or positions (q, 2); None if they have none.
        items: Unit vectors of the gallery (g, z); None: the queries are the gallery, and none finds itself.
        item_known: Labels (g) or positions (g, 2) of the gallery.
        enrolled: Whether the queries are the gallery's first items, so that none finds itself there either.

    Returns:
        The neighbours.
    """
    if items is None:
        items, item_known, enrolled = queries, known, True
    k = min(VOTERS, len(items) - enrolled)
    indices, scores = _nearest(queries, items, k, enrolled=enrolled)
    item_known, unseen = np.asarray(item_known), len(items) - enrolled - k
    if item_known.ndim == 2:
        nobody, right = np.zeros(len(queries), dtype=np.int64), np.zeros(indices.shape, dtype=bool)
        companions = nobody
        if known is not None:
            placed = np.asarray(known), item_known, POSITIVE_RADIUS
            judged = metrics.relevance_within(indices, *placed, self_in_gallery=enrolled)
            right, companions = judged.hits, judged.counts
        votes = Votes(scores, np.zeros_like(indices), np.ones_like(indices), unseen)
        return Neighbourhood(votes, nobody, companions > 0, item_known[indices], right)
    names, codes, counts = np.unique(item_known, return_inverse=True, return_counts=True)
    truth = np.full(len(queries), -1)
    if known is not None:
        place = np.minimum(np.searchsorted(names, np.asarray(known)), len(names) - 1)
        truth = np.where(names[place] == np.asarray(known), place, -1)
    voted = codes[indices]
    sizes = counts[voted] - (enrolled & (voted == truth[:, None]))
    companion = (truth >= 0) & (counts[truth] > enrolled)
    return Neighbourhood(Votes(scores, voted, sizes, unseen), truth, companion)


def _nearest(
    queries: Tensor, items: Tensor, k: int, *, enrolled: bool
) -> tuple[Int[np.ndarray, "q k"], Float[np.ndarray, "q k"]]:
    """Return rows and cosines of the nearest items, without the query's own if it is enrolled."""
    closed = enrolled and len(items) == len(queries)
    wanted = k + (enrolled and not closed)
    # In float64, or the cosines of tight clusters would be rounded alike.
    found = nearest(queries.double(), items.double(), wanted, exclude_self=closed)
    indices, scores = found.indices.numpy(), found.similarities.numpy()
    if wanted > k:  # one too many: the query, or the last where copies of it came first
        own = indices == np.arange(len(queries))[:, None]
        own[~own.any(axis=1), -1] = True
        indices, scores = indices[~own].reshape(-1, k), scores[~own].reshape(-1, k)
    return indices, scores


def fit_votes(found: Neighbourhood) -> LabelModel:
    """Fit the votes to data that are not scored afterwards; refuse data of which no two belong together."""
    rows = np.flatnonzero(found.companion)
    if not len(rows):
        raise DegenerateError(
            "no two held-out examples share a label or a place.", field="held_out"
        )
    # Evenly spaced, so that data sorted by class give all classes.
    sample = found.select(rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(int)])
    if sample.right is not None:
        return fit_place_model(sample.votes.scores, sample.right)
    # "None" is not fitted: one query without a neighbour says so.
    nobody = Votes(np.full((1, 1), -np.inf), np.full((1, 1), -1), np.ones((1, 1), dtype=int))
    return fit_label_model(sample.votes, sample.truth, nobody, as_asked=True)


def place_shares(
    scores: Float[np.ndarray, "q k"],
    positions: Float[np.ndarray, "q k 2"],
    radius: float,
    temperature: float,
) -> Float[np.ndarray, "q k"]:
    """Compute the probability that a query lies within the radius of each of its neighbours.

    Args:
        scores: Of the neighbours; -inf where there is none.
        positions: Theirs.
        radius: In the positions' units.
        temperature: T.

    Returns:
        The share of the votes in the disc around each; equal discs have equal shares.
    """
    weight = _weights(scores, temperature)
    share = weight / weight.sum(axis=1, keepdims=True)
    blocks = [slice(i, i + QUERIES) for i in range(0, len(scores), QUERIES)]
    return np.concatenate([
        (_within(positions[rows], radius) * share[rows, None]).sum(-1) for rows in blocks
    ])


def _within(positions: Float[np.ndarray, "q k 2"], radius: float) -> Bool[np.ndarray, "q k k"]:
    apart = positions[:, :, None] - positions[:, None]
    return np.asarray(np.square(apart).sum(-1) <= radius**2)


def fit_place_model(
    scores: Float[np.ndarray, "n k"],
    right: Bool[np.ndarray, "n k"],
) -> LabelModel:
    """Fit T to queries whose position is known.

    Args:
        scores: Of their neighbours.
        right: Whether each lies within the radius of its query.

    Returns:
        The model of largest likelihood, with c = 1; "none" is not fitted.
    """

    def fit(temperature: float) -> Trial:
        return Trial(temperature, 1.0, loss=float(place_losses(scores, right, temperature).mean()))

    found, nats = Trial(USUAL[0], 1.0), None
    if len(scores) >= LEAST:
        found = fit_temperature(fit)
        nats = found.loss
    return LabelModel(found.temperature, 1.0, enrolled=len(scores), nats=nats)


def place_losses(
    scores: Float[np.ndarray, "n k"], right: Bool[np.ndarray, "n k"], temperature: float
) -> Float[np.ndarray, " n"]:
    """Return -log P(within the radius of the query | q, not none), at most `MOST_SURPRISE` each."""
    weight = _weights(scores, temperature)
    with np.errstate(divide="ignore"):
        nats = -np.log((weight * right).sum(axis=1) / weight.sum(axis=1))
    return np.asarray(np.minimum(nats, MOST_SURPRISE))


def _weights(scores: Float[np.ndarray, "q k"], temperature: float) -> Float[np.ndarray, "q k"]:
    """Return exp(m/T) up to a factor of each row."""
    scaled = scores / temperature
    top = scaled.max(axis=1, keepdims=True)
    return np.exp(scaled - np.where(np.isfinite(top), top, 0.0))


def vote_shares(
    found: Neighbourhood, model: LabelModel
) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    """Compute the shares of the most voted label and of the nearest item's."""
    votes = found.votes
    if found.positions is not None:
        share = place_shares(votes.scores, found.positions, POSITIVE_RADIUS, model.temperature)
        return share.max(axis=1), share[:, 0]
    density = label_densities(votes, model.temperature)
    weights = log_weights(votes, density, model.sharpness, model.prior)
    share = np.exp(weights - weights.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    # The columns are ordered by cosine, whatever the shares are.
    same = votes.labels == votes.labels[:, :1]
    return share.max(axis=1), np.where(same, share, 0.0).sum(axis=1)


def _vote_scores(point: PointEstimate) -> tuple[Callable[[Dataset], np.ndarray], np.ndarray]:
    """Return what scores a part against the training set, and the queries' scores in the gallery."""
    problem, held_out = point.problem, point.problem.held_out
    if held_out is None:
        raise DegenerateError(f"a vote needs two labels or places; {problem.train.name} has not.")
    kind = "labels" if held_out.data.labels is not None else "positions"
    trained = point.unit(problem.train), getattr(problem.train, kind)
    model = fit_votes(_held_out(point, held_out, kind, trained))
    gallery = () if problem.gallery is None else (problem.gallery,)
    searched = [value for p in gallery for value in (point.unit(p), getattr(p, kind))]
    asked = neighbourhood(point.unit(problem.test), getattr(problem.test, kind), *searched)

    def most_voted(part: Dataset) -> np.ndarray:
        return 1 - vote_shares(neighbourhood(point.unit(part), None, *trained), model)[0]

    return most_voted, 1 - vote_shares(asked, model)[1]


def _held_out(
    point: PointEstimate, held_out: HeldOut, kind: str, trained: tuple[Tensor, Any]
) -> Neighbourhood:
    """Look up what votes are fitted to: in one side of a route, itself, or also other classes."""
    vectors, known = point.unit(held_out.data), getattr(held_out.data, kind)
    if held_out.asking is not None:
        query, item = torch.from_numpy(held_out.asking), torch.from_numpy(~held_out.asking)
        return neighbourhood(vectors[query], known[query], vectors[item], known[item])
    if kind == "positions" or bool(torch.isin(known, trained[1]).any()):
        return neighbourhood(vectors, known)
    items = torch.cat([vectors, trained[0]]), torch.cat([known, trained[1]])
    return neighbourhood(vectors, known, *items, enrolled=True)


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
