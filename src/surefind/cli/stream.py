"""A stream of queries: JSON lines come on the standard input and are answered on the standard output.

A line is an object with an ``id`` (a string or an integer, or left out), perhaps a ``group``, and one of

    vector    numbers; beside it perhaps ``kappa`` (null is ∞) and ``novelty`` (null is not known)
    path      of an image that the run embeds
    image     the bytes of an image in base64, which the run embeds

A run that was fitted to vectors embeds ``vector`` too, and finds κ and novelty itself.

An answer has the ``id``, the ``line`` (the first is 1) and ``stale``, and what
`surefind.gallery.answers.answer_records` has. There is one for each line that is not blank, in their order.
A line that cannot be answered gets ``{id, line, error}``, and the stream goes on.

**Batches.** A thread reads ahead. What has come is answered together, at most `LINES` lines or about `TEXT`
bytes. Nothing is waited for, so that a slow producer gets each answer at once, and a fast one shares a
search among `LINES` lines. Answers are written after each batch, past all buffers.

**Memory** does not grow with the stream: `CHUNKS` chunks wait to be split into lines, and a line of more
than `LONGEST` bytes is dropped while it is read. A consumer that does not read holds up the producer.

The gallery is searched as it is when the stream begins: what another process changes later is not seen.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from queue import Empty, Queue
from threading import Thread
from typing import Any

import numpy as np
from pydantic_core import from_json, to_json

import surefind as sf
from surefind.cli.items import BATCH
from surefind.data.images import MAX_PIXELS
from surefind.embeddings import kappa_from_json
from surefind.errors import InputError, SurefindError
from surefind.gallery.answers import answer_records
from surefind.gallery.engine import Id, Label, read_groups, read_query_ids, read_vectors
from surefind.service.embedding import ImageEmbedder

LINES, TEXT = 256, 8 * 2**20
"""Lines, and bytes, that are answered together."""
LONGEST = 64 * 2**20
CHUNK, CHUNKS = 64 * 1024, 64
"""Bytes that are read at once, and how many times as many are read ahead."""
GIVEN = ("vector", "path", "image")
"""What a query is given by."""


@dataclass(frozen=True, eq=False)
class Query:
    """What a line asks.

    Attributes:
        line: Its number.
        id: Its own, or None.
        vector: Numbers (z); None until the run has embedded it.
        kappa: The vector's concentration.
        novelty: Its p-value; None where that is not known.
        group: Its group, or None.
        source: What the run embeds, prepared; None if the vector was given.
        error: Why it cannot be answered, or None.
    """

    line: int
    id: Id | None = None
    vector: np.ndarray | None = None
    kappa: float = np.inf
    novelty: float | None = None
    group: Label = None
    source: np.ndarray | None = None
    error: str | None = None


@dataclass(frozen=True, eq=False)
class Answerer:
    """Answers lines from a gallery.

    Attributes:
        gallery: Where to search.
        learner: The run's model, which embeds; None without a run.
        k: Neighbours of each query.
        decide: Whether to decide, if there is a calibration.
    """

    gallery: "sf.Gallery"
    learner: "sf.MetricLearner | None" = None
    k: int = 10
    decide: bool = True

    def check(self) -> None:
        """Search with a query of which everything is known: what is refused now, every line would be."""
        usual = np.eye(1, self.gallery.info["dim"] or 2, dtype=np.float32)[0]
        self._together([Query(0, vector=usual, kappa=1.0, novelty=1.0)])

    def answer(self, lines: Sequence[tuple[int, bytes | None]]) -> list[dict[str, Any]]:
        """Answer lines, each with its number; None stands for one that was too long."""
        queries = self._embedded([self._read(number, text) for number, text in lines])
        found: dict[int, dict[str, Any]] = {}
        for known in (False, True):  # a gallery takes all with novelty, or none
            alike = [q for q in queries if not q.error and (q.novelty is not None) == known]
            found |= zip([q.line for q in alike], self._each(alike), strict=True)
        return [
            {"id": q.id, "line": q.line} | ({"error": q.error} if q.error else found[q.line])
            for q in queries
        ]

    def _read(self, line: int, text: bytes | None) -> Query:
        query = Query(line)
        try:
            asked = _object(text)
            id_ = asked.pop("id", None)
            query = replace(query, id=None if id_ is None else read_query_ids([id_], 1)[0])
            return replace(query, **self._asked(asked))
        except SurefindError as error:
            return replace(query, error=str(error))

    def _asked(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return what a `Query` has of the fields of a line."""
        kinds = [name for name in GIVEN if name in asked]
        if len(kinds) != 1:
            raise InputError(f"give one of {', '.join(GIVEN)}, and no other of them.", field="line")
        (kind,) = kinds
        value = asked.pop(kind)
        (group,) = read_groups([asked.pop("group", None)], 1)
        spec = None if self.learner is None else self.learner.input_spec_
        if kind == "vector" and (spec is None or spec.kind != "vector"):
            kappa, novelty = (_number(name, asked.pop(name, None)) for name in ("kappa", "novelty"))
            known = {"vector": _vector(value), "kappa": kappa_from_json(kappa), "novelty": novelty}
        elif spec is not None:
            known = {"source": spec.prepare(_source(kind, value))[0].numpy()}
        else:
            raise InputError(f"{kind} needs --run RUN, which embeds the image.", field="run")
        if asked:
            raise InputError(f"{min(asked)!r} does not go with {kind}; leave it out.", field="line")
        return known | {"group": group}

    def _embedded(self, queries: list[Query]) -> list[Query]:
        """Embed what the run has to."""
        waiting = {row: q.source for row, q in enumerate(queries) if q.source is not None}
        found: list[Any] = []
        if self.learner is not None:
            embed = ImageEmbedder(self.learner, MAX_PIXELS).embed
            sources = list(waiting.values())
            blocks = (sources[at : at + BATCH] for at in range(0, len(sources), BATCH))
            found = [one for block in blocks for one in embed(block)]
        for row, one in zip(waiting, found, strict=True):
            if isinstance(one, SurefindError):
                known: dict[str, Any] = {"error": str(one)}
            else:
                novelty = None if one.novelty is None else float(one.novelty[0])
                known = {"vector": one.mean[0], "kappa": float(one.kappa[0]), "novelty": novelty}
            queries[row] = replace(queries[row], source=None, **known)
        return queries

    def _each(self, queries: list[Query]) -> list[dict[str, Any]]:
        """Search with all; if one of them cannot be used, with each half, down to that one."""
        if not queries:
            return []
        try:
            return self._together(queries)
        except InputError as error:
            if len(queries) == 1:
                return [{"error": str(error)}]
        half = len(queries) // 2
        return [*self._each(queries[:half]), *self._each(queries[half:])]

    def _together(self, queries: list[Query]) -> list[dict[str, Any]]:
        vectors = [q.vector for q in queries if q.vector is not None]
        if len({len(vector) for vector in vectors}) > 1:
            raise InputError("vectors must have the dimension of the gallery.", field="vector")
        unit, _, _ = read_vectors(
            np.stack(vectors), normalize=self.gallery.normalize, dim=self.gallery.info["dim"]
        )
        novelty = [q.novelty for q in queries if q.novelty is not None]
        answers = self.gallery.search(
            sf.Embeddings(
                unit, np.array([q.kappa for q in queries]), np.array(novelty) if novelty else None
            ),
            self.k,
            decide=self.decide,
            groups=[q.group for q in queries],
        )
        common = {"stale": answers.stale}
        return [common | record for record in answer_records(answers)]


def answer_stream(answerer: Answerer, source: int, sink: int) -> tuple[int, int]:
    """Answer all lines, or as many as somebody wants to read.

    Args:
        answerer: What answers them.
        source: The descriptor that they are read from, to its end.
        sink: The descriptor that answers are written to, each batch at once.

    Returns:
        How many lines were read, and how many of them could not be answered.
    """
    count = bad = 0
    for batch in line_batches(source):
        # Blank lines are counted, so that numbers are those of the producer.
        numbered = [(n, x) for n, x in enumerate(batch, count + 1) if x is None or x.strip()]
        count += len(batch)
        answers = answerer.answer(numbered)
        bad += sum("error" in answer for answer in answers)
        try:
            _write(sink, b"".join(to_json(answer) + b"\n" for answer in answers))
        except BrokenPipeError:
            break
    return count, bad


def _write(sink: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(sink, left) :]


def line_batches(source: int) -> Iterator[list[bytes | None]]:
    """Read what has come, again and again.

    Args:
        source: The descriptor to read from, to its end.

    Yields:
        Lines without their end; None for one that is too long.
    """
    chunks: Queue[bytes | OSError] = Queue(CHUNKS)
    Thread(target=_read_ahead, args=(source, chunks), daemon=True).start()
    splitter, lines, ended = Splitter(), list[bytes | None](), False
    while lines or not ended:
        size = 0
        while not ended and len(lines) < LINES and size < TEXT:
            try:
                chunk = chunks.get(block=not lines)
            except Empty:
                break
            if isinstance(chunk, OSError):
                raise chunk
            lines += splitter.split(chunk) if chunk else splitter.last()
            size, ended = size + len(chunk), not chunk
        if lines:
            yield lines[:LINES]
        del lines[:LINES]


def _read_ahead(source: int, chunks: "Queue[bytes | OSError]") -> None:
    chunk: bytes | OSError = b"-"
    while chunk and not isinstance(chunk, OSError):
        try:
            chunk = os.read(source, CHUNK)
        except OSError as error:
            chunk = error
        chunks.put(chunk)


class Splitter:
    """Splits chunks of text into lines; forgets one that is longer than `LONGEST`, until it ends."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        self._size = 0

    def split(self, chunk: bytes) -> list[bytes | None]:
        """Return the lines that end in a chunk."""
        *ends, begins = chunk.split(b"\n")
        lines = []
        for end in ends:
            self._keep(end)
            lines.append(self._line())
        self._keep(begins)
        return lines

    def last(self) -> list[bytes | None]:
        """Return the line that the text ends with, if it does not end with the end of one."""
        return [self._line()] if self._size else []

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > LONGEST:
            self._begun.clear()
        else:
            self._begun.append(part)

    def _line(self) -> bytes | None:
        line = None if self._size > LONGEST else b"".join(self._begun)
        self._begun, self._size = [], 0
        return line


def _object(text: bytes | None) -> dict[str, Any]:
    if text is None:
        raise InputError(f"the line has more than {LONGEST:,} bytes.", field="line")
    try:
        asked = from_json(text)
    except ValueError as error:
        raise InputError(f"the line is no JSON: {error}.", field="line") from error
    if not isinstance(asked, dict):
        raise InputError(f"a line must be a JSON object; got {type(asked).__name__}.", field="line")
    return asked


def _vector(value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        array = np.empty(0, dtype=object)
    if array.ndim != 1 or array.dtype.kind not in "fiu" or not len(array):
        raise InputError("vector must be a list of numbers.", field="vector")
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused as infinite
        return array.astype(np.float32)


def _source(kind: str, value: Any) -> Any:
    """Return a vector or an image as `surefind.data.inputs.InputSpec.prepare` takes it."""
    if kind == "vector":
        return _vector(value)[None]
    if not isinstance(value, str):
        raise InputError(f"{kind} must be a string; got {type(value).__name__}.", field=kind)
    if kind == "path":
        return value
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise InputError(f"image is no base64: {error}.", field="image") from error


def _number(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} must be a number or null; got {value!r}.", field=name)
    try:
        return float(value)
    except OverflowError as error:
        raise InputError(f"{name} is too large a number.", field=name) from error
