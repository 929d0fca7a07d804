"""Records in this process: a search looks at all of them, or walks FAISS's HNSW graph.

Up to `LARGE` records a search looks at every vector, which is exact; beyond, it walks a graph
(`surefind.gallery.graph`). ``"exact"`` and ``"hnsw"`` choose one for any size. A graph is brought up to
date by the search that needs it where that is soon done, and otherwise by a thread of its own; until it is
there, searches look at every vector. A large one is kept in the folder.

The records are dense columns, with a row for each id: the last record moves into the place of a removed
one. So a brute-force search reads one block of memory, and a removal costs O(1). With a folder, every
change is on the disk before it is made here (`surefind.gallery.store`).
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import count as count_from
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from surefind.errors import InputError
from surefind.gallery.graph import Graph, near_rows
from surefind.gallery.records import Asked, Id, Label, Metadata, Records, as_fingerprint, forget
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
"""Rows that a search gives nodes itself: some 100 ms."""

IDS, VECTORS, LABELS = 0, 1, 4
"""Which columns of the records they are."""

SMALLEST = 1024
"""Rows that are set aside at first; the columns double when they are full."""


class FaissEngine:
    """Records in memory, or with a folder; `surefind.gallery.engine` says what it does.

    Args:
        index: ``"auto"``, ``"exact"`` or ``"hnsw"``.
    """

    def __init__(self, index: str = "auto") -> None:
        self._index = index
        self.metadata: dict[str, Any] = {}
        self._store: Store | None = None
        self._folder: Path | None = None
        none = np.empty(0)
        nothing = Records([], np.empty((0, 0), dtype=np.float32), none, none, [], [], [])
        self._take_over(Stored(nothing, 0, {}))
        self._graph = Graph()
        self._builder: threading.Thread | None = None
        self._built: Graph | None = None
        self._missed: list[np.ndarray] = []
        self._closing = threading.Event()

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
        engine._take_over(stored)
        engine._index = index or engine.metadata.get("index", "auto")
        if engine._index != "exact":
            engine._graph = Graph.load(folder / GRAPH, engine._vectors)
        return engine

    def _take_over(self, stored: Stored) -> None:
        """Hold records, whose arrays are not copied."""
        records = stored.records
        self._columns = [*vars(records).values()]
        self._size, self._total, self.metadata = len(records), stored.total, stored.metadata
        self._row_of: dict[Id, int] = {id_: row for row, id_ in enumerate(records.ids)}
        self.label_counts: Counter[Label] = Counter(records.labels)
        """How many records each label in use has."""

    @property
    def place(self) -> str:
        """Where the records are, in words."""
        return "memory" if self._folder is None else str(self._folder)

    @property
    def dim(self) -> int | None:
        """The vectors' dimension; None until the first record ever."""
        return self._columns[VECTORS].shape[1] or None

    @property
    def index(self) -> str:
        """How it searches now: ``"exact"`` or ``"hnsw"``."""
        if self._index == "auto":
            return "hnsw" if len(self) > LARGE else "exact"
        return self._index

    @property
    def read_only(self) -> bool:
        """Whether changes are refused."""
        return self._store is None and self._folder is not None

    @property
    def fingerprint(self) -> str:
        """The content fingerprint, in hexadecimal."""
        return as_fingerprint(self._total)

    def __len__(self) -> int:
        return self._size

    def known(self, ids: Sequence[Id]) -> set[Id]:
        """Return those of the ids that are kept."""
        return {i for i in ids if i in self._row_of}

    def put(self, records: Records) -> None:
        """Keep records, in place of those with the same ids."""
        rows, size = self._rows(records.ids), len(self)
        known, after = rows[rows < size], int(rows.max(initial=size - 1)) + 1
        total = self._total + records.hash_sum - self._take(known).hash_sum
        if store := self._writable():
            store.put(rows, records, self._total, total)
        self._reserve(after, records.vectors.shape[1])
        self._size = after
        forget(self.label_counts, self._columns[LABELS][known])
        self.label_counts.update(records.labels)
        changed = (rows >= size) | (self._columns[VECTORS][rows] != records.vectors).any(axis=1)
        for column, new in zip(self._columns, vars(records).values(), strict=True):
            column[rows] = new
        self._row_of.update(zip(records.ids, rows.tolist(), strict=True))
        self._total = total
        self._changed(rows[changed])

    def remove(self, ids: Sequence[Id]) -> None:
        """Drop records, all of which are kept; the last ones move into their rows."""
        gone, size = self._rows(ids), len(self) - len(ids)
        old = self._take(gone)
        moves = np.stack([gone[gone < size], np.setdiff1d(np.arange(size, len(self)), gone)])
        total = self._total - old.hash_sum
        if store := self._writable():
            store.remove(gone, moves, self._total, total)
        filled, sources = moves
        forget(self.label_counts, old.labels)
        for id_ in ids:
            del self._row_of[id_]
        for column in self._columns:
            column[filled] = column[sources]
            if column.dtype == object:
                column[size : len(self)] = None
        self._size, self._total = size, total
        self._row_of.update(zip(self._columns[IDS][filled], filled.tolist(), strict=True))
        self._changed(filled)

    def fetch(self, ids: Sequence[Id]) -> Records:
        """Return kept records, in the order of the ids, as copies."""
        return self._take(self._rows(ids))

    def search(
        self, queries: Asked, count: int, labels: Collection[Label] | None = None
    ) -> Records:
        """Find candidates of high cosine for each query; there are ``count`` records.

        Args:
            queries: Unit vectors in float32.
            count: How many, at most as many as there are.
            labels: Only records with one of these; all by default.

        Returns:
            Equally many for each query, perhaps a few more, in no order; the first query's first.
        """
        vectors = self._vectors
        if labels is not None:
            own, wanted = self._columns[LABELS][: len(self)], {*labels}
            some = np.flatnonzero(np.fromiter((x in wanted for x in own), bool, len(own)))
            rows = some[near_rows(vectors[some], queries, count)]
        else:
            find = self._graph.search if self.keep_up() else near_rows
            rows = find(vectors, queries, count)
        return self._take(rows.ravel())

    def scan(self, size: int) -> Iterator[Records]:
        """Return all records, ``size`` at a time, in no order that means anything."""
        for start in range(0, len(self), size):
            yield self._take(slice(start, min(start + size, len(self))))

    def copied(self) -> list[Records]:
        """Return all records as they are now, in parts, to be read beside changes."""
        return [self._take(np.arange(len(self)))]

    def set_metadata(self, metadata: Metadata) -> None:
        """Keep a JSON object, in place of the last one."""
        if store := self._writable():
            store.set_metadata(metadata, self.metadata, self._total)
        self.metadata = dict(metadata)

    def save(self, folder: Path | None) -> None:
        """Move from memory into a new folder, copy the own folder to it, or compact the own folder."""
        if self._folder is not None and folder is not None:
            copy_store(self._folder, folder)
        elif folder is not None:
            everything = self._take(slice(len(self)))
            self._store = create_store(folder, Stored(everything, self._total, self.metadata))
            self._folder = folder
        elif self._store is not None:
            self._store.compact()
        elif self._folder is None:
            raise InputError("this gallery is in memory; give save a folder.")

    def close(self) -> None:
        """Let go of the folder."""
        self._closing.set()
        if self._builder is not None:
            self._builder.join()
        if self._store is not None:
            self._save_graph(self._graph)
            self._store.close()

    @property
    def graph_ready(self) -> bool:
        """Whether searches need no graph, or there is one but for a few rows."""
        if self.index != "hnsw" or self._built is not None:
            return True
        return self._builder is None and self._graph.missing(len(self)) <= AT_ONCE

    def keep_up(self) -> bool:
        """Bring the graph up to date, behind if that takes long; return whether it can be searched."""
        if self.index != "hnsw" or (self._builder is not None and self._builder.is_alive()):
            return False
        if self._built is not None:
            for rows in self._missed:
                self._built.changed(rows)
            self._graph = self._built
        self._built = self._builder = None
        missing = self._graph.missing(len(self))
        if missing > AT_ONCE:
            self._missed = []
            work = (self._graph.copy, self._vectors.copy())
            self._builder = threading.Thread(target=self._build, args=work, daemon=True)
            self._builder.start()
        elif missing:
            self._graph.follow(self._vectors)
        return missing <= AT_ONCE

    def _build(self, copy: Any, vectors: np.ndarray) -> None:
        graph = copy()
        if graph.follow(vectors, self._closing.is_set):
            self._save_graph(graph)
            self._built = graph

    def _save_graph(self, graph: Graph) -> None:
        if self._store is not None and graph.worth_keeping:
            with suppress(OSError):  # nobody fails for want of a cache
                graph.save(self._store.folder / GRAPH)

    def _changed(self, rows: Int[np.ndarray, " n"]) -> None:
        self._graph.changed(rows)
        if self._builder is not None:
            self._missed.append(rows)

    def _writable(self) -> Store | None:
        if self.read_only:
            raise InputError(
                f"{self._folder} was opened with mode='r', which only reads; open it with mode='w' "
                "to change it."
            )
        return self._store

    @property
    def _vectors(self) -> np.ndarray:
        """Unit vectors (n, z), a view."""
        return np.asarray(self._columns[VECTORS][: len(self)])

    def _rows(self, ids: Sequence[Id]) -> Int[np.ndarray, " n"]:
        """Return the row of each id, for new ids the next free ones."""
        free = count_from(len(self))
        known = (self._row_of.get(id_) for id_ in ids)
        return np.array([next(free) if row is None else row for row in known], dtype=np.int64)

    def _take(self, rows: Any) -> Records:
        """Return the records of some rows, in their order: as copies of an array of rows."""
        return Records(*(column[rows] for column in self._columns))

    def _reserve(self, size: int, dim: int) -> None:
        """Make room for so many rows, and double it where it is too small."""
        if self.dim is None:
            self._columns[VECTORS] = np.empty((0, dim), dtype=np.float32)
        room = len(self._columns[IDS])
        if size > room:
            more = max(size - room, room, SMALLEST)
            self._columns = [
                np.concatenate([x, np.zeros((more, *x.shape[1:]), dtype=x.dtype)])
                for x in self._columns
            ]
