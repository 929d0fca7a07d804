"""Vectors as the doors of a search take them: rows of a tensor or an array, checked.

Axes: ``n`` examples, ``d`` features, ``z`` embedding.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from surefind.errors import InputError
from surefind.validation import check_matrix, check_unit_rows


def as_rows(name: str, value: Any) -> Float[Tensor, "n d"]:
    """Read a finite matrix from a tensor or an array, and check it.

    Args:
        name: What to call it in the message.
        value: The matrix (n, d).

    Returns:
        A tensor without gradient history.

    Raises:
        InputError: If it is neither a tensor nor an array.
    """
    if isinstance(value, np.ndarray):
        # torch warns about arrays it could write to but should not.
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a tensor or a NumPy array; got {type(value).__name__}.")
    check_matrix(name, value)
    return value.detach()


def as_unit_rows(name: str, value: Any) -> Float[Tensor, "n z"]:
    """Read unit vectors from a tensor or an array, and check them.

    Args:
        name: What to call them in the message.
        value: The vectors (n, z).

    Returns:
        A tensor without gradient history.
    """
    rows = as_rows(name, value)
    check_unit_rows(name, rows)
    return rows


def unit64(rows: Float[Tensor, "n z"]) -> Float[Tensor, "n z"]:
    """Rescale near-unit rows to unit length in float64."""
    return torch.nn.functional.normalize(rows.double(), dim=1)
