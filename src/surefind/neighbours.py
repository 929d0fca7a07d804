"""Exact nearest neighbours by cosine: of vectors, and under several sampled models.

`highest_cosines` is the exact search of evaluation and baselines. It works block
by block, so that the q × g cosines are never stored. Where classes have collapsed to tight clusters,
cosines differ by less than float32 resolves, so float32 only *proposes*: of the best ``k + SPARE``
candidates of each query the cosines are computed again in float64, and the query is settled if its k-th
is certainly above everything that was not proposed,

    c_k  >  c_last(float32) + (z + 4) 2^-24                (the rounding error of a float32 product)

For the few others everything within that error of c_k is compared in float64. Where the nearest row alone
is asked for, not its cosine (`nearest_one`, under sampled models), float32 decides whenever its two best
differ by more than twice its error.

Policy: equal cosines are ordered by row; more neighbours than the gallery holds are an error, not a shorter
answer. Rows given to `nearest` are rescaled in float64, so that rounding of their lengths does not reorder
neighbours.

Memory: `CELLS` cosines and as many vector entries, beside the vectors in float32 (none if they are float32
already and queries are few).

Axes: ``q`` queries, ``g`` gallery, ``z`` embedding, ``k`` neighbours, ``s`` samples, ``n`` examples, ``r``
queries of a block, ``w`` its columns, ``c`` candidates.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from math import isqrt
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.checks import check_int
from surefind.errors import DegenerateError, InputError
from surefind.tensor_checks import as_tensor, check_matrix, check_unit_rows

ROWS = 256
"""Queries of a block; for more than one block the gallery is transposed, for faster products."""

CELLS = 2**22
"""Cosines of a block: 16 MB, enough to keep the product of matrices busy."""

SPARE = 4
"""Candidates proposed beyond k: more settle more queries, fewer cost less."""


def highest_cosines(
    queries: Float[Tensor, "q z"],
    gallery: Float[Tensor, "g z"],
    k: int,
    *,
    exclude_self: bool = False,
    own: Int[Tensor, "*q"] | None = None,
) -> tuple[Int[Tensor, "q k"], Float[Tensor, "q k"]]:
    """Find the ``k`` gallery rows of highest cosine for each query.

    Args:
        queries: Unit vectors (q, z) in float32 or float64, at least one.
        gallery: The same (g, z); at least k of them, beside the query itself.
        k: How many to find.
        exclude_self: Whether queries and gallery are the same rows, and row i must not find itself.
        own: For queries that are some rows of the gallery: which these are, and must not find.

    Returns:
        Rows of the gallery (q, k), nearest first, and their cosines in float64.
    """
    if exclude_self:
        own = torch.arange(len(queries), device=gallery.device)
    # Products that are set to be less exact than float32 would break the bound.
    exact = torch.get_float32_matmul_precision() == "highest"
    coarse = torch.float32 if exact else torch.float64
    rounding = (gallery.shape[1] + 4) * torch.finfo(coarse).eps / 2
    rough, columns = queries.to(coarse), gallery.to(coarse).T
    if len(queries) > ROWS:
        columns = columns.contiguous()
    found, unsettled = [], []
    for start in range(0, len(queries), ROWS):
        block = slice(start, min(start + ROWS, len(queries)))
        hidden = None if own is None else own[block]
        proposed, last = _propose(rough[block], columns, k + SPARE, hidden)
        found.append(_ordered(queries[block], gallery, proposed, k, hidden))
        unsettled.append(found[-1][1][:, -1] <= last + rounding)
    indices, cosines = (torch.cat(part) for part in zip(*found, strict=True))
    left = torch.cat(unsettled).nonzero()[:, 0]
    size = max(1, CELLS // len(gallery))
    for start in range(0, len(left), size):
        rows = left[start : start + size]
        scores = rough[rows] @ columns
        _hide(scores, 0, None if own is None else own[rows])
        close = scores >= (cosines[rows, -1:] - 2 * rounding).to(coarse)
        at, column = close.nonzero(as_tuple=True)
        chosen = column.split(at.bincount(minlength=len(rows)).tolist())  # type: ignore[no-untyped-call]
        padded = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-1)
        indices[rows], cosines[rows] = _ordered(queries[rows], gallery, padded, k, None)
    return indices, cosines


def nearest_one(
    queries: Float[Tensor, "q z"], gallery: Float[Tensor, "g z"], *, exclude_self: bool = False
) -> Int[Tensor, "*q"]:
    """Find the row of highest cosine for each query, as `nearest` does, without the cosine.

    Rows among themselves are compared once for both: 5,924 vectors of 2048 dimensions take 1.3 s of one
    core where the whole product of matrices takes 1.9 s.

    Args:
        queries: Near-unit vectors (q, z), rescaled here.
        gallery: The same (g, z), at least one beside the query itself.
        exclude_self: As for `highest_cosines`.

    Returns:
        Rows of the gallery (q).
    """
    # Of the product, and of a gallery row's length; that of a query is shared by its cosines.
    rounding = 1.5 * (gallery.shape[1] + 4) * torch.finfo(torch.float32).eps / 2
    if torch.get_float32_matmul_precision() != "highest":
        rounding = torch.inf
    rough = torch.nn.functional.normalize(queries.float(), dim=1)
    if exclude_self:
        best = _best_pair_among(rough)
    else:
        best = _best_pair(rough, torch.nn.functional.normalize(gallery.float(), dim=1))
    rows = best.rows
    left = (best.first - best.second <= 2 * rounding).nonzero()[:, 0]
    if len(left):
        own = left if exclude_self else None
        rows[left] = highest_cosines(unit64(queries[left]), unit64(gallery), 1, own=own)[0][:, 0]
    return rows


@dataclass(eq=False)
class _BestPair:
    """The two highest rounded cosines of each query, and where the first of them is."""

    first: Float[Tensor, "*q"]
    second: Float[Tensor, "*q"]
    rows: Int[Tensor, "*q"]

    def update(self, at: slice, first: Tensor, second: Tensor, rows: Tensor) -> None:
        """Compare what is known of some queries with the two highest of further rows."""
        known = self.first[at]
        self.second[at] = torch.maximum(
            torch.minimum(known, first), torch.maximum(self.second[at], second)
        )
        self.rows[at] = torch.where(first > known, rows, self.rows[at])
        self.first[at] = torch.maximum(known, first)


def _best_pair(rough: Float[Tensor, "q z"], gallery: Float[Tensor, "g z"]) -> _BestPair:
    columns = gallery.T.contiguous() if len(rough) > ROWS else gallery.T
    found = [_best(rough[i : i + ROWS], columns, 2, None) for i in range(0, len(rough), ROWS)]
    values, indices = (torch.cat(part) for part in zip(*found, strict=True))
    second = values[:, 1] if len(gallery) > 1 else torch.full_like(values[:, 0], -torch.inf)
    return _BestPair(values[:, 0], second, indices[:, 0])


def _best_pair_among(rough: Float[Tensor, "n z"]) -> _BestPair:
    """Compare rows with each other, every two of them once."""
    n, columns = len(rough), rough.T.contiguous()
    lowest = rough.new_full((n,), -torch.inf)
    best = _BestPair(lowest, lowest.clone(), torch.zeros(n, dtype=torch.int64, device=rough.device))
    for start in range(0, n, ROWS):
        stop = min(start + ROWS, n)
        for left in range(start, n, max(ROWS, CELLS // ROWS)):
            right = min(left + max(ROWS, CELLS // ROWS), n)
            scores = rough[start:stop] @ columns[:, left:right]
            if left == start:
                scores.fill_diagonal_(-torch.inf)
            best.update(slice(start, stop), *_first_two(scores, 1, left))
            # The rows of this block see the later ones above, and are seen by them here.
            later = scores[:, max(stop - left, 0) :]
            if later.shape[1]:
                best.update(slice(max(stop, left), right), *_first_two(later, 0, start))
    return best


def _first_two(scores: Tensor, dim: int, start: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the two highest scores along an axis, and where the first is, counted from ``start``."""
    first, at = scores.max(dim, keepdim=True)
    scores.scatter_(dim, at, -torch.inf)
    second = scores.amax(dim)
    scores.scatter_(dim, at, first)
    return first.squeeze(dim), second, at.squeeze(dim) + start


def _propose(
    queries: Float[Tensor, "r z"], columns: Float[Tensor, "z g"], count: int, own: Tensor | None
) -> tuple[Int[Tensor, "r c"], Float[Tensor, "*r"]]:
    """Return where the highest of the rounded cosines are, in rising order, and the last of them."""
    values, indices = _best(queries, columns, count, own)
    last = values[:, -1].double() if count < columns.shape[1] else values.new_full((), -torch.inf)
    return indices.sort(dim=1).values, last


def _best(
    queries: Float[Tensor, "r z"], columns: Float[Tensor, "z g"], count: int, own: Tensor | None
) -> tuple[Float[Tensor, "r c"], Int[Tensor, "r c"]]:
    """Return the highest of the rounded cosines, falling, or all, and where they are."""
    g, size = columns.shape[1], max(1, CELLS // len(queries))
    parts = []
    for start in range(0, g, size):
        scores = queries @ columns[:, start : start + size]
        _hide(scores, start, own)
        values, indices = top_of_rows(scores, count)
        parts.append((values, indices + start))
    values, indices = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    if len(parts) > 1:
        values, position = values.topk(min(count, g), dim=1)
        indices = indices.gather(1, position)
    return values, indices


def top_of_rows(scores: Float[Tensor, "r w"], count: int) -> tuple[Tensor, Tensor]:
    """Return each row's ``count`` highest scores, falling, or all: topk, but faster on wide rows."""
    # Columns are dealt to groups. A score among the highest is in one of the `count` groups of highest
    # maximum, and a maximum over strided groups is one vectorised pass where topk is many branches.
    r, w = scores.shape
    size = isqrt(w // count) // 3
    if size < 2:
        return scores.topk(min(count, w), dim=1)
    groups = w // size
    even = groups * size
    best = scores[:, :even].reshape(r, size, groups).amax(1).topk(count, dim=1).indices
    members = best[:, :, None] + groups * torch.arange(size, device=scores.device)
    left_over = torch.arange(even, w, device=scores.device).expand(r, -1)
    chosen = torch.cat([members.flatten(1), left_over], dim=1)
    values, position = scores.gather(1, chosen).topk(count, dim=1)
    return values, chosen.gather(1, position)


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
    """Order candidates, rising rows, by their float64 cosine, then by row, and keep k; -1 is none."""
    exact = queries.double()[:, None]
    # Sums row by row: a product of matrices may round equal vectors differently at different places.
    parts = chosen.split(max(1, CELLS // queries.numel()), dim=1)  # type: ignore[no-untyped-call]
    cosines = torch.cat([(exact * gallery[part].double()).sum(2) for part in parts], dim=1)
    cosines[(chosen < 0) if own is None else (chosen == own[:, None])] = -torch.inf
    if chosen.shape[1] > 8 * k:  # sorting less is faster, unless some tie for the last place
        keep = cosines >= cosines.topk(k, dim=1).values[:, -1:]
        if int(keep.sum()) == len(keep) * k:
            chosen, cosines = chosen[keep].view(-1, k), cosines[keep].view(-1, k)
    cosines, position = cosines.sort(dim=1, descending=True, stable=True)
    return chosen.gather(1, position[:, :k]), cosines[:, :k]


def as_rows(name: str, value: Any) -> Float[Tensor, "n d"]:
    """Read a finite matrix (n, d) from a tensor or an array, without gradient history."""
    rows = as_tensor(name, value)
    check_matrix(name, rows)
    return rows.detach()


def as_unit_rows(name: str, value: Any) -> Float[Tensor, "n z"]:
    """Read unit vectors (n, z) from a tensor or an array, without gradient history."""
    rows = as_rows(name, value)
    check_unit_rows(name, rows)
    return rows


def unit64(rows: Float[Tensor, "n z"]) -> Float[Tensor, "n z"]:
    """Rescale near-unit rows to unit length in float64."""
    return torch.nn.functional.normalize(rows.double(), dim=1)


class Neighbours(NamedTuple):
    """The ``k`` nearest gallery items of each query, nearest first.

    Attributes:
        indices: Rows of the gallery (q, k).
        similarities: Their cosines (q, k), not rising along a row.
    """

    indices: Tensor
    similarities: Tensor


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
        InputError: If the sets do not fit together or ``k`` is more than the gallery holds.
    """
    q, g = as_unit_rows("queries", queries), as_unit_rows("gallery", gallery)
    check_int("k", k, least=1)
    _check_comparable(q, g, k, exclude_self=exclude_self)
    indices, cosines = highest_cosines(unit64(q), unit64(g), k, exclude_self=exclude_self)
    return Neighbours(indices, cosines.clamp(-1, 1).to(q.dtype))


def nearest_distance(
    queries: Any, vectors: Any, *, exclude_self: bool = False
) -> Float[Tensor, " q"]:
    """Measure the chord from each query to the nearest vector: 0 … 2, higher is less familiar.

    It comes from differences in float64, so near duplicates do not drown in the rounding of 2 - 2 cos.

    Args:
        queries: Unit vectors (q, z).
        vectors: Unit vectors (n, z).
        exclude_self: Whether the queries are the vectors, and must not find themselves.

    Returns:
        Distances of the queries' dtype.
    """
    q, v = as_unit_rows("queries", queries), as_unit_rows("vectors", vectors)
    _check_comparable(q, v, 1, exclude_self=exclude_self)
    u, w = unit64(q), unit64(v)
    found = highest_cosines(u, w, 1, exclude_self=exclude_self)[0][:, 0]
    distance: Tensor = torch.linalg.vector_norm(u - w[found], dim=1)
    return distance.to(q.dtype)


def _check_comparable(q: Tensor, g: Tensor, k: int, *, exclude_self: bool) -> None:
    """Require one space, and k neighbours for each query."""
    if q.shape[1] != g.shape[1] or (exclude_self and len(q) != len(g)):
        raise InputError(
            f"queries {tuple(q.shape)} and gallery {tuple(g.shape)} do not fit: embed both with one model, "
            "and give the same rows twice if a row must not find itself.",
            field="queries",
        )
    available = len(g) - int(exclude_self)
    if k > available:
        raise InputError(
            f"k is {k}, but the gallery can give {available} neighbours; lower k to at most that.",
            field="k",
        )


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
    galleries = repeat(None) if gallery is None else gallery
    for sample, items in zip(samples, galleries, strict=gallery is not None):
        u = as_unit_rows("samples", sample)
        v = u if items is None else as_unit_rows("gallery", items)
        _check_comparable(u, v, 1, exclude_self=items is None)
        found.append(nearest_one(u, v, exclude_self=items is None))
    if not found:
        raise DegenerateError("there are no samples: draw at least one.", field="samples")
    return torch.stack(found)
