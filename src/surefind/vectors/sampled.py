"""All same pairs, and a random share of the different ones, with the error that this leaves.

For a million examples even a pruned scan of all pairs takes long. Same pairs are exact through class sums,
O(n z). For different pairs, a random set S of columns stands for all n:

    Σ_j∈different [inside] y u_j   ≈   n/|S| Σ_j∈S,different [inside] y u_j

unbiased for every row, so the curvature, which is linear in these sums, is unbiased too. S is split into
``GROUPS`` random groups; each gives its own estimate, and their scatter the standard error of each entry,

    error² = (1 - |S|/n) · variance of the groups' estimates / GROUPS

(the first factor because columns are drawn without replacement: with all columns it is exact). Two
passes over the rows, O(n |S| z) multiply-adds, O(|S| z + classes z + block) memory.

What is not guaranteed: where no sampled pair is inside the margin, the stated error is 0, but rare pairs
may have been missed; an error from few pairs is itself uncertain.

Axes: ``n`` examples, ``d`` features, ``z`` outputs, ``b`` rows of a block, ``c`` columns of a group.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.curvature.dataset import check_informative
from surefind.curvature.outputs import Distance, output_hessians
from surefind.errors import DegenerateError
from surefind.pairs import pair_weights
from surefind.relations import Classes, inside_margin
from surefind.validation import check_directed
from surefind.vectors.candidates import entries_above
from surefind.vectors.source import Source

GROUPS = 8
"""Estimates whose scatter is the error; seven degrees of freedom tell it to about a quarter."""

DENSE = 0.02
"""Share of a block from which a masked product is faster than adding pair by pair."""


@dataclass(frozen=True, eq=False)
class SampledCurvature:
    """A curvature and its standard error.

    Attributes:
        curvature: An unbiased estimate (z, d) of the curvature over every pair.
        error: The standard error of each entry (z, d).
    """

    curvature: Float[Tensor, "z d"]
    error: Float[Tensor, "z d"]

    @property
    def relative_error(self) -> float:
        """Length of the error over length of the curvature, both as vectors of all entries."""
        return float(self.error.norm() / self.curvature.norm())


def sampled_curvature(
    source: Source,
    weights: Float[Tensor, "z d"],
    classes: Classes,
    *,
    distance: Distance,
    margin: float,
    columns: int,
    generator: torch.Generator,
) -> SampledCurvature:
    """Estimate the head's "fixed" curvature over every pair of a labelled set.

    Args:
        source: The features, read twice.
        weights: The head.
        classes: A class per row.
        distance: "euclidean" or "arccos".
        margin: Squared distance up to which different pairs repel.
        columns: How many columns stand for all; at most n are used.
        generator: Draws them.

    Returns:
        The estimate with its error.

    Raises:
        DegenerateError: If there are fewer columns, or rows, than groups.
    """
    check_informative(classes)
    n = len(source)
    columns = min(columns, n)
    if columns < 2 * GROUPS:
        raise DegenerateError(
            f"a sampled scan needs at least {2 * GROUPS} columns to know its error; "
            f'got {columns}. Take scan_columns="all".'
        )
    labels = torch.unique(classes.labels, return_inverse=True)[1].to(torch.int32)
    totals = _class_sums(source, weights, labels)
    drawn = torch.randperm(n, generator=generator)[:columns]
    groups = [_Group.read(source, weights, labels, part) for part in drawn.chunk(GROUPS)]
    attract, repel = pair_weights(classes, 0.5)
    same = weights.new_zeros(weights.shape, dtype=torch.float64)
    different = same.new_zeros(len(groups), *weights.shape)
    for rows in source.slices:
        h = source.features(rows)
        outputs = h @ weights.T
        u = _unit(outputs)
        own = labels[rows]

        def added(sums: Tensor, outputs: Tensor = outputs, h: Tensor = h) -> Tensor:
            sums = sums.to(outputs.dtype)
            blocks = output_hessians(outputs, sums[:, -1], sums[:, :-1], distance)
            return blocks.diagonal().T @ (h * h)

        same += added(attract * (totals[own] - _counted(u)))
        for g, group in enumerate(groups):
            different[g] += added(repel * n / len(group.labels) * group.inside_sums(u, own, margin))
    # Groups differ in size by one column at most where the number does not divide.
    sizes = torch.tensor([len(g.labels) for g in groups], dtype=torch.float64)
    mean = torch.einsum("g,gzd->zd", sizes / sizes.sum(), different)
    error = ((1 - columns / n) * different.var(0) / len(groups)).sqrt()
    return SampledCurvature((same - mean).to(weights.dtype), error.to(weights.dtype))


@dataclass(frozen=True, eq=False)
class _Group:
    """Some columns: their directions with a one appended, and their labels."""

    vectors: Float[Tensor, "c v"]
    labels: Int[Tensor, " c"]

    @classmethod
    def read(
        cls, source: Source, weights: Tensor, labels: Tensor, rows: Int[Tensor, " c"]
    ) -> "_Group":
        # In the order of the file: a mapped file is read forward.
        rows = rows.sort().values
        u = _unit(source.features(np.asarray(rows)) @ weights.T)
        return cls(_counted(u), labels[rows])

    def inside_sums(
        self, u: Float[Tensor, "b z"], labels: Int[Tensor, " b"], margin: float
    ) -> Float[Tensor, "b v"]:
        """Add up the vectors of different columns inside the margin, for each row."""
        scores = u @ self.vectors[:, :-1].T
        i, j = entries_above(scores, 1 - margin / 2)
        if len(i) > DENSE * scores.numel():
            mask = inside_margin(scores, margin) & (labels[:, None] != self.labels)
            return mask.to(u.dtype) @ self.vectors
        different = labels[i] != self.labels[j]
        sums = u.new_zeros(len(u), self.vectors.shape[1])
        return sums.index_add_(0, i[different], self.vectors[j[different]])


def _class_sums(
    source: Source, weights: Float[Tensor, "z d"], labels: Int[Tensor, " n"]
) -> Float[Tensor, "classes v"]:
    """Add up directions and ones over each class."""
    count = int(labels.max()) + 1
    totals = weights.new_zeros(count, len(weights) + 1, dtype=torch.float64)
    for rows in source.slices:
        outputs = source.features(rows) @ weights.T
        check_directed("outputs", outputs)
        totals.index_add_(0, labels[rows], _counted(_unit(outputs)).double())
    return totals


def _unit(outputs: Float[Tensor, "b z"]) -> Float[Tensor, "b z"]:
    length: Tensor = torch.linalg.vector_norm(outputs, dim=1, keepdim=True)
    return outputs / length


def _counted(u: Float[Tensor, "b z"]) -> Float[Tensor, "b v"]:
    return torch.cat([u, u.new_ones(len(u), 1)], dim=1)
