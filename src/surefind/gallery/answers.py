"""What a search returns: neighbours, and a decision about each query where one was calibrated.

Axes: ``q`` queries, ``k`` neighbours.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from surefind.embeddings import kappa_to_json
from surefind.gallery.engine import Id, Label, Records
from surefind.gallery.ranking import Found, objects


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a gallery.

    Attributes:
        id: What the user calls it.
        vector: Its unit vector (z), float32.
        kappa: Its concentration, infinite where no uncertainty is known.
        label: Who or what it shows, or None.
        payload: A dict, or None.
    """

    id: Id
    vector: np.ndarray
    kappa: float
    label: Label
    payload: dict[str, Any] | None

    @classmethod
    def of(cls, records: Records, row: int = 0) -> "Item":
        """Make an item of one of the records."""
        text = records.payload[row]
        return cls(
            records.ids[row],
            records.vectors[row],
            float(records.kappa[row]),
            records.labels[row],
            None if text is None else json.loads(text),
        )


@dataclass(frozen=True, eq=False)
class Answers:
    """The ``k`` best items of each query, best first.

    A gallery with fewer than k items gives shorter rows: k is then its size. Equal scores are ordered
    by id, integers before strings.

    Attributes:
        ids: Of the items (q, k), an array of objects.
        labels: Theirs (q, k), strings, integers or None.
        scores: Theirs (q, k), higher for better; `rank` says which (`surefind.gallery.ranking`).
        kappa: Their concentrations (q, k).
        payload: Dicts or None (q, k).
        rank: What they are ordered by.
        probability: That the top answer is right (q), or None without a calibration.
        decision: "match", "review" or "no_match" (q), or None without a calibration.
        reasons: Why, for people, per query, or None without a calibration.
        stale: Whether the decisions come from a calibration for something else than what is now.
    """

    ids: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    kappa: np.ndarray
    payload: np.ndarray
    rank: str
    probability: np.ndarray | None = None
    decision: np.ndarray | None = None
    reasons: Any = None
    stale: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def k(self) -> int:
        """Neighbours of each query."""
        return int(self.ids.shape[1])

    def top(self) -> Iterator[tuple[Any, Any, float]]:
        """Return the id, label and score of each query's best item."""
        return zip(self.ids[:, 0], self.labels[:, 0], self.scores[:, 0].tolist(), strict=True)


def answers_of(found: Found, k: int, rank: str, **decided: Any) -> Answers:
    """Return the ``k`` best of what was found, with what was decided about them."""
    texts = found.payload[:, :k]
    payload = [None if text is None else json.loads(text) for text in texts.ravel()]
    kept = (found.ids[:, :k], found.labels[:, :k], found.scores[:, :k], found.kappa[:, :k])
    return Answers(*kept, objects(payload, texts.shape), rank, **decided)


def answer_records(answers: Answers, ks: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return each query's answer as plain values that JSON can hold; an infinite κ is None.

    Args:
        answers: Of a search.
        ks: How many neighbours each query gets; all of them by default.

    Returns:
        ``{decision, probability, reasons, neighbours}`` for each query, with a neighbour as ``{id, label,
        score, kappa, payload}``. Without a calibration decision and probability are None, reasons empty.
    """
    nothing = [None] * len(answers)
    decision, probability = answers.decision, answers.probability
    # Whole columns leave NumPy at once: taking single values out of arrays would cost more than a search.
    kappa: list[list[Any]] = answers.kappa.tolist()
    if not np.isfinite(answers.kappa).all():
        kappa = [[kappa_to_json(value) for value in row] for row in kappa]
    names = ("id", "label", "score", "kappa", "payload")
    return [
        {
            "decision": decided,
            "probability": chance,
            "reasons": list(why),
            "neighbours": [
                dict(zip(names, found, strict=True))
                for found in zip(*(column[:k] for column in columns), strict=True)
            ],
        }
        for k, decided, chance, why, *columns in zip(
            [answers.k] * len(answers) if ks is None else ks,
            nothing if decision is None else decision.tolist(),
            nothing if probability is None else probability.tolist(),
            [()] * len(answers) if answers.reasons is None else answers.reasons,
            answers.ids.tolist(),
            answers.labels.tolist(),
            answers.scores.tolist(),
            kappa,
            answers.payload.tolist(),
            strict=True,
        )
    ]
