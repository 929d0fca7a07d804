"""What ``y`` may be: a label per row, a position per row, or judged pairs.

Labels are whole numbers, texts or booleans (n); positions are numbers (n, 2) in the units of the two radii;
a relation is taken as it is. Policy: a label that is no whole number is refused, because a regression
target as a class would make almost every pair different.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.errors import InputError
from surefind.relations import Positions, Relation, as_relation


def relation_of_targets(y: Any, n: int, *, same_within: float, different_beyond: float) -> Relation:
    """Resolve y to a relation.

    Args:
        y: Labels, positions, or a relation; a list, an array or a tensor.
        n: How many rows it is about.
        same_within: Distance up to which two positions are the same place.
        different_beyond: Distance beyond which they are different places.

    Returns:
        The relation.

    Raises:
        InputError: If y is missing, has another length, or is none of what it may be.
    """
    if y is None:
        raise InputError(
            "LaplaceHead requires y to be passed, but the target y is None. Give a label per row, "
            "positions (n, 2), or a PairList."
        )
    if not isinstance(y, Relation):
        y = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
    if len(y) != n:
        raise InputError(f"X has {n} rows and y {len(y)}; give one y for each row.")
    if isinstance(y, Relation):
        return y
    if y.ndim == 2 and y.shape[1] == 2 and y.dtype.kind in "fiu":
        return Positions(torch.from_numpy(y.astype(np.float64)), same_within, different_beyond)
    if y.ndim != 1:
        raise InputError(
            f"y must be one label per row, shape (n,), or positions (n, 2); got {y.shape}."
        )
    if y.dtype.kind == "f" and not bool((np.isfinite(y) & (y == np.round(y))).all()):
        raise InputError(
            "y holds fractions, NaN or infinity where labels are expected: whole numbers or texts. "
            "Positions must be (n, 2)."
        )
    return as_relation(y)
