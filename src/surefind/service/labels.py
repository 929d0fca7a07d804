"""The labels in use, to choose from: with their type, for 7 and "7" are two labels."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from surefind.service import wire
from surefind.service.problems import described
from surefind.service.settings import allowed
from surefind.service.state import State

router = APIRouter(
    tags=["items"],
    dependencies=[Depends(allowed)],
    responses=described(401, 403, 408, 422, 429, 503, 504),
)


@router.get("/v1/labels")
async def labels(
    state: State,
    contains: Annotated[
        str, Query(max_length=256, description="Only labels with this text, in any case.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> wire.LabelList:
    """List the labels in use: exactly this text first, then those of the most items."""

    def read() -> wire.LabelList:
        counts = state.gallery.labels()
        sought = contains.casefold()
        found = [(str(label), label) for label in counts if sought in str(label).casefold()]
        found.sort(key=lambda pair: (pair[0].casefold() != sought, -counts[pair[1]], pair[0]))
        views = [
            wire.LabelCount(
                label=label,
                kind="text" if isinstance(label, str) else "number",
                items=counts[label],
            )
            for _, label in found[:limit]
        ]
        return wire.LabelList(total=len(counts), matching=len(found), labels=views)

    return await state.list(read)
