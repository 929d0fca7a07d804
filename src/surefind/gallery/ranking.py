"""From queries to ordered neighbours: an engine proposes by cosine, scores in float64 decide.

An engine returns more candidates than asked for; their scores are computed again from the stored
vectors, so rounding in an engine cannot swap neighbours that it has found. Equal scores are ordered by
id (integers first), so that every engine gives the same answer.

For a query (μ_q, κ_q) and a candidate (μ_g, κ_g), with g = 1 - <μ_q, μ_g> = ½|μ_q - μ_g|²:

    distance     1 - g                                       the cosine of the two directions
    expected     A(κ_q) A(κ_g) (1 - g)                       the expected cosine of two draws
    match        log ∫ p(u | q) p(u | g) du                  `surefind.posterior.vmf`: both are one point

Higher is better, always. A(κ) = -d/dκ log C(κ) is the mean resultant length of a von Mises-Fisher
distribution: 0 at κ = 0, 1 at κ = ∞. The expected squared distance of two independent draws is
2 - 2 A(κ_q) A(κ_g) <μ_q, μ_g>, so ordering by it or by the expected cosine is the same. For one query
A(κ_q) orders nothing; it matters between queries.

"match" needs densities, so every κ must be finite. It asks whether two *distributions* agree, and
among near candidates prefers the sure one; among far candidates it prefers the unsure one, which may
yet turn out to be near.

Ranking by κ is exact among the candidates only, which were proposed by cosine.

Axes: ``q`` queries, ``c`` candidates, ``k`` neighbours, ``z`` embedding.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from surefind.errors import Hint, InputError
from surefind.gallery.engine import Engine, objects
from surefind.posterior.vmf import match_score, vmf_log_normalizer

RANKS = ("distance", "expected", "match")

SPARE = 6
"""Candidates beyond k by cosine: float32 may have swapped those that are almost equally near."""

WIDER, AT_LEAST = 4, 64
"""By κ, candidates are this many times k, and at least that many."""

SUREST = 1e15
"""κ in place of infinity, where a density is needed."""

CACHED = 8
BLOCK = 256
"""Queries at a time: their candidates' vectors are held in float64."""


@dataclass(frozen=True, eq=False)
class Found:
    """Candidates of each query by falling cosine, and the ``k`` best of them by rank.

    Attributes:
        ids: Objects (q, c).
        labels: Objects (q, c).
        gaps: 1 - cosine in float64 (q, c), rising.
        kappa: Float64 (q, c).
        payload: JSON strings or None (q, c).
        best: Columns of the best by rank (q, k).
        scores: Of these, by rank, in float64 (q, k).
        first: Whether the best are the first, as by cosine.
    """

    ids: np.ndarray
    labels: np.ndarray
    gaps: np.ndarray
    kappa: np.ndarray
    payload: np.ndarray
    best: np.ndarray
    scores: np.ndarray
    first: bool = False

    def best_of(self, column: np.ndarray) -> np.ndarray:
        """Return what a column (q, c) has for the best (q, k)."""
        if self.first:
            return column[:, : self.best.shape[1]]
        return take_rows(column, self.best)


def find(
    engine: Engine,
    queries: Float[np.ndarray, "q z"],
    kappa: Float[np.ndarray, " q"],
    k: int,
    rank: str,
    *,
    voters: int = 0,
) -> Found:
    """Find the best items of each query.

    Args:
        engine: It holds at least one record.
        queries: Unit vectors in float32.
        kappa: Their concentrations.
        k: How many to find; if the engine holds fewer, all of them.
        rank: One of `RANKS`.
        voters: How many of the nearest are wanted beside them.

    Returns:
        At least ``voters`` candidates and the k best, if there are as many.
    """
    size = len(engine)
    wanted = max(candidates(k, rank), voters + SPARE if voters else 0)
    count, k = min(size, wanted), min(size, k)
    blocks = [slice(start, start + BLOCK) for start in range(0, len(queries), BLOCK)]
    parts = [_block(engine, queries[b], count) for b in blocks]
    fewest = min(part[0].shape[1] for part in parts)
    ids, labels, gaps, own, payload = (
        parts[0]
        if len(parts) == 1
        else (
            np.concatenate([part[:, :fewest] for part in column])
            for column in zip(*parts, strict=True)
        )
    )
    scores = score(rank, gaps, kappa, own, queries.shape[1])
    if rank == "distance":
        best = np.broadcast_to(np.arange(min(k, fewest)), (len(ids), min(k, fewest)))
        return Found(ids, labels, gaps, own, payload, best, scores[:, : best.shape[1]], first=True)
    best = _order(-scores, ids)[:, :k]
    return Found(ids, labels, gaps, own, payload, best, take_rows(scores, best))


def _block(engine: Engine, queries: np.ndarray, count: int) -> list[np.ndarray]:
    """Find the first columns of `Found` for some queries."""
    records = engine.search(queries, count)
    shape = (len(queries), len(records) // len(queries))
    gaps = exact_gaps(queries, records.vectors.reshape(*shape, -1))
    ids, own = objects(records.ids, shape), records.kappa.reshape(shape)
    # An engine may propose a few more, of which only these are certain to be the nearest.
    order = _order(gaps, ids)[:, :count]
    places = order + np.arange(0, gaps.size, shape[1])[:, None]
    columns = (ids, objects(records.labels, shape), gaps, own, objects(records.payload, shape))
    return [column.take(places) for column in columns]


def exact_gaps(
    queries: Float[np.ndarray, "q z"], vectors: Float[np.ndarray, "q c z"]
) -> Float[np.ndarray, "q c"]:
    """Compute 1 - cosine = ½|q - v|² of unit vectors, which keeps its digits where directions agree."""
    gaps = np.empty(vectors.shape[:2])
    # A few queries at a time stay in the processor's cache, and in place: this is most of a search's work
    # beside the products.
    for start in range(0, len(queries), CACHED):
        part = slice(start, start + CACHED)
        apart = vectors[part].astype(np.float64)
        apart /= np.sqrt(np.einsum("qcz,qcz->qc", apart, apart))[..., None]
        apart -= unit64(queries[part])[:, None]
        gaps[part] = np.einsum("qcz,qcz->qc", apart, apart) / 2
    return gaps


def _order(losses: Float[np.ndarray, "q c"], ids: np.ndarray) -> np.ndarray:
    """Return the columns of each row by rising loss, and of equal ones by id."""
    order = losses.argsort(axis=1, kind="stable")
    ordered = take_rows(losses, order)
    equal = ordered[:, 1:] == ordered[:, :-1]
    if equal.any():
        for q in np.flatnonzero(equal.any(axis=1)):
            # Integers come before strings, which cannot be compared with each other.
            places = [(losses[q, c], isinstance(id_, str), id_) for c, id_ in enumerate(ids[q])]
            order[q] = sorted(range(len(places)), key=places.__getitem__)
    return order


def take_rows(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return some columns of each row, as `np.take_along_axis` does, which takes longer to begin."""
    return np.asarray(values[np.arange(len(columns))[:, None], columns])


def candidates(k: int, rank: str) -> int:
    """Return how many candidates to ask an engine for.

    Args:
        k: How many answers are wanted.
        rank: How they will be ordered.

    Returns:
        A number above k.
    """
    return k + SPARE if rank == "distance" else max(WIDER * k, AT_LEAST)


def mean_resultant_length(kappa: np.ndarray, dim: int) -> np.ndarray:
    """Compute A(κ), the length of the mean of a von Mises-Fisher distribution.

    Args:
        kappa: Concentrations of any shape, possibly infinite.
        dim: Dimension of the ambient space.

    Returns:
        Lengths from 0 to 1, of the same shape.
    """
    # Gallery and queries often share a few values (all infinite, say), and the series is not free.
    values, position = np.unique(kappa, return_inverse=True)
    finite = torch.from_numpy(values[np.isfinite(values)]).requires_grad_(True)
    lengths = np.ones(len(values))
    if len(finite):
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(vmf_log_normalizer(finite, dim).sum(), finite)
        lengths[: len(finite)] = (-slope).clamp(0, 1).numpy()
    return lengths[position].reshape(kappa.shape)


def score(
    rank: str,
    gaps: Float[np.ndarray, "q c"],
    query_kappa: Float[np.ndarray, " q"],
    kappa: Float[np.ndarray, "q c"],
    dim: int,
) -> Float[np.ndarray, "q c"]:
    """Score the candidates of each query.

    Args:
        rank: One of `RANKS`.
        gaps: 1 - cosine of the candidates.
        query_kappa: The queries' concentrations.
        kappa: The candidates' concentrations.
        dim: The vectors' dimension.

    Returns:
        Scores in float64, higher for better.

    Raises:
        InputError: If "match" is asked for and a κ is infinite.
    """
    if rank == "distance":
        return np.asarray(1 - gaps)
    if rank == "expected":
        query_length = mean_resultant_length(query_kappa, dim)
        return np.asarray(query_length[:, None] * mean_resultant_length(kappa, dim) * (1 - gaps))
    if not (np.isfinite(query_kappa).all() and np.isfinite(kappa).all()):
        raise InputError(
            "rank 'match' compares distributions, and some vectors here have no known uncertainty "
            "(infinite kappa).",
            field="rank",
            hint=Hint(
                "Add and search with surefind.Embeddings, or use rank='expected'.",
                "Index and search with --run RUN, or use --rank expected.",
            ),
        )
    return match_scores(gaps, query_kappa, kappa, dim)


def match_scores(
    gaps: Float[np.ndarray, "q c"],
    query_kappa: Float[np.ndarray, " q"],
    kappa: Float[np.ndarray, "q c"],
    dim: int,
) -> Float[np.ndarray, "q c"]:
    """Compute the match score; a κ that is infinite counts as `SUREST`."""
    own, other = (torch.from_numpy(np.minimum(k, SUREST)) for k in (query_kappa[:, None], kappa))
    return match_score(torch.from_numpy(gaps), own, other, dim).numpy()


def unit64(vectors: np.ndarray) -> np.ndarray:
    """Rescale rows to unit length in float64."""
    double = vectors.astype(np.float64)
    return np.asarray(double / np.sqrt(np.einsum("...z,...z->...", double, double))[..., None])
