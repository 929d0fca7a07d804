"""Where a command writes: looked at before anything long, and never left half written."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from surefind.cli.estimate import size_text
from surefind.errors import InputError


def check_place(folder: Path, needed: int) -> None:
    """Require a folder that can be written to, with room on its disk, before anything long.

    Args:
        folder: Where it will be written; it need not exist yet.
        needed: Bytes.

    Raises:
        InputError: If it cannot be written, or there is less room.
    """
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(
            f"cannot write to {folder}: {there} is {'read-only' if there.is_dir() else 'a file'}. Give "
            "another folder."
        )
    free = shutil.disk_usage(there).free
    if free < needed:
        raise InputError(
            f"{folder} needs about {size_text(needed)} and the disk has {size_text(free)} left. Free some "
            "space, or write elsewhere."
        )


def check_file(file: Path, suffixes: Sequence[str]) -> None:
    """Require a name that a file can be written under, before anything long.

    Args:
        file: The file; one that is there is replaced.
        suffixes: What it may end in.

    Raises:
        InputError: If it ends otherwise, or is a folder.
    """
    if file.suffix.lower() not in suffixes:
        raise InputError(
            f"{file} must end in {' or '.join(suffixes)}, which decides what is written."
        )
    if file.is_dir():
        raise InputError(f"{file} is a folder; give the name of a file.")
    check_place(file.parent, 0)
