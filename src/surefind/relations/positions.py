"""Positions: examples taken near each other are the same, far from each other different.

Axes: ``n`` examples, ``z`` embedding, ``v`` summed vectors, ``r`` rows, ``c`` columns.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from surefind.errors import InputError
from surefind.relations.scan import column_blocks, inside_sums, row_blocks, without_self
from surefind.validation import check_matrix, check_positive


@dataclass(frozen=True, eq=False)
class Positions:
    """Same means near, different means far, and between the two radii a pair is neither.

    Attributes:
        coordinates: Metric coordinates, for example UTM easting and northing.
        same_within: Pairs at most this far apart are the same.
        different_beyond: Pairs farther apart than this are different.
    """

    coordinates: Float[Tensor, "n axes"]
    same_within: float
    different_beyond: float

    def __post_init__(self) -> None:
        """Check the radii.

        Raises:
            InputError: If a radius is not positive or they are in the wrong order.
        """
        check_matrix("coordinates", self.coordinates)
        check_positive("same_within", self.same_within)
        if not self.same_within <= self.different_beyond:
            raise InputError(
                f"different_beyond ({self.different_beyond}) must not be smaller than "
                f"same_within ({self.same_within})."
            )

    def __len__(self) -> int:
        return len(self.coordinates)

    def to(self, device: torch.device) -> "Positions":
        """Give the same relation on a device."""
        if self.coordinates.device == device:
            return self
        return replace(self, coordinates=self.coordinates.to(device))

    @cached_property
    def _counts(self) -> tuple[int, int]:
        same = different = 0
        everything = slice(0, len(self))
        for rows in row_blocks(everything):
            for columns in column_blocks(len(self)):
                s, d = self.block(rows, columns)
                same, different = same + int(s.sum()), different + int(d.sum())
        return same, different

    @property
    def n_same(self) -> int:
        """Number of ordered pairs within the inner radius."""
        return self._counts[0]

    @property
    def n_different(self) -> int:
        """Number of ordered pairs beyond the outer radius."""
        return self._counts[1]

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Compare distances; self-pairs are neither."""
        # Differences first: UTM coordinates are millions, and a product of them loses the metres.
        distance = torch.cdist(
            self.coordinates[rows],
            self.coordinates[columns],
            compute_mode="donot_use_mm_for_euclid_dist",
        )
        same = without_self(distance <= self.same_within, rows, columns)
        return same, distance > self.different_beyond

    def same_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Scan the distances block by block."""
        total = []
        for r in row_blocks(rows):
            parts = (
                (self.block(r, c)[0].to(vectors.dtype) @ vectors[c]).double()
                for c in column_blocks(len(self))
            )
            total.append(sum(parts, vectors.new_zeros((), dtype=torch.float64)))
        return torch.cat(total)

    def different_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Scan distances and similarities block by block."""
        return inside_sums(self, vectors, embeddings, margin, rows)
