"""The queries of a calibration, kept so that it can be renewed: given ones, or the gallery's own items.

**Given** queries were held out from the gallery. A query that is an item of it after all, by its id or
because its vector is the same, is answered without that item.

**Items** play queries where there are no others (`draw_items`). Each item drawn plays one of two parts:

    enrolled   it is answered without itself; its label is right, if another item has it
    unknown    it is answered without any item of its label; none is right

and a share of them that the user states is unknown. Items of the same group (frames of one video, photos
of one session) are left out with it, and so are its *near-duplicates*, which would make leaving one out
look too easy: a gallery in which each item occurs twice would answer everything right. What counts as one
is read off the gallery (`copies_below`). An item that has no companion left plays no enrolled query.

The promise of such a calibration is about queries that are like the items. It is not exact either: items
are each other's gallery, so their answers are not independent, and an enrolled query finds one item less
than it will. Held-out queries are better.

Axes: ``q`` queries, ``z`` embedding, ``k`` neighbours.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.decisions.seal import sealed, unsealed
from surefind.embeddings import kappa_from_json, kappa_to_json, novelty_from_json, novelty_to_json
from surefind.errors import DegenerateError
from surefind.gallery.engine import Engine, Id, Label
from surefind.gallery.label_fit import read_table

METADATA = "queries"
"""Where a gallery's metadata hold them."""

SAME = 1e-12
"""1 - cosine of vectors that are one and the same: float32 tells others from them."""

MOST_ITEMS = 4000
"""Items that play queries."""

CERTAIN = 1e-6
"""1 - cosine below which two items are copies for certain: float32 hardly tells them apart."""

COMPARED = 5
"""Nearest items of its own label that are looked at for near-duplicates: as many copies are found."""

STEP = 0.25
"""Width, in decades, of the bins in which gaps are counted."""

EMPTY, APART, FEWEST = 0.05, 1.0, 0.01
"""A valley between copies and others has at most this share of the lower hill's height, the hills are so
many decades apart, and each holds this share of the gaps."""


@dataclass(frozen=True, eq=False)
class CalibrationQueries:
    """Queries with what is known of them.

    Attributes:
        vectors: Unit vectors (q, z), float32.
        kappa: Concentrations (q), float64.
        novelty: p-values (q), or None if they came without.
        labels: Theirs; None for a query of which only is known that it was not enrolled.
        ids: Of the items that they are, None where they are none.
        groups: Given ones: for thresholds of their own. Items: what is left out with them.
        stranger: Whether items of the own label are left out (q).
        items: Whether the gallery's own items play the queries.
        copies: 1 - cosine up to which an item is the query itself, or its copy.
        live: Which are reviewed live queries, a random share of all (q); `surefind.gallery.review_sample`.
    """

    vectors: np.ndarray
    kappa: np.ndarray
    novelty: np.ndarray | None
    labels: Sequence[Label]
    ids: Sequence[Id | None]
    groups: Sequence[Any]
    stranger: np.ndarray
    items: bool
    copies: float
    live: np.ndarray

    def __len__(self) -> int:
        return len(self.vectors)

    def some(self, rows: np.ndarray) -> "CalibrationQueries":
        """Return some of them, by row numbers."""
        listed: dict[str, Any] = {
            name: [getattr(self, name)[row] for row in rows.tolist()]
            for name in ("labels", "ids", "groups")
        }
        novelty = None if self.novelty is None else self.novelty[rows]
        arrays = {
            name: getattr(self, name)[rows] for name in ("vectors", "kappa", "stranger", "live")
        }
        return replace(self, novelty=novelty, **listed | arrays)

    @classmethod
    def held_out(
        cls,
        vectors: Float[np.ndarray, "q z"],
        kappa: Float[np.ndarray, " q"],
        novelty: Float[np.ndarray, " q"] | None,
        labels: Sequence[Label],
        ids: Sequence[Id] | None,
        groups: Sequence[Any] | None,
        *,
        live: bool = False,
    ) -> "CalibrationQueries":
        """Return queries that were held out from the gallery; ``live``: reviewed ones."""
        count = len(vectors)
        return cls(
            vectors,
            kappa,
            novelty,
            labels,
            [None] * count if ids is None else ids,
            [None] * count if groups is None else list(groups),
            np.zeros(count, dtype=bool),
            items=False,
            copies=SAME,
            live=np.full(count, live),
        )

    def joined(self, live: "CalibrationQueries") -> "CalibrationQueries":
        """Add reviewed live queries in place of those that are among these.

        Novelty stays only if both have it.

        Args:
            live: The reviewed ones.

        Returns:
            These, if they were held out, and the reviewed ones. The gallery's own items are left out: they
            only stand for queries.
        """
        rest = self.some(np.flatnonzero(~self.live & (not self.items)))
        if not len(rest):
            return live
        both = (rest, live)
        known = all(part.novelty is not None for part in both)
        arrays = [
            *("vectors", "kappa", "stranger", "live"),
            *(["novelty"] if known else []),
        ]
        listed = ("labels", "ids", "groups")
        changes: dict[str, Any] = {"novelty": None}
        changes |= {name: np.concatenate([getattr(p, name) for p in both]) for name in arrays}
        changes |= {name: [x for p in both for x in getattr(p, name)] for name in listed}
        return replace(rest, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return them as what JSON can hold; the vectors as bytes of float32 in base64."""
        novelty = (
            None if self.novelty is None else list(map(novelty_to_json, self.novelty.tolist()))
        )
        return sealed({
            "dimension": self.vectors.shape[1],
            "vectors": base64.b64encode(self.vectors.astype("<f4").tobytes()).decode(),
            "kappa": list(map(kappa_to_json, self.kappa.tolist())),
            "novelty": novelty,
            "labels": list(self.labels),
            "ids": list(self.ids),
            "groups": list(self.groups),
            "stranger": self.stranger.tolist(),
            "items": self.items,
            "copies": self.copies,
            "live": self.live.tolist(),
        })

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CalibrationQueries":
        """Return what `to_json` wrote; refuse what was edited since."""
        value = unsealed(value, "what is kept of the calibration's queries")
        vectors = np.frombuffer(base64.b64decode(value["vectors"]), dtype="<f4")
        novelty = value["novelty"]
        return cls(
            vectors.reshape(-1, value["dimension"]).astype(np.float32),
            np.array(list(map(kappa_from_json, value["kappa"]))),
            None if novelty is None else np.array(list(map(novelty_from_json, novelty))),
            value["labels"],
            value["ids"],
            value["groups"],
            np.array(value["stranger"], dtype=bool),
            items=value["items"],
            copies=value["copies"],
            live=np.array(value["live"], dtype=bool),
        )


def given(values: Sequence[Any]) -> Bool[np.ndarray, " q"]:
    """Return which of some values are not None."""
    return np.array([value is not None for value in values], dtype=bool)


def draw_items(
    engine: Engine,
    unknown_share: float,
    rng: np.random.Generator,
    *,
    most: int = MOST_ITEMS,
) -> CalibrationQueries:
    """Draw items of a gallery to play queries; near-duplicates are not known yet.

    Args:
        engine: The gallery's records.
        unknown_share: Share of the queries that are unknown, from 0 to below 1.
        rng: Draws the items.
        most: How many to draw at most.

    Returns:
        Queries, the enrolled ones first.

    Raises:
        DegenerateError: If no item has a label, or no label has two items.
    """
    table = read_table(engine)
    counts = np.bincount(table.labels[table.labels >= 0]) if (table.labels >= 0).any() else None
    if counts is None or (unknown_share < 1 and counts.max() < 2):
        raise DegenerateError(
            "the gallery's own items cannot play queries: no label has two of them, so none could be "
            "found again.",
            field="embeddings",
            hint="Add a second item of some labels, or calibrate with held-out queries.",
        )
    order = rng.permutation(np.flatnonzero(table.labels >= 0))
    paired = counts[table.labels[order]] > 1
    total = min(most, len(order), int(paired.sum() / (1 - unknown_share)))
    enrolled = order[paired][: total - round(unknown_share * total)]
    unknown = np.setdiff1d(order, enrolled, assume_unique=True)
    unknown = rng.permutation(unknown)[: round(unknown_share * total)]
    rows = np.concatenate([enrolled, unknown])
    ids = [table.ids[row] for row in rows.tolist()]
    records = engine.fetch(ids)
    novelty = None if np.isnan(records.novelty).any() else records.novelty
    return CalibrationQueries(
        records.vectors,
        records.kappa,
        novelty,
        list(records.labels),
        ids,
        list(records.groups),
        np.arange(len(rows)) >= len(enrolled),
        items=True,
        copies=CERTAIN,
        live=np.zeros(len(rows), dtype=bool),
    )


def copies_below(gaps: Float[np.ndarray, "q k"], same_label: Bool[np.ndarray, "q k"]) -> float:
    """Return 1 - cosine below which items of one label are copies of each other.

    Gaps to the nearest items of the own label spread over a decade or two. Where there are copies (the same
    photograph in two sizes, neighbouring frames), gaps to these form a hill of their own, decades below.
    With counts of log10 gaps in steps of a quarter, the gap at the bottom of the deepest valley between two
    hills is returned, or that of copies for certain if there is none.

    Args:
        gaps: 1 - cosine of each query's neighbours, rising, without itself; infinite where there is none.
        same_label: Which of them have the query's label.

    Returns:
        The bound.
    """
    nearest = np.where(same_label, np.cumsum(same_label, axis=1), COMPARED + 1) <= COMPARED
    logs = np.log10(np.maximum(gaps[nearest & np.isfinite(gaps)], CERTAIN / 10))
    logs = logs[logs > np.log10(CERTAIN)]
    if len(logs) < 2 / FEWEST:
        return CERTAIN
    counts = np.bincount(((logs - logs.min()) / STEP).astype(int))
    best, bound = 0.0, CERTAIN
    for valley in range(1, len(counts) - 1):
        below, above = counts[:valley], counts[valley + 1 :]
        lower = min(below.max(), above.max())
        steps = valley + 1 + above.argmax() - below.argmax()
        enough = min(below.sum(), above.sum()) >= FEWEST * len(logs)
        deep = counts[valley] <= EMPTY * lower
        if enough and deep and steps * STEP >= APART and lower - counts[valley] > best:
            best = float(lower - counts[valley])
            bound = float(10 ** (logs.min() + STEP * (valley + 0.5)))
    return bound
