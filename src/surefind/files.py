"""Files that are written whole or not at all.

A file is written beside its place as ``.NAME.tmp`` and renamed over the old one, so that a reader sees the
old file or the new one, and a process killed at any moment leaves the old one (and perhaps the ``.tmp``,
which the next write replaces). One process at a time may write a path.
"""

import os
from collections.abc import Callable
from pathlib import Path


def write_atomically(
    path: str | Path, content: str | bytes | Callable[[Path], object], *, durable: bool = False
) -> None:
    """Write a file whole or not at all.

    Args:
        path: The file; its folder must exist.
        content: Text (written as UTF-8), bytes, or a function that writes the file at the path it is given.
        durable: Whether to wait until file and folder are on the disk, so that a power cut loses neither.
    """
    path = Path(path)
    beside = path.with_name(f".{path.name}.tmp")
    try:
        if isinstance(content, str):
            beside.write_text(content, encoding="utf-8")
        elif isinstance(content, bytes):
            beside.write_bytes(content)
        else:
            content(beside)
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
