"""The matrix of all pairs, block by block, so that n × n is never stored.

Axes: ``n`` examples, ``r`` rows and ``c`` columns of a block.
"""

import torch
from jaxtyping import Bool
from torch import Tensor

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
