"""Embeddings with a concentration: where an input lies on the sphere, and how surely.

Each row is a von Mises-Fisher distribution: a unit direction and a concentration κ (kappa). κ = 0
means that the direction says nothing, κ = ∞ that it is exact; 1/κ is the uncertainty.

A third number is about the input and not about its direction: the novelty p-value, the share of inputs
like those of the training that are at least as unusual. It is there only where novelty was fitted.

Axes: ``n`` examples, ``z`` embedding.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefind.checks import as_array, check_rows, check_unit_rows
from surefind.errors import InputError


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
        given = [x for x in (self.mean, self.kappa, self.novelty) if x is not None]
        tensors = sum(map(_is_tensor, given))
        if tensors + sum(isinstance(x, np.ndarray) for x in given) < len(given) or (
            0 < tensors < len(given)
        ):
            raise InputError(
                "mean, kappa and novelty must all be tensors or all NumPy arrays; got "
                f"{', '.join(type(x).__name__ for x in given)}.",
                hint="Convert them: torch.from_numpy(array), or tensor.numpy().",
            )
        mean = as_array(self.mean)
        if mean.ndim != 2 or mean.dtype.kind != "f":
            raise InputError(
                f"mean must be floats (n, z); got {mean.dtype} of shape {mean.shape}.", field="mean"
            )
        check_rows("mean", mean)
        check_unit_rows("mean", mean)
        self._check_column("kappa", self.kappa, math.inf)
        if self.novelty is not None:
            self._check_column("novelty", self.novelty, 1)

    def _check_column(self, name: str, column: Any, highest: float) -> None:
        values = as_array(column)
        fits = values.shape == (len(self.mean),)
        if not fits or not ((values >= 0) & (values <= highest)).all():
            what = "" if fits else f" of shape {values.shape}"
            raise InputError(
                f"{name} must be one number from 0 to {highest:g} per row of mean, {len(self.mean)}; got "
                f"others{what}, or NaN.",
                field=name,
            )

    @property
    def uncertainty(self) -> Any:
        """One over κ, (n): zero for an exact direction, infinite for an unknown one."""
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
        from surefind.tensor_checks import as_tensor  # the only one here that needs PyTorch

        return self._each(lambda column: as_tensor("embeddings", column))

    @classmethod
    def concatenate(cls, parts: Sequence["Embeddings"]) -> "Embeddings":
        """Join embeddings row by row.

        Args:
            parts: At least one; all tensors or all arrays, of one dimension.

        Returns:
            All rows, in order; with their novelty only if every part has it.
        """
        join: Any = np.concatenate
        if _is_tensor(parts[0].mean):
            import torch

            join = torch.cat
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


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach")


def _is_single(index: Any) -> bool:
    """Return whether an index picks one row: an integer of Python, NumPy or PyTorch."""
    if getattr(index, "ndim", 0) or isinstance(index, bool):
        return False
    try:
        operator.index(index)
    except TypeError:
        return False
    return True
