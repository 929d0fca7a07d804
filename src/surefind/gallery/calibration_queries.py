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

**Reviewed** queries are those that people decided, as far as a calibration may use them: it needs queries
drawn like those to come. Queries that were asked about because they were doubtful are not: sure answers,
right or wrong, are missing among them, and no exact binomial bound holds for a weighted sample. So a
service draws a number u, uniform on (0, 1), for every query that it answers, independently of everything
about the query, and the query is *sampled* if

    u < share

whatever was decided about it. Sampled queries are drawn like all live ones. Three things could still spoil
that, and `usable_rows` leaves out what would:

- **Easy ones are decided first.** Sampled queries count in the order in which they were asked, up to the
  first that is not decided yet; what was decided behind it waits for it. Where that is because it is hard,
  the end of the run is not random, by that one query.
- **The share changed**, and periods would count unequally. For a share s, all queries since the last one
  that was sampled with a smaller share are thinned to u < s; they are then a share s of all in that time.
  Of the shares that occurred, the one that leaves the most queries is taken. That looks at the numbers
  drawn and at the order of questions, not at answers.
- **The model changed**: queries count since then.

What is assumed: the decisions of people are right; callers who ask that a query is not kept do not choose
these by how hard they are; and nobody calibrates again and again until the result pleases, or adds items
chosen by how sampled queries were answered.

Axes: ``q`` queries, ``z`` embedding, ``k`` neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError
from surefind.files import Array
from surefind.gallery.engine import Engine, Id, Label
from surefind.gallery.label_fit import read_table

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
        live: Which are reviewed live queries, a random share of all (q); see above.
    """

    vectors: Array
    kappa: Array
    novelty: Array | None
    labels: Sequence[Label]
    ids: Sequence[Id | None]
    groups: Sequence[Any]
    stranger: Array
    items: bool
    copies: float
    live: Array

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


def given(values: Sequence[Any]) -> Bool[np.ndarray, " q"]:
    """Return which of some values are not None."""
    return np.array([value is not None for value in values], dtype=bool)


def draw_items(
    engine: Engine, unknown_share: float, rng: np.random.Generator
) -> CalibrationQueries:
    """Draw items of a gallery to play queries; near-duplicates are not known yet.

    Args:
        engine: The gallery's records.
        unknown_share: Share of the queries that are unknown, from 0 to below 1.
        rng: Draws the items.

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
    total = min(MOST_ITEMS, len(order), int(paired.sum() / (1 - unknown_share)))
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


@dataclass(frozen=True)
class Draw:
    """What is remembered of the draw of a sampled query.

    Attributes:
        u: The number drawn, below the share.
        share: The share then.
        model: The name of the model that embedded it.
        decided: Whether a person has decided.
    """

    u: float
    share: float
    model: str | None
    decided: bool


@dataclass(frozen=True)
class ReviewCounts:
    """How many reviewed queries a calibration may use, and why not the others.

    Attributes:
        usable: Sampled, decided, and none before them waits.
        waiting: Sampled, and not decided yet.
        behind: Sampled and decided, but asked after one that waits.
        uneven: Sampled with another share or model than those that count.
        doubtful: Decided, but asked about only because they were doubtful.
    """

    usable: int
    waiting: int
    behind: int
    uneven: int
    doubtful: int

    @property
    def summary(self) -> str:
        """What can be used, and what is left out and why."""
        reasons = {
            "were asked about because they were doubtful": self.doubtful,
            "were asked after one that is not decided yet": self.behind,
            "were sampled with another share or by another model": self.uneven,
        }
        left = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        said = f"{self.usable:,} reviewed random checks can be used, {self.waiting:,} wait."
        return f"{said} Left out: {'; '.join(left)}." if left else said


@dataclass(frozen=True, eq=False)
class ReviewSample:
    """A random share of live queries, reviewed.

    Attributes:
        queries: Their embeddings, with novelty if all have it.
        labels: Theirs; None for one that is not in the gallery.
        model: The name of the model that embedded them.
        counts: How many there are, and what was left out.
    """

    queries: Embeddings
    labels: list[Label]
    model: str | None
    counts: ReviewCounts

    def __len__(self) -> int:
        return len(self.labels)


def usable_rows(draws: Sequence[Draw], doubtful: int) -> tuple[list[int], ReviewCounts]:
    """Choose the sampled queries that a calibration may use.

    Args:
        draws: Of all sampled queries, in the order in which they were asked.
        doubtful: Queries that were decided and not sampled, to be counted.

    Returns:
        Rows of ``draws``, and the counts.
    """
    rows = list(range(len(draws)))
    since = max((i + 1 for i in rows if draws[i].model != draws[-1].model), default=0)
    even: list[int] = []
    for share in sorted({draw.share for draw in draws}):
        start = max((i + 1 for i in rows if draws[i].share < share), default=0)
        thinned = [i for i in rows[max(start, since) :] if draws[i].u < share]
        even = max(even, thinned, key=len)
    usable = list(takewhile(lambda i: draws[i].decided, even))
    behind = sum(draws[i].decided for i in even) - len(usable)
    counts = ReviewCounts(
        usable=len(usable),
        waiting=len(even) - len(usable) - behind,
        behind=behind,
        uneven=len(draws) - len(even),
        doubtful=doubtful,
    )
    return usable, counts
