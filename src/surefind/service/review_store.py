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
disk before `Reviews.ask` or `Reviews.decide` returns (`surefind.gallery.store.connect`).
"""

import hashlib
import json
import sqlite3
import threading
import uuid
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from surefind.embeddings import Embeddings, kappa_from_json, novelty_from_json
from surefind.errors import DegenerateError, InputError
from surefind.gallery import store
from surefind.gallery.records import Label
from surefind.gallery.review_sample import Draw, ReviewCounts, ReviewSample, usable_rows
from surefind.service.wire import ANONYMOUS, RefusedError

FILE = "reviews.sqlite"
SAMPLED = "json_extract(question, '$.sampled') IS 1"

SCHEMA = """
CREATE TABLE IF NOT EXISTS reviews (
    number INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, question TEXT NOT NULL,
    decision TEXT, decided INTEGER UNIQUE
);
CREATE INDEX IF NOT EXISTS pending ON reviews (number) WHERE decided IS NULL;
"""
"""``number`` and ``decided`` count the questions and the decisions, in their order."""


class Reviews:
    """The queue and the decisions of one service.

    Args:
        path: The file; made if need be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        with _in_words(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = store.connect(path, mode="rwc")
            with store.closing_on_failure(self._connection):
                self._connection.execute("PRAGMA journal_mode=WAL")
                store.check_pages(self._connection)
                self._connection.executescript(SCHEMA)
                waiting = self.pending()
        self._sampled = sum(bool(question.get("sampled")) for question in waiting)
        self._doubtful = len(waiting) - self._sampled
        self._same: dict[str, str] = {sign: q["id"] for q in waiting[::-1] for sign in _signs(q)}
        self.dropped = 0
        """Queries since the start that should have waited, and for which there was no room."""

    def __len__(self) -> int:
        return self._sampled + self._doubtful

    def waiting(self, *, sampled: bool) -> int:
        """Return how many wait that were sampled, or how many that were not."""
        return self._sampled if sampled else self._doubtful

    def ask(self, question: dict[str, Any]) -> str:
        """Let a query wait for a person.

        Args:
            question: ``vector``, ``kappa`` (None if infinite), ``novelty`` (None if not known), ``label``
                and what else the page shows. If it was sampled, ``sampled`` is true, and there are ``u``,
                ``share`` and ``model`` (`surefind.gallery.review_sample.Draw`). An ``image_sign``
                is the same for the same image file.

        Returns:
            The review's id.
        """
        id_ = uuid.uuid4().hex
        text = json.dumps({"id": id_, "when": _now()} | question, allow_nan=False)
        with self._lock:
            with _in_words(self._path), store.transaction(self._connection):
                insert = "INSERT INTO reviews (id, question) VALUES (?, ?)"
                self._connection.execute(insert, (id_, text))
            self._count(question | {"id": id_}, 1)
        return id_

    def fold(self, question: dict[str, Any]) -> str | None:
        """Count a query on the same one that waits; return that one's id, or None if none does."""
        with self._lock:
            id_ = next((self._same[s] for s in _signs(question) if s in self._same), None)
            if id_ is None:
                return None
            with _in_words(self._path), store.transaction(self._connection):
                one = "SELECT question FROM reviews WHERE id = ?"
                waits = json.loads(self._connection.execute(one, (id_,)).fetchone()[0])
                waits["count"] = waits.get("count", 1) + 1
                change = "UPDATE reviews SET question = ? WHERE id = ?"
                self._connection.execute(change, (json.dumps(waits, allow_nan=False), id_))
        return id_

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
        with self._lock:
            with _in_words(self._path), store.transaction(self._connection):
                query = "SELECT question, decided FROM reviews WHERE id = ?"
                found = self._connection.execute(query, (id_,)).fetchone()
                if found is None:
                    raise RefusedError(404, "no such query waits for a person.")
                if found[1] is not None:
                    raise RefusedError(409, "this query was decided already.")
                asked = json.loads(found[0])
                if verdict != "relabel":
                    label = asked["label"] if verdict == "accept" else None
                if verdict == "accept" and label is None:
                    sentence = "the answer has no label to accept; relabel or reject."
                    raise RefusedError(409, sentence)
                said = {"verdict": verdict, "label": label, "by": by, "reviewer": reviewer}
                entry = {"id": id_, "when": _now()} | said
                self._connection.execute(
                    "UPDATE reviews SET decision = ?, "
                    "decided = (SELECT coalesce(max(decided), 0) + 1 FROM reviews) WHERE id = ?",
                    (json.dumps(entry), id_),
                )
            self._count(asked, -1)
        return entry

    def undo(self, id_: str) -> dict[str, Any]:
        """Take a decision back, so that the query waits again, where it was; return the question."""
        with self._lock:
            with _in_words(self._path), store.transaction(self._connection):
                query = "SELECT question, decided FROM reviews WHERE id = ?"
                found = self._connection.execute(query, (id_,)).fetchone()
                if found is None:
                    raise RefusedError(404, "no such query was ever asked about.")
                if found[1] is None:
                    raise RefusedError(409, "this query waits: nothing was decided about it.")
                change = "UPDATE reviews SET decision = NULL, decided = NULL WHERE id = ?"
                self._connection.execute(change, (id_,))
            asked: dict[str, Any] = json.loads(found[0])
            self._count(asked, 1)
        return asked

    def pending(self) -> list[dict[str, Any]]:
        """List the questions that wait, the oldest first."""
        query = "SELECT question FROM reviews WHERE decided IS NULL ORDER BY number"
        with self._lock, _in_words(self._path):
            return [json.loads(text) for (text,) in self._connection.execute(query)]

    def history(self, limit: int = -1, offset: int = 0) -> list[dict[str, Any]]:
        """List decisions, the newest first, each with its question as ``asked``."""
        query = "SELECT decision, question FROM reviews WHERE decided IS NOT NULL "
        order = "ORDER BY decided DESC LIMIT ? OFFSET ?"
        with self._lock, _in_words(self._path):
            found = self._connection.execute(query + order, (limit, offset))
            return [json.loads(said) | {"asked": json.loads(asked)} for said, asked in found]

    def decisions(self) -> int:
        """Count the decisions."""
        with self._lock, _in_words(self._path):
            query = "SELECT count(*) FROM reviews WHERE decided IS NOT NULL"
            return int(self._connection.execute(query).fetchone()[0])

    def counts(self) -> ReviewCounts:
        """Count what a calibration may use, and what not."""
        with self._lock, _in_words(self._path):
            return _usable(self._connection)[1]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _count(self, question: dict[str, Any], change: int) -> None:
        if question.get("sampled"):
            self._sampled += change
        else:
            self._doubtful += change
        for sign in _signs(question):
            if change > 0:
                self._same.setdefault(sign, question["id"])
            elif self._same.get(sign) == question["id"]:
                del self._same[sign]


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
        one = "SELECT question, decision FROM reviews WHERE number = ?"
        found = [connection.execute(one, (number,)).fetchone() for number in numbers]
    if not found:
        raise DegenerateError(
            f"no reviewed query in {file} can be used. {counts.summary}",
            field="reviews",
            hint="A calibration needs a random share of all queries: serve with --review-share 0.02, and "
            "review the random checks, the oldest first.",
        )
    questions = [json.loads(question) for question, _ in found]
    mean = np.array([q["vector"] for q in questions], dtype=np.float32)
    kappa = np.array([kappa_from_json(q["kappa"]) for q in questions])
    novelty = np.array([novelty_from_json(q.get("novelty")) for q in questions])
    return ReviewSample(
        Embeddings(mean, kappa, None if np.isnan(novelty).any() else novelty),
        [json.loads(decision)["label"] for _, decision in found],
        questions[-1]["model"],
        counts,
    )


def _signs(question: dict[str, Any]) -> list[str]:
    """Return what is the same for the same doubtful query: of its vector, and of its image file."""
    if question.get("sampled"):
        return []
    vector = np.array(question["vector"], dtype=np.float32).tobytes()
    signs = [hashlib.blake2b(vector, digest_size=16).hexdigest()]
    return [*signs, question["image_sign"]] if question.get("image_sign") else signs


def _usable(connection: sqlite3.Connection) -> tuple[list[int], ReviewCounts]:
    """Return the numbers of the questions that a calibration may use, and the counts."""
    names = ", ".join(f"json_extract(question, '$.{name}')" for name in ("u", "share", "model"))
    query = (
        f"SELECT number, {names}, decided IS NOT NULL FROM reviews WHERE {SAMPLED} ORDER BY number"
    )
    found = connection.execute(query).fetchall()
    others = f"SELECT count(*) FROM reviews WHERE decided IS NOT NULL AND NOT {SAMPLED}"
    (doubtful,) = connection.execute(others).fetchone()
    draws = [Draw(u, share, model, bool(decided)) for _, u, share, model, decided in found]
    rows, counts = usable_rows(draws, doubtful)
    return [found[row][0] for row in rows], counts


def _in_words(path: Path) -> AbstractContextManager[None]:
    return store.failing_in_words(
        f"the reviews in {path} cannot be read or kept",
        "Make room; if the file is damaged, restore it from a copy.",
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
