"""Answers that wait for a person: the queue, what people decide, and a way to take a decision back."""

import csv
from collections import Counter
from io import StringIO
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Response

from surefind.service import wire
from surefind.service.images import picture_response
from surefind.service.problems import described
from surefind.service.routes import (
    Allowed,
    GuardedRoute,
    State,
    allowed,
    body_described,
    json_body,
    may_write,
)
from surefind.service.state import AppState

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With which a formula begins, in one spreadsheet or another."""

router = APIRouter(
    prefix="/v1/reviews",
    tags=["reviews"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 429, 503, 504),
    route_class=GuardedRoute,
)
ReviewId = Annotated[str, Path(max_length=64)]
Verdict = Annotated[wire.Verdicts, Depends(json_body(wire.Verdicts))]


@router.get("", response_model=wire.ReviewList)
async def list_reviews(
    state: State,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    offset: Annotated[int, Query(ge=0, le=wire.LARGEST)] = 0,
    reason: Annotated[str | None, Query(max_length=64, description="Only those with it.")] = None,
    least: Annotated[float, Query(ge=0, le=1, description="Least probability.")] = 0,
    most: Annotated[float, Query(ge=0, le=1, description="Highest probability.")] = 1,
    sampled: Annotated[bool | None, Query(description="Random checks alone, or none.")] = None,
    decided: Annotated[bool, Query(description="Page through what was decided instead.")] = False,
    format: Annotated[
        Literal["json", "csv"], Query(description="csv: all decisions as a file.")
    ] = "json",
) -> Any:
    """List what waits for a person, the oldest first, and the latest decisions, the newest first."""
    if format == "csv":
        name = {"Content-Disposition": 'attachment; filename="decisions.csv"'}
        text = await state.work(lambda: _table(state))
        return Response(text, media_type="text/csv; charset=utf-8", headers=name)

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
        shown = [] if decided else found[offset : offset + limit]
        said = state.reviews.history(limit, offset if decided else 0)
        return wire.ReviewList(
            total=len(pending),
            matching=len(found),
            reasons=dict(names),
            dropped=state.reviews.dropped,
            room=max(room, 0),
            pending=[wire.ReviewView.model_validate(entry) for entry in shown],
            decisions=state.reviews.decisions(),
            decided=[_entry(one) for one in said],
        )

    return await state.work(read)


@router.get("/{id}/image", response_class=Response)
async def review_image(id: ReviewId, state: State) -> Response:
    """Return a small picture of a query that waits, as WebP."""
    return picture_response(await state.work(lambda: state.review_thumbnails.read(id)))


@router.post(
    "",
    status_code=201,
    dependencies=[Depends(may_write)],
    openapi_extra=body_described(wire.Verdicts),
)
async def decide(body: Verdict, state: State, found: Allowed) -> wire.DecidedView:
    """Accept (the answered label is right), reject (not in the gallery) or relabel (it is another one)."""

    def keep() -> dict[str, Any]:
        if body.verdict == "relabel" and body.label not in state.gallery.labels():
            sentence = "no item of the gallery has this label. Reject the query, or add an item."
            raise wire.RefusedError(422, sentence)
        return state.reviews.decide(
            body.id, body.verdict, body.label, by=found.name, reviewer=body.reviewer
        )

    return wire.DecidedView.model_validate(await state.work(keep))


@router.delete("/{id}/decision", dependencies=[Depends(may_write)])
async def undo(id: ReviewId, state: State) -> wire.ReviewView:
    """Take a decision back: the query waits again, where it was in the queue."""
    return wire.ReviewView.model_validate(await state.work(lambda: state.reviews.undo(id)))


def reason_name(reason: str) -> str:
    """Return a reason without what it says about one query: what competes, or a p-value."""
    return reason.partition(": ")[0].partition(" (p ")[0]


def _table(state: AppState) -> str:
    out = StringIO()
    writer = csv.DictWriter(out, list(wire.HistoryEntry.model_fields))
    writer.writeheader()
    for one in state.reviews.history():
        row = _entry(one).model_dump()
        writer.writerow({name: _plain(value) for name, value in row.items()})
    return out.getvalue()


def _plain(value: Any) -> Any:
    """Return a value that no spreadsheet computes: labels and reviewers' names are anybody's."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _entry(said: dict[str, Any]) -> wire.HistoryEntry:
    asked: dict[str, Any] = said["asked"]
    answered = {"asked_when": asked["when"], "answered": asked["label"]}
    names = ("decision", "probability", "sampled", "count", "image")
    return wire.HistoryEntry.model_validate(
        said | answered | {name: asked[name] for name in names if name in asked}
    )
