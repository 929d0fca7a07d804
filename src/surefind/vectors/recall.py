"""recall@1 of rows searched among each other: how often the nearest other row is the same.

Policy: a row that has no other of its own kind cannot be answered right and is left out.

Axes: ``n`` rows, ``z`` embedding.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from surefind.errors import DegenerateError, InputError
from surefind.relations import Classes, Positions, Relation
from surefind.retrieval.search import nearest


def recall_among(directions: Float[Tensor, "n z"], relation: Relation) -> float:
    """Search each row among the others.

    Args:
        directions: Unit vectors.
        relation: Labels or positions of them.

    Returns:
        The share of rows whose nearest other row is the same, among those that have such a row.

    Raises:
        InputError: If the relation is a list of pairs.
        DegenerateError: If no row has another that is the same.
    """
    if not isinstance(relation, Classes | Positions):
        raise InputError("score needs labels or positions; a PairList does not judge every pair.")
    n = len(directions)
    findable = relation.same_sums(directions.new_ones(n, 1), slice(0, n))[:, 0] > 0
    if not bool(findable.any()):
        raise DegenerateError(
            "no row has another of its own kind, so nothing can be found; give classes with two "
            "examples, or use folds that keep classes together."
        )
    found = nearest(directions, directions, 1, exclude_self=True).indices[:, 0]
    return float(is_same(relation, found)[findable].double().mean())


def is_same(relation: Classes | Positions, found: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Say of each row whether the row that it found is the same.

    Args:
        relation: Over the rows.
        found: A row number for each row.

    Returns:
        Booleans.
    """
    if isinstance(relation, Classes):
        return relation.labels == relation.labels[found]
    gap: Tensor = torch.linalg.vector_norm(
        relation.coordinates - relation.coordinates[found], dim=1
    )
    return gap <= relation.same_within
