"""What people decided about answers that were not sure enough, kept for the next calibration.

A query that needs a person is asked about; what the person says is decided:

    accept    the answered label is right       the label is that one
    reject    it is not in the gallery          the label is None
    relabel   it is something else there        the label is what the person says

A decision can be taken back (`Reviews.undo`); the query waits again.

A doubtful query that is the same as one that waits, by its vector or by its image file, is counted on that
one instead of waiting too. Sampled queries have no part in this: each is a draw of its own, and leaving
repeated ones out would make the sample one of different queries, which are not what comes.

Most are asked about because they were doubtful. Those tell a calibration nothing about sure answers, so
`read_reviews` returns the others: a random share of all queries (`surefind.gallery.review_sample`).

The reviews are a SQLite database of their own in the service's folder: a gallery in Milvus has no file to
share, and a service that only reads its gallery still takes reviews. A question or a decision is on the
disk before `Reviews.ask` or `Reviews.decide` returns (`surefind.gallery.store.connect`). Every row has a
crc32, which is compared on opening and whenever the row is read. Of the items that were found a question
keeps the ids alone.
"""

import hashlib
import json
import sqlite3
import threading
import uuid
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from surefind.embeddings import Embeddings, kappa_from_json, novelty_from_json
from surefind.errors import DegenerateError, InputError
from surefind.files import PRIVATE
from surefind.gallery import store
from surefind.gallery.records import Label
from surefind.gallery.review_sample import Draw, ReviewCounts, ReviewSample, usable_rows
from surefind.service.wire import ANONYMOUS, RefusedError

FILE = "reviews.sqlite"
COLUMNS = "number, question, vector, decision, decided"
SCHEMA = """
CREATE TABLE IF NOT EXISTS reviews (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, sampled INTEGER NOT NULL, sign TEXT,
    question TEXT NOT NULL, vector BLOB NOT NULL, decision TEXT, decided INTEGER UNIQUE,
    checksum INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS pending ON reviews (sampled, sign) WHERE decided IS NULL;
"""
"""``number`` and ``decided`` count the questions and the decisions, in their order; ``sign`` is the same
for the same doubtful query."""

MATCHING = (
    "decided IS NULL AND (?1 IS NULL OR EXISTS (SELECT 1 FROM json_each(question, '$.names') WHERE value = "
    "?1)) AND coalesce(json_extract(question, '$.probability'), 0) BETWEEN ?2 AND ?3 "
    "AND (?4 IS NULL OR sampled = ?4)"
)
Filters = tuple[str | None, float, float, bool | None]
"""The name of a reason, the least and the highest probability, and whether it was sampled; None for any."""


class Reviews:
    """The queue and the decisions of one service.

    Args:
        path: The file; made if need be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.dropped = 0
        """Queries since the start that should have waited, and for which there was no room."""
        with _in_words(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(PRIVATE)
            self._connection = store.connect(path)
            with store.closing_on_failure(self._connection):
                self._connection.execute("PRAGMA journal_mode=WAL")
                store.check_pages(self._connection)
                self._connection.executescript(SCHEMA)
                for row in self._connection.execute(f"SELECT {COLUMNS}, checksum FROM reviews"):
                    _read(row)

    def __len__(self) -> int:
        return sum(self.waiting(sampled=sampled) for sampled in (False, True))

    def waiting(self, *, sampled: bool) -> int:
        """Return how many wait that were sampled, or how many that were not."""
        return self._count("decided IS NULL AND sampled = ?", sampled)

    def decisions(self) -> int:
        """Count the decisions."""
        return self._count("decided IS NOT NULL")

    def ask(self, question: dict[str, Any]) -> str:
        """Let a query wait for a person.

        Args:
            question: ``vector``, ``kappa`` (None if infinite), ``novelty`` (None if not known), ``label``
                and what else the page shows. If it was sampled, ``sampled`` is true, and there are ``u``,
                ``share`` and ``model`` (`surefind.gallery.review_sample.Draw`). An ``image_sign`` is the
                same for the same image file.

        Returns:
            The review's id.
        """
        id_ = uuid.uuid4().hex
        empty: dict[str, Any] = {"sampled": False, "reasons": []}
        about = {"id": id_, "when": _now()} | empty | question
        about["names"] = [reason_name(reason) for reason in about["reasons"]]
        vector = np.asarray(about.pop("vector"), dtype="<f4").tobytes()
        sign = None if about["sampled"] else sign_of(question)
        with self._change():
            (number,) = self._fetch("SELECT coalesce(max(number), 0) + 1 FROM reviews")
            row = (number, json.dumps(about, allow_nan=False), vector, None, None)
            self._connection.execute(
                f"INSERT INTO reviews (id, sampled, sign, {COLUMNS}, checksum) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (id_, about["sampled"], sign, *row, _checksum(row)),
            )
        return id_

    def fold(self, question: dict[str, Any]) -> str | None:
        """Count a query on the same one that waits; return that one's id, or None if none does."""
        same = "SELECT id FROM reviews WHERE decided IS NULL AND sign = ?"
        with self._change():
            found = self._fetch(same, sign_of(question))
            if found is None:
                return None
            asked, *_ = self._one(found[0])
            self._keep(found[0], asked | {"count": asked.get("count", 1) + 1}, None, None)
            return str(found[0])

    def decide(
        self,
        id_: str,
        verdict: str,
        label: Label = None,
        *,
        by: str = ANONYMOUS,
        reviewer: str | None = None,
    ) -> dict[str, Any]:
        """Keep what a person said.

        Args:
            id_: The review's.
            verdict: "accept", "reject" or "relabel".
            label: For "relabel", what it is.
            by: The name of the token of who decides.
            reviewer: Who that is, by their own account.

        Returns:
            The decision as it was kept.

        Raises:
            RefusedError: If there is no such query, it is decided already, or has no label to accept.
        """
        with self._change():
            asked, decision = self._one(id_)
            if decision is not None:
                raise RefusedError(409, "this query was decided already.")
            if verdict != "relabel":
                label = asked["label"] if verdict == "accept" else None
            if verdict == "accept" and label is None:
                raise RefusedError(409, "the answer has no label to accept; relabel or reject.")
            said = {"verdict": verdict, "label": label, "by": by, "reviewer": reviewer}
            entry = {"id": id_, "when": _now()} | said
            (order,) = self._fetch("SELECT coalesce(max(decided), 0) + 1 FROM reviews")
            self._keep(id_, asked, entry, order)
        return entry

    def undo(self, id_: str) -> dict[str, Any]:
        """Take a decision back, so that the query waits again, where it was; return the question."""
        with self._change():
            asked, decision = self._one(id_)
            if decision is None:
                raise RefusedError(409, "this query waits: nothing was decided about it.")
            self._keep(id_, asked, None, None)
        return asked

    def pending(
        self, limit: int = -1, offset: int = 0, filters: Filters = (None, 0, 1, None)
    ) -> list[dict[str, Any]]:
        """List questions that wait, the oldest first, without their vectors."""
        rows = self._rows(f"{MATCHING} ORDER BY number LIMIT ?5 OFFSET ?6", *filters, limit, offset)
        return [asked for asked, _ in rows]

    def matching(self, filters: Filters) -> int:
        """Count the questions that wait and that the filters let through."""
        return self._count(MATCHING, *filters)

    def reasons(self) -> dict[str, int]:
        """Count those that wait by the names of their reasons."""
        with self._lock, _in_words(self._path):
            return dict(
                self._connection.execute(
                    "SELECT value, count(*) FROM reviews, json_each(question, '$.names') "
                    "WHERE decided IS NULL GROUP BY value"
                ).fetchall()
            )

    def history(self, limit: int = -1, offset: int = 0) -> list[dict[str, Any]]:
        """List decisions, the newest first, each with its question as ``asked``."""
        which = "decided IS NOT NULL ORDER BY decided DESC LIMIT ? OFFSET ?"
        return [said | {"asked": asked} for asked, said in self._rows(which, limit, offset)]

    def counts(self) -> ReviewCounts:
        """Count what a calibration may use, and what not."""
        with self._lock, _in_words(self._path):
            return _usable(self._connection)[1]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._lock, _in_words(self._path), store.transaction(self._connection):
            yield

    def _fetch(self, query: str, *values: Any) -> Any:
        return self._connection.execute(query, values).fetchone()

    def _count(self, which: str, *values: Any) -> int:
        with self._lock, _in_words(self._path):
            return int(self._fetch(f"SELECT count(*) FROM reviews WHERE {which}", *values)[0])

    def _rows(self, which: str, *values: Any) -> list[tuple[dict[str, Any], Any]]:
        with self._lock, _in_words(self._path):
            query = f"SELECT {COLUMNS}, checksum FROM reviews WHERE {which}"
            return [_read(row) for row in self._connection.execute(query, values)]

    def _one(self, id_: str) -> tuple[dict[str, Any], Any]:
        row = self._fetch(f"SELECT {COLUMNS}, checksum FROM reviews WHERE id = ?", id_)
        if row is None:
            raise RefusedError(404, "there is no such query.")
        return _read(row)

    def _keep(self, id_: str, asked: dict[str, Any], said: Any, order: int | None) -> None:
        number, vector = self._fetch("SELECT number, vector FROM reviews WHERE id = ?", id_)
        decision = None if said is None else json.dumps(said)
        row = (number, json.dumps(asked, allow_nan=False), vector, decision, order)
        self._connection.execute(
            "UPDATE reviews SET question = ?, decision = ?, decided = ?, checksum = ? WHERE id = ?",
            (row[1], decision, order, _checksum(row), id_),
        )


def read_reviews(path: str | Path) -> ReviewSample:
    """Read the reviewed queries that `surefind.Gallery.calibrate` may use.

    These are a random share of all queries (`surefind serve --review-share`), in the order in which they
    were asked, up to the first that is not decided yet. Queries that were asked about because they were
    doubtful are left out: they are not like those to come.

    Args:
        path: The service's folder, or the file in it.

    Returns:
        The queries, the label of each, and how many others were left out and why.

    Raises:
        InputError: If there is no such file.
        DegenerateError: If no query can be used yet.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"there are no reviews at {file}; `surefind serve` collects them.")
    with _in_words(file), closing(store.connect_reader(file)) as connection:
        store.check_pages(connection)
        numbers, counts = _usable(connection)
        one = f"SELECT {COLUMNS}, checksum FROM reviews WHERE number = ?"
        rows = [connection.execute(one, (number,)).fetchone() for number in numbers]
        found = [(*_read(row), np.frombuffer(row[2], dtype="<f4")) for row in rows]
    if not found:
        raise DegenerateError(
            f"no reviewed query in {file} can be used. {counts.summary}",
            field="reviews",
            hint="A calibration needs a random share of all queries: serve with --review-share 0.02, and "
            "review the random checks, the oldest first.",
        )
    kappa = np.array([kappa_from_json(asked["kappa"]) for asked, _, _ in found])
    novelty = np.array([novelty_from_json(asked.get("novelty")) for asked, _, _ in found])
    mean = np.array([vector for _, _, vector in found], dtype=np.float32)
    return ReviewSample(
        Embeddings(mean, kappa, None if np.isnan(novelty).any() else novelty),
        [said["label"] for _, said, _ in found],
        found[-1][0]["model"],
        counts,
    )


def sign_of(question: dict[str, Any]) -> str:
    """Return what is the same for the same doubtful query: of its image file, or of its vector."""
    vector = np.asarray(question["vector"], dtype="<f4").tobytes()
    return question.get("image_sign") or hashlib.blake2b(vector, digest_size=16).hexdigest()


def reason_name(reason: str) -> str:
    """Return a reason without what it says about one query: what competes, or a p-value."""
    return reason.partition(": ")[0].partition(" (p ")[0]


def _usable(connection: sqlite3.Connection) -> tuple[list[int], ReviewCounts]:
    """Return the numbers of the questions that a calibration may use, and the counts."""
    names = ", ".join(f"json_extract(question, '$.{name}')" for name in ("u", "share", "model"))
    query = (
        f"SELECT number, {names}, decided IS NOT NULL FROM reviews WHERE sampled ORDER BY number"
    )
    found = connection.execute(query).fetchall()
    others = "SELECT count(*) FROM reviews WHERE decided IS NOT NULL AND NOT sampled"
    (doubtful,) = connection.execute(others).fetchone()
    draws = [Draw(u, share, model, bool(decided)) for _, u, share, model, decided in found]
    rows, counts = usable_rows(draws, doubtful)
    return [found[row][0] for row in rows], counts


def _read(row: tuple[Any, ...]) -> tuple[dict[str, Any], Any]:
    """Return the question and the decision of a row, which must be as it was written."""
    *kept, checksum = row
    if checksum != _checksum(kept):
        raise sqlite3.DatabaseError(f"row {row[0]} is damaged")
    return json.loads(row[1]), None if row[3] is None else json.loads(row[3])


def _checksum(row: Any) -> int:
    number, question, vector, decision, decided = row
    return zlib.crc32(
        json.dumps([number, question, decision, decided]).encode(), zlib.crc32(vector)
    )


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    with store.failing_in_words(
        f"the reviews in {path} cannot be read or kept",
        "Make room; if the file is damaged, restore it from a copy.",
        (sqlite3.Error, OSError, ValueError, TypeError),
    ):
        yield


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
