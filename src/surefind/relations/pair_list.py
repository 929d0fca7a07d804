"""A list of pairs that somebody judged.

Axes: ``n`` examples, ``m`` listed pairs, ``z`` embedding, ``v`` summed vectors, ``r`` rows, ``c`` columns.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from surefind.errors import InputError
from surefind.relations.scan import inside_margin


@dataclass(frozen=True, eq=False)
class PairList:
    """Same and different as somebody said of each listed pair; all other pairs are neither.

    Pairs are unordered: (i, j) stands for (j, i) too and may be listed once only.

    Attributes:
        left: Index of each pair's first example (m).
        right: Index of its second example (m).
        same: Whether the two belong together (m), boolean.
        n: Number of examples that the indices point into.
    """

    left: Tensor
    right: Tensor
    same: Tensor
    n: int

    def __post_init__(self) -> None:
        """Check the indices.

        Raises:
            InputError: If the list is not a set of distinct pairs of distinct examples.
        """
        kinds = [getattr(x, "dtype", type(x).__name__) for x in (self.left, self.right, self.same)]
        if kinds != [torch.int64, torch.int64, torch.bool]:
            raise InputError(
                "left and right must be int64 tensors and same a boolean one; got "
                + ", ".join(map(str, kinds))
                + "."
            )
        if not len(self.left) == len(self.right) == len(self.same):
            raise InputError(
                f"left, right and same must have one entry per pair; got {len(self.left)}, "
                f"{len(self.right)} and {len(self.same)}."
            )
        if len(self.left) == 0:
            return
        low = int(torch.minimum(self.left, self.right).min())
        high = int(torch.maximum(self.left, self.right).max())
        if low < 0 or high >= self.n:
            raise InputError(f"pair indices must lie in 0 … {self.n - 1}; got {low} … {high}.")
        if (self.left == self.right).any():
            raise InputError("an example cannot be paired with itself; drop the pairs (i, i).")
        key = torch.minimum(self.left, self.right) * self.n + torch.maximum(self.left, self.right)
        if len(torch.unique(key)) < len(key):
            raise InputError("a pair is listed twice; (i, j) and (j, i) are the same pair.")

    def __len__(self) -> int:
        return self.n

    def to(self, device: torch.device) -> "PairList":
        """Give the same relation on a device."""
        if self.left.device == device:
            return self
        left, right, same = (x.to(device) for x in (self.left, self.right, self.same))
        return PairList(left, right, same, self.n)

    @property
    def n_same(self) -> int:
        """Number of ordered pairs said to be the same."""
        return 2 * int(self.same.sum())

    @property
    def n_different(self) -> int:
        """Number of ordered pairs said to be different."""
        return 2 * int((~self.same).sum())

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Look the listed pairs up."""
        r0, r1, _ = rows.indices(self.n)
        c0, c1, _ = columns.indices(self.n)
        said = self.left.new_zeros(r1 - r0, c1 - c0, dtype=torch.int8)
        for i, j in ((self.left, self.right), (self.right, self.left)):
            here = (i >= r0) & (i < r1) & (j >= c0) & (j < c1)
            said[i[here] - r0, j[here] - c0] = torch.where(self.same[here], 1, -1).to(torch.int8)
        return said > 0, said < 0

    def same_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Add over the list: O(m v)."""
        return self._listed_sums(vectors, self.same, rows)

    def different_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Add over the list: O(m (v + z))."""
        cosine = (embeddings[self.left] * embeddings[self.right]).sum(1)
        return self._listed_sums(vectors, ~self.same & inside_margin(cosine, margin), rows)

    def _listed_sums(
        self, vectors: Float[Tensor, "n v"], chosen: Bool[Tensor, " m"], rows: slice
    ) -> Float[Tensor, "r v"]:
        left, right = self.left[chosen], self.right[chosen]
        total = torch.zeros_like(vectors, dtype=torch.float64)
        total.index_add_(0, left, vectors[right].double())
        total.index_add_(0, right, vectors[left].double())
        return total[rows]
