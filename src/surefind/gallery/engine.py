"""What every engine does, keep records and find those of highest cosine; and which one a name means.

faiss     in memory, or a folder
milvus    ``PLACE.db``, a milvus-lite folder, or ``http://host:port``, a server or cluster

A record is an id, a unit vector, its concentration κ, a label and a payload. An engine keeps them and
the *metadata*, a JSON object in which the gallery remembers its settings and its calibration. When `put`,
`remove` or `set_metadata` returns, the change is as durable as the engine can make it; if one raises, the
records are what they were before (`surefind.gallery.milvus_engine` says where a server falls short).

Engines only propose: the gallery computes scores again in float64 from the stored vectors, so that
every engine gives the same answer for the same candidates.

The content fingerprint is the sum, modulo 2^128, of one hash per record over its id, label, vector and
κ. It does not depend on the order of the records, and a change of one record changes it in O(1). The
payload decides nothing and does not count.

Axes: ``q`` queries, ``c`` candidates, ``n`` records, ``z`` embedding.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from surefind.errors import Hint, InputError
from surefind.validation import check_choice

if TYPE_CHECKING:
    from surefind.gallery.faiss_engine import FaissEngine

Id = str | int
Label = str | int | None
Metadata = Mapping[str, Any]

ENGINES = ("faiss", "milvus")
INDICES = ("auto", "exact", "hnsw")
MODES = ("w", "r")
COPY = 10_000
"""Records copied at a time."""

FINGERPRINT_BITS = 128


@dataclass(frozen=True, eq=False)
class Records:
    """``n`` records, column by column.

    Attributes:
        ids: What the user calls them; ``1`` and ``"1"`` are different ids.
        vectors: Unit vectors (n, z), float32.
        kappa: Concentrations (n), float64, infinite where no uncertainty is known.
        labels: Who or what they show, or None.
        payload: JSON strings, or None.
    """

    ids: Sequence[Id]
    vectors: np.ndarray
    kappa: np.ndarray
    labels: Sequence[Label]
    payload: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> "Records":
        """Return the records from ``start`` up to ``stop``."""
        rows = slice(start, stop)
        return Records(
            self.ids[rows],
            self.vectors[rows],
            self.kappa[rows],
            self.labels[rows],
            self.payload[rows],
        )

    def hashes(self) -> list[int]:
        """Return each record's part of the content fingerprint."""
        vectors = np.ascontiguousarray(self.vectors, dtype="<f4")
        kappa = np.ascontiguousarray(self.kappa, dtype="<f8")
        names = (json.dumps(pair) for pair in zip(self.ids, self.labels, strict=True))
        return [
            int.from_bytes(
                hashlib.blake2b(
                    name.encode() + vector.tobytes() + k.tobytes(),
                    digest_size=FINGERPRINT_BITS // 8,
                ).digest()
            )
            for name, vector, k in zip(names, vectors, kappa, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Hits:
    """The candidates of each query, nearest first.

    Attributes:
        records: All of them, the first query's first.
        per_query: How many each query has.
    """

    records: Records
    per_query: int


@runtime_checkable
class Engine(Protocol):
    """Keeps records and finds near ones. Ids that come in were checked by the gallery."""

    @property
    def place(self) -> str:
        """Where the records are, in words."""

    @property
    def dim(self) -> int | None:
        """The vectors' dimension; None until the first record."""

    @property
    def index(self) -> str:
        """How it searches now: ``"exact"`` or ``"hnsw"``."""

    @property
    def metadata(self) -> Metadata:
        """What `set_metadata` kept."""

    def __len__(self) -> int:
        """Return the number of records."""

    def known(self, ids: Sequence[Id]) -> set[Id]:
        """Return those of the ids that are kept."""

    def put(self, records: Records) -> None:
        """Keep records, in place of those with the same ids."""

    def remove(self, ids: Sequence[Id]) -> None:
        """Drop records, all of which are kept."""

    def fetch(self, ids: Sequence[Id]) -> Records:
        """Return kept records, in the order of the ids."""

    def search(self, queries: Float[np.ndarray, "q z"], count: int) -> Hits:
        """Find ``count`` candidates of high cosine for each query; there are that many records."""

    def scan(self, size: int) -> Iterator[Records]:
        """Return all records, ``size`` at a time, in no order that means anything."""

    def labels(self) -> set[Label]:
        """Return the labels that are in use."""

    def fingerprint(self) -> str:
        """Return the content fingerprint, in hexadecimal."""

    def set_metadata(self, metadata: Metadata) -> None:
        """Keep a JSON object, in place of the last one."""

    def close(self) -> None:
        """Let go of files and connections; the engine is not used afterwards."""


def as_fingerprint(total: int) -> str:
    """Write a sum of record hashes as a content fingerprint."""
    return f"{total % 2**FINGERPRINT_BITS:0{FINGERPRINT_BITS // 4}x}"


def make_engine(
    engine: str,
    path: str | Path | None,
    *,
    index: str,
    collection: str,
    token: str,
    timeout: float | int,
) -> Engine:
    """Make an engine for a new gallery; the arguments are those of `surefind.Gallery`."""
    check_choice("engine", engine, ENGINES)
    check_choice("index", index, INDICES)
    if engine == "faiss":
        made = _faiss()(index)
        if path is not None:
            made.persist(Path(path))
        return made
    from surefind.gallery.milvus_engine import MilvusEngine

    if path is None or not _is_milvus(path):
        raise InputError(
            "engine='milvus' needs a path: 'NAME.db' for milvus-lite on this machine, or "
            f"'http://host:port' for a server; got {path!r}."
        )
    found = MilvusEngine(str(path), collection, index=index, token=token, timeout=timeout)
    if found.dim is not None:
        found.close()
        raise InputError(
            f"{found.place} holds a gallery already; open it with Gallery.open({str(path)!r})."
        )
    return found


def open_engine(
    path: str | Path,
    *,
    mode: str,
    index: str | None,
    collection: str,
    token: str,
    timeout: float | int,
) -> Engine:
    """Open the engine of a gallery that exists; the arguments are those of `surefind.Gallery.open`."""
    check_choice("mode", mode, MODES)
    if index is not None:
        check_choice("index", index, INDICES)
    if not _is_milvus(path):
        return _faiss().open(Path(path), index=index, read_only=mode == "r")
    from surefind.gallery.milvus_engine import MilvusEngine

    if "://" not in str(path) and not Path(path).exists():
        raise InputError(
            f"there is no gallery at {path}.",
            field="path",
            hint=Hint(
                f"Make one with Gallery('milvus', {str(path)!r}).",
                f"Make one: surefind index SOURCE --out {path}.",
            ),
        )
    found = MilvusEngine(str(path), collection, index=index or "auto", token=token, timeout=timeout)
    if found.dim is None:
        found.close()
        raise InputError(
            f"{found.place} holds no gallery yet.",
            field="path",
            hint=Hint(
                f"Make one with Gallery('milvus', {str(path)!r}).",
                f"Make one: surefind index SOURCE --out {path}.",
            ),
        )
    return found


def save_engine(engine: Engine, path: Path | None) -> None:
    """Move an engine from memory into a folder, copy one that has a place, or compact its folder."""
    kind = _faiss()
    if isinstance(engine, kind) and engine.place == "memory":
        if path is None:
            raise InputError("this gallery is in memory; give save a folder.")
        engine.persist(path)
    elif path is None:
        if isinstance(engine, kind):
            engine.compact()
    else:
        copy = kind()
        for records in engine.scan(COPY):
            copy.put(records)
        copy.set_metadata(engine.metadata)
        copy.persist(path)
        copy.close()


def _is_milvus(path: str | Path) -> bool:
    from surefind.gallery.store import holds_gallery

    text = str(path)
    return "://" in text or (text.endswith(".db") and not holds_gallery(Path(text)))


def _faiss() -> "type[FaissEngine]":
    try:
        kind: type[FaissEngine] = import_module("surefind.gallery.faiss_engine").FaissEngine
    except ModuleNotFoundError as error:
        raise InputError(
            f"a gallery needs FAISS ({error}): pip install 'surefind[gallery]'.", field="engine"
        ) from error
    return kind
