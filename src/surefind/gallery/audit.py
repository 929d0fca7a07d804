"""An audit of a gallery: what is probably wrong with its items, found from the items alone.

    mislabelled   items to which another label fits better than their own, asked without themselves
    duplicate     items that are almost the same, under different labels
    confusion     pairs of labels of which items of one look more like the other
    unusable      items unlike anything seen (novelty), or far less certain than the others (κ)
    impostor      items that, with all items of their label left out, would still be a match

Each item is answered by a model that was fitted without it, its group and its copies
(`surefind.labels.left_out`). Items without a label are searched among, and never judged.

Two items are near-duplicates from a cosine on that the user states, or if they are `CLOSER` times nearer to
each other than items of different labels are in the median. κ is far too low below Q1 - 1.5 (Q3 - Q1) of
log κ, Tukey's fence: of normal values 0.35 % are.

Axes: ``n`` items, ``r`` those that are judged.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from surefind.decisions.calibration import Calibration
from surefind.decisions.decision import UNLIKE, Gate, p_text
from surefind.errors import DegenerateError
from surefind.gallery.calibrating import Fit
from surefind.gallery.engine import Id, Label, Records, exact_gaps
from surefind.gallery.graph import near_rows

CLOSER, CLOSEST = 20, 1e-6
"""How much nearer near-duplicates are, by 1 - cosine; and a gap that float32 hardly tells from none."""

NEIGHBOURS = 8
"""Near items of each one that are compared with it."""

FENCE, FEWEST = 1.5, 20
"""Interquartile ranges of log κ below its lower quartile that are far, and items that it takes."""


class Finding(NamedTuple):
    """What is suspected of an item or a label.

    Attributes:
        kind: "mislabelled", "duplicate", "confusion", "unusable" or "impostor".
        id: The item; None for labels.
        label: Its label.
        suggested: The label that it should have, or that has to do with it.
        other_id: Another item that has to do with it.
        score: What findings of a kind are ordered by.
        sentence: The finding in words.
    """

    kind: str
    id: Id | None
    label: Label
    suggested: Label
    other_id: Id | None
    score: float
    sentence: str


@dataclass(frozen=True)
class Audit:
    """What is probably wrong with a gallery's items.

    Attributes:
        items: How many the gallery holds.
        labels: Labels in use.
        judged: Labelled items that were judged.
        wrong: About how many of these have a wrong label, if errors are at random.
        findings: Of each kind the worst first.
    """

    items: int
    labels: int
    judged: int
    wrong: int
    findings: tuple[Finding, ...] = field(repr=False)

    def of(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of a kind."""
        return tuple(found for found in self.findings if found.kind == kind)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, a sentence for each kind."""
        count = Counter(found.kind for found in self.findings)
        return (
            f"{self.judged:,} of {self.items:,} items with {self.labels:,} labels were judged: about "
            f"{self.wrong:,} have a wrong label, {count['mislabelled']:,} look more like another one.",
            f"Pairs of near-duplicates with different labels: {count['duplicate']:,}.",
            f"Pairs of labels that are confused: {count['confusion']:,}.",
            f"Items unlike anything seen or far less certain than the others: {count['unusable']:,}.",
            f"Items that would be a match with another label if theirs were not enrolled: "
            f"{count['impostor']:,}.",
        )

    @property
    def summary(self) -> str:
        """What was found, in sentences."""
        return " ".join(self.sentences)

    def to_rows(self, most: int | None = None) -> list[dict[str, Any]]:
        """Return the findings as plain values, at most so many of each kind.

        A table of those that are mislabelled may be given to ``surefind items GALLERY --table``.

        Args:
            most: All by default.

        Returns:
            A row a finding, with the attributes of `Finding`.
        """
        kinds = dict.fromkeys(found.kind for found in self.findings)
        return [found._asdict() for kind in kinds for found in self.of(kind)[:most]]


def audit_items(
    records: Records,
    known: Fit | None = None,
    *,
    calibration: Calibration | None = None,
    items: int | None = None,
    duplicate: float | None = None,
    seed: int = 0,
) -> Audit:
    """Look for what is wrong with a gallery's items.

    Args:
        records: The gallery's, at least one.
        known: A label model, which is taken if it was fitted to these.
        calibration: What decides about answers, or None.
        items: How many labelled items to judge, drawn at random; all by default.
        duplicate: Cosine from which two items are near-duplicates; by default it follows from the gallery.
        seed: Draws samples.

    Returns:
        The findings.

    Raises:
        DegenerateError: If nothing in it has a label.
    """
    fit = Fit.of(records, seed, known)
    if fit is None or fit.left_out is None:
        raise DegenerateError(
            "no item of the gallery has a label, so there is nothing to audit; add labels with update."
        )
    left, order = fit.left_out, np.random.default_rng(seed).permutation(len(fit.left_out))
    chosen = np.sort(order[:items])
    chance, where = (
        left.known.probability[chosen],
        np.flatnonzero([x is not None for x in records.labels]),
    )
    rows, truth = where[left.rows[chosen]], left.truth[chosen]
    names = np.broadcast_to(left.known[chosen].labels, chance.shape)
    own = np.asarray(names == truth[:, None], dtype=bool)
    likely = np.where(own, chance, 0).sum(axis=1)
    others = np.where(own, -1.0, chance)
    best = others.argmax(axis=1)
    rival = np.maximum(others[np.arange(len(rows)), best], 0)
    suggested = names[np.arange(len(rows)), best]
    wrong = (rival > likely) & left.enrolled[chosen]
    doubt = np.where(wrong, rival / np.maximum(rival + likely, 1e-300), 0.0)
    found = [
        Finding(
            "mislabelled",
            records.ids[rows[i]],
            truth[i],
            suggested[i],
            None,
            float(doubt[i]),
            f"The rest of the gallery says {suggested[i]} ({rival[i]:.2f}) rather than {truth[i]} "
            f"({likely[i]:.2g}).",
        )
        for i in np.argsort(-doubt, kind="stable")[: int(wrong.sum())]
    ]
    found += _duplicates(records, rows, duplicate)
    found += _confusions(truth[wrong].tolist(), suggested[wrong].tolist())
    found += _unusable(records, rows, Gate() if calibration is None else calibration.gate or Gate())
    if calibration is not None and left.unknown is not None:
        p = left.unknown_novelty if fit.novelty is None else fit.novelty
        asked = fit.kappa[chosen]
        answers = calibration.decide(left.unknown[chosen], novelty=p[chosen], kappa=asked)
        chance = np.where(answers.decision == "match", np.asarray(answers.probability), 0.0)
        found += [
            Finding(
                "impostor",
                records.ids[rows[i]],
                truth[i],
                None,
                None,
                float(chance[i]),
                f"Without {truth[i]} in the gallery this is answered with {answers.label[i]}, a match "
                f"({chance[i]:.3f}).",
            )
            for i in np.argsort(-chance, kind="stable")[: int((chance > 0).sum())]
        ]
    return Audit(
        items=len(records),
        labels=len(fit.model.labels),
        judged=len(rows),
        wrong=_estimate(left.known.probability[chosen], names, truth, likely),
        findings=tuple(found),
    )


def _estimate(
    probability: Float[np.ndarray, "r l"],
    names: np.ndarray,
    truth: np.ndarray,
    likely: Float[np.ndarray, " r"],
) -> int:
    """Return how many items are of another label, as surely as its own items are on average.

    Northcutt, Jiang, Chuang: Confident Learning. JAIR 2021.

    Args:
        probability: Of labels, of each item without itself.
        names: Of the columns, for each item.
        truth: Own labels.
        likely: Probability of these.

    Returns:
        The number.
    """
    usual = {name: float(likely[truth == name].mean()) for name in dict.fromkeys(truth.tolist())}
    bar = np.array([[usual.get(name, np.inf) for name in row] for row in names.tolist()])
    sure = np.where(probability >= bar, probability, -1.0)
    top = sure.argmax(axis=1)
    at = np.arange(len(truth))
    return int(((sure[at, top] >= 0) & (names[at, top] != truth)).sum())


def _duplicates(
    records: Records, rows: Int[np.ndarray, " r"], cosine: float | None
) -> list[Finding]:
    """List pairs of items that are almost the same and have different labels."""
    ids, labels, vectors = records.ids, records.labels, records.vectors
    count = min(NEIGHBOURS + 1, len(ids))
    near = np.concatenate([
        near_rows(vectors, vectors[rows[start : start + 256]], count)
        for start in range(0, len(rows), 256)
    ])
    pairs = sorted({(min(a, b), max(a, b)) for a, row in zip(rows, near, strict=True) for b in row})
    pairs = [
        (a, b)
        for a, b in pairs
        if labels[a] is not None and labels[b] is not None and labels[a] != labels[b]
    ]
    if not pairs:
        return []
    one, two = (np.array(side) for side in zip(*pairs, strict=True))
    gaps = exact_gaps(vectors[one], vectors[two][:, None])[:, 0]
    bound = max(np.median(gaps) / CLOSER, CLOSEST) if cosine is None else 1 - cosine
    return [
        Finding(
            "duplicate",
            ids[one[i]],
            labels[one[i]],
            None,
            ids[two[i]],
            float(1 - gaps[i]),
            f"Almost the same as {ids[two[i]]} (cosine {1 - gaps[i]:.4f}), which has the label "
            f"{labels[two[i]]} and not {labels[one[i]]}.",
        )
        for i in np.argsort(gaps, kind="stable")
        if gaps[i] <= bound
    ]


def _confusions(truth: list[Label], suggested: list[Label]) -> list[Finding]:
    """Count items that look more like another label than like their own, by pairs of labels."""
    counts = Counter(zip(truth, suggested, strict=True))
    both: Counter[tuple[Label, Label]] = Counter()
    for (a, b), times in counts.items():
        one = (b, a) if (counts[b, a], str(a)) > (counts[a, b], str(b)) else (a, b)
        both[one] += times
    found = []
    for (a, b), total in both.most_common():
        there, back = f"{counts[a, b]:,} items of {a} look more like {b}", f"{counts[b, a]:,}"
        sentence = f"{there}, and {back} the other way round."
        found.append(Finding("confusion", None, a, b, None, total, sentence))
    return found


def _unusable(records: Records, rows: Int[np.ndarray, " r"], gate: Gate) -> list[Finding]:
    """List items that are unlike anything seen, the most unlike first, then those of low κ."""
    kappa, novelty = records.kappa[rows], records.novelty[rows]
    logs = np.log(np.maximum(kappa[np.isfinite(kappa)], 1e-300))
    fence = middle = 0.0
    if len(logs) >= FEWEST:
        low, middle, high = np.quantile(logs, [0.25, 0.5, 0.75])
        fence = float(np.exp(low - FENCE * (high - low)))
    found = []
    for i in np.flatnonzero((novelty <= gate.max_false_alarms) | (kappa < fence)):
        reasons, p = [], float(novelty[i])
        if p <= gate.max_false_alarms:
            reasons.append(f"{UNLIKE} ({p_text(p)})")
        if kappa[i] < fence:
            reasons.append(
                f"far less certain than the others (κ {kappa[i]:.3g}, the median is {np.exp(middle):.3g})"
            )
        sentence = f"{'; '.join(reasons).capitalize()}."
        score = float(kappa[i]) if np.isnan(p) else p
        label = records.labels[rows[i]]
        found.append(Finding("unusable", records.ids[rows[i]], label, None, None, score, sentence))
    return sorted(found, key=lambda one: one.score)
