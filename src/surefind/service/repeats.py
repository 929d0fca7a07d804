"""Requests that are sent again are answered again, and done once.

A caller who got no answer does not know whether items were added. With an ``Idempotency-Key`` the request
can be sent again: the same key with the same body gets the first answer, with another body it is refused
(422), and while the first is under way too (409). Keys are of one caller and one kind of request.

Answers are kept for a day, in the service's folder, also through a restart; refusals are not, since nothing
was done. The answer is kept after the items are, in another file: if the process is killed in between, or
the answer cannot be kept, items with ids of their own are refused the second time (409), and items without
are added again.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from surefind.errors import StorageError
from surefind.gallery import store
from surefind.service.telemetry import log_failure
from surefind.service.wire import RefusedError

FILE = "repeats.sqlite"
KEPT = 24 * 3600.0
"""Seconds for which an answer is kept."""
MOST = 100_000
"""Answers that are kept; the oldest go first."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    number INTEGER PRIMARY KEY, key BLOB UNIQUE NOT NULL, body BLOB NOT NULL, answer TEXT NOT NULL,
    kept REAL NOT NULL
);
"""


class Repeats:
    """What was answered to requests with a key.

    Args:
        path: The file; made if need be.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._busy: set[bytes] = set()
        with self._in_words():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = store.connect(path, mode="rwc")
            with store.closing_on_failure(self._connection):
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(SCHEMA)

    def once(
        self, key: str | None, caller: str, kind: str, body: bytes, act: Callable[[], list[Any]]
    ) -> list[Any]:
        """Do something, or return what came of it when the request was sent before.

        Args:
            key: The caller's; None to do it in any case.
            caller: The name of who asks.
            kind: Of request.
            body: What was sent.
            act: Does it; returns what JSON can hold.

        Returns:
            What ``act`` returned, now or then.

        Raises:
            RefusedError: If the key was used for another body, or is being used.
        """
        if key is None:
            return act()
        name, digest = _digest(caller.encode(), kind.encode(), key.encode()), _digest(body)
        with self._held(name):
            found = self._find(name)
            if found is None:
                answer = act()
                try:
                    self._keep(name, digest, answer)
                except StorageError as error:  # it is done, and the caller is told so
                    log_failure("answer not kept", error)
                return answer
        if found[0] != digest:
            raise RefusedError(
                422, "this Idempotency-Key was used for another body; take a new one."
            )
        earlier: list[Any] = json.loads(found[1])
        return earlier

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _held(self, name: bytes) -> Iterator[None]:
        with self._lock:
            if name in self._busy:
                sentence = "a request with this Idempotency-Key is under way; send it again later."
                raise RefusedError(409, sentence, {"Retry-After": "1"})
            self._busy.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(name)

    def _find(self, name: bytes) -> tuple[bytes, str] | None:
        query = "SELECT body, answer FROM answers WHERE key = ? AND kept > ?"
        with self._lock, self._in_words():
            found: tuple[bytes, str] | None = self._connection.execute(
                query, (name, time.time() - KEPT)
            ).fetchone()
        return found

    def _keep(self, name: bytes, digest: bytes, answer: list[Any]) -> None:
        now = time.time()
        row = (name, digest, json.dumps(answer), now)
        with self._lock, self._in_words(), store.transaction(self._connection):
            self._connection.execute(
                "REPLACE INTO answers (key, body, answer, kept) VALUES (?, ?, ?, ?)", row
            )
            old = "DELETE FROM answers WHERE kept <= ? OR number <= (SELECT max(number) FROM answers) - ?"
            self._connection.execute(old, (now - KEPT, MOST))

    def _in_words(self) -> AbstractContextManager[None]:
        return store.failing_in_words(
            f"the answers in {self._path} cannot be read or kept",
            "Make room; if the file is damaged, remove it.",
        )


def _digest(*parts: bytes) -> bytes:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8) + part)
    return whole.digest()
