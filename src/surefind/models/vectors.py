"""Vectors that another model made, as inputs of a linear head.

    h_i = [x_i / |x_i|, 1],    z_i = W h_i

The length of an embedding from another model rarely means anything, and the head's output is normalised
anyway; so rows are rescaled to unit length. The one carries the head's bias. Every door that takes vectors
prepares them here: `Vectors` reads a matrix block by block, `UnitRows` does the same as a backbone.

Policy: a zero row has no direction. It stays zero here; who learns leaves it out, and who embeds says that
nothing is known of it (κ = 0). float16 is read as float32.

Axes: ``n`` examples, ``d`` columns, ``b`` rows of a block, ``z`` outputs.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from surefind.models.encoder import Encoder, empty_head
from surefind.pairs.relations import blocks

BLOCK_ELEMENTS = 1 << 21
"""Numbers of a block: 8 MB in float32."""
UNIT_SPREAD = 1e-3
"""Features whose lengths differ from 1 by less than this were normalised."""


def unit_rows(vectors: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Rescale each row to unit length; a zero row stays zero."""
    # By its largest entry first: the squares of very large or small numbers leave the range.
    largest = vectors.abs().amax(1, keepdim=True)
    vectors = vectors / torch.where(largest > 0, largest, 1)
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1)


class UnitRows(nn.Module):
    """The backbone of vectors: they become directions."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Rescale each row to unit length."""
        return unit_rows(inputs)


@torch.no_grad()
def warn_of_unit_features(encoder: Encoder, inputs: Tensor) -> None:
    """Warn of a backbone that normalises its features, unless it is `UnitRows`, which means to.

    κ weighs the length of an output against its variance. Behind a normalisation and a head that is the
    identity all outputs are equally long, and what the true last layer knows of its inputs is lost: κ can
    then rank inputs backwards.

    Args:
        encoder: Backbone and head.
        inputs: A batch of training inputs.
    """
    if any(isinstance(module, UnitRows) for module in encoder.backbone.modules()):
        return
    lengths = torch.linalg.vector_norm(encoder.backbone(inputs).float(), dim=1)
    if len(lengths) > 1 and float((lengths - 1).abs().max()) < UNIT_SPREAD:
        warnings.warn(
            "the backbone gives features of length 1 for every input, so it ends in a normalisation: what "
            "their length says is lost, and κ can rank inputs backwards. Give the network's true last "
            "linear layer as the head, and what comes before it as the backbone; Encoder normalises after "
            "the head. For frozen vectors, which have no such layer, use surefind.LaplaceHead.",
            UserWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, eq=False)
class Vectors:
    """A finite matrix whose rows become features; no more than a block of it is ever held.

    Attributes:
        matrix: (n, d), an array in memory or memory-mapped; float16, float32 or float64.
        directions: Whether rows are rescaled to unit length; else they are features as they are.
    """

    matrix: Any
    directions: bool = True

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

    def read(self, rows: Any) -> Float[Tensor, "b d"]:
        """Read a slice, or an array of row numbers, as the rows are stored."""
        return torch.from_numpy(np.array(self.matrix[rows])).to(self.dtype)

    def features(self, rows: Any) -> Float[Tensor, "b features"]:
        """Read rows as features: with a one appended (b, d + 1)."""
        return with_ones(self.prepared(self.read(rows)))

    def prepared(self, rows: Float[Tensor, "b d"]) -> Float[Tensor, "b d"]:
        """Rescale rows to unit length, if these are directions."""
        return unit_rows(rows) if self.directions else rows

    def zero_rows(self) -> np.ndarray:
        """Return the numbers of the rows that are zero."""
        found = [rows.start + np.flatnonzero(~self.matrix[rows].any(1)) for rows in self.slices]
        return np.concatenate(found)

    def batches(self) -> Iterator[Float[Tensor, "b features"]]:
        """Read the features of all rows, block by block."""
        return (self.features(rows) for rows in self.slices)

    def outputs(self, weights: Float[Tensor, "z features"]) -> Float[Tensor, "n z"]:
        """Apply a head, its bias in the last column, to all rows; before normalisation."""
        outputs = weights.new_empty(len(self), len(weights))
        for rows in self.slices:
            torch.matmul(self.features(rows), weights.T, out=outputs[rows])
        return outputs


def with_ones(features: Float[Tensor, "n d"]) -> Float[Tensor, "n features"]:
    """Append the column of ones that carries a head's bias."""
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


def vector_encoder(vectors: Vectors) -> Encoder:
    """Build the encoder of vectors: unit rows, and a linear head with a bias that is the identity."""
    d = vectors.matrix.shape[1]
    head = empty_head(d, d, bias=True, like=torch.empty(0, dtype=vectors.dtype))
    with torch.no_grad():
        head.weight.copy_(torch.eye(d))
        head.bias.zero_()
    return Encoder(UnitRows(), head)
