"""An append-only file of changes, each on the disk before it is acknowledged.

    file    = frame(preamble) frame(change) frame(change) …
    frame   = "SFJ1"  body length (8 bytes)  crc32 of the body (4)  crc32 of these 16 (4)  body
    change  = length of the head (4 bytes)  head (JSON)  vectors (float32)  kappa (float64)

All numbers are little-endian. The preamble names the format's version and the generation of the
snapshot to which the changes belong.

A process that dies while appending leaves a torn last frame. Nobody was told that it is there, so
opening drops it. A frame that is broken *before* a whole one, or whose head is whole and whose body is
not although the file goes on, was acknowledged once: that is damage, and opening says so.

If an append fails, for want of space for example, the file is cut back to its last whole frame.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from surefind.gallery.engine import Id, Note, Records
from surefind.gallery.faults import StorageError
from surefind.gallery.snapshot import durable

VERSION = 1
MAGIC = b"SFJ1"
_FRONT = struct.Struct("<4sQI")
_CHECK = struct.Struct("<I")
FRAME = _FRONT.size + _CHECK.size
"""Bytes of a frame before its body."""


@dataclass(frozen=True, eq=False)
class Change:
    """One acknowledged call: records to put, ids to remove, or a note to keep."""

    put: Records | None = None
    remove: Sequence[Id] = ()
    note: Note | None = None


class Journal:
    """A journal open for appending."""

    def __init__(self, path: Path, size: int) -> None:
        """Open a journal and cut off what follows its last whole frame.

        Args:
            path: The file.
            size: Where the last whole frame ends, as `read_journal` says.
        """
        self.path = path
        self.size = size
        self.broken = False
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115
        try:
            self._cut()
        except BaseException:
            self._file.close()
            raise

    def append(self, change: Change) -> None:
        """Write a change and wait until the disk has it.

        Args:
            change: What to write.

        Raises:
            StorageError: If it cannot be written; the journal is as it was.
        """
        if self.broken:
            raise StorageError(
                f"{self.path} failed earlier and could not be repaired; open the gallery again."
            )
        frame = _frame(_encode(change))
        try:
            _write(self._file.fileno(), frame)
            os.fsync(self._file.fileno())
        except OSError as error:
            self._undo()
            raise StorageError(
                f"cannot write to {self.path}: {error.strerror or error}. Nothing of this call was "
                "kept, and everything before it was; make room or repair the disk, then repeat it."
            ) from error
        self.size += len(frame)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _undo(self) -> None:
        try:
            self._cut()
        except OSError:
            self.broken = True

    def _cut(self) -> None:
        os.ftruncate(self._file.fileno(), self.size)
        os.lseek(self._file.fileno(), 0, os.SEEK_END)
        os.fsync(self._file.fileno())


def create_journal(path: Path, generation: int) -> int:
    """Write an empty journal, and wait until the disk has it.

    Args:
        path: The file, which is replaced if it exists.
        generation: The snapshot to which its changes will belong.

    Returns:
        Its size.
    """
    preamble = json.dumps({"journal": VERSION, "generation": generation})
    frame = _frame(preamble.encode())
    with durable(path) as file:
        file.write(frame)
    return len(frame)


def read_journal(path: Path, generation: int) -> tuple[list[Change], int]:
    """Read every whole change.

    Args:
        path: The file.
        generation: The snapshot to which the changes must belong.

    Returns:
        The changes, and where the last whole frame ends.

    Raises:
        StorageError: If the journal is damaged, of another version or of another snapshot.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read ({error.strerror}): it is damaged. Restore it from a copy."
        ) from error
    bodies = list(_frames(content, path))
    if not bodies:
        raise StorageError(f"{path} has no preamble: it is damaged. Restore it from a copy.")
    preamble = json.loads(bytes(bodies[0]))
    if preamble.get("journal") != VERSION:
        raise StorageError(
            f"{path} is a journal of version {preamble.get('journal')}; this surefind reads version "
            f"{VERSION}. Open it with the surefind that wrote it and save it from there."
        )
    if preamble.get("generation") != generation:
        raise StorageError(
            f"{path} belongs to snapshot {preamble.get('generation')}, not to {generation}: files of "
            "two galleries were mixed. Restore the folder from a copy."
        )
    return [_decode(body) for body in bodies[1:]], sum(FRAME + len(b) for b in bodies)


def _frames(content: bytes, path: Path) -> Iterator[memoryview]:
    """Walk over whole frames, and tell a torn end from damage."""
    start = 0
    while start < len(content):
        length = _length(content, start)
        if length is None or not _whole(content, start, length):
            torn = length is None or start + FRAME + length >= len(content)
            if torn and not _another(content, start + 1):
                return
            raise StorageError(
                f"{path} is damaged at byte {start}, before changes that were acknowledged. "
                "Restore it from a copy; nothing was changed."
            )
        yield memoryview(content)[start + FRAME : start + FRAME + length]
        start += FRAME + length


def _length(content: bytes, start: int) -> int | None:
    """Read the body's length from a frame's front, or None if the front is not whole."""
    front = content[start : start + FRAME]
    if len(front) < FRAME or not front.startswith(MAGIC):
        return None
    if _CHECK.unpack_from(front, _FRONT.size)[0] != zlib.crc32(front[: _FRONT.size]):
        return None
    return int(_FRONT.unpack_from(front)[1])


def _whole(content: bytes, start: int, length: int) -> bool:
    body = memoryview(content)[start + FRAME : start + FRAME + length]
    return len(body) == length and zlib.crc32(body) == _FRONT.unpack_from(content, start)[2]


def _another(content: bytes, start: int) -> bool:
    """Tell whether a whole frame begins anywhere from ``start`` on."""
    found = content.find(MAGIC, start)
    while found >= 0:
        length = _length(content, found)
        if length is not None and _whole(content, found, length):
            return True
        found = content.find(MAGIC, found + 1)
    return False


def _frame(body: bytes) -> bytes:
    front = _FRONT.pack(MAGIC, len(body), zlib.crc32(body))
    return b"".join([front, _CHECK.pack(zlib.crc32(front)), body])


def _write(descriptor: int, content: bytes) -> None:
    """Write all of it: the system may take less at a time."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def _encode(change: Change) -> bytes:
    head: dict[str, Any] = {"remove": list(change.remove)}
    arrays: list[bytes] = []
    if change.note is not None:
        head["note"] = change.note
    if change.put is not None:
        records = change.put
        head["put"] = list(zip(records.ids, records.labels, records.payload, strict=True))
        arrays = [records.vectors.astype("<f4").tobytes(), records.kappa.astype("<f8").tobytes()]
    text = json.dumps(head).encode()
    return b"".join([_CHECK.pack(len(text)), text, *arrays])


def _decode(body: memoryview) -> Change:
    (length,) = _CHECK.unpack_from(body)
    head = json.loads(bytes(body[4 : 4 + length]))
    if "put" not in head:
        return Change(remove=head["remove"], note=head.get("note"))
    ids, labels, payload = ([item[column] for item in head["put"]] for column in range(3))
    numbers = body[4 + length :]
    split = len(numbers) - 8 * len(ids)
    vectors = np.frombuffer(numbers[:split], dtype="<f4").reshape(len(ids), -1)
    kappa = np.frombuffer(numbers[split:], dtype="<f8")
    return Change(put=Records(ids, vectors, kappa, labels, payload))
