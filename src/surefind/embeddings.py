"""Embeddings with a concentration: where an input lies on the sphere, and how surely.

Each row is a von Mises-Fisher distribution: a unit direction and a concentration κ (kappa). κ = 0
means that the direction says nothing, κ = ∞ that it is exact; 1/κ is the uncertainty.

A third number is about the input and not about its direction: the novelty p-value, the share of inputs
like those of the training that are at least as unusual. It is there only where novelty was fitted.

Axes: ``n`` examples, ``z`` embedding.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.errors import InputError
from surefind.tensor_checks import UNIT_TOLERANCE, check_matrix, check_unit_rows

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True, eq=False)
class Embeddings:
    """``n`` unit directions, each with its concentration.

    Attributes:
        mean: Unit directions (n, z), a tensor or an array.
        kappa: Concentrations (n), of the same kind; not negative, possibly infinite.
        novelty: Calibrated p-values (n), of the same kind, from 0 to 1: small for an input unlike the
            training data. None where nothing was fitted that would know.

    Raises:
        InputError: If the two do not fit together, or hold what no distribution has.
    """

    mean: Any
    kappa: Any
    novelty: Any = None

    def __post_init__(self) -> None:
        if not self._plain_and_right():
            self._check()

    def _plain_and_right(self) -> bool:
        """Return whether these are arrays with nothing wrong; tensors, and faults, take the longer way."""
        columns = [self.kappa] if self.novelty is None else [self.kappa, self.novelty]
        if not (_is_real(self.mean, 2) and all(_is_real(column, 1) for column in columns)):
            return False
        if self.mean.dtype.itemsize < 4 or any(len(x) != len(self.mean) for x in columns):
            return False
        # False for NaN too; a length that is finite has finite parts.
        lengths = np.sqrt(np.einsum("nz,nz->n", self.mean, self.mean))
        return bool(
            (abs(lengths - 1) < UNIT_TOLERANCE).all()
            and (self.kappa >= 0).all()
            and (self.novelty is None or ((self.novelty >= 0) & (self.novelty <= 1)).all())
        )

    def _check(self) -> None:
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
        if self.novelty is not None:
            self._check_novelty(as_tensor("novelty", self.novelty))

    def _check_novelty(self, novelty: Tensor) -> None:
        if isinstance(self.mean, Tensor) != isinstance(self.novelty, Tensor):
            raise InputError(
                f"novelty must be of the same kind as mean, {type(self.mean).__name__}; got "
                f"{type(self.novelty).__name__}.",
                field="novelty",
                hint="Convert it: torch.from_numpy(array), or tensor.numpy().",
            )
        if novelty.shape != self.kappa.shape:
            raise InputError(
                f"novelty must have one value per row of mean, shape {tuple(self.kappa.shape)}; got "
                f"{tuple(novelty.shape)}.",
                field="novelty",
            )
        if not bool(((novelty >= 0) & (novelty <= 1)).all()):
            raise InputError(
                "novelty must be p-values from 0 to 1, without NaN.",
                field="novelty",
                hint="Leave it out for embeddings of which none is known.",
            )

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
        return self._each(lambda column: column[index])

    def __iter__(self) -> Iterator["Embeddings"]:
        return (self[i] for i in range(len(self)))

    def numpy(self) -> "Embeddings":
        """Return the same embeddings as NumPy arrays."""
        if isinstance(self.mean, np.ndarray):
            return self
        return self._each(lambda column: column.detach().cpu().numpy())

    def tensors(self) -> "Embeddings":
        """Return the same embeddings as tensors."""
        return self._each(lambda column: as_tensor("embeddings", column))

    @classmethod
    def concatenate(cls, parts: Sequence["Embeddings"]) -> "Embeddings":
        """Join embeddings row by row.

        Args:
            parts: At least one; all tensors or all arrays, of one dimension.

        Returns:
            All rows, in order; with their novelty only if every part has it.
        """
        join: Any = torch.cat if isinstance(parts[0].mean, Tensor) else np.concatenate
        complete = all(part.novelty is not None for part in parts)
        return cls(
            join([part.mean for part in parts]),
            join([part.kappa for part in parts]),
            join([part.novelty for part in parts]) if complete else None,
        )

    def _each(self, change: Callable[[Any], Any]) -> "Embeddings":
        novelty = None if self.novelty is None else change(self.novelty)
        return Embeddings(change(self.mean), change(self.kappa), novelty)


def kappa_to_json(kappa: float) -> float | None:
    """Return κ as JSON can hold it: null where it is infinite."""
    return None if math.isinf(kappa) else float(kappa)


def kappa_from_json(kappa: float | None) -> float:
    """Return κ from JSON, where null means infinite."""
    return math.inf if kappa is None else float(kappa)


def novelty_to_json(novelty: float) -> float | None:
    """Return a p-value as JSON can hold it: null where it is NaN, that is, not known."""
    return None if math.isnan(novelty) else float(novelty)


def novelty_from_json(novelty: float | None) -> float:
    """Return a p-value from JSON, where null means not known: NaN."""
    return math.nan if novelty is None else float(novelty)


def as_tensor(name: str, value: Any) -> Tensor:
    """Return a tensor as it is, or an array as a tensor: its own memory, or a copy where it must be."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        # PyTorch warns of memory that it must not write to, such as a file mapped read-only, and refuses
        # what runs backwards, such as images turned by [::-1].
        if not value.flags.writeable or any(stride < 0 for stride in value.strides):
            value = value.copy()
        return torch.from_numpy(value)
    raise InputError(f"{name} must be a tensor or a NumPy array; got {type(value).__name__}.")


def _is_real(value: Any, ndim: int) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.ndim == ndim


def _is_single(index: Any) -> bool:
    """Return whether an index picks one row: an integer of Python, NumPy or PyTorch."""
    if isinstance(index, Tensor | np.ndarray):
        integer = (
            index.dtype in _INTEGERS if isinstance(index, Tensor) else index.dtype.kind in "iu"
        )
        return index.ndim == 0 and integer
    return isinstance(index, Integral) and not isinstance(index, bool)
