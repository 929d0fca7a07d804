"""Exact nearest rows of an array, for galleries: NumPy alone, and quick for a single query too.

Float32 proposes and float64 decides, as in `surefind.neighbours`. With ρ = (z + 4) 2^-24, the
rounding error of a float32 product, and the proposed cosines r_1 >= r_2 >= … of a query, its ``count``
nearest rows are certainly among the first c if

    r_count - r_c  >  2 ρ

Of a query for which that does not hold, everything within 2 ρ of r_count is compared in float64.

PyTorch would do the same products. But it takes longer to begin them than one query takes, and its threads,
waiting for each other, take the cores from whoever else computes.

Axes: ``q`` queries, ``n`` rows, ``z`` embedding, ``c`` candidates, ``r`` queries of a block, ``w`` its
columns.
"""

from math import isqrt

import numpy as np
from jaxtyping import Float, Int

ROWS = 256
"""Queries of a block."""

CELLS = 2**20
"""Cosines of a block: 4 MB, which stay in the cache until the highest are found."""

SPARE = 6
"""Candidates beyond ``count``: more settle more queries, fewer cost less."""


def near_rows(
    vectors: Float[np.ndarray, "n z"], queries: Float[np.ndarray, "q z"], count: int
) -> Int[np.ndarray, "q c"]:
    """Return rows among which are the ``count`` of highest cosine, and a few more, in no order.

    Args:
        vectors: To be searched, unit vectors in float32.
        queries: The same, at least one.
        count: How many rows are wanted, at most n.

    Returns:
        Row numbers, as many for each query; of equal cosines at the end the first rows.
    """
    if len(queries) <= ROWS:
        return _near(vectors, queries, count)
    blocks = [queries[start : start + ROWS] for start in range(0, len(queries), ROWS)]
    return np.concatenate([_near(vectors, block, count) for block in blocks])


def nearest_rows(
    vectors: Float[np.ndarray, "n z"], queries: Float[np.ndarray, "q z"], count: int
) -> Int[np.ndarray, "q c"]:
    """Return the ``count`` rows of highest cosine in float64, nearest first; of equal ones the first rows.

    Args:
        vectors: As for `near_rows`.
        queries: As for `near_rows`.
        count: How many rows to find, at most n.

    Returns:
        Row numbers.
    """
    rows = np.sort(near_rows(vectors, queries, count), axis=1)
    order = np.argsort(-_cosines(vectors, queries, rows), axis=1, kind="stable")
    return np.take_along_axis(rows, order[:, :count], axis=1)


def _near(
    vectors: Float[np.ndarray, "n z"], queries: Float[np.ndarray, "r z"], count: int
) -> Int[np.ndarray, "r c"]:
    n = len(vectors)
    wide = min(n, count + SPARE)
    size = max(wide, CELLS // len(queries))
    parts = [
        highest(queries @ vectors[start : start + size].T, wide, start)
        for start in range(0, n, size)
    ]
    values, rows = parts[0]
    if len(parts) > 1:
        values, rows = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        values, position = highest(values, wide)
        rows = np.take_along_axis(rows, position, axis=1)
    if wide == n:
        return rows
    error = 2 * (vectors.shape[1] + 4) * np.finfo(np.float32).eps / 2
    # Only the lowest few are needed in order.
    lowest = np.partition(values, (0, wide - count), axis=1)
    edge = lowest[:, wide - count].astype(np.float64)
    for row in np.flatnonzero(edge - lowest[:, 0] <= error):
        # Once more the error, for another product of the same numbers.
        close = np.flatnonzero(vectors @ queries[row] >= edge[row] - 2 * error)[None]
        cosines = _cosines(vectors, queries[row : row + 1], close)[0]
        rows[row] = close[0, np.argsort(-cosines, kind="stable")[:wide]]
    return rows


def highest(
    scores: Float[np.ndarray, "r w"], count: int, start: int = 0
) -> tuple[Float[np.ndarray, "r c"], Int[np.ndarray, "r c"]]:
    """Return each row's ``count`` highest scores, or all, in no order, and their columns from ``start``."""
    r, w = scores.shape
    at = np.arange(r)[:, None]
    if w <= count:
        return scores, np.broadcast_to(np.arange(start, start + w), (r, w))
    # Columns are dealt to groups. A score among the highest is in one of the `count` groups of highest
    # maximum, and a maximum over strided groups is one vectorised pass where a partition is many branches.
    size = isqrt(w // count) // 2
    if size < 2:
        columns = np.argpartition(scores, w - count, axis=1)[:, w - count :]
        return scores[at, columns], columns + start
    groups = w // size
    even = groups * size
    best = scores[:, :even].reshape(r, size, groups).max(axis=1)
    chosen = np.argpartition(best, groups - count, axis=1)[:, groups - count :]
    members = (chosen[:, :, None] + groups * np.arange(size)).reshape(r, -1)
    if even < w:
        left_over = np.broadcast_to(np.arange(even, w), (r, w - even))
        members = np.concatenate([members, left_over], axis=1)
    some = scores[at, members]
    position = np.argpartition(some, some.shape[1] - count, axis=1)[:, some.shape[1] - count :]
    return some[at, position], members[at, position] + start


def _cosines(
    vectors: Float[np.ndarray, "n z"],
    queries: Float[np.ndarray, "r z"],
    rows: Int[np.ndarray, "r c"],
) -> Float[np.ndarray, "r c"]:
    # Row by row: a product of matrices may round equal vectors differently at different places.
    found = np.empty(rows.shape)
    for i, (query, own) in enumerate(zip(queries.astype(np.float64), rows, strict=True)):
        found[i] = np.einsum("cz,z->c", vectors[own].astype(np.float64), query)
    return found
