"""Records in this process: a search looks at all of them, or walks FAISS's HNSW graph.

Up to `LARGE` records a search looks at every vector, which is exact; beyond, it walks a graph
(`surefind.gallery.graph`). ``"exact"`` and ``"hnsw"`` choose one for any size. The graph is built from
the vectors at the first search that needs it, and kept in the folder if it is large.

With a folder, every change is on the disk before the call returns (`surefind.gallery.storage`).
"""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.errors import InputError
from surefind.gallery.engine import Hits, Id, Label, Note, Records
from surefind.gallery.faults import StorageError
from surefind.gallery.graph import Graph
from surefind.gallery.journal import Change
from surefind.gallery.storage import Storage, create_storage, open_storage, read_storage
from surefind.gallery.table import Table
from surefind.retrieval.search import nearest_rows

LARGE = 1_000_000
"""Records beyond which ``"auto"`` means a graph. Up to here a full scan of 128 dimensions takes some
100 ms, and a decision that rests on all neighbours is worth that; ask for ``"hnsw"`` where it is not."""


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
        self._note: dict[str, Any] = {}
        self._storage: Storage | None = None
        self._folder: Path | None = None

    @classmethod
    def open(cls, folder: Path, *, index: str | None = None, read_only: bool) -> "FaissEngine":
        """Open a gallery's folder.

        Args:
            folder: The folder.
            index: How to search; as when it was made, if not given.
            read_only: Whether to leave the folder to another process that writes.

        Returns:
            The engine, with everything that was acknowledged.
        """
        engine = cls()
        engine._folder = folder
        with_graph = index != "exact"
        if read_only:
            found = read_storage(folder, with_graph=with_graph)
        else:
            engine._storage, found = open_storage(folder, with_graph=with_graph)
        engine._table, engine._graph, engine._note = found.table, found.graph, found.note
        engine._index = index or engine._note.get("index", "auto")
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
    def note(self) -> Note:
        """What `set_note` kept."""
        return self._note

    def __len__(self) -> int:
        return len(self._table)

    def known(self, ids: Sequence[Id]) -> set[Id]:
        """Return those of the ids that are kept."""
        return {i for i in ids if i in self._table.row_of}

    def put(self, records: Records) -> None:
        """Keep records, in place of those with the same ids."""
        self._append(Change(put=records))
        self._graph.changed(self._table.put(records))
        self._tidy()

    def remove(self, ids: Sequence[Id]) -> None:
        """Drop records, all of which are kept."""
        self._append(Change(remove=ids))
        for id_ in ids:
            self._graph.moved(*self._table.remove(id_))
        self._tidy()

    def fetch(self, ids: Sequence[Id]) -> Records:
        """Return kept records, in the order of the ids."""
        return self._table.take(self._table.rows(ids))

    def search(self, queries: Float[np.ndarray, "q z"], count: int) -> Hits:
        """Find ``count`` candidates of high cosine for each query; there are that many records."""
        find = self._graph.search if self.index == "hnsw" else nearest_rows
        rows = find(self._table.vectors, queries, count)
        self._keep_graph()
        return Hits(self._table.take(rows.ravel()), count)

    def scan(self, size: int) -> Iterator[Records]:
        """Return all records, ``size`` at a time."""
        for start in range(0, len(self._table), size):
            yield self._table.everything().part(start, start + size)

    def labels(self) -> set[Label]:
        """Return the labels that are in use."""
        return set(self._table.labels)

    def fingerprint(self) -> str:
        """Return the content fingerprint, in hexadecimal."""
        return self._table.fingerprint

    def set_note(self, note: Note) -> None:
        """Keep a JSON object, in place of the last one."""
        self._append(Change(note=note))
        self._note = dict(note)

    def settle(self, folder: Path) -> None:
        """Move from memory into a folder, where every later change is kept too."""
        self._storage = create_storage(folder, self._table, self._note)
        self._folder = folder
        self._keep_graph()

    def compact(self) -> None:
        """Write everything into one snapshot now, so that the next opening is quick."""
        if self._storage is not None:
            self._storage.compact(self._table, self._note)
            self._graph.forget_file()
            self._keep_graph()

    def close(self) -> None:
        """Let go of the folder."""
        if self._storage is not None:
            self._storage.close()

    def _keep_graph(self) -> None:
        if self._storage is not None and self._graph.worth_keeping:
            self._storage.keep_graph(self._graph, self._table)

    def _append(self, change: Change) -> None:
        if self._storage is not None:
            self._storage.append(change)
        elif self._folder is not None:
            raise InputError(
                f"{self._folder} was opened with mode='r', which only reads; open it with mode='w' "
                "to change it."
            )

    def _tidy(self) -> None:
        if self._storage is None or not self._storage.outgrown:
            return
        try:
            self.compact()
        except StorageError as error:
            # The change itself is safe in the journal, so the call that made it did not fail.
            warnings.warn(str(error), RuntimeWarning, stacklevel=4)
