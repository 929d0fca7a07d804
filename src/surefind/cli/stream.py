"""A stream of queries: JSON lines come on the standard input and are answered on the standard output.

A line is an object with a ``vector`` and perhaps an ``id``, a ``group``, a ``kappa`` (null is ∞) and a
``novelty`` (null is not known). Where the gallery's run was fitted to vectors it embeds those without a
``kappa``, and finds κ and novelty itself. An answer has the ``id``, the ``line`` (the first is 1), and what
`surefind.Answers.records` has. There is one for each line that is not blank, in their order. A line that
cannot be answered gets ``{id, line, error}``, and the stream goes on.

What has come is answered together, and nothing is waited for: a slow producer gets each answer at once, and
a fast one shares a search among many lines. The gallery is searched as it is when the stream begins.
"""

import os
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

import surefind as sf
from surefind.errors import InputError

CHUNK = 1 << 20
"""Bytes that are read at once."""
Search = Callable[..., sf.Answers]
Name = Annotated[str | int | None, Field(union_mode="left_to_right")]


class Query(BaseModel):
    """What a line asks."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    id: Name = None
    group: Name = None
    vector: Annotated[list[float], Field(min_length=2)]
    kappa: Annotated[float | None, Field(ge=0)] = None
    novelty: Annotated[float | None, Field(ge=0, le=1)] = None


def answer_stream(
    search: Search, learner: "sf.MetricLearner | None", source: int, sink: int
) -> tuple[int, int]:
    """Answer all lines, or as many as somebody wants to read.

    Args:
        search: Searches with embeddings, and the groups of queries.
        learner: A model of vectors that embeds those without a κ; None if all are embedded.
        source: The descriptor that lines are read from, to its end.
        sink: The descriptor that answers are written to.

    Returns:
        How many lines were read, and how many of them could not be answered.
    """
    count = bad = 0
    for lines in line_batches(source):
        read = {n: _read(text) for n, text in enumerate(lines, count + 1) if text.strip()}
        count += len(lines)
        found: dict[int, dict[str, Any]] = {n: q for n, q in read.items() if isinstance(q, dict)}
        queries = {n: q for n, q in read.items() if isinstance(q, Query)}
        for kind in {_kind(q) for q in queries.values()}:
            alike = [n for n, q in queries.items() if _kind(q) == kind]
            rows = [queries[n] for n in alike]
            found |= zip(alike, _each(search, learner, rows), strict=True)
        bad += sum("error" in answer for answer in found.values())
        named = ({"id": getattr(q, "id", None), "line": n} | found[n] for n, q in read.items())
        text = b"".join(to_json(answer, inf_nan_mode="null") + b"\n" for answer in named)
        try:
            while text:
                text = text[os.write(sink, text) :]
        except BrokenPipeError:
            break
    return count, bad


def line_batches(source: int) -> Iterator[list[bytes]]:
    """Read what has come, again and again, and yield its whole lines."""
    rest = b""
    while chunk := os.read(source, CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _read(text: bytes) -> Query | dict[str, Any]:
    try:
        return Query.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"][:1]))
        return {"error": f"{where or 'line'}: {first['msg']}."}


def _kind(query: Query) -> tuple[int, bool, bool]:
    """Return what queries that are answered together have in common."""
    return len(query.vector), "kappa" in query.model_fields_set, query.novelty is not None


def _each(
    search: Search, learner: "sf.MetricLearner | None", queries: list[Query]
) -> list[dict[str, Any]]:
    """Search with all; if one of them cannot be used, with each alone."""
    try:
        answers = search(_embedded(learner, queries), groups=[q.group for q in queries])
    except InputError as error:
        if len(queries) == 1:
            return [{"error": str(error)}]
        return [_each(search, learner, [query])[0] for query in queries]
    return [{"stale": answers.stale} | record for record in answers.records()]


def _embedded(learner: "sf.MetricLearner | None", queries: list[Query]) -> "sf.Embeddings":
    rows = np.array([q.vector for q in queries])
    if learner is not None and "kappa" not in queries[0].model_fields_set:
        return learner.embed(rows.astype(np.float32)).numpy()
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.all():
        raise InputError("vector is zero and has no direction.", field="vector")
    kappa = np.array([np.inf if q.kappa is None else q.kappa for q in queries])
    known = None if queries[0].novelty is None else np.array([q.novelty for q in queries])
    return sf.Embeddings((rows / lengths).astype(np.float32), kappa, known)
