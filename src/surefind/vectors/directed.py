"""Rows that have a direction: the others are left out before anything is learnt."""

import warnings
from dataclasses import replace

import numpy as np
import torch

from surefind.errors import InputError
from surefind.relations import Classes, Positions, Relation
from surefind.vectors.source import Source


def without_zero_rows(source: Source, relation: Relation) -> tuple[Source, Relation]:
    """Leave rows without a direction out, with a warning.

    Args:
        source: The vectors.
        relation: Over its rows.

    Returns:
        Both without these rows: the same two if there are none.

    Raises:
        InputError: If y is a list of pairs, from which rows cannot be left out.
    """
    zero = source.zero_rows()
    if len(zero) == 0:
        return source, relation
    known = np.delete(np.arange(len(source)), zero)
    rows = torch.from_numpy(known)
    left: Relation
    if isinstance(relation, Classes):
        left = Classes(relation.labels[rows])
    elif isinstance(relation, Positions):
        left = replace(relation, coordinates=relation.coordinates[rows])
    else:
        raise InputError(
            f"{len(zero)} rows of X are zero, the first at {zero[0]}: a zero vector has no direction. "
            "Leave these rows and their pairs out."
        )
    warnings.warn(
        f"{len(zero)} rows of X are zero, the first at {zero[0]}, and have no direction; they are left "
        "out of the fit. Often they stand for inputs that could not be read.",
        UserWarning,
        stacklevel=3,
    )
    return Source(source.matrix[known]), left
