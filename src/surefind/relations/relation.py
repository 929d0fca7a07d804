"""What every relation can say of its pairs.

Axes as in `surefind.relations`.
"""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@runtime_checkable
class Relation(Protocol):
    """Which pairs of ``len(relation)`` examples are the same, and which are different.

    `n_same` and `n_different` count ordered pairs, so each unordered pair counts twice.
    """

    def __len__(self) -> int: ...

    def to(self, device: torch.device) -> "Relation":
        """Give the same relation on a device."""
        ...

    @property
    def n_same(self) -> int:
        """Number of ordered same pairs."""
        ...

    @property
    def n_different(self) -> int:
        """Number of ordered different pairs."""
        ...

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Say of each pair in a block whether it is same, and whether it is different."""
        ...

    def same_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Add up, for each row, the vectors of the examples that are the same as it."""
        ...

    def different_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Add up, for each row, the vectors of the different examples inside the margin."""
        ...
