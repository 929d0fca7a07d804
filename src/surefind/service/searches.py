"""Search by image or by vector, and the review of answers that were not sure enough.

An answer has the most probable label, the probability that it is right, a decision and why, how sure the
query is, what else it may be, and the items that speak for it. Where the decision is "review", the query
waits until a person confirms or corrects the label. So does a random share of all queries, whatever was
decided (`surefind.gallery.calibration_queries`). A filtered search decides nothing
(`surefind.service.filters`).

    keep       doubtful queries wait     sampled ones wait
    true       with a write token        always
    null       never                     always
    false      never                     never
"""

import functools
import hashlib
from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from surefind.errors import InputError, SurefindError
from surefind.service import batching, wire
from surefind.service.bodies import body_described, json_body
from surefind.service.filters import Filter, read_filter, search_filtered
from surefind.service.images import INSPECTED
from surefind.service.items import (
    AskedLabels,
    AskedWhere,
    Upload,
    asked_filter,
    picture_response,
)
from surefind.service.problems import answer_to, described
from surefind.service.routes import GuardedRoute
from surefind.service.settings import WRITE, Allowed, Caller, allowed, may_write
from surefind.service.state import AppState, State, state_of
from surefind.service.wire import RefusedError

router = APIRouter(
    prefix="/v1/search",
    tags=["search"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 408, 409, 413, 422, 429, 503, 504),
    route_class=GuardedRoute,
)
reviews = APIRouter(
    prefix="/v1/reviews",
    tags=["reviews"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 429, 503, 504),
    route_class=GuardedRoute,
)
read_search = json_body(wire.VectorSearch)
Verdict = Annotated[wire.Verdicts, Depends(json_body(wire.Verdicts))]


class VectorDoor:
    """ASGI middleware that answers searches by vector, the busiest endpoint, itself.

    Ten layers of the framework lie between the last middleware and an endpoint, and solving dependencies,
    matching routes and two stacks of contexts cost as much as a search. What they do that is needed here is
    in `search_vectors`. The route stays, for the description and for whoever mounts the application
    elsewhere.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a search by vector, or pass a request on."""
        if scope.get("path") != VECTOR.path or scope.get("method") != "POST":
            await self._app(scope, receive, send)
            return
        scope["route"] = VECTOR  # which the log and the figures name
        try:
            response = await search_vectors(Request(scope, receive))
        except (HTTPException, SurefindError) as error:
            response = answer_to(error)
        await response(scope, receive, send)


async def search_vectors(request: Request) -> Response:
    """Search with vectors of length 1, each with its κ and its novelty if they are known."""
    state, found = await state_of(request), await allowed(request)
    body = await read_search(request)
    most = state.settings.max_queries
    if len(body.vectors) > most:
        raise RefusedError(422, f"a request may hold {most} vectors at most.")
    kappa = body.kappa if body.kappa is not None else [None] * len(body.vectors)
    if len(kappa) != len(body.vectors) or len({len(v) for v in body.vectors}) > 1:
        raise RefusedError(422, "give vectors of one length, and one kappa for each.")
    if body.novelty is not None and len(body.novelty) != len(body.vectors):
        raise RefusedError(422, "give one novelty for each vector, or none at all.")
    query = batching.Query(body.vectors, kappa, body.k, body.novelty, body.watch)
    chosen = read_filter(body.where, body.labels)
    if chosen is not None:
        return await _answer_filtered(state, query, chosen, image=None)
    return await _answer(state, query, found, keep=body.keep, image=None)


router.add_api_route(
    "/vector",
    search_vectors,
    methods=["POST"],
    response_model=wire.SearchAnswer,
    openapi_extra=body_described(wire.VectorSearch),
)
VECTOR: Any = router.routes[-1]
"""The route that `VectorDoor` stands in for."""


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
    chosen = asked_filter(where, label)
    data = await file.read()
    embedding = await state.embed(data)
    novelty = None if embedding.novelty is None else embedding.novelty.tolist()
    query = batching.Query(embedding.mean.tolist(), embedding.kappa.tolist(), k, novelty, watch)
    if chosen is not None:
        return await _answer_filtered(state, query, chosen, image=data)
    return await _answer(state, query, found, keep=keep, image=data)


@reviews.get("")
async def list_reviews(
    state: State,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=wire.LARGEST)] = 0,
    reason: Annotated[str | None, Query(max_length=64, description="Only those with it.")] = None,
    least: Annotated[float, Query(ge=0, le=1, description="Least probability.")] = 0,
    most: Annotated[float, Query(ge=0, le=1, description="Highest probability.")] = 1,
    sampled: Annotated[bool | None, Query(description="Random checks alone, or none.")] = None,
) -> wire.ReviewList:
    """List what waits for a person, the oldest first, and the latest decisions."""

    def read() -> wire.ReviewList:
        pending = state.reviews.pending()
        found = [
            entry
            for entry in pending
            if (reason is None or reason in map(reason_name, entry.get("reasons", ())))
            and least <= (entry.get("probability") or 0) <= most
            and (sampled is None or bool(entry.get("sampled")) == sampled)
        ]
        names = Counter(reason_name(name) for e in pending for name in e.get("reasons", ()))
        room = state.settings.max_reviews - state.reviews.waiting(sampled=False)
        shown, said = found[offset : offset + limit], state.reviews.history(limit)[::-1]
        return wire.ReviewList(
            total=len(pending),
            matching=len(found),
            reasons=dict(names),
            dropped=state.reviews.dropped,
            room=max(room, 0),
            pending=[wire.ReviewView.model_validate(entry) for entry in shown],
            decided=[wire.DecidedView.model_validate(entry) for entry in said],
        )

    return await state.work(read)


def reason_name(reason: str) -> str:
    """Return a reason without what it says about one query: what competes, or a p-value."""
    return reason.partition(": ")[0].partition(" (p ")[0]


@reviews.get("/{id}/image", response_class=Response)
async def review_image(id: Annotated[str, Path(max_length=64)], state: State) -> Response:
    """Return a small picture of a query that waits, as WebP."""
    return picture_response(await state.work(lambda: state.review_thumbnails.read(id)))


@reviews.post(
    "",
    status_code=201,
    dependencies=[Depends(may_write)],
    openapi_extra=body_described(wire.Verdicts),
)
async def decide(body: Verdict, state: State, found: Allowed) -> wire.DecidedView:
    """Accept (the answered label is right), reject (not in the gallery) or relabel (it is another one)."""
    relabelled = body.verdict == "relabel"

    def keep() -> dict[str, Any]:
        if state.reviews.asked(body.id) is None:
            raise RefusedError(404, "no such query waits for a person.")
        try:
            return state.reviews.decide(
                body.id, body.verdict, body.label, by=found.name, reviewer=body.reviewer
            )
        except InputError as error:
            status = 422 if relabelled and body.label is None else 409
            raise RefusedError(status, str(error)) from error

    unknown = relabelled and body.label is not None
    if unknown and body.label not in await state.work(state.gallery.labels):
        advice = "Reject the query, or add an item with the label."
        raise RefusedError(422, f"no item of the gallery has this label. {advice}")
    return wire.DecidedView.model_validate(await state.work(keep))


async def _answer(
    state: AppState, query: batching.Query, found: Caller, *, keep: bool | None, image: bytes | None
) -> Response:
    reply = await state.search(query)
    for answer, vector in zip(reply.answers, reply.vectors, strict=True):
        state.metrics.decision(answer["decision"], answer["gate"])
        answer["dropped"] = False
        drawn = _drawn(state)
        sampled = keep is not False and drawn["sampled"]
        unsure = answer["decision"] == "review" and keep is True and found.leave == WRITE
        if sampled or unsure:
            question = answer | drawn | {"vector": vector.tolist(), "sampled": sampled}
            try:
                answer["review"] = await state.work(functools.partial(_ask, state, question, image))
            except (SurefindError, OSError) as error:  # the answer is there, and is not withheld
                state.metrics.review_failed(error)
            answer["dropped"] = answer["review"] is None
    return _sent(reply, image)


async def _answer_filtered(
    state: AppState, query: batching.Query, chosen: Filter, *, image: bytes | None
) -> Response:
    has_picture, seconds = state.thumbnails.has, state.settings.seconds
    reply = await state.list(
        lambda: search_filtered(state.gallery, has_picture, query, chosen, seconds)
    )
    for answer in reply.answers:
        answer["dropped"] = False
        state.metrics.decision("filtered", answer["gate"])
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
