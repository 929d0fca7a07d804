"""Search by image or by vector, and which answers wait for a person.

An answer has the most probable label, the probability that it is right, a decision and why, how sure the
query is, what else it may be, and the items that speak for it; their payloads where they are asked for.
Where the decision is "review", the query waits until a person confirms or corrects the label. So does a
random share of all queries, whatever was decided (`surefind.gallery.review_sample`).

    keep       doubtful queries wait     sampled ones wait
    true       with a write token        always
    null       never                     always
    false      never                     never

With ``labels`` they alone are possible, for the items and for the query too (`surefind.Gallery.search`).
Such queries are neither watched nor sampled, for they are not drawn like those to come.
"""

import functools
import hashlib
import json
import time
from contextlib import suppress
from typing import Annotated, Any

from fastapi import File, Query, Request, Response, UploadFile
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from surefind.errors import SurefindError
from surefind.gallery.records import Label
from surefind.service import batching, wire
from surefind.service.guard import client_of
from surefind.service.images import INSPECTED
from surefind.service.problems import described, invalid_sentence
from surefind.service.routes import (
    Allowed,
    State,
    allowed,
    body_described,
    guarded_router,
    json_body,
    state_of,
)
from surefind.service.settings import WRITE, Caller
from surefind.service.state import AppState
from surefind.service.wire import RefusedError

LIGHT = 256
"""Neighbours in an answer that is written on the event loop."""
KEPT = 10
"""Neighbours of which a review keeps the ids."""
Upload = Annotated[UploadFile, File(description="PNG, JPEG, WebP, GIF or BMP.")]
AskedLabels = Annotated[
    list[str] | None,
    Query(max_length=100, description="Of the items; JSON, or a plain text. May be repeated."),
]


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


router = guarded_router("/v1/search", "search")
read_search = json_body(wire.VectorSearch)


async def search_vectors(request: Request) -> Response:
    """Search with vectors of length 1, each with its κ and its novelty if they are known."""
    state, found = await state_of(request), await allowed(request)
    body = await read_search(request)
    state.buckets.wait(client_of(request.scope), time.monotonic(), len(body.vectors) - 1, owe=True)
    query = batching.Query(
        body.vectors,
        body.kappa if body.kappa is not None else [None] * len(body.vectors),
        body.k,
        body.novelty,
        body.watch,
        None if body.labels is None else tuple(body.labels),
        body.payload,
    )
    return await _answer(state, query, found, keep=body.keep, image=None)


busiest = APIRoute(
    f"{router.prefix}/vector",
    search_vectors,
    methods=["POST"],
    tags=[*router.tags],
    response_model=wire.SearchAnswer,
    responses=router.responses,
    openapi_extra=body_described(wire.VectorSearch),
)
router.routes.append(busiest)


@router.post("/image", response_model=wire.SearchAnswer, responses=described(415))
async def search_image(
    file: Upload,
    state: State,
    found: Allowed,
    k: Annotated[int, Query(ge=1, le=100)] = 10,
    keep: Annotated[bool, Query(description=wire.KEPT)] = True,
    watch: Annotated[bool, Query(description=wire.WATCHED)] = True,
    label: AskedLabels = None,
    payload: Annotated[bool, Query(description=wire.PAYLOADS)] = False,
) -> Response:
    """Search with an image; of an animation, its first frame counts."""
    only, data = asked_labels(label), await file.read()
    embedding = await state.embed(data)
    novelty = None if embedding.novelty is None else embedding.novelty.tolist()
    vectors, kappa = embedding.mean.tolist(), embedding.kappa.tolist()
    query = batching.Query(vectors, kappa, k, novelty, watch, only, payload)
    return await _answer(state, query, found, keep=keep, image=data)


async def _answer(
    state: AppState,
    query: batching.Query,
    found: Caller,
    *,
    keep: bool | None,
    image: bytes | None,
) -> Response:
    reply = await state.search(query)
    for answer, vector in zip(reply.answers, reply.vectors, strict=True):
        state.metrics.decision(answer["decision"])
        share = state.settings.review_share
        u = float(state.draws.random()) if share else 1.0
        sampled = keep is not False and query.labels is None and u < share
        unsure = answer["decision"] == "review" and keep is True and found.scope == WRITE
        if sampled or unsure:
            drawn = {"sampled": sampled, "u": u, "share": share, "model": state.gallery.model}
            try:
                ask = functools.partial(_ask, state, answer | drawn, vector, image)
                answer["review"] = await state.work(ask)
            except (SurefindError, OSError) as error:  # the answer is there, and is not withheld
                state.metrics.failed("review", error)
            answer["dropped"] = answer["review"] is None
    if image is not None:
        reply.answers[0]["vector"] = reply.vectors[0].tolist()
    # pydantic's encoder is four times as fast as json's; what it writes was made here and is not checked.
    write = functools.partial(to_json, {"answers": reply.answers, "stale": reply.stale})
    light = query.k * len(reply.answers) <= LIGHT and not query.payload
    return Response(write() if light else await state.work(write), media_type="application/json")


def _ask(state: AppState, answer: dict[str, Any], vector: Any, image: bytes | None) -> str | None:
    """Let a query wait, itself or counted on the same one; return where, None if there is no room."""
    question = {key: value for key, value in answer.items() if key not in ("review", "dropped")}
    question |= {
        "vector": vector,
        "image": image is not None,
        "neighbours": [{"id": n["id"], "score": n["score"]} for n in answer["neighbours"][:KEPT]],
    }
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
