"""What every engine does: keep records and find those of highest cosine.

A record is an id, a unit vector, its concentration κ, its novelty, a label, a payload and a group. An
engine keeps them and the *metadata*, a JSON object in which the gallery remembers its settings and its
calibration. When `put`, `remove` or `set_metadata` returns, the change is as durable as the engine can make
it; if one raises, the records are what they were before (`surefind.gallery.milvus_engine` says where a
server falls short).

Engines only propose: the gallery computes scores again in float64 from the stored vectors, so that
every engine gives the same answer for the same candidates.

The content fingerprint is the sum, modulo 2^128, of one hash per record over its id, label, vector and
κ. It does not depend on the order of the records, and a change of one record changes it in O(1). Payload,
group and novelty decide no search and do not count.

Axes: ``q`` queries, ``c`` candidates, ``n`` records, ``z`` embedding.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

Id = str | int
Label = str | int | None
Metadata = Mapping[str, Any]
ObjectColumn = Sequence[Any] | np.ndarray

FINGERPRINT_BITS = 128


@dataclass(frozen=True, eq=False)
class Records:
    """``n`` records, column by column.

    Attributes:
        ids: What the user calls them; ``1`` and ``"1"`` are different ids.
        vectors: Unit vectors (n, z), float32.
        kappa: Concentrations (n), float64, infinite where no uncertainty is known.
        novelty: p-values (n), float64, NaN where none is known.
        labels: Who or what they show, or None.
        payload: JSON strings, or None.
        groups: What they were taken from together (a video, a session), or None.

    Columns that hold no numbers are lists, tuples or arrays of objects.
    """

    ids: ObjectColumn
    vectors: np.ndarray
    kappa: np.ndarray
    novelty: np.ndarray
    labels: ObjectColumn
    payload: ObjectColumn
    groups: ObjectColumn

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, stop: int) -> "Records":
        """Return the records from ``start`` up to ``stop``."""
        return Records(*(getattr(self, column.name)[start:stop] for column in fields(self)))

    def hashes(self) -> list[int]:
        """Return each record's part of the content fingerprint."""
        vectors = np.ascontiguousarray(self.vectors, dtype="<f4")
        kappa = np.ascontiguousarray(self.kappa, dtype="<f8")
        names = (json.dumps(pair).encode() for pair in zip(self.ids, self.labels, strict=True))
        size = FINGERPRINT_BITS // 8
        return [
            int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=size).digest())
            for parts in zip(names, vectors, kappa, strict=True)
        ]


def objects(values: ObjectColumn, shape: tuple[int, ...]) -> np.ndarray:
    """Put values of any kind into an array, without NumPy guessing a common type; one stays as it is."""
    if isinstance(values, np.ndarray):
        return values.reshape(shape)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


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
    def read_only(self) -> bool:
        """Whether changes are refused."""

    @property
    def exclusive(self) -> bool:
        """Whether nobody else changes the records that are seen here."""

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

    def search(self, queries: Float[np.ndarray, "q z"], count: int) -> Records:
        """Find ``count`` candidates of high cosine for each query; there are that many records.

        Returns:
            Equally many for each query, perhaps a few more, in no order; the first query's first.
        """

    def scan(self, size: int) -> Iterator[Records]:
        """Return all records, ``size`` at a time, in no order that means anything."""

    def label_counts(self) -> Mapping[Label, int]:
        """Return how many records each label in use has; do not change it."""

    def fingerprint(self) -> str:
        """Return the content fingerprint, in hexadecimal."""

    def set_metadata(self, metadata: Metadata) -> None:
        """Keep a JSON object, in place of the last one."""

    @property
    def graph_ready(self) -> bool:
        """Whether searches need no graph of this process, or one that is there but for a few records."""

    def graph_task(self, stop: Callable[[], bool]) -> Callable[[], Callable[[], None]] | None:
        """Leave building graphs to the caller; return what builds one unless it is told to stop, or None.

        What is returned may run beside changes and searches; it returns what puts the graph in its place,
        which may not.
        """

    def copied(self) -> "Callable[[], Engine] | None":
        """Copy everything in a moment; return what makes an engine in memory of it, None if it cannot."""

    def snapshot(self, folder: Path) -> None:
        """Write a copy of everything as it is now into a new folder, beside changes and searches."""

    def close(self) -> None:
        """Let go of files and connections; the engine is not used afterwards."""


def as_fingerprint(total: int) -> str:
    """Write a sum of record hashes as a content fingerprint."""
    return f"{total % 2**FINGERPRINT_BITS:0{FINGERPRINT_BITS // 4}x}"


def forget(counts: Counter[Label], labels: Iterable[Label]) -> None:
    """Count some records less, and drop labels that have none left."""
    for label in labels:
        counts[label] -= 1
        if not counts[label]:
            del counts[label]
