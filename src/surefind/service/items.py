"""Items: browse, look at, add, change, delete.

An id in an address is a string, percent-encoded (`surefind.service.routes`). ``7`` in an address means
the number 7 if that is in the gallery, or else the string "7"; ``kind`` decides where both are. What a
change answered with success is on the disk; the calibration is renewed afterwards, in the background.
"""

import json
import re
from contextlib import suppress
from typing import Annotated, Any

import numpy as np
from fastapi import (
    APIRouter,
    Depends,
    File,
    Form,
    Query,
    Response,
    UploadFile,
)
from pydantic import TypeAdapter, ValidationError

from surefind.embeddings import Embeddings, kappa_from_json, kappa_to_json
from surefind.gallery.answers import Item
from surefind.gallery.engine import Id
from surefind.service import wire
from surefind.service.bodies import body_described, json_body
from surefind.service.filters import Filter, read_filter, read_where
from surefind.service.listing import Listing, Order
from surefind.service.problems import described, invalid_sentence
from surefind.service.routes import GuardedRoute, PathId
from surefind.service.settings import allowed, may_write
from surefind.service.state import AppState, State
from surefind.service.wire import RefusedError

NUMBER = re.compile(r"-?\d{1,39}", re.ASCII)
Upload = Annotated[UploadFile, File(description="PNG, JPEG, WebP, GIF or BMP.")]
NewItems = Annotated[wire.NewItems, Depends(json_body(wire.NewItems))]
ItemChange = Annotated[wire.ItemChange, Depends(json_body(wire.ItemChange))]
AskedKind = Annotated[wire.Kind | None, Query(description="What the id is, if both are there.")]
AskedWhere = Annotated[
    str | None,
    Query(max_length=8192, description='JSON, as {"site": "north", "year": [7, 8]}.'),
]
AskedLabels = Annotated[
    list[str] | None,
    Query(max_length=100, description="Of the items; JSON, or a plain text. May be repeated."),
]
LOOKED_AT = 10_000
"""Items that a request with a filter looks at."""

router = APIRouter(
    prefix="/v1/items",
    tags=["items"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 429, 503, 504),
    route_class=GuardedRoute,
)


@router.get("")
async def list_items(
    state: State,
    order: Order = "surest",
    offset: Annotated[int, Query(ge=0, le=wire.LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    vectors: bool = False,
    after: Annotated[
        str | None, Query(max_length=2048, description="``next`` of the part before.")
    ] = None,
    where: AskedWhere = None,
    label: AskedLabels = None,
) -> wire.ItemPage:
    """List items: from the surest, from the least sure, or those that confuse others."""
    chosen = asked_filter(where, label)

    def read() -> wire.ItemPage:
        catalogue, gallery = state.catalogue(), state.gallery
        counts = catalogue.confusing if order == "confusing" else {}
        ids = list(counts) if order == "confusing" else catalogue.surest
        ids = ids[::-1] if order == "least-sure" else ids
        listing = Listing(order, ids, gallery, counts)
        start = offset if after is None else listing.after(after) + offset
        # With a filter a request looks at so many items, and says where to go on.
        most = min(len(ids), start + (limit if chosen is None else LOOKED_AT))
        page: list[Item] = []
        end = start
        while end < most and len(page) < limit:
            item = gallery.get(ids[end]) if ids[end] in gallery else None
            if item is not None and (chosen is None or chosen.admits(item)):
                page.append(item)
            end += 1
        views = [view(state, item, counts.get(item.id), with_vector=vectors) for item in page]
        return wire.ItemPage(
            total=len(ids) if chosen is None else None,
            offset=start,
            items=views,
            next=listing.cursor(end - 1) if 0 < end < len(ids) else None,
        )

    return await state.list(read)


@router.post(
    "",
    status_code=201,
    dependencies=[Depends(may_write)],
    openapi_extra=body_described(wire.NewItems),
)
async def add_items(body: NewItems, state: State) -> wire.Ids:
    """Add items with vectors of length 1: all of them, or none."""
    named = [item.id for item in body.items]
    if None in named and any(id_ is not None for id_ in named):
        raise RefusedError(422, "give every item an id, or none of them.")
    if len({len(item.vector) for item in body.items}) > 1:
        raise RefusedError(422, "give vectors of one length.")
    novelty = [item.novelty for item in body.items if item.novelty is not None]
    if 0 < len(novelty) < len(body.items):
        raise RefusedError(422, "give every item a novelty, or none of them.")

    def add() -> list[Id]:
        _require_new(state, [i for i in named if i is not None])
        mean = np.stack([np.array(item.vector) for item in body.items])
        ids = state.gallery.add(
            _embeddings(mean, [item.kappa for item in body.items], novelty),
            ids=None if None in named else named,
            labels=[item.label for item in body.items],
            payload=[item.payload for item in body.items],
            groups=[item.group for item in body.items],
        )
        state.renewer.changed()
        return ids

    return wire.Ids(ids=await state.work(add))


@router.post("/image", status_code=201, responses=described(415), dependencies=[Depends(may_write)])
async def add_image(
    file: Upload,
    state: State,
    id: Annotated[str | None, Form(max_length=256, description="JSON, or a plain text.")] = None,
    label: Annotated[str | None, Form(max_length=256, description="As the id.")] = None,
    payload: Annotated[str | None, Form(max_length=65536, description="A JSON object.")] = None,
    group: Annotated[str | None, Form(max_length=256, description="As the id.")] = None,
) -> wire.Ids:
    """Add an image as an item."""
    named, extra = _form(id, wire.ItemId), _payload(payload)
    called, taken = _form(label, wire.ItemLabel), _form(group, wire.ItemLabel)
    new = [] if named is None else [named]
    data = await file.read()
    embedding = await state.embed(data)

    def add() -> list[Id]:
        _require_new(state, new)
        with state.thumbnails.staged(state.picture(data)) as place:
            ids = state.gallery.add(
                embedding, ids=new or None, labels=[called], payload=[extra], groups=[taken]
            )
            place(ids[0])
        state.renewer.changed()
        return ids

    return wire.Ids(ids=await state.work(add))


@router.get("/{id:path}/image", response_class=Response)
async def item_image(id: PathId, state: State, kind: AskedKind = None) -> Response:
    """Return a small picture of an item, as WebP."""

    def read() -> bytes:
        item = state.gallery.get(_present(state, id, kind))
        return state.thumbnails.read(item.id, item.payload)

    return picture_response(await state.work(read))


@router.get("/{id:path}")
async def one_item(id: PathId, state: State, kind: AskedKind = None) -> wire.ItemView:
    """Look at one item."""
    return await state.work(
        lambda: view(state, state.gallery.get(_present(state, id, kind)), with_vector=True)
    )


@router.put(
    "/{id:path}",
    dependencies=[Depends(may_write)],
    openapi_extra=body_described(wire.ItemChange),
)
async def change_item(
    id: PathId, body: ItemChange, state: State, kind: AskedKind = None
) -> wire.Ids:
    """Change an item; what is left out stays. A vector without κ or novelty has none that is known."""
    if body.vector is None and (body.kappa is not None or body.novelty is not None):
        raise RefusedError(422, "kappa and novelty belong to a vector; give that too.")
    given = body.model_fields_set

    def change() -> wire.Ids:
        there = _present(state, id, kind)
        embedding = None
        if body.vector is not None:
            novelty = [] if body.novelty is None else [body.novelty]
            embedding = _embeddings(np.array([body.vector]), [body.kappa], novelty)
        state.gallery.update(
            embedding,
            ids=[there],
            labels=[body.label] if "label" in given else None,
            payload=[body.payload] if "payload" in given else None,
            groups=[body.group] if "group" in given else None,
        )
        state.renewer.changed()
        if body.vector is not None:
            state.thumbnails.drop(there)
        return wire.Ids(ids=[there])

    return await state.work(change)


@router.delete("/{id:path}", dependencies=[Depends(may_write)])
async def delete_item(id: PathId, state: State, kind: AskedKind = None) -> wire.Ids:
    """Delete an item."""

    def delete() -> wire.Ids:
        there = _present(state, id, kind)
        state.gallery.delete([there])
        state.renewer.changed()
        state.thumbnails.drop(there)
        return wire.Ids(ids=[there])

    return await state.work(delete)


def view(
    state: AppState, item: Item, confuses: int | None = None, *, with_vector: bool = False
) -> wire.ItemView:
    """Describe an item, with how many others it confuses if that was counted."""
    return wire.ItemView(
        id=item.id,
        label=item.label,
        kappa=kappa_to_json(item.kappa),
        novelty=item.novelty,
        payload=item.payload,
        group=item.group,
        image=state.thumbnails.has(item.id, item.payload),
        confuses=confuses,
        vector=item.vector.tolist() if with_vector else None,
    )


def picture_response(picture: bytes) -> Response:
    """Return an answer that is a small picture."""
    return Response(picture, media_type="image/webp", headers={"Cache-Control": "no-cache"})


def asked_filter(where: str | None, label: list[str] | None) -> Filter | None:
    """Read the filter of a query string."""
    labels = None if label is None else [_form(text, wire.ItemLabel) for text in label]
    return read_filter(read_where(where), labels)


def _present(state: AppState, text: str, kind: wire.Kind | None) -> Id:
    numbers: list[Id] = [int(text)] if kind != "text" and NUMBER.fullmatch(text) else []
    for id_ in numbers + ([] if kind == "number" else [text]):
        if id_ in state.gallery:
            return id_
    raise RefusedError(404, "there is no item of this id.")


def _require_new(state: AppState, ids: list[Id]) -> None:
    if there := sum(i in state.gallery for i in ids):
        sentence = f"{there} of the ids are in the gallery already; change them with PUT."
        raise RefusedError(409, sentence)


def _embeddings(mean: np.ndarray, kappa: list[float | None], novelty: list[float]) -> Embeddings:
    known = np.array(novelty) if novelty else None
    return Embeddings(mean, np.array([kappa_from_json(value) for value in kappa]), known)


def _form(text: str | None, kind: Any) -> Any:
    """Read a form's field: JSON if that is a number, a string or null, or else the text itself."""
    if text is None:
        return None
    value: Any = text
    with suppress(ValueError, RecursionError):
        read = json.loads(text)
        value = read if read is None or type(read) in (int, str) else text
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise RefusedError(422, invalid_sentence(error.errors())) from error


def _payload(text: str | None) -> Any:
    try:
        return None if text is None else TypeAdapter(wire.Payload).validate_json(text)
    except ValidationError as error:
        raise RefusedError(422, "payload must be a JSON object.") from error
