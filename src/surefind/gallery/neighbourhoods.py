"""What calibration queries find in a gallery, kept up to date while it changes.

A renewal asks what every calibration query finds *now*. Searching all of them again costs seconds at
100,000 items; most changes move few neighbours. So each query keeps its nearest items up to a *horizon*,
the distance within which it knows every item of the gallery:

    removed or changed items    leave the lists
    added or changed items      enter the lists of queries that have them within their horizon
    a list that grew long       is cut, and the horizon drawn in
    a list that grew short      if its horizon ends before `VOTERS` items, that query searches again

After each step a list is what a search would find. This needs an exact search, and that nobody else changes
the records; otherwise, and where many items changed, all queries search again.

Axes: ``q`` queries, ``c`` items kept, ``m`` changed items.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.gallery.calibration_queries import CalibrationQueries, copies_below, given
from surefind.gallery.engine import Engine, Id, Label, Records, objects
from surefind.gallery.label_fit import COLUMNS, ROWS, VOTERS, Best, ItemTable, read_table
from surefind.gallery.ranking import BLOCK, Found, exact_gaps, find, unit64

COPIES = 20
"""Items searched beyond the voters, in case that a query is among them, several times perhaps."""

KEPT = VOTERS + 2 * COPIES
"""Items kept of each query: some may go before it must search again."""

ROUNDING = 1e-9
"""Far above what the cosines of a product differ from those of a search."""

MANY = 0.1
"""Share of the items that may change before all queries search again."""


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """The nearest items of each calibration query, nearest first.

    Attributes:
        ids: Objects (q, c), None where there are fewer.
        labels: Objects (q, c).
        groups: Objects (q, c).
        kappa: Float64 (q, c).
        gaps: 1 - cosine in float64 (q, c), rising; infinite where there are fewer.
        horizon: Up to which 1 - cosine all items are known (q); infinite if all of the gallery is.
    """

    ids: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    kappa: np.ndarray
    gaps: np.ndarray
    horizon: np.ndarray

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
        whole = found.gaps.shape[1] == len(engine)
        horizon = np.full(len(queries), np.inf) if whole else found.gaps[:, -1]
        nothing = np.full(found.ids.shape, None, dtype=object)
        return cls(found.ids, found.labels, nothing, found.kappa, found.gaps, horizon)

    def updated(
        self, engine: Engine, queries: CalibrationQueries, changed: Collection[Id]
    ) -> "Neighbourhoods":
        """Return the neighbourhoods after some items were added, updated or deleted.

        Args:
            engine: The gallery's records as they are now; searches are exact, and nobody else writes.
            queries: Those that were searched.
            changed: Ids of every item that changed since.

        Returns:
            What `search` would return, except that lists may be longer.
        """
        if not changed:
            return self
        if len(changed) > MANY * len(engine):
            return Neighbourhoods.search(engine, queries)
        gone = np.frompyfunc(set(changed).__contains__, 1, 1)(self.ids).astype(bool)
        new = engine.fetch(sorted(engine.known(list(changed)), key=str))
        gaps = _gaps_within(self.horizon, queries, new)
        several = (_rows(values, len(queries)) for values in (new.labels, new.groups))
        gaps[_left_out(queries, *several)] = np.inf
        columns = {
            name: np.concatenate([getattr(self, name), _rows(values, len(queries))], axis=1)
            for name, values in vars(new).items()
            if name in ("ids", "labels", "groups", "kappa")
        }
        together = np.concatenate([np.where(gone, np.inf, self.gaps), gaps], axis=1)
        order = np.argsort(together, axis=1, kind="stable")
        kept = order[:, :KEPT]
        cut = np.take_along_axis(together, kept, axis=1)
        horizon = self.horizon.copy()
        if order.shape[1] > KEPT:
            over = np.isfinite(
                np.take_along_axis(together, order[:, KEPT : KEPT + 1], axis=1)[:, 0]
            )
            horizon[over] = cut[over, -1]
        taken = {name: np.take_along_axis(values, kept, axis=1) for name, values in columns.items()}
        after = Neighbourhoods(gaps=cut, horizon=horizon, **taken)
        seen = np.isfinite(cut) & ~after.hidden(queries)
        short = (seen.sum(axis=1) < VOTERS) & np.isfinite(horizon)
        return after._searched_again(engine, queries, np.flatnonzero(short))

    def hidden(self, queries: CalibrationQueries) -> Bool[np.ndarray, "q c"]:
        """Return which items do not answer a query: itself, its copies, and what is left out with it."""
        own = objects(queries.ids, (len(queries), 1))
        is_own = np.asarray(self.ids == own, dtype=bool) & given(queries.ids)[:, None]
        hidden = is_own | (self.gaps <= queries.copies)
        if queries.items:
            hidden |= _left_out(queries, self.labels, self.groups)
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

    @classmethod
    def joined(cls, parts: "Sequence[Neighbourhoods]") -> "Neighbourhoods":
        """Return those of several parts of the queries, one after the other."""
        width = max(part.gaps.shape[1] for part in parts)
        wide = [vars(_padded(part, width)) for part in parts]
        return cls(**{name: np.concatenate([one[name] for one in wide]) for name in wide[0]})

    def some(self, rows: np.ndarray) -> "Neighbourhoods":
        """Return those of some queries, by row numbers."""
        return Neighbourhoods(**{name: values[rows] for name, values in vars(self).items()})

    def _searched_again(
        self, engine: Engine, queries: CalibrationQueries, rows: np.ndarray
    ) -> "Neighbourhoods":
        if not len(rows):
            return self
        again = Neighbourhoods.search(engine, queries.some(rows))
        width = max(self.gaps.shape[1], again.gaps.shape[1])
        whole, part = (_padded(x, width) for x in (self, again))
        for name, values in vars(whole).items():
            values[rows] = getattr(part, name)
        return whole


def _padded(some: Neighbourhoods, width: int) -> Neighbourhoods:
    """Return a copy with rows of that width."""
    missing = width - some.gaps.shape[1]
    fill: dict[str, Any] = {
        "ids": None,
        "labels": None,
        "groups": None,
        "kappa": np.inf,
        "gaps": np.inf,
    }
    columns = {
        name: np.pad(getattr(some, name), ((0, 0), (0, missing)), constant_values=value)
        for name, value in fill.items()
    }
    return Neighbourhoods(horizon=some.horizon.copy(), **columns)


def _rows(values: Any, count: int) -> np.ndarray:
    """Repeat a column of records for every query (q, m)."""
    column = values if isinstance(values, np.ndarray) else objects(list(values), (-1,))
    return np.broadcast_to(column, (count, len(column)))


def _gaps_within(
    horizon: Float[np.ndarray, " q"], queries: CalibrationQueries, records: Records
) -> Float[np.ndarray, "q m"]:
    """Compute 1 - cosine of queries and records as a search does; infinite beyond a query's horizon."""
    # A product of matrices finds who is near; what a search computes for these is slower by far.
    cosines = unit64(queries.vectors) @ unit64(records.vectors).T
    q, m = np.nonzero(1 - cosines <= horizon[:, None] + ROUNDING)
    near = exact_gaps(queries.vectors[q], records.vectors[m][:, None])[:, 0]
    gaps = np.full(cosines.shape, np.inf)
    gaps[q, m] = np.where(near <= horizon[q], near, np.inf)
    return gaps


def _left_out(
    queries: CalibrationQueries, labels: np.ndarray, groups: np.ndarray
) -> Bool[np.ndarray, "q m"]:
    """Return which items (q, m) are of the query's group, or of its label where that is left out."""
    if not queries.items:
        return np.zeros(labels.shape, dtype=bool)
    own, session = (objects(x, (len(queries), 1)) for x in (queries.labels, queries.groups))
    same = np.asarray(labels == own, dtype=bool) & queries.stranger[:, None]
    together = np.asarray(groups == session, dtype=bool) & given(queries.groups)[:, None]
    return np.asarray(same | together)


def _search_items(engine: Engine, queries: CalibrationQueries) -> Neighbourhoods:
    """Search items that play queries in one pass over all records, a block at a time."""
    table = read_table(engine)
    best = Best(len(queries), min(KEPT, len(table.ids)))
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
    full = np.isfinite(gaps[:, -1]) & (gaps.shape[1] < len(table.ids))
    return Neighbourhoods(ids, labels, groups, kappa, gaps, np.where(full, gaps[:, -1], np.inf))
