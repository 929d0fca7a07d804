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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from surefind.errors import Hint, InputError
from surefind.gallery.engine import Engine
from surefind.posterior.vmf import match_score, vmf_log_normalizer

RANKS = ("distance", "expected", "match")

SPARE = 6
"""Candidates beyond k by cosine: float32 may have swapped those that are almost equally near."""

WIDER, AT_LEAST = 4, 64
"""By κ, candidates are this many times k, and at least that many."""

BLOCK = 256
"""Queries at a time: their candidates' vectors are held in float64."""


@dataclass(frozen=True, eq=False)
class Found:
    """The ``k`` best items of each query, best first, as in `surefind.gallery.answers`.

    Attributes:
        ids: Objects (q, k).
        labels: Objects (q, k).
        scores: Float64 (q, k).
        kappa: Float64 (q, k).
        payload: JSON strings or None (q, k).
    """

    ids: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    kappa: np.ndarray
    payload: np.ndarray


def find(
    engine: Engine,
    queries: Float[np.ndarray, "q z"],
    kappa: Float[np.ndarray, " q"],
    k: int,
    rank: str,
) -> Found:
    """Find the best items of each query.

    Args:
        engine: It holds at least one record.
        queries: Unit vectors in float32.
        kappa: Their concentrations.
        k: How many to find; if the engine holds fewer, all of them.
        rank: One of `RANKS`.

    Returns:
        The items.
    """
    size = len(engine)
    count, k = min(size, candidates(k, rank)), min(size, k)
    blocks = [slice(start, start + BLOCK) for start in range(0, len(queries), BLOCK)]
    parts = [_block(engine, queries[b], kappa[b], count, k, rank) for b in blocks]
    fewest = min(part[0].shape[1] for part in parts)
    columns = zip(*parts, strict=True)
    return Found(*(np.concatenate([part[:, :fewest] for part in column]) for column in columns))


def _block(
    engine: Engine, queries: np.ndarray, kappa: np.ndarray, count: int, k: int, rank: str
) -> list[np.ndarray]:
    """Find the columns of `Found` for some queries."""
    records = engine.search(queries, count)
    shape = (len(queries), len(records) // len(queries))
    vectors, own = records.vectors.reshape(*shape, -1), records.kappa.reshape(shape)
    scores = score(rank, queries, kappa, vectors, own)
    ids = objects(records.ids, shape)
    order = _order(scores, ids)[:, :k]
    pick = [ids, objects(records.labels, shape), scores, own, objects(records.payload, shape)]
    return [np.take_along_axis(column, order, axis=1) for column in pick]


def _order(scores: Float[np.ndarray, "q c"], ids: np.ndarray) -> np.ndarray:
    order = np.argsort(-scores, axis=1, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=1)
    for q in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
        # Integers come before strings, which cannot be compared with each other.
        places = [(-scores[q, c], isinstance(id_, str), id_) for c, id_ in enumerate(ids[q])]
        order[q] = sorted(range(len(places)), key=places.__getitem__)
    return order


def objects(values: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Put values of any kind into an array, without NumPy guessing a common type."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


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
    queries: Float[np.ndarray, "q z"],
    query_kappa: Float[np.ndarray, " q"],
    vectors: Float[np.ndarray, "q c z"],
    kappa: Float[np.ndarray, "q c"],
) -> Float[np.ndarray, "q c"]:
    """Score the candidates of each query.

    Args:
        rank: One of `RANKS`.
        queries: Unit vectors.
        query_kappa: Their concentrations.
        vectors: Unit vectors of the candidates.
        kappa: Their concentrations.

    Returns:
        Scores in float64, higher for better.

    Raises:
        InputError: If "match" is asked for and a κ is infinite.
    """
    gap = ((_unit(queries)[:, None] - _unit(vectors)) ** 2).sum(-1) / 2
    dim = queries.shape[1]
    if rank == "distance":
        return np.asarray(1 - gap)
    if rank == "expected":
        query_length = mean_resultant_length(query_kappa, dim)
        return np.asarray(query_length[:, None] * mean_resultant_length(kappa, dim) * (1 - gap))
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
    tensor = torch.from_numpy
    return match_score(tensor(gap), tensor(query_kappa)[:, None], tensor(kappa), dim).numpy()


def _unit(vectors: np.ndarray) -> np.ndarray:
    double = vectors.astype(np.float64)
    return np.asarray(double / np.linalg.norm(double, axis=-1, keepdims=True))
