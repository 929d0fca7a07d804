"""Read tensors that callers give: what came, what was expected, what to do.

As in `surefind.checks`, ``name`` is the argument's name: it stands in the message, and is the error's
``field``. What is right is seen on the tensor's own device; what is wrong is named there.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind import checks
from surefind.checks import UNIT_TOLERANCE, as_array, check_count, check_rows
from surefind.errors import DegenerateError, InputError


def as_tensor(name: str, value: Any) -> Tensor:
    """Return a tensor as it is, or an array as a tensor: its own memory, or a copy where it must be."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise InputError(
            f"{name} must be a tensor or a NumPy array; got {type(value).__name__}.", field=name
        )
    # PyTorch warns of memory that it must not write to, such as a file mapped read-only, and refuses
    # what runs backwards, such as images turned by [::-1].
    if not value.flags.writeable or any(stride < 0 for stride in value.strides):
        value = value.copy()
    return torch.from_numpy(value)


def check_matrix(name: str, value: Tensor, *, rows: int | None = None) -> None:
    """Require a finite floating-point matrix, with ``rows`` rows if that is given."""
    check_float(name, value)
    if value.ndim != 2:
        raise InputError(
            f"{name} must be a matrix, one row per example; got shape {tuple(value.shape)}.",
            field=name,
        )
    if 0 in value.shape:
        raise DegenerateError(f"{name} is empty: shape {tuple(value.shape)}.", field=name)
    if rows is not None:
        check_count(name, value, rows)
    check_finite(name, value)


def check_float(name: str, value: Tensor) -> None:
    """Require a tensor of float32 or float64."""
    # Callers without a type checker bring arrays, whose dtypes would pass for no dtype at all.
    if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.float64):
        tensor = isinstance(value, Tensor)
        raise InputError(
            f"{name} must be {'' if tensor else 'a tensor of '}float32 or float64; got "
            f"{value.dtype if tensor else type(value).__name__}.",
            field=name,
            hint="Convert it: torch.from_numpy(array), or tensor.float().",
        )


def check_finite(name: str, value: Tensor) -> None:
    """Refuse NaN and infinity, and name the rows that hold them."""
    # Any of them makes the sum non-finite: one pass without a temporary in the good case.
    if not torch.isfinite(value.detach().sum()):
        check_rows(name, as_array(value))


def check_unit_rows(name: str, value: Tensor) -> None:
    """Require rows of length one."""
    lengths = torch.linalg.vector_norm(value.detach(), dim=1)
    if not ((lengths - 1).abs() <= UNIT_TOLERANCE).all():
        checks.check_unit_rows(name, as_array(value))


def check_directed(name: str, value: Tensor) -> None:
    """Require rows that have a direction, that is, are not zero."""
    if not value.detach().any(dim=1).all():
        checks.check_directed(name, as_array(value))
