"""From queries to ordered neighbours: an engine proposes by cosine, float64 decides.

An engine returns more candidates than asked for; their cosines are computed again from the stored vectors,
so rounding in an engine cannot swap neighbours that it has found. Equal ones are ordered by id (integers
first), so that every engine gives the same answer.

Axes: ``q`` queries, ``c`` candidates, ``z`` embedding.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from surefind.gallery.engine import Engine, objects

SPARE = 6
"""Candidates beyond those that are wanted: float32 may have swapped those that are almost equally near."""

CACHED = 8
BLOCK = 256
"""Queries at a time: their candidates' vectors are held in float64."""


@dataclass(frozen=True, eq=False)
class Found:
    """Candidates of each query by falling cosine.

    Attributes:
        ids: Objects (q, c).
        labels: Objects (q, c).
        gaps: 1 - cosine in float64 (q, c), rising.
        kappa: Float64 (q, c).
        payload: JSON strings or None (q, c).
    """

    ids: np.ndarray
    labels: np.ndarray
    gaps: np.ndarray
    kappa: np.ndarray
    payload: np.ndarray


def find(engine: Engine, queries: Float[np.ndarray, "q z"], count: int) -> Found:
    """Find the nearest items of each query.

    Args:
        engine: It holds at least one record.
        queries: Unit vectors in float32.
        count: How many are wanted at least; if the engine holds fewer, all of them.

    Returns:
        The candidates, perhaps a few more than wanted.
    """
    wanted = min(len(engine), count + SPARE)
    blocks = [slice(start, start + BLOCK) for start in range(0, len(queries), BLOCK)]
    parts = [_block(engine, queries[b], wanted) for b in blocks]
    if len(parts) == 1:
        return Found(*parts[0])
    fewest = min(part[0].shape[1] for part in parts)
    columns = zip(*parts, strict=True)
    return Found(*(np.concatenate([part[:, :fewest] for part in column]) for column in columns))


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


def unit64(vectors: np.ndarray) -> np.ndarray:
    """Rescale rows to unit length in float64."""
    double = vectors.astype(np.float64)
    return np.asarray(double / np.sqrt(np.einsum("...z,...z->...", double, double))[..., None])
