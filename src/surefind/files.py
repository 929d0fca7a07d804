"""Files that are written whole or not at all.

A file is written beside its place as ``.NAME.tmp`` and renamed over the old one, so that a reader sees the
old file or the new one, and a process killed at any moment leaves the old one (and perhaps the ``.tmp``,
which the next write replaces). One process at a time may write a path.

A file has the permissions that the umask gives a new one, whichever library wrote it; a private one has
none for others.
"""

import os
import stat
from collections.abc import Callable
from pathlib import Path

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
