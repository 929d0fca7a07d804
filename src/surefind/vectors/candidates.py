"""Finding the few large entries of a matrix of similarities.

Most pairs of a large set are far apart. A comparison of every entry, and a list of where it held, costs
as much as the product itself; a maximum over groups of columns is one vectorised pass, and only groups
whose maximum is large are looked into.

Axes: ``r`` rows, ``c`` columns, ``m`` entries found.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

GROUP = 16
"""Columns that are looked at through their maximum."""


def entries_above(
    scores: Float[Tensor, "r c"], threshold: float
) -> tuple[Int[Tensor, " m"], Int[Tensor, " m"]]:
    """List the entries that are at least a threshold.

    Args:
        scores: Any matrix.
        threshold: What to compare with.

    Returns:
        Their rows and columns, in no particular order.
    """
    c = scores.shape[1]
    groups = c // GROUP
    even = groups * GROUP
    # Column j of the even part is in group j mod groups, so that the maximum runs over whole vectors.
    best = scores[:, :even].view(len(scores), GROUP, groups).amax(1)
    row, group = (best >= threshold).nonzero().T
    members = group[:, None] + groups * torch.arange(GROUP, device=scores.device)
    hit, which = (scores[row[:, None], members] >= threshold).nonzero().T
    row_left, column_left = (scores[:, even:] >= threshold).nonzero().T
    return (
        torch.cat([row[hit], row_left]),
        torch.cat([members[hit, which], column_left + even]),
    )
