"""A gallery's folder: one SQLite file with a row per record, a lock, and perhaps a graph.

    gallery.sqlite    the records and the gallery's state; -wal and -shm beside it while it is in use
    lock              held (flock) by the one process that may write; its text counts the changes
    graph.bin         for a large gallery, what a search would build again (`surefind.gallery.graph`)

    items    row (0 … n-1), item (JSON: id, label, payload, group), checksum,
             numbers (κ and novelty float64, vector float32)
    state    key, value (JSON), checksum: "content" (dimension, records, sum of the record hashes, changes),
             "names" (of the metadata) and "metadata NAME" for each, so that a change writes what it changes

The database is in WAL mode with ``synchronous=FULL``: a change is one transaction, and on the disk before
the call that made it returns. A reader takes no lock and sees what was acknowledged when it opened, beside
a writer too. Rows are dense, as in memory, so that opening reads them in order and a removal moves the
last record into the gap. The folder must be on a local disk: processes share a WAL through memory.

Damage is found on opening: SQLite checks its pages, and every row has a crc32. SQLite itself takes a broken
entry of its write-ahead log for the log's end, and would forget what was acknowledged behind it; hence the
count in ``lock``, which is written after each change: a database with fewer changes has lost some. The
count is not waited for, so after a power failure it may lag behind, but it never runs ahead. A change that
failed is cut off the log's end, or it could come back.

Nothing is pickled, and the schema is not trusted, so opening a gallery that somebody sent runs nothing.
"""

import fcntl
import json
import os
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Int

from surefind.errors import InputError, StorageError
from surefind.files import PRIVATE, flush, write_atomically
from surefind.gallery.records import Metadata, Records

FILE, GRAPH, LOCK = "gallery.sqlite", "graph.bin", "lock"
TEMPORARY = f".{FILE}.tmp"
OURS = {FILE, f"{FILE}-wal", f"{FILE}-shm", TEMPORARY, GRAPH, f".{GRAPH}.tmp", LOCK}
"""The names that a gallery's folder may hold."""

APPLICATION, VERSION = 0x53464731, 7
PAGE = 8192
"""Bytes of a page: large enough for several vectors, small enough to be written for one changed label."""

CHECKPOINT, LOG = 1000, 2**26
"""Pages after which the write-ahead log is folded into the database, and the bytes that it then keeps."""

LOG_HEADER, FRAME_HEADER = 32, 24
"""Bytes before the first page in SQLite's write-ahead log, and before each page."""

READ = 256
"""Rows read at a time: few enough that Python's garbage collector does not start in between, which would
double the time of opening."""

BUSY = 30.0
"""Seconds to wait for another connection; readers and the writer hardly ever do."""

SCHEMA = """
CREATE TABLE items (
    row INTEGER PRIMARY KEY, item BLOB NOT NULL, numbers BLOB NOT NULL, checksum INTEGER NOT NULL
);
CREATE TABLE state (key TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL);
"""


@dataclass(frozen=True, eq=False)
class Stored:
    """What a folder holds: the records by row, the sum of their hashes, and the metadata."""

    records: Records
    total: int
    metadata: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Store:
    """A gallery's folder, held for writing. Every change names the sum of the hashes before and after."""

    folder: Path
    _lock: IO[bytes]
    _connection: sqlite3.Connection

    def put(self, rows: Int[np.ndarray, " n"], records: Records, before: int, after: int) -> None:
        """Write records to their rows."""
        with self._change(before, after) as content:
            self._connection.executemany(
                "INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?)", _to_rows(rows, records)
            )
            content["dimension"] = records.vectors.shape[1]
            content["records"] = max(content["records"], int(rows.max(initial=-1)) + 1)

    def remove(
        self, gone: Int[np.ndarray, " n"], moves: Int[np.ndarray, "2 m"], before: int, after: int
    ) -> None:
        """Drop the rows ``gone``, and give the rows ``moves[1]`` the places ``moves[0]``."""
        with self._change(before, after) as content:
            execute = self._connection.executemany
            execute("DELETE FROM items WHERE row = ?", [(row,) for row in gone.tolist()])
            execute("UPDATE items SET row = ? WHERE row = ?", moves.T.tolist())
            content["records"] -= len(gone)

    def set_metadata(self, metadata: Metadata, before: Metadata, total: int) -> None:
        """Write the metadata in place of those before: what differs is written."""
        with self._change(total, total):
            _write_metadata(self._connection, metadata, before)

    def compact(self) -> None:
        """Give room back that removed records had, and fold the write-ahead log into the database."""
        advice = "Nothing is lost; make room and repeat it."
        with failing_in_words(f"cannot compact {self.folder}", advice):
            if self._connection.execute("PRAGMA freelist_count").fetchone()[0]:
                self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Close the database and let go of the lock."""
        self._connection.close()
        self._lock.close()

    @contextmanager
    def _change(self, before: int, after: int) -> Iterator[dict[str, Any]]:
        """Make what is executed inside durable, or raise and leave everything as it was."""
        advice = (
            "Nothing of this call was kept, and everything before it was; make room or repair the disk, "
            "then repeat it."
        )
        words = failing_in_words(f"cannot write to {self.folder}", advice)
        with words, transaction(self._connection):
            content = _read_state(self._connection, "content")
            if int(content["total"], 16) != before:
                raise StorageError(
                    f"{self.folder} holds a change that was interrupted before it was seen here; "
                    "open the gallery again."
                )
            yield content
            content |= {"total": f"{after:x}", "changes": content["changes"] + 1}
            _write_state(self._connection, "content", content)
        _count(self._lock, content["changes"])


def create_store(folder: Path, stored: Stored) -> Store:
    """Make a folder for a gallery, which must not exist or be empty, and hold it for writing."""
    check_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StorageError(f"cannot make {folder}: {error.strerror or error}.") from error
    lock = _locked(folder)
    words = (f"cannot write a gallery to {folder}", "Make room, or choose another place.")
    with failing_in_words(*words, (sqlite3.Error, OSError)), closing_on_failure(lock):
        check_free(folder)  # another process may have been quicker
        _count(lock, 0)
        _write_whole(folder, stored)
        return Store(folder, lock, connect(folder / FILE))


def open_store(folder: Path) -> tuple[Store, Stored]:
    """Open a gallery's folder for writing; one process at a time may."""
    _require_gallery(folder)
    lock = _locked(folder)
    with closing_on_failure(lock):
        (folder / f".{GRAPH}.tmp").unlink(missing_ok=True)
        # Read first: closing a connection that may write would tidy away a log that is damaged.
        stored = read_store(folder)
        with _readable(folder / FILE):
            return Store(folder, lock, connect(folder / FILE)), stored


def read_store(folder: Path) -> Stored:
    """Read a gallery's folder as it is now, beside a writer too."""
    _require_gallery(folder)
    with _readable(folder / FILE), closing(connect_reader(folder / FILE)) as connection:
        return _read(connection, folder)


def copy_store(folder: Path, copy: Path) -> None:
    """Copy a gallery's folder as it is now to a new place, beside a writer.

    SQLite copies what was acknowledged when it began (``VACUUM INTO``), and nobody waits for it. The copy
    is made beside its place, checked, and moved there when it is whole and on the disk.
    """
    check_free(copy)
    beside = copy.with_name(f".{copy.name}.tmp")
    words = (f"cannot copy {folder} to {copy}", "Make room, or choose another place.")
    with failing_in_words(*words, (sqlite3.Error, OSError)):
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True, mode=0o700)
        (beside / FILE).touch(PRIVATE)
        try:
            with closing(connect_reader(folder / FILE)) as connection:
                connection.execute("VACUUM INTO ?", (str(beside / FILE),))
            with closing(connect(beside / FILE)) as connection:
                check_pages(connection)
                connection.execute("PRAGMA journal_mode=WAL")
            for path in (beside / FILE, beside):
                flush(path)
            beside.rename(copy)
            flush(copy.parent)
        finally:
            shutil.rmtree(beside, ignore_errors=True)  # which is not there if all went well


def stored_items(folder: Path) -> int:
    """Return how many records a gallery's folder holds, without reading them."""
    with _readable(folder / FILE), closing(connect_reader(folder / FILE)) as connection:
        return int(_read_state(connection, "content")["records"])


def change_count(folder: Path) -> bytes:
    """Return the text that counts a gallery's changes: another one means that there are more to read."""
    try:
        return (folder / LOCK).read_bytes()
    except OSError:
        return b""


def holds_gallery(folder: Path) -> bool:
    """Return whether there is a gallery in a folder."""
    return (folder / FILE).is_file()


def check_free(folder: Path) -> None:
    """Require that a gallery can be made in a folder: that it does not exist, or holds nothing else."""
    if holds_gallery(folder):
        raise InputError(
            f"{folder} holds a gallery already; open it with Gallery.open({str(folder)!r})."
        )
    # A process that died before its gallery was whole leaves some of our names behind.
    if folder.exists() and not (
        folder.is_dir() and all(path.name in OURS for path in folder.iterdir())
    ):
        raise InputError(f"{folder} is in use by something else; give a new or an empty folder.")


def connect(file: Path, mode: str = "rw") -> sqlite3.Connection:
    """Open a database whose transactions are on the disk when they end.

    Args:
        file: The database.
        mode: SQLite's: ``"ro"``, ``"rw"``, or ``"rwc"`` to make it if need be.

    Returns:
        A connection that any thread may use, one at a time, and that begins no transaction by itself.
    """
    address = f"{file.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        address, uri=True, timeout=BUSY, isolation_level=None, check_same_thread=False
    )
    settings = {"synchronous": "FULL", "trusted_schema": "OFF", "wal_autocheckpoint": CHECKPOINT}
    with closing_on_failure(connection):
        for name, value in (settings | {"journal_size_limit": LOG}).items():
            connection.execute(f"PRAGMA {name}={value}")
        connection.execute("SELECT count(*) FROM sqlite_master")  # so that it fails here if it does
    return connection


def connect_reader(file: Path) -> sqlite3.Connection:
    """Open a database for reading, beside a writer or in a folder that may not be written."""
    try:
        return connect(file, mode="ro")
    except sqlite3.OperationalError:
        # Where it may not write, SQLite cannot make the files by which processes share a database.
        log = file.with_name(f"{file.name}-wal")
        if os.access(file.parent, os.W_OK) or (log.exists() and log.stat().st_size):
            raise
    return connect(file, mode="ro&immutable=1")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit what is executed inside, or roll it back if something is raised."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            _cut_log(connection)
        raise


def _cut_log(connection: sqlite3.Connection) -> None:
    """Cut off what a transaction that failed left at the end of the write-ahead log.

    A disk may fail when everything was written and only waiting for it is left. SQLite rolls back then, but
    whoever opens the database next finds a whole transaction in the log, and takes it for one that was
    acknowledged. SQLite counts the frames that are valid in the file by which processes share the log, as
    its documented format says (WAL-mode file format, 2.1): mxFrame at byte 16, the page size at 14.
    """
    file = connection.execute("PRAGMA database_list").fetchone()[2]
    with suppress(sqlite3.Error, OSError, struct.error):
        connection.execute("BEGIN IMMEDIATE")  # nobody else writes meanwhile
        try:
            with open(f"{file}-shm", "rb") as shared:
                page, frames = struct.unpack("=HI", shared.read(20)[14:])
            end = LOG_HEADER + frames * (FRAME_HEADER + (page if page > 1 else 65536))
            if os.path.getsize(f"{file}-wal") > end:
                os.truncate(f"{file}-wal", end)
        finally:
            connection.execute("ROLLBACK")


def check_pages(connection: sqlite3.Connection) -> None:
    """Require that SQLite finds nothing wrong with a database's pages."""
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(str(found).replace("\n", " "))


@contextmanager
def closing_on_failure(resource: IO[bytes] | sqlite3.Connection) -> Iterator[None]:
    """Close a file or a connection if what is done with it fails; otherwise it stays open."""
    try:
        yield
    except BaseException:
        resource.close()
        raise


@contextmanager
def failing_in_words(
    what: str, advice: str, kinds: tuple[type[Exception], ...] = (sqlite3.Error,)
) -> Iterator[None]:
    """Raise errors of some kinds as a `StorageError` that says what failed, why, and what to do."""
    try:
        yield
    except kinds as error:
        raise StorageError(f"{what}: {error}. {advice}") from error


def _readable(file: Path) -> AbstractContextManager[None]:
    return failing_in_words(
        f"{file} cannot be read",
        "If it is damaged, restore the folder from a copy; nothing was changed.",
        (sqlite3.Error, ValueError, TypeError, KeyError),
    )


def _read(connection: sqlite3.Connection, folder: Path) -> Stored:
    """Read and verify everything, as of one moment."""
    acknowledged = int((folder / LOCK).read_text() or 0) if (folder / LOCK).is_file() else 0
    kind, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("application_id", "user_version")
    )
    if (kind, version) != (APPLICATION, VERSION):
        raise StorageError(
            f"{folder / FILE} is no gallery of version {VERSION}, the one that this surefind reads. "
            "Index its items again, or open it with the surefind that wrote it."
        )
    connection.execute("BEGIN")
    try:
        check_pages(connection)
        content = _read_state(connection, "content")
        if content["changes"] < acknowledged:
            raise StorageError(
                f"{folder} has lost changes: {acknowledged} were acknowledged and its database holds "
                f"{content['changes']}. Restore the folder from a copy; or, to go on without them, "
                f"delete {folder / LOCK}."
            )
        records = _read_items(connection, content["records"], content["dimension"])
        metadata = {
            name: _read_state(connection, f"metadata {name}")
            for name in _read_state(connection, "names")
        }
        return Stored(records, int(content["total"], 16), metadata)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _read_items(connection: sqlite3.Connection, count: int, dim: int) -> Records:
    layout = np.dtype([("kappa", "<f8"), ("novelty", "<f8"), ("vector", "<f4", (dim,))])
    vectors, kappa, novelty = np.empty((count, dim), dtype=np.float32), *np.empty((2, count))
    columns: tuple[list[Any], ...] = ([], [], [], [])
    cursor = connection.execute("SELECT row, item, numbers, checksum FROM items ORDER BY row")
    start = 0
    while part := cursor.fetchmany(READ):
        rows, items, numbers, checksums = zip(*part, strict=True)
        stop = start + len(part)
        # Column by column in C: a loop in Python would take as long as all the rest.
        if stop > count or rows != tuple(range(start, stop)):
            raise sqlite3.DatabaseError("its rows are not those that were written")
        if tuple(map(zlib.crc32, numbers, map(zlib.crc32, items))) != checksums:
            raise sqlite3.DatabaseError(f"the checksums of rows {start} to {stop - 1} differ")
        read = np.frombuffer(b"".join(numbers), dtype=layout)
        vectors[start:stop], kappa[start:stop] = read["vector"], read["kappa"]
        novelty[start:stop] = read["novelty"]
        listed = json.loads(b"[" + b",".join(items) + b"]")
        for column, values in zip(columns, zip(*listed, strict=True), strict=True):
            column.extend(values)
        start = stop
    if start != count:
        raise sqlite3.DatabaseError(f"it has {start} records instead of {count}")
    ids, *others = columns
    return Records(ids, vectors, kappa, novelty, *others)


def _to_rows(rows: Int[np.ndarray, " n"], records: Records) -> Iterable[tuple[Any, ...]]:
    vectors = np.ascontiguousarray(records.vectors, dtype="<f4")
    scalars = np.stack([records.kappa, records.novelty], axis=1).astype("<f8")
    items = zip(records.ids, records.labels, records.payload, records.groups, strict=True)
    for row, entry, pair, vector in zip(rows.tolist(), items, scalars, vectors, strict=True):
        item, numbers = json.dumps(entry).encode(), pair.tobytes() + vector.tobytes()
        yield row, item, numbers, zlib.crc32(numbers, zlib.crc32(item))


def _read_state(connection: sqlite3.Connection, key: str) -> Any:
    query = "SELECT value, checksum FROM state WHERE key = ?"
    value, checksum = connection.execute(query, (key,)).fetchone() or (b"", None)
    if zlib.crc32(value, zlib.crc32(key.encode())) != checksum:
        raise sqlite3.DatabaseError(f"the checksum of its {key} differs")
    return json.loads(value)


def _write_metadata(connection: sqlite3.Connection, metadata: Metadata, before: Metadata) -> None:
    for name in before.keys() - metadata.keys():
        connection.execute("DELETE FROM state WHERE key = ?", (f"metadata {name}",))
    for name, value in metadata.items():
        if name not in before or before[name] != value:
            _write_state(connection, f"metadata {name}", value)
    if metadata.keys() != before.keys() or not before:
        _write_state(connection, "names", sorted(metadata))


def _write_state(connection: sqlite3.Connection, key: str, value: Any) -> None:
    text = json.dumps(value).encode()
    checksum = zlib.crc32(text, zlib.crc32(key.encode()))
    connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (key, text, checksum))


def _write_whole(folder: Path, stored: Stored) -> None:
    """Write a new database beside its place and move it there."""
    records = stored.records
    content = {"dimension": records.vectors.shape[1], "records": len(records), "changes": 0}

    def write(beside: Path) -> None:
        beside.unlink(missing_ok=True)
        with closing(connect(beside, mode="rwc")) as connection:
            # A file that is thrown away if this fails needs no journal.
            connection.executescript(
                f"PRAGMA journal_mode=OFF; PRAGMA page_size={PAGE}; "
                f"PRAGMA application_id={APPLICATION}; PRAGMA user_version={VERSION}; {SCHEMA}"
            )
            with transaction(connection):
                rows = _to_rows(np.arange(len(records)), records)
                connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows)
                _write_state(connection, "content", content | {"total": f"{stored.total:x}"})
                _write_metadata(connection, stored.metadata, {})
            connection.execute("PRAGMA journal_mode=WAL")

    write_atomically(folder / FILE, write, durable=True, private=True)


def _require_gallery(folder: Path) -> None:
    if not holds_gallery(folder):
        hint = f"Make one: surefind.Gallery(path=...), or `surefind index SOURCE --out {folder}`."
        raise InputError(f"there is no gallery at {folder}.", field="path", hint=hint)


def _locked(folder: Path) -> IO[bytes]:
    """Take the lock, which the system gives back when the process ends, however it ends."""
    try:
        (folder / LOCK).touch(PRIVATE)
        file = open(folder / LOCK, "r+b", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise StorageError(
            f"{folder} cannot be written: {error.strerror}.",
            field="path",
            hint="To only search, open it for reading (mode 'r').",
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise StorageError(
            f"{folder} is open for writing elsewhere, and a gallery has one writer at a time.",
            field="path",
            hint="Close it there, or open it here for reading (mode 'r').",
        ) from error
    return file


def _count(lock: IO[bytes], changes: int) -> None:
    # A count that is too low finds less damage; it is no reason to fail a change that is on the disk.
    with suppress(OSError):
        os.pwrite(lock.fileno(), b"%020d\n" % changes, 0)
