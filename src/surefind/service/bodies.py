"""JSON bodies: small ones are read on the event loop, large ones in a thread and piece by piece.

A reader of JSON holds Python's lock until it is done, in a thread as well as on the event loop, so that a
thread alone would let nobody else work: 10 MB take a second. A body above `SMALL` bytes is therefore cut
first, where its message has a long list (``items``, ``vectors``), and each element is read by itself. What
must be read at once, an element or all the rest, may have `PIECE` bytes, so nobody waits for longer than
that takes, some ten milliseconds.

Cutting follows brackets and strings only. What is cut is still checked to be JSON: every element by itself,
the commas between them, and the rest with the first element in its place.
"""

import functools
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, get_args

import numpy as np
from fastapi import Request
from pydantic import BaseModel, TypeAdapter, ValidationError

from surefind.service.problems import invalid_sentence
from surefind.service.state import AppState
from surefind.service.wire import Message, RefusedError

M = TypeVar("M", bound=Message)

SMALL = 2**16
"""Bytes that are read on the event loop, in a millisecond or two."""

PIECE = 2**19
"""Bytes that are read at once: a vector of the longest kind, written with all its digits, and a payload."""

FIELDS, SPACE = 64, 256
"""Lists and objects that a message may have at its first level, and bytes around the name of each."""

QUOTE = ord('"')
STEPS = np.zeros(256, dtype=np.int8)
STEPS[[*b'[{"]}']] = 1, 1, 2, -1, -1
"""What a byte does to the depth; a quote is told from others only."""


def json_body(kind: type[M]) -> Callable[[Request], Coroutine[Any, Any, M]]:
    """Return a dependency that reads a message of a kind from a request's body."""

    async def read(request: Request) -> M:
        state: AppState = request.app.state.service
        body = await request.body()
        if len(body) <= SMALL:
            return _read(kind, body)
        return await state.work(functools.partial(read_large, kind, body))

    return read


def body_described(kind: type[Message]) -> dict[str, Any]:
    """Describe a body for OpenAPI."""
    schema = kind.model_json_schema()
    inner = schema.pop("$defs", {})
    text = json.dumps(schema)
    for name, definition in inner.items():
        text = text.replace(json.dumps({"$ref": f"#/$defs/{name}"}), json.dumps(definition))
    content = {"application/json": {"schema": json.loads(text)}}
    return {"requestBody": {"required": True, "content": content}}


def read_large(kind: type[M], body: bytes) -> M:
    """Read a message piece by piece, so that other threads get their turn in between."""
    name = kind.long_list
    if name is None:
        _check_size([body])
        return _read(kind, body)
    field = kind.model_fields[name]
    most = next((m.max_length for m in field.metadata if hasattr(m, "max_length")), None)
    start, stop, pieces = _cut(body, name, most)
    first = pieces[:1]
    rest = b"".join([body[:start], *first, body[stop:]])
    _check_size([*pieces, rest[: len(rest) - sum(map(len, first))]])
    message = _read(kind, rest)
    element, read = TypeAdapter(get_args(field.annotation)[0]), []
    for number, piece in enumerate(pieces):
        try:
            one = element.validate_json(piece)
        except ValidationError as error:
            raise _invalid(error, name, number) from error
        # Numbers go into an array here: all of them at once would be a long piece of work.
        read.append(one if isinstance(one, BaseModel) else np.array(one))
    return message.model_copy(update={name: read})


def _read(kind: type[M], body: bytes) -> M:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from error


def _cut(body: bytes, name: str, most: int | None) -> tuple[int, int, list[bytes]]:
    """Find the elements of the list that a JSON object has under a name; return its ends and them."""
    places, depth = _brackets(body)
    opening = np.diff(depth, prepend=0) > 0
    own = [
        at
        for at in np.flatnonzero((depth == 2) & opening)[:FIELDS].tolist()
        if _named(body[max(int(places[at]) - SPACE, 0) : int(places[at])], name)
    ]
    inside = depth[own[0] + 1 :] if len(own) == 1 else depth[:0]
    if not (inside < 2).any():
        raise RefusedError(422, f"body: it is no JSON object with one list of {name}.")
    stop = int(np.argmax(inside < 2))
    inside, within = inside[:stop], places[own[0] + 1 :]
    start, end, within = int(places[own[0]]) + 1, int(within[stop]), within[:stop]
    begins = within[(inside == 3) & (np.diff(inside, prepend=2) > 0)]
    ends = within[inside == 2] + 1
    if len(begins) != len(ends) or not 0 < len(ends) <= (most or len(ends)):
        raise RefusedError(422, f"{name}: it is no list of {most or 'some'} elements at most.")
    pieces, last = list[bytes](), start
    for begin, after in zip(begins.tolist(), ends.tolist(), strict=True):
        if body[last:begin].strip() != (b"," if pieces else b""):
            break
        pieces.append(body[begin:after])
        last = after
    if len(pieces) < len(ends) or body[last:end].strip():
        raise RefusedError(422, f"{name}: its elements are no JSON.")
    return start, end, pieces


def _named(before: bytes, name: str) -> bool:
    """Return whether a value begins behind this that has the name."""
    key = before.rstrip()
    return key.endswith(b":") and key[:-1].rstrip().endswith(json.dumps(name).encode())


def _brackets(body: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return where brackets are that belong to no string, and how deep it is behind each."""
    plain = body.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    text = np.frombuffer(plain, dtype=np.uint8)
    places = np.flatnonzero(STEPS[text] != 0)
    kinds = text[places]
    outside = np.cumsum(kinds == QUOTE) % 2 == 0
    places = places[outside & (kinds != QUOTE)]
    return places, np.cumsum(STEPS[text[places]], dtype=np.int64)


def _check_size(pieces: list[bytes]) -> None:
    if max(map(len, pieces)) > PIECE:
        raise RefusedError(413, f"a single vector or item may have {PIECE:,} bytes at most.")


def _invalid(error: ValidationError, *place: str | int) -> RefusedError:
    found = error.errors(include_input=False, include_url=False)
    return RefusedError(422, invalid_sentence([e | {"loc": (*place, *e["loc"])} for e in found]))
