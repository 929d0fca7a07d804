"""All records of a gallery in three plain files, with checksums.

    vectors.npy    (n, z) float32
    kappa.npy      (n) float64
    items.jsonl    one line per record: [id, label, payload], the payload a JSON text or null

A snapshot is written once and never changed. Its summary (checksums, size, the sum of the records'
hashes) is kept elsewhere, by whoever decides that the snapshot counts.
"""

import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from surefind.gallery.engine import Records
from surefind.gallery.faults import StorageError
from surefind.gallery.table import Table


def write_snapshot(place: Path, table: Table) -> dict[str, Any]:
    """Write all records and wait until the disk has them.

    Args:
        place: A folder, which is replaced if it exists.
        table: The records.

    Returns:
        The summary that `read_snapshot` needs, for JSON.
    """
    records = table.everything()
    items = "".join(
        json.dumps(item) + "\n"
        for item in zip(records.ids, records.labels, records.payload, strict=True)
    ).encode()
    arrays = {
        "vectors.npy": np.ascontiguousarray(records.vectors, dtype="<f4"),
        "kappa.npy": np.ascontiguousarray(records.kappa, dtype="<f8"),
    }
    if place.exists():
        shutil.rmtree(place)
    place.mkdir()
    for name, array in arrays.items():
        with durable(place / name) as file:
            np.save(file, array)
    with durable(place / "items.jsonl") as file:
        file.write(items)
    flush(place)
    return {
        "checksums": [*(_checksum(a) for a in arrays.values()), zlib.crc32(items)],
        "bytes": sum(a.nbytes for a in arrays.values()) + len(items),
        "total": f"{table.total:x}",
    }


def read_snapshot(place: Path, summary: dict[str, Any]) -> Table:
    """Read all records and check that they are what was written.

    Args:
        place: The folder.
        summary: What `write_snapshot` returned.

    Returns:
        The records.

    Raises:
        StorageError: If a file is missing or was changed.
    """
    try:
        vectors = np.load(place / "vectors.npy", allow_pickle=False)
        kappa = np.load(place / "kappa.npy", allow_pickle=False)
        items = (place / "items.jsonl").read_bytes()
    except (OSError, ValueError, EOFError) as error:
        raise StorageError(
            f"{place} cannot be read ({error}): it is damaged. Restore the gallery from a copy."
        ) from error
    checksums = [_checksum(vectors), _checksum(kappa), zlib.crc32(items)]
    if checksums != summary["checksums"]:
        raise StorageError(
            f"{place} is not what was written: its checksums differ. Restore the gallery from a copy."
        )
    ids, labels, payload = [], [], []
    for line in items.splitlines():
        id_, label, text = json.loads(line)
        ids.append(id_)
        labels.append(label)
        payload.append(text)
    return Table.of(Records(ids, vectors, kappa, labels, payload), int(summary["total"], 16))


@contextmanager
def durable(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file for writing; on leaving, its content is on the disk.

    Args:
        path: The file.

    Yields:
        The open file.
    """
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def flush(folder: Path) -> None:
    """Wait until the disk has a folder's names."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(array: np.ndarray) -> int:
    # An empty array has no bytes to look at, and a memoryview refuses to be cast to them.
    return zlib.crc32(array.data.cast("B")) if array.size else 0
