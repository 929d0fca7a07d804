"""What people decided, looked back at: a history, a file of it, and a way to take a decision back."""

import csv
from io import StringIO
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from surefind.errors import InputError
from surefind.service import wire
from surefind.service.problems import described
from surefind.service.settings import allowed, may_write
from surefind.service.state import State
from surefind.service.wire import RefusedError

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With which a formula begins, in one spreadsheet or another."""

router = APIRouter(
    prefix="/v1/reviews",
    tags=["reviews"],
    dependencies=[Depends(allowed)],
    responses=described(401, 403, 404, 408, 409, 422, 429, 503, 504),
)


@router.get("/history")
async def history(state: State, limit: Annotated[int, Query(ge=1, le=200)] = 50) -> wire.History:
    """List the latest decisions, the newest first, with what was answered."""

    def read() -> wire.History:
        found = state.reviews.history(limit)
        return wire.History(
            total=state.reviews.decisions(), decided=[_entry(said) for said in found]
        )

    return await state.work(read)


@router.get("/export", response_class=Response)
async def export(state: State, format: Literal["csv", "json"] = "csv") -> Response:
    """Return all decisions as a file, the newest first.

    In JSON, labels keep their type. In CSV, an apostrophe stands before a text that a spreadsheet would
    take for a formula.
    """

    def write() -> str:
        found = [_entry(said) for said in state.reviews.history()]
        if format == "json":
            return wire.History(total=len(found), decided=found).model_dump_json(indent=1)
        out = StringIO()
        writer = csv.DictWriter(out, list(wire.HistoryEntry.model_fields))
        writer.writeheader()
        for entry in found:
            writer.writerow({name: _plain(value) for name, value in entry.model_dump().items()})
        return out.getvalue()

    kind = "application/json" if format == "json" else "text/csv; charset=utf-8"
    name = {"Content-Disposition": f'attachment; filename="decisions.{format}"'}
    return Response(await state.work(write), media_type=kind, headers=name)


@router.delete("/{id}/decision", dependencies=[Depends(may_write)])
async def undo(id: Annotated[str, Path(max_length=64)], state: State) -> wire.ReviewView:
    """Take a decision back: the query waits again, where it was in the queue."""

    def take_back() -> dict[str, Any]:
        if state.reviews.asked(id) is None:
            raise RefusedError(404, "no such query was ever asked about.")
        try:
            return state.reviews.undo(id)
        except InputError as error:
            raise RefusedError(409, str(error)) from error

    return wire.ReviewView.model_validate(await state.work(take_back))


def _plain(value: Any) -> Any:
    """Return a value that no spreadsheet computes: labels and reviewers' names are anybody's."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _entry(said: dict[str, Any]) -> wire.HistoryEntry:
    asked: dict[str, Any] = said["asked"]
    answered = {
        "asked_when": asked["when"],
        "answered": asked.get("label"),
        "decision": asked.get("decision"),
        "probability": asked.get("probability"),
        "sampled": bool(asked.get("sampled")),
        "count": asked.get("count", 1),
        "image": bool(asked.get("image")),
    }
    return wire.HistoryEntry.model_validate(said | answered)
