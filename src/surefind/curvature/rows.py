"""Rows of a matrix as features of a linear head, a block at a time.

    h_i = [x_i / |x_i|, 1]

The length of an embedding from another model rarely means anything, and the head's output is normalised
anyway; so rows are rescaled to unit length. The one carries the head's bias. The matrix itself may be a
memory-mapped file: no more than a block of it is ever held.

Policy: a zero row has no direction. It stays zero here; who learns leaves it out, and who embeds says that
nothing is known of it (κ = 0). float16 is read as float32.

Axes: ``n`` examples, ``d`` columns, ``b`` rows of a block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from surefind.pairs.blocks import blocks

BLOCK_ELEMENTS = 1 << 21
"""Numbers of a block: 8 MB in float32."""


@dataclass(frozen=True, eq=False)
class Source:
    """A finite matrix whose rows become features.

    Attributes:
        matrix: (n, d), an array in memory or memory-mapped; float16, float32 or float64.
    """

    matrix: Any

    def __len__(self) -> int:
        return len(self.matrix)

    @property
    def dtype(self) -> torch.dtype:
        """What features are computed in."""
        return torch.float64 if self.matrix.dtype == np.float64 else torch.float32

    @property
    def slices(self) -> list[slice]:
        """The blocks of rows, in order."""
        return blocks(slice(0, len(self)), max(1, BLOCK_ELEMENTS // self.matrix.shape[1]))

    def features(self, rows: Any) -> Float[Tensor, "b features"]:
        """Read rows as features.

        Args:
            rows: A slice or an array of row numbers.

        Returns:
            Unit rows with a one appended (b, d + 1).
        """
        x = torch.from_numpy(np.array(self.matrix[rows])).to(self.dtype)
        # By its largest entry first: the squares of very large or small numbers leave the range.
        largest = x.abs().amax(1, keepdim=True)
        x /= torch.where(largest > 0, largest, 1)
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        x /= torch.where(length > 0, length, 1)
        return torch.cat([x, x.new_ones(len(x), 1)], dim=1)

    def zero_rows(self) -> np.ndarray:
        """Give the numbers of the rows that are zero."""
        found = [rows.start + np.flatnonzero(~self.matrix[rows].any(1)) for rows in self.slices]
        return np.concatenate(found)

    def batches(self) -> Iterator[Float[Tensor, "b features"]]:
        """Read all rows, block by block.

        Yields:
            Features of consecutive rows.
        """
        for rows in self.slices:
            yield self.features(rows)

    def outputs(self, weights: Float[Tensor, "z features"]) -> Float[Tensor, "n z"]:
        """Apply a head to all rows.

        Args:
            weights: The head, its bias in the last column.

        Returns:
            Outputs (n, z) before normalisation.
        """
        outputs = weights.new_empty(len(self), len(weights))
        for rows in self.slices:
            torch.matmul(self.features(rows), weights.T, out=outputs[rows])
        return outputs
