"""Exact nearest neighbours: of vectors, and under several sampled models.

Rows are unit vectors (rescaled in float64, so that rounding of their lengths does not reorder
neighbours) and the nearest neighbour is the one of highest cosine (`surefind.retrieval.search`). Equal
cosines are ordered by index.

Policy: more neighbours than the gallery holds are an error, not a shorter answer.

Memory is that of the cosines and a float64 copy of the vectors.

Axes: ``q`` queries, ``g`` gallery, ``z`` embedding, ``k`` neighbours, ``s`` samples, ``n`` examples.

Highest cosines, exactly, block by block, the q × g similarities never stored.

Where classes have collapsed to tight clusters, cosines differ by less than float32 can tell, so float32
only *proposes*: it gives the best ``k + SPARE`` candidates of each query, their cosines are computed again
in float64, and a query is settled when its k-th is certainly above everything that was not proposed,

    c_k  >  c_last(float32) + (z + 4) 2^-24                (the rounding error of a float32 product)

The few others are searched in float64 throughout.

Policy: equal cosines are ordered by index. In float64 too, cosines closer than rounding are equal.

Memory is a block of ``BLOCK_ROWS × BLOCK_COLUMNS`` similarities and a float32 copy of the vectors.

Axes: ``q`` queries, ``g`` gallery, ``z`` embedding, ``k`` neighbours, ``r`` rows of a block, ``w`` its
columns, ``c`` candidates.

Vectors as the doors of a search take them: rows of a tensor or an array, checked.

Axes: ``n`` examples, ``d`` features, ``z`` embedding.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.errors import DegenerateError, InputError
from surefind.validation import check_int, check_matrix, check_unit_rows

BLOCK_ROWS, BLOCK_COLUMNS = 256, 16384
"""A block of similarities is at most 16 MB in float32."""

EXACT_BLOCK = 2**22
"""Similarities held at once in float64: 32 MB, or one query's."""

GROUP = 8
"""Columns of a block that are looked at through their maximum."""

SPARE = 4
"""Candidates proposed beyond k: more settle more queries, fewer cost less."""


def highest_cosines(
    queries: Float[Tensor, "q z"], gallery: Float[Tensor, "g z"], k: int, *, exclude_self: bool
) -> tuple[Int[Tensor, "q k"], Float[Tensor, "q k"]]:
    """Find the ``k`` gallery rows of highest cosine for each query.

    Args:
        queries: Float64 unit vectors (q, z).
        gallery: The same (g, z); at least k of them, beside the query itself.
        k: How many to find.
        exclude_self: Whether queries and gallery are the same rows, and row i must not find itself.

    Returns:
        Rows of the gallery (q, k), nearest first, and their cosines.
    """
    indices = torch.empty(len(queries), k, dtype=torch.int64, device=gallery.device)
    cosines = torch.empty(len(queries), k, dtype=torch.float64, device=gallery.device)
    everyone = torch.arange(len(queries), device=gallery.device)
    unsettled = everyone
    # Products that were told to be less exact than float32 would break the bound.
    if torch.get_float32_matmul_precision() == "highest":
        single, columns = queries.float(), gallery.float().T.contiguous()
        left = []
        for rows in everyone.split(BLOCK_ROWS):  # type: ignore[no-untyped-call]
            own = rows if exclude_self else None
            proposed, bound = _propose(single[rows], columns, k + SPARE, own)
            best = _ordered(queries[rows], gallery, proposed, k, own)
            indices[rows], cosines[rows] = best
            left.append(rows[best[1][:, -1] <= bound])
        unsettled = torch.cat(left)
    for rows in unsettled.split(max(1, EXACT_BLOCK // len(gallery))):  # type: ignore[no-untyped-call]
        own = rows if exclude_self else None
        chosen = _exact(queries[rows], gallery, k, own)
        indices[rows], cosines[rows] = _ordered(queries[rows], gallery, chosen, k, own)
    return indices, cosines


def _propose(
    queries: Float[Tensor, "r z"], columns: Float[Tensor, "z g"], count: int, own: Tensor | None
) -> tuple[Int[Tensor, "r c"], Float[Tensor, " r"]]:
    """Give float32's best, and a bound that no other true cosine exceeds."""
    z, g = columns.shape
    values, indices = (
        queries.new_empty(len(queries), 0),
        queries.new_empty(len(queries), 0, dtype=torch.int64),
    )
    for start in range(0, g, BLOCK_COLUMNS):
        scores = queries @ columns[:, start : start + BLOCK_COLUMNS]
        _hide(scores, start, own)
        v, i = _top(scores, count)
        values, indices = torch.cat([values, v], dim=1), torch.cat([indices, i + start], dim=1)
        if values.shape[1] > count:
            values, position = values.topk(count, dim=1)
            indices = indices.gather(1, position)
    if count >= g:
        return indices, torch.full_like(values[:, 0], -torch.inf, dtype=torch.float64)
    return indices, values[:, -1].double() + (z + 4) * 2.0**-24


def _top(scores: Float[Tensor, "r w"], count: int) -> tuple[Tensor, Tensor]:
    """Give each row's ``count`` highest scores, or all: topk, but faster on wide rows."""
    # Columns are dealt to groups. A score among the highest is in one of the `count` groups of highest
    # maximum, and a maximum over strided groups is one vectorised pass where topk is many branches.
    r, w = scores.shape
    groups = w // GROUP
    if groups < 4 * count:
        return scores.topk(min(count, w), dim=1)
    even = groups * GROUP
    best = scores[:, :even].reshape(r, GROUP, groups).amax(1).topk(count, dim=1).indices
    members = best[:, :, None] + groups * torch.arange(GROUP, device=scores.device)
    left_over = torch.arange(even, w, device=scores.device).expand(r, -1)
    chosen = torch.cat([members.flatten(1), left_over], dim=1)
    values, position = scores.gather(1, chosen).topk(count, dim=1)
    return values, chosen.gather(1, position)


def _exact(
    queries: Float[Tensor, "r z"], gallery: Float[Tensor, "g z"], k: int, own: Tensor | None
) -> Int[Tensor, "r k"]:
    """Choose the k best in float64; among those that tie for the last places, the lowest indices."""
    g, z = gallery.shape
    scores = queries @ gallery.T
    _hide(scores, 0, own)
    last = scores.topk(k, dim=1).values[:, -1:]
    # A matrix product may round equal vectors differently at different places.
    rounding = (z + 4) * 2.0**-52
    tied = torch.where(scores >= last - rounding, g - torch.arange(g, device=gallery.device), 0)
    return torch.where(scores > last + rounding, g + 1, tied).topk(k, dim=1).indices


def _hide(scores: Tensor, start: int, own: Tensor | None) -> None:
    """Make a query's own column, if it is among these, the last choice."""
    if own is not None:
        here = (own >= start) & (own < start + scores.shape[1])
        row = here.nonzero()[:, 0]
        scores[row, own[row] - start] = -torch.inf


def _ordered(
    queries: Float[Tensor, "r z"],
    gallery: Float[Tensor, "g z"],
    chosen: Int[Tensor, "r c"],
    k: int,
    own: Tensor | None,
) -> tuple[Int[Tensor, "r k"], Float[Tensor, "r k"]]:
    """Order candidates by their float64 cosine, then by index, and keep k."""
    chosen = chosen.sort(dim=1).values
    cosines = (queries[:, None] * gallery[chosen]).sum(2)
    if own is not None:
        cosines[chosen == own[:, None]] = -torch.inf
    cosines, position = cosines.sort(dim=1, descending=True, stable=True)
    return chosen.gather(1, position)[:, :k], cosines[:, :k]


def as_rows(name: str, value: Any) -> Float[Tensor, "n d"]:
    """Read a finite matrix from a tensor or an array, and check it.

    Args:
        name: What to call it in the message.
        value: The matrix (n, d).

    Returns:
        A tensor without gradient history.

    Raises:
        InputError: If it is neither a tensor nor an array.
    """
    if isinstance(value, np.ndarray):
        # torch warns about arrays it could write to but should not.
        value = torch.from_numpy(value if value.flags.writeable else value.copy())
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a tensor or a NumPy array; got {type(value).__name__}.")
    check_matrix(name, value)
    return value.detach()


def as_unit_rows(name: str, value: Any) -> Float[Tensor, "n z"]:
    """Read unit vectors from a tensor or an array, and check them.

    Args:
        name: What to call them in the message.
        value: The vectors (n, z).

    Returns:
        A tensor without gradient history.
    """
    rows = as_rows(name, value)
    check_unit_rows(name, rows)
    return rows


def unit64(rows: Float[Tensor, "n z"]) -> Float[Tensor, "n z"]:
    """Rescale near-unit rows to unit length in float64."""
    return torch.nn.functional.normalize(rows.double(), dim=1)


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
    check_int("k", k, least=1)
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
