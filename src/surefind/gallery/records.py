"""Records: what a gallery keeps of each item, how it is read, and how items are ordered.

A record is an id, a unit vector, its concentration κ, its novelty, a label, a payload and a group. The
content fingerprint is the sum, modulo 2^128, of one hash per record over its id, label, vector and
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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.checks import as_directions, label_values
from surefind.decisions.answers import Columns
from surefind.embeddings import Embeddings, novelty_to_json
from surefind.errors import InputError

Id = str | int
Label = str | int | None
Metadata = Mapping[str, Any]

Vectors = Float[np.ndarray, "n z"]
Asked = Float[np.ndarray, "q z"]
"""Vectors of queries."""

FINGERPRINT_BITS = 128


@dataclass(frozen=True, eq=False)
class Records(Columns):
    """``n`` records, column by column; lists of texts and the like become arrays of objects.

    Attributes:
        ids: What the user calls them; ``1`` and ``"1"`` are different ids.
        vectors: Unit vectors (n, z), float32.
        kappa: Concentrations (n), float64, infinite where no uncertainty is known.
        novelty: p-values (n), float64, NaN where none is known.
        labels: Who or what they show, or None.
        payload: JSON strings, or None.
        groups: What they were taken from together (a video, a session), or None.
    """

    ids: Any
    vectors: np.ndarray
    kappa: np.ndarray
    novelty: np.ndarray
    labels: Any
    payload: Any
    groups: Any

    def __post_init__(self) -> None:
        for name in ("ids", "labels", "payload", "groups"):
            object.__setattr__(self, name, objects(getattr(self, name), (len(self.kappa),)))

    @property
    def hash_sum(self) -> int:
        """The records' part of the content fingerprint."""
        vectors = np.ascontiguousarray(self.vectors, dtype="<f4")
        kappa = np.ascontiguousarray(self.kappa, dtype="<f8")
        names = (json.dumps(pair).encode() for pair in zip(self.ids, self.labels, strict=True))
        size = FINGERPRINT_BITS // 8
        return sum(
            int.from_bytes(hashlib.blake2b(b"".join(parts), digest_size=size).digest())
            for parts in zip(names, vectors, kappa, strict=True)
        )


def objects(values: Sequence[Any] | np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Put values of any kind into an array, without NumPy guessing a common type; one stays as it is."""
    if isinstance(values, np.ndarray):
        return values.reshape(shape)
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)


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
            decoded(records.payload[row]),
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


def read_names(name: str, values: Any, count: int) -> list[Label]:
    """Read one label or group for each item, or None where there is none.

    Args:
        name: "labels" or "groups".
        values: A list or an array, or None if nothing has one.
        count: How many there must be.

    Returns:
        What was read.

    Raises:
        InputError: If their number or kind is wrong.
    """
    listed: list[Label] = [None] * count
    if values is not None:
        listed = label_values(name, values, count=count)
    if name == "labels" and NOT_ENROLLED in listed:
        raise InputError(
            f"a label must not be {NOT_ENROLLED}, which stands for 'not in the gallery'; "
            "use None for an item without a label.",
            field="labels",
        )
    return listed


def decoded(text: str | None) -> dict[str, Any] | None:
    """Return a payload as it was given."""
    return None if text is None else dict(json.loads(text))


CACHED = 8


def exact_gaps(queries: Asked, vectors: Float[np.ndarray, "q c z"]) -> Float[np.ndarray, "q c"]:
    """Compute 1 - cosine = ½|q - v|² of unit vectors, which keeps its digits where directions agree."""
    gaps = np.empty(vectors.shape[:2])
    # A few queries at a time stay in the processor's cache, and in place: this is most of a search's work
    # beside the products.
    for start in range(0, len(queries), CACHED):
        part = slice(start, start + CACHED)
        apart = vectors[part].astype(np.float64)
        apart /= np.sqrt(np.einsum("qcz,qcz->qc", apart, apart))[..., None]
        unit = queries[part].astype(np.float64)
        apart -= (unit / np.sqrt(np.einsum("qz,qz->q", unit, unit))[:, None])[:, None]
        gaps[part] = np.einsum("qcz,qcz->qc", apart, apart) / 2
    return gaps


def ordered(losses: Float[np.ndarray, "q c"], ids: np.ndarray) -> Int[np.ndarray, "q c"]:
    """Return the columns of each row by rising loss, and of equal ones by id."""
    order = losses.argsort(axis=1, kind="stable")
    rising = np.take_along_axis(losses, order, axis=1)
    for q in np.flatnonzero((rising[:, 1:] == rising[:, :-1]).any(axis=1)):
        # Integers come before strings, which cannot be compared with each other.
        places = [(losses[q, c], isinstance(id_, str), id_) for c, id_ in enumerate(ids[q])]
        order[q] = sorted(range(len(places)), key=places.__getitem__)
    return order
