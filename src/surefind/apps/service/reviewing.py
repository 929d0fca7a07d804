"""The review queue over HTTP: what waits, and what people say about it."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Response

from surefind.apps.service.items import picture_response
from surefind.apps.service.messages import DecidedView, ReviewList, ReviewView, Verdicts
from surefind.apps.service.problems import described
from surefind.apps.service.settings import allowed, may_write
from surefind.apps.service.state import AtDesk
from surefind.errors import InputError, RefusedError

router = APIRouter(
    prefix="/v1/reviews",
    tags=["reviews"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 429, 503, 504),
)


@router.get("")
async def list_reviews(desk: AtDesk, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> ReviewList:
    """List what waits for a person, the oldest first, and the latest decisions."""
    pending = await desk.work(desk.reviews.pending)
    decided = (await desk.work(desk.reviews.decided))[-limit:]
    return ReviewList(
        total=len(pending),
        pending=[ReviewView.model_validate(entry) for entry in pending[:limit]],
        decided=[DecidedView.model_validate(entry) for entry in decided],
    )


@router.get("/{id}/image", response_class=Response)
async def review_image(id: Annotated[str, Path(max_length=64)], desk: AtDesk) -> Response:
    """Give a small picture of a query that waits, as WebP."""
    return picture_response(await desk.work(lambda: desk.thumbnails.read(f"review:{id}")))


@router.post("", status_code=201, dependencies=[Depends(may_write)])
async def decide(body: Verdicts, desk: AtDesk) -> DecidedView:
    """Accept (the top answer is right), reject (not in the gallery) or relabel (it is another one)."""

    def keep() -> dict[str, Any]:
        if desk.reviews.asked(body.id) is None:
            raise RefusedError(404, "no such query waits for a person.")
        try:
            return desk.reviews.decide(body.id, body.verdict, body.label)
        except InputError as error:
            raise RefusedError(
                422 if body.verdict == "relabel" and body.label is None else 409, str(error)
            ) from error

    if body.verdict == "relabel" and body.label is not None:
        _require_label(body.label, (await desk.list(desk.catalogues.now)).labels)
    return DecidedView.model_validate(await desk.work(keep))


def _require_label(label: Any, known: frozenset[Any]) -> None:
    if label not in known:
        raise RefusedError(
            422,
            "no item of the gallery has this label. Reject the query, or add an item with the label.",
        )
