"""An audit of a gallery: what is probably wrong with its items, found from the items alone.

    mislabelled   items whose own label is improbable given the rest (`surefind.gallery.second_opinion`)
    duplicates    items that are almost the same, under different labels
    confusions    pairs of labels of which items of one look more like the other
    unusable      items unlike anything seen (novelty), or far less certain than the others (κ)
    impostors     items that, with all items of their label left out, still find one: why strangers get in

Items without a label are searched among, and never judged. Groups are left out together, and so are exact
copies. An impostor's probability is what a search would have given that query: the calibrated one if there
is a calibration, else (1 - P(none)) times the label's share.

Two items are near-duplicates if they are `CLOSER` times nearer to each other than an item and the nearest
one of another label are in the median, or by a cosine that the user states: of a network that was trained
to bring a label together, a cosine of 0.98 says little. κ is far too low below Q1 - 1.5 (Q3 - Q1) of log κ,
Tukey's fence: of normal values 0.35 % are.

Cost: every item is compared with every other. ``items`` judges fewer, drawn at random, and costs as much
less; a part of the items is judged without the classifier (`surefind.gallery.second_opinion`).

Axes: ``n`` items, ``s`` those of a block, ``k`` neighbours.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.decisions.calibration import Calibration
from surefind.decisions.decision import UNLIKE, Gate, p_text
from surefind.decisions.label_errors import wrong_labels
from surefind.decisions.label_posterior import LabelModel, Votes, label_posterior, sigmoid
from surefind.decisions.probability import KAPPA_RANGE, neighbour_signals
from surefind.embeddings import novelty_to_json
from surefind.errors import DegenerateError
from surefind.gallery.engine import Engine
from surefind.gallery.findings import (
    MOST,
    Audit,
    Confusion,
    Duplicate,
    Impostor,
    Suspect,
    Unusable,
)
from surefind.gallery.label_fit import (
    COLUMNS,
    ItemTable,
    left_out_votes,
    read_table,
)
from surefind.gallery.second_opinion import Opinions, fit_second_opinion

CLOSER, CLOSEST = 20, 1e-6
"""How much nearer near-duplicates are, by 1 - cosine; and a gap that float32 hardly tells from none."""

BLOCK = 8192
"""Items judged in one pass over the records."""

FENCE, FEWEST = 1.5, 20
"""Interquartile ranges of log κ below its lower quartile that are far, and items that it takes."""


def audit_items(
    engine: Engine,
    model: LabelModel,
    *,
    calibration: Calibration | None = None,
    items: int | None = None,
    duplicate: float | None = None,
    seed: int = 0,
) -> Audit:
    """Look for what is wrong with a gallery's items.

    Args:
        engine: The gallery's records.
        model: The posterior over labels that a search answers by.
        calibration: What decides about its answers, or None.
        items: How many labelled items to judge, drawn at random; all by default.
        duplicate: Cosine from which two items are near-duplicates; by default it follows from the gallery.
        seed: Draws samples.

    Returns:
        The findings.

    Raises:
        DegenerateError: If the gallery is empty, or nothing in it has a label.
    """
    if not len(engine):
        raise DegenerateError(
            "the gallery is empty, so there is nothing to audit; add items first."
        )
    rng = np.random.default_rng(seed)
    table = read_table(engine)
    novelty, prints = _read_novelty_and_prints(engine, table)
    table = replace(table, groups=with_copies(table.groups, prints))
    labelled = np.flatnonzero(table.labels >= 0)
    asked = len(labelled) if items is None else min(items, len(labelled))
    judge = fit_second_opinion(engine, table, rng, asked)
    if judge is None:
        raise DegenerateError(
            "no item of the gallery has a label, so there is nothing to audit; add labels with update."
        )
    rows = labelled if items is None else np.sort(rng.permutation(labelled)[:items])
    bound = 1 - max(judge.apart / CLOSER, CLOSEST) if duplicate is None else duplicate
    pairs = _Pairs(table, rows, bound)
    gate = Gate() if calibration is None or calibration.gate is None else calibration.gate
    judged, opinions, found = [], [], []
    for block, outside in judge.blocks(rows, BLOCK):
        vectors = engine.fetch([table.ids[row] for row in block]).vectors
        votes, places = left_out_votes(engine, table, block, vectors, pairs.watch)
        judged.append(block)
        opinions.append(judge.of(block, vectors, votes[0], places[0], outside))
        found.append(_impostors(table, block, votes[1], places[1], model, calibration))
    rows, opinion = np.concatenate(judged), Opinions.concatenate(opinions)
    strangers, matched, chance = (np.concatenate(column) for column in zip(*found, strict=True))
    accepted = _accepted(chance, novelty[strangers], calibration)
    wrong, fraction = wrong_labels(opinion.against, len(table.label_names), opinion.alone)
    return Audit(
        items=len(table.ids),
        labels=len(table.label_names),
        judged=len(rows),
        wrong_fraction=fraction,
        mislabelled=_suspects(table, rows, opinion, wrong),
        duplicates=pairs.listed(rows, opinion.against),
        duplicate_pairs=pairs.count,
        duplicate=bound,
        copies=_copies(prints, table.labels),
        confusions=_confusions(table, rows, opinion),
        unusable=_unusable(table, labelled, novelty, gate),
        max_false_alarms=gate.max_false_alarms,
        impostors=_worst_impostors(table, strangers, matched, chance, accepted),
        impostor_matches=None if accepted is None else int(accepted.sum()),
        strangers=len(strangers),
    )


def with_copies(
    groups: Int[np.ndarray, " n"], prints: Int[np.ndarray, " n"]
) -> Int[np.ndarray, " n"]:
    """Put items whose vectors are equal into one group, with all that were grouped with one of them.

    Args:
        groups: Numbers from 0 up, -1 for none.
        prints: Equal for equal vectors.

    Returns:
        The groups, numbered anew.
    """
    from scipy.sparse import coo_array  # type: ignore[import-untyped]
    from scipy.sparse.csgraph import connected_components  # type: ignore[import-untyped]

    _, twins, counts = np.unique(prints, return_inverse=True, return_counts=True)
    twins = np.where(counts[twins] > 1, twins, -1)
    first = int(groups.max(initial=-1)) + 1  # nodes: the groups, then the sets of twins
    both = np.flatnonzero((groups >= 0) & (twins >= 0))
    size = first + len(counts)
    links = coo_array((np.ones(len(both)), (groups[both], first + twins[both])), shape=(size, size))
    _, parts = connected_components(links, directed=False)
    node = np.where(groups >= 0, groups, first + twins)
    return np.where((groups >= 0) | (twins >= 0), parts[node], -1).astype(np.int64)


def _read_novelty_and_prints(engine: Engine, table: ItemTable) -> tuple[np.ndarray, np.ndarray]:
    """Read the p-value of each item, and a number that is equal for equal vectors."""
    novelty = np.full(len(table.ids), np.nan)
    prints = np.zeros(len(table.ids), dtype=np.int64)
    for records in engine.scan(COLUMNS):
        place = [table.row_of[id_] for id_ in records.ids]
        novelty[place] = records.novelty
        prints[place] = [hash(vector.tobytes()) for vector in np.ascontiguousarray(records.vectors)]
    return novelty, prints


def _copies(prints: Int[np.ndarray, " n"], labels: Int[np.ndarray, " n"]) -> int:
    """Count the items that are one too many of a vector and a label."""
    named = labels >= 0
    kinds = set(zip(prints[named].tolist(), labels[named].tolist(), strict=True))
    return int(named.sum()) - len(kinds)


class _Pairs:
    """Near-duplicates under different labels, found while cosines pass by."""

    def __init__(self, table: ItemTable, rows: Int[np.ndarray, " s"], bound: float) -> None:
        self._table, self._bound = table, bound
        self._judged = np.zeros(len(table.ids), dtype=bool)
        self._judged[rows] = True
        self._kept: list[tuple[float, int, int]] = []
        self.count = 0

    def watch(self, own: np.ndarray, place: np.ndarray, cosines: np.ndarray) -> None:
        """Look at the cosines of some judged items with a block of all items."""
        at, column = np.nonzero(cosines >= self._bound)
        one, two = own[at], place[column]
        labels = self._table.labels
        apart = (labels[one] != labels[two]) & (labels[two] >= 0)
        once = (one < two) | ~self._judged[two]  # of two that are judged, from the first alone
        some = np.flatnonzero(apart & once)
        self.count += len(some)
        near = cosines[at[some], column[some]]
        self._kept += zip((-near).tolist(), one[some].tolist(), two[some].tolist(), strict=True)
        if len(self._kept) > 2 * MOST:
            self._kept = sorted(self._kept)[:MOST]

    def listed(
        self, rows: Int[np.ndarray, " s"], against: Float[np.ndarray, " s"]
    ) -> tuple[Duplicate, ...]:
        """Return the nearest of them, of each pair the one first that there is less against."""
        ids, names, labels = self._table.ids, self._table.label_names, self._table.labels
        doubt = np.full(len(ids), -np.inf)  # of an item that was not judged nothing is known
        doubt[rows] = against
        found = []
        for negative, *pair in sorted(self._kept)[:MOST]:
            a, b = sorted(pair, key=lambda row: doubt[row])
            cosine = min(-negative, 1.0)
            found.append(Duplicate(ids[a], names[labels[a]], ids[b], names[labels[b]], cosine))
        return tuple(found)


def _impostors(
    table: ItemTable,
    rows: Int[np.ndarray, " s"],
    votes: Votes,
    found: Int[np.ndarray, "s k"],
    model: LabelModel,
    calibration: Calibration | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Answer items without their label; return who found a label, through which item, how probably."""
    asked = np.isfinite(votes.scores[:, 0])
    rows, votes, found = rows[asked], votes.some(asked), found[asked]
    distances = np.sqrt(2 * np.maximum(1 - votes.scores, 0))  # infinite where there is none
    posterior = label_posterior(votes, model)
    chance = posterior.probability[:, 0]
    if calibration is not None and len(rows):
        kappa = np.maximum(table.kappa[rows], KAPPA_RANGE[0])
        signals = neighbour_signals(kappa, distances, votes.labels, posterior)
        chance = calibration.probability(signals)
    column = posterior.candidates[:, :1]
    answered = column[:, 0] >= 0
    matched = np.take_along_axis(found, np.maximum(column, 0), axis=1)[:, 0]
    return rows[answered], matched[answered], chance[answered]


def _accepted(
    chance: Float[np.ndarray, " s"],
    novelty: Float[np.ndarray, " s"],
    calibration: Calibration | None,
) -> Bool[np.ndarray, " s"] | None:
    """Return which impostors would have been a match; None without a calibration."""
    if calibration is None:
        return None
    threshold = np.inf if calibration.threshold is None else calibration.threshold
    passed = np.ones(len(chance), dtype=bool)
    if calibration.gate is not None:
        passed = np.isnan(novelty) | (calibration.gate.outcome(novelty) == "pass")
    return np.asarray((chance >= threshold) & passed)


def _suspects(
    table: ItemTable,
    rows: Int[np.ndarray, " s"],
    opinion: Opinions,
    wrong: Float[np.ndarray, " s"],
) -> tuple[Suspect, ...]:
    order = np.argsort(-opinion.against, kind="stable")
    own = sigmoid(-opinion.against)
    names = [*table.label_names, None]
    columns = (
        rows,
        own,
        wrong,
        opinion.suggested,
        opinion.probability,
        opinion.nearest,
        opinion.cosine,
    )
    return tuple(
        Suspect(
            table.ids[row],
            names[table.labels[row]],
            probability,
            error,
            names[suggested],
            share,
            None if near < 0 else table.ids[near],
            None if near < 0 else cosine,
        )
        for row, probability, error, suggested, share, near, cosine in zip(
            *(column[order].tolist() for column in columns), strict=True
        )
    )


def _confusions(
    table: ItemTable, rows: Int[np.ndarray, " s"], opinion: Opinions
) -> tuple[Confusion, ...]:
    """Count items that look more like another label than like their own."""
    other = (opinion.suggested >= 0) & ~opinion.alone
    other &= opinion.probability > sigmoid(-opinion.against)
    own = table.labels[rows][other].tolist()
    counts = Counter(zip(own, opinion.suggested[other].tolist(), strict=True))
    names = table.label_names
    pairs = {(min(a, b), max(a, b)) for a, b in counts}
    found = []
    for a, b in pairs:
        one, two = (a, b) if counts[a, b] >= counts[b, a] else (b, a)
        found.append(Confusion(names[one], names[two], counts[one, two], counts[two, one]))
    return tuple(
        sorted(found, key=lambda c: (-c.items - c.other_items, str(c.label), str(c.other)))
    )


def _unusable(
    table: ItemTable, rows: Int[np.ndarray, " s"], novelty: Float[np.ndarray, " n"], gate: Gate
) -> tuple[Unusable, ...]:
    """List items that are unlike anything seen, the most unlike first, then those of low κ."""
    logs = np.log(np.maximum(table.kappa[np.isfinite(table.kappa)], KAPPA_RANGE[0]))
    fence = 0.0
    if len(logs) >= FEWEST:
        low, middle, high = np.quantile(logs, [0.25, 0.5, 0.75])
        fence = float(np.exp(low - FENCE * (high - low)))
    found = []
    for row in rows[(novelty[rows] <= gate.max_false_alarms) | (table.kappa[rows] < fence)]:
        p, kappa = novelty_to_json(float(novelty[row])), float(table.kappa[row])
        reasons = []
        if p is not None and p <= gate.max_false_alarms:
            reasons.append(f"{UNLIKE} ({p_text(p)})")
        if kappa < fence:
            reasons.append(
                f"far less certain than the others (κ {kappa:.3g}, the median is {np.exp(middle):.3g})"
            )
        label = table.label_names[table.labels[row]]
        found.append(Unusable(table.ids[row], label, kappa, p, tuple(reasons)))
    return tuple(sorted(found, key=lambda u: (1.0 if u.novelty is None else u.novelty, u.kappa)))


def _worst_impostors(
    table: ItemTable,
    strangers: Int[np.ndarray, " s"],
    matched: Int[np.ndarray, " s"],
    chance: Float[np.ndarray, " s"],
    accepted: Bool[np.ndarray, " s"] | None,
) -> tuple[Impostor, ...]:
    names, labels = table.label_names, table.labels
    return tuple(
        Impostor(
            table.ids[strangers[i]],
            names[labels[strangers[i]]],
            table.ids[matched[i]],
            names[labels[matched[i]]],
            float(chance[i]),
            None if accepted is None else bool(accepted[i]),
        )
        for i in np.argsort(-chance, kind="stable")[:MOST]
    )
