"""Calibrate again while serving, with reviewed queries or from the gallery's own items.

Reviewed queries are a random share of all, and people have said what they are.

It is made on a copy of the gallery, so searches wait for moments only, and use it from then on; none is
answered half by the old one. A calibration that cannot be made leaves the old one in place.
"""

from typing import Annotated

from fastapi import APIRouter, Depends

from surefind.errors import InputError
from surefind.service import wire
from surefind.service.bodies import body_described, json_body
from surefind.service.problems import described
from surefind.service.reviews import read_reviews
from surefind.service.routes import GuardedRoute
from surefind.service.settings import allowed, may_write
from surefind.service.state import AppState, State
from surefind.service.wire import RefusedError

router = APIRouter(
    tags=["reviews"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 408, 409, 413, 422, 429, 503, 504),
    route_class=GuardedRoute,
)
Recalibration = Annotated[wire.Recalibration, Depends(json_body(wire.Recalibration))]


@router.get("/v1/reviews/sample")
async def sample(state: State) -> wire.SampleView:
    """Count the reviewed random checks that a calibration may use, and those that are needed."""
    counts = await state.work(state.reviews.counts)
    return wire.SampleView(
        share=state.settings.review_share,
        usable=counts.usable,
        waiting=counts.waiting,
        needed=state.gallery.info["reviews_needed"],
        summary=counts.summary,
    )


@router.post(
    "/v1/calibration",
    dependencies=[Depends(may_write)],
    openapi_extra=body_described(wire.Recalibration),
)
async def recalibrate(body: Recalibration, state: State) -> wire.Recalibrated:
    """Calibrate again with reviewed random checks, for the same target, or from the gallery's items."""
    return await state.keep(lambda: _recalibrated(state, body))


def _recalibrated(state: AppState, body: wire.Recalibration) -> wire.Recalibrated:
    how = body.model_dump(exclude={"with_reviews", "from_items"}, exclude_none=True)
    try:
        reviewed = read_reviews(state.settings.folder) if body.with_reviews else None
        found = state.gallery.calibrate(reviews=reviewed, **how)
    except InputError as error:
        raise RefusedError(409, str(error)) from error
    state.renewer.changed()  # items may have been, meanwhile
    return wire.Recalibrated(
        reached=found.reached,
        summary=found.summary,
        queries=found.queries,
        reviewed=0 if reviewed is None else len(reviewed),
    )
