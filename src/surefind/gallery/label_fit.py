"""A gallery's own posterior over labels: fitted to its own items, each left out of the search for it.

A sample of at most `SAMPLE` items, alike for all labels (first one of each, then a second of each …), is
searched in the gallery twice:

    enrolled    without the item itself: its label is right, if another item has it
    unknown     without any item of its label: none is right

The items' groups are left out with them (frames of one video, photos of one session), because their near
duplicates would make leaving one out look too easy. n_l counts what is left. One pass over all vectors, a
block at a time, serves both searches: memory grows with the gallery by a few numbers an item.

Axes: ``n`` items, ``s`` sampled ones, ``k`` neighbours, ``z`` embedding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.decisions.label_posterior import LabelModel, Votes, fit_label_model, label_numbers
from surefind.decisions.verdicts import Neighbours
from surefind.gallery.engine import Engine, Found, Label, objects
from surefind.gallery.rows import highest

METADATA = "labels"
"""Where a gallery's metadata hold the fit."""

VOTERS = 100
"""Neighbours that vote."""

SAMPLE = 2000
ROWS, COLUMNS = 250, 16384
"""Cosines held at a time: 16 MB."""

GROWN = 0.1
"""Share of items by which a gallery may grow or shrink before it is fitted again."""


@dataclass(frozen=True)
class LabelFit:
    """A model of the labels, and how many items it was fitted to.

    Attributes:
        model: Turns scores and labels of neighbours into probabilities.
        items: Items that the gallery held.
    """

    model: LabelModel
    items: int

    def fits(self, items: int) -> bool:
        """Return whether a gallery of so many items is still about the same."""
        return abs(items - self.items) < max(GROWN * self.items, 1)


def fit_labels(engine: Engine, *, seed: int = 0, prior: float = 0.0) -> LabelFit:
    """Fit the posterior over labels to a gallery's own items.

    Args:
        engine: The gallery's records.
        seed: Draws the sample.
        prior: γ, which items cannot say, where queries have said it.

    Returns:
        The fit, for as many items as there are.
    """
    left = leave_out(engine, np.random.default_rng(seed)) if len(engine) else None
    model = LabelModel() if left is None else left.fit()
    return LabelFit(replace(model, prior=prior), len(engine))


def neighbours_of(found: Found, engine: Engine) -> Neighbours:
    """Make neighbours that can be judged of what a search found.

    Args:
        found: Candidates by falling cosine.
        engine: Knows how many items each label has.

    Returns:
        The nearest of them, as many as vote.
    """
    gaps, labels = found.gaps[:, :VOTERS], found.labels[:, :VOTERS]
    codes, names = label_numbers(labels)
    counts = engine.label_counts()
    # Another writer may have added a label that was not counted yet.
    sizes = np.array([*[counts.get(name) or 1 for name in names], 1])
    votes = Votes(1 - gaps, codes, sizes[codes], len(engine) - gaps.shape[1])
    return Neighbours(votes, gaps, names)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What sampled items find when they, or all items of their label, are left out.

    Attributes:
        enrolled: Neighbours by cosine of those that have a companion.
        truth: Labels of these.
        unknown: Neighbours by cosine without the own label.
    """

    enrolled: Votes
    truth: np.ndarray
    unknown: Votes

    def fit(self) -> LabelModel:
        """Fit the posterior over labels."""
        return fit_label_model(self.enrolled, self.truth, self.unknown)


def leave_out(
    engine: Engine, rng: np.random.Generator, table: "ItemTable | None" = None
) -> LeftOut | None:
    """Search sampled items without themselves, and without their label; None if nothing has a label."""
    table = read_table(engine) if table is None else table
    rows = balanced_sample(table.labels, rng)
    if not len(rows):
        return None
    vectors = engine.fetch([table.ids[row] for row in rows]).vectors
    (alone, rest), _ = left_out_votes(engine, table, rows, vectors)
    companion = table.companions(rows) > 0
    stranger = np.isfinite(rest.scores).any(axis=1)
    return LeftOut(alone.some(companion), table.labels[rows][companion], rest.some(stranger))


def left_out_votes(
    engine: Engine,
    table: "ItemTable",
    rows: Int[np.ndarray, " s"],
    vectors: Float[np.ndarray, "s z"],
    watch: "Watch | None" = None,
) -> tuple[list[Votes], list[np.ndarray]]:
    """Search labelled items without themselves and their group, and without their label too.

    Args:
        engine: The gallery's records.
        table: What is known of them.
        rows: The items.
        vectors: Theirs.
        watch: Called with all cosines, a block at a time.

    Returns:
        Their neighbours by cosine in both searches, and the rows of these (s, k).
    """
    labels, own = table.labels, table.labels[rows]
    counts = np.bincount(labels[labels >= 0])
    votes, rows_found = [], []
    searches = _search_without(engine, table, rows, vectors, watch)
    for (cosines, found), with_label in zip(searches, (True, False), strict=True):
        names = np.where(np.isfinite(cosines), labels[found], -1)
        gone = table.together.counted(table.groups[rows], names)
        if with_label:  # the item itself, unless its group took it along already
            gone = gone + ((names == own[:, None]) & (table.groups[rows] < 0)[:, None])
        sizes = np.where(names >= 0, np.maximum(counts[names] - gone, 1), 1)
        unseen = max(len(labels) - cosines.shape[1], 0)
        votes.append(Votes(cosines, names, sizes, unseen))
        rows_found.append(found)
    return votes, rows_found


def balanced_sample(
    labels: Int[np.ndarray, " n"], rng: np.random.Generator, most: int = SAMPLE
) -> Int[np.ndarray, " s"]:
    """Draw labelled rows: one of each label, then a second of each, and so on."""
    order = rng.permutation(np.flatnonzero(labels >= 0))
    by_label = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels[order]) if len(order) else np.zeros(0, dtype=np.int64)
    turn = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return by_label[np.lexsort((rng.random(len(order)), turn))][:most]


@dataclass(frozen=True, eq=False)
class ItemTable:
    """A few numbers an item: what a scan can be compared with.

    Attributes:
        ids: Of the items, by row.
        row_of: Their rows.
        labels: Theirs as numbers (n), -1 for none.
        groups: The same of their groups (n).
        kappa: Their concentrations (n).
        label_names: What the numbers of labels stand for.
        group_names: What the numbers of groups stand for.
    """

    ids: list[Any]
    row_of: dict[Any, int]
    labels: np.ndarray
    groups: np.ndarray
    kappa: np.ndarray
    label_names: list[Label]
    group_names: list[Label]

    @cached_property
    def together(self) -> "GroupLabels":
        """Items by group and label."""
        return GroupLabels.of(self.groups, self.labels)

    def companions(self, rows: Int[np.ndarray, " s"]) -> Int[np.ndarray, " s"]:
        """Return how many items of its label are left without a labelled item and its group."""
        labels, groups = self.labels[rows], self.groups[rows]
        left_out = self.together.counted(groups, labels[:, None])[:, 0] + (groups < 0)
        return np.asarray(np.bincount(self.labels[self.labels >= 0])[labels] - left_out)


def read_table(engine: Engine) -> ItemTable:
    """Read labels, groups and κ of all items."""
    ids: list[Any] = []
    labels: list[Label] = []
    groups: list[Label] = []
    kappa = []
    for records in engine.scan(COLUMNS):
        ids.extend(records.ids)
        labels.extend(records.labels)
        groups.extend(records.groups)
        kappa.append(np.array(records.kappa))
    row_of = {id_: row for row, id_ in enumerate(ids)}
    (codes, names), (sessions, called) = (
        label_numbers(objects(c, (len(ids),))) for c in (labels, groups)
    )
    return ItemTable(ids, row_of, codes, sessions, np.concatenate(kappa), names, called)


@dataclass(frozen=True, eq=False)
class GroupLabels:
    """How many items of each label each group has.

    Attributes:
        keys: Of the pairs of a group and a label that occur, rising (p).
        counts: Items of each (p).
        width: Above every label.
    """

    keys: np.ndarray
    counts: np.ndarray
    width: int

    @classmethod
    def of(cls, groups: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> "GroupLabels":
        """Count the items that have a group and a label."""
        width = int(labels.max(initial=0)) + 1
        both = (groups >= 0) & (labels >= 0)
        keys, counts = np.unique(groups[both] * width + labels[both], return_counts=True)
        return cls(keys, counts, width)

    def place(
        self, groups: Int[np.ndarray, " s"], labels: Int[np.ndarray, "s k"]
    ) -> Int[np.ndarray, "s k"]:
        """Return the pair of each group and its labels, -1 where it does not occur."""
        if not len(self.keys):
            return np.full(labels.shape, -1)
        wanted = groups[:, None] * self.width + labels
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        there = (self.keys[place] == wanted) & (groups[:, None] >= 0) & (labels >= 0)
        return np.where(there, place, -1)

    def counted(
        self, groups: Int[np.ndarray, " s"], labels: Int[np.ndarray, "s k"]
    ) -> Int[np.ndarray, "s k"]:
        """Return how many items of its labels each group has."""
        place = self.place(groups, labels)
        return np.where(place >= 0, np.append(self.counts, 0)[place], 0)


Watch = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""Called with rows of items (r), rows of others (w), and their cosines (r, w)."""


def _search_without(
    engine: Engine,
    table: ItemTable,
    rows: Int[np.ndarray, " s"],
    vectors: Float[np.ndarray, "s z"],
    watch: Watch | None = None,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return cosines and rows of the nearest items, without the own one, and without the own label."""
    count = min(VOTERS, len(table.ids))
    without_item, without_label = Best(len(rows), count), Best(len(rows), count)
    for records in engine.scan(COLUMNS):
        place = np.array([table.row_of[id_] for id_ in records.ids])
        labels, groups = table.labels[place], table.groups[place]
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            own = rows[part]
            cosines = vectors[part] @ records.vectors.T
            if watch is not None:
                watch(own, place, cosines)
            cosines[place == own[:, None]] = -np.inf
            if (groups >= 0).any():
                cosines[(groups == table.groups[own][:, None]) & (groups >= 0)] = -np.inf
            without_item.take(part, cosines, place)
            cosines[labels == table.labels[own][:, None]] = -np.inf
            without_label.take(part, cosines, place)
    return without_item.ordered(), without_label.ordered()


class Best:
    """The highest cosines of some items so far, and the rows that they are with.

    Args:
        items: How many items.
        count: How many cosines are kept of each.
    """

    def __init__(self, items: int, count: int) -> None:
        self._values = np.full((items, count), -np.inf, dtype=np.float32)
        self._rows = np.zeros((items, count), dtype=np.int64)

    def take(
        self, part: slice, cosines: Float[np.ndarray, "r w"], place: Int[np.ndarray, " w"]
    ) -> None:
        """Put new cosines of some items, with these rows, among the highest so far."""
        count = self._values.shape[1]
        new, columns = highest(cosines, count)
        values = np.concatenate([self._values[part], new], axis=1)
        rows = np.concatenate([self._rows[part], place[columns]], axis=1)
        self._values[part], kept = highest(values, count)
        self._rows[part] = np.take_along_axis(rows, kept, axis=1)

    def ordered(self) -> tuple[Float[np.ndarray, "s k"], Int[np.ndarray, "s k"]]:
        """Return the cosines, falling, and their rows."""
        order = np.argsort(-self._values, axis=1, kind="stable")
        values, rows = (np.take_along_axis(x, order, axis=1) for x in (self._values, self._rows))
        return values.astype(np.float64), rows
