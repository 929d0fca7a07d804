"""Relations: which pairs of examples are positive, which negative, and which neither.

A relation over ``n`` examples calls each pair positive (the two belong together), negative (they do not) or
neither. It comes from class labels, from positions with two radii (place recognition: positive within one,
negative beyond the other, neither between), or from a list of judged pairs. Self-pairs are neither.

Beside single blocks of pairs, a relation can add up vectors over an example's partners without ever
storing n × n: over the positive ones, and over the negative ones inside a margin, |u_i - u_j|² <= m.

Axes: ``n`` examples, ``z`` embedding, ``v`` summed vectors, ``k`` classes, ``r`` rows and ``c`` columns of
a block, ``m`` listed pairs.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surefind.checks import check_positive
from surefind.errors import DegenerateError, InputError
from surefind.tensor_checks import check_matrix

POSITIVE_RADIUS, NEGATIVE_RADIUS = 25.0, 50.0
"""Metres within which two positions are one place, and beyond which they are two: those of MSLS."""

BLOCK_ROWS, BLOCK_COLUMNS = 512, 4096
"""A block of similarities is 8 MB in float32: large enough for the matrix product, small for memory."""


def inside_margin(cosine: Tensor, margin: float) -> Tensor:
    """Return whether unit vectors of this cosine have a squared distance of at most the margin."""
    return cosine >= 1 - margin / 2


def blocks(span: slice, size: int) -> list[slice]:
    """Cut a span into consecutive slices of at most ``size``."""
    return [slice(i, min(i + size, span.stop)) for i in range(span.start, span.stop, size)]


def row_blocks(span: slice) -> list[slice]:
    """Cut rows into blocks."""
    return blocks(span, BLOCK_ROWS)


def column_blocks(n: int) -> list[slice]:
    """Cut all ``n`` columns into blocks."""
    return blocks(slice(0, n), BLOCK_COLUMNS)


def without_self(mask: Bool[Tensor, "r c"], rows: slice, columns: slice) -> Bool[Tensor, "r c"]:
    """Make the pairs of an example with itself false, in place."""
    first = max(rows.start, columns.start)
    own = torch.arange(first, max(first, min(rows.stop, columns.stop)), device=mask.device)
    mask[own - rows.start, own - columns.start] = False
    return mask


@runtime_checkable
class Relation(Protocol):
    """Which pairs of ``len(relation)`` examples are positive, and which are negative.

    `n_positive` and `n_negative` count ordered pairs, so each unordered pair counts twice.
    """

    def __len__(self) -> int: ...

    def to(self, device: torch.device) -> "Relation":
        """Return the relation on a device."""
        ...

    @property
    def n_positive(self) -> int:
        """Number of ordered positive pairs."""
        ...

    @property
    def n_negative(self) -> int:
        """Number of ordered negative pairs."""
        ...

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Return the masks of a block's positive pairs and of its negative pairs."""
        ...

    def positive_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Add up, for each row, the vectors of its positive partners."""
        ...

    def negative_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Add up, for each row, the vectors of its negative partners inside the margin."""
        ...


def inside_sums(
    relation: Relation,
    vectors: Float[Tensor, "n v"],
    embeddings: Float[Tensor, "n z"],
    margin: float,
    rows: slice,
) -> Float[Tensor, "r v"]:
    """Add up the vectors of negative partners inside the margin, never storing n × n."""
    sums = vectors.new_zeros(rows.stop - rows.start, vectors.shape[1], dtype=torch.float64)
    for r in row_blocks(rows):
        here = sums[r.start - rows.start : r.stop - rows.start]
        for c in column_blocks(len(relation)):
            repelling = relation.block(r, c)[1]
            repelling &= inside_margin(embeddings[r] @ embeddings[c].T, margin)
            here += repelling.to(vectors.dtype) @ vectors[c]
    return sums


@dataclass(frozen=True, eq=False)
class Classes:
    """Pairs of equal label are positive, all others negative.

    Attributes:
        labels: One integer per example.
    """

    labels: Int[Tensor, " n"]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Classes":
        """Return the relation on a device."""
        return self if self.labels.device == device else Classes(self.labels.to(device))

    @cached_property
    def _members(self) -> tuple[Int[Tensor, " n"], Int[Tensor, " k"]]:
        _, index, counts = torch.unique(self.labels, return_inverse=True, return_counts=True)
        return index, counts

    @cached_property
    def n_positive(self) -> int:
        """Number of ordered pairs with equal labels."""
        counts = self._members[1]
        return int((counts * (counts - 1)).sum())

    @cached_property
    def n_negative(self) -> int:
        """Number of ordered pairs with unequal labels."""
        return len(self) * (len(self) - 1) - self.n_positive

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Compare labels; self-pairs are neither."""
        negative = self.labels[rows, None] != self.labels[None, columns]
        return without_self(~negative, rows, columns), negative

    def positive_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Take the class's sum less the example itself: O(n v)."""
        index, totals = class_sums(self, vectors)
        return totals[index[rows]] - vectors[rows]

    def negative_sums(
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


Labels = Tensor | np.ndarray | list[Any] | Relation
"""What the doors take: a class per example, or a relation."""


def as_relation(labels: Labels) -> Relation:
    """Resolve what the doors take to a relation.

    Args:
        labels: A class per example (an integer tensor, or an array of any sortable values), or a
            relation, which comes back as it is.

    Returns:
        The relation.

    Raises:
        InputError: If the labels are not one integer per example.
        DegenerateError: If there are fewer than two examples.
    """
    if isinstance(labels, list):
        labels = np.asarray(labels)
    if isinstance(labels, np.ndarray):
        labels = torch.from_numpy(np.unique(labels, return_inverse=True)[1].reshape(labels.shape))
    if isinstance(labels, Tensor):
        if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
            raise InputError(
                f"labels must be one integer per example, or a relation (Classes, Positions, "
                f"PairList); got {labels.dtype} of shape {tuple(labels.shape)}.",
                field="labels",
            )
        labels = Classes(labels)
    if len(labels) < 2:
        raise DegenerateError(f"a pair needs two examples; got {len(labels)}.", field="labels")
    return labels


@dataclass(frozen=True, eq=False)
class Positions:
    """Near pairs are positive, far ones negative, and those between the two radii neither.

    Attributes:
        coordinates: Metric coordinates, for example UTM easting and northing.
        positive_radius: Pairs at most this far apart are positive.
        negative_radius: Pairs farther apart than this are negative.
    """

    coordinates: Float[Tensor, "n axes"]
    positive_radius: float = POSITIVE_RADIUS
    negative_radius: float = NEGATIVE_RADIUS

    def __post_init__(self) -> None:
        """Check the radii.

        Raises:
            InputError: If a radius is not positive or they are in the wrong order.
        """
        check_matrix("coordinates", self.coordinates)
        check_positive("positive_radius", self.positive_radius)
        if not self.positive_radius <= self.negative_radius:
            raise InputError(
                f"negative_radius ({self.negative_radius}) must not be smaller than "
                f"positive_radius ({self.positive_radius}).",
                field="negative_radius",
            )

    def __len__(self) -> int:
        return len(self.coordinates)

    def to(self, device: torch.device) -> "Positions":
        """Return the relation on a device."""
        if self.coordinates.device == device:
            return self
        return replace(self, coordinates=self.coordinates.to(device))

    @cached_property
    def _counts(self) -> tuple[int, int]:
        positive = negative = 0
        for rows in row_blocks(slice(0, len(self))):
            for columns in column_blocks(len(self)):
                p, n = self.block(rows, columns)
                positive, negative = positive + int(p.sum()), negative + int(n.sum())
        return positive, negative

    @property
    def n_positive(self) -> int:
        """Number of ordered pairs within the inner radius."""
        return self._counts[0]

    @property
    def n_negative(self) -> int:
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
        positive = without_self(distance <= self.positive_radius, rows, columns)
        return positive, distance > self.negative_radius

    def positive_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Scan the distances block by block."""
        total = []
        for r in row_blocks(rows):
            parts = (
                (self.block(r, c)[0].to(vectors.dtype) @ vectors[c]).double()
                for c in column_blocks(len(self))
            )
            total.append(sum(parts, vectors.new_zeros((), dtype=torch.float64)))
        return torch.cat(total)

    def negative_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Scan distances and similarities block by block."""
        return inside_sums(self, vectors, embeddings, margin, rows)


@dataclass(frozen=True, eq=False)
class PairList:
    """Listed pairs that somebody judged positive or negative; all other pairs are neither.

    Pairs are unordered: (i, j) stands for (j, i) too and may be listed once only.

    Attributes:
        left: Index of each pair's first example (m).
        right: Index of its second example (m).
        positive: Whether the two belong together (m), boolean.
        n: Number of examples that the indices point into.
    """

    left: Tensor
    right: Tensor
    positive: Tensor
    n: int

    def __post_init__(self) -> None:
        """Check the indices.

        Raises:
            InputError: If the list is not a set of distinct pairs of distinct examples.
        """
        kinds = [
            getattr(x, "dtype", type(x).__name__) for x in (self.left, self.right, self.positive)
        ]
        lengths = {len(x) for x in (self.left, self.right, self.positive)}
        if kinds != [torch.int64, torch.int64, torch.bool] or len(lengths) > 1:
            raise InputError(
                "left and right must be int64 tensors and positive a boolean one, with one entry per pair; "
                f"got {', '.join(map(str, kinds))} of {sorted(lengths)} entries."
            )
        if len(self.left) == 0:
            return
        low = int(torch.minimum(self.left, self.right).min())
        high = int(torch.maximum(self.left, self.right).max())
        if low < 0 or high >= self.n:
            raise InputError(f"pair indices must lie in 0 … {self.n - 1}; got {low} … {high}.")
        key = torch.minimum(self.left, self.right) * self.n + torch.maximum(self.left, self.right)
        if (self.left == self.right).any() or len(torch.unique(key)) < len(key):
            raise InputError(
                "pairs must be distinct, of two examples each: drop the pairs (i, i), and list (i, j) or "
                "(j, i), which are the same pair, once."
            )

    def __len__(self) -> int:
        return self.n

    def to(self, device: torch.device) -> "PairList":
        """Return the relation on a device."""
        if self.left.device == device:
            return self
        left, right, positive = (x.to(device) for x in (self.left, self.right, self.positive))
        return PairList(left, right, positive, self.n)

    @property
    def n_positive(self) -> int:
        """Number of ordered pairs judged positive."""
        return 2 * int(self.positive.sum())

    @property
    def n_negative(self) -> int:
        """Number of ordered pairs judged negative."""
        return 2 * int((~self.positive).sum())

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Look the listed pairs up."""
        r0, r1, _ = rows.indices(self.n)
        c0, c1, _ = columns.indices(self.n)
        judged = self.left.new_zeros(r1 - r0, c1 - c0, dtype=torch.int8)
        for i, j in ((self.left, self.right), (self.right, self.left)):
            here = (i >= r0) & (i < r1) & (j >= c0) & (j < c1)
            judged[i[here] - r0, j[here] - c0] = torch.where(self.positive[here], 1, -1).to(
                torch.int8
            )
        return judged > 0, judged < 0

    def positive_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Add over the list: O(m v)."""
        return self._listed_sums(vectors, self.positive, rows)

    def negative_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Add over the list: O(m (v + z))."""
        cosine = (embeddings[self.left] * embeddings[self.right]).sum(1)
        return self._listed_sums(vectors, ~self.positive & inside_margin(cosine, margin), rows)

    def _listed_sums(
        self, vectors: Float[Tensor, "n v"], chosen: Bool[Tensor, " m"], rows: slice
    ) -> Float[Tensor, "r v"]:
        left, right = self.left[chosen], self.right[chosen]
        total = torch.zeros_like(vectors, dtype=torch.float64)
        total.index_add_(0, left, vectors[right].double())
        total.index_add_(0, right, vectors[left].double())
        return total[rows]
