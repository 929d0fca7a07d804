"""Highest cosines, exactly, block by block, the q × g similarities never stored.

Where classes have collapsed to tight clusters, cosines differ by less than float32 can tell, so float32
only *proposes*: it gives the best ``k + SPARE`` candidates of each query, their cosines are computed again
in float64, and a query is settled when its k-th is certainly above everything that was not proposed,

    c_k  >  c_last(float32) + (z + 4) 2^-24                (the rounding error of a float32 product)

The few others are searched in float64 throughout.

Policy: equal cosines are ordered by index. In float64 too, cosines closer than rounding are equal.

Memory is a block of ``BLOCK_ROWS × BLOCK_COLUMNS`` similarities and a float32 copy of the vectors.

Axes: ``q`` queries, ``g`` gallery, ``z`` embedding, ``k`` neighbours, ``r`` rows of a block, ``w`` its
columns, ``c`` candidates.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

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
