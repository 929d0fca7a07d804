"""A gallery's own posterior over labels: fitted to its own items, each left out of the search for it.

A sample of at most `SAMPLE` items, alike for all labels (first one of each, then a second of each …), is
searched in the gallery twice:

    enrolled    without the item itself: its label is right, if another item has it
    unknown     without any item of its label: none is right

The items' groups are left out with them (frames of one video, photos of one session), because their near
duplicates would make leaving one out look too easy. n_l counts what is left. One pass over all vectors, a
block at a time, serves both searches: memory grows with the gallery by a few numbers an item.

Both weightings of `surefind.decisions.label_posterior` are fitted, where every item has a finite κ; the
match score is taken only if it lowers the log loss of the left-out items' labels by more than chance.

Axes: ``n`` items, ``s`` sampled ones, ``k`` neighbours, ``z`` embedding.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from surefind.decisions.label_posterior import (
    LabelModel,
    Votes,
    fit_label_model,
    label_losses,
    label_numbers,
)
from surefind.decisions.probability import BEYOND_CHANCE
from surefind.decisions.verdicts import Neighbours
from surefind.gallery.engine import Engine, Label, Metadata, objects
from surefind.gallery.ranking import Found, match_scores
from surefind.neighbours import top_of_rows

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

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Metadata) -> "LabelFit":
        """Return what `to_json` wrote."""
        return cls(LabelModel(**value["model"]), value["items"])


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
    model = LabelModel() if left is None else fit_left_out(left)
    return LabelFit(replace(model, prior=prior), len(engine))


def fit_left_out(left: "LeftOut") -> LabelModel:
    """Fit the posterior over labels to what left-out items find; by κ too, if that is better."""
    model = fit_label_model(left.enrolled, left.truth, left.unknown)
    if left.scale is not None and model.nats is not None:
        by_match = left.by_match()
        other = fit_label_model(*by_match, weighting="match", scale=left.scale)
        gain = label_losses(left.enrolled, left.truth, model) - label_losses(
            by_match[0], left.truth, other
        )
        if gain.mean() > BEYOND_CHANCE * gain.std() / np.sqrt(len(gain)):
            return other
    return model


def neighbours_of(
    found: Found,
    kappa: Float[np.ndarray, " q"],
    dim: int,
    model: LabelModel,
    engine: Engine,
) -> Neighbours:
    """Make neighbours that can be judged of what a search found.

    Args:
        found: Candidates by falling cosine.
        kappa: The queries' concentrations.
        dim: The vectors' dimension.
        model: Says which score it takes.
        engine: Knows how many items each label has.

    Returns:
        The nearest of them, as many as vote.
    """
    gaps, labels = found.gaps[:, :VOTERS], found.labels[:, :VOTERS]
    scores = 1 - gaps
    if model.weighting == "match":
        near = np.where(np.isfinite(gaps), gaps, 2.0)
        match = match_scores(near, kappa, found.kappa[:, :VOTERS], dim)
        scores = np.where(np.isfinite(gaps), match, -np.inf)
    codes, names = label_numbers(labels)
    counts = engine.label_counts()
    # Another writer may have added a label that was not counted yet.
    sizes = np.array([*[counts.get(name) or 1 for name in names], 1])
    votes = Votes(scores, codes, sizes[codes], len(engine) - gaps.shape[1])
    return Neighbours(votes, gaps, names)


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What sampled items find when they, or all items of their label, are left out.

    Attributes:
        enrolled: Neighbours by cosine of those that have a companion.
        truth: Labels of these.
        unknown: Neighbours by cosine without the own label.
        kappas: κ of the sampled items and of their neighbours, for both.
        dim: The vectors' dimension.
        scale: How much the match score changes where the cosine changes by 1; None if a κ is infinite.
    """

    enrolled: Votes
    truth: np.ndarray
    unknown: Votes
    kappas: tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
    dim: int
    scale: float | None

    def by_match(self) -> tuple[Votes, np.ndarray, Votes]:
        """Return the same with match scores in place of cosines."""
        enrolled, unknown = (
            votes_by_match(votes, *kappas, self.dim)
            for votes, kappas in zip((self.enrolled, self.unknown), self.kappas, strict=True)
        )
        return enrolled, self.truth, unknown


def leave_out(
    engine: Engine, rng: np.random.Generator, table: "ItemTable | None" = None
) -> LeftOut | None:
    """Search sampled items without themselves, and without their label; None if nothing has a label."""
    table = read_table(engine) if table is None else table
    labels = table.labels
    rows = balanced_sample(labels, rng)
    if not len(rows):
        return None
    sampled = engine.fetch([table.ids[row] for row in rows])
    votes, (alone, rest) = left_out_votes(engine, table, rows, sampled.vectors)
    companion = table.companions(rows) > 0
    stranger = np.isfinite(votes[1].scores).any(axis=1)
    kappas = tuple(
        (table.kappa[rows[some]], table.kappa[found[some]])
        for some, found in ((companion, alone), (stranger, rest))
    )
    enrolled, unknown = votes[0].some(companion), votes[1].some(stranger)
    dim = sampled.vectors.shape[1]
    scale = None
    if np.isfinite(table.kappa).all() and len(enrolled):
        match = votes_by_match(enrolled, *kappas[0], dim).scores
        there = np.isfinite(enrolled.scores)
        ends = [np.where(there, x, np.nan) for x in (match, enrolled.scores)]
        run, rise = (np.nanmax(x, axis=1) - np.nanmin(x, axis=1) for x in reversed(ends))
        steep = run > 0
        scale = float(np.median(rise[steep] / run[steep])) if steep.any() else None
    return LeftOut(enrolled, labels[rows][companion], unknown, kappas, dim, scale)  # type: ignore[arg-type]


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
    searches = _search_without(engine, table, rows, torch.from_numpy(vectors), watch)
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


Watch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]
"""Called with rows of items (r), rows of others (w), and their cosines (r, w)."""


def _search_without(
    engine: Engine,
    table: ItemTable,
    rows: Int[np.ndarray, " s"],
    vectors: torch.Tensor,
    watch: Watch | None = None,
) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return cosines and rows of the nearest items, without the own one, and without the own label."""
    count = min(VOTERS, len(table.ids))
    best = [
        [
            torch.full((len(rows), count), -torch.inf),
            torch.zeros(len(rows), count, dtype=torch.int64),
        ]
        for _ in range(2)
    ]
    own, label, group = (
        torch.from_numpy(x[rows]) for x in (np.arange(len(table.ids)), table.labels, table.groups)
    )
    for records in engine.scan(COLUMNS):
        place = torch.tensor([table.row_of[id_] for id_ in records.ids])
        columns = torch.from_numpy(np.ascontiguousarray(records.vectors)).T
        labels, groups = (torch.from_numpy(x)[place] for x in (table.labels, table.groups))
        grouped = bool((groups >= 0).any())
        for start in range(0, len(rows), ROWS):
            part = slice(start, start + ROWS)
            cosines = vectors[part] @ columns
            if watch is not None:
                watch(own[part], place, cosines)
            if bool(torch.isfinite(best[1][0][part, -1]).all()):  # only what is nearer can matter
                who = own[part], label[part], group[part]
                _keep_nearer(best, part, cosines, who, (place, labels, groups))
                continue
            hidden = place == own[part, None]
            if grouped:
                hidden |= (groups == group[part, None]) & (groups >= 0)
            cosines.masked_fill_(hidden, -torch.inf)
            keep_best(best[0], part, cosines, place)
            cosines.masked_fill_(labels == label[part, None], -torch.inf)
            keep_best(best[1], part, cosines, place)
    (a, i), (b, j) = best
    return (a.double().numpy(), i.numpy()), (b.double().numpy(), j.numpy())


def keep_best(
    best: list[torch.Tensor], part: slice, cosines: torch.Tensor, place: torch.Tensor
) -> None:
    """Put the highest of new cosines among the highest so far (values and rows), for some queries."""
    values, rows = best
    count = values.shape[1]
    new, columns = top_of_rows(cosines, count)
    both = torch.cat([values[part], new], dim=1)
    values[part], position = both.topk(count, dim=1)
    rows[part] = torch.cat([rows[part], place[columns]], dim=1).gather(1, position)


def _keep_nearer(
    best: list[list[torch.Tensor]],
    part: slice,
    cosines: torch.Tensor,
    who: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    whom: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Do what two `keep_best` do, where few of the cosines are above the last that were kept.

    Args:
        best: Values and rows without the own item, and without the own label, which reach farther.
        part: Queries.
        cosines: Theirs with all items of a block.
        who: Rows, labels and groups of the queries.
        whom: The same of the items.
    """
    wide = cosines.shape[1]
    # NumPy compares, and finds what is rarely true, several times faster than torch.
    above = np.flatnonzero(cosines.numpy() > best[1][0][part, -1:].numpy())
    at, column = (torch.from_numpy(x) for x in np.divmod(above, wide))
    row, label, group = (mine[at] - other[column] for mine, other in zip(who, whom, strict=True))
    other = (row != 0) & ((group != 0) | (whom[2][column] < 0))
    for kept, some in zip(best, (other, other & (label != 0)), strict=True):
        _merge(kept, part, at[some], whom[0][column[some]], cosines[at[some], column[some]])


def _merge(
    best: list[torch.Tensor],
    part: slice,
    at: torch.Tensor,
    rows: torch.Tensor,
    cosines: torch.Tensor,
) -> None:
    """Put some cosines among the highest so far; ``at`` says whose they are, and rises."""
    values, places = best[0][part], best[1][part]
    counts = at.bincount(minlength=len(values))
    turn = torch.arange(len(at)) - (counts.cumsum(0) - counts)[at]
    new = values.new_full((len(values), int(counts.max())), -torch.inf)
    there = torch.zeros(new.shape, dtype=torch.int64)
    new[at, turn], there[at, turn] = cosines, rows
    both, position = torch.cat([values, new], dim=1).topk(values.shape[1], dim=1)
    best[0][part] = both
    best[1][part] = torch.cat([places, there], dim=1).gather(1, position)


def votes_by_match(
    votes: Votes, own: Float[np.ndarray, " q"], others: Float[np.ndarray, "q k"], dim: int
) -> Votes:
    """Put match scores in place of cosines, by the κ of queries and of neighbours."""
    there = np.isfinite(votes.scores)
    gaps = np.where(there, np.maximum(1 - votes.scores, 0), 0.0)
    scores = match_scores(gaps, own, np.where(there, others, 1.0), dim)
    return Votes(np.where(there, scores, -np.inf), votes.labels, votes.sizes, votes.unseen)
