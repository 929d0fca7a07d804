"""A cell on disk: one JSON file, written whole or not at all, and never twice.

A cell that is there is kept. It is refused if it is damaged, or was made by another protocol, on other data
or with another method than the present ones: then its numbers do not compare, and the user decides which to
keep.
"""

import json
import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from surefind.errors import InputError
from surefind.evaluation.bench.lineup import settings_of
from surefind.evaluation.bench.protocols import Problem


def cell_file(results: Path, name: str, row: str, seed: int) -> Path:
    """Say where a cell is kept."""
    return results / name / f"{row}-seed{seed}.json"


def write_cell(file: Path, cell: Mapping[str, Any]) -> None:
    """Write a cell, whole or not at all; one that has come there meanwhile stays.

    Args:
        file: Its file.
        cell: What it holds.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    beside.write_text(json.dumps(cell, allow_nan=False) + "\n", encoding="utf-8")
    if file.exists():
        beside.unlink()
    else:
        os.replace(beside, file)


def versions() -> dict[str, str]:
    """Give the versions that numbers depend on."""
    packages = {package: version(package) for package in ("surefind", "torch", "numpy")}
    return packages | {"python": platform.python_version()}


def check_cell(file: Path, cell: Mapping[str, Any], problem: Problem) -> None:
    """Require that a kept cell compares with those to come.

    Args:
        file: Its file.
        cell: What it holds.
        problem: What is benchmarked now.

    Raises:
        InputError: If it was made by another protocol, on other data or with another method.
    """
    settings = json.loads(json.dumps(settings_of(cell["row"])))
    for key, what, now in (
        ("protocol", "by another protocol", problem.protocol.settings()),
        ("examples", "on other data", problem.examples),
        ("files", "on other files", problem.files),
        ("settings", "with other settings of the method", settings),
    ):
        then = cell.get(key) or {}
        if then != now:
            changed = [k for k in {**now, **then} if then.get(k) != now.get(k)]
            said = ", ".join(f"{k} was {then.get(k)!r}, is {now.get(k)!r}" for k in changed)
            raise InputError(
                f"{file} was made {what}: {said}. Write to another folder of results, or move this one "
                "away to make it anew."
            )


def tell_versions(cells: Mapping[Path, Mapping[str, Any]], say: Callable[[str], None]) -> None:
    """Say which kept cells another version of surefind made.

    Args:
        cells: By file.
        say: Gets one sentence for each other version.
    """
    here = version("surefind")
    others: dict[str, list[str]] = {}
    for file, cell in cells.items():
        there = str(cell["versions"].get("surefind", "unknown"))
        if there != here:
            others.setdefault(there, []).append(file.name)
    for there, files in sorted(others.items()):
        say(
            f"{len(files)} cells are kept that surefind {there} made, this is {here}: "
            f"{', '.join(files)}. Delete them to make them anew."
        )
