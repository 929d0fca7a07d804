"""An audit of a gallery: what is probably wrong with its items, found from the items alone.

    mislabelled   items whose label is rather wrong than right (`surefind.labels.audit`)
    duplicate     items that are almost the same, under different labels
    confusion     pairs of labels of which items of one look more like the other
    unusable      items unlike anything seen (novelty), or far less certain than the others (κ)
    impostor      items that, with all items of their label left out, would still be a match

Items without a label are never judged. Two items are near-duplicates from a cosine on that the user states,
or if they are `CLOSER` times nearer to each other than near items of different labels are in the median. κ
is far too low below Q1 - 1.5 (Q3 - Q1) of log κ, Tukey's fence: of normal values 0.35 % are.

Axes: ``n`` items, ``r`` those that are judged.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from surefind.decisions.calibration import Calibration
from surefind.decisions.decider import Learned
from surefind.decisions.decision import UNLIKE, Gate, p_text
from surefind.gallery.calibrating import fitted
from surefind.gallery.graph import near_rows
from surefind.gallery.records import Id, Label, Records, exact_gaps
from surefind.labels.audit import LabelAudit, audit_labels

CLOSER, CLOSEST = 20, 1e-6
"""How much nearer near-duplicates are, by 1 - cosine; and a gap that float32 hardly tells from none."""

NEIGHBOURS = 8
"""Near items of each one that are compared with it."""

WRONG = 0.2
"""Probability from which a label is listed as probably wrong, for somebody who will look."""

TIMES = 5

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
        improbable: How many look `TIMES` times more like another label than like their own.
        findings: Of each kind the worst first.
    """

    items: int
    labels: int
    judged: int
    wrong: int
    improbable: int
    findings: tuple[Finding, ...] = field(repr=False)

    def of(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of a kind."""
        return tuple(found for found in self.findings if found.kind == kind)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, a sentence for each kind."""
        count = Counter(found.kind for found in self.findings)
        return (
            f"{self.judged:,} of {self.items:,} items with {self.labels:,} labels were judged: if errors "
            f"are at random, about {self.wrong:,} labels are wrong; rather wrong than right: "
            f"{count['mislabelled']:,}. {self.improbable:,} items look {TIMES} times more like another "
            "label: these, hard items, or errors that follow a pattern.",
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

        A table of those that are mislabelled may be given to ``surefind items GALLERY --relabel``.

        Args:
            most: All by default.

        Returns:
            A row a finding, with the attributes of `Finding`.
        """
        kinds = dict.fromkeys(found.kind for found in self.findings)
        return [found._asdict() for kind in kinds for found in self.of(kind)[:most]]


def audit_items(
    records: Records,
    known: Learned | None = None,
    calibration: Calibration | None = None,
    *,
    items: int | None = None,
    duplicate: float | None = None,
    seed: int = 0,
) -> Audit:
    """Look for what is wrong with a gallery's items.

    Args:
        records: The gallery's, at least one.
        known: A label model, which is taken if it was fitted to these.
        calibration: What decides about answers, or None.
        items: How many to look at, drawn at random and judged by each other; all by default.
        duplicate: Cosine from which two items are near-duplicates; by default it follows from the gallery.
        seed: Draws samples.

    Returns:
        The findings.

    Raises:
        DegenerateError: If labels cannot be judged: there is one, or none has two items.
    """
    everything = len(records)
    if items is not None and items < everything:
        drawn = np.sort(np.random.default_rng(seed).permutation(everything)[:items])
        records, known = records[drawn], None
    judged = audit_labels(records.vectors, [*records.labels], groups=[*records.groups], seed=seed)
    left, gate = judged.left_out, (calibration and calibration.gate) or Gate()
    unlike = (left.known.label != left.truth) & left.enrolled
    found = [
        *_mislabelled(records, judged),
        *_duplicates(records, judged.rows, duplicate),
        *_confusions(left.truth[unlike].tolist(), left.known.label[unlike].tolist()),
        *_unusable(records[left.rows], gate),
    ]
    if calibration is not None:
        found += _impostors(records, fitted(records, known, seed), calibration)
    return Audit(
        items=everything,
        labels=len(judged.model.labels),
        judged=len(judged),
        wrong=round(float(judged.wrong.sum())),
        improbable=int((unlike & (left.own <= -np.log(TIMES))).sum()),
        findings=tuple(found),
    )


def _mislabelled(records: Records, judged: LabelAudit) -> Iterator[Finding]:
    """List items whose label is probably wrong, the most probable first."""
    for row in judged.to_rows(WRONG):
        label, chance, other = row["label"], float(row["wrong"]), row["suggested"]
        said = f"Rather {other} than {label}: the label is wrong with probability {chance:.2f}."
        yield Finding("mislabelled", records.ids[row["row"]], label, other, None, chance, said)


def _impostors(records: Records, known: Learned, calibration: Calibration) -> Iterator[Finding]:
    """List items that would be a match without their label, the most probable first."""
    left = known.left_out
    if left.unknown is None:
        return
    novelty = left.unknown_novelty if known.novelty is None else known.novelty
    answers = calibration.decide(left.unknown, novelty=novelty, kappa=known.kappa)
    chance = np.where(answers.decision == "match", np.asarray(answers.probability), 0.0)
    for i in np.argsort(-chance, kind="stable")[: int((chance > 0).sum())]:
        id_, label, score = records.ids[left.rows[i]], left.truth[i], float(chance[i])
        said = f"Without {label} in the gallery, {answers.label[i]} would be a match ({score:.3f})."
        yield Finding("impostor", id_, label, None, None, score, said)


def _duplicates(records: Records, rows: np.ndarray, cosine: float | None) -> Iterator[Finding]:
    """List pairs of items that are almost the same and have different labels, the nearest first."""
    count, vectors = min(NEIGHBOURS + 1, len(records)), records.vectors
    near = near_rows(vectors, vectors[rows], count)
    pairs = np.unique(np.sort(np.stack([rows.repeat(count), near.ravel()], axis=1)), axis=0)
    differ = [x is not None and y is not None and x != y for x, y in records.labels[pairs]]
    one, two = pairs[differ].T
    if not len(one):
        return
    gaps = exact_gaps(vectors[one], vectors[two][:, None])[:, 0]
    bound = max(np.median(gaps) / CLOSER, CLOSEST) if cosine is None else 1 - cosine
    for i in np.argsort(gaps, kind="stable"):
        if gaps[i] > bound:
            return
        a, b = records.ids[[one[i], two[i]]]
        (x, y), score = records.labels[[one[i], two[i]]], 1 - gaps[i]
        said = f"Almost the same as {b} (cosine {score:.4f}), which has the label {y} and not {x}."
        yield Finding("duplicate", a, x, None, b, float(score), said)


def _confusions(truth: list[Label], suggested: list[Label]) -> Iterator[Finding]:
    """Count items that look more like another label than like their own, by pairs of labels."""
    counts = Counter(zip(truth, suggested, strict=True))
    both: Counter[tuple[Label, Label]] = Counter()
    for (a, b), times in counts.items():
        one = (b, a) if (counts[b, a], str(a)) > (counts[a, b], str(b)) else (a, b)
        both[one] += times
    for (a, b), total in both.most_common():
        there, back = f"{counts[a, b]:,} items of {a} look more like {b}", f"{counts[b, a]:,}"
        said = f"{there}, and {back} the other way round."
        yield Finding("confusion", None, a, b, None, total, said)


def _unusable(records: Records, gate: Gate) -> list[Finding]:
    """List items that are unlike anything seen, the most unlike first, then those of low κ."""
    kappa, novelty = records.kappa, records.novelty
    logs = np.log(np.maximum(kappa[np.isfinite(kappa)], 1e-300))
    low, middle, high = -np.inf, 0.0, 0.0
    if len(logs) >= FEWEST:
        low, middle, high = np.quantile(logs, [0.25, 0.5, 0.75])
    unlike, few = novelty <= gate.max_false_alarms, kappa < np.exp(low - FENCE * (high - low))
    found = []
    for i in np.flatnonzero(unlike | few):
        usual = f"κ {kappa[i]:.3g}, the median is {np.exp(middle):.3g}"
        uncertain = f"far less certain than the others ({usual})"
        both = (f"{UNLIKE} ({p_text(float(novelty[i]))})", unlike[i]), (uncertain, few[i])
        why = "; ".join(reason for reason, holds in both if holds)
        said = f"{why.capitalize()}."
        score = float(kappa[i] if np.isnan(novelty[i]) else novelty[i])
        found.append(
            Finding("unusable", records.ids[i], records.labels[i], None, None, score, said)
        )
    return sorted(found, key=lambda one: one.score)
