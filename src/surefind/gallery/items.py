"""What comes through the gallery's doors: vectors, ids, labels and payload, checked once.

Policies:

* Plain vectors have no uncertainty that is known: their κ is infinite, and they have no novelty.
* Vectors must have length 1 within `surefind.checks.UNIT_TOLERANCE`, unless ``normalize`` asks to
  rescale them. Zero vectors and NaN are refused either way. All are rescaled in float64 and kept as
  float32.
* Ids, labels and groups are read as `surefind.checks` says; ``1`` and ``"1"`` are different. No label is
  -1: in a calibration, -1 and None mean: not in the gallery.
* A payload is a dict that JSON can hold; it comes back as JSON gives it back (tuples as lists).
"""

from typing import Any

import numpy as np

from surefind.checks import as_directions, id_values, label_values, payload_values
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.gallery.engine import Id, Label

NOT_ENROLLED = -1
"""The label of a query that has no match in the gallery; None means the same."""


def read_vectors(
    embeddings: Any, *, normalize: bool, dim: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Read unit vectors, their concentrations and their novelty.

    Args:
        embeddings: `surefind.Embeddings`, or vectors (n, z) as a tensor, an array or lists.
        normalize: Whether to rescale plain vectors of any length.
        dim: The dimension that they must have, or None for any from 2 on.

    Returns:
        Unit vectors (n, z) in float32, κ (n) in float64, and p-values (n) in float64 if there are some.

    Raises:
        InputError: If they cannot be used.
    """
    if isinstance(embeddings, Embeddings):
        arrays = embeddings.numpy()
        rows, kappa, novelty = arrays.mean, arrays.kappa, arrays.novelty
    else:
        rows, kappa, novelty = embeddings, None, None
    unit = as_directions("embeddings", rows, dim=dim, normalize=normalize)
    known = np.full(len(unit), np.inf) if kappa is None else np.asarray(kappa, dtype=np.float64)
    own = None if novelty is None else np.asarray(novelty, dtype=np.float64)
    return unit, known, own


def read_ids(ids: Any) -> list[Id]:
    """Read ids that are to be distinct."""
    return id_values("ids", ids)


def read_query_ids(ids: Any, count: int) -> list[Id]:
    """Read one id per query, which may repeat; None for the number of its row."""
    return id_values("ids", range(count) if ids is None else ids, count=count, distinct=False)


def read_labels(labels: Any, count: int, *, queries: bool = False) -> list[Label]:
    """Read one label per embedding.

    Args:
        labels: A list or an array, or None if nothing has a label.
        count: How many there must be.
        queries: Whether they are of queries, where -1 means None.

    Returns:
        The labels.

    Raises:
        InputError: If their number or kind is wrong.
    """
    listed: list[Label] = [None] * count
    if labels is not None:
        listed = label_values("labels", labels, count=count)
    if queries:
        return [None if x == NOT_ENROLLED else x for x in listed]
    if NOT_ENROLLED in listed:
        raise InputError(
            f"a label must not be {NOT_ENROLLED}, which stands for 'not in the gallery'; "
            "use None for an item without a label.",
            field="labels",
        )
    return listed


def read_groups(groups: Any, count: int) -> list[Label]:
    """Read one group per embedding: a list or an array, or None if nothing has one."""
    return [None] * count if groups is None else label_values("groups", groups, count=count)


def read_payload(payload: Any, count: int) -> list[str | None]:
    """Read one payload per embedding, as JSON texts."""
    return payload_values("payload", payload, count=count)
