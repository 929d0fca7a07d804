"""The vote of a query's neighbours over labels, plain and weighted by κ, as an answer and as a doubt.

The 100 nearest by cosine vote with the posterior of `surefind.decisions.label_posterior`; n_l counts what
the query is searched in, so without itself in a closed set. Every query that is scored has an answer in
its gallery, so "none" has no place here, and a share is P(l | q, not none). Two weightings:

    plain        m = the cosine
    κ-weighted   m = the match score of the query's and the item's von Mises-Fisher distributions;
                 not there if a κ is infinite

Two answers are judged, each by the share of its own label:

    nearest      the label of the nearest item, which is what recall@1 counts
    voted        the label of largest share

T and c are fitted by maximum likelihood to data that are no test data: the part that the protocol leaves
out of training, searched in itself, each example without itself; where there is no such part, or it has
one class only, the training data, which are clustered more tightly than what is asked later.

Axes: ``q`` queries, ``g`` gallery, ``k`` neighbours.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surefind.decisions.label_posterior import (
    LabelModel,
    Votes,
    fit_label_model,
    label_densities,
)
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError
from surefind.posterior.vmf import match_score
from surefind.retrieval.search import nearest

VOTERS = 100
"""Neighbours that vote."""
SAMPLE = 10_000
"""Examples that T and c are fitted to, at most."""


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The nearest neighbours of some queries, ready to vote.

    Attributes:
        votes: By cosine, the nearest first.
        indices: Rows of the gallery (q, k).
        truth: The queries' labels, numbered as the votes' are (q).
        companion: Whether something in the gallery has the query's label (q).
    """

    votes: Votes
    indices: Int[np.ndarray, "q k"]
    truth: Int[np.ndarray, " q"]
    companion: Bool[np.ndarray, " q"]

    def select(self, rows: Any) -> "Neighbourhood":
        """Keep some of the queries."""
        v = self.votes
        votes = Votes(v.scores[rows], v.labels[rows], v.sizes[rows], v.unseen)
        return Neighbourhood(votes, self.indices[rows], self.truth[rows], self.companion[rows])

    def weighted(
        self, query_kappa: Float[np.ndarray, " q"], kappa: Float[np.ndarray, " g"], dim: int
    ) -> "Neighbourhood":
        """Replace cosines by match scores."""
        own, other = torch.from_numpy(query_kappa)[:, None], torch.from_numpy(kappa[self.indices])
        gaps = torch.from_numpy(1 - self.votes.scores)
        scores = match_score(gaps, own, other, dim).numpy()
        return replace(self, votes=replace(self.votes, scores=scores))


@dataclass(frozen=True, eq=False)
class Shares:
    """What the neighbours voted for.

    Attributes:
        right: Whether the label of largest share is the query's (q).
        voted: Its share (q).
        nearest: The share of the nearest item's label (q).
    """

    right: Bool[np.ndarray, " q"]
    voted: Float[np.ndarray, " q"]
    nearest: Float[np.ndarray, " q"]


def neighbourhood(
    queries: Tensor, labels: Any, items: Tensor | None = None, item_labels: Any = None
) -> Neighbourhood:
    """Search the neighbours that vote.

    Args:
        queries: Unit vectors (q, z).
        labels: Of the queries (q); None if they have none.
        items: Unit vectors of the gallery (g, z); None: the queries are the gallery, and none finds itself.
        item_labels: Of the gallery (g).

    Returns:
        The neighbours.
    """
    closed = items is None
    if items is None:
        items, item_labels = queries, labels
    _, codes, counts = np.unique(np.asarray(item_labels), return_inverse=True, return_counts=True)
    truth = np.full(len(queries), -1)
    if labels is not None:
        names = np.unique(np.asarray(item_labels))
        place = np.minimum(np.searchsorted(names, np.asarray(labels)), len(names) - 1)
        truth = np.where(names[place] == np.asarray(labels), place, -1)
    available = len(items) - closed
    k = min(VOTERS, available)
    # In float64, or the cosines of tight clusters would be rounded alike.
    found = nearest(queries.double(), items.double(), k, exclude_self=closed)
    indices = found.indices.numpy()
    voted = codes[indices]
    sizes = counts[voted] - (closed & (voted == truth[:, None]))
    votes = Votes(found.similarities.numpy(), voted, sizes, available - k)
    companion = (truth >= 0) & (counts[truth] > closed)
    return Neighbourhood(votes, indices, truth, companion)


def fit_vote(
    held_out: Tensor, labels: Any, kappa: Float[np.ndarray, " g"] | None = None
) -> LabelModel:
    """Fit T and c to labelled data that are searched in themselves.

    Args:
        held_out: Unit vectors (g, z) of data that are not scored afterwards.
        labels: Theirs.
        kappa: Finite concentrations, for a vote by match scores; None for the plain vote.

    Returns:
        The model.

    Raises:
        DegenerateError: If no two examples share a label.
    """
    found = neighbourhood(held_out, labels)
    rows = np.flatnonzero(found.companion)
    if not len(rows):
        raise DegenerateError(
            "no two held-out examples share a label, so no vote can be fitted to them. Give classes with "
            "two examples or more.",
            field="held_out",
        )
    # Evenly spaced, so that data sorted by class give all classes.
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(int)]
    plain = found.select(rows)
    # "None" is not fitted: one query without a neighbour says so.
    nobody = Votes(np.full((1, 1), -np.inf), np.full((1, 1), -1), np.ones((1, 1), dtype=int))
    if kappa is None:
        return fit_label_model(plain.votes, plain.truth, nobody)
    sample = plain.weighted(kappa[rows], kappa, held_out.shape[1])
    scale = _steepness(sample.votes.scores, plain.votes.scores)
    return fit_label_model(sample.votes, sample.truth, nobody, weighting="match", scale=scale)


def _steepness(match: Float[np.ndarray, "q k"], cosines: Float[np.ndarray, "q k"]) -> float:
    """Return how much the match score changes where the cosine changes by 1."""
    rise, run = (np.ptp(x, axis=1) for x in (match, cosines))
    steep = run > 0
    return float(np.median(rise[steep] / run[steep])) if steep.any() else 1.0


def vote_shares(found: Neighbourhood, model: LabelModel) -> Shares:
    """Compute the shares of the voted label and of the nearest item's.

    Args:
        found: The neighbours, with the scores that the model takes.
        model: From `fit_vote`.

    Returns:
        The shares.
    """
    votes, rows = found.votes, np.arange(len(found.votes))
    density, _ = label_densities(votes, model.temperature)
    best = density.argmax(axis=1)
    share = np.exp(model.sharpness * (density - density[rows, best][:, None]))
    share /= share.sum(axis=1, keepdims=True)
    # The columns are ordered by cosine, whatever the scores are.
    same = votes.labels == votes.labels[:, :1]
    return Shares(
        right=votes.labels[rows, best] == found.truth,
        voted=share[rows, best],
        nearest=np.where(same, share, 0.0).sum(axis=1),
    )


@dataclass(frozen=True, eq=False)
class Ballots:
    """Both votes of a test set, and the models that were fitted for them.

    Attributes:
        models: By weighting, "plain" and, if there is a finite κ, "weighted".
        shares: The same.
    """

    models: dict[str, LabelModel]
    shares: dict[str, Shares]


def hold_votes(
    held_out: Embeddings,
    held_out_labels: Any,
    queries: Embeddings,
    labels: Any,
    items: Embeddings | None = None,
    item_labels: Any = None,
) -> Ballots:
    """Fit both votes to held-out data and hold them on the test data.

    Args:
        held_out: Data that are not scored.
        held_out_labels: Theirs.
        queries: The test data.
        labels: Theirs.
        items: Where they are looked up; None for the test data themselves.
        item_labels: Theirs.

    Returns:
        The votes.
    """
    found = neighbourhood(queries.mean, labels, None if items is None else items.mean, item_labels)
    model = fit_vote(held_out.mean, held_out_labels)
    models, shares = {"plain": model}, {"plain": vote_shares(found, model)}
    searched = queries if items is None else items
    if all(bool(torch.isfinite(e.kappa).all()) for e in (held_out, queries, searched)):
        model = fit_vote(held_out.mean, held_out_labels, held_out.kappa.double().numpy())
        own, others = (e.kappa.double().numpy() for e in (queries, searched))
        by_match = found.weighted(own, others, queries.mean.shape[1])
        models["weighted"], shares["weighted"] = model, vote_shares(by_match, model)
    return Ballots(models, shares)
