"""Records in memory: dense columns that grow, and a row for each id.

Rows stay dense: the last record moves into the place of a removed one. So a brute-force search reads
one block of memory, and a removal costs O(1). Every change says which rows it touched, for an index
that follows along.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from surefind.gallery.engine import Id, Label, Records, as_fingerprint

SMALLEST = 1024
"""Rows that are set aside at first; the columns double when they are full."""


class Table:
    """Records by row and by id, of one dimension once there are any."""

    def __init__(self) -> None:
        self.row_of: dict[Id, int] = {}
        self.ids: list[Id] = []
        self.labels: list[Label] = []
        self.payload: list[str | None] = []
        self._vectors = np.empty((0, 0), dtype=np.float32)
        self._kappa = np.empty(0)
        self._total = 0

    @classmethod
    def of(cls, records: Records, total: int | None = None) -> "Table":
        """Make a table of records with distinct ids.

        Args:
            records: They become the rows, in their order; the arrays are not copied.
            total: The sum of their hashes, if it is known.

        Returns:
            The table.
        """
        table = cls()
        table.ids, table.labels = list(records.ids), list(records.labels)
        table.payload = list(records.payload)
        table._vectors, table._kappa = records.vectors, records.kappa
        table.row_of = {id_: row for row, id_ in enumerate(table.ids)}
        table._total = sum(records.hashes()) if total is None else total
        return table

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def dim(self) -> int | None:
        """The vectors' dimension; None until the first record ever."""
        return self._vectors.shape[1] or None

    @property
    def vectors(self) -> np.ndarray:
        """Unit vectors (n, z), a view."""
        return self._vectors[: len(self)]

    @property
    def total(self) -> int:
        """The sum of the records' hashes."""
        return self._total

    @property
    def fingerprint(self) -> str:
        """The content fingerprint."""
        return as_fingerprint(self._total)

    def put(self, records: Records) -> Int[np.ndarray, " n"]:
        """Keep records, in place of those with the same ids.

        Args:
            records: Their ids are distinct.

        Returns:
            The row of each.
        """
        known = [self.row_of[i] for i in records.ids if i in self.row_of]
        self._total -= sum(self.take(np.array(known, dtype=np.int64)).hashes())
        self._total += sum(records.hashes())
        self._reserve(len(self) + len(records) - len(known), records.vectors.shape[1])
        rows = np.empty(len(records), dtype=np.int64)
        for n, (id_, label, payload) in enumerate(
            zip(records.ids, records.labels, records.payload, strict=True)
        ):
            row = self.row_of.setdefault(id_, len(self.ids))
            if row == len(self.ids):
                self.ids.append(id_)
                self.labels.append(label)
                self.payload.append(payload)
            else:
                self.labels[row], self.payload[row] = label, payload
            rows[n] = row
        self._vectors[rows], self._kappa[rows] = records.vectors, records.kappa
        return rows

    def remove(self, id_: Id) -> tuple[int, int]:
        """Drop a record.

        Args:
            id_: Its id, which is kept.

        Returns:
            The row that became free, and the row whose record moved there: the last one.
        """
        row, last = self.row_of.pop(id_), len(self.ids) - 1
        self._total -= self.take(np.array([row])).hashes()[0]
        columns: list[list[Any]] = [self.ids, self.labels, self.payload]
        for column in columns:
            column[row] = column[last]
            column.pop()
        if row != last:
            self.row_of[self.ids[row]] = row
            self._vectors[row], self._kappa[row] = self._vectors[last], self._kappa[last]
        return row, last

    def take(self, rows: np.ndarray) -> Records:
        """Return the records of some rows, as copies.

        Args:
            rows: Row numbers (n).

        Returns:
            The records, in the order of the rows.
        """
        listed = rows.tolist()
        return Records(
            [self.ids[r] for r in listed],
            self._vectors[rows],
            self._kappa[rows],
            [self.labels[r] for r in listed],
            [self.payload[r] for r in listed],
        )

    def rows(self, ids: Sequence[Id]) -> Int[np.ndarray, " n"]:
        """Return the rows of ids that are kept."""
        return np.array([self.row_of[i] for i in ids], dtype=np.int64)

    def everything(self) -> Records:
        """Return all records; the arrays are views."""
        return Records(self.ids, self.vectors, self._kappa[: len(self)], self.labels, self.payload)

    def _reserve(self, count: int, dim: int) -> None:
        if self._vectors.shape[1] == 0:
            self._vectors = np.empty((0, dim), dtype=np.float32)
        if count <= len(self._vectors):
            return
        room = max(count, 2 * len(self._vectors), SMALLEST)
        vectors, kappa = np.empty((room, dim), dtype=np.float32), np.empty(room)
        vectors[: len(self)], kappa[: len(self)] = self.vectors, self._kappa[: len(self)]
        self._vectors, self._kappa = vectors, kappa
