"""Classes: two examples are the same if their labels are equal, and different otherwise.

Axes: ``n`` examples, ``k`` classes, ``z`` embedding, ``v`` summed vectors, ``r`` rows, ``c`` columns.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surefind.relations.scan import column_blocks, inside_sums, without_self


@dataclass(frozen=True, eq=False)
class Classes:
    """Same means: equal label.

    Attributes:
        labels: One integer per example.
    """

    labels: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Classes":
        """Give the same relation on a device."""
        return self if self.labels.device == device else Classes(self.labels.to(device))

    @cached_property
    def _members(self) -> tuple[Int[Tensor, " n"], Int[Tensor, " k"]]:
        _, index, counts = torch.unique(self.labels, return_inverse=True, return_counts=True)
        return index, counts

    @cached_property
    def n_same(self) -> int:
        """Number of ordered pairs with equal labels."""
        counts = self._members[1]
        return int((counts * (counts - 1)).sum())

    @cached_property
    def n_different(self) -> int:
        """Number of ordered pairs with unequal labels."""
        return len(self) * (len(self) - 1) - self.n_same

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Compare labels; self-pairs are neither."""
        different = self.labels[rows, None] != self.labels[None, columns]
        return without_self(~different, rows, columns), different

    def same_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Take the class's sum less the example itself: O(n v)."""
        index, totals = class_sums(self, vectors)
        return totals[index[rows]] - vectors[rows]

    def different_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Scan the similarities block by block: O(n² (z + v)) time, O(block) memory."""
        return inside_sums(self, vectors, embeddings, margin, rows)


def class_sums(
    classes: Classes, vectors: Float[Tensor, "n v"]
) -> tuple[Int[Tensor, " n"], Float[Tensor, "k v"]]:
    """Number the classes, and add up the vectors of each, in float64."""
    index, counts = classes._members
    totals = vectors.new_zeros(len(counts), vectors.shape[1], dtype=torch.float64)
    for part in column_blocks(len(classes)):
        totals.index_add_(0, index[part], vectors[part].double())
    return index, totals
