"""Search by image or by vector, and which answers wait for a person.

An answer has the most probable label, the probability that it is right, a decision and why, how sure the
query is, what else it may be, and the items that speak for it. Where the decision is "review", the query
waits until a person confirms or corrects the label. So does a random share of all queries, whatever was
decided (`surefind.gallery.review_sample`).

    keep       doubtful queries wait     sampled ones wait
    true       with a write token        always
    null       never                     always
    false      never                     never

A search may be **filtered**: only items with certain labels, or with certain values in their payload.

    labels                      the item's label is one of these
    where {"site": "north"}     payload["site"] is "north"
    where {"year": [7, 8]}      payload["year"] is 7 or 8

**With labels** a search decides: they alone are possible for the query too (`surefind.Gallery.search`).
Such queries are neither watched nor sampled, for they are not drawn like those to come.

**With where** all conditions must hold. Values are strings, numbers, true, false or null, and equal only to
their own kind: 1 is neither "1" nor true. A key that a payload does not have equals nothing, not even null.
Keys are names at the top of a payload, never paths or patterns, so a filter cannot ask for more than a
lookup.

Such a search decides nothing: the evidence about labels is that of all items, and knows nothing of their
payloads. So label, probability and decision are null, with a reason, and its queries are neither watched
nor reviewed. It reads every item, and so is exact, and takes time in proportion to the gallery; past the
time limit it ends, so that nobody waits for what nobody gets.
"""

import functools
import hashlib
import heapq
import json
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, File, Query, Request, Response, UploadFile
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from surefind.embeddings import kappa_from_json, kappa_to_json
from surefind.errors import SurefindError
from surefind.gallery.gallery import Gallery
from surefind.gallery.records import Item, Label, exact_gaps
from surefind.service import batching, wire
from surefind.service.batching import HasPicture, Reply, unit_vectors
from surefind.service.images import INSPECTED
from surefind.service.problems import described, invalid_sentence
from surefind.service.routes import (
    Allowed,
    GuardedRoute,
    PlainRoute,
    State,
    allowed,
    body_described,
    json_body,
    state_of,
)
from surefind.service.settings import WRITE, Caller
from surefind.service.state import AppState
from surefind.service.wire import RefusedError

REASON = "filtered: payloads are no evidence about labels, so nothing is decided"
BLOCK = 512
"""Items compared at a time."""
Upload = Annotated[UploadFile, File(description="PNG, JPEG, WebP, GIF or BMP.")]
AskedWhere = Annotated[
    str | None,
    Query(max_length=8192, description='JSON, as {"site": "north", "year": [7, 8]}.'),
]
AskedLabels = Annotated[
    list[str] | None,
    Query(max_length=100, description="Of the items; JSON, or a plain text. May be repeated."),
]


@dataclass(frozen=True)
class Filter:
    """Which items to look at.

    Attributes:
        labels: Those that an item may have; None for any.
        where: For keys of the payload, the values that each may have, told apart by kind.
    """

    labels: frozenset[Label] | None
    where: tuple[tuple[str, frozenset[Any]], ...]

    def admits(self, item: Item) -> bool:
        """Return whether to look at an item."""
        if self.labels is not None and item.label not in self.labels:
            return False
        own = item.payload or {}
        return all(key in own and _kind(own[key]) in values for key, values in self.where)


def read_filter(where: dict[str, Any] | None, labels: Sequence[Label] | None) -> Filter:
    """Return the filter of a request."""
    conditions = [
        (key, frozenset(map(_kind, value if isinstance(value, list) else [value])))
        for key, value in (where or {}).items()
    ]
    return Filter(None if labels is None else frozenset(labels), tuple(conditions))


def asked_labels(label: list[str] | None) -> tuple[Label, ...] | None:
    """Read the labels of a query string."""
    return None if label is None else tuple(read_form(text, wire.ItemLabel) for text in label)


def read_json(text: str | None, kind: Any, name: str) -> Any:
    """Read a field of a query string or a form that is JSON."""
    try:
        return None if text is None else TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        raise RefusedError(422, f"{name}: {invalid_sentence(error.errors())}") from error


def read_form(text: str | None, kind: Any) -> Any:
    """Read a field that is JSON if that is a number, a string or null, or else the text itself."""
    value: Any = text
    with suppress(ValueError, RecursionError):
        read = json.loads(text or "")
        value = read if read is None or type(read) in (int, str) else text
    return read_json(None if value is None else json.dumps(value), kind, "field")


router = APIRouter(
    prefix="/v1/search",
    tags=["search"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 408, 409, 413, 422, 429, 503, 504),
    route_class=GuardedRoute,
)
read_search = json_body(wire.VectorSearch)


async def search_vectors(request: Request) -> Response:
    """Search with vectors of length 1, each with its κ and its novelty if they are known."""
    state, found = await state_of(request), await allowed(request)
    body = await read_search(request)
    kappa = body.kappa if body.kappa is not None else [None] * len(body.vectors)
    only = None if body.labels is None else tuple(body.labels)
    query = batching.Query(body.vectors, kappa, body.k, body.novelty, body.watch, only)
    return await _answer(state, query, found, body.where, keep=body.keep, image=None)


# The busiest endpoint: solving dependencies would cost as much as a search.
router.routes.append(
    PlainRoute(
        f"{router.prefix}/vector",
        search_vectors,
        methods=["POST"],
        tags=[*router.tags],
        response_model=wire.SearchAnswer,
        responses=router.responses,
        openapi_extra=body_described(wire.VectorSearch),
    )
)


@router.post("/image", response_model=wire.SearchAnswer, responses=described(415))
async def search_image(
    file: Upload,
    state: State,
    found: Allowed,
    k: Annotated[int, Query(ge=1, le=100)] = 10,
    keep: Annotated[
        bool, Query(description="Let it wait for a person if it is unsure or sampled.")
    ] = True,
    watch: Annotated[bool, Query(description=wire.WATCHED)] = True,
    where: AskedWhere = None,
    label: AskedLabels = None,
) -> Response:
    """Search with an image; of an animation, its first frame counts."""
    only, conditions = asked_labels(label), read_json(where, wire.Where, "where")
    data = await file.read()
    embedding = await state.embed(data)
    novelty = None if embedding.novelty is None else embedding.novelty.tolist()
    query = batching.Query(
        embedding.mean.tolist(), embedding.kappa.tolist(), k, novelty, watch, only
    )
    return await _answer(state, query, found, conditions, keep=keep, image=data)


async def _answer(
    state: AppState,
    query: batching.Query,
    found: Caller,
    where: dict[str, Any] | None,
    *,
    keep: bool | None,
    image: bytes | None,
) -> Response:
    if where is not None:
        return await _answer_filtered(state, query, read_filter(where, query.labels), image)
    reply = await state.search(query)
    for answer, vector in zip(reply.answers, reply.vectors, strict=True):
        state.metrics.decision(answer["decision"])
        answer["dropped"] = False
        drawn = _drawn(state)
        sampled = keep is not False and query.labels is None and drawn["sampled"]
        unsure = answer["decision"] == "review" and keep is True and found.scope == WRITE
        if sampled or unsure:
            question = answer | drawn | {"vector": vector.tolist(), "sampled": sampled}
            try:
                answer["review"] = await state.work(functools.partial(_ask, state, question, image))
            except (SurefindError, OSError) as error:  # the answer is there, and is not withheld
                state.metrics.review_failed(error)
            answer["dropped"] = answer["review"] is None
    return _sent(reply, image)


async def _answer_filtered(
    state: AppState, query: batching.Query, chosen: Filter, image: bytes | None
) -> Response:
    has_picture, seconds = state.thumbnails.has, state.settings.seconds
    reply = await state.list(
        lambda: search_filtered(state.gallery, has_picture, query, chosen, seconds)
    )
    for answer in reply.answers:
        answer["dropped"] = False
        state.metrics.decision("filtered")
    return _sent(reply, image)


def _sent(reply: batching.Reply, image: bytes | None) -> Response:
    if image is not None:
        reply.answers[0]["vector"] = reply.vectors[0].tolist()
    body = {"answers": reply.answers, "stale": reply.stale}
    # pydantic's encoder is four times as fast as json's; what it writes was made here and is not checked.
    return Response(to_json(body), media_type="application/json")


def _drawn(state: AppState) -> dict[str, Any]:
    """Draw whether a query is sampled, knowing nothing about it."""
    u, share = float(state.draws.random()), float(state.settings.review_share)
    return {"sampled": u < share, "u": u, "share": share, "model": state.gallery.model}


def _ask(state: AppState, answer: dict[str, Any], image: bytes | None) -> str | None:
    """Let a query wait, itself or counted on the same one; return where, None if there is no room."""
    question = {key: value for key, value in answer.items() if key not in ("review", "dropped")}
    question["image"] = image is not None
    if image is not None:
        question["image_sign"] = hashlib.blake2b(image, digest_size=16).hexdigest()
    sampled = question["sampled"]
    folded = None if sampled else state.reviews.fold(question)
    if folded is not None:
        return folded
    if state.reviews.waiting(sampled=sampled) >= state.settings.max_reviews:
        state.reviews.dropped += 1
        return None
    if image is None:
        return state.reviews.ask(question)
    with state.review_thumbnails.staged(state.picture(image, INSPECTED)) as place:
        id_ = state.reviews.ask(question)
        place(id_)
    return id_


def search_filtered(
    gallery: Gallery,
    has_picture: HasPicture,
    query: batching.Query,
    chosen: Filter,
    seconds: float,
) -> Reply:
    """Find the nearest items that a filter admits, within some seconds, and decide nothing."""
    vectors = unit_vectors(gallery, query.vectors)
    kappa = np.array([kappa_from_json(value) for value in query.kappa])
    p_values: Sequence[float | None] = query.novelty or [None] * len(vectors)
    found = _nearest(gallery, vectors, query.k, chosen, time.monotonic() + seconds)
    answers = [
        {
            **dict.fromkeys(("label", "none", "decision", "probability", "vector", "review")),
            "label_probability": [],
            "reasons": [REASON],
            "kappa": kappa_to_json(float(own)),
            "novelty": novelty,
            "neighbours": [_neighbour(gap, item, has_picture) for gap, item in near],
        }
        for near, own, novelty in zip(found, kappa, p_values, strict=True)
    ]
    return Reply(answers, vectors, stale=False)


def _nearest(
    gallery: Gallery, vectors: np.ndarray, k: int, chosen: Filter, deadline: float
) -> list[list[tuple[float, Item]]]:
    """Return 1 - cosine and item of the k nearest that are admitted, for each query, nearest first."""
    best: list[list[tuple[float, Item]]] = [[] for _ in vectors]
    every = gallery.items()
    while block := [*islice(every, BLOCK)]:
        if time.monotonic() > deadline:
            raise RefusedError(504, "the filtered search took too long; ask for fewer vectors.")
        items = [item for item in block if chosen.admits(item)]
        if not items:
            continue
        stacked = np.stack([item.vector for item in items])
        gaps = exact_gaps(vectors, np.broadcast_to(stacked, (len(vectors), *stacked.shape)))
        # Equal ones are ordered by id, so all that are as near as the k-th stay for now.
        limit = np.sort(gaps, axis=1)[:, min(k, len(items)) - 1]
        for row, (own, most) in enumerate(zip(gaps, limit, strict=True)):
            near = [(float(own[c]), items[c]) for c in np.flatnonzero(own <= most)]
            best[row] = _smallest(k, [*best[row], *near])
    return best


def _smallest(k: int, pairs: Iterable[tuple[float, Item]]) -> list[tuple[float, Item]]:
    return heapq.nsmallest(k, pairs, key=lambda p: (p[0], isinstance(p[1].id, str), p[1].id))


def _neighbour(gap: float, item: Item, has_picture: HasPicture) -> dict[str, Any]:
    return {
        "id": item.id,
        "label": item.label,
        "score": 1 - gap,
        "payload": item.payload,
        "image": has_picture(item.id, item.payload),
    }


def _kind(value: Any) -> Any:
    """Tell true from 1; lists and objects in a payload equal nothing."""
    if isinstance(value, list | dict):
        return (type(value), id(value))
    return (isinstance(value, bool), value)
