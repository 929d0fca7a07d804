"""Fixed curvature over every pair, or over a sample of columns once all pairs would take too long.

`surefind.curvature.dataset` is exact, for features from anywhere. `scan_pairs` is for vectors, and decides:
positions, listed pairs, and labels of up to `EXACT_ROWS` examples exactly; beyond, `COLUMNS` random
columns, with the error of that.

**Pruned.** Only pairs with a cosine of at least t = 1 - m/2 repel. Along an orthonormal basis, with p the
first r coordinates of u and ρ the length of the rest (Cauchy-Schwarz),

    <u_i, u_j>  <=  <p_i, p_j> + ρ_i ρ_j  =  <[p_i ρ_i], [p_j ρ_j]>

so a product of r + 1 columns instead of z rules most pairs out. The basis is the principal one, where the
first coordinates carry most; pairs are unordered, so half of them suffice. Survivors are computed in
full, and only they decide the answer: it is exact whatever r is. r is chosen from a sample of pairs; if so
many survive that the plain scan is cheaper, the plain scan is done. The cost is at most that of
`Classes`, and about a sixth of it on 512 dimensions of isotropic noise at m = 0.7.

**Sampled.** Positive pairs are exact through class sums, O(n z). For negative pairs, a random set S of
columns stands for all n:

    Σ_j∈negative [inside] y u_j   ≈   n/|S| Σ_j∈S,negative [inside] y u_j

unbiased for every row, so the curvature, which is linear in these sums, is unbiased too. S is split into
``GROUPS`` random groups; each gives its own estimate, and their scatter the standard error of each entry,

    error² = (1 - |S|/n) · variance of the groups' estimates / GROUPS

(the first factor because columns are drawn without replacement: with all columns it is exact). Two
passes over the rows, O(n |S| z) multiply-adds, O(|S| z + classes z + block) memory.

What is not guaranteed: where no sampled pair is inside the margin, the stated error is 0, but rare pairs
may have been missed; an error from few pairs is itself uncertain.

Axes: ``n`` examples, ``d`` features, ``z`` outputs, ``v`` summed vectors, ``r`` rows and ``c`` columns of a
block or group, ``b`` rows read at a time, ``m`` pairs found.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.curvature.dataset import (
    check_informative,
    dataset_curvature,
)
from surefind.curvature.head import Curvature, Distance, Structure, output_hessians
from surefind.errors import DegenerateError, InputError
from surefind.models.vectors import Vectors, with_ones
from surefind.pairs.losses import pair_weights
from surefind.pairs.relations import Classes, Relation, blocks, class_sums, inside_margin
from surefind.tensor_checks import check_directed

GROUP = 16
"""Columns that are looked at through their maximum."""


def entries_above(
    scores: Float[Tensor, "r c"], threshold: float
) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """List rows and columns of the entries that are at least a threshold, in no particular order."""
    # Most pairs of a large set are far apart. Comparing every entry costs as much as the product itself;
    # a maximum over groups of columns is one vectorised pass, and few groups need a closer look.
    c = scores.shape[1]
    groups = c // GROUP
    even = groups * GROUP
    # Column j of the even part is in group j mod groups, so that the maximum runs over whole vectors.
    best = scores[:, :even].view(len(scores), GROUP, groups).amax(1)
    row, group = (best >= threshold).nonzero().T
    members = group[:, None] + groups * torch.arange(GROUP, device=scores.device)
    hit, which = (scores[row[:, None], members] >= threshold).nonzero().T
    row_left, column_left = (scores[:, even:] >= threshold).nonzero().T
    return torch.cat([row[hit], row_left]), torch.cat([members[hit, which], column_left + even])


BLOCK_ROWS, BLOCK_COLUMNS = 1024, 4096
"""A block of bounds is 16 MB in float32."""

PAIR_COST = 40
"""What a surviving pair costs, in multiply-adds a dimension: it is gathered, not streamed."""

PAIRS = 1 << 23
"""Numbers of gathered vectors held at a time: 32 MB in float32."""

SMALL = 4096
"""Up to this many examples the plain scan is as fast as anything."""


class PrunedClasses(Classes):
    """`Classes` with faster sums, for large sets; only the way to add up differs, so it is a subclass."""

    def positive_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Take the class's sum less the example itself, in the vectors' dtype to save memory."""
        sums = vectors.new_empty(rows.stop - rows.start, vectors.shape[1])
        index, totals = class_sums(self, vectors)
        for part in blocks(rows, BLOCK_COLUMNS):
            own = slice(part.start - rows.start, part.stop - rows.start)
            sums[own] = totals[index[part]] - vectors[part]
        return sums

    def negative_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        rows: slice,
    ) -> Float[Tensor, "r v"]:
        """Scan bounds of the similarities, and the similarities where a bound allows a pair."""
        everything = rows.start == 0 and rows.stop == len(self)
        kept = _kept_columns(embeddings, margin, vectors.shape[1]) if everything else None
        if kept is None:
            return super().negative_sums(vectors, embeddings, margin, rows)
        return self._pruned_sums(vectors, embeddings, margin, kept)

    def _pruned_sums(
        self,
        vectors: Float[Tensor, "n v"],
        embeddings: Float[Tensor, "n z"],
        margin: float,
        kept: int,
    ) -> Float[Tensor, "n v"]:
        bounds = _bounding(embeddings, _principal(embeddings), kept)
        threshold = _threshold(embeddings, margin)
        sums = torch.zeros_like(vectors, memory_format=torch.contiguous_format)
        labels = self.labels
        scores = bounds.new_empty(BLOCK_ROWS * BLOCK_COLUMNS)
        for r in blocks(slice(0, len(self)), BLOCK_ROWS):
            left, right = [], []
            for c in blocks(slice(r.start, len(self)), BLOCK_COLUMNS):
                shape = r.stop - r.start, c.stop - c.start
                out = scores[: shape[0] * shape[1]].view(shape)
                i, j = entries_above(torch.matmul(bounds[r], bounds[c].T, out=out), threshold)
                i, j = i + r.start, j + c.start
                negative = (i < j) & (labels[i] != labels[j])
                left.append(i[negative])
                right.append(j[negative])
            _add_pairs(sums, vectors, embeddings, margin, torch.cat(left), torch.cat(right))
        return sums


def _add_pairs(
    sums: Float[Tensor, "n v"],
    vectors: Float[Tensor, "n v"],
    embeddings: Float[Tensor, "n z"],
    margin: float,
    left: Int[Tensor, " m"],
    right: Int[Tensor, " m"],
) -> None:
    """Compute the similarities of unordered pairs, and add the inside ones up on both sides."""
    for at in blocks(slice(0, len(left)), max(1, PAIRS // embeddings.shape[1])):
        i, j = left[at], right[at]
        inside = inside_margin(torch.einsum("mz,mz->m", embeddings[i], embeddings[j]), margin)
        i, j = i[inside], j[inside]
        sums.index_add_(0, i, vectors[j])
        sums.index_add_(0, j, vectors[i])


def _principal(embeddings: Float[Tensor, "n z"]) -> Float[Tensor, "z z"]:
    """Compute the principal basis, largest first."""
    z = embeddings.shape[1]
    second = embeddings.new_zeros(z, z)
    for rows in blocks(slice(0, len(embeddings)), BLOCK_COLUMNS):
        second += embeddings[rows].T @ embeddings[rows]
    vectors: Tensor = torch.linalg.eigh(second).eigenvectors
    return vectors.flip(1)


def _bounding(
    embeddings: Float[Tensor, "n z"], basis: Float[Tensor, "z z"], kept: int
) -> Float[Tensor, "n k"]:
    """Compute [p ρ]: the first coordinates, and the length of the rest."""
    bounds = embeddings.new_empty(len(embeddings), kept + 1)
    for rows in blocks(slice(0, len(embeddings)), BLOCK_COLUMNS):
        bounds[rows, :kept] = embeddings[rows] @ basis[:, :kept]
        rest = (1 - bounds[rows, :kept].square().sum(1)).clamp(min=0)
        # Rounded up: a ρ that came out too small would rule out pairs that it must not.
        bounds[rows, kept] = (rest + _rounding(embeddings)).sqrt()
    return bounds


def _threshold(embeddings: Float[Tensor, "n z"], margin: float) -> float:
    """Return what a bound must reach, lowered by what rounding may have taken from it."""
    return 1 - margin / 2 - 4 * _rounding(embeddings)


def _rounding(embeddings: Float[Tensor, "n z"]) -> float:
    """Bound the rounding error of an inner product of unit vectors."""
    return 2 * torch.finfo(embeddings.dtype).eps * (embeddings.shape[1] + 16)


def _kept_columns(embeddings: Float[Tensor, "n z"], margin: float, width: int) -> int | None:
    """Choose how many coordinates to keep, from a sample; None if the plain scan costs less."""
    n, z = embeddings.shape
    # Evenly spaced, not drawn: any sample will do, and the answer does not depend on it.
    few = embeddings[torch.linspace(0, n - 1, 512, device=embeddings.device).long()]
    many = embeddings[torch.linspace(0, n - 2, 2048, device=embeddings.device).long() + 1]
    basis, threshold = _principal(few if z < 512 else many), _threshold(embeddings, margin)
    best, choice = 2.0 * (z + width), None
    for kept in sorted({max(1, z * share // 16) for share in range(1, 16)}):
        scores = _bounding(few, basis, kept) @ _bounding(many, basis, kept).T
        survive = float((scores >= threshold).double().mean())
        cost = kept + survive * PAIR_COST * z
        if cost < best:
            best, choice = cost, kept
    return choice


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
    vectors: Vectors,
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
        vectors: Their features are read twice.
        weights: The head.
        classes: A class per row.
        distance: "euclidean" or "arccos".
        margin: Squared distance up to which negative pairs repel.
        columns: How many columns stand for all; at most n are used.
        generator: Draws them.

    Returns:
        The estimate with its error.

    Raises:
        DegenerateError: If there are fewer columns, or rows, than groups.
    """
    check_informative(classes)
    n = len(vectors)
    columns = min(columns, n)
    if columns < 2 * GROUPS:
        raise DegenerateError(
            f"a sampled scan needs at least {2 * GROUPS} columns to know its error; "
            f'got {columns}. Take scan_columns="all".'
        )
    labels = torch.unique(classes.labels, return_inverse=True)[1].to(torch.int32)
    totals = _class_sums(vectors, weights, labels)
    drawn = torch.randperm(n, generator=generator)[:columns]
    groups = [_Group.read(vectors, weights, labels, part) for part in drawn.chunk(GROUPS)]
    attract, repel = pair_weights(classes, 0.5)
    positive = weights.new_zeros(weights.shape, dtype=torch.float64)
    negative = positive.new_zeros(len(groups), *weights.shape)
    for rows in vectors.slices:
        h = vectors.features(rows)
        outputs = h @ weights.T
        u = _unit(outputs)
        own = labels[rows]

        def added(sums: Tensor, outputs: Tensor = outputs, h: Tensor = h) -> Tensor:
            sums = sums.to(outputs.dtype)
            blocks = output_hessians(outputs, sums[:, -1], sums[:, :-1], distance)
            return blocks.diagonal().T @ (h * h)

        positive += added(attract * (totals[own] - with_ones(u)))
        for g, group in enumerate(groups):
            negative[g] += added(repel * n / len(group.labels) * group.inside_sums(u, own, margin))
    # Groups differ in size by one column at most where the number does not divide.
    sizes = torch.tensor([len(g.labels) for g in groups], dtype=torch.float64)
    mean = torch.einsum("g,gzd->zd", sizes / sizes.sum(), negative)
    error = ((1 - columns / n) * negative.var(0) / len(groups)).sqrt()
    return SampledCurvature((positive - mean).to(weights.dtype), error.to(weights.dtype))


@dataclass(frozen=True, eq=False)
class _Group:
    """Some columns: their directions with a one appended, and their labels."""

    vectors: Float[Tensor, "c v"]
    labels: Int[Tensor, " c"]

    @classmethod
    def read(
        cls, vectors: Vectors, weights: Tensor, labels: Tensor, rows: Int[Tensor, " c"]
    ) -> "_Group":
        # In the order of the file: a mapped file is read forward.
        rows = rows.sort().values
        u = _unit(vectors.features(np.asarray(rows)) @ weights.T)
        return cls(with_ones(u), labels[rows])

    def inside_sums(
        self, u: Float[Tensor, "b z"], labels: Int[Tensor, " b"], margin: float
    ) -> Float[Tensor, "b v"]:
        """Add up the vectors of negative columns inside the margin, for each row."""
        scores = u @ self.vectors[:, :-1].T
        i, j = entries_above(scores, 1 - margin / 2)
        if len(i) > DENSE * scores.numel():
            mask = inside_margin(scores, margin) & (labels[:, None] != self.labels)
            return mask.to(u.dtype) @ self.vectors
        negative = labels[i] != self.labels[j]
        sums = u.new_zeros(len(u), self.vectors.shape[1])
        return sums.index_add_(0, i[negative], self.vectors[j[negative]])


def _class_sums(
    vectors: Vectors, weights: Float[Tensor, "z d"], labels: Int[Tensor, " n"]
) -> Float[Tensor, "classes v"]:
    """Add up directions and ones over each class."""
    count = int(labels.max()) + 1
    totals = weights.new_zeros(count, len(weights) + 1, dtype=torch.float64)
    for rows in vectors.slices:
        outputs = vectors.features(rows) @ weights.T
        check_directed("outputs", outputs)
        totals.index_add_(0, labels[rows], with_ones(_unit(outputs)).double())
    return totals


def _unit(outputs: Float[Tensor, "b z"]) -> Float[Tensor, "b z"]:
    length: Tensor = torch.linalg.vector_norm(outputs, dim=1, keepdim=True)
    return outputs / length


EXACT_ROWS = 200_000
"""Up to this many labelled examples every pair is scanned, unless the caller says otherwise."""

COLUMNS = 8192
"""Columns that are sampled beyond, unless the caller says otherwise."""


def scan_pairs(
    vectors: Vectors,
    weights: Tensor,
    relation: Relation,
    *,
    structure: Structure,
    distance: Distance,
    margin: float,
    columns: int | Literal["auto", "all"],
    generator: torch.Generator,
) -> tuple[Curvature, float]:
    """Compute the curvature of a head on vectors.

    Args:
        vectors: What the head sees.
        weights: The head (z, d + 1).
        relation: Which rows belong together.
        structure: "diagonal", "kronecker" or "dense".
        distance: "euclidean" or "arccos".
        margin: Squared distance up to which negative pairs repel.
        columns: How many columns to sample, "all" for every pair, or "auto".
        generator: Draws the columns.

    Returns:
        The curvature, unscaled and unclipped, and its relative standard error: 0.0 if every pair was
        scanned.

    Raises:
        InputError: If columns are to be sampled without labels, or for more than the diagonal.
    """
    classes = relation if isinstance(relation, Classes) else None
    options: dict[str, Any] = {"distance": distance, "margin": margin}
    if columns == "auto":
        large = classes is not None and structure == "diagonal" and len(vectors) > EXACT_ROWS
        columns = COLUMNS if large else "all"
    if columns == "all":
        outputs = vectors.outputs(weights)
        if classes is not None and len(vectors) > SMALL:
            relation = PrunedClasses(classes.labels)
        options["structure"] = structure
        return dataset_curvature(vectors.batches(), outputs, relation, **options), 0.0
    if classes is None or structure != "diagonal":
        raise InputError(
            "scan_columns can sample labelled examples, and their diagonal curvature, only; take "
            '"all" for positions, pairs and other structures.'
        )
    sampled = sampled_curvature(
        vectors, weights, classes, columns=columns, generator=generator, **options
    )
    return sampled.curvature, sampled.relative_error
