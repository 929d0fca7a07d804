"""From queries to ordered neighbours: an engine proposes, float64 scores decide.

An engine returns more candidates than asked for; their scores are computed again from the stored
vectors, so rounding in an engine cannot swap neighbours that it has found. Equal scores are ordered by
id (numbers first), so that every engine gives the same answer.

Axes: ``q`` queries, ``c`` candidates, ``k`` neighbours, ``z`` embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.gallery.engine import Engine, Id
from surefind.gallery.reranking import candidates, score

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
        payload: JSON texts or None (q, k).
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
        rank: One of `surefind.gallery.reranking.RANKS`.

    Returns:
        The items.
    """
    size = len(engine)
    count, k = min(size, candidates(k, rank)), min(size, k)
    starts = range(0, len(queries), BLOCK)
    parts = [
        _block(engine, queries[s : s + BLOCK], kappa[s : s + BLOCK], count, k, rank) for s in starts
    ]
    fewest = min(part.ids.shape[1] for part in parts)
    columns = ("ids", "labels", "scores", "kappa", "payload")
    return Found(*(np.concatenate([getattr(p, c)[:, :fewest] for p in parts]) for c in columns))


def _block(
    engine: Engine, queries: np.ndarray, kappa: np.ndarray, count: int, k: int, rank: str
) -> Found:
    hits = engine.search(queries, count)
    shape = (len(queries), hits.per_query)
    records = hits.records
    vectors, own = records.vectors.reshape(*shape, -1), records.kappa.reshape(shape)
    scores = score(rank, queries, kappa, vectors, own)
    ids = _objects(records.ids, shape)
    order = _order(scores, ids)[:, :k]
    pick = [ids, _objects(records.labels, shape), scores, own, _objects(records.payload, shape)]
    return Found(*(np.take_along_axis(column, order, axis=1) for column in pick))


def _order(scores: Float[np.ndarray, "q c"], ids: np.ndarray) -> np.ndarray:
    order = np.argsort(-scores, axis=1, kind="stable")
    ordered = np.take_along_axis(scores, order, axis=1)
    for q in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)):
        order[q] = sorted(order[q].tolist(), key=lambda c: (-scores[q, c], *_place(ids[q, c])))
    return order


def _place(id_: Any) -> tuple[bool, Id]:
    """Sort numbers before texts, which cannot be compared with each other."""
    return isinstance(id_, str), id_


def _objects(values: Sequence[Any], shape: tuple[int, int]) -> np.ndarray:
    """Put values of any kind into an array, without NumPy guessing a common type."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)
