"""What a search returns: neighbours, a posterior over labels, and a decision where one was calibrated.

Axes: ``q`` queries, ``k`` neighbours.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from surefind.checks import require
from surefind.embeddings import kappa_to_json, novelty_to_json
from surefind.gallery.engine import Found, Id, Label, Records, objects, read_query_ids

LEAST_SHARE = 0.01
"""Probability below which a rival is no evidence."""


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a gallery.

    Attributes:
        id: What the user calls it.
        vector: Its unit vector (z), float32.
        kappa: Its concentration, infinite where no uncertainty is known.
        novelty: Its p-value, None where none is known.
        label: Who or what it shows, or None.
        payload: A dict, or None.
        group: What it was taken from together with others, or None.
    """

    id: Id
    vector: np.ndarray
    kappa: float
    novelty: float | None
    label: Label
    payload: dict[str, Any] | None
    group: Label = None

    @classmethod
    def of(cls, records: Records, row: int = 0) -> "Item":
        """Make an item of one of the records."""
        text = records.payload[row]
        return cls(
            records.ids[row],
            records.vectors[row],
            float(records.kappa[row]),
            novelty_to_json(float(records.novelty[row])),
            records.labels[row],
            None if text is None else json.loads(text),
            records.groups[row],
        )


@dataclass(frozen=True, eq=False)
class Evidence:
    """The nearest items of one label that a query may have.

    Attributes:
        label: The label.
        probability: That the query has it, by the neighbourhood alone.
        ids: Of its nearest items.
        cosines: Theirs.
        payload: Dicts or None.
    """

    label: Label
    probability: float
    ids: list[Id]
    cosines: list[float]
    payload: list[dict[str, Any] | None]


@dataclass(frozen=True, eq=False)
class Answers:
    """The label of each query, and its ``k`` nearest items, nearest first.

    A gallery with fewer than k items gives shorter rows: k is then its size. Equal cosines are ordered
    by id, integers before strings.

    Attributes:
        ids: Of the items (q, k), an array of objects.
        labels: Theirs (q, k), strings, integers or None.
        scores: Their cosines (q, k).
        item_kappa: Their concentrations (q, k).
        payload: Dicts or None (q, k).
        kappa: Of the queries (q).
        novelty: Their p-values (q), or None if they came without.
        label: The most probable label (q); None where no neighbour has one.
        candidates: The most probable labels (q, at most 5), the first one `label`; None where there are
            fewer.
        label_probability: Of these, by the neighbourhood alone (q, at most 5); 0 where there are fewer.
        none: That no label in the gallery is right, by the neighbourhood alone (q).
        probability: That `label` is right (q), or None without a calibration; tested on queries that pass
            the gate.
        decision: "match", "review" or "no_match" (q), or None without a calibration.
        reasons: Why, for people, per query, or None without a calibration.
        gate: "unlike", "unusual" or "pass" (q), or None without a gate (`surefind.decisions.decision`).
        stale: Whether the decisions come from a calibration for something else than what is now.
    """

    ids: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    item_kappa: np.ndarray
    payload: np.ndarray
    kappa: np.ndarray
    novelty: np.ndarray | None
    label: np.ndarray
    candidates: np.ndarray
    label_probability: np.ndarray
    none: np.ndarray
    found: Found = field(repr=False)
    probability: np.ndarray | None = None
    decision: np.ndarray | None = None
    reasons: Any = None
    gate: np.ndarray | None = None
    stale: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def k(self) -> int:
        """Neighbours of each query."""
        return int(self.ids.shape[1])

    def evidence(self, query: int, *, labels: int = 2, items: int = 3) -> list[Evidence]:
        """Return the nearest items of the answered label, then of its strongest rivals.

        Args:
            query: Its row.
            labels: How many labels, at most 5; rivals of less than `LEAST_SHARE` are left out.
            items: How many items of each, among those that vote.

        Returns:
            One entry a label, the most probable first.
        """
        found = self.found
        known = found.labels[query].tolist()
        listed: list[Evidence] = []
        for name, chance in zip(
            self.candidates[query, :labels], self.label_probability[query].tolist(), strict=False
        ):
            if name is None or (listed and chance < LEAST_SHARE):
                break
            columns = [*islice((c for c, label in enumerate(known) if label == name), items)]
            listed.append(
                Evidence(
                    name,
                    chance,
                    [found.ids[query, c] for c in columns],
                    [float(1 - found.gaps[query, c]) for c in columns],
                    [_decoded(found.payload[query, c]) for c in columns],
                )
            )
        return listed

    def to_arrow(self, ids: Any = None) -> Any:
        """Return a table of Arrow with a row for each query, for Parquet, DuckDB, Polars and the like.

        Columns, in this order, of types that do not depend on the values, so that the tables of several
        searches can be concatenated:

            query               string                  its id, or the number of its row
            label               string                  the answered label
            probability         float64                 that it is right, as calibrated
            decision            string                  "match", "review" or "no_match"
            reasons             list of strings         why it is no match
            gate                string                  "unlike", "unusual" or "pass"
            novelty             float64                 its p-value
            kappa               float64                 its concentration, infinite where that is not known
            none                float64                 that no label is right, by the neighbourhood alone
            candidates          list of strings         the most probable labels, at most 5
            label_probability   list of float64         theirs, by the neighbourhood alone
            neighbours          list of structs         id, label, score, kappa, payload (JSON)
            stale               bool                    whether the calibration was for something else

        A column of Arrow has one type, and ids and labels of a gallery have two: they are all strings here,
        integers in decimal digits. So 1 and "1", which a gallery tells apart, look alike. What is not known
        is null: decision, probability and reasons without a calibration, gate without a gate, novelty and
        labels where there are none.

        Args:
            ids: A string or an integer for each query, which may repeat; its row's number by default.

        Returns:
            A `pyarrow.Table`.
        """
        return _arrow_table(self, [*map(str, read_query_ids(ids, len(self)))])

    def to_pandas(self, ids: Any = None) -> Any:
        """Return a data frame of pandas with a row for each query.

        The columns are those of `to_arrow`, converted: numbers that are null are NaN, lists are arrays, and
        neighbours are arrays of dicts (``frame.explode("neighbours")`` gives a row for each of them).

        Args:
            ids: As for `to_arrow`.

        Returns:
            A `pandas.DataFrame`.
        """
        require("pandas", "make a data frame of answers", extra=None)
        return self.to_arrow(ids).to_pandas()


def answers_of(
    found: Found,
    kappa: np.ndarray,
    novelty: np.ndarray | None,
    k: int,
    *,
    stale: bool = False,
    **known: Any,
) -> Answers:
    """Return the ``k`` nearest of what was found, with what is known and was decided about the queries."""
    ids, labels, item_kappa, texts, gaps = (
        column[:, :k]
        for column in (found.ids, found.labels, found.kappa, found.payload, found.gaps)
    )
    payload = objects([_decoded(text) for text in texts.ravel()], texts.shape)
    return Answers(
        ids,
        labels,
        1 - gaps,
        item_kappa,
        payload,
        kappa,
        novelty,
        found=found,
        stale=stale,
        **known,
    )


def _decoded(text: str | None) -> dict[str, Any] | None:
    return None if text is None else dict(json.loads(text))


def answer_records(answers: Answers, ks: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return each query's answer as plain values that JSON can hold; an infinite κ is None.

    Args:
        answers: Of a search.
        ks: How many neighbours each query gets; all of them by default.

    Returns:
        ``{label, label_probability, none, decision, probability, reasons, gate, kappa, novelty, neighbours,
        evidence}`` for each query: probabilities of labels as ``[{label, probability}]``, a neighbour as
        ``{id, label, score, kappa, payload}``, evidence as ``[{label, probability, items: [{id, cosine,
        payload}]}]``. Without a calibration decision and probability are None, reasons empty; gate is None
        without one, and novelty if the query came without.
    """
    nothing = [None] * len(answers)
    decision, probability = answers.decision, answers.probability
    # Whole columns leave NumPy at once: taking single values out of arrays would cost more than a search.
    kappa: list[list[Any]] = answers.item_kappa.tolist()
    if not np.isfinite(answers.item_kappa).all():
        kappa = [[kappa_to_json(value) for value in row] for row in kappa]
    names = ("id", "label", "score", "kappa", "payload")
    return [
        {
            "label": label,
            "label_probability": [
                {"label": name, "probability": p}
                for name, p in zip(candidates, chances, strict=True)
                if name is not None
            ],
            "none": none,
            "decision": decided,
            "probability": chance,
            "reasons": list(why),
            "gate": gate,
            "kappa": kappa_to_json(own),
            "novelty": p_value,
            "neighbours": [
                dict(zip(names, found, strict=True))
                for found in zip(*(column[:k] for column in columns), strict=True)
            ],
            "evidence": _evidence_record(answers, row),
        }
        for row, (
            k,
            label,
            candidates,
            chances,
            none,
            decided,
            chance,
            why,
            gate,
            own,
            p_value,
            *columns,
        ) in enumerate(
            zip(
                [answers.k] * len(answers) if ks is None else ks,
                answers.label.tolist(),
                answers.candidates.tolist(),
                answers.label_probability.tolist(),
                answers.none.tolist(),
                nothing if decision is None else decision.tolist(),
                nothing if probability is None else probability.tolist(),
                [()] * len(answers) if answers.reasons is None else answers.reasons,
                nothing if answers.gate is None else answers.gate.tolist(),
                answers.kappa.tolist(),
                nothing if answers.novelty is None else answers.novelty.tolist(),
                answers.ids.tolist(),
                answers.labels.tolist(),
                answers.scores.tolist(),
                kappa,
                answers.payload.tolist(),
                strict=True,
            )
        )
    ]


def _evidence_record(answers: Answers, row: int) -> list[dict[str, Any]]:
    return [
        {
            "label": found.label,
            "probability": found.probability,
            "items": [
                {"id": id_, "cosine": cosine, "payload": payload}
                for id_, cosine, payload in zip(
                    found.ids, found.cosines, found.payload, strict=True
                )
            ],
        }
        for found in answers.evidence(row)
    ]


def _arrow_table(answers: Answers, queries: Sequence[str]) -> Any:
    arrow = require("pyarrow", "make a table of answers")
    text, real, flag = arrow.string(), arrow.float64(), arrow.bool_()

    def column(values: Any, kind: Any) -> Any:
        return arrow.nulls(len(answers), kind) if values is None else arrow.array(values, kind)

    def in_rows(starts: Any, values: Any) -> Any:
        return arrow.ListArray.from_arrays(arrow.array(starts, arrow.int32()), values)

    # Payloads as they are stored: these were decoded for the answers, and need not be written again.
    payload = answers.found.payload[:, : answers.k]
    neighbours = {
        "id": column(_texts(answers.ids), text),
        "label": column(_texts(answers.labels), text),
        "score": column(answers.scores.ravel(), real),
        "kappa": column(answers.item_kappa.ravel(), real),
        "payload": column(payload.ravel().tolist(), text),
    }
    there = answers.candidates != np.array(None, dtype=object)  # of each element
    likely = np.append(0, np.cumsum(there.sum(axis=1)))
    return arrow.table({
        "query": column(queries, text),
        "label": column(_texts(answers.label), text),
        "probability": column(answers.probability, real),
        "decision": column(_texts(answers.decision), text),
        "reasons": column(answers.reasons, arrow.list_(text)),
        "gate": column(_texts(answers.gate), text),
        "novelty": column(answers.novelty, real),
        "kappa": column(answers.kappa, real),
        "none": column(answers.none, real),
        "candidates": in_rows(likely, column(_texts(answers.candidates[there]), text)),
        "label_probability": in_rows(likely, column(answers.label_probability[there], real)),
        "neighbours": in_rows(
            np.arange(len(answers) + 1) * answers.k,
            arrow.StructArray.from_arrays(list(neighbours.values()), names=list(neighbours)),
        ),
        "stale": column(np.full(len(answers), answers.stale), flag),
    })


def _texts(values: np.ndarray | None) -> list[str | None] | None:
    """Return ids or labels of any shape as one list of texts."""
    if values is None:
        return None
    return [None if value is None else str(value) for value in values.ravel().tolist()]
