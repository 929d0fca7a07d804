"""Queries of many callers, searched in one call and taken apart again.

The calibration looks at its own number of neighbours, whatever k is asked for, so that searching with the
largest k of all and cutting gives each caller the same answer as searching alone. A query that cannot be
searched is told so, and does not spoil the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefind.apps.service.messages import Pictured, written
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.gallery.gallery import Gallery
from surefind.gallery.items import read_vectors
from surefind.validation import UNIT_TOLERANCE

Vectors = Sequence[Sequence[float]]


@dataclass(frozen=True, eq=False)
class Query:
    """What one caller asks.

    Attributes:
        vectors: Finite numbers, in rows of one length.
        kappa: Their concentrations, not negative; None for infinite ones.
        k: How many neighbours of each.
    """

    vectors: Vectors
    kappa: Sequence[float | None]
    k: int


@dataclass(frozen=True, eq=False)
class Reply:
    """What one caller gets.

    Attributes:
        answers: As `surefind.apps.service.messages` writes them, one for each vector.
        vectors: What was searched with: unit vectors (q, z), float32.
        rank: What the neighbours are ordered by.
        stale: Whether the gallery has changed since it was calibrated.
    """

    answers: list[dict[str, Any]]
    vectors: np.ndarray
    rank: str
    stale: bool


def search_together(
    gallery: Gallery, pictured: Pictured, queries: Sequence[Query]
) -> list[Reply | Exception]:
    """Search for several callers at once.

    Args:
        gallery: Where.
        pictured: Which items have a picture.
        queries: What each asks.

    Returns:
        What each gets: a reply, or what is wrong with the query.
    """
    try:
        return list(_searched(gallery, pictured, queries))
    except InputError as error:
        if len(queries) == 1:
            return [error]
    # Somebody's vectors cannot be used. Reading is cheap, so all are read again, one by one.
    outcomes: list[Any] = [_readable(gallery, query) for query in queries]
    good = [n for n, wrong in enumerate(outcomes) if wrong is None]
    if good:
        replies = _searched(gallery, pictured, [queries[n] for n in good])
        for n, reply in zip(good, replies, strict=True):
            outcomes[n] = reply
    return outcomes


def concentrations(kappa: Sequence[float | None]) -> np.ndarray:
    """Read concentrations from JSON, where null stands for infinite ones."""
    return np.array([math.inf if value is None else value for value in kappa], dtype=np.float64)


def _searched(gallery: Gallery, pictured: Pictured, queries: Sequence[Query]) -> list[Reply]:
    vectors = _unit(gallery, [vector for query in queries for vector in query.vectors])
    kappa = concentrations([value for query in queries for value in query.kappa])
    made = gallery.calibration
    quantiles = None if made is None else made.log_kappa_quantiles
    found = gallery.search(Embeddings(vectors, kappa), k=max(query.k for query in queries))
    ks = [query.k for query in queries for _ in query.vectors]
    answers = written(found, kappa, ks, quantiles, pictured)
    replies, start = [], 0
    for query in queries:
        own = slice(start, start + len(query.vectors))
        replies.append(Reply(answers[own], vectors[own], found.rank, found.stale))
        start = own.stop
    return replies


def _unit(gallery: Gallery, vectors: Vectors) -> np.ndarray:
    dim = gallery.dim
    if dim is None:
        raise DegenerateError("the gallery is empty, so nothing can be found; add items first.")
    odd = next((vector for vector in vectors if len(vector) != dim), None)
    if odd is not None:
        raise InputError(
            f"a vector has {len(odd)} dimensions and the gallery {dim}; embed both with one model."
        )
    rows = np.array(vectors, dtype=np.float64)
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if (abs(lengths - 1) <= UNIT_TOLERANCE).all():
        return np.asarray(rows / lengths, dtype=np.float32)
    # The gallery's own door, which is slower, rescales the vectors or says what is wrong.
    return read_vectors(rows, normalize=gallery.normalize, dim=dim)[0]


def _readable(gallery: Gallery, query: Query) -> InputError | None:
    try:
        _unit(gallery, query.vectors)
    except InputError as error:
        return error
    return None
