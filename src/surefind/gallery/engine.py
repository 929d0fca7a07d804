"""What every engine does: keep records and find those of highest cosine.

A record is an id, a unit vector, its concentration κ, its novelty, a label, a payload and a group. An
engine keeps them and the *metadata*, a JSON object in which the gallery remembers its settings and its
calibration. When `put`, `remove` or `set_metadata` returns, the change is as durable as the engine can make
it; if one raises, the records are what they were before (`surefind.gallery.milvus_engine` says where a
server falls short).

Engines only propose: `find` computes cosines again in float64 from the stored vectors, so that rounding in
an engine cannot swap neighbours that it has found. Equal ones are ordered by id, integers first.

The content fingerprint is the sum, modulo 2^128, of one hash per record over its id, label, vector and
κ. It does not depend on the order of the records, and a change of one record changes it in O(1). Payload,
group and novelty decide no search and do not count.

**What comes in** is read once:

* Plain vectors have no uncertainty that is known: their κ is infinite, and they have no novelty.
* Vectors must have length 1, unless ``normalize`` asks to rescale them. All are stored as float32.
* Ids, labels, groups and payloads are read as `surefind.checks` says. No label is -1: in a calibration, -1
  and None mean: not in the gallery.

Axes: ``q`` queries, ``c`` candidates, ``n`` records, ``z`` embedding.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from surefind.checks import as_directions, label_values
from surefind.embeddings import Embeddings, novelty_to_json
from surefind.errors import InputError

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

    def some(self, rows: Int[np.ndarray, " m"] | slice) -> "Records":
        """Return the records of some rows."""
        return Records(*(_column(getattr(self, name.name))[rows] for name in fields(self)))

    @classmethod
    def concatenate(cls, parts: Iterable["Records"]) -> "Records":
        """Return the records of several parts as one."""
        found = list(parts)
        if len(found) == 1:
            return found[0]
        return cls(
            *(
                np.concatenate([_column(getattr(part, name.name)) for part in found])
                for name in fields(cls)
            )
        )

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


def _column(values: ObjectColumn) -> np.ndarray:
    return values if isinstance(values, np.ndarray) else objects(values, (len(values),))


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

    def search(
        self,
        queries: Float[np.ndarray, "q z"],
        count: int,
        labels: Collection[Label] | None = None,
    ) -> Records:
        """Find ``count`` candidates of high cosine for each query; there are that many records.

        Args:
            queries: Unit vectors in float32.
            count: How many, at most as many as there are.
            labels: Only records with one of these; all by default.

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

    def copied(self) -> Iterator[Records]:
        """Return all records as they are now, to be read beside changes; Milvus reads them then."""

    def save(self, folder: Path | None) -> None:
        """Move from memory into a new folder, copy to one what has a place, or compact the own folder."""

    def close(self) -> None:
        """Let go of files and connections; the engine is not used afterwards."""


@dataclass(frozen=True, eq=False)
class Item:
    """One item of a gallery.

    Attributes:
        id: What the user calls it.
        vector: Its unit vector (z), float32.
        kappa: Its concentration, infinite where no uncertainty is known.
        novelty: Its p-value, None where none is known.
        label: Who or what it shows, or None.
        payload: A dict, or None.
        group: What it was taken from together with others, or None.
    """

    id: Id
    vector: np.ndarray
    kappa: float
    novelty: float | None
    label: Label
    payload: dict[str, Any] | None
    group: Label = None

    @classmethod
    def of(cls, records: Records, row: int = 0) -> "Item":
        """Make an item of one of the records."""
        return cls(
            records.ids[row],
            records.vectors[row],
            float(records.kappa[row]),
            novelty_to_json(float(records.novelty[row])),
            records.labels[row],
            _decoded(records.payload[row]),
            records.groups[row],
        )


def as_fingerprint(total: int) -> str:
    """Write a sum of record hashes as a content fingerprint."""
    return f"{total % 2**FINGERPRINT_BITS:0{FINGERPRINT_BITS // 4}x}"


def forget(counts: Counter[Label], labels: Iterable[Label]) -> None:
    """Count some records less, and drop labels that have none left."""
    for label in labels:
        counts[label] -= 1
        if not counts[label]:
            del counts[label]


NOT_ENROLLED = -1
"""The label of a query that has no match in the gallery; None means the same."""


def read_vectors(
    embeddings: Any, *, normalize: bool, dim: int | None, name: str = "embeddings"
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Read unit vectors, their concentrations and their novelty.

    Args:
        embeddings: `surefind.Embeddings`, or vectors (n, z) as a tensor, an array or lists.
        normalize: Whether to rescale plain vectors of any length.
        dim: The dimension that they must have, or None for any from 2 on.
        name: What to call them in messages.

    Returns:
        Unit vectors (n, z) in float32, κ (n) in float64, and p-values (n) in float64 if there are some.

    Raises:
        InputError: If they cannot be used.
    """
    if isinstance(embeddings, Embeddings):
        arrays = embeddings.numpy()
        rows, kappa, novelty = arrays.mean, arrays.kappa, arrays.novelty
    else:
        rows, kappa, novelty = embeddings, None, None
    unit = as_directions(name, rows, dim=dim, normalize=normalize)
    known = np.full(len(unit), np.inf) if kappa is None else np.asarray(kappa, dtype=np.float64)
    own = None if novelty is None else np.asarray(novelty, dtype=np.float64)
    return unit, known, own


def read_labels(labels: Any, count: int, *, name: str = "labels") -> list[Label]:
    """Read one label per embedding.

    Args:
        labels: A list or an array, or None if nothing has a label.
        count: How many there must be.
        name: ``"labels"`` of items, or ``"truth"`` of queries, where -1 means None.

    Returns:
        The labels.

    Raises:
        InputError: If their number or kind is wrong.
    """
    listed: list[Label] = [None] * count
    if labels is not None:
        listed = label_values(name, labels, count=count)
    if name == "truth":
        return [None if x == NOT_ENROLLED else x for x in listed]
    if NOT_ENROLLED in listed:
        raise InputError(
            f"a label must not be {NOT_ENROLLED}, which stands for 'not in the gallery'; "
            "use None for an item without a label.",
            field="labels",
        )
    return listed


def read_groups(groups: Any, count: int) -> list[Label]:
    """Read one group per embedding: a list or an array, or None if nothing has one."""
    return [None] * count if groups is None else label_values("groups", groups, count=count)


SPARE = 6
"""Candidates beyond those that are wanted: float32 may have swapped those that are almost equally near."""

CACHED = 8
BLOCK = 256
"""Queries at a time: their candidates' vectors are held in float64."""


def find(
    engine: Engine,
    queries: Float[np.ndarray, "q z"],
    count: int,
    labels: Collection[Label] | None = None,
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
        there = sum(engine.label_counts().get(label, 0) for label in labels)
    blocks = [queries[start : start + BLOCK] for start in range(0, len(queries), BLOCK)]
    parts = [_block(engine, block, min(there, count), there, labels) for block in blocks]
    fewest = min(part["ids"].shape[1] for part in parts)
    return {name: np.concatenate([part[name][:, :fewest] for part in parts]) for name in parts[0]}


def _block(
    engine: Engine,
    queries: np.ndarray,
    count: int,
    there: int,
    labels: Collection[Label] | None,
) -> dict[str, np.ndarray]:
    records = engine.search(queries, min(there, count + SPARE), labels)
    shape = (len(queries), len(records) // len(queries))
    gaps = exact_gaps(queries, records.vectors.reshape(*shape, -1))
    ids = objects(records.ids, shape)
    places = ordered(gaps, ids)[:, :count] + np.arange(0, gaps.size, shape[1])[:, None]
    payload = objects(records.payload, shape).take(places)
    return {
        "ids": ids.take(places),
        "neighbour_labels": objects(records.labels, shape).take(places),
        "scores": 1 - gaps.take(places),
        "payload": objects([_decoded(text) for text in payload.ravel()], payload.shape),
    }


def _decoded(text: str | None) -> dict[str, Any] | None:
    return None if text is None else dict(json.loads(text))


def exact_gaps(
    queries: Float[np.ndarray, "q z"], vectors: Float[np.ndarray, "q c z"]
) -> Float[np.ndarray, "q c"]:
    """Compute 1 - cosine = ½|q - v|² of unit vectors, which keeps its digits where directions agree."""
    gaps = np.empty(vectors.shape[:2])
    # A few queries at a time stay in the processor's cache, and in place: this is most of a search's work
    # beside the products.
    for start in range(0, len(queries), CACHED):
        part = slice(start, start + CACHED)
        apart = vectors[part].astype(np.float64)
        apart /= np.sqrt(np.einsum("qcz,qcz->qc", apart, apart))[..., None]
        apart -= unit64(queries[part])[:, None]
        gaps[part] = np.einsum("qcz,qcz->qc", apart, apart) / 2
    return gaps


def ordered(losses: Float[np.ndarray, "q c"], ids: np.ndarray) -> np.ndarray:
    """Return the columns of each row by rising loss, and of equal ones by id."""
    order = losses.argsort(axis=1, kind="stable")
    rising = take_rows(losses, order)
    equal = rising[:, 1:] == rising[:, :-1]
    if equal.any():
        for q in np.flatnonzero(equal.any(axis=1)):
            # Integers come before strings, which cannot be compared with each other.
            places = [(losses[q, c], isinstance(id_, str), id_) for c, id_ in enumerate(ids[q])]
            order[q] = sorted(range(len(places)), key=places.__getitem__)
    return order


def take_rows(values: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return some columns of each row, as `np.take_along_axis` does, which takes longer to begin."""
    return np.asarray(values[np.arange(len(columns))[:, None], columns])


def unit64(vectors: np.ndarray) -> np.ndarray:
    """Rescale rows to unit length in float64."""
    double = vectors.astype(np.float64)
    return np.asarray(double / np.sqrt(np.einsum("...z,...z->...", double, double))[..., None])
