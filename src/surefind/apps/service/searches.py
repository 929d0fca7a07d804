"""Search by image or by vector, and the review of answers that were not sure enough.

An answer has the most probable label, the probability that it is right, a decision and why, how sure the
query is, what else it may be, and the items that speak for it. Where the decision is "review", the query
waits until a person confirms or corrects the label. So does a random share of all queries, whatever was
decided (`surefind.gallery.review_sample`).

    keep       doubtful queries wait     sampled ones wait
    true       with a write token        always
    null       never                     always
    false      never                     never
"""

import functools
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import to_json

from surefind.apps.service import batching
from surefind.apps.service import messages as wire
from surefind.apps.service.bodies import body_described, json_body
from surefind.apps.service.items import Upload, picture_response
from surefind.apps.service.problems import described
from surefind.apps.service.routes import GuardedRoute
from surefind.apps.service.settings import WRITE, Allowed, allowed, may_write
from surefind.apps.service.state import AppState, State, state_of
from surefind.errors import InputError, RefusedError, SurefindError

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


class RequestRoute(APIRoute):
    """A route whose endpoint takes the request as it is.

    Solving dependencies costs more than a tenth of a search by vector, the busiest endpoint, so that one
    calls the functions itself that others depend on.
    """

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the endpoint itself."""
        return self.endpoint


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
    return await _answer(state, query, found, keep=body.keep, image=None)


router.add_api_route(
    "/vector",
    search_vectors,
    methods=["POST"],
    response_model=wire.SearchAnswer,
    openapi_extra=body_described(wire.VectorSearch),
    route_class_override=RequestRoute,
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
) -> Response:
    """Search with an image; of an animation, its first frame counts."""
    data = await file.read()
    embedding = await state.embed(data)
    novelty = None if embedding.novelty is None else embedding.novelty.tolist()
    query = batching.Query(embedding.mean.tolist(), embedding.kappa.tolist(), k, novelty, watch)
    return await _answer(state, query, found, keep=keep, image=data)


@reviews.get("")
async def list_reviews(
    state: State, limit: Annotated[int, Query(ge=1, le=200)] = 50
) -> wire.ReviewList:
    """List what waits for a person, the oldest first, and the latest decisions."""
    pending = await state.work(state.reviews.pending)
    decided = (await state.work(state.reviews.decided))[-limit:]
    return wire.ReviewList(
        total=len(pending),
        pending=[wire.ReviewView.model_validate(entry) for entry in pending[:limit]],
        decided=[wire.DecidedView.model_validate(entry) for entry in decided],
    )


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
async def decide(body: Verdict, state: State) -> wire.DecidedView:
    """Accept (the answered label is right), reject (not in the gallery) or relabel (it is another one)."""
    relabelled = body.verdict == "relabel"

    def keep() -> dict[str, Any]:
        if state.reviews.asked(body.id) is None:
            raise RefusedError(404, "no such query waits for a person.")
        try:
            return state.reviews.decide(body.id, body.verdict, body.label)
        except InputError as error:
            status = 422 if relabelled and body.label is None else 409
            raise RefusedError(status, str(error)) from error

    if relabelled and body.label is not None:
        known = (await state.list(state.catalogue)).labels
        if body.label not in known:
            advice = "Reject the query, or add an item with the label."
            raise RefusedError(422, f"no item of the gallery has this label. {advice}")
    return wire.DecidedView.model_validate(await state.work(keep))


async def _answer(
    state: AppState, query: batching.Query, found: int, *, keep: bool | None, image: bytes | None
) -> Response:
    reply = await state.search(query)
    for answer, vector in zip(reply.answers, reply.vectors, strict=True):
        state.metrics.decision(answer["decision"])
        drawn = _drawn(state)
        sampled = keep is not False and drawn["sampled"]
        unsure = answer["decision"] == "review" and keep is True and found == WRITE
        room = state.reviews.waiting(sampled=sampled) < state.settings.max_reviews
        if room and (sampled or unsure):
            question = answer | drawn | {"vector": vector.tolist()}
            try:
                answer["review"] = await state.work(functools.partial(_ask, state, question, image))
            except (SurefindError, OSError) as error:  # the answer is there, and is not withheld
                state.metrics.review_failed(error)
    if image is not None:
        reply.answers[0]["vector"] = reply.vectors[0].tolist()
    body = {"answers": reply.answers, "rank": reply.rank, "stale": reply.stale}
    # pydantic's encoder is four times as fast as json's; what it writes was made here and is not checked.
    return Response(to_json(body), media_type="application/json")


def _drawn(state: AppState) -> dict[str, Any]:
    """Draw whether a query is sampled, knowing nothing about it."""
    u, share = float(state.draws.random()), float(state.settings.review_share)
    return {"sampled": u < share, "u": u, "share": share, "model": state.gallery.model}


def _ask(state: AppState, answer: dict[str, Any], image: bytes | None) -> str:
    shown = {key: value for key, value in answer.items() if key != "review"}
    if image is None:
        return state.reviews.ask(shown | {"image": False})
    with state.review_thumbnails.staged(state.picture(image)) as place:
        id_ = state.reviews.ask(shown | {"image": True})
        place(id_)
    return id_
