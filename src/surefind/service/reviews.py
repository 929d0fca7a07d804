"""Answers that wait for a person: the queue, what people decide, and a way to take a decision back."""

import csv
import unicodedata
from contextlib import suppress
from io import StringIO
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Query, Response

from surefind.errors import InputError
from surefind.service import wire
from surefind.service.images import picture_response
from surefind.service.routes import Allowed, State, as_json, guarded_router, json_body, writes
from surefind.service.state import AppState

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""With which a formula begins, in one spreadsheet or another."""

router = guarded_router("/v1/reviews", "reviews", 404)
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
) -> Response:
    """List what waits for a person, the oldest first, and the latest decisions, the newest first."""
    if format == "csv":
        name = {"Content-Disposition": 'attachment; filename="decisions.csv"'}
        text = await state.work(lambda: _table(state))
        return Response(text, media_type="text/csv; charset=utf-8", headers=name)

    def read() -> wire.ReviewList:
        reviews, filters = state.reviews, (reason, least, most, sampled)
        shown = [] if decided else reviews.pending(limit, offset, filters)
        room = state.settings.max_reviews - reviews.waiting(sampled=False)
        return wire.ReviewList(
            total=len(reviews),
            matching=reviews.matching(filters),
            reasons=reviews.reasons(),
            dropped=reviews.dropped,
            room=max(room, 0),
            pending=[_view(state, asked) for asked in shown],
            decisions=reviews.decisions(),
            decided=[_entry(one) for one in reviews.history(limit, offset if decided else 0)],
        )

    return await state.work(lambda: as_json(read()))


@router.get("/{id}/image", response_class=Response)
async def review_image(id: ReviewId, state: State) -> Response:
    """Return a small picture of a query that waits, as WebP."""
    return picture_response(await state.work(lambda: state.review_thumbnails.read(id)))


@router.post("", status_code=201, **writes(wire.Verdicts))
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


@router.delete("/{id}/decision", **writes())
async def undo(id: ReviewId, state: State) -> wire.ReviewView:
    """Take a decision back: the query waits again, where it was in the queue."""
    return await state.work(lambda: _view(state, state.reviews.undo(id)))


def _view(state: AppState, asked: dict[str, Any]) -> wire.ReviewView:
    """Describe a question, with the items that it found as they are now."""
    near = []
    for found in asked["neighbours"]:
        with suppress(InputError):  # it was deleted
            item = state.gallery.get(found["id"])
            image = state.thumbnails.has(item.id, item.payload)
            near.append(found | {"label": item.label, "payload": None, "image": image})
    return wire.ReviewView.model_validate(asked | {"neighbours": near})


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
    # Spreadsheets read full-width signs like the others.
    formula = isinstance(value, str) and unicodedata.normalize("NFKC", value).startswith(FORMULA)
    return f"'{value}" if formula else value


def _entry(said: dict[str, Any]) -> wire.HistoryEntry:
    asked: dict[str, Any] = said["asked"]
    answered = {"asked_when": asked["when"], "answered": asked["label"]}
    names = ("decision", "probability", "sampled", "count", "image")
    return wire.HistoryEntry.model_validate(
        said | answered | {name: asked[name] for name in names if name in asked}
    )
