"""Copies of the gallery, made while it is served, in the service's folder ``snapshots``.

A copy is as the gallery was at one moment; searches and changes go on while it is written. It is a
gallery's folder like any other: `surefind serve` serves it, `surefind.Gallery.open` opens it. To go back to
one, stop the service and put it in the place of the gallery. Deleting old ones is the operator's.
"""

from datetime import UTC, datetime

from fastapi import APIRouter, Depends

from surefind.errors import InputError
from surefind.gallery.store import FILE, stored_items
from surefind.service import wire
from surefind.service.problems import described
from surefind.service.settings import allowed, may_write
from surefind.service.state import AppState, State
from surefind.service.wire import RefusedError

FOLDER = "snapshots"
NAME = "%Y-%m-%dT%H-%M-%S-%fZ"
MOST = 100
"""Copies that may be there; the next one is refused until the operator has deleted some."""

router = APIRouter(
    tags=["items"],
    dependencies=[Depends(allowed)],
    responses=described(401, 403, 408, 409, 413, 422, 429, 503, 504),
)


@router.post("/v1/snapshot", status_code=201, dependencies=[Depends(may_write)])
async def make_snapshot(state: State) -> wire.SnapshotView:
    """Copy the gallery as it is now; searches and changes go on."""
    return await state.keep(lambda: _made(state))


def _made(state: AppState) -> wire.SnapshotView:
    folder = state.settings.folder / FOLDER
    if folder.is_dir() and len(list(folder.iterdir())) >= MOST:
        raise RefusedError(409, f"there are {MOST} snapshots already; delete old ones first.")
    when = datetime.now(UTC)
    place = folder / when.strftime(NAME)
    try:
        state.gallery.save(place)
    except InputError as error:
        raise RefusedError(409, str(error)) from error
    size = (place / FILE).stat().st_size
    return wire.SnapshotView(name=place.name, when=when, items=stored_items(place), bytes=size)
