"""Fixed curvature over every pair of a data set, exactly, without storing pairs.

The paper samples and mines pairs because a Hessian a pair cannot be afforded. With "fixed", only the
sums w_i = Σ_j y_ij and m_i = Σ_j y_ij u_j depend on the pairs (`surefind.curvature.head`):

- positive pairs: the class's sum of u less u_i, O(n z);
- negative pairs inside the margin: one blocked, masked product over the similarities, O(n² z) multiply-
  adds and O(block) memory; half that much when z is small and memory traffic dominates;
- then one pass ``Σ_i diag(A_i) h_i²`` over the features, which may be memory-mapped or a stream.

There is no mining bias, so there is no w_n to tune. The result is what `head_curvature` gives for the
targets of the whole set: a sum over pairs, unscaled, unclipped. Row ranges of one set add up to the
whole, so processes can share the work.

Policy: a set without a positive pair, or without a negative pair, is refused: there is nothing to
learn a posterior from. A range without rows, as a process may get, adds nothing: zeros, as wide as the
features.

Axes: ``n`` examples, ``r`` of them in this range, ``d`` features, ``z`` outputs.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_choice, check_positive
from surefind.curvature.head import (
    DISTANCES,
    STRUCTURES,
    Distance,
    KroneckerCurvature,
    OutputHessians,
    Structure,
    kronecker_of_blocks,
    output_hessians,
)
from surefind.errors import DegenerateError, InputError
from surefind.pairs.losses import pair_weights
from surefind.pairs.relations import Labels, Relation, as_relation, blocks
from surefind.tensor_checks import check_directed, check_matrix

FEATURE_ELEMENTS = 1 << 22
"""Numbers of features read at a time: 16 MB in float32."""

DENSE_WEIGHTS = 2048
"""Weights up to which a head's dense curvature is computed: 32 MB in float64, seconds to diagonalise."""

Features = Tensor | np.ndarray | Iterable[Tensor | np.ndarray]
"""A matrix in memory, a memory-mapped array, or batches of rows in order."""


def dataset_curvature(
    features: Features,
    outputs: Tensor,
    labels: Labels,
    *,
    distance: Distance,
    margin: float,
    structure: Structure = "diagonal",
    rows: slice | None = None,
) -> Any:
    """Compute the head's "fixed" curvature over every pair of the set.

    Args:
        features: What the head sees (r, d), one row for each example in ``rows``: a tensor, an array
            (memory-mapped or not), or an iterable of batches of rows. Without rows: (0, d), so that
            d is known.
        outputs: The head's outputs for all examples (n, z), before normalisation.
        labels: A class per example, or a relation over them.
        distance: "euclidean" or "arccos".
        margin: Squared distance up to which negative pairs repel.
        structure: "diagonal"; "kronecker" for the partial traces, "dense" for the whole matrix.
        rows: The examples to add up; all of them by default. Ranges add up to the whole.

    Returns:
        A sum over pairs, which may be negative: one number for each head weight (z, d), a
        `KroneckerCurvature`, or a matrix (z d, z d).
    """
    hessians = dataset_output_hessians(outputs, labels, distance=distance, margin=margin, rows=rows)
    check_choice("structure", structure, STRUCTURES)
    paired, dtype = _paired(features, hessians), outputs.dtype
    if structure == "kronecker":
        parts = [kronecker_of_blocks(_rows(hessians, at), h) for at, h in paired]
        left, right = (_add_up(getattr(p, side) for p in parts) for side in ("left", "right"))
        return KroneckerCurvature(left.to(dtype), right.to(dtype))
    if structure == "dense":
        return _add_up(_dense_parts(hessians, paired)).to(dtype)
    diagonal = hessians.diagonal()
    return _add_up(diagonal[at].T @ (h * h) for at, h in paired).to(dtype)


def _dense_parts(
    hessians: OutputHessians, paired: Iterable[tuple[slice, Float[Tensor, "b d"]]]
) -> Iterator[Float[Tensor, "p p"]]:
    z = hessians.directions.shape[1]
    for at, h in paired:
        d = h.shape[1]
        check_dense(z * d)
        # Empty ranges too, so that the sum knows its shape.
        for part in blocks(slice(0, len(h)), max(1, FEATURE_ELEMENTS // d**2)) or [slice(0, 0)]:
            A = _rows(_rows(hessians, at), part).dense().flatten(1)
            hh = (h[part, :, None] * h[part, None, :]).flatten(1)
            yield (A.T @ hh).view(z, z, d, d).transpose(1, 2).reshape(z * d, z * d)


def check_dense(weights: int) -> None:
    """Refuse a dense curvature of more weights than `DENSE_WEIGHTS`.

    Raises:
        InputError: If there are more.
    """
    if weights > DENSE_WEIGHTS:
        raise InputError(
            f"a dense posterior of {weights} weights needs a matrix of {weights} x {weights} and its "
            f"eigenvectors; at most {DENSE_WEIGHTS} weights are taken. Use structure='kronecker' or "
            "'diagonal', or fewer outputs."
        )


def dataset_output_hessians(
    outputs: Tensor,
    labels: Labels,
    *,
    distance: Distance,
    margin: float,
    rows: slice | None = None,
) -> OutputHessians:
    """Scan the pairs once and form the output-space blocks of the examples in ``rows``.

    Args:
        outputs: (n, z), before normalisation.
        labels: A class per example, or a relation over them.
        distance: "euclidean" or "arccos".
        margin: Squared distance up to which negative pairs repel.
        rows: The examples to form blocks for; all of them by default.

    Returns:
        One block for each example in ``rows``.
    """
    check_choice("distance", distance, DISTANCES)
    relation = as_relation(labels)
    check_matrix("outputs", outputs, rows=len(relation))
    check_directed("outputs", outputs)
    check_positive("margin", margin)
    check_informative(relation)
    span = slice(*(rows or slice(None)).indices(len(relation))[:2])
    if span.start >= span.stop:
        none = outputs[:0]
        return output_hessians(none, none.sum(1), none, distance)
    # The count of partners rides along as one more column; the directions are a view of the others.
    vectors = torch.cat([outputs, outputs.new_ones(len(outputs), 1)], dim=1)
    u = vectors[:, :-1]
    u /= torch.linalg.vector_norm(outputs, dim=1, keepdim=True)
    if distance == "euclidean":
        vectors = vectors[:, -1:]
    attract, repel = pair_weights(relation, 0.5)
    sums = attract * relation.positive_sums(vectors, span)
    sums -= repel * relation.negative_sums(vectors, u, margin, span)
    sums = sums.to(outputs.dtype)
    means = sums[:, :-1] if distance == "arccos" else u.new_zeros(()).expand_as(u[span])
    return output_hessians(outputs[span], sums[:, -1], means, distance)


def check_informative(relation: Relation, *, field: str | None = None) -> None:
    """Refuse pairs that no posterior can be learnt from.

    Args:
        relation: The relation over a whole data set.
        field: The argument that it comes from, for the error.

    Raises:
        DegenerateError: If there is no positive or no negative pair.
    """
    if relation.n_positive and relation.n_negative:
        return
    lacking = (
        "no two examples are different: there is only one class. Give at least two."
        if relation.n_positive
        else "no two examples are the same, so there is nothing to learn what 'same' means from. "
        "Give at least one class with two examples."
    )
    raise DegenerateError(lacking, field=field)


def _rows(hessians: OutputHessians, at: slice) -> OutputHessians:
    return OutputHessians(
        hessians.directions[at],
        hessians.inverse_lengths[at],
        hessians.isotropic[at],
        hessians.partners[at],
    )


def _add_up(parts: Iterable[Tensor]) -> Tensor:
    total: Tensor | None = None
    for part in parts:
        total = part.double() if total is None else total.add_(part)
    assert total is not None
    return total


def _paired(
    features: Features, hessians: OutputHessians
) -> Iterator[tuple[slice, Float[Tensor, "b d"]]]:
    """Yield batches of feature rows with the slice of the blocks that they belong to.

    Args:
        features: A matrix, an array or batches.
        hessians: The blocks, one for each row.

    Yields:
        The slice and the rows.

    Raises:
        InputError: If there are not as many rows as blocks, or a batch cannot be used.
    """
    like, start, width = hessians.directions, 0, None
    for batch in _batches(features):
        if start + len(batch) > len(like) or width not in (None, batch.shape[1]):
            raise InputError(
                f"features must have {len(like)} rows, one each, of equal width; a batch "
                f"{tuple(batch.shape)} comes after {start} rows of {width or 'no'} columns.",
                field="features",
            )
        width = batch.shape[1]
        rows = batch.to(like.device, like.dtype)
        if len(rows):
            check_matrix("features", rows)
        at = slice(start, start + len(rows))
        start = at.stop
        yield at, rows
    if start < len(like) or width is None:
        raise InputError(
            f"features have {start} rows where {len(like)} are expected: one each. For a range without "
            "rows give a matrix of shape (0, d).",
            field="features",
        )


def _batches(features: Features) -> Iterator[Tensor]:
    """Yield matrices of feature rows, at least one if the features are a matrix themselves."""
    if not isinstance(features, Tensor | np.ndarray):
        yield from map(_matrix, features)
        return
    size = max(1, FEATURE_ELEMENTS // max(1, features.shape[-1]))
    for at in blocks(slice(0, len(features)), size) or [slice(0, 0)]:
        yield _matrix(features[at])


def _matrix(batch: Tensor | np.ndarray) -> Tensor:
    if not isinstance(batch, Tensor | np.ndarray) or batch.ndim != 2:
        got = getattr(batch, "shape", type(batch).__name__)
        raise InputError(
            f"features must be a matrix (n, d) or batches that are; got {got}.", field="features"
        )
    # A copy: the array may be mapped read-only.
    return batch if isinstance(batch, Tensor) else torch.from_numpy(np.array(batch))
