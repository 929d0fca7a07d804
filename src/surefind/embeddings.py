"""Embeddings with a concentration: where an input lies on the sphere, and how surely.

Each row is a von Mises-Fisher distribution: a unit direction and a concentration κ (kappa). κ = 0
means that the direction says nothing, κ = ∞ that it is exact; 1/κ is the uncertainty.

Axes: ``n`` examples, ``z`` embedding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.errors import InputError
from surefind.validation import check_matrix, check_unit_rows

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """``n`` unit directions, each with its concentration.

    Attributes:
        mean: Unit directions (n, z), a tensor or an array.
        kappa: Concentrations (n), of the same kind; not negative, possibly infinite.
        novelty: Calibrated p-values (n) in (0, 1], of the same kind: small for an input unlike the
            training data. None where nothing was fitted.

    Raises:
        InputError: If the two do not fit together, or hold what no distribution has.
    """

    mean: Any
    kappa: Any
    novelty: Any = None

    def __post_init__(self) -> None:
        if isinstance(self.mean, Tensor) != isinstance(self.kappa, Tensor):
            # What is neither a tensor nor an array is refused as such.
            as_tensor("mean", self.mean), as_tensor("kappa", self.kappa)
            raise InputError(
                f"mean and kappa must both be tensors or both NumPy arrays; got "
                f"{type(self.mean).__name__} and {type(self.kappa).__name__}. "
                "Convert one: torch.from_numpy(array), or tensor.numpy()."
            )
        mean, kappa = as_tensor("mean", self.mean), as_tensor("kappa", self.kappa)
        if mean.dtype in (torch.float16, torch.bfloat16):
            mean = mean.float()
        if mean.ndim == 2 and len(mean):
            check_matrix("mean", mean)
            check_unit_rows("mean", mean)
        elif mean.ndim != 2:
            raise InputError(f"mean must be (n, z); got shape {tuple(mean.shape)}.")
        if kappa.shape != mean.shape[:1]:
            raise InputError(
                f"kappa must have one value per row of mean, shape {tuple(mean.shape[:1])}; "
                f"got {tuple(kappa.shape)}."
            )
        if not bool((kappa >= 0).all()):
            raise InputError("kappa must not be negative or NaN; 0 means: direction unknown.")

    @property
    def uncertainty(self) -> Any:
        """One over κ, (n): zero for an exact direction, infinite for an unknown one."""
        if isinstance(self.kappa, Tensor):
            return 1 / self.kappa
        with np.errstate(divide="ignore"):
            return 1 / self.kappa

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> "Embeddings":
        if _is_single(index):
            # A single row stays a batch of one, so that every consumer sees the same axes.
            index = range(len(self))[int(index)]
            index = slice(index, index + 1)
        novelty = None if self.novelty is None else self.novelty[index]
        return Embeddings(self.mean[index], self.kappa[index], novelty)

    def __iter__(self) -> Iterator["Embeddings"]:
        return (self[i] for i in range(len(self)))

    def numpy(self) -> "Embeddings":
        """Return the same embeddings as NumPy arrays."""
        if isinstance(self.mean, np.ndarray):
            return self
        novelty = None if self.novelty is None else self.novelty.detach().cpu().numpy()
        return Embeddings(
            self.mean.detach().cpu().numpy(), self.kappa.detach().cpu().numpy(), novelty
        )

    def tensors(self) -> "Embeddings":
        """Return the same embeddings as tensors."""
        novelty = None if self.novelty is None else as_tensor("novelty", self.novelty)
        return Embeddings(as_tensor("mean", self.mean), as_tensor("kappa", self.kappa), novelty)


def kappa_to_json(kappa: float) -> float | None:
    """Return κ as JSON can hold it: null where it is infinite."""
    return None if math.isinf(kappa) else float(kappa)


def kappa_from_json(kappa: float | None) -> float:
    """Return κ from JSON, where null means infinite."""
    return math.inf if kappa is None else float(kappa)


def as_tensor(name: str, value: Any) -> Tensor:
    """Return a tensor as it is, or an array as a tensor: its own memory, a copy if that is read-only."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        # PyTorch warns of memory that it must not write to, such as a file mapped read-only.
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    raise InputError(f"{name} must be a tensor or a NumPy array; got {type(value).__name__}.")


def _is_single(index: Any) -> bool:
    """Return whether an index picks one row: an integer of Python, NumPy or PyTorch."""
    if isinstance(index, Tensor | np.ndarray):
        integer = (
            index.dtype in _INTEGERS if isinstance(index, Tensor) else index.dtype.kind in "iu"
        )
        return index.ndim == 0 and integer
    return isinstance(index, Integral) and not isinstance(index, bool)
