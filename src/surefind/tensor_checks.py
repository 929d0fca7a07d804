"""Checks of tensors at the doors: what came, what was expected, what to do.

As in `surefind.checks`, ``name`` is the argument's name: it stands in the message, and is the error's
``field``.
"""

import torch
from torch import Tensor

from surefind.errors import DegenerateError, InputError

UNIT_TOLERANCE = 1e-3
"""How far a unit vector's length may be from one: room for float16 storage, none for raw vectors."""


def check_matrix(name: str, value: Tensor, *, rows: int | None = None) -> None:
    """Require a finite floating-point matrix, with ``rows`` rows if that is given."""
    check_float(name, value)
    if value.ndim != 2:
        raise InputError(
            f"{name} must be a matrix, one row per example; got shape {tuple(value.shape)}.",
            field=name,
        )
    if 0 in value.shape:
        raise DegenerateError(
            f"{name} is empty: shape {tuple(value.shape)}.",
            field=name,
            hint="Give at least one example.",
        )
    if rows is not None and len(value) != rows:
        raise InputError(
            f"{name} has {len(value)} rows where the other arguments have {rows}; "
            "give one row per example everywhere.",
            field=name,
        )
    check_finite(name, value)


def check_float(name: str, value: Tensor) -> None:
    """Require a tensor of float32 or float64."""
    # Callers without a type checker bring arrays, whose dtypes would pass for no dtype at all.
    if not isinstance(value, Tensor):
        raise InputError(
            f"{name} must be a tensor; got {type(value).__name__}.",
            field=name,
            hint="Convert a NumPy array with torch.from_numpy(x).",
        )
    if value.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{name} must be float32 or float64; got {value.dtype}.",
            field=name,
            hint="Convert it to float32.",
        )


def check_finite(name: str, value: Tensor) -> None:
    """Refuse NaN and infinity, and say where the first one is."""
    # Any NaN or infinity makes the sum non-finite: one cheap pass without a temporary in the good
    # case. A finite tensor whose sum overflows falls through to the exact check.
    if torch.isfinite(value.detach().sum()):
        return
    bad = ~torch.isfinite(value)
    if bad.any():
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise InputError(
            f"{name} holds {int(bad.sum())} NaN or infinite values, the first at {first}.",
            field=name,
            hint="Drop or repair those examples first.",
        )


def check_unit_rows(name: str, value: Tensor) -> None:
    """Require rows of length one."""
    off = (torch.linalg.vector_norm(value.detach(), dim=1) - 1).abs()
    worst = int(off.argmax())
    if off[worst] > UNIT_TOLERANCE:
        length = float(torch.linalg.vector_norm(value[worst].detach()))
        raise InputError(
            f"{name} must have rows of length 1; row {worst} has length {length:.4g}.",
            field=name,
            hint="Rescale its rows to length 1.",
        )


def check_directed(name: str, value: Tensor) -> None:
    """Require rows that have a direction, that is, are not zero."""
    zero = torch.linalg.vector_norm(value.detach(), dim=1) == 0
    if zero.any():
        raise DegenerateError(
            f"{name} has {int(zero.sum())} zero rows, the first at {int(zero.nonzero()[0])}: "
            "a zero vector has no direction on the sphere.",
            field=name,
            hint="Drop those examples.",
        )
