"""A gallery's folder: a snapshot, the journal of what changed since, and a lock.

    gallery.json      which generation G counts, with the checksums of its snapshot
    snapshot-G/       all records at one moment (`surefind.gallery.snapshot`)
    journal-G.log     what changed since (`surefind.gallery.journal`)
    graph-G.bin       for a large gallery, what a search would build again (`surefind.gallery.graph_file`)
    lock              held (flock) by the one process that may write

A change is in the journal, and on the disk, before the call that made it returns. When the journal
has outgrown the snapshot, a new generation takes over (`surefind.gallery.generation`). Nothing is
pickled, so opening a gallery that somebody sent runs nothing.

A reader takes no lock: it sees what was acknowledged when it opened, beside a writer too.
"""

import fcntl
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from surefind.errors import Hint, InputError
from surefind.gallery.engine import Note
from surefind.gallery.faults import StorageError
from surefind.gallery.generation import (
    INDEX,
    OURS,
    Loaded,
    commit,
    journal_path,
    load_generation,
    read_about,
    sweep,
    write_generation,
)
from surefind.gallery.graph import Graph
from surefind.gallery.graph_file import StoredGraph, write_graph
from surefind.gallery.journal import Change, Journal
from surefind.gallery.table import Table

SMALLEST_JOURNAL = 2**24
"""Bytes that a journal may always have; beyond, it may not outgrow the snapshot."""

READ_ATTEMPTS = 5
"""How often a reader starts over when a writer replaces the generation under its eyes."""


class Storage:
    """A gallery's folder, held for writing."""

    def __init__(
        self,
        folder: Path,
        lock: IO[bytes],
        journal: Journal,
        about: dict[str, Any],
        changes: int = 0,
    ) -> None:
        """Take what `create` or `open_storage` prepared.

        Args:
            folder: The gallery's folder.
            lock: The locked file.
            journal: The journal of the generation that counts.
            about: The content of gallery.json.
            changes: How many the journal holds.
        """
        self.folder = folder
        self._lock = lock
        self._journal = journal
        self._about = about
        self._changes = changes
        self._worthwhile = self._allowance()

    def append(self, change: Change) -> None:
        """Make a change durable, or raise and leave everything as it was."""
        self._journal.append(change)
        self._changes += 1

    def keep_graph(self, graph: Graph, table: Table) -> None:
        """Write the graph of the records as they are now, if there is room for it.

        Args:
            graph: It is not empty.
            table: The records.
        """
        stored = StoredGraph(self._changes, table.fingerprint, graph.state())
        with suppress(OSError):  # a search that has its answer does not fail for want of a cache
            write_graph(self.folder, self._about["generation"], stored)

    @property
    def outgrown(self) -> bool:
        """Whether the journal is large enough to be worth a new snapshot."""
        return self._journal.size > self._worthwhile

    def compact(self, table: Table, note: Note) -> None:
        """Write a new generation that holds everything, and drop the old one.

        Args:
            table: The records, as the snapshot and the journal together give them.
            note: The note.

        Raises:
            StorageError: If it cannot be written; the old generation still counts.
        """
        # If this fails, the next attempt waits until the journal has grown as much again.
        self._worthwhile = self._journal.size + self._allowance()
        generation = self._about["generation"] + 1
        try:
            about, size = write_generation(self.folder, generation, table, note)
        except OSError as error:
            sweep(self.folder, self._about["generation"])
            raise StorageError(
                f"cannot write a new snapshot in {self.folder}: {error.strerror or error}. "
                "Nothing is lost: the journal still holds every change. Make room."
            ) from error
        try:
            commit(self.folder)
            journal = Journal(journal_path(self.folder, generation), size)
        except OSError as error:
            # Which generation the disk has is not known: nothing more may be acknowledged here.
            self._journal.broken = True
            raise StorageError(
                f"cannot rename files in {self.folder}: {error.strerror or error}. Nothing is lost; "
                "repair the disk and open the gallery again."
            ) from error
        self._journal.close()
        self._journal, self._about, self._changes = journal, about, 0
        self._worthwhile = self._allowance()
        sweep(self.folder, generation)

    def close(self) -> None:
        """Close the journal and let go of the lock."""
        self._journal.close()
        self._lock.close()

    def _allowance(self) -> int:
        return max(SMALLEST_JOURNAL, int(self._about["snapshot"]["bytes"]))


def create_storage(folder: Path, table: Table, note: Note) -> Storage:
    """Make a folder for a gallery.

    Args:
        folder: It must not exist, or be empty.
        table: The first records.
        note: The first note.

    Returns:
        The storage, held for writing.

    Raises:
        InputError: If something is there already.
        StorageError: If it cannot be written.
    """
    _require_none(folder)
    if folder.exists() and (not folder.is_dir() or _has_others(folder)):
        raise InputError(f"{folder} is in use by something else; give a new or an empty folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror or error}.") from error
    lock = _locked(folder)
    try:
        _require_none(folder)  # another process may have been quicker
        about, size = write_generation(folder, 1, table, note)
        commit(folder)
        return Storage(folder, lock, Journal(journal_path(folder, 1), size), about)
    except OSError as error:
        (folder / INDEX).unlink(missing_ok=True)
        sweep(folder, None)
        lock.close()
        raise StorageError(
            f"cannot write a gallery to {folder}: {error.strerror or error}. Make room, or choose "
            "another place."
        ) from error
    except BaseException:
        lock.close()
        raise


def open_storage(folder: Path, *, with_graph: bool) -> tuple[Storage, Loaded]:
    """Open a gallery's folder for writing.

    Args:
        folder: The folder.
        with_graph: Whether to take over a stored graph.

    Returns:
        The storage, and what it holds.

    Raises:
        StorageError: If another process holds it, or it cannot be read.
    """
    _require_gallery(folder)
    lock = _locked(folder)
    try:
        found = load_generation(folder, with_graph=with_graph)
        generation = found.about["generation"]
        sweep(folder, generation)
        journal = Journal(journal_path(folder, generation), found.size)
    except BaseException:
        lock.close()
        raise
    return Storage(folder, lock, journal, found.about, found.changes), found


def read_storage(folder: Path, *, with_graph: bool) -> Loaded:
    """Read a gallery's folder as it is now, beside a writer too.

    Args:
        folder: The folder.
        with_graph: Whether to take over a stored graph.

    Returns:
        What it holds.

    Raises:
        StorageError: If it cannot be read.
    """
    _require_gallery(folder)
    for _ in range(READ_ATTEMPTS):
        generation = read_about(folder)["generation"]
        try:
            return load_generation(folder, with_graph=with_graph)
        except StorageError:
            if read_about(folder)["generation"] == generation:
                raise
    raise StorageError(f"{folder} changed faster than it could be read; try again.")


def _require_gallery(folder: Path) -> None:
    if not _is_gallery(folder):
        raise InputError(
            f"there is no gallery at {folder}.",
            field="path",
            hint=Hint(
                f"Make one with Gallery(path={str(folder)!r}).",
                f"Make one: surefind index SOURCE --out {folder}.",
            ),
        )


def _require_none(folder: Path) -> None:
    if _is_gallery(folder):
        raise InputError(
            f"{folder} holds a gallery already; open it with Gallery.open({str(folder)!r})."
        )


def _is_gallery(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def _has_others(folder: Path) -> bool:
    """Tell whether there is more than a process leaves that died before its gallery counted."""
    return not all(OURS.fullmatch(path.name) for path in folder.iterdir())


def _locked(folder: Path) -> IO[bytes]:
    """Take the lock, which the system gives back when the process ends, however it ends."""
    try:
        file = open(folder / "lock", "ab")  # noqa: SIM115
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written: {error.strerror}.",
            field="path",
            hint=Hint("To only search, open it with mode='r'.", "`surefind search` only reads it."),
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise StorageError(
            f"{folder} is open for writing elsewhere, and a gallery has one writer at a time.",
            field="path",
            hint=Hint("Close it there, or open it here with mode='r'.", "Close it there."),
        ) from error
    return file
