"""An HNSW graph over the rows of a table, brought up to date when it is next searched.

HNSW (Malkov and Yashunin 2020) walks a graph of near neighbours and finds most of the nearest ones
without looking at the rest. FAISS's graph only grows: it has a *node* for every vector ever added.
Here each row has at most one live node. A changed or removed record leaves a dead node behind, which
still leads the way but is never an answer, and when more than `MOST_DEAD` of the nodes are dead the
graph is built anew. Rows without a node get one at the next search.

The answer is approximate: `BREADTH` trades recall for time. The share of the ten nearest that is found, and
the CPU time of a query, on embeddings of real data:

    breadth                             128              256              512
    CLINC150, 23,400 × 384         0.993, 0.22 ms   0.997, 0.44 ms   0.999, 0.93 ms
    CUB200, 11,488 × 1280          0.996, 0.54 ms   0.999, 0.90 ms   1.000, 1.57 ms

It depends on the vectors, not on their number alone: of 100,000 × 128 spread evenly over the sphere, which
embeddings never are, a breadth of 128 finds a third (benchmarks/results/gallery.json). Compare with
``index="exact"`` on your own vectors before relying on it. A query that finds too few is searched exactly.
"""

from importlib import import_module
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.gallery.graph_file import GraphState
from surefind.retrieval.search import nearest_rows

faiss: Any = import_module("faiss")
"""Untyped on purpose: what it says about its types leaves out what its Python layer adds."""

LINKS = 16
"""Neighbours per node (HNSW's M); twice as many on the lowest layer."""

BUILD_BREADTH = 64
"""Candidates kept while a node is linked (efConstruction)."""

BREADTH = 256
"""Candidates kept while searching (efSearch), or four times what was asked for, if that is more."""

MOST_DEAD = 0.3
"""The share of dead nodes above which the graph is built anew."""

WORTH_KEEPING, GROWN = 10_000, 0.1
"""Nodes from which a graph is worth a file, and the share of new ones from which it is worth another."""


class Graph:
    """Follows the rows of a table; tell it of each changed row."""

    def __init__(self) -> None:
        self._index: Any = None
        self._row_of = np.empty(0, dtype=np.int64)
        self._node_of = np.empty(0, dtype=np.int64)
        self._kept = 0

    @property
    def worth_keeping(self) -> bool:
        """Whether much would have to be built again that `state` was not asked for."""
        nodes = len(self._row_of)
        return nodes >= WORTH_KEEPING and nodes - self._kept > GROWN * nodes

    def forget_file(self) -> None:
        """Count nothing as kept: the file belonged to a generation that is gone."""
        self._kept = 0

    def state(self) -> GraphState:
        """Return what `adopt` needs, and count it as kept; there is a graph."""
        self._kept = len(self._row_of)
        dead = np.flatnonzero(self._row_of < 0)
        vectors = np.empty((len(dead), self._index.d), dtype=np.float32)
        if len(dead):
            vectors = self._index.storage.reconstruct_batch(dead)
        links = faiss.serialize_index(self._index, faiss.IO_FLAG_SKIP_STORAGE)
        return GraphState(self._row_of, vectors, links)

    def adopt(self, state: GraphState, vectors: Float[np.ndarray, "n z"]) -> None:
        """Take over a graph of these rows; one that does not fit is left alone.

        Args:
            state: What `state` returned when the rows were these.
            vectors: The table's unit vectors.
        """
        alive = state.rows >= 0
        rows = state.rows[alive]
        counted = np.bincount(rows, minlength=len(vectors))
        if len(counted) > len(vectors) or (counted > 1).any() or len(state.dead) != (~alive).sum():
            return
        try:
            index = faiss.deserialize_index(state.links)
        except RuntimeError:  # another version of FAISS wrote it
            return
        if index.ntotal != len(state.rows) or index.d != vectors.shape[1]:
            return
        nodes = np.empty((len(state.rows), index.d), dtype=np.float32)
        nodes[alive], nodes[~alive] = vectors[rows], state.dead
        storage = faiss.IndexFlat(index.d, faiss.METRIC_INNER_PRODUCT)
        storage.add(nodes)
        storage.this.disown()
        index.storage, index.own_fields = storage, True
        self._index, self._row_of, self._kept = index, state.rows.copy(), len(state.rows)
        self._node_of = np.full(len(vectors), -1, dtype=np.int64)
        self._node_of[rows] = np.flatnonzero(alive)

    def changed(self, rows: Int[np.ndarray, " n"]) -> None:
        """Forget what these rows held; rows that are new it has not heard of."""
        rows = rows[rows < len(self._node_of)]
        nodes = self._node_of[rows]
        self._row_of[nodes[nodes >= 0]] = -1
        self._node_of[rows] = -1

    def moved(self, row: int, last: int) -> None:
        """Follow a removal: the record of row ``last`` is now in ``row``, and ``last`` is gone."""
        self.changed(np.array([row]))
        if row < last < len(self._node_of):
            node = self._node_of[row] = self._node_of[last]
            if node >= 0:
                self._row_of[node] = row
        self._node_of = self._node_of[:last]

    def search(
        self, vectors: Float[np.ndarray, "n z"], queries: Float[np.ndarray, "q z"], count: int
    ) -> Int[np.ndarray, "q c"]:
        """Find near rows.

        Args:
            vectors: The table's unit vectors.
            queries: Unit vectors.
            count: How many to find, at most n.

        Returns:
            Rows, nearest first.
        """
        self._update(vectors)
        options: dict[str, Any] = {"efSearch": max(BREADTH, 4 * count)}
        dead = self._row_of < 0
        if dead.any():
            # The bitmap must outlive the search: FAISS keeps its address only.
            alive = np.packbits(~dead, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(alive)
        parameters = faiss.SearchParametersHNSW(**options)
        _, nodes = self._index.search(queries, count, params=parameters)
        rows = np.where(nodes >= 0, self._row_of[nodes], -1)
        short = (rows < 0).any(axis=1)
        if short.any():
            rows[short] = nearest_rows(vectors, queries[short], count)
        return rows

    def _update(self, vectors: Float[np.ndarray, "n z"]) -> None:
        """Give every row a node."""
        grown = np.full(len(vectors) - len(self._node_of), -1, dtype=np.int64)
        self._node_of = np.concatenate([self._node_of, grown])
        live = int((self._row_of >= 0).sum())
        if self._index is None or len(self._row_of) - live > MOST_DEAD * len(self._row_of):
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
