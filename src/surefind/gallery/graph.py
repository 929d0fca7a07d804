"""An HNSW graph over the rows of a table, beside a scan of the rows that have changed since.

HNSW (Malkov and Yashunin 2020) walks a graph of near neighbours and finds most of the nearest ones
without looking at the rest. FAISS's graph only grows: node i is the vector that row i had when it was
added. A row that has changed since is *loose*, and so is one behind the last node: searches look at all of
these, and nodes of other vectors still lead the way but are never an answer. When more than `MOST_DEAD` of
the nodes are such, the graph is built anew, which takes a minute for some 100,000 rows and needs nothing
but a copy of the vectors.

The answer is approximate: `BREADTH` trades recall for time. Recall@10 against an exact search, and the CPU
time of a query, on embeddings of real data:

    breadth                             128              256              512
    CLINC150, 23,400 × 384         0.993, 0.22 ms   0.997, 0.44 ms   0.999, 0.93 ms
    CUB200, 11,488 × 1280          0.996, 0.54 ms   0.999, 0.90 ms   1.000, 1.57 ms

It depends on the vectors, not on their number alone: of 100,000 × 128 spread evenly over the sphere, which
embeddings never are, a breadth of 128 finds a third (benchmarks/results/gallery.json). Compare with
``index="exact"`` on your own vectors before relying on it. A query that finds too few is searched exactly.

In a file, so that opening a large gallery does not build it again:

    graph.bin = a line of JSON, the graph with its vectors as FAISS writes it

The file is a cache. It is written beside its place and renamed, but nobody waits for the disk: one that is
missing, torn or damaged counts as none. It need not be of the same moment as the gallery: whoever loads it
compares every node's vector with that of its row.
"""

import json
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from surefind.files import write_atomically
from surefind.gallery.records import Asked, Vectors

faiss: Any = import_module("faiss")
"""Untyped on purpose: what it says about its types leaves out what its Python layer adds."""

LINKS = 16
"""Neighbours per node (HNSW's M); twice as many on the lowest layer."""

BUILD_BREADTH = 64
"""Candidates kept while a node is linked (efConstruction)."""

BREADTH = 256
"""Candidates kept while searching (efSearch), or twice what was asked for, if that is more."""

MOST_DEAD = 0.1
"""The fraction of nodes of other vectors than their rows' above which the graph is built anew."""

WORTH_KEEPING, GROWN = 10_000, 0.1
"""Nodes from which a graph is worth a file, and the fraction of new ones from which it is worth another."""

FORMAT, VERSION = "surefind-graph", 3
BUILT = 1000
"""Rows after which a build looks whether it should stop: about a tenth of a second."""

COMPARED = 2**16
"""Nodes whose vectors are compared at a time."""

CELLS = 2**24
"""Cosines held at a time by a search that looks at every vector: 64 MB."""


def near_rows(vectors: Vectors, queries: Asked, count: int) -> Int[np.ndarray, "q c"]:
    """Return the ``count`` rows of highest cosine, at most n, of each query, in no order.

    They are those of float32: whoever must have the nearest asks for a few more, and compares these.
    """
    first = len(vectors) - count
    size = max(1, CELLS // len(vectors))
    blocks = [queries[start : start + size] for start in range(0, len(queries), size)]
    return np.concatenate([
        np.argpartition(block @ vectors.T, min(first, len(vectors) - 1), axis=1)[:, first:]
        for block in blocks
    ])


class Graph:
    """Nodes for rows of a table; tell it of each changed row.

    Args:
        index: What FAISS built; by default nothing.
        same: Which nodes are the vectors of their rows.
    """

    def __init__(self, index: Any = None, same: np.ndarray | None = None) -> None:
        self._index = index
        self._same = np.empty(0, dtype=bool) if same is None else same
        self._kept = len(self._same)
        self._view: tuple[int, np.ndarray, Any] | None = None

    def copy(self) -> "Graph":
        """Return a graph of its own."""
        index = None if self._index is None else faiss.clone_index(self._index)
        made = Graph(index, self._same.copy())
        made._kept = self._kept
        return made

    def changed(self, rows: Int[np.ndarray, " n"]) -> None:
        """Take rows for loose, of which those without a node are already."""
        self._same[rows[rows < len(self._same)]] = False
        self._view = None

    def missing(self, rows: int) -> int:
        """Return how many nodes `follow` would add for so many rows."""
        nodes = len(self._same)
        dead = nodes - int(self._same[:rows].sum())
        return max(rows - nodes, 0) if dead <= MOST_DEAD * nodes else rows

    def follow(self, vectors: Vectors, stop: Callable[[], bool] = lambda: False) -> bool:
        """Give every row a node, or make it loose, on one thread.

        Args:
            vectors: Of the rows, at least one.
            stop: Asked now and then whether to give up.

        Returns:
            Whether it was not stopped.
        """
        faiss.omp_set_num_threads(1)  # of this thread only: other threads search meanwhile
        self._view = None
        if self._index is None or self.missing(len(vectors)) == len(vectors):
            self._index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = BUILD_BREADTH
            self._same, self._kept = np.empty(0, dtype=bool), 0
        while len(new := vectors[len(self._same) :][:BUILT]):
            if stop():
                return False
            self._index.add(new)
            self._same = np.append(self._same, np.ones(len(new), dtype=bool))
        return True

    def search(self, vectors: Vectors, queries: Asked, count: int) -> Int[np.ndarray, "q c"]:
        """Find near rows.

        Args:
            vectors: The table's unit vectors, after `follow`.
            queries: Unit vectors.
            count: How many to find, at most n.

        Returns:
            Rows, at least so many, in no order that means anything.
        """
        n = len(vectors)
        if self._view is None or self._view[0] != n:
            there = self._same.copy()
            there[n:] = False
            bits = None if there.all() else np.packbits(there, bitorder="little")
            self._view = n, np.flatnonzero(~there[:n]), bits
        _, loose, bits = self._view
        options: dict[str, Any] = {"efSearch": max(BREADTH, 2 * count)}
        if bits is not None:
            options["sel"] = faiss.IDSelectorBitmap(bits)  # which keeps the address only
        some = min(count, n - len(loose))
        parameters = faiss.SearchParametersHNSW(**options)
        _, found = self._index.search(queries, some, params=parameters)
        short = (found < 0).any(axis=1)
        if short.any():
            rows = np.flatnonzero(self._same[:n])
            found[short] = rows[near_rows(vectors[rows], queries[short], some)]
        if not len(loose):
            return np.asarray(found)
        others = loose[near_rows(vectors[loose], queries, min(count, len(loose)))]
        return np.concatenate([found, others], axis=1)

    @property
    def worth_keeping(self) -> bool:
        """Whether much would have to be built again that is in no file."""
        nodes = len(self._same)
        return nodes >= WORTH_KEEPING and nodes - self._kept > GROWN * nodes

    def save(self, file: Path) -> None:
        """Write the graph, which is not empty, in place of the last one."""
        body = faiss.serialize_index(self._index).data
        about = {"format": FORMAT, "version": VERSION, "checksum": zlib.crc32(body)}

        def write(beside: Path) -> None:
            with beside.open("wb") as out:
                out.writelines([json.dumps(about).encode(), b"\n", body])

        write_atomically(file, write, private=True)
        self._kept = len(self._same)

    @classmethod
    def load(cls, file: Path, vectors: Vectors) -> "Graph":
        """Return what a file holds of these rows, if it can be used."""
        try:
            with file.open("rb") as stored:
                about, body = json.loads(stored.readline()), stored.read()
            known = {"format": FORMAT, "version": VERSION, "checksum": zlib.crc32(body)}
            index = (
                faiss.deserialize_index(np.frombuffer(body, np.uint8)) if about == known else None
            )
        except (OSError, ValueError, RuntimeError):
            return cls()  # RuntimeError: another version of FAISS wrote it
        if index is None or index.d != vectors.shape[1]:
            return cls()
        same = np.zeros(index.ntotal, dtype=bool)
        for start in range(0, min(len(same), len(vectors)), COMPARED):
            rows = vectors[start : min(start + COMPARED, len(same))]
            nodes = index.reconstruct_n(start, len(rows))
            same[start : start + len(rows)] = (nodes == rows).all(axis=1)
        return cls(index, same)
