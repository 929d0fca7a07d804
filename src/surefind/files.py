"""Files that are written whole or not at all."""

import os
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write a text beside its place and move it there."""
    beside = file.with_name(f".{file.name}.tmp")
    try:
        beside.write_text(text, encoding="utf-8")
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
