"""The vote of a query's neighbours over labels or places, plain and weighted by κ, as answer and as doubt.

The 100 nearest by cosine vote with the posterior of `surefind.decisions.label_posterior`; n_l counts what
the query is searched in, so without itself in a closed set. Every query that is scored has an answer in
its gallery, so "none" has no place here, and a share is P(l | q, not none). Two weightings:

    plain        m = the cosine
    κ-weighted   m = the match score of the query's and the item's von Mises-Fisher distributions;
                 not there if a κ is infinite

Two answers are judged, each by the share of its own label:

    nearest      the label of the nearest item, which is what recall@1 counts
    voted        the label of largest share

Where there are positions in place of labels, a neighbour's label is the disc of the radius around it: its
share is the probability that the query lies in the disc, the sum of the shares of all neighbours in it
(`place_shares`). The nearest answer is the nearest item, the voted one the neighbour whose disc has the
largest share, the nearer of equal ones; it is right if the query was taken within the radius of it.

T, c and γ are fitted by maximum likelihood to data that are no test data: the part that the protocol leaves
out of training, searched in itself, each example without itself; where there is no such part, or it has
one class only, the training data, which are clustered more tightly than what is asked later. Places have
T alone. Where their training data have two sides, as the traverses of a route have, the queries' side is
searched in the other; else each example without itself.

A part of other classes than the training data's is searched in both together. Ten classes among themselves
are easily told apart, and the likelihood is then best for votes that are sure of everything; a test set has
a hundred. With features of CUB200's training classes (ResNet-50, as they are; ten classes fitted to, 40
tested on, eight divisions) log loss falls from 0.496 to 0.486 nats where 40 others stand beside the ten,
and the voted label is right in 0.841 instead of 0.840.

γ is fitted for a closed set, whose queries come as its items do: so do the examples that are left out. A
test set that is looked up in a gallery is taken to be asked about like that too.

Axes: ``q`` queries, ``g`` gallery, ``k`` neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surefind import metrics
from surefind.data.dataset import Dataset
from surefind.decisions.label_posterior import (
    LabelModel,
    Votes,
    fit_label_model,
    fit_place_model,
    label_densities,
    log_weights,
    place_shares,
)
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError
from surefind.estimators.learner import MetricLearner
from surefind.evaluation.evaluate import RESAMPLES, Evaluation, add_metric, judge
from surefind.neighbours import nearest
from surefind.pairs.relations import POSITIVE_RADIUS
from surefind.posterior.vmf import match_score

VOTERS = 100
"""Neighbours that vote."""
SAMPLE = 10_000
"""Examples that votes are fitted to, at most."""


@dataclass(frozen=True, eq=False)
class Places:
    """Where the neighbours of some queries are.

    Attributes:
        positions: Theirs (q, k, 2).
        right: Whether each lies within the radius of its query (q, k).
        radius: In the positions' units.
    """

    positions: Float[np.ndarray, "q k 2"]
    right: Bool[np.ndarray, "q k"]
    radius: float


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The nearest neighbours of some queries, ready to vote.

    Attributes:
        votes: By cosine, the nearest first.
        indices: Rows of the gallery (q, k).
        truth: The queries' labels, numbered as the votes' are (q).
        companion: Whether something in the gallery has the query's label, or place (q).
        places: Where they are, in place of labels, which then do not matter; None for labels.
    """

    votes: Votes
    indices: Int[np.ndarray, "q k"]
    truth: Int[np.ndarray, " q"]
    companion: Bool[np.ndarray, " q"]
    places: Places | None = None

    def select(self, rows: Any) -> "Neighbourhood":
        """Keep some of the queries."""
        v = self.votes
        votes = Votes(v.scores[rows], v.labels[rows], v.sizes[rows], v.unseen)
        p = self.places
        places = p and Places(p.positions[rows], p.right[rows], p.radius)
        picked = self.indices[rows], self.truth[rows], self.companion[rows]
        return Neighbourhood(votes, *picked, places)

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
        right: Whether the label of largest share is the query's, or its place (q).
        voted: Its share (q).
        nearest: The share of the nearest item's label (q).
    """

    right: Bool[np.ndarray, " q"]
    voted: Float[np.ndarray, " q"]
    nearest: Float[np.ndarray, " q"]


def neighbourhood(
    queries: Tensor,
    known: Any,
    items: Tensor | None = None,
    item_known: Any = None,
    *,
    enrolled: bool = False,
    radius: float = POSITIVE_RADIUS,
) -> Neighbourhood:
    """Search the neighbours that vote.

    Args:
        queries: Unit vectors (q, z).
        known: Labels of the queries (q) or positions (q, 2); None if they have none.
        items: Unit vectors of the gallery (g, z); None: the queries are the gallery, and none finds itself.
        item_known: Labels (g) or positions (g, 2) of the gallery.
        enrolled: Whether the queries are the gallery's first items, so that none finds itself there either.
        radius: Distance up to which two positions are the same place.

    Returns:
        The neighbours.
    """
    if items is None:
        items, item_known, enrolled = queries, known, True
    available = len(items) - enrolled
    k = min(VOTERS, available)
    indices, scores = _nearest(queries, items, k, enrolled=enrolled)
    item_known = np.asarray(item_known)
    if item_known.ndim == 2:
        nobody = np.zeros(len(queries), dtype=np.int64)
        votes = Votes(scores, np.zeros_like(indices), np.ones_like(indices), available - k)
        right, companions = np.zeros(indices.shape, dtype=bool), nobody
        if known is not None:
            placed = np.asarray(known), item_known, radius
            judged = metrics.relevance_within(indices, *placed, self_in_gallery=enrolled)
            right, companions = judged.hits, judged.counts
        places = Places(item_known[indices], right, radius)
        return Neighbourhood(votes, indices, nobody, companions > 0, places)
    names, codes, counts = np.unique(item_known, return_inverse=True, return_counts=True)
    truth = np.full(len(queries), -1)
    if known is not None:
        place = np.minimum(np.searchsorted(names, np.asarray(known)), len(names) - 1)
        truth = np.where(names[place] == np.asarray(known), place, -1)
    voted = codes[indices]
    sizes = counts[voted] - (enrolled & (voted == truth[:, None]))
    companion = (truth >= 0) & (counts[truth] > enrolled)
    return Neighbourhood(Votes(scores, voted, sizes, available - k), indices, truth, companion)


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


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries, where they are looked up, and what is known of both.

    Attributes:
        queries: The queries.
        known: Their labels (q) or positions (q, 2).
        items: Where they are looked up; None for the queries themselves.
        item_known: The same of the items.
        enrolled: Whether the queries are the first of the items.
        radius: Distance up to which two positions are the same place.
    """

    queries: Embeddings
    known: Any
    items: Embeddings | None = None
    item_known: Any = None
    enrolled: bool = False
    radius: float = POSITIVE_RADIUS

    @classmethod
    def held_out(
        cls,
        part: Embeddings,
        known: Any,
        train: Embeddings | None = None,
        train_known: Any = None,
        *,
        asking: Bool[np.ndarray, " n"] | None = None,
        radius: float = POSITIVE_RADIUS,
    ) -> "Asked":
        """Look up what votes are fitted to.

        Args:
            part: Queries and items.
            known: Their labels (n) or positions (n, 2).
            train: The training data; items too, if they have labels and none of the part's.
            train_known: Their labels or positions.
            asking: Which of the part are queries, looked up in the rest; None: all, each in all the others.
            radius: Distance up to which two positions are the same place.

        Returns:
            Queries and items.
        """
        if asking is not None:
            query, item = torch.from_numpy(asking), torch.from_numpy(~asking)
            return cls(part[query], known[query], part[item], known[item], radius=radius)
        if train is None or train_known is None or known.ndim == 2:
            return cls(part, known, radius=radius)
        if bool(torch.isin(known, train_known).any()):
            return cls(part, known, radius=radius)
        items = Embeddings.concatenate([part, train])
        return cls(part, known, items, torch.cat([known, train_known]), True, radius)

    @property
    def searched(self) -> Embeddings:
        """What the queries are looked up in."""
        return self.queries if self.items is None else self.items

    @property
    def kappas(self) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " g"]] | None:
        """Concentrations of queries and items; None if one is infinite."""
        both = self.queries.kappa, self.searched.kappa
        if not all(bool(torch.isfinite(kappa).all()) for kappa in both):
            return None
        query, item = (kappa.double().numpy() for kappa in both)
        return query, item

    def neighbourhood(self) -> Neighbourhood:
        """Search the neighbours that vote."""
        items = None if self.items is None else self.items.mean
        return neighbourhood(
            self.queries.mean,
            self.known,
            items,
            self.item_known,
            enrolled=self.enrolled,
            radius=self.radius,
        )


def fit_votes(held_out: Asked) -> dict[str, LabelModel]:
    """Fit T, c and γ to data that are not scored afterwards.

    Args:
        held_out: The data.

    Returns:
        The model by weighting, "plain" and, if every κ is finite, "weighted".

    Raises:
        DegenerateError: If no query finds its label, or place, among what it is searched in.
    """
    found = held_out.neighbourhood()
    rows = np.flatnonzero(found.companion)
    if not len(rows):
        what = "label" if found.places is None else "place"
        raise DegenerateError(
            f"no two held-out examples share a {what}, so no vote can be fitted to them. Give {what}s with "
            "two examples or more.",
            field="held_out",
        )
    # Evenly spaced, so that data sorted by class give all classes.
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), SAMPLE)).astype(int)]
    plain = found.select(rows)
    models = {"plain": _fitted(plain)}
    if held_out.kappas is not None:
        own, others = held_out.kappas
        by_match = plain.weighted(own[rows], others, held_out.queries.mean.shape[1])
        scale = _steepness(by_match.votes.scores, plain.votes.scores)
        models["weighted"] = _fitted(by_match, weighting="match", scale=scale)
    return models


def _fitted(sample: Neighbourhood, **options: Any) -> LabelModel:
    if sample.places is not None:
        return fit_place_model(sample.votes.scores, sample.places.right, **options)
    # "None" is not fitted: one query without a neighbour says so.
    nobody = Votes(np.full((1, 1), -np.inf), np.full((1, 1), -1), np.ones((1, 1), dtype=int))
    return fit_label_model(sample.votes, sample.truth, nobody, as_asked=True, **options)


def _steepness(match: Float[np.ndarray, "q k"], cosines: Float[np.ndarray, "q k"]) -> float:
    """Return how much the match score changes where the cosine changes by 1."""
    rise, run = (np.ptp(x, axis=1) for x in (match, cosines))
    steep = run > 0
    return float(np.median(rise[steep] / run[steep])) if steep.any() else 1.0


def vote_shares(found: Neighbourhood, model: LabelModel) -> Shares:
    """Compute the shares of the voted label and of the nearest item's.

    Args:
        found: The neighbours, with the scores that the model takes.
        model: From `fit_votes`.

    Returns:
        The shares.
    """
    votes, rows, places = found.votes, np.arange(len(found.votes)), found.places
    if places is not None:
        share = place_shares(votes.scores, places.positions, places.radius, model.temperature)
        best = share.argmax(axis=1)
        return Shares(places.right[rows, best], share[rows, best], share[:, 0])
    density = label_densities(votes, model.temperature)
    weights = log_weights(votes, density, model.sharpness, model.prior)
    best = weights.argmax(axis=1)
    share = np.exp(weights - weights[rows, best][:, None])
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
        items: How many examples the held-out ones were looked up in.
    """

    models: dict[str, LabelModel]
    shares: dict[str, Shares]
    items: int


def hold_votes(held_out: Asked, test: Asked) -> Ballots:
    """Fit both votes to held-out data and hold them on the test data.

    Args:
        held_out: Data that are not scored.
        test: The test data.

    Returns:
        The votes.
    """
    models, found = fit_votes(held_out), {"plain": test.neighbourhood()}
    if test.kappas is not None:
        found["weighted"] = found["plain"].weighted(*test.kappas, test.queries.mean.shape[1])
    both = models.keys() & found.keys()
    return Ballots(
        {weighting: models[weighting] for weighting in sorted(both)},
        {weighting: vote_shares(found[weighting], models[weighting]) for weighting in sorted(both)},
        len(held_out.searched),
    )


@dataclass(frozen=True)
class VoteRecord:
    """How the votes over labels were fitted, and what weighting them by κ changed.

    Attributes:
        examples: How many held-out examples T, c and γ were fitted to.
        items: How many examples these were looked up in.
        temperature: T by weighting, "plain" and, if there is a κ, "weighted".
        sharpness: c, the same.
        prior: γ, the same.
        gains: By metric of the plain vote, that of the weighted one less it: estimate, low, high.
    """

    examples: int
    items: int
    temperature: dict[str, float]
    sharpness: dict[str, float]
    prior: dict[str, float]
    gains: dict[str, tuple[float, float, float]]


VOTE_METRICS = {
    "nearest_{}_ausc": metrics.ausc,
    "nearest_{}_r_auroc": metrics.r_auroc,
    "{}_ausc": metrics.ausc,
    "{}_r_auroc": metrics.r_auroc,
}
"""What is measured of a vote, for the nearest item's answer and for the voted one."""
VOTE_NAMES = {"plain": "vote", "weighted": "kappa_vote"}


def measure_votes(
    found: Evaluation,
    learner: MetricLearner,
    test: Dataset,
    gallery: Dataset | None = None,
    *,
    held_out: Dataset,
    train: Dataset | None = None,
    asking: Bool[np.ndarray, " n"] | None = None,
    radius: float = POSITIVE_RADIUS,
    generator: np.random.Generator,
) -> VoteRecord | None:
    """Add the metrics of the neighbours' votes to an evaluation.

    Args:
        found: From `evaluate` of the same data.
        learner: What was evaluated.
        test: The test data.
        gallery: Where they were looked up; None for the test data themselves.
        held_out: Data with labels or positions, as the test data have, none of them test data, to fit to.
        train: The training data.
        asking: Which of the held-out data are looked up in the others; None: each in all the others.
        radius: Distance up to which two positions are the same place.
        generator: Draws bootstrap resamples.

    Returns:
        How the votes were fitted; None if the held-out data lack what the test data have.
    """
    searched = test if gallery is None else gallery
    labelled = test.labels is not None and searched.labels is not None
    kind = "labels" if labelled else "positions"
    if getattr(held_out, kind) is None:
        return None
    queries, items, trained = (found.embeddings.get(part) for part in ("id", "gallery", "train"))
    assert queries is not None
    vectors = learner.embed(held_out) if trained is None or held_out is not train else trained
    beside = (trained, getattr(train, kind)) if trained is not None else ()
    fitted_to = Asked.held_out(
        vectors, getattr(held_out, kind), *beside, asking=asking, radius=radius
    )
    looked_up = items, None if gallery is None else getattr(gallery, kind)
    asked = Asked(queries, getattr(test, kind), *looked_up, radius=radius)
    means = queries.mean, None if items is None else items.mean
    judged = judge(means[0], test, means[1], gallery, radius=radius)
    return _add_votes(found, hold_votes(fitted_to, asked), judged, generator)


def _add_votes(
    result: Evaluation,
    ballots: Ballots,
    judged: metrics.Relevance,
    generator: np.random.Generator,
) -> VoteRecord:
    """Add the metrics of the votes, and compare the two."""
    asked = judged.answerable
    right = {weighting: s.right[asked] for weighting, s in ballots.shares.items()}
    scored: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    for weighting, shares in ballots.shares.items():
        name = VOTE_NAMES[weighting]
        interval = metrics.bootstrap_interval(right[weighting].astype(float), generator=generator)
        result.values[f"{name}_right"] = interval.estimate
        result.intervals[f"{name}_right"] = (interval.low, interval.high)
        nearest_answer = judged.hits[asked, 0], 1 - shares.nearest[asked]
        voted_answer = right[weighting], 1 - shares.voted[asked]
        scored[weighting] = {
            key: nearest_answer if key.startswith("nearest") else voted_answer
            for key in VOTE_METRICS
        }
        for key, metric in VOTE_METRICS.items():
            add_metric(result, key.format(name), metric, scored[weighting][key], generator)
    gains: dict[str, tuple[float, float, float]] = {}
    if "weighted" in scored:
        gap = right["weighted"].astype(float) - right["plain"]
        found = metrics.bootstrap_interval(gap, generator=generator)
        gains["vote_right"] = (found.estimate, found.low, found.high)
        for key, metric in VOTE_METRICS.items():
            arrays = (*scored["weighted"][key], *scored["plain"][key])
            try:
                found = metrics.bootstrap_interval(
                    *arrays,
                    statistic=partial(_difference, metric),
                    n_resamples=RESAMPLES,
                    generator=generator,
                )
            except DegenerateError:
                continue
            gains[key.format("vote")] = (found.estimate, found.low, found.high)
    return VoteRecord(
        examples=ballots.models["plain"].enrolled,
        items=ballots.items,
        temperature={w: m.temperature for w, m in ballots.models.items()},
        sharpness={w: m.sharpness for w, m in ballots.models.items()},
        prior={w: m.prior for w, m in ballots.models.items()},
        gains=gains,
    )


def _difference(metric: Callable[..., float], *arrays: np.ndarray) -> float:
    """Return the metric of the first two arrays less that of the last two."""
    return metric(*arrays[:2]) - metric(*arrays[2:])
