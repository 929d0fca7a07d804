"""What calibration queries find in a gallery: their nearest items, of which some must not answer them.

Axes: ``q`` queries, ``c`` items.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool

from surefind.gallery.calibration_queries import CalibrationQueries, copies_below, given
from surefind.gallery.engine import BLOCK, Engine, Found, Label, exact_gaps, find, objects
from surefind.gallery.label_fit import COLUMNS, ROWS, VOTERS, Best, ItemTable, read_table

COPIES = 20
"""Items searched beyond the voters, in case that a query is among them, several times perhaps."""


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """The nearest items of each calibration query, nearest first.

    Attributes:
        ids: Objects (q, c), None where there are fewer.
        labels: Objects (q, c).
        groups: Objects (q, c).
        kappa: Float64 (q, c).
        gaps: 1 - cosine in float64 (q, c), rising; infinite where there are fewer.
    """

    ids: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    kappa: np.ndarray
    gaps: np.ndarray

    @classmethod
    def search(cls, engine: Engine, queries: CalibrationQueries) -> "Neighbourhoods":
        """Search all queries; items of the own label and group are left out where they are to be.

        Args:
            engine: The gallery's records, at least one.
            queries: What to search.

        Returns:
            Their neighbourhoods.
        """
        if queries.items:
            return _search_items(engine, queries)
        found = find(engine, queries.vectors, VOTERS + COPIES)
        nothing = np.full(found.ids.shape, None, dtype=object)
        return cls(found.ids, found.labels, nothing, found.kappa, found.gaps)

    def hidden(self, queries: CalibrationQueries) -> Bool[np.ndarray, "q c"]:
        """Return which items do not answer a query: itself, its copies, and what is left out with it."""
        own = objects(queries.ids, (len(queries), 1))
        is_own = np.asarray(self.ids == own, dtype=bool) & given(queries.ids)[:, None]
        hidden = is_own | (self.gaps <= queries.copies)
        if queries.items:
            label, session = (objects(x, own.shape) for x in (queries.labels, queries.groups))
            hidden |= np.asarray(self.labels == label, dtype=bool) & queries.stranger[:, None]
            together = np.asarray(self.groups == session, dtype=bool)
            hidden |= together & given(queries.groups)[:, None]
        return np.asarray(hidden, dtype=bool)

    def found(self, queries: CalibrationQueries) -> tuple[Found, Bool[np.ndarray, "q c"]]:
        """Return candidates without those that are hidden, as a search has them, and which were hidden."""
        hidden = self.hidden(queries)
        order = np.argsort(hidden, axis=1, kind="stable")
        columns: dict[str, Any] = {
            name: np.take_along_axis(getattr(self, name), order, axis=1)
            for name in ("ids", "labels", "kappa", "gaps")
        }
        gone = np.take_along_axis(hidden, order, axis=1)
        # What is hidden stands at the end, infinitely far, where all others are seen already.
        columns["gaps"] = np.where(gone, np.inf, columns["gaps"])
        columns["labels"][np.isinf(columns["gaps"])] = None
        payload = np.full(hidden.shape, None, dtype=object)
        return Found(**columns, payload=payload), hidden

    def copies(self, queries: CalibrationQueries) -> float:
        """Return 1 - cosine below which items are near-duplicates of items that play queries."""
        own = objects(queries.ids, (len(queries), 1))
        gaps = np.where(self.ids == own, np.inf, self.gaps)
        order = np.argsort(gaps, axis=1, kind="stable")
        same = self.labels == objects(queries.labels, (len(queries), 1))
        gaps, same = (np.take_along_axis(x, order, axis=1) for x in (gaps, same.astype(bool)))
        known = ~queries.stranger
        return copies_below(gaps[known], same[known])

    def some(self, rows: np.ndarray) -> "Neighbourhoods":
        """Return those of some queries, by row numbers."""
        return Neighbourhoods(**{name: values[rows] for name, values in vars(self).items()})


def _search_items(engine: Engine, queries: CalibrationQueries) -> Neighbourhoods:
    """Search items that play queries in one pass over all records, a block at a time."""
    table = read_table(engine)
    best = Best(len(queries), min(VOTERS + 2 * COPIES, len(table.ids)))
    label, group = _coded(table, queries)
    strict = queries.stranger
    for records in engine.scan(COLUMNS):
        place = np.array([table.row_of[id_] for id_ in records.ids])
        labels, groups = table.labels[place], table.groups[place]
        for start in range(0, len(queries), ROWS):
            part = slice(start, start + ROWS)
            cosines = queries.vectors[part] @ records.vectors.T
            cosines[(labels == label[part, None]) & strict[part, None]] = -np.inf
            cosines[(groups == group[part, None]) & (groups >= 0)] = -np.inf
            best.take(part, cosines, place)
    values, rows = best.ordered()
    return _exact(engine, table, queries, rows, np.isfinite(values))


def _coded(table: ItemTable, queries: CalibrationQueries) -> tuple[np.ndarray, np.ndarray]:
    """Return the queries' labels and groups as the table numbers them; -2 where it has none."""

    def coded(names: Sequence[Label], own: Sequence[Label]) -> np.ndarray:
        number = {name: n for n, name in enumerate(names)}
        return np.array([number.get(name, -2) for name in own])

    return coded(table.label_names, queries.labels), coded(table.group_names, queries.groups)


def _exact(
    engine: Engine,
    table: ItemTable,
    queries: CalibrationQueries,
    rows: np.ndarray,
    there: Bool[np.ndarray, "q c"],
) -> Neighbourhoods:
    """Compute the gaps of what was found again in float64, and order by them."""
    parts = []
    for start in range(0, len(queries), BLOCK):
        block = slice(start, start + BLOCK)
        shape = rows[block].shape
        records = engine.fetch([table.ids[row] for row in rows[block].ravel().tolist()])
        gaps = exact_gaps(queries.vectors[block], records.vectors.reshape(*shape, -1))
        gaps = np.where(there[block], gaps, np.inf)
        order = np.argsort(gaps, axis=1, kind="stable")
        columns = [objects(x, shape) for x in (records.ids, records.labels, records.groups)]
        columns += [records.kappa.reshape(shape), gaps]
        parts.append([np.take_along_axis(x, order, axis=1) for x in columns])
    ids, labels, groups, kappa, gaps = (np.concatenate(x) for x in zip(*parts, strict=True))
    return Neighbourhoods(ids, labels, groups, kappa, gaps)
