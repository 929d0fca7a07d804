"""Places to write to, checked before anything long."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from surefind.errors import InputError


def size_text(size: int | float) -> str:
    """Format a number of bytes for people, to two digits or more: 812 bytes, 1.3 MB, 420 MB, 1.3 GB."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    exact = units[0] == "bytes" or size >= 9.95
    return f"{round(size):,} {units[0]}" if exact else f"{size:.1f} {units[0]}"


def check_place(folder: Path, needed: int, *, field: str = "out") -> None:
    """Require a folder, perhaps yet to be made, that can be written and has room for ``needed`` bytes."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(
            f"cannot write to {folder}: {there} is {'read-only' if there.is_dir() else 'a file'}. Give "
            "another folder.",
            field=field,
        )
    free = shutil.disk_usage(there).free
    if free < needed:
        raise InputError(
            f"{folder} needs about {size_text(needed)}, {size_text(needed - free)} more than the disk has "
            f"left ({size_text(free)}). Free some space, or write elsewhere.",
            field=field,
        )


def check_file(file: Path, suffixes: Sequence[str]) -> None:
    """Require a name with one of these suffixes that a file can be written under."""
    if file.suffix.lower() not in suffixes:
        raise InputError(
            f"{file} must end in {' or '.join(suffixes)}, which decides what is written.",
            field="out",
        )
    if file.is_dir():
        raise InputError(f"{file} is a folder; give the name of a file.", field="out")
    check_place(file.parent, 0)
