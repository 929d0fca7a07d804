"""Search by image or by vector: the answer, its probability, how sure it is, why, and the neighbours."""

import functools
from typing import Annotated, Any

from fastapi import APIRouter, File, Query, Request, Response, UploadFile
from pydantic import ValidationError
from pydantic_core import to_json

from surefind.apps.service import querying
from surefind.apps.service.messages import SearchAnswer, VectorSearch
from surefind.apps.service.problems import described, invalid_sentence
from surefind.apps.service.settings import WRITE, Allowed, allowed
from surefind.apps.service.state import AtDesk, Desk, desk_of
from surefind.errors import RefusedError

router = APIRouter(
    prefix="/v1/search",
    tags=["search"],
    responses=described(400, 401, 403, 408, 409, 413, 422, 429, 503, 504),
)


@router.post(
    "/vector",
    response_model=SearchAnswer,
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": VectorSearch.model_json_schema()}},
        }
    },
)
async def search_vectors(request: Request) -> Response:
    """Search with vectors of length 1, each with its κ if that is known."""
    # The busiest door: its body is read in one pass, without the general machinery for parameters.
    desk, found = await desk_of(request), await allowed(request)
    try:
        body = VectorSearch.model_validate_json(await request.body())
    except ValidationError as error:
        raise RefusedError(422, invalid_sentence(error.errors())) from error
    most = desk.settings.max_queries
    if len(body.vectors) > most:
        raise RefusedError(422, f"a request may hold {most} vectors at most.")
    kappa = body.kappa if body.kappa is not None else [None] * len(body.vectors)
    if len(kappa) != len(body.vectors) or len({len(v) for v in body.vectors}) > 1:
        raise RefusedError(422, "give vectors of one length, and one kappa for each.")
    query = querying.Query(body.vectors, kappa, body.k)
    return await _answer(desk, query, keep=body.keep and found == WRITE, image=None)


@router.post("/image", response_model=SearchAnswer, responses=described(415))
async def search_image(
    file: Annotated[UploadFile, File(description="PNG, JPEG, WebP, GIF or BMP.")],
    desk: AtDesk,
    found: Allowed,
    k: Annotated[int, Query(ge=1, le=100)] = 10,
    keep: Annotated[bool, Query(description="Let an unsure query wait for a person.")] = True,
) -> Response:
    """Search with an image; of an animation, its first frame counts."""
    data = await file.read()
    embedding = await desk.embed(data)
    query = querying.Query(embedding.mean.tolist(), embedding.kappa.tolist(), k)
    return await _answer(desk, query, keep=keep and found == WRITE, image=data)


async def _answer(
    desk: Desk, query: querying.Query, *, keep: bool, image: bytes | None
) -> Response:
    reply = await desk.search(query)
    for answer, vector in zip(reply.answers, reply.vectors, strict=True):
        desk.metrics.decision(answer["decision"])
        unsure = answer["decision"] == "review" and keep
        if unsure and len(desk.reviews) < desk.settings.max_reviews:
            answer["review"] = await desk.work(
                functools.partial(_ask, desk, answer | {"vector": vector.tolist()}, image)
            )
    if image is not None:
        reply.answers[0]["vector"] = reply.vectors[0].tolist()
    body = {"answers": reply.answers, "rank": reply.rank, "stale": reply.stale}
    # pydantic's encoder is four times as fast as json's; what it writes was made here and is not checked.
    return Response(to_json(body), media_type="application/json")


def _ask(desk: Desk, answer: dict[str, Any], image: bytes | None) -> str:
    shown = {key: value for key, value in answer.items() if key != "review"}
    top = {key: answer["neighbours"][0][key] for key in ("id", "label")}
    id_ = desk.reviews.ask(shown | {"top": top, "image": image is not None})
    if image is not None:
        desk.thumbnails.keep(f"review:{id_}", desk.picture(image))
    return id_
