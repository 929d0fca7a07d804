"""Every pair of a labelled set, exactly, without computing most similarities to the end.

Only pairs with a cosine of at least t = 1 - m/2 repel. Along an orthonormal basis, with p the first r
coordinates of u and ρ the length of the rest (Cauchy-Schwarz),

    <u_i, u_j>  <=  <p_i, p_j> + ρ_i ρ_j  =  <[p_i ρ_i], [p_j ρ_j]>

so a product of r + 1 columns instead of z rules most pairs out. The basis is the principal one, where the
first coordinates carry most; pairs are unordered, so half of them suffice. Survivors are computed in
full, and only they decide the answer: it is exact whatever r is. r is chosen from a sample of pairs; if so
many survive that the plain scan is cheaper, the plain scan is done. The cost is at most that of
`Classes`, and about a sixth of it on 512 dimensions of isotropic noise at m = 0.7.

Axes: ``n`` examples, ``z`` embedding, ``v`` summed vectors, ``r`` rows of a range, ``m`` pairs.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surefind.relations import Classes, blocks, class_sums, inside_margin
from surefind.vectors.candidates import entries_above

BLOCK_ROWS, BLOCK_COLUMNS = 1024, 4096
"""A block of bounds is 16 MB in float32."""

PAIR_COST = 40
"""What a surviving pair costs, in multiply-adds a dimension: it is gathered, not streamed."""

PAIRS = 1 << 23
"""Numbers of gathered vectors held at a time: 32 MB in float32."""

SMALL = 4096
"""Up to this many examples the plain scan is as fast as anything."""


@dataclass(frozen=True, eq=False)
class PrunedClasses:
    """`Classes`, with a faster sum over different examples inside the margin.

    Attributes:
        classes: The labels.
    """

    classes: Classes

    def __len__(self) -> int:
        return len(self.classes)

    def to(self, device: torch.device) -> "PrunedClasses":
        """Give the same relation on a device."""
        return PrunedClasses(self.classes.to(device))

    @property
    def n_same(self) -> int:
        """Number of ordered pairs with equal labels."""
        return self.classes.n_same

    @property
    def n_different(self) -> int:
        """Number of ordered pairs with unequal labels."""
        return self.classes.n_different

    def block(self, rows: slice, columns: slice) -> tuple[Bool[Tensor, "r c"], Bool[Tensor, "r c"]]:
        """Compare labels; self-pairs are neither."""
        return self.classes.block(rows, columns)

    def same_sums(self, vectors: Float[Tensor, "n v"], rows: slice) -> Float[Tensor, "r v"]:
        """Take the class's sum less the example itself, in the vectors' dtype to save memory."""
        sums = vectors.new_empty(rows.stop - rows.start, vectors.shape[1])
        index, totals = class_sums(self.classes, vectors)
        for part in blocks(rows, BLOCK_COLUMNS):
            own = slice(part.start - rows.start, part.stop - rows.start)
            sums[own] = totals[index[part]] - vectors[part]
        return sums

    def different_sums(
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
            return self.classes.different_sums(vectors, embeddings, margin, rows)
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
        labels = self.classes.labels
        scores = bounds.new_empty(BLOCK_ROWS * BLOCK_COLUMNS)
        for r in blocks(slice(0, len(self)), BLOCK_ROWS):
            left, right = [], []
            for c in blocks(slice(r.start, len(self)), BLOCK_COLUMNS):
                shape = r.stop - r.start, c.stop - c.start
                out = scores[: shape[0] * shape[1]].view(shape)
                i, j = entries_above(torch.matmul(bounds[r], bounds[c].T, out=out), threshold)
                i, j = i + r.start, j + c.start
                different = (i < j) & (labels[i] != labels[j])
                left.append(i[different])
                right.append(j[different])
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
    """Give the principal basis, largest first."""
    z = embeddings.shape[1]
    second = embeddings.new_zeros(z, z)
    for rows in blocks(slice(0, len(embeddings)), BLOCK_COLUMNS):
        second += embeddings[rows].T @ embeddings[rows]
    vectors: Tensor = torch.linalg.eigh(second).eigenvectors
    return vectors.flip(1)


def _bounding(
    embeddings: Float[Tensor, "n z"], basis: Float[Tensor, "z z"], kept: int
) -> Float[Tensor, "n k"]:
    """Give [p ρ]: the first coordinates, and the length of the rest."""
    bounds = embeddings.new_empty(len(embeddings), kept + 1)
    for rows in blocks(slice(0, len(embeddings)), BLOCK_COLUMNS):
        bounds[rows, :kept] = embeddings[rows] @ basis[:, :kept]
        rest = (1 - bounds[rows, :kept].square().sum(1)).clamp(min=0)
        # Rounded up: a ρ that came out too small would rule out pairs that it must not.
        bounds[rows, kept] = (rest + _rounding(embeddings)).sqrt()
    return bounds


def _threshold(embeddings: Float[Tensor, "n z"], margin: float) -> float:
    """Give what a bound must reach, lowered by what rounding may have taken from it."""
    return 1 - margin / 2 - 4 * _rounding(embeddings)


def _rounding(embeddings: Float[Tensor, "n z"]) -> float:
    """Bound the rounding error of an inner product of unit vectors."""
    return 2 * torch.finfo(embeddings.dtype).eps * (embeddings.shape[1] + 16)


def _kept_columns(embeddings: Float[Tensor, "n z"], margin: float, width: int) -> int | None:
    """Choose how many coordinates to keep, from a sample; None if the plain scan costs less."""
    n, z = embeddings.shape
    if n <= SMALL:
        return None
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
