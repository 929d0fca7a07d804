"""Records in this process: a search looks at all of them, or walks FAISS's HNSW graph.

Up to `LARGE` records a search looks at every vector, which is exact; beyond, it walks a graph
(`surefind.gallery.graph`). ``"exact"`` and ``"hnsw"`` choose one for any size. The graph is built from
the vectors at the first search that needs it, and kept in the folder if it is large. Where searches must
not wait for that, somebody else builds it (`FaissEngine.graph_task`): until it is there, and whenever more
than `AT_ONCE` rows are missing in it, searches look at every vector.

The records are dense columns, with a row for each id: the last record moves into the place of a removed
one. So a brute-force search reads one block of memory, and a removal costs O(1). With a folder, every
change is on the disk before it is made here (`surefind.gallery.store`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count as count_from
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.errors import InputError
from surefind.gallery.engine import (
    Id,
    Label,
    Metadata,
    ObjectColumn,
    Records,
    as_fingerprint,
    forget,
    objects,
)
from surefind.gallery.graph import Graph, near_rows
from surefind.gallery.store import (
    GRAPH,
    Store,
    Stored,
    copy_store,
    create_store,
    open_store,
    read_store,
)

LARGE = 1_000_000
"""Records beyond which ``"auto"`` means a graph. Up to here a full scan of 128 dimensions takes some
100 ms, and a decision that rests on all neighbours is worth that; ask for ``"hnsw"`` where it is not."""

AT_ONCE = 1000
"""Rows that a search gives nodes itself, where somebody builds graphs in the background: some 100 ms."""

IDS, LABELS = 0, 1
"""Which columns of a table's objects they are."""

SMALLEST = 1024
"""Rows that are set aside at first; the columns double when they are full."""


class FaissEngine:
    """An `Engine` of this process, in memory or with a folder."""

    def __init__(self, index: str = "auto") -> None:
        """Start empty and in memory.

        Args:
            index: ``"auto"``, ``"exact"`` or ``"hnsw"``.
        """
        self._index = index
        self._table = Table()
        self._graph = Graph()
        self._in_background = False
        self._missed: list[Callable[[Graph], None]] | None = None
        self.metadata: dict[str, Any] = {}
        self._store: Store | None = None
        self._folder: Path | None = None

    @classmethod
    def open(cls, folder: Path, *, index: str | None = None, read_only: bool) -> "FaissEngine":
        """Open a gallery's folder, with everything that was acknowledged.

        Args:
            folder: The folder.
            index: How to search; as when it was made, if not given.
            read_only: Whether to leave the folder to another process that writes.

        Returns:
            The engine.
        """
        engine = cls()
        engine._folder = folder
        if read_only:
            stored = read_store(folder)
        else:
            engine._store, stored = open_store(folder)
        engine._table, engine.metadata = Table(stored.records, stored.total), stored.metadata
        engine._index = index or engine.metadata.get("index", "auto")
        if engine._index != "exact":
            engine._graph.load(folder / GRAPH, engine._table.vectors)
        return engine

    @property
    def place(self) -> str:
        """Where the records are, in words."""
        return "memory" if self._folder is None else str(self._folder)

    @property
    def dim(self) -> int | None:
        """The vectors' dimension; None until the first record."""
        return self._table.dim

    @property
    def index(self) -> str:
        """How it searches now: ``"exact"`` or ``"hnsw"``."""
        if self._index == "auto":
            return "hnsw" if len(self._table) > LARGE else "exact"
        return self._index

    @property
    def read_only(self) -> bool:
        """Whether changes are refused."""
        return self._store is None and self._folder is not None

    def __len__(self) -> int:
        return len(self._table)

    def known(self, ids: Sequence[Id]) -> set[Id]:
        """Return those of the ids that are kept."""
        return {i for i in ids if i in self._table.row_of}

    def put(self, records: Records) -> None:
        """Keep records, in place of those with the same ids."""
        table = self._table
        rows = table.rows(records.ids)
        replaced = table.take(rows[rows < len(table)])
        total = table.total + sum(records.hashes()) - sum(replaced.hashes())
        if store := self._writable():
            store.put(rows, records, table.total, total)
        changed = table.put(rows, records, total)
        self._follow(lambda graph: graph.changed(changed))

    def remove(self, ids: Sequence[Id]) -> None:
        """Drop records, all of which are kept."""
        table = self._table
        gone = table.rows(ids)
        moves = table.moves(gone)
        total = table.total - sum(table.take(gone).hashes())
        if store := self._writable():
            store.remove(gone, moves, table.total, total)
        table.remove(ids, moves, total)
        size = len(table)
        self._follow(lambda graph: graph.moved(moves, size))

    def fetch(self, ids: Sequence[Id]) -> Records:
        """Return kept records, in the order of the ids."""
        return self._table.take(self._table.rows(ids))

    def search(
        self,
        queries: Float[np.ndarray, "q z"],
        count: int,
        labels: Collection[Label] | None = None,
    ) -> Records:
        """Find ``count`` candidates of high cosine, with some label; there are that many records."""
        if labels is not None:
            some = self._table.rows_of(labels)
            found = near_rows(self._table.vectors[some], queries, count)
            return self._table.take(some[found.ravel()])
        find = self._graph.search if self._uses_graph else near_rows
        rows = find(self._table.vectors, queries, count)
        if not self._in_background:
            self._save_graph()
        return self._table.take(rows.ravel())

    @property
    def _uses_graph(self) -> bool:
        return self.index == "hnsw" and (self.graph_ready or not self._in_background)

    @property
    def graph_ready(self) -> bool:
        """Whether searches need no graph, or one that is there but for a few rows."""
        return self.index != "hnsw" or self._graph.missing(len(self._table)) <= AT_ONCE

    def graph_task(self, stop: Callable[[], bool]) -> Callable[[], Callable[[], None]] | None:
        """Leave graphs to whoever calls this, who keeps changes away while it does.

        Args:
            stop: Asked now and then whether to give up.

        Returns:
            None if nothing is to be done. Otherwise what builds a graph and writes its file; changes may go
            on meanwhile. That returns what puts the graph in its place, for which they must wait again.
        """
        self._in_background = True
        if self.graph_ready:
            return None
        missed: list[Callable[[Graph], None]] = []
        self._missed = missed
        vectors = self._table.vectors.copy()
        folder = None if self._store is None else self._store.folder

        def install(graph: Graph | None) -> None:
            self._missed = None
            if graph is not None:
                for change in missed:
                    change(graph)
                self._graph = graph

        def build() -> Callable[[], None]:
            graph = Graph.build(vectors, stop)
            if folder is not None and graph is not None and graph.worth_keeping:
                with suppress(OSError):
                    graph.save(folder / GRAPH)
            return lambda: install(graph)

        return build

    def _follow(self, change: Callable[[Graph], None]) -> None:
        change(self._graph)
        if self._missed is not None:
            self._missed.append(change)

    def scan(self, size: int) -> Iterator[Records]:
        """Return all records, ``size`` at a time."""
        for start in range(0, len(self._table), size):
            yield self._table.everything().some(slice(start, start + size))

    def label_counts(self) -> Mapping[Label, int]:
        """Return how many records each label in use has."""
        return self._table.label_counts

    def fingerprint(self) -> str:
        """Return the content fingerprint, in hexadecimal."""
        return as_fingerprint(self._table.total)

    def set_metadata(self, metadata: Metadata) -> None:
        """Keep a JSON object, in place of the last one."""
        if store := self._writable():
            store.set_metadata(metadata, self.metadata, self._table.total)
        self.metadata = dict(metadata)

    def copied(self) -> Iterator[Records]:
        """Return all records as they are now."""
        columns: Iterator[Any] = iter(vars(self._table.everything()).values())
        return iter([Records(*(column.copy() for column in columns))])

    def save(self, folder: Path | None) -> None:
        """Move from memory into a new folder, copy the own folder to it, or compact the own folder."""
        if self._folder is not None and folder is not None:
            copy_store(self._folder, folder)
        elif folder is not None:
            stored = Stored(self._table.everything(), self._table.total, self.metadata)
            self._store = create_store(folder, stored)
            self._folder = folder
            self._save_graph()
        elif self._store is not None:
            self._store.compact()
        elif self._folder is None:
            raise InputError("this gallery is in memory; give save a folder.")

    def close(self) -> None:
        """Let go of the folder."""
        if self._store is not None:
            self._store.close()

    def _writable(self) -> Store | None:
        if self.read_only:
            raise InputError(
                f"{self._folder} was opened with mode='r', which only reads; open it with mode='w' "
                "to change it."
            )
        return self._store

    def _save_graph(self) -> None:
        if self._store is not None and self._graph.worth_keeping:
            # A search that has its answer does not fail for want of a cache.
            with suppress(OSError):
                self._graph.save(self._store.folder / GRAPH)


class Table:
    """Records by row and by id, of one dimension once there are any.

    Args:
        records: The first rows, whose arrays are not copied; none by default.
        total: The sum of their hashes.
    """

    ids: list[Id]
    labels: list[Label]
    payload: list[str | None]
    groups: list[Label]
    row_of: dict[Id, int]
    total: int

    def __init__(self, records: Records | None = None, total: int = 0) -> None:
        if records is None:
            none = np.empty(0)
            records = Records([], np.empty((0, 0), dtype=np.float32), none, none, [], [], [])
        # Ids, labels, payload and groups, so that the rows of a search are taken out of all at once.
        self._objects = np.empty((4, len(records)), dtype=object)
        for column, values in zip(self._objects, _objects_of(records), strict=True):
            column[:] = values
        self._size = len(records)
        self.label_counts: Counter[Label] = Counter(records.labels)
        self.row_of = {id_: row for row, id_ in enumerate(records.ids)}
        self.total = total
        self._vectors, self._kappa, self._novelty = records.vectors, records.kappa, records.novelty

    def __len__(self) -> int:
        return self._size

    @property
    def dim(self) -> int | None:
        """The vectors' dimension; None until the first record ever."""
        return self._vectors.shape[1] or None

    @property
    def vectors(self) -> np.ndarray:
        """Unit vectors (n, z), a view."""
        return self._vectors[: len(self)]

    def rows(self, ids: ObjectColumn) -> Int[np.ndarray, " n"]:
        """Return the row of each id, for new ids the next free ones."""
        free = count_from(len(self))
        known = (self.row_of.get(id_) for id_ in ids)
        return np.array([next(free) if row is None else row for row in known], dtype=np.int64)

    def rows_of(self, labels: Collection[Label]) -> Int[np.ndarray, " n"]:
        """Return the rows of all records with one of some labels."""
        wanted = set(labels)
        own = self._objects[LABELS, : len(self)]
        return np.flatnonzero(np.fromiter((label in wanted for label in own), bool, len(self)))

    def put(
        self, rows: Int[np.ndarray, " n"], records: Records, total: int
    ) -> Int[np.ndarray, " m"]:
        """Keep records in their rows; return those rows whose vector changed."""
        size, places = len(self), rows.tolist()
        self._reserve(int(rows.max(initial=size - 1)) + 1, records.vectors.shape[1])
        self.row_of.update(zip(records.ids, places, strict=True))
        forget(self.label_counts, self._objects[LABELS, rows[rows < size]])
        self.label_counts.update(records.labels)
        for column, new in zip(self._objects, _objects_of(records), strict=True):
            column[rows] = objects(new, (len(rows),))
        self._size = int(rows.max(initial=size - 1)) + 1
        changed = (rows >= size) | (self._vectors[rows] != records.vectors).any(axis=1)
        self._vectors[rows], self._kappa[rows] = records.vectors, records.kappa
        self._novelty[rows] = records.novelty
        self.total = total
        return np.asarray(rows[changed])

    def moves(self, gone: Int[np.ndarray, " n"]) -> Int[np.ndarray, "2 m"]:
        """Return the rows that removals leave empty, and the last rows that are to fill them."""
        size = len(self) - len(gone)
        last = np.setdiff1d(np.arange(size, len(self)), gone)
        return np.stack([gone[gone < size], last])

    def remove(self, ids: Sequence[Id], moves: Int[np.ndarray, "2 m"], total: int) -> None:
        """Drop records, and move others into their rows."""
        filled, sources = moves
        forget(self.label_counts, self._objects[LABELS, [self.row_of[id_] for id_ in ids]])
        for id_ in ids:
            del self.row_of[id_]
        for array in (self._vectors, self._kappa, self._novelty):
            array[filled] = array[sources]
        self._objects[:, filled] = self._objects[:, sources]
        self._size -= len(ids)
        self._objects[:, self._size :] = None
        self.row_of.update(zip(self._objects[IDS, filled], filled.tolist(), strict=True))
        self.total = total

    def take(self, rows: Int[np.ndarray, " n"]) -> Records:
        """Return the records of some rows, in their order, as copies."""
        ids, *others = self._objects[:, rows]
        numbers = self._vectors[rows], self._kappa[rows], self._novelty[rows]
        return Records(ids, *numbers, *others)

    def everything(self) -> Records:
        """Return all records; the arrays are views."""
        ids, *others = self._objects[:, : len(self)]
        numbers = self.vectors, self._kappa[: len(self)], self._novelty[: len(self)]
        return Records(ids, *numbers, *others)

    def _reserve(self, count: int, dim: int) -> None:
        if self._vectors.shape[1] == 0:
            self._vectors = np.empty((0, dim), dtype=np.float32)
        if count <= len(self._vectors):
            return
        room = max(count, 2 * len(self._vectors), SMALLEST)
        size = len(self)
        vectors, kappa, novelty = np.empty((room, dim), dtype=np.float32), *np.empty((2, room))
        kept = np.empty((len(self._objects), room), dtype=object)
        kept[:, :size] = self._objects[:, :size]
        vectors[:size], kappa[:size] = self.vectors, self._kappa[:size]
        novelty[:size] = self._novelty[:size]
        self._vectors, self._kappa, self._novelty = vectors, kappa, novelty
        self._objects = kept


def _objects_of(records: Records) -> tuple[ObjectColumn, ...]:
    return records.ids, records.labels, records.payload, records.groups
