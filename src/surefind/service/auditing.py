"""What is probably wrong with the items, while serving; nothing is changed until somebody does.

An audit (`surefind.Gallery.audit`) of a random sample of the items is made when it is first asked for, and
again after the gallery has changed. Searches wait while it is made, for seconds: `ITEMS` bounds how many.
Items are changed and deleted where they always are (`surefind.service.items`).
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from surefind.errors import InputError
from surefind.service import wire
from surefind.service.problems import described
from surefind.service.settings import allowed
from surefind.service.state import AppState, State
from surefind.service.wire import RefusedError

ITEMS = 1000
"""Items that are judged at most."""

router = APIRouter(
    tags=["items"],
    dependencies=[Depends(allowed)],
    responses=described(401, 403, 408, 409, 422, 429, 503, 504),
)


@router.get("/v1/audit")
async def audit(
    state: State,
    most: Annotated[int, Query(ge=1, le=200, description="Findings of each kind.")] = 20,
) -> wire.AuditView:
    """List items that are probably mislabelled, duplicated, confused or unusable, and impostors."""
    return await state.keep(lambda: _audited(state, most))


def _audited(state: AppState, most: int) -> wire.AuditView:
    try:
        found = state.audit(ITEMS)
    except InputError as error:
        raise RefusedError(409, str(error)) from error
    rows = found.to_rows(most)
    named = {row[key] for row in rows if row["kind"] != "confusion" for key in ("id", "other_id")}
    pictures = {id_: _has_picture(state, id_) for id_ in named - {None}}
    findings = [
        wire.Finding(
            **{key: row[key] for key in wire.Finding.model_fields if key in row},
            image=pictures.get(row["id"], False),
            other_image=pictures.get(row["other_id"], False),
        )
        for row in rows
    ]
    return wire.AuditView(
        items=found.items, judged=found.judged, sentences=list(found.sentences), findings=findings
    )


def _has_picture(state: AppState, id_: wire.ItemId) -> bool:
    if id_ not in state.gallery:
        return False
    return state.thumbnails.has(id_, state.gallery.get(id_).payload)
