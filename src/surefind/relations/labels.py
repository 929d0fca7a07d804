"""What the doors take for a relation: labels of any kind, or the relation itself."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.errors import DegenerateError, InputError
from surefind.relations.classes import Classes
from surefind.relations.relation import Relation

Labels = Tensor | np.ndarray | list[Any] | Relation
"""What the doors take: a class per example, or a relation."""


def as_relation(labels: Labels) -> Relation:
    """Resolve what the doors take to a relation.

    Args:
        labels: A class per example (an integer tensor, or an array of any sortable values), or a
            relation, which comes back as it is.

    Returns:
        The relation.

    Raises:
        InputError: If the labels are not one integer per example.
        DegenerateError: If there are fewer than two examples.
    """
    if isinstance(labels, list):
        labels = np.asarray(labels)
    if isinstance(labels, np.ndarray):
        labels = torch.from_numpy(np.unique(labels, return_inverse=True)[1].reshape(labels.shape))
    if isinstance(labels, Tensor):
        if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex():
            raise InputError(
                f"labels must be one integer per example, or a relation (Classes, Positions, "
                f"PairList); got {labels.dtype} of shape {tuple(labels.shape)}."
            )
        labels = Classes(labels)
    if len(labels) < 2:
        raise DegenerateError(f"a pair needs two examples; got {len(labels)}.")
    return labels
