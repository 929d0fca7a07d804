"""What keeps a gallery's records and finds those of highest cosine: this process, or Milvus.

`FaissEngine` and `MilvusEngine` have the same methods. They keep records and the *metadata*, a JSON object
in which the gallery remembers its settings and its calibration. When ``put``, ``remove`` or
``set_metadata`` returns, the change is as durable as the engine can make it; if one raises, the records are
what they were before (`surefind.gallery.milvus_engine` says where a server falls short). Ids that come in
were checked by the gallery, whose lock is held.

Engines only propose: `find` computes cosines again in float64 from the stored vectors, so that rounding in
an engine cannot swap neighbours that it has found. Equal ones are ordered by id, integers first.

Axes: ``q`` queries, ``c`` candidates, ``k`` neighbours, ``z`` embedding.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from surefind.checks import check_choice
from surefind.errors import InputError
from surefind.gallery.memory import FaissEngine
from surefind.gallery.milvus_engine import MilvusEngine
from surefind.gallery.records import Asked, Label, decoded, exact_gaps, objects, ordered
from surefind.gallery.store import holds_gallery

ENGINES = ("faiss", "milvus")
INDICES = ("auto", "exact", "hnsw")
MODES = ("w", "r")

SPARE = 6
"""Candidates beyond those that are wanted: float32 may have swapped those that are almost equally near."""

BLOCK = 256
"""Queries at a time: their candidates' vectors are held."""

Engine = FaissEngine | MilvusEngine


def make_engine(engine: str, path: str | Path | None, *, index: str, **milvus: Any) -> Engine:
    """Make an engine for a new gallery; the arguments are those of `Gallery`."""
    check_choice("engine", engine, ENGINES)
    check_choice("index", index, INDICES)
    if engine == "faiss":
        made = FaissEngine(index)
        if path is not None:
            made.save(Path(path))
        return made
    if path is None or not _is_milvus(path):
        raise InputError(
            "engine='milvus' needs a path: 'NAME.db' for milvus-lite on this machine, or "
            f"'http://host:port' for a server; got {path!r}."
        )
    found = MilvusEngine(str(path), index=index, **milvus)
    if found.dim is not None:
        found.close()
        raise InputError(
            f"{found.place} holds a gallery already; open it with Gallery.open({str(path)!r})."
        )
    return found


def open_engine(path: str | Path, *, mode: str, index: str | None, **milvus: Any) -> Engine:
    """Open the engine of a gallery that exists; the arguments are those of `Gallery.open`."""
    check_choice("mode", mode, MODES)
    if index is not None:
        check_choice("index", index, INDICES)
    if not _is_milvus(path):
        return FaissEngine.open(Path(path), index=index, read_only=mode == "r")
    there = "://" in str(path) or Path(path).exists()
    found = MilvusEngine(str(path), index=index or "auto", **milvus) if there else None
    if found is None or found.dim is None:
        if found is not None:
            found.close()
        raise InputError(
            f"there is no gallery at {path}.",
            field="path",
            hint=f"Make one: surefind.Gallery({str(path)!r}, 'milvus'), or `surefind index SOURCE --out "
            f"{path}`.",
        )
    return found


def _is_milvus(path: str | Path) -> bool:
    text = str(path)
    return "://" in text or (text.endswith(".db") and not holds_gallery(Path(text)))


def find(
    engine: Engine, queries: Asked, count: int, labels: Collection[Label] | None = None
) -> dict[str, np.ndarray]:
    """Find the nearest items of each query.

    Args:
        engine: It holds at least one record.
        queries: Unit vectors in float32.
        count: How many are wanted; if there are fewer, all of them.
        labels: Only items with one of these labels; all by default.

    Returns:
        ``ids``, ``neighbour_labels``, ``scores`` (cosines) and ``payload`` (dicts or None), each (q, k), by
        falling cosine.
    """
    there = len(engine)
    if labels is not None:
        there = sum(engine.label_counts.get(label, 0) for label in labels)
    parts = []
    for start in range(0, len(queries), BLOCK):
        block = queries[start : start + BLOCK]
        records = engine.search(block, min(there, count + SPARE), labels)
        shape = (len(block), len(records) // len(block))
        gaps = exact_gaps(block, records.vectors.reshape(*shape, -1))
        ids = records.ids.reshape(shape)
        places = ordered(gaps, ids)[:, : min(there, count)]
        places += np.arange(0, gaps.size, shape[1])[:, None]
        payload = records.payload[places]
        parts.append({
            "ids": records.ids[places],
            "neighbour_labels": records.labels[places],
            "scores": 1 - gaps.take(places),
            "payload": objects([decoded(text) for text in payload.ravel()], payload.shape),
        })
    fewest = min(part["ids"].shape[1] for part in parts)
    return {name: np.concatenate([part[name][:, :fewest] for part in parts]) for name in parts[0]}
