"""Files that are written whole or not at all.

A file is written beside its place as ``.NAME.tmp`` and renamed over the old one, so that a reader sees the
old file or the new one, and a process killed at any moment leaves the old one (and perhaps the ``.tmp``,
which the next write replaces). One process at a time may write a path.

A file has the permissions that the umask gives a new one, whichever library wrote it; a private one has
none for others.

**Values with a checksum** (`to_stored`, `from_stored`): frozen dataclasses as plain JSON values, read back
by their types. Files and servers have checksums of their own, against damage; whoever edits a value by
their means leaves these right, and a lower threshold would open as if it had been tested. The checksum here
is of the content: it says that a value is what was written, not who wrote it.
"""

import base64
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import PlainSerializer, PlainValidator, TypeAdapter

from surefind.errors import InputError

PRIVATE = 0o600


def write_atomically(
    path: str | Path,
    content: str | bytes | Callable[[Path], object],
    *,
    durable: bool = False,
    private: bool = False,
) -> None:
    """Write a file whole or not at all.

    Args:
        path: The file; its folder must exist.
        content: Text (written as UTF-8), bytes, or a function that writes the file at the path it is given.
        durable: Whether to wait until file and folder are on the disk, so that a power cut loses neither.
        private: Whether nobody but its owner may read it.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.tmp")
    try:
        beside.unlink(missing_ok=True)
        # Made before it is written: a process may look at its umask only by changing it.
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT, PRIVATE if private else 0o666))
        mode = stat.S_IMODE(beside.stat().st_mode)
        if isinstance(content, str):
            beside.write_text(content, encoding="utf-8")
        elif isinstance(content, bytes):
            beside.write_bytes(content)
        else:
            content(beside)
            os.chmod(beside, mode)  # of another file, if that was moved here
        if durable:
            flush(beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        flush(path.parent)


def flush(path: Path) -> None:
    """Wait until a file, or the list of files of a folder, is on the disk."""
    if path.is_dir() and os.name != "posix":  # elsewhere a folder cannot be opened
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _array_to_json(array: np.ndarray) -> dict[str, Any]:
    data: Any = array.ravel().tolist()
    if array.dtype != object:
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": array.shape, "data": data}


def _array_from_json(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value
    if value["dtype"] == "|O":
        array = np.array([*value["data"], None], dtype=object)[:-1]
    else:
        array = np.frombuffer(base64.b64decode(value["data"]), dtype=value["dtype"]).copy()
    return array.reshape(value["shape"])


Array = Annotated[
    np.ndarray, PlainValidator(_array_from_json), PlainSerializer(_array_to_json, return_type=dict)
]
"""An array in a stored value: its bytes, exactly; or texts and None."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_stored(kind: Any, value: Any) -> dict[str, Any]:
    """Return a value of some type as plain JSON values with a checksum."""
    plain = _adapter(kind).dump_python(value, mode="json")
    return {"value": plain, "checksum": _checksum(plain)}


def from_stored(kind: Any, stored: Any, what: str) -> Any:
    """Return what `to_stored` was given.

    Args:
        kind: The value's type.
        stored: What `to_stored` returned, perhaps read from JSON.
        what: Its name in the message.

    Returns:
        An equal value.

    Raises:
        InputError: If it was changed since, or is of another version.
    """
    try:
        plain = stored["value"] if stored["checksum"] == _checksum(stored["value"]) else None
        return _adapter(kind).validate_json(json.dumps(plain))
    except (KeyError, TypeError, ValueError) as error:  # pydantic's errors are ValueErrors
        raise InputError(
            f"{what} was changed since it was made, or is of another version, so it guarantees nothing.",
            field="stored",
            hint="Calibrate again.",
        ) from error


def _checksum(plain: Any) -> str:
    text = json.dumps(plain, sort_keys=True).encode()
    return hashlib.blake2b(text, digest_size=16).hexdigest()


def content_hashes(contents: Iterable[bytes]) -> np.ndarray:
    """Return 8 bytes of hash of each content, as int64: equal ones are the same, up to 1 in 10^19."""
    digests = b"".join(hashlib.blake2b(x, digest_size=8).digest() for x in contents)
    return np.frombuffer(digests, dtype=np.int64)
