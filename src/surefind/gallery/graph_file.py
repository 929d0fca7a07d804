"""An HNSW graph in a file, so that opening a large gallery does not build it again.

    graph-G.bin = a line of JSON, rows of the nodes (int64), vectors of dead nodes (float32), links (FAISS)

It belongs to one moment: generation G after so many changes of its journal, with one content
fingerprint. Whoever opens the gallery takes it over at that moment and lets it follow the changes since.
The vectors of living nodes are those of the gallery and are not stored twice.

This is a cache. It is written beside its place and renamed, but nobody waits for the disk: a file that
is missing, torn, damaged or of another moment counts as none, and the graph is built anew.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int, UInt8

FORMAT = "surefind-graph"
VERSION = 1


@dataclass(frozen=True, eq=False)
class GraphState:
    """A graph without the vectors that its gallery holds.

    Attributes:
        rows: The row of each node, -1 for a dead one.
        dead: Vectors of the dead nodes (m, z), in the order of the nodes.
        links: The graph as FAISS writes it, without vectors.
    """

    rows: Int[np.ndarray, " n"]
    dead: Float[np.ndarray, "m z"]
    links: UInt8[np.ndarray, " b"]


@dataclass(frozen=True, eq=False)
class StoredGraph:
    """A graph and the moment that it belongs to.

    Attributes:
        changes: How many changes of the journal it has seen.
        content: The gallery's content fingerprint then.
        state: The graph.
    """

    changes: int
    content: str
    state: GraphState


def graph_path(folder: Path, generation: int) -> Path:
    """Return where a generation's graph is."""
    return folder / f"graph-{generation}.bin"


def write_graph(folder: Path, generation: int, stored: StoredGraph) -> None:
    """Write a graph, in place of the last one.

    Args:
        folder: The gallery's folder.
        generation: The one that counts.
        stored: The graph.
    """
    state = stored.state
    body = [
        state.rows.astype("<i8").tobytes(),
        state.dead.astype("<f4").tobytes(),
        state.links.tobytes(),
    ]
    about = {
        "format": FORMAT,
        "version": VERSION,
        "generation": generation,
        "changes": stored.changes,
        "content": stored.content,
        "dimension": state.dead.shape[1],
        "sizes": [len(part) for part in body],
        "checksums": [zlib.crc32(part) for part in body],
    }
    beside = folder / f".graph-{generation}.tmp"
    try:
        with beside.open("wb") as file:
            file.writelines([json.dumps(about).encode(), b"\n", *body])
        os.replace(beside, graph_path(folder, generation))
    finally:
        beside.unlink(missing_ok=True)


def read_graph(folder: Path, generation: int) -> StoredGraph | None:
    """Read a graph.

    Args:
        folder: The gallery's folder.
        generation: The one that counts.

    Returns:
        The graph, or None if there is none that can be used.
    """
    try:
        head, _, content = graph_path(folder, generation).read_bytes().partition(b"\n")
        about = json.loads(head)
        if (about["format"], about["version"], about["generation"]) != (
            FORMAT,
            VERSION,
            generation,
        ):
            return None
        body, start = [], 0
        for size in about["sizes"]:
            body.append(memoryview(content)[start : start + size])
            start += size
        if start != len(content) or [zlib.crc32(part) for part in body] != about["checksums"]:
            return None
        rows, dead, links = body
        state = GraphState(
            np.frombuffer(rows, dtype="<i8"),
            np.frombuffer(dead, dtype="<f4").reshape(-1, about["dimension"]),
            np.frombuffer(links, dtype=np.uint8),
        )
        return StoredGraph(int(about["changes"]), str(about["content"]), state)
    except (OSError, ValueError, KeyError, TypeError):
        return None
