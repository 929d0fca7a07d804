"""One generation of a gallery's folder: a snapshot, its journal, and the gallery.json that names them.

A new generation is written beside the one that counts. Renaming its gallery.json over the old one is
the moment from which it counts, so a process killed at any moment leaves one whole generation. What
else lies about is swept at the next opening.
"""

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefind.gallery.engine import Note
from surefind.gallery.faults import StorageError
from surefind.gallery.graph import Graph
from surefind.gallery.graph_file import graph_path, read_graph
from surefind.gallery.journal import create_journal, read_journal
from surefind.gallery.snapshot import durable, flush, read_snapshot, write_snapshot
from surefind.gallery.table import Table

FORMAT = "surefind-gallery"
VERSION = 1
INDEX = "gallery.json"
BESIDE = ".gallery.json.tmp"
OURS = re.compile(
    r"lock|gallery\.json|\.gallery\.json\.tmp|snapshot-\d+|journal-\d+\.log"
    r"|graph-\d+\.bin|\.graph-\d+\.tmp"
)
"""The names that a gallery's folder may hold."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A generation as it was read.

    Attributes:
        about: The content of gallery.json.
        table: The records.
        graph: Follows the table's rows; empty where no usable one was stored.
        note: The note.
        changes: How many the journal holds.
        size: Where the journal's whole part ends.
    """

    about: dict[str, Any]
    table: Table
    graph: Graph
    note: dict[str, Any]
    changes: int
    size: int


def read_about(folder: Path) -> dict[str, Any]:
    """Read gallery.json.

    Args:
        folder: The gallery's folder.

    Returns:
        Its content.

    Raises:
        StorageError: If it cannot be read, or is of another version.
    """
    try:
        about = json.loads((folder / INDEX).read_text())
        kind, version = about["format"], about["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"{folder / INDEX} cannot be read ({error}): it is damaged. Restore it from a copy."
        ) from error
    if kind != FORMAT or version != VERSION:
        raise StorageError(
            f"{folder} is a {kind} of version {version}; this surefind reads {FORMAT} of version "
            f"{VERSION}. Open it with the surefind that wrote it."
        )
    return dict(about)


def load_generation(folder: Path, *, with_graph: bool) -> Loaded:
    """Read the generation that counts.

    Args:
        folder: The gallery's folder.
        with_graph: Whether to take over a stored graph.

    Returns:
        What it holds.
    """
    about = read_about(folder)
    generation = about["generation"]
    table = read_snapshot(_snapshot_path(folder, generation), about["snapshot"])
    changes, size = read_journal(journal_path(folder, generation), generation)
    graph, note = Graph(), about["note"]
    stored = read_graph(folder, generation) if with_graph else None
    for number in range(len(changes) + 1):
        if stored and (number, table.fingerprint) == (stored.changes, stored.content):
            graph.adopt(stored.state, table.vectors)
        if number == len(changes):
            break
        change = changes[number]
        if change.put is not None:
            graph.changed(table.put(change.put))
        for id_ in change.remove:
            graph.moved(*table.remove(id_))
        note = note if change.note is None else change.note
    return Loaded(about, table, graph, dict(note), len(changes), size)


def write_generation(
    folder: Path, generation: int, table: Table, note: Note
) -> tuple[dict[str, Any], int]:
    """Write what a generation needs, and its gallery.json beside the one that counts.

    Args:
        folder: The gallery's folder.
        generation: Its number.
        table: The records.
        note: The note.

    Returns:
        The content of gallery.json, and the size of the empty journal.
    """
    summary = write_snapshot(_snapshot_path(folder, generation), table)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "generation": generation,
        "snapshot": summary,
        "note": dict(note),
    }
    with durable(folder / BESIDE) as file:
        file.write(json.dumps(about, indent=1).encode())
    size = create_journal(journal_path(folder, generation), generation)
    # The new names must be on the disk before gallery.json can point to them.
    flush(folder)
    return about, size


def commit(folder: Path) -> None:
    """Let the generation beside the old one count."""
    os.replace(folder / BESIDE, folder / INDEX)
    flush(folder)


def sweep(folder: Path, generation: int | None) -> None:
    """Remove what belongs to no generation, or to another one than this."""
    keep = {"lock", INDEX}
    if generation is not None:
        keep |= {p(folder, generation).name for p in (_snapshot_path, journal_path, graph_path)}
    for path in folder.iterdir():
        if path.name in keep or not OURS.fullmatch(path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _snapshot_path(folder: Path, generation: int) -> Path:
    return folder / f"snapshot-{generation}"


def journal_path(folder: Path, generation: int) -> Path:
    """Return where a generation's journal is."""
    return folder / f"journal-{generation}.log"
