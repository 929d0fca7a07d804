"""Distance baselines: uncertainties from the point estimate's own embeddings and features.

Each is scored against two references. For *OOD detection*, in-distribution and OOD inputs are scored
against the training set, which is what one has before any gallery. For *error detection*, a query is scored
against the gallery it is looked up in, without itself in a closed set, which is what a search returns
anyway. Higher is more uncertain; d_1 is the chord to the nearest.

    nearest-distance  d_1: to the nearest training vector; to the nearest in the gallery.
    margin            d_1 - d_o, o the nearest of another label than the first (the second nearest if
                      there are no labels): among the training vectors; in the gallery.
    knn-density       mean distance to the 10 nearest: training vectors; in the gallery.
    knn-vote          one minus the share of a label, or of a place, in the votes of the 100 nearest (the
                      plain vote of `surefind.paper.label_vote`, fitted to held-out data): of the most
                      voted one among the training vectors; of the nearest item's in the gallery.
    mahalanobis       of the features, to the nearest class of the training set; one score for both.
    norm              minus the length of the head's output; one score for both.
    novelty           -log of the p-value that the learner gives with its embeddings; one score for both.

A share says nothing of how far away the voters are: an OOD input among examples of one class has the vote
of all of them.

The embeddings of a seed are computed once for all baselines; features, which are large, are not kept.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.data.batches import batches
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.estimators.learner import MetricLearner
from surefind.evaluation.evaluate import novelty_score
from surefind.models.encoder import Encoder, on_sphere
from surefind.paper.baselines import (
    Margin,
    NegativeNorm,
    NeighbourDistance,
    fit_knn_density,
    fit_mahalanobis,
    fit_margin,
    fit_nearest_distance,
)
from surefind.paper.label_vote import Asked, fit_votes, neighbourhood, vote_shares
from surefind.paper.protocols import Problem

NEIGHBOURS = 10


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

    @cached_property
    def train(self) -> Tensor:
        """Unit vectors of the training data."""
        return on_sphere(self.apply(self.encoder.outputs, self.problem.train))

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs of the test data before normalisation."""
        return self.apply(self.encoder.outputs, self.problem.test)

    @cached_property
    def test(self) -> Tensor:
        """Unit vectors of the test data."""
        return on_sphere(self.outputs)

    @cached_property
    def gallery(self) -> Tensor | None:
        """Unit vectors of the gallery; None if the test data are the gallery."""
        part = self.problem.gallery
        return None if part is None else on_sphere(self.apply(self.encoder.outputs, part))

    @cached_property
    def ood(self) -> Tensor | None:
        """Outputs of the out-of-distribution data before normalisation, if there are any."""
        part = self.problem.ood
        return None if part is None else self.apply(self.encoder.outputs, part)

    @cached_property
    def more_ood(self) -> dict[str, Tensor]:
        """Outputs of the further out-of-distribution sets before normalisation, by name."""
        parts = self.problem.more_ood
        return {name: self.apply(self.encoder.outputs, part) for name, part in parts.items()}

    @cached_property
    def directions(self) -> tuple[Tensor, Tensor | None, dict[str, Tensor]]:
        """Unit vectors of the test data, and of the out-of-distribution sets."""
        more = {name: on_sphere(outputs) for name, outputs in self.more_ood.items()}
        return self.test, None if self.ood is None else on_sphere(self.ood), more

    @property
    def has_novelty(self) -> bool:
        """Whether the learner gives novelty with its embeddings."""
        return self.learner.embed(self.problem.test[:1]).novelty is not None

    def novelty(self, part: Dataset) -> np.ndarray:
        """Compute the novelty of a part as an uncertainty; refuse a learner that has none."""
        found = self.learner.embed(part).novelty
        if found is None:
            raise InputError("this learner has no novelty: none was fitted.", field="novelty")
        return novelty_score(found)

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
    problem = point.problem
    if name == "norm":
        return _scores(NegativeNorm().score, point.outputs, point.ood, point.more_ood)
    inputs = problem.test, problem.ood, problem.more_ood
    if name == "novelty":
        return _scores(point.novelty, *inputs)
    if name == "mahalanobis":
        features = point.apply(point.encoder.backbone, problem.train)
        fitted = fit_mahalanobis(features, problem.train.labels)
        del features  # gigabytes
        score = partial(point.apply, lambda x: fitted.score(point.encoder.backbone(x)))
        return _scores(score, *inputs)
    if name == "knn-vote":
        return _vote_scores(point)
    train = _neighbours(name, point.train, problem.train)
    scores = _scores(train.score, *point.directions)
    if point.gallery is None or problem.gallery is None:
        gallery, closed = _neighbours(name, point.test, problem.test), True
    else:
        gallery, closed = _neighbours(name, point.gallery, problem.gallery), False
    return replace(scores, retrieval=_array(gallery.score(point.test, exclude_self=closed)))


def _vote_scores(point: PointEstimate) -> Scores:
    problem, held_out = point.problem, point.problem.held_out
    if held_out is None:
        raise InputError(f"a vote needs labels or positions, and {problem.train.name} has neither.")
    _, part, asking = held_out
    kind = "labels" if part.labels is not None else "positions"
    known = part is problem.train
    vectors = point.train if known else on_sphere(point.apply(point.encoder.outputs, part))
    exact, trained = (
        Embeddings(x, x.new_full((len(x),), torch.inf)) for x in (vectors, point.train)
    )
    beside = trained, getattr(problem.train, kind)
    model = fit_votes(Asked.held_out(exact, getattr(part, kind), *beside, asking=asking))["plain"]
    gallery = None if problem.gallery is None else getattr(problem.gallery, kind)
    in_gallery = neighbourhood(point.test, getattr(problem.test, kind), point.gallery, gallery)

    def most_voted(queries: Tensor) -> np.ndarray:
        found = neighbourhood(queries, None, point.train, getattr(problem.train, kind))
        return 1 - vote_shares(found, model).voted

    scores = _scores(most_voted, *point.directions)
    return replace(scores, retrieval=1 - vote_shares(in_gallery, model).nearest)


def _neighbours(name: str, vectors: Tensor, part: Dataset) -> Margin | NeighbourDistance:
    if name == "margin":
        return fit_margin(vectors, part.labels)
    if name == "nearest-distance":
        return fit_nearest_distance(vectors)
    return fit_knn_density(vectors, k=min(NEIGHBOURS, len(vectors) - 1))


def _scores(
    score: Callable[[Any], Any], known: Any, ood: Any | None, more: Mapping[str, Any]
) -> Scores:
    """Score all parts; one score of a query serves retrieval too."""
    scores = _array(score(known))
    others = {name: _array(score(part)) for name, part in more.items()}
    return Scores(scores, scores, None if ood is None else _array(score(ood)), others)


def _array(scores: Any) -> np.ndarray:
    return np.asarray(scores, dtype=np.float64)
