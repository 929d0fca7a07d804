"""The nearest rows by looking at every row, for many queries at once.

One product of matrices gives the cosines of all queries with a block of rows. Most of what is left is to
pick the best ones, so the block is laid out as a grid of ``s`` strips, and only the best of each column is
compared at first: the c highest of all lie in the c columns with the highest maxima, for a column outside
has a maximum that c others reach. So c·s cosines a query are looked at closely instead of all.

With 64 queries at once, 100,000 rows of 64 dimensions cost 0.3 ms of CPU a query, and 1.5 ms for one query
alone: the rows are read once. (`faiss.knn` 1.15 takes 1.5 ms a query either way: it reads the rows once
per query until there are thousands.) Cosines are in float32; `surefind.gallery.ranking` scores what is
found again.

Axes: ``q`` queries, ``c`` candidates, ``n`` rows, ``z`` embedding.
"""

import numpy as np
from jaxtyping import Float, Int

STRIPS = 64
"""Rows of the grid: many make the maxima few, few make the columns short."""

CELLS = 2**22
"""Cosines held at a time: enough to keep the product of matrices busy, few enough for any machine."""


def nearest_rows(
    vectors: Float[np.ndarray, "n z"], queries: Float[np.ndarray, "q z"], count: int
) -> Int[np.ndarray, "q c"]:
    """Find the rows of highest cosine by looking at all of them.

    Args:
        vectors: Unit vectors to look at.
        queries: Unit vectors, at least one.
        count: How many to find, at most n.

    Returns:
        Rows, nearest first.
    """
    size = max(CELLS // len(queries), STRIPS)
    best = np.empty((len(queries), 0), dtype=np.float32)
    rows = np.empty((len(queries), 0), dtype=np.int64)
    for start in range(0, len(vectors), size):
        cosines = queries @ vectors[start : start + size].T
        columns = _candidates(cosines, count)
        best = np.concatenate([best, np.take_along_axis(cosines, columns, axis=1)], axis=1)
        rows = np.concatenate([rows, columns + start], axis=1)
        if best.shape[1] > count:
            kept = _highest(best, count)
            best = np.take_along_axis(best, kept, axis=1)
            rows = np.take_along_axis(rows, kept, axis=1)
    order = np.argsort(-best, axis=1, kind="stable")
    return np.take_along_axis(rows, order, axis=1)


def _candidates(cosines: Float[np.ndarray, "q n"], count: int) -> Int[np.ndarray, "q _"]:
    """Return columns among which are the ``count`` highest of each row, or all if there are fewer."""
    n = cosines.shape[1]
    width = n // STRIPS
    if width <= count:
        return np.broadcast_to(np.arange(n), cosines.shape)
    inside = width * STRIPS
    maxima = cosines[:, :inside].reshape(-1, STRIPS, width).max(axis=1)
    chosen = _highest(maxima, count)
    grid = (chosen[:, None, :] + width * np.arange(STRIPS)[:, None]).reshape(len(cosines), -1)
    rest = np.broadcast_to(np.arange(inside, n), (len(cosines), n - inside))
    return np.concatenate([grid, rest], axis=1)


def _highest(values: Float[np.ndarray, "q m"], count: int) -> Int[np.ndarray, "q c"]:
    """Return where the ``count`` highest of each row are, in no order; there are more."""
    return np.argpartition(values, -count, axis=1)[:, -count:]
