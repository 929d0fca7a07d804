"""What is said about queries: labels, probabilities and, calibrated, decisions; and what a search found.

Axes: ``q`` queries, ``c`` candidates, ``k`` neighbours.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np

from surefind.checks import id_values, require
from surefind.embeddings import kappa_to_json
from surefind.labels.left_out import joined
from surefind.labels.posterior import LabelPosterior

ROWS = 5
"""Queries that a printed table shows."""

WIDTHS = 16, 38
"""Characters of a label and of a reason in it."""


class Columns:
    """What frozen dataclasses of columns have in common; a column is None where nothing is known."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, rows: Any) -> Self:
        """Return some of the rows: by an index array, a mask or a slice."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))  # type: ignore[arg-type]
        return replace(self, **{n: x[rows] for n, x in values if hasattr(x, "__getitem__")})  # type: ignore[type-var]

    @classmethod
    def concatenate(cls, parts: "Sequence[Self]") -> Self:
        """Return the rows of several parts; what is not known of all is known of none."""
        rows = ([getattr(part, field.name) for field in fields(cls)] for part in parts)  # type: ignore[arg-type]
        return cls(*map(_joined, zip(*rows, strict=True)))


def _joined(parts: Sequence[Any]) -> Any:
    if any(part is None for part in parts):
        return None
    return joined([*parts]) if isinstance(parts[0], LabelPosterior) else np.concatenate(parts)


@dataclass(frozen=True, eq=False, repr=False)
class Answers(Columns):
    """The answer to each query.

    Attributes:
        label: The most probable label (q); None where no label is possible.
        candidates: At most five labels, the most probable first (q, c); None where there are fewer.
        label_probability: Theirs, by the evidence alone (q, c).
        none: That no enrolled label is right, by the evidence alone (q); None where that was not asked.
        probability: That `label` is right, as calibrated (q); of queries that do not pass the gate it was
            never tested. None without a calibration, as the next two.
        decision: "match", "review" or "no_match" (q).
        reasons: Why it is no match, a tuple of texts (q); empty for a match.
        novelty: p-value of each query (q), or None.
        kappa: Concentration of each query (q), or None.
        ids: Of the nearest items of a gallery, nearest first (q, k); None where nothing was searched, as
            the next three.
        neighbour_labels: Their labels (q, k).
        scores: Their cosines (q, k).
        payload: Their payloads, dicts or None (q, k).
        stale: Whether the calibration was made for other items than there are now.
    """

    label: np.ndarray
    candidates: np.ndarray
    label_probability: np.ndarray
    none: np.ndarray | None = None
    probability: np.ndarray | None = None
    decision: np.ndarray | None = None
    reasons: np.ndarray | None = None
    novelty: np.ndarray | None = None
    kappa: np.ndarray | None = None
    ids: np.ndarray | None = None
    neighbour_labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    payload: np.ndarray | None = None
    stale: bool = False

    @classmethod
    def of(cls, posterior: LabelPosterior, **known: Any) -> "Answers":
        """Return what a posterior says, with whatever else is known of its queries."""
        return cls(
            posterior.label,
            posterior.candidates,
            posterior.label_probability,
            posterior.none,
            **known,
        )

    def __repr__(self) -> str:
        table = [("query", "label", "probability", "decision", "reason")]
        for row, found in enumerate(self[:ROWS].records()):
            chance, said = found["probability"], found["decision"] or "not calibrated"
            label, why = _short(str(found["label"]), WIDTHS[0]), "; ".join(found["reasons"])
            likely = "" if chance is None else f"{chance:.3f}"
            table.append((str(row), label, likely, said, _short(why, WIDTHS[1])))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        formats = "  ".join(f"{{:{side}{w}}}" for side, w in zip("><><<", widths, strict=True))
        lines = [formats.format(*cells).rstrip() for cells in table]
        if len(self) > ROWS:
            counts = Counter([] if self.decision is None else self.decision.tolist())
            named = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
            lines.append(f"{len(self):,} queries{': ' * bool(named)}{named}")
        return "\n".join(lines)

    def records(self) -> list[dict[str, Any]]:
        """Return each query's answer as plain values that JSON can hold; an infinite κ is None.

        Returns:
            ``{label, label_probability, none, decision, probability, reasons, kappa, novelty, neighbours}``
            for each query: probabilities of labels as ``[{label, probability}]``, neighbours as ``[{id,
            label, score, payload}]``, empty where nothing was searched. Without a calibration decision and
            probability are None and reasons empty.
        """

        # Whole columns leave NumPy at once: single values would cost more than a search.
        def column(values: np.ndarray | None) -> list[Any]:
            return [None] * len(self) if values is None else values.tolist()

        names = ("id", "label", "score", "payload")
        neighbours: list[Any] = [[]] * len(self)
        if self.ids is not None:
            columns = (self.ids, self.neighbour_labels, self.scores, self.payload)
            neighbours = [
                [dict(zip(names, one, strict=True)) for one in zip(*row, strict=True)]
                for row in zip(*map(column, columns), strict=True)
            ]
        likely = [
            [{"label": x, "probability": p} for x, p in zip(*row, strict=True) if x is not None]
            for row in zip(column(self.candidates), column(self.label_probability), strict=True)
        ]
        plain = {
            "label": column(self.label),
            "label_probability": likely,
            "none": column(self.none),
            "decision": column(self.decision),
            "probability": column(self.probability),
            "reasons": [list(why or ()) for why in column(self.reasons)],
            "kappa": [None if x is None else kappa_to_json(x) for x in column(self.kappa)],
            "novelty": column(self.novelty),
            "neighbours": neighbours,
        }
        return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]

    def to_arrow(self, ids: Any = None) -> Any:
        """Return a table of Arrow with a row for each query, for Parquet, DuckDB, Polars and the like.

        Columns, of types that do not depend on the values, so that tables can be concatenated:

            query               string                  its id, or the number of its row
            label               string                  the answered label
            probability         float64                 that it is right, as calibrated
            decision            string                  "match", "review" or "no_match"
            reasons             list of strings         why it is no match
            none                float64                 that no label is right, by the evidence alone
            novelty             float64                 its p-value
            kappa               float64                 its concentration
            label_probability   list of structs         label, probability: the most probable, at most 5
            neighbours          list of structs         id, label, score, payload (JSON)
            stale               bool                    whether the calibration was for something else

        A column of Arrow has one type, and ids and labels have two: they are strings here. What is not
        known is null.

        Args:
            ids: A string or an integer for each query, which may repeat; its row's number by default.

        Returns:
            A `pyarrow.Table`.
        """
        arrow = require("pyarrow", "make a table of answers")
        text, real = arrow.string(), arrow.float64()
        likely = [("label", text), ("probability", real)]
        near = [("id", text), ("label", text), ("score", real), ("payload", text)]
        schema = arrow.schema([
            ("query", text),
            ("label", text),
            ("probability", real),
            ("decision", text),
            ("reasons", arrow.list_(text)),
            ("none", real),
            ("novelty", real),
            ("kappa", real),
            ("label_probability", arrow.list_(arrow.struct(likely))),
            ("neighbours", arrow.list_(arrow.struct(near))),
            ("stale", arrow.bool_()),
        ])
        queries: Any = range(len(self))
        if ids is not None:
            queries = id_values("ids", ids, count=len(self), distinct=False)
        rows = [
            {
                **record,
                "query": str(query),
                "label": _text(record["label"]),
                "label_probability": [_texts(one) for one in record["label_probability"]],
                "neighbours": [_texts(one) for one in record["neighbours"]],
                "stale": self.stale,
            }
            for query, record in zip(queries, self.records(), strict=True)
        ]
        return arrow.Table.from_pylist(rows, schema=schema)

    def to_pandas(self, ids: Any = None) -> Any:
        """Return a data frame of pandas with a row for each query.

        Args:
            ids: As for `to_arrow`.

        Returns:
            A `pandas.DataFrame` of the columns of `to_arrow`: numbers that are null are NaN, lists are
            arrays (``frame.explode("neighbours")`` gives a row for each neighbour).
        """
        require("pandas", "make a data frame of answers", extra=None)
        return self.to_arrow(ids).to_pandas()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _texts(one: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate or a neighbour with texts for its id, label and payload."""
    texts: dict[str, Any] = {name: _text(one[name]) for name in ("id", "label") if name in one}
    payload = one.get("payload")
    return {**one, **texts, "payload": None if payload is None else json.dumps(payload)}


def _short(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
