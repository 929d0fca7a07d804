"""Items: browse, look at, add, change, delete; and the labels in use.

An id in an address is a string, percent-encoded (`surefind.service.routes`). ``7`` in an address means
the number 7 if that is in the gallery, or else the string "7"; ``kind`` decides where both are. What a
change answered with success is on the disk; the calibration is renewed afterwards, in the background.

Items are listed by label, those without one last, and of a label by id; numbers come before texts. A list
is read part by part while the gallery changes. A cursor is a place in it: a label and an id. The part that
follows holds what is ordered behind that, whether the item itself is still there. So an item that does not
change is seen exactly once by whoever goes from part to part; one that is changed or added meanwhile may
be missed. A cursor is opaque to callers, and harmless if it is made up: it is compared with, and nothing
else.
"""

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from contextlib import suppress
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, Form, Query, Response

from surefind.checks import LONGEST_PAYLOAD
from surefind.embeddings import Embeddings, kappa_from_json, kappa_to_json
from surefind.errors import InputError
from surefind.gallery.gallery import Gallery
from surefind.gallery.records import Id, Item
from surefind.service import routes, wire
from surefind.service.images import picture_response
from surefind.service.problems import described
from surefind.service.routes import State, as_json, json_body, writes
from surefind.service.search import AskedLabels, Upload, asked_labels, read_form, read_json
from surefind.service.state import AppState
from surefind.service.wire import RefusedError

NUMBER = re.compile(r"-?\d{1,39}", re.ASCII)
CURSOR = (bool,), (bool,), (int, str), (bool,), (int, str)
Key = tuple[bool, bool, Any, bool, Any]
NewItems = Annotated[wire.NewItems, Depends(json_body(wire.NewItems))]
ItemChange = Annotated[wire.ItemChange, Depends(json_body(wire.ItemChange))]
AskedKind = Annotated[wire.Kind | None, Query(description="What the id is, if both are there.")]
LONGEST = 2**22
"""Characters of payloads and vectors after which a part of a list ends."""

router = routes.guarded_router("/v1", "items", 404)


@router.get("/items", response_model=wire.ItemPage)
async def list_items(
    state: State,
    offset: Annotated[int, Query(ge=0, le=wire.LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    vectors: bool = False,
    after: Annotated[str | None, Query(max_length=4096, description="The last ``next``.")] = None,
    label: AskedLabels = None,
) -> Response:
    """List items by label; fewer than ``limit`` where they are large."""
    labels = asked_labels(label)

    def read() -> wire.ItemPage:
        keys = state.current(_by_label)
        if labels is not None:
            keys = [key for key in keys if (None if key[0] else key[2]) in labels]
        start = offset + (0 if after is None else _behind(keys, after))
        page: list[wire.ItemView] = []
        end, size = start, 0
        while end < len(keys) and len(page) < limit and size < LONGEST:
            with suppress(InputError):  # it was deleted while this was listed
                item = state.gallery.get(keys[end][-1])
                page.append(view(state, item, with_vector=vectors))
                size += len(json.dumps(item.payload)) + 20 * len(item.vector) * vectors
            end += 1
        behind = _cursor(keys[end - 1]) if 0 < end < len(keys) else None
        return wire.ItemPage(total=len(keys), offset=start, items=page, next=behind)

    return await state.list(lambda: as_json(read()))


def _by_label(gallery: Gallery) -> list[Key]:
    """Return what orders all items."""
    return sorted(
        (
            label is None,
            isinstance(label, str),
            0 if label is None else label,
            isinstance(id_, str),
            id_,
        )
        for id_, label in ((item.id, item.label) for item in gallery.items())
    )


def _cursor(key: Key) -> str:
    return urlsafe_b64encode(json.dumps(key).encode()).decode()


def _behind(keys: list[Key], cursor: str) -> int:
    """Return the position of the first item behind a cursor."""
    with suppress(ValueError, TypeError, RecursionError):
        place = json.loads(urlsafe_b64decode(cursor))
        if [type(x) in kinds for x, kinds in zip(place, CURSOR, strict=True)] == [True] * 5:
            return bisect_right(keys, tuple(place))
    raise RefusedError(422, "after must be the ``next`` of a list.")


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
        kind: dict[bool, wire.Kind] = {True: "text", False: "number"}
        views = [
            wire.LabelCount(label=x, kind=kind[isinstance(x, str)], items=counts[x])
            for _, x in found[:limit]
        ]
        return wire.LabelList(total=len(counts), matching=len(found), labels=views)

    return await state.list(read)


@router.post("/items", status_code=201, **writes(wire.NewItems))
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
        state.changed()
        return ids

    return wire.Ids(ids=await state.work(add))


@router.post("/items/image", status_code=201, responses=described(415), **writes())
async def add_image(
    file: Upload,
    state: State,
    id: Annotated[str | None, Form(max_length=256, description="JSON, or a plain text.")] = None,
    label: Annotated[str | None, Form(max_length=256, description="As the id.")] = None,
    payload: Annotated[
        str | None, Form(max_length=LONGEST_PAYLOAD, description="A JSON object.")
    ] = None,
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
        state.changed()
        return ids

    return wire.Ids(ids=await state.work(add))


@router.get("/items/{id:path}/image", response_class=Response)
async def item_image(id: routes.PathId, state: State, kind: AskedKind = None) -> Response:
    """Return a small picture of an item, as WebP."""

    def read() -> bytes:
        item = state.gallery.get(_present(state, id, kind))
        return state.thumbnails.read(item.id, item.payload)

    return picture_response(await state.work(read))


@router.get("/items/{id:path}")
async def one_item(id: routes.PathId, state: State, kind: AskedKind = None) -> wire.ItemView:
    """Look at one item."""
    return await state.work(
        lambda: view(state, state.gallery.get(_present(state, id, kind)), with_vector=True)
    )


@router.put("/items/{id:path}", **writes(wire.ItemChange))
async def change_item(
    id: routes.PathId, body: ItemChange, state: State, kind: AskedKind = None
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
        state.changed()
        if body.vector is not None:
            state.thumbnails.drop(there)
        return wire.Ids(ids=[there])

    return await state.work(change)


@router.delete("/items/{id:path}", **writes())
async def delete_item(id: routes.PathId, state: State, kind: AskedKind = None) -> wire.Ids:
    """Delete an item."""

    def delete() -> wire.Ids:
        there = _present(state, id, kind)
        state.gallery.delete([there])
        state.changed()
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
