"""What the rest of a gallery says about an item's label: the item left out, with its group and its copies.

`surefind.decisions.label_errors` has the mathematics; this module reads what it needs from the records, a
block at a time:

    own density     s_y over all items of the label y, however far: rows in the order of their labels, so
                    that one range of rows has all of it
    other labels    those of the nearest items (`surefind.gallery.label_fit`) compete; s_l over all their
                    items too: without far ones, the given label would be likelier for being given
    means           sums of the vectors of each label, and of each group and label, to be taken from them
    covariance      within labels, of at most `SPREAD` items, five times: from items of other folds each
    classifier      of the same items, five times too

**The classifier's cost** grows with labels × dimensions × items that it learns from. There is none with
more than `WEIGHTS` labels × dimensions, nor where fewer items are judged than it would learn from; labels
are then judged by kernels and Gaussian alone.

**Copies.** Vectors that are equal to the last bit are one witness: they are left out together, as those of
a group are. An item that is stored twice under a wrong label is so not its own alibi. A copy that was
compressed or resized again is no copy here; give such items a group.

**Alone.** If no other item has the label, nothing is known about it. The item's own probability is then
that of none (`surefind.decisions.label_posterior`): that it belongs to no other label.

Memory: a few numbers an item, one vector a label and one a group and label, the `SPREAD` items while the
classifier is fitted, and a block.

Axes: ``n`` items, ``s`` those of a block, ``k`` neighbours, ``z`` embedding, ``l`` labels, ``p`` pairs of a
group and a label, ``r`` values of λ.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float, Int

from surefind.decisions.label_errors import (
    FOLDS,
    Pooling,
    axes_within,
    deal,
    fit_classifier,
    fit_pooling,
    inverse_variances,
    log_softmax,
    odds_against,
)
from surefind.decisions.label_posterior import LabelModel, Votes, label_densities, label_posterior
from surefind.gallery.engine import Engine
from surefind.gallery.label_fit import (
    COLUMNS,
    ItemTable,
    balanced_sample,
    leave_out,
    left_out_votes,
)

SPREAD = 20_000
"""Items that covariance and classifier are estimated from."""

WEIGHTS = 2**19
"""Labels × dimensions that the classifier may have."""

MEMBERS = 20
"""Items of a label that are drawn for it before a second turn."""

ROWS = 1024
"""Items whose own label's density is computed at once, by `WIDE` others."""
WIDE = 8192

SUMS, LINES = 2**23, 256
"""Densities of items under all labels held at a time: 64 MB; and items compared with others at once."""

CELLS = 2**22
"""Differences of vectors held at a time: 16 MB."""


@dataclass(frozen=True, eq=False)
class Opinions:
    """What the rest says about some items.

    Attributes:
        against: Log-odds against the item's own label (s).
        suggested: The most probable other label, as the table numbers it (s); -1 if there is none.
        probability: Of it (s).
        nearest: Row of its nearest item (s); -1 if there is none.
        cosine: Of that item (s).
        alone: Whether no other item has the item's label (s).
    """

    against: np.ndarray
    suggested: np.ndarray
    probability: np.ndarray
    nearest: np.ndarray
    cosine: np.ndarray
    alone: np.ndarray

    @classmethod
    def concatenate(cls, parts: "Sequence[Opinions]") -> "Opinions":
        """Join opinions about several blocks."""
        columns = (np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls))
        return cls(*columns)


@dataclass(frozen=True, eq=False)
class SecondOpinion:
    """The model of a gallery's labels that items are judged by.

    Attributes:
        engine: The gallery's records.
        table: What is known of the items; copies share a group.
        model: The kernels' T, and "none".
        pooling: What kernels, Gaussian and classifier are worth.
        own: s of each item's own label (n), -inf where no companion is left.
        folds: Of the items (n).
        means: Of the labels; None if no two items share one.
        apart: 1 - cosine of an item and the nearest one of another label, in the median; 0 if there is
            one label.
    """

    engine: Engine
    table: ItemTable
    model: LabelModel
    pooling: Pooling
    own: np.ndarray
    folds: np.ndarray
    means: "LabelMeans | None"
    apart: float

    def blocks(
        self, rows: Int[np.ndarray, " s"], size: int
    ) -> "Iterator[tuple[np.ndarray, Fold | None]]":
        """Yield the items in blocks, each of one fold, with what was estimated from the others."""
        for fold in np.unique(self.folds[rows]).tolist():
            some = rows[self.folds[rows] == fold]
            outside = None if self.means is None else self.means.outside(fold)
            for start in range(0, len(some), size):
                yield some[start : start + size], outside

    def of(
        self,
        rows: Int[np.ndarray, " s"],
        vectors: Float[np.ndarray, "s z"],
        votes: Votes,
        found: Int[np.ndarray, "s k"],
        outside: "Fold | None",
    ) -> Opinions:
        """Say what the rest says about a block of items.

        Args:
            rows: The items.
            vectors: Theirs.
            votes: Their neighbours by cosine, as `left_out_votes` gives them.
            found: The neighbours' rows.
            outside: What was estimated from the other folds.

        Returns:
            The opinions.
        """
        kernel, names = self.kernel(rows, vectors, votes)
        own = np.full(len(rows), kernel.shape[1] - 1)
        weights = self.pooling.log_weights(kernel)
        if outside is not None and self.pooling.gaussian:
            ridge = slice(self.pooling.ridge, self.pooling.ridge + 1)
            g = outside.gaussian.log_densities(rows, vectors, names, ridge)[:, :, 0]
            weights = self.pooling.log_weights(kernel, g, outside.classified(vectors, names))
        against = odds_against(weights, own)
        best = weights[:, :-1].argmax(axis=1)
        at = np.arange(len(rows))
        there = np.isfinite(kernel[at, best]) & (names[at, best] >= 0)
        share = np.exp(weights[at, best] - np.logaddexp(0, against) - weights[:, -1])
        alone = self.table.companions(rows) <= 0
        if alone.any():
            none = label_posterior(votes, self.model)
            own_chance = np.clip(none.none, 1e-12, 1 - 1e-12)
            odds = np.log((1 - own_chance) / own_chance)
            column = np.maximum(none.candidates[:, 0], 0)
            against = np.where(alone, odds, against)
            share = np.where(alone, none.probability[:, 0], share)
            best = np.where(alone, column, best)
            there = np.where(alone, none.candidates[:, 0] >= 0, there)
        return Opinions(
            against,
            np.where(there, votes.labels[at, best], -1),
            np.where(there, share, 0.0),
            np.where(there, found[at, best], -1),
            np.where(there, votes.scores[at, best], np.nan),
            alone,
        )

    def kernel(
        self,
        rows: Int[np.ndarray, " s"],
        vectors: Float[np.ndarray, "s z"],
        votes: Votes,
    ) -> tuple[Float[np.ndarray, "s k+1"], Int[np.ndarray, "s k+1"]]:
        """Return s of other labels, each in one column, and of the own label in the last.

        Returns:
            s; and the labels of the columns, -1 for none.
        """
        mine = self.table.labels[rows][:, None]
        near = label_densities(votes, self.model.temperature)  # -inf but for a label's first item
        density = np.empty(votes.labels.shape)
        size = max(1, SUMS // len(self.table.label_names))
        for start in range(0, len(rows), size):
            part = slice(start, start + size)
            every = label_masses(self.engine, self.table, self.model, rows[part], vectors[part])
            density[part] = np.take_along_axis(every, np.maximum(votes.labels[part], 0), axis=1)
        rival = np.isfinite(near) & (votes.labels >= 0) & (votes.labels != mine)
        others = np.where(rival, density - np.log(votes.sizes), -np.inf)
        names = np.where(np.isfinite(others), votes.labels, -1)
        kernel = np.concatenate([others, self.own[rows][:, None]], axis=1)
        return kernel, np.concatenate([names, mine], axis=1)


def fit_second_opinion(
    engine: Engine, table: ItemTable, rng: np.random.Generator, judged: int
) -> SecondOpinion | None:
    """Fit kernels, Gaussian, classifier and their pooling to a gallery's own items.

    Args:
        engine: The gallery's records.
        table: What is known of them; copies share a group.
        rng: Draws samples and folds.
        judged: How many items are to be judged.

    Returns:
        The model; None if nothing has a label.
    """
    left = leave_out(engine, rng, table)
    if left is None:
        return None
    model = left.fit()
    own = own_densities(engine, table, model)
    folds = deal(table.labels, table.groups, rng)
    means = _label_means(engine, table, folds, rng, judged)
    nearest = 1 - left.unknown.scores[:, 0]
    apart = float(np.median(nearest)) if len(nearest) else 0.0
    plain = SecondOpinion(engine, table, model, Pooling(model.sharpness), own, folds, means, apart)
    sample = balanced_sample(table.labels, rng)
    sample = sample[table.companions(sample) > 0]
    kernels, gaussians, classified = [], [], []
    for rows, outside in plain.blocks(sample, len(sample)):
        vectors = engine.fetch([table.ids[row] for row in rows]).vectors
        (votes, _), _ = left_out_votes(engine, table, rows, vectors)
        kernel, names = plain.kernel(rows, vectors, votes)
        kernels.append(kernel)
        if outside is not None:
            gaussians.append(outside.gaussian.log_densities(rows, vectors, names))
            classified.append(outside.classified(vectors, names))
    if not gaussians:
        return plain
    kernel = np.concatenate(kernels)
    truth = np.full(len(kernel), kernel.shape[1] - 1)
    classifier = [q for q in classified if q is not None]
    pooling = fit_pooling(
        kernel,
        np.concatenate(gaussians),
        np.concatenate(classifier) if classifier else None,
        truth,
        model.sharpness,
        len(table.label_names),
    )
    return replace(plain, pooling=pooling)


def own_densities(engine: Engine, table: ItemTable, model: LabelModel) -> Float[np.ndarray, " n"]:
    """Compute each item's s of its own label from all items of it, without the own group.

    Returns:
        Log densities (n); -inf where no other item has the label, NaN where the item has none.
    """
    labels, groups = table.labels, table.groups
    order = np.argsort(labels, kind="stable")
    order = order[labels[order] >= 0]
    sizes = np.bincount(labels[order])
    ends = np.cumsum(sizes)
    mass = np.full(len(labels), np.nan)
    for start in range(0, len(order), ROWS):
        rows = order[start : start + ROWS]
        mine = engine.fetch([table.ids[row] for row in rows])
        total = np.full(len(rows), -np.inf)
        first, last = ends[labels[rows[0]]] - sizes[labels[rows[0]]], ends[labels[rows[-1]]]
        for at in range(first, last, WIDE):
            columns = order[at : min(at + WIDE, last)]
            theirs = engine.fetch([table.ids[column] for column in columns])
            same = labels[rows][:, None] == labels[columns]
            same &= rows[:, None] != columns
            same &= (groups[rows][:, None] != groups[columns]) | (groups[columns] < 0)
            scores = (mine.vectors @ theirs.vectors.T).astype(np.float64)
            near = np.where(same, scores / model.temperature, -np.inf)
            total = np.logaddexp(total, np.logaddexp.reduce(near, axis=1))
        mass[rows] = total - np.log(np.maximum(table.companions(rows), 1))
    return mass


def label_masses(
    engine: Engine,
    table: ItemTable,
    model: LabelModel,
    rows: Int[np.ndarray, " s"],
    vectors: Float[np.ndarray, "s z"],
) -> Float[np.ndarray, "s l"]:
    """Compute log n_l + s_l of every label for some items, from all its items without the own group.

    Returns:
        Log sums; -inf for labels without an item left, or too far for the exponential.
    """
    labels, groups = table.labels, table.groups
    total = np.full((len(rows), len(table.label_names)), -np.inf)
    for records in engine.scan(COLUMNS):
        place = np.array([table.row_of[id_] for id_ in records.ids])
        order = np.argsort(labels[place], kind="stable")
        order = order[labels[place[order]] >= 0]
        if not len(order):
            continue
        place, theirs = place[order], records.vectors[order]
        names, starts = np.unique(labels[place], return_index=True)
        for start in range(0, len(rows), LINES):
            part = slice(start, start + LINES)
            own = rows[part]
            out = own[:, None] == place
            out |= (groups[own][:, None] == groups[place]) & (groups[place] >= 0)
            scores = vectors[part] @ theirs.T / np.float32(model.temperature)
            scores[out] = -np.inf
            peak = np.maximum(
                scores.max(axis=1, keepdims=True), -1e30
            )  # finite if all are left out
            mass = np.add.reduceat(np.exp((scores - peak).astype(np.float64)), starts, axis=1)
            with np.errstate(divide="ignore"):
                here = np.log(mass) + peak
            total[part, names] = np.logaddexp(total[part, names], here)
    return total


@dataclass(frozen=True, eq=False)
class Gaussian:
    """Means of labels, and the covariance that they share, in its own axes.

    Attributes:
        table: What is known of the items.
        axes: Eigenvectors of the covariance as columns (z, z).
        precision: Eigenvalues of its inverse, for each λ (z, r).
        sums: Of the vectors of each label, in these axes (l, z).
        parts: Of those of each group and label (p, z).
        counts: Items of each label (l).
    """

    table: ItemTable
    axes: np.ndarray
    precision: np.ndarray
    sums: np.ndarray
    parts: np.ndarray
    counts: np.ndarray

    def log_densities(
        self,
        rows: Int[np.ndarray, " s"],
        vectors: Float[np.ndarray, "s z"],
        names: Int[np.ndarray, "s c"],
        ridges: slice = slice(None),
    ) -> Float[np.ndarray, "s c r"]:
        """Compute g of some labels for items that are left out with their group.

        Args:
            rows: The items.
            vectors: Theirs.
            names: Labels, -1 for none.
            ridges: Which λ.

        Returns:
            Log densities, up to a constant; -inf where a label has no item left.
        """
        precision = self.precision[:, ridges].astype(np.float32)
        turned = vectors @ self.axes
        g = np.full((*names.shape, precision.shape[1]), -np.inf)
        at, column = np.nonzero(names >= 0)
        label = names[at, column]
        place = self.table.together.place(self.table.groups[rows], names)[at, column]
        lone = (self.table.groups[rows] < 0)[at] & (label == self.table.labels[rows][at])
        gone = np.where(place >= 0, np.append(self.table.together.counts, 0)[place], lone)
        left = self.counts[label] - gone
        size = max(1, CELLS // vectors.shape[1])
        for start in range(0, len(at), size):
            part = slice(start, start + size)
            i, some, where = at[part], left[part], place[part]
            rest = self.sums[label[part]]
            rest -= np.where(lone[part, None], turned[i], 0)
            grouped = where >= 0
            rest[grouped] -= self.parts[where[grouped]]
            rest /= np.maximum(some, 1)[:, None]
            apart = np.square(turned[i] - rest) @ precision
            shrunk = -0.5 * apart * (some / (some + 1.0))[:, None]
            g[i, column[part]] = np.where(some[:, None] > 0, shrunk, -np.inf)
        return g


@dataclass(frozen=True, eq=False)
class Fold:
    """What items of one fold are judged by, beside kernels: estimated from the other folds.

    Attributes:
        gaussian: The labels' density.
        classifier: Weights (z, l) and offsets (l) of the logistic regression, or None.
    """

    gaussian: Gaussian
    classifier: tuple[np.ndarray, np.ndarray] | None

    def classified(
        self, vectors: Float[np.ndarray, "s z"], names: Int[np.ndarray, "s c"]
    ) -> Float[np.ndarray, "s c"] | None:
        """Compute q of some labels, -1 for none; None if there is no classifier."""
        if self.classifier is None:
            return None
        weights, offsets = self.classifier
        found = np.empty(names.shape)
        size = max(1, CELLS // len(offsets))
        for start in range(0, len(names), size):
            part = slice(start, start + size)
            q = log_softmax(vectors[part] @ weights + offsets)
            q[:, np.isneginf(offsets)] = -np.log(len(offsets))
            found[part] = np.take_along_axis(q, np.maximum(names[part], 0), axis=1)
        return np.where(names >= 0, found, -np.inf)


@dataclass(frozen=True, eq=False)
class LabelMeans:
    """What each `Fold` is made of.

    Attributes:
        table: What is known of the items.
        covariance: Within labels, for each fold: eigenvalues and eigenvectors.
        classifiers: For each fold; none if they cost too much.
        sums: Of the vectors of each label (l, z).
        parts: Of those of each group and label (p, z).
    """

    table: ItemTable
    covariance: list[tuple[np.ndarray, np.ndarray]]
    classifiers: list[tuple[np.ndarray, np.ndarray]]
    sums: np.ndarray
    parts: np.ndarray

    def outside(self, fold: int) -> Fold:
        """Return what items of a fold are judged by."""
        values, axes = self.covariance[fold]
        turned = axes.astype(np.float32)
        labels = self.table.labels
        gaussian = Gaussian(
            self.table,
            turned,
            inverse_variances(values),
            self.sums @ turned,
            self.parts @ turned,
            np.bincount(labels[labels >= 0]),
        )
        return Fold(gaussian, self.classifiers[fold] if self.classifiers else None)


def _label_means(
    engine: Engine,
    table: ItemTable,
    folds: Int[np.ndarray, " n"],
    rng: np.random.Generator,
    judged: int,
) -> LabelMeans | None:
    """Estimate what depends on folds, and sum up the labels; None if no two items share a label."""
    rows = _many_of_each(table.labels, rng)
    if not len(rows):
        return None
    sampled = engine.fetch([table.ids[row] for row in rows]).vectors
    covariance = axes_within(sampled, table.labels[rows], folds[rows])
    if covariance is None:
        return None
    count = len(table.label_names)
    classifiers = []
    if judged >= len(rows) and count * sampled.shape[1] <= WEIGHTS:
        outside = [folds[rows] != fold for fold in range(FOLDS)]
        classifiers = [
            fit_classifier(sampled[kept], table.labels[rows[kept]], count, *axes)
            for kept, axes in zip(outside, covariance, strict=True)
        ]
    sums = np.zeros((count, sampled.shape[1]), dtype=np.float32)
    parts = np.zeros((len(table.together.keys), sampled.shape[1]), dtype=np.float32)
    for records in engine.scan(COLUMNS):
        place = np.array([table.row_of[id_] for id_ in records.ids])
        labels = table.labels[place]
        pairs = table.together.place(table.groups[place], labels[:, None])[:, 0]
        _add_rows(sums, labels, records.vectors)
        _add_rows(parts, pairs, records.vectors)
    return LabelMeans(table, covariance, classifiers, sums, parts)


def _many_of_each(labels: Int[np.ndarray, " n"], rng: np.random.Generator) -> np.ndarray:
    """Draw up to `SPREAD` rows of labels with two items and more, up to `MEMBERS` of each at a time."""
    order = rng.permutation(np.flatnonzero(labels >= 0))
    sizes = np.bincount(labels[order]) if len(order) else np.zeros(0, dtype=np.int64)
    order = order[sizes[labels[order]] > 1]
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.bincount(labels[order], minlength=len(sizes))
    turn = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[labels[order]]
    place = rng.permutation(len(sizes))[labels[order]]
    return np.asarray(order[np.lexsort((place, turn // MEMBERS))][:SPREAD])


def _add_rows(
    sums: Float[np.ndarray, "l z"], codes: Int[np.ndarray, " n"], rows: Float[np.ndarray, "n z"]
) -> None:
    """Add rows to the sums that their codes number; below 0 to none."""
    order = np.argsort(codes, kind="stable")
    order = order[codes[order] >= 0]
    if len(order):
        names, starts = np.unique(codes[order], return_index=True)
        sums[names] += np.add.reduceat(rows[order], starts)
