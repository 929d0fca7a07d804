"""Items: browse, look at, add, change, delete; and the labels in use.

An id in an address is a string, percent-encoded (`surefind.service.routes`). ``7`` in an address means
the number 7 if that is in the gallery, or else the string "7"; ``kind`` decides where both are. What a
change answered with success is on the disk; the calibration is renewed afterwards, in the background.

A list is read part by part while the gallery changes. A cursor is a place in a list: the κ of an item, and
its id. The part that follows holds what is ordered behind that, whether the item itself is still there. So
an item that does not change is seen exactly once by whoever goes from part to part; one that is changed or
added meanwhile may be missed.

    surest       the highest κ first; equal ones by id, numbers before texts
    least-sure   the same, backwards

A cursor is opaque to callers, and harmless if it is made up: it is compared with, and nothing else.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Depends, Form, Query, Response

from surefind.embeddings import Embeddings, kappa_from_json, kappa_to_json
from surefind.errors import InputError
from surefind.gallery.gallery import Gallery
from surefind.gallery.records import Id, Item, objects, ordered
from surefind.service import wire
from surefind.service.images import picture_response
from surefind.service.problems import described
from surefind.service.routes import (
    GuardedRoute,
    PathId,
    State,
    allowed,
    body_described,
    json_body,
    may_write,
)
from surefind.service.search import (
    AskedLabels,
    AskedWhere,
    Upload,
    asked_labels,
    read_filter,
    read_form,
    read_json,
)
from surefind.service.state import AppState
from surefind.service.wire import RefusedError

NUMBER = re.compile(r"-?\d{1,39}", re.ASCII)
Order = Literal["surest", "least-sure"]
NewItems = Annotated[wire.NewItems, Depends(json_body(wire.NewItems))]
ItemChange = Annotated[wire.ItemChange, Depends(json_body(wire.ItemChange))]
AskedKind = Annotated[wire.Kind | None, Query(description="What the id is, if both are there.")]
LOOKED_AT = 10_000
"""Items that a request with a filter looks at."""

router = APIRouter(
    prefix="/v1",
    tags=["items"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 429, 503, 504),
    route_class=GuardedRoute,
)


@router.get("/items")
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
    """List items, from the surest or from the least sure."""
    chosen = None
    if where is not None or label is not None:
        chosen = read_filter(read_json(where, wire.Where, "where"), asked_labels(label))

    def read() -> wire.ItemPage:
        gallery, ids = state.gallery, state.current(_surest)
        ids = ids[::-1] if order == "least-sure" else ids
        start = offset if after is None else _behind(gallery, order, ids, after) + offset
        # With a filter a request looks at so many items, and says where to go on.
        most = min(len(ids), start + (limit if chosen is None else LOOKED_AT))
        page: list[Item] = []
        end = start
        while end < most and len(page) < limit:
            item = gallery.get(ids[end]) if ids[end] in gallery else None
            if item is not None and (chosen is None or chosen.admits(item)):
                page.append(item)
            end += 1
        return wire.ItemPage(
            total=len(ids) if chosen is None else None,
            offset=start,
            items=[view(state, item, with_vector=vectors) for item in page],
            next=_cursor(gallery, order, ids[end - 1]) if 0 < end < len(ids) else None,
        )

    return await state.list(read)


def _surest(gallery: Gallery) -> list[Id]:
    """Return all ids, the highest κ first, and of equal ones by id, integers before strings."""
    found = [(item.id, item.kappa) for item in gallery.items()]
    ids, kappa = objects([id_ for id_, _ in found], (len(found),)), np.array([k for _, k in found])
    (order,) = ordered(-kappa[None], ids[None])
    return list(ids[order])


def _cursor(gallery: Gallery, order: Order, id_: Id) -> str:
    text = json.dumps([order, _kappa(gallery, id_), id_])
    return urlsafe_b64encode(text.encode()).decode()


def _behind(gallery: Gallery, order: Order, ids: list[Id], cursor: str) -> int:
    """Return the position of the first item behind a cursor; refused if it is not of this order."""
    try:
        own, kappa, id_ = json.loads(urlsafe_b64decode(cursor))
    except (ValueError, TypeError, RecursionError):
        own, kappa, id_ = None, None, None
    if own != order or type(kappa) is not float or type(id_) not in (int, str):
        raise RefusedError(422, "after must be the ``next`` of a list in the same order.")
    there = (-kappa, isinstance(id_, str), id_)

    def behind(other: Id) -> bool:
        here = (-_kappa(gallery, other), isinstance(other, str), other)
        return here < there if order == "least-sure" else here > there

    return bisect_left(ids, True, key=behind)


def _kappa(gallery: Gallery, id_: Id) -> float:
    try:
        return gallery.get(id_).kappa
    except InputError as error:  # it was deleted while this was listed
        sentence = "the gallery changed while it was listed; ask again."
        raise RefusedError(503, sentence, {"Retry-After": "1"}) from error


@router.get("/labels")
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


@router.post(
    "/items",
    status_code=201,
    dependencies=[Depends(may_write)],
    openapi_extra=body_described(wire.NewItems),
)
async def add_items(body: NewItems, state: State) -> wire.Ids:
    """Add items with vectors of length 1: all of them, or none."""
    named = [item.id for item in body.items]
    novelty = [item.novelty for item in body.items if item.novelty is not None]

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


@router.post(
    "/items/image", status_code=201, responses=described(415), dependencies=[Depends(may_write)]
)
async def add_image(
    file: Upload,
    state: State,
    id: Annotated[str | None, Form(max_length=256, description="JSON, or a plain text.")] = None,
    label: Annotated[str | None, Form(max_length=256, description="As the id.")] = None,
    payload: Annotated[str | None, Form(max_length=65536, description="A JSON object.")] = None,
    group: Annotated[str | None, Form(max_length=256, description="As the id.")] = None,
) -> wire.Ids:
    """Add an image as an item."""
    named, extra = read_form(id, wire.ItemId), read_json(payload, wire.Payload, "payload")
    called, taken = read_form(label, wire.ItemLabel), read_form(group, wire.ItemLabel)
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


@router.get("/items/{id:path}/image", response_class=Response)
async def item_image(id: PathId, state: State, kind: AskedKind = None) -> Response:
    """Return a small picture of an item, as WebP."""

    def read() -> bytes:
        item = state.gallery.get(_present(state, id, kind))
        return state.thumbnails.read(item.id, item.payload)

    return picture_response(await state.work(read))


@router.get("/items/{id:path}")
async def one_item(id: PathId, state: State, kind: AskedKind = None) -> wire.ItemView:
    """Look at one item."""
    return await state.work(
        lambda: view(state, state.gallery.get(_present(state, id, kind)), with_vector=True)
    )


@router.put(
    "/items/{id:path}",
    dependencies=[Depends(may_write)],
    openapi_extra=body_described(wire.ItemChange),
)
async def change_item(
    id: PathId, body: ItemChange, state: State, kind: AskedKind = None
) -> wire.Ids:
    """Change an item; what is left out stays. A vector without κ or novelty has none that is known."""
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


@router.delete("/items/{id:path}", dependencies=[Depends(may_write)])
async def delete_item(id: PathId, state: State, kind: AskedKind = None) -> wire.Ids:
    """Delete an item."""

    def delete() -> wire.Ids:
        there = _present(state, id, kind)
        state.gallery.delete([there])
        state.renewer.changed()
        state.thumbnails.drop(there)
        return wire.Ids(ids=[there])

    return await state.work(delete)


def view(state: AppState, item: Item, *, with_vector: bool = False) -> wire.ItemView:
    """Describe an item."""
    return wire.ItemView(
        id=item.id,
        label=item.label,
        kappa=kappa_to_json(item.kappa),
        novelty=item.novelty,
        payload=item.payload,
        group=item.group,
        image=state.thumbnails.has(item.id, item.payload),
        vector=item.vector.tolist() if with_vector else None,
    )


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
