"""Exact nearest neighbours: of vectors, and under several sampled models.

Rows are unit vectors (rescaled in float64, so that rounding of their lengths does not reorder
neighbours) and the nearest neighbour is the one of highest cosine (`surefind.retrieval.cosines`). Equal
cosines are ordered by index.

Policy: more neighbours than the gallery holds are an error, not a shorter answer.

Memory is that of the cosines and a float64 copy of the vectors.

Axes: ``q`` queries, ``g`` gallery, ``z`` embedding, ``k`` neighbours, ``s`` samples, ``n`` examples.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from surefind.errors import DegenerateError, InputError
from surefind.retrieval.cosines import highest_cosines
from surefind.retrieval.rows import as_unit_rows, unit64
from surefind.validation import check_whole


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The ``k`` nearest gallery items of each query, nearest first.

    Attributes:
        indices: Rows of the gallery (q, k).
        similarities: Their cosines (q, k), not rising along a row.
    """

    indices: Tensor
    similarities: Tensor

    def __post_init__(self) -> None:
        """Check that the two fit together.

        Raises:
            InputError: If the shapes differ, or a row is not sorted.
        """
        if self.indices.ndim != 2 or self.indices.shape != self.similarities.shape:
            raise InputError(
                f"indices and similarities must both be (q, k); got {tuple(self.indices.shape)} "
                f"and {tuple(self.similarities.shape)}."
            )
        if not bool((self.similarities[:, 1:] <= self.similarities[:, :-1]).all()):
            raise InputError("similarities must not rise along a row: list the nearest first.")

    def __len__(self) -> int:
        return len(self.indices)


def nearest(queries: Any, gallery: Any, k: int, *, exclude_self: bool = False) -> Neighbours:
    """Find the ``k`` gallery items of highest cosine for each query.

    Args:
        queries: Unit vectors (q, z), a tensor or an array.
        gallery: Unit vectors (g, z).
        k: How many neighbours to find.
        exclude_self: Whether queries and gallery are the same rows, and row i must not find itself.

    Returns:
        Neighbours on the gallery's device, with cosines of the queries' dtype.

    Raises:
        InputError: If the sets do not fit together or ``k`` is more than the gallery can give.
    """
    q, g = as_unit_rows("queries", queries), as_unit_rows("gallery", gallery)
    check_whole("k", k, least=1)
    if q.shape[1] != g.shape[1]:
        raise InputError(
            f"queries have {q.shape[1]} dimensions and the gallery {g.shape[1]}; "
            "embed both with one model."
        )
    if exclude_self and len(q) != len(g):
        raise InputError(
            f"exclude_self needs the same rows on both sides; got {len(q)} queries and "
            f"{len(g)} gallery items."
        )
    available = len(g) - int(exclude_self)
    if k > available:
        raise InputError(
            f"k is {k}, but the gallery can give {available} neighbours; lower k to at most that."
        )
    indices, cosines = highest_cosines(unit64(q), unit64(g), k, exclude_self=exclude_self)
    return Neighbours(indices, cosines.clamp(-1, 1).to(q.dtype))


def sampled_nearest(
    samples: Iterable[Any], gallery: Iterable[Any] | None = None
) -> Int[Tensor, "s q"]:
    """Find each query's nearest neighbour under each of several sampled models.

    Every sample embeds *all* queries, and all of the gallery, with one model (a joint sample).

    Args:
        samples: Unit vectors of the queries (s, q, z), or an iterator of (q, z) matrices, of which one
            at a time is held.
        gallery: The same of the gallery, under the same models in the same order. None: the queries
            are the gallery, and none finds itself.

    Returns:
        Rows of the gallery (s, q).

    Raises:
        DegenerateError: If there are no samples.
    """
    found = []
    shelves = repeat(None) if gallery is None else gallery
    for sample, shelf in zip(samples, shelves, strict=gallery is not None):
        u = as_unit_rows("a sample", sample)
        v = u if shelf is None else as_unit_rows("a sample of the gallery", shelf)
        found.append(nearest(u, v, 1, exclude_self=shelf is None).indices[:, 0])
    if not found:
        raise DegenerateError("there are no samples: draw at least one.")
    return torch.stack(found)


def sampled_nearest_labels(samples: Iterable[Any], labels: Any) -> Any:
    """Find the label of each example's nearest neighbour under each of several sampled models.

    Every sample embeds *all* examples with one model (a joint sample), and an example never finds
    itself. `surefind.metrics.agreement` turns the answer into predictions and confidences.

    Args:
        samples: As for `sampled_nearest`.
        labels: A label per example (n), a tensor or an array.

    Returns:
        Labels (s, n), of the labels' kind.
    """
    indices = sampled_nearest(_of_length(samples, len(labels)))
    if isinstance(labels, Tensor):
        return labels[indices.to(labels.device)]
    return np.asarray(labels)[indices.cpu().numpy()]


def _of_length(samples: Iterable[Any], n: int) -> Iterator[Any]:
    for sample in samples:
        if len(sample) != n:
            raise InputError(
                f"a sample has {len(sample)} rows where there are {n} labels; "
                "each sample must embed every example."
            )
        yield sample
