"""An HNSW graph over the rows of a table, brought up to date when it is next searched.

HNSW (Malkov and Yashunin 2020) walks a graph of near neighbours and finds most of the nearest ones
without looking at the rest. FAISS's graph only grows: it has a *node* for every vector ever added.
Here each row has at most one live node. A changed or removed record leaves a dead node behind, which
still leads the way but is never an answer, and when more than `MOST_DEAD` of the nodes are dead the
graph is built anew. Rows without a node get one at the next search, or beforehand by `Graph.build`, which
takes a minute for some 100,000 rows and needs nothing but a copy of the vectors.

The answer is approximate: `BREADTH` trades recall for time. Recall@10 against an exact search, and the CPU
time of a query, on embeddings of real data:

    breadth                             128              256              512
    CLINC150, 23,400 × 384         0.993, 0.22 ms   0.997, 0.44 ms   0.999, 0.93 ms
    CUB200, 11,488 × 1280          0.996, 0.54 ms   0.999, 0.90 ms   1.000, 1.57 ms

Decisions need the neighbours that vote, a hundred or so, of which the far ones hardly count. Of the 106
nearest in CUB200's embeddings and in those of LFW's faces, 128 finds 98 % and 94 %, 256 99.6 % and 98.5 %,
424 99.9 % and 99.6 %; of 2,000 queries to a calibrated gallery of CUB200, 0.3 % are decided otherwise than
after an exact search with 256, 0.05 % with 424, which takes 1.5 times as long.

It depends on the vectors, not on their number alone: of 100,000 × 128 spread evenly over the sphere, which
embeddings never are, a breadth of 128 finds a third (benchmarks/results/gallery.json). Compare with
``index="exact"`` on your own vectors before relying on it. A query that finds too few is searched exactly.

In a file, so that opening a large gallery does not build it again:

    graph.bin = a line of JSON, the row of each node (int64), the graph with its vectors as FAISS writes it

The file is a cache. It is written beside its place and renamed, but nobody waits for the disk: one that is
missing, torn or damaged counts as none. It need not be of the same moment as the gallery: whoever loads it
compares every node's vector with that of its row, and a node whose row has changed since is dead.
"""

import json
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.files import write_atomically

faiss: Any = import_module("faiss")
"""Untyped on purpose: what it says about its types leaves out what its Python layer adds."""

LINKS = 16
"""Neighbours per node (HNSW's M); twice as many on the lowest layer."""

BUILD_BREADTH = 64
"""Candidates kept while a node is linked (efConstruction)."""

BREADTH = 256
"""Candidates kept while searching (efSearch), or twice what was asked for, if that is more."""

MOST_DEAD = 0.3
"""The fraction of dead nodes above which the graph is built anew."""

WORTH_KEEPING, GROWN = 10_000, 0.1
"""Nodes from which a graph is worth a file, and the fraction of new ones from which it is worth another."""

FORMAT, VERSION = "surefind-graph", 2
BUILT = 1000
"""Rows after which a build looks whether it should stop: about a tenth of a second."""

COMPARED = 2**16
"""Nodes whose vectors are compared at a time."""

CELLS = 2**24
"""Cosines held at a time by a search that looks at every vector: 64 MB."""


def near_rows(
    vectors: Float[np.ndarray, "n z"], queries: Float[np.ndarray, "q z"], count: int
) -> Int[np.ndarray, "q c"]:
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
    """Follows the rows of a table; tell it of each changed row."""

    def __init__(self) -> None:
        self._index: Any = None
        self._row_of = np.empty(0, dtype=np.int64)
        self._node_of = np.empty(0, dtype=np.int64)
        self._kept = 0
        self._current = False
        self._alive: np.ndarray | None = None

    @classmethod
    def build(
        cls, vectors: Float[np.ndarray, "n z"], stop: Callable[[], bool] = lambda: False
    ) -> "Graph | None":
        """Build a graph of rows, which must not change meanwhile, on one thread; None if it was stopped."""
        faiss.omp_set_num_threads(1)  # of this thread only: other threads search meanwhile
        graph = cls()
        for end in range(BUILT, len(vectors) + BUILT, BUILT):
            if stop():
                return None
            graph._update(vectors[:end])
        return graph

    def missing(self, rows: int) -> int:
        """Return how many nodes the next search of so many rows would have to add."""
        if self._current and len(self._node_of) == rows:
            return 0
        nodes, live = len(self._row_of), int((self._row_of >= 0).sum())
        return rows - live if self._index is not None and self._few_dead(nodes, live) else rows

    @staticmethod
    def _few_dead(nodes: int, live: int) -> bool:
        return nodes - live <= MOST_DEAD * nodes

    @property
    def worth_keeping(self) -> bool:
        """Whether much would have to be built again that is in no file."""
        nodes = len(self._row_of)
        return nodes >= WORTH_KEEPING and nodes - self._kept > GROWN * nodes

    def save(self, file: Path) -> None:
        """Write the graph, which is not empty, in place of the last one."""
        body = [self._row_of.astype("<i8").tobytes(), faiss.serialize_index(self._index).data]
        about = {
            "format": FORMAT,
            "version": VERSION,
            "nodes": len(self._row_of),
            "checksum": zlib.crc32(body[1], zlib.crc32(body[0])),
        }

        def write(beside: Path) -> None:
            with beside.open("wb") as out:
                out.writelines([json.dumps(about).encode(), b"\n", *body])

        write_atomically(file, write)
        self._kept = len(self._row_of)

    def load(self, file: Path, vectors: Float[np.ndarray, "n z"]) -> None:
        """Take over what a file holds of these rows, if it can be used."""
        try:
            with file.open("rb") as stored:
                about, body = json.loads(stored.readline()), stored.read()
            known = (about["format"], about["version"]) == (FORMAT, VERSION)
            if not known or zlib.crc32(body) != about["checksum"]:
                return
            rows = np.frombuffer(body, dtype="<i8", count=about["nodes"])
            index = faiss.deserialize_index(np.frombuffer(body, np.uint8, offset=rows.nbytes))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError):
            return  # RuntimeError: another version of FAISS wrote it
        if index.ntotal == len(rows) and index.d == vectors.shape[1]:
            self._adopt(index, rows, vectors)

    def _adopt(
        self, index: Any, rows: Int[np.ndarray, " m"], vectors: Float[np.ndarray, "n z"]
    ) -> None:
        node_of = np.full(len(vectors), -1, dtype=np.int64)
        for start in range(0, len(rows), COMPARED):
            part = rows[start : start + COMPARED]
            nodes = start + np.flatnonzero((part >= 0) & (part < len(vectors)))
            there = index.reconstruct_n(start, len(part))[nodes - start]
            same = nodes[(there == vectors[rows[nodes]]).all(axis=1)]
            node_of[rows[same]] = same
        self._index, self._node_of, self._kept = index, node_of, len(rows)
        self._row_of = np.full(len(rows), -1, dtype=np.int64)
        alive = np.flatnonzero(node_of >= 0)
        self._row_of[node_of[alive]] = alive
        self._current = False

    def changed(self, rows: Int[np.ndarray, " n"]) -> None:
        """Forget what these rows held; rows that are new it has not heard of."""
        self._current = False
        rows = rows[rows < len(self._node_of)]
        nodes = self._node_of[rows]
        self._row_of[nodes[nodes >= 0]] = -1
        self._node_of[rows] = -1

    def moved(self, moves: Int[np.ndarray, "2 m"], size: int) -> None:
        """Follow a removal: rows ``moves[1]`` went to ``moves[0]``, and ``size`` rows are left."""
        (filled, sources), heard = moves, len(self._node_of)
        kept = sources < heard  # then so is the row to fill, which comes before
        nodes = self._node_of[sources[kept]]
        self.changed(np.concatenate([filled, np.arange(size, heard)]))
        self._node_of[filled[kept]] = nodes
        alive = nodes >= 0
        self._row_of[nodes[alive]] = filled[kept][alive]
        self._node_of = self._node_of[:size]

    def search(
        self, vectors: Float[np.ndarray, "n z"], queries: Float[np.ndarray, "q z"], count: int
    ) -> Int[np.ndarray, "q c"]:
        """Find near rows.

        Args:
            vectors: The table's unit vectors.
            queries: Unit vectors.
            count: How many to find, at most n.

        Returns:
            Rows, in no order that means anything.
        """
        self._update(vectors)
        options: dict[str, Any] = {"efSearch": max(BREADTH, 2 * count)}
        if self._alive is not None:
            # The bitmap must outlive the search: FAISS keeps its address only.
            options["sel"] = faiss.IDSelectorBitmap(self._alive)
        parameters = faiss.SearchParametersHNSW(**options)
        _, nodes = self._index.search(queries, count, params=parameters)
        rows = np.where(nodes >= 0, self._row_of[nodes], -1)
        short = (rows < 0).any(axis=1)
        if short.any():
            rows[short] = near_rows(vectors, queries[short], count)
        return rows

    def _update(self, vectors: Float[np.ndarray, "n z"]) -> None:
        """Give every row a node."""
        if self._current and len(self._node_of) == len(vectors):
            return
        grown = np.full(len(vectors) - len(self._node_of), -1, dtype=np.int64)
        self._node_of = np.concatenate([self._node_of, grown])
        live = int((self._row_of >= 0).sum())
        if self._index is None or not self._few_dead(len(self._row_of), live):
            self._index = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
            self._index.hnsw.efConstruction = BUILD_BREADTH
            self._row_of = np.empty(0, dtype=np.int64)
            self._node_of[:] = -1
            self._kept = 0
        new = np.flatnonzero(self._node_of < 0)
        if len(new):
            self._node_of[new] = np.arange(len(new)) + len(self._row_of)
            self._row_of = np.concatenate([self._row_of, new])
            self._index.add(vectors if len(new) == len(vectors) else vectors[new])
        dead = self._row_of < 0
        self._alive = np.packbits(~dead, bitorder="little") if dead.any() else None
        self._current = True
