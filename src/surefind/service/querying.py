"""Queries of many callers, searched in one call and taken apart again.

The calibration looks at its own number of neighbours, whatever k is asked for, so that searching with the
largest k of all and cutting gives each caller the same answer as searching alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from surefind.embeddings import Embeddings
from surefind.gallery.answers import Answers
from surefind.gallery.gallery import Gallery
from surefind.gallery.items import read_vectors
from surefind.validation import UNIT_TOLERANCE


@dataclass(frozen=True, eq=False)
class Query:
    """What one caller asks.

    Attributes:
        vectors: Unit vectors (q, z), float32, of the gallery's dimension.
        kappa: Their concentrations (q).
        k: How many neighbours of each.
    """

    vectors: np.ndarray
    kappa: np.ndarray
    k: int

    @classmethod
    def read(cls, gallery: Gallery, vectors: Any, kappa: Sequence[float | None], k: int) -> "Query":
        """Check what a caller sent, so that it cannot spoil the batch.

        Args:
            gallery: What will be searched.
            vectors: Finite numbers (q, z).
            kappa: Not negative; None for infinite ones.
            k: How many neighbours.

        Returns:
            The query.
        """
        rows = np.array(vectors, dtype=np.float64)
        with np.errstate(over="ignore"):
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        fits = rows.shape[1] == gallery.dim and bool((abs(lengths - 1) <= UNIT_TOLERANCE).all())
        if fits:
            unit = (rows / lengths).astype(np.float32)
        else:  # the gallery's own door, which is slower, rescales the vectors or says what is wrong
            unit, _ = read_vectors(rows, normalize=gallery.normalize, dim=gallery.dim)
        return cls(unit, concentrations(kappa), k)


def concentrations(kappa: Sequence[float | None]) -> np.ndarray:
    """Read concentrations from JSON, where null stands for infinite ones."""
    return np.array([math.inf if value is None else value for value in kappa], dtype=np.float64)


def search_together(gallery: Gallery, queries: list[Query]) -> list[Answers]:
    """Search for several callers at once.

    Args:
        gallery: Where.
        queries: What each asks.

    Returns:
        What each gets.
    """
    together = Embeddings(
        np.concatenate([q.vectors for q in queries]), np.concatenate([q.kappa for q in queries])
    )
    found = gallery.search(together, k=max(q.k for q in queries))
    stops = np.cumsum([len(q.vectors) for q in queries]).tolist()
    return [
        _part(found, stop - len(query.vectors), stop, query.k)
        for query, stop in zip(queries, stops, strict=True)
    ]


def _part(found: Answers, start: int, stop: int, k: int) -> Answers:
    table: dict[str, Any] = {name: getattr(found, name)[start:stop, :k] for name in TABLES}
    rows: dict[str, Any] = {
        name: None if getattr(found, name) is None else getattr(found, name)[start:stop]
        for name in ("probability", "decision", "reasons")
    }
    return replace(found, **table, **rows)


TABLES = ("ids", "labels", "scores", "kappa", "payload")
"""What `Answers` holds per neighbour."""
