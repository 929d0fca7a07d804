"""Filters: only items with certain labels, or with certain values in their payload.

    labels                      the item's label is one of these; null: it has none
    where {"site": "north"}     payload["site"] is "north"
    where {"year": [7, 8]}      payload["year"] is 7 or 8

All conditions must hold. Values are strings, numbers, true, false or null, and equal only to their own
kind: 1 is neither "1" nor true. A key that a payload does not have equals nothing, not even null. Keys are
names at the top of a payload, never paths or patterns, so a filter cannot ask for more than a lookup.

**A filtered search decides nothing.** A calibration was tested on answers of the whole gallery. Among some
of the items other neighbours vote, a query whose label was filtered out has become unknown, and the share
of such queries is nobody's guess: neither the probability nor the bound on wrong matches speaks of it. So
label, probability and decision are null, with a reason; the gate, which looks at the query alone, still
speaks. Such queries are neither watched nor reviewed, for they are not like those to come.

It reads every item, and so is exact, and takes time in proportion to the gallery; past the time limit it
ends, so that nobody waits for what nobody gets.
"""

import heapq
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from surefind.embeddings import kappa_from_json, kappa_to_json
from surefind.gallery.answers import Item
from surefind.gallery.engine import Label, exact_gaps
from surefind.gallery.gallery import Gallery
from surefind.service import wire
from surefind.service.batching import HasPicture, Query, Reply, surer_than, unit_vectors
from surefind.service.problems import invalid_sentence
from surefind.service.wire import RefusedError

REASON = "filtered: the calibration speaks of the whole gallery, so nothing is decided"
BLOCK = 512
"""Items compared at a time."""


@dataclass(frozen=True)
class Filter:
    """Which items to look at.

    Attributes:
        labels: Those that an item may have; None for any.
        where: For keys of the payload, the values that each may have, told apart by kind.
    """

    labels: frozenset[Label] | None
    where: tuple[tuple[str, frozenset[Any]], ...]

    def admits(self, item: Item) -> bool:
        """Return whether to look at an item."""
        if self.labels is not None and item.label not in self.labels:
            return False
        own = item.payload or {}
        return all(key in own and _kind(own[key]) in values for key, values in self.where)


def read_filter(where: dict[str, Any] | None, labels: Sequence[Label] | None) -> Filter | None:
    """Return the filter of a request; None if it has none."""
    if where is None and labels is None:
        return None
    conditions = [
        (key, frozenset(map(_kind, value if isinstance(value, list) else [value])))
        for key, value in (where or {}).items()
    ]
    return Filter(None if labels is None else frozenset(labels), tuple(conditions))


def read_where(text: str | None) -> dict[str, Any] | None:
    """Read the conditions of a query string, which are JSON."""
    try:
        return None if text is None else TypeAdapter(wire.Where).validate_json(text)
    except ValidationError as error:
        raise RefusedError(422, f"where: {invalid_sentence(error.errors())}") from error


def search_filtered(
    gallery: Gallery,
    has_picture: HasPicture,
    query: Query,
    chosen: Filter,
    seconds: float | int,
) -> Reply:
    """Find the nearest items that a filter admits, within some seconds, and decide nothing."""
    vectors = unit_vectors(gallery, query.vectors)
    kappa = np.array([kappa_from_json(value) for value in query.kappa])
    made = gallery.calibration
    surer = surer_than(None if made is None else made.log_kappa_quantiles, kappa)
    p_values: Sequence[float | None] = query.novelty or [None] * len(vectors)
    gates: list[Any] = [None] * len(vectors)
    if query.novelty is not None and made is not None and made.gate is not None:
        gates = made.gate.outcome(np.array(query.novelty)).tolist()
    found = _nearest(gallery, vectors, query.k, chosen, time.monotonic() + seconds)
    answers = [
        {
            **dict.fromkeys(("label", "none", "decision", "probability", "vector", "review")),
            "label_probability": [],
            "evidence": [],
            "reasons": [REASON],
            "kappa": kappa_to_json(float(own)),
            "surer_than": share,
            "novelty": novelty,
            "gate": gate,
            "neighbours": [_neighbour(gap, item, has_picture) for gap, item in near],
        }
        for near, own, share, novelty, gate in zip(
            found, kappa, surer, p_values, gates, strict=True
        )
    ]
    return Reply(answers, vectors, stale=False)


def _nearest(
    gallery: Gallery, vectors: np.ndarray, k: int, chosen: Filter, deadline: float
) -> list[list[tuple[float, Item]]]:
    """Return 1 - cosine and item of the k nearest that are admitted, for each query, nearest first."""
    best: list[list[tuple[float, Item]]] = [[] for _ in vectors]
    every = gallery.items()
    while block := [*islice(every, BLOCK)]:
        if time.monotonic() > deadline:
            raise RefusedError(504, "the filtered search took too long; ask for fewer vectors.")
        items = [item for item in block if chosen.admits(item)]
        if not items:
            continue
        stacked = np.stack([item.vector for item in items])
        gaps = exact_gaps(vectors, np.broadcast_to(stacked, (len(vectors), *stacked.shape)))
        # Equal ones are ordered by id, so all that are as near as the k-th stay for now.
        limit = np.sort(gaps, axis=1)[:, min(k, len(items)) - 1]
        for row, (own, most) in enumerate(zip(gaps, limit, strict=True)):
            near = [(float(own[c]), items[c]) for c in np.flatnonzero(own <= most)]
            best[row] = _smallest(k, [*best[row], *near])
    return best


def _smallest(k: int, pairs: Iterable[tuple[float, Item]]) -> list[tuple[float, Item]]:
    return heapq.nsmallest(k, pairs, key=lambda p: (p[0], isinstance(p[1].id, str), p[1].id))


def _neighbour(gap: float, item: Item, has_picture: HasPicture) -> dict[str, Any]:
    return {
        "id": item.id,
        "label": item.label,
        "score": 1 - gap,
        "kappa": kappa_to_json(item.kappa),
        "payload": item.payload,
        "image": has_picture(item.id, item.payload),
    }


def _kind(value: Any) -> Any:
    """Tell true from 1; lists and objects in a payload equal nothing."""
    if isinstance(value, list | dict):
        return (type(value), id(value))
    return (isinstance(value, bool), value)
