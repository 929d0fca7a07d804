"""Which pairs to look at: all of them, or a sample of columns once all would take too long.

Labels, up to `EXACT_ROWS` examples, and positions and listed pairs always: every pair, exactly
(`surefind.vectors.pruned`, `surefind.curvature.dataset`). Beyond: `COLUMNS` random columns, with the
error of that (`surefind.vectors.sampled`).
"""

from typing import Literal

import torch
from torch import Tensor

from surefind.curvature.dataset import dataset_curvature
from surefind.curvature.outputs import Distance
from surefind.errors import InputError
from surefind.relations import Classes, Relation
from surefind.vectors.pruned import PrunedClasses
from surefind.vectors.sampled import sampled_curvature
from surefind.vectors.source import Source

EXACT_ROWS = 200_000
"""Up to this many labelled examples every pair is scanned, unless the caller says otherwise."""

COLUMNS = 8192
"""Columns that are sampled beyond, unless the caller says otherwise."""


def scan_pairs(
    source: Source,
    weights: Tensor,
    relation: Relation,
    *,
    distance: Distance,
    margin: float,
    columns: int | Literal["auto", "all"],
    generator: torch.Generator,
) -> tuple[Tensor, float]:
    """Compute the head's curvature over pairs.

    Args:
        source: The vectors.
        weights: The head (z, d + 1).
        relation: Which of them belong together.
        distance: "euclidean" or "arccos".
        margin: Squared distance up to which different pairs repel.
        columns: How many columns to sample, "all" for every pair, or "auto".
        generator: Draws the columns.

    Returns:
        The curvature (z, d + 1), unscaled and unclipped, and its relative standard error: 0.0 if every
        pair was scanned.

    Raises:
        InputError: If columns are to be sampled without labels.
    """
    if columns == "auto":
        large = isinstance(relation, Classes) and len(source) > EXACT_ROWS
        columns = COLUMNS if large else "all"
    if columns == "all":
        scanned = PrunedClasses(relation) if isinstance(relation, Classes) else relation
        outputs = source.outputs(weights)
        exact = dataset_curvature(
            source.batches(), outputs, scanned, distance=distance, margin=margin
        )
        return exact, 0.0
    if not isinstance(relation, Classes):
        raise InputError(
            'scan_columns can sample labelled examples only; take "all" for positions or pairs.'
        )
    sampled = sampled_curvature(
        source,
        weights,
        relation,
        distance=distance,
        margin=margin,
        columns=columns,
        generator=generator,
    )
    return sampled.curvature, sampled.relative_error
