"""Row numbers: what may stand in square brackets, resolved to non-negative integers.

A slice, a tensor, an array, a list, a boolean mask or one integer. One integer gives one row and
keeps the axis, so that every consumer sees a batch.
"""

from typing import Any

import numpy as np
from torch import Tensor

from surefind.errors import InputError


def row_numbers(index: Any, n: int) -> np.ndarray:
    """Resolve an index into ``n`` rows.

    Args:
        index: Slice, integer, integers (negative ones count from the end) or boolean mask.
        n: Number of rows.

    Returns:
        The row numbers, int64, each in 0 … n - 1.

    Raises:
        InputError: If it is no index, or points outside.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(n), dtype=np.int64)
    if isinstance(index, Tensor):
        index = index.detach().cpu().numpy()
    rows = np.atleast_1d(np.asarray(index))
    if rows.ndim == 1 and rows.size == 0:
        return np.zeros(0, dtype=np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "biu":
        raise InputError(
            f"rows must be integers, a boolean mask or a slice; got {rows.dtype} "
            f"of shape {rows.shape}."
        )
    if rows.dtype.kind == "b":
        if len(rows) != n:
            raise InputError(f"a boolean mask needs one entry per row, {n}; got {len(rows)}.")
        return np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    if rows.min() < -n or rows.max() >= n:
        raise InputError(
            f"rows must lie in {-n} … {n - 1}, as there are {n}; "
            f"got {int(rows.min())} … {int(rows.max())}."
        )
    return np.where(rows < 0, rows + n, rows)
