"""What an audit finds, in values, rows and sentences.

A finding is about an item or a label, and often about another one too. `surefind.gallery.audit` makes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from surefind.gallery.engine import Id, Label

MOST = 1000
"""Duplicates and impostors that are listed; all are counted."""

WRONG = 0.5
"""Probability from which a label counts as wrong."""

TIMES = 5
"""How many times as probable as its own another label makes an item worth a look."""

COLUMN_NAMES = ("kind", "id", "label", "other_id", "other_label", "score", "sentence", "mend")
"""What a row of findings has."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """An item, and what the rest says about its label.

    Attributes:
        id: The item.
        label: Its own label.
        probability: Of that label, given all other items; if none of them has it, that it is no other one.
        wrong: Probability that the label is wrong (`surefind.decisions.label_errors`).
        suggested: The most probable other label, None if there is none.
        suggested_probability: Of it.
        nearest: The nearest item of that label, None if there is none.
        cosine: Of that item.
    """

    id: Id
    label: Label
    probability: float
    wrong: float
    suggested: Label
    suggested_probability: float
    nearest: Id | None
    cosine: float | None


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Two items that are almost the same and have different labels.

    Attributes:
        id: One of them, the one whose label is the more probable.
        label: Its label.
        other: The other.
        other_label: That one's label.
        cosine: Of the two.
    """

    id: Id
    label: Label
    other: Id
    other_label: Label
    cosine: float


@dataclass(frozen=True, slots=True)
class Confusion:
    """Two labels of which items of one look more like the other.

    Attributes:
        label: One of them, the one that more items are taken from.
        other: The other.
        items: Items of ``label`` that look more like ``other``.
        other_items: Items of ``other`` that look more like ``label``.
    """

    label: Label
    other: Label
    items: int
    other_items: int


@dataclass(frozen=True, slots=True)
class Unusable:
    """An item that is hardly of use.

    Attributes:
        id: The item.
        label: Its label.
        kappa: Its concentration.
        novelty: Its p-value, None where none is known.
        reasons: Why.
    """

    id: Id
    label: Label
    kappa: float
    novelty: float | None
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Impostor:
    """An item that played an unknown query, and what it found.

    Attributes:
        id: The item.
        label: Its label, all of whose items were left out.
        match: The nearest item of the label that it was answered with.
        match_label: That label.
        probability: That this answer is right, which it is not.
        accepted: Whether it would have been called a match; None without a calibration.
    """

    id: Id
    label: Label
    match: Id
    match_label: Label
    probability: float
    accepted: bool | None


@dataclass(frozen=True)
class Audit:
    """What is probably wrong with a gallery's items.

    Attributes:
        items: How many the gallery holds.
        labels: Labels in use.
        judged: Labelled items that were judged.
        wrong_fraction: Estimated fraction of wrong labels among them.
        mislabelled: All of them, the most improbable label first.
        duplicates: Near-duplicates under different labels, the nearest first, at most `MOST`.
        duplicate_pairs: How many there are.
        duplicate: Cosine from which two items are near-duplicates.
        copies: Items that are equal to another of the same label, to the last bit.
        confusions: Pairs of labels, the most confused first.
        unusable: Items that are hardly of use, the worst first.
        max_false_alarms: p-value up to which an item is unlike anything seen.
        impostors: Items that found another label when theirs was left out, the most probable first, at
            most `MOST`.
        impostor_matches: How many would have been called a match; None without a calibration.
        strangers: How many were asked.
    """

    items: int
    labels: int
    judged: int
    wrong_fraction: float
    mislabelled: tuple[Suspect, ...] = field(repr=False)
    duplicates: tuple[Duplicate, ...] = field(repr=False)
    duplicate_pairs: int
    duplicate: float
    copies: int
    confusions: tuple[Confusion, ...] = field(repr=False)
    unusable: tuple[Unusable, ...] = field(repr=False)
    max_false_alarms: float
    impostors: tuple[Impostor, ...] = field(repr=False)
    impostor_matches: int | None
    strangers: int

    @property
    def suspects(self) -> tuple[Suspect, ...]:
        """Those of the judged items whose label is rather wrong than right."""
        return tuple(s for s in self.mislabelled if s.wrong >= WRONG)

    @property
    def improbable(self) -> tuple[Suspect, ...]:
        """Suspects, and others to which another label fits five times as well, the most suspect first.

        Errors that follow a pattern, such as one label written for another throughout, are taken for hard
        items by the estimate of wrong labels, and are found here.
        """
        return tuple(
            s
            for s in self.mislabelled
            if s.wrong >= WRONG or s.suggested_probability >= TIMES * s.probability
        )

    @property
    def ceiling(self) -> float | None:
        """The highest probability that an unknown query reached; None if there was none to ask."""
        return self.impostors[0].probability if self.impostors else None

    @property
    def summary(self) -> str:
        """What was found, in sentences."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, a sentence for each kind."""
        return (
            self._labels_sentence(),
            self._duplicates_sentence(),
            self._confusions_sentence(),
            self._unusable_sentence(),
            self._impostors_sentence(),
        )

    def to_rows(self, most: int | None = None) -> list[dict[str, Any]]:
        """Return the findings as plain values, one row each.

        Args:
            most: How many of each kind; all by default.

        Returns:
            ``{kind, id, label, other_id, other_label, score, sentence, mend}``: what is suspected, the item
            or label that it is about, the other one that has to do with it, the number that it is ordered
            by, the finding in words, and a line of Python that would mend it, if one would. Of the judged
            items those that are `improbable` are findings.
        """
        kinds: tuple[tuple[str, Sequence[Any], Any], ...] = (
            ("mislabelled", self.improbable, _suspect_row),
            ("duplicate", self.duplicates, _duplicate_row),
            ("confusion", self.confusions, _confusion_row),
            ("unusable", self.unusable, _unusable_row),
            ("impostor", self.impostors, _impostor_row),
        )
        return [
            dict(zip(COLUMN_NAMES, (kind, *row(finding)), strict=True))
            for kind, findings, row in kinds
            for finding in findings[:most]
        ]

    def _labels_sentence(self) -> str:
        some = "" if self.judged == self.items else f"{self.judged:,} of "
        judged = f"{some}{self.items:,} items of {self.labels:,} labels were judged"
        more = len(self.improbable) - len(self.suspects)
        looks = (
            f"{more:,} {'more ' if self.suspects else ''}look {TIMES} times more like another label"
        )
        pattern = f" {looks}: hard items, or errors that follow a pattern." if more else ""
        if not self.suspects:
            return f"{judged}: no label is rather wrong than right.{pattern}"
        return (
            f"{judged}: if errors are at random, {self.wrong_fraction:.1%} of the labels are "
            f"wrong, about {self.wrong_fraction * self.judged:,.0f}; rather wrong than right: "
            f"{len(self.suspects):,}.{pattern}"
        )

    def _duplicates_sentence(self) -> str:
        return (
            f"Pairs of near-duplicates (cosine from {self.duplicate:.4g} up) with different labels: "
            f"{self.duplicate_pairs:,}; exact copies of another item of the same label: {self.copies:,}."
        )

    def _confusions_sentence(self) -> str:
        if not self.confusions:
            return "Pairs of labels that are confused: 0."
        worst = self.confusions[0]
        return (
            f"Pairs of labels that are confused in some item: {len(self.confusions):,}, most of all "
            f"{worst.label} and {worst.other} (in {worst.items + worst.other_items:,})."
        )

    def _unusable_sentence(self) -> str:
        return (
            f"Items unlike anything seen (novelty p <= {self.max_false_alarms:g}, as that fraction of good "
            f"ones is) or far less certain than the others (κ): {len(self.unusable):,}."
        )

    def _impostors_sentence(self) -> str:
        if not self.impostors:
            return "There is one label alone, so no item could play an unknown query."
        first = self.impostors[0]
        reached = (
            f"With all items of their label left out, items reached a probability of "
            f"{first.probability:.4f} at most: {first.id} ({first.label}) found {first.match} "
            f"({first.match_label})"
        )
        if self.impostor_matches is None:
            return f"{reached}."
        share = self.impostor_matches / self.strangers
        return (
            f"{reached}; {self.impostor_matches:,} of {self.strangers:,} ({share:.2%}) would have been a "
            "match."
        )


def _suspect_row(found: Suspect) -> tuple[Any, ...]:
    sentence = (
        f"The rest of the gallery says {found.suggested} ({found.suggested_probability:.2f}) rather than "
        f"{found.label} ({found.probability:.2g})."
    )
    mend = f"gallery.update(ids=[{found.id!r}], labels=[{found.suggested!r}])"
    return found.id, found.label, found.nearest, found.suggested, found.wrong, sentence, mend


def _duplicate_row(found: Duplicate) -> tuple[Any, ...]:
    sentence = (
        f"Almost the same (cosine {found.cosine:.4f}), and {found.label} here, "
        f"{found.other_label} there."
    )
    mend = f"gallery.update(ids=[{found.other!r}], labels=[{found.label!r}])"
    return found.id, found.label, found.other, found.other_label, found.cosine, sentence, mend


def _confusion_row(found: Confusion) -> tuple[Any, ...]:
    sentence = (
        f"{found.items:,} items of {found.label} look more like {found.other}, and {found.other_items:,} "
        "the other way round."
    )
    return None, found.label, None, found.other, found.items + found.other_items, sentence, None


def _unusable_row(found: Unusable) -> tuple[Any, ...]:
    reasons = "; ".join(found.reasons)
    sentence = f"{reasons[0].upper()}{reasons[1:]}."
    score = found.kappa if found.novelty is None else found.novelty
    return found.id, found.label, None, None, score, sentence, f"gallery.delete([{found.id!r}])"


def _impostor_row(found: Impostor) -> tuple[Any, ...]:
    called = {True: ", a match", False: ", no match", None: ""}[found.accepted]
    sentence = (
        f"Without {found.label} in the gallery this is answered with {found.match_label} "
        f"({found.probability:.4f}{called})."
    )
    chance = found.probability
    return found.id, found.label, found.match, found.match_label, chance, sentence, None
