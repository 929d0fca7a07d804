"""What people decided about answers that were not sure enough, kept for the next calibration.

A file of JSON lines that only grows. A query that needs a person is ``asked``; what the person says is
``decided``:

    accept    the top answer is right           the label is the top answer's
    reject    it is not in the gallery          the label is None
    relabel   it is something else there        the label is what the person says

Every line is on the disk before `Reviews.ask` or `Reviews.decide` returns. A process killed in the middle
leaves at most a line without its end, which is cut off at the next opening.
"""

import json
import math
import os
import threading
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError, StorageError
from surefind.gallery.engine import Label
from surefind.validation import check_choice

FILE = "reviews.jsonl"
VERDICTS = ("accept", "reject", "relabel")


class Reviews:
    """The queue and the decisions of one service.

    Args:
        path: The file; made if need be.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._file = open(path, "a+b")  # noqa: SIM115
        self._asked, self._decided, self._size = _load(path)
        self._file.truncate(self._size)

    def __len__(self) -> int:
        return len(self._asked) - len(self._decided)

    def ask(self, question: dict[str, Any]) -> str:
        """Let a query wait for a person.

        Args:
            question: ``vector``, ``kappa`` (None if infinite), ``top`` and what else the page shows.

        Returns:
            The review's id.
        """
        id_ = uuid.uuid4().hex
        with self._lock:
            entry = {"event": "asked", "id": id_, "when": _now()} | question
            self._append(entry)
            self._asked[id_] = entry
        return id_

    def decide(self, id_: str, verdict: str, label: Label = None) -> dict[str, Any]:
        """Keep what a person said.

        Args:
            id_: The review's.
            verdict: One of `VERDICTS`.
            label: For "relabel", what it is.

        Returns:
            The decision as it was kept.

        Raises:
            InputError: If there is no such query, it is decided already, or a label is missing.
        """
        check_choice("verdict", verdict, VERDICTS)
        with self._lock:
            if id_ not in self._asked or id_ in self._decided:
                what = "was decided already" if id_ in self._decided else "does not wait"
                raise InputError(f"this query {what}; ask for the queue again.")
            if verdict == "relabel" and label is None:
                raise InputError("relabel needs a label: what the query shows.")
            if verdict != "relabel":
                label = self._asked[id_]["top"]["label"] if verdict == "accept" else None
            if verdict == "accept" and label is None:
                raise InputError("the nearest item has no label to accept; relabel or reject.")
            entry: dict[str, Any] = {"event": "decided", "id": id_, "when": _now()}
            entry |= {"verdict": verdict, "label": label}
            self._append(entry)
            self._decided[id_] = entry
        return entry

    def asked(self, id_: str) -> dict[str, Any] | None:
        """Give a question, decided or not; None if there is none."""
        return self._asked.get(id_)

    def pending(self) -> list[dict[str, Any]]:
        """List the questions that wait, the oldest first."""
        with self._lock:
            return [entry for id_, entry in self._asked.items() if id_ not in self._decided]

    def decided(self) -> list[dict[str, Any]]:
        """List the decisions, the oldest first."""
        with self._lock:
            return list(self._decided.values())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, allow_nan=False).encode() + b"\n"
        try:
            self._file.write(line)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(self._size)
            raise StorageError(f"the review cannot be kept: {error.strerror or error}.") from error
        self._size += len(line)


def read_reviews(path: str | Path) -> tuple[Embeddings, list[Label]]:
    """Read what people decided, as `surefind.Gallery.calibrate` takes it.

    Args:
        path: The service's folder, or the file in it.

    Returns:
        The queries, and the label of each; None for one that is not in the gallery.

    Raises:
        InputError: If there is no such file.
        DegenerateError: If nothing was decided yet.
    """
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise InputError(f"there are no reviews at {file}; `surefind serve` collects them.")
    asked, decided, _ = _load(file)
    if not decided:
        raise DegenerateError(f"nothing in {file} was decided yet; review some queries first.")
    queries = [asked[id_] for id_ in decided]
    kappa = [math.inf if q["kappa"] is None else q["kappa"] for q in queries]
    mean = np.array([q["vector"] for q in queries], dtype=np.float32)
    return Embeddings(mean, np.array(kappa)), [entry["label"] for entry in decided.values()]


def _load(path: Path) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Read questions, decisions, and the size of the whole lines."""
    asked: dict[str, Any] = {}
    decided: dict[str, Any] = {}
    size = 0
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            entry = json.loads(line)
            (asked if entry["event"] == "asked" else decided)[entry["id"]] = entry
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"line {number} of {path} is damaged ({error}). Restore the file, or drop the line."
            ) from error
        size += len(line)
    return asked, decided, size


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
