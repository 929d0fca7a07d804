"""Items: browse, look at, add, change, delete.

An id in an address is a text. ``7`` in an address means the number 7 if that is in the gallery, or else the
text "7"; ``kind`` decides where both are. What a change answered with success is on the disk.
"""

import json
import re
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Depends, File, Form, Path, Query, Response, UploadFile
from pydantic import TypeAdapter, ValidationError

from surefind.apps.service.messages import (
    LARGEST,
    Ids,
    ItemChange,
    ItemId,
    ItemLabel,
    ItemPage,
    ItemView,
    Kind,
    NewItems,
    Payload,
    finite,
)
from surefind.apps.service.problems import described
from surefind.apps.service.querying import concentrations
from surefind.apps.service.settings import allowed, may_write
from surefind.apps.service.state import AtDesk, Desk
from surefind.embeddings import Embeddings
from surefind.errors import RefusedError
from surefind.gallery.answers import Item
from surefind.gallery.engine import Id

NUMBER = re.compile(r"-?\d{1,16}", re.ASCII)
PathId = Annotated[str, Path(max_length=256)]
AskedKind = Annotated[Kind | None, Query(description="What the id is, if both are there.")]

router = APIRouter(
    prefix="/v1/items",
    tags=["items"],
    dependencies=[Depends(allowed)],
    responses=described(400, 401, 403, 404, 408, 409, 413, 422, 429, 503, 504),
)


@router.get("")
async def list_items(
    desk: AtDesk,
    order: Literal["surest", "least-sure", "confusing"] = "surest",
    offset: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    vectors: bool = False,
) -> ItemPage:
    """List items: from the surest, from the least sure, or those that confuse others."""

    def read() -> ItemPage:
        counts = desk.catalogues.confusing() if order == "confusing" else {}
        surest = desk.catalogues.now().surest
        ids: Any = tuple(counts) if order == "confusing" else surest
        ids = ids[::-1] if order == "least-sure" else ids
        page = [i for i in ids[offset : offset + limit] if i in desk.gallery]
        views = [view(desk, desk.gallery.get(i), counts.get(i), with_vector=vectors) for i in page]
        return ItemPage(total=len(ids), offset=offset, items=views)

    return await desk.list(read)


@router.post("", status_code=201, dependencies=[Depends(may_write)])
async def add_items(body: NewItems, desk: AtDesk) -> Ids:
    """Add items with vectors of length 1: all of them, or none."""
    named = [item.id for item in body.items]
    if None in named and any(id_ is not None for id_ in named):
        raise RefusedError(422, "give every item an id, or none of them.")
    if len({len(item.vector) for item in body.items}) > 1:
        raise RefusedError(422, "give vectors of one length.")

    def add() -> Ids:
        _require_new(desk, [i for i in named if i is not None])
        mean = np.array([item.vector for item in body.items])
        embeddings = Embeddings(mean, concentrations([item.kappa for item in body.items]))
        ids = desk.gallery.add(
            embeddings,
            ids=None if None in named else named,
            labels=[item.label for item in body.items],
            payload=[item.payload for item in body.items],
        )
        return Ids(ids=ids)

    return await desk.work(add)


@router.post("/image", status_code=201, responses=described(415), dependencies=[Depends(may_write)])
async def add_image(
    file: Annotated[UploadFile, File(description="PNG, JPEG, WebP, GIF or BMP.")],
    desk: AtDesk,
    id: Annotated[str | None, Form(max_length=256, description="JSON, or a plain text.")] = None,
    label: Annotated[str | None, Form(max_length=256, description="As the id.")] = None,
    payload: Annotated[str | None, Form(max_length=65536, description="A JSON object.")] = None,
) -> Ids:
    """Add an image as an item."""
    named, called, extra = _form(id, ItemId), _form(label, ItemLabel), _payload(payload)
    data = await file.read()
    embedding = await desk.embed(data)

    def add() -> Ids:
        _require_new(desk, [] if named is None else [named])
        picture = desk.picture(data)
        ids = desk.gallery.add(
            embedding, ids=None if named is None else [named], labels=[called], payload=[extra]
        )
        desk.thumbnails.keep(ids[0], picture)
        return Ids(ids=ids)

    return await desk.work(add)


@router.get("/{id:path}/image", response_class=Response)
async def item_image(id: PathId, desk: AtDesk, kind: AskedKind = None) -> Response:
    """Give a small picture of an item, as WebP."""

    def read() -> bytes:
        item = desk.gallery.get(_present(desk, id, kind))
        return desk.thumbnails.read(item.id, item.payload)

    return picture_response(await desk.work(read))


@router.put("/{id:path}/image", responses=described(415), dependencies=[Depends(may_write)])
async def change_image(
    id: PathId,
    file: Annotated[UploadFile, File(description="PNG, JPEG, WebP, GIF or BMP.")],
    desk: AtDesk,
    kind: AskedKind = None,
) -> Ids:
    """Give an item the embedding and the picture of another image."""
    data = await file.read()
    embedding = await desk.embed(data)

    def change() -> Ids:
        there, picture = _present(desk, id, kind), desk.picture(data)
        desk.gallery.update(embedding, ids=[there])
        desk.thumbnails.keep(there, picture)
        return Ids(ids=[there])

    return await desk.work(change)


@router.get("/{id:path}")
async def one_item(id: PathId, desk: AtDesk, kind: AskedKind = None) -> ItemView:
    """Look at one item."""
    return await desk.work(
        lambda: view(desk, desk.gallery.get(_present(desk, id, kind)), with_vector=True)
    )


@router.put("/{id:path}", dependencies=[Depends(may_write)])
async def change_item(id: PathId, body: ItemChange, desk: AtDesk, kind: AskedKind = None) -> Ids:
    """Change an item; what is left out stays. A vector without κ has an unknown uncertainty."""
    if body.vector is None and body.kappa is not None:
        raise RefusedError(422, "kappa belongs to a vector; give both.")
    given = body.model_fields_set

    def change() -> Ids:
        there = _present(desk, id, kind)
        desk.gallery.update(
            None
            if body.vector is None
            else Embeddings(np.array([body.vector]), concentrations([body.kappa])),
            ids=[there],
            labels=[body.label] if "label" in given else None,
            payload=[body.payload] if "payload" in given else None,
        )
        if body.vector is not None:
            desk.thumbnails.drop(there)
        return Ids(ids=[there])

    return await desk.work(change)


@router.delete("/{id:path}", dependencies=[Depends(may_write)])
async def delete_item(id: PathId, desk: AtDesk, kind: AskedKind = None) -> Ids:
    """Delete an item."""

    def delete() -> Ids:
        there = _present(desk, id, kind)
        desk.gallery.delete([there])
        desk.thumbnails.drop(there)
        return Ids(ids=[there])

    return await desk.work(delete)


def view(
    desk: Desk, item: Item, confuses: int | None = None, *, with_vector: bool = False
) -> ItemView:
    """Describe an item.

    Args:
        desk: It knows the pictures.
        item: The item.
        confuses: How many others it confuses, if that was counted.
        with_vector: Whether to give its vector.

    Returns:
        The description.
    """
    return ItemView(
        id=item.id,
        label=item.label,
        kappa=finite(item.kappa),
        payload=item.payload,
        image=desk.thumbnails.has(item.id, item.payload),
        confuses=confuses,
        vector=item.vector.tolist() if with_vector else None,
    )


def picture_response(picture: bytes) -> Response:
    """Answer with a small picture."""
    return Response(picture, media_type="image/webp", headers={"Cache-Control": "no-cache"})


def _present(desk: Desk, text: str, kind: Kind | None) -> Id:
    candidates: list[Id] = []
    if kind != "text" and NUMBER.fullmatch(text):
        candidates.append(int(text))
    if kind != "number":
        candidates.append(text)
    for id_ in candidates:
        if id_ in desk.gallery:
            return id_
    raise RefusedError(404, "there is no item of this id.")


def _require_new(desk: Desk, ids: list[Id]) -> None:
    there = [i for i in ids if i in desk.gallery]
    if there:
        raise RefusedError(
            409, f"{len(there)} of the ids are in the gallery already; change them with PUT."
        )


def _form(text: str | None, kind: Any) -> Any:
    """Read a form's field: JSON if that gives a number, a text or null, or else the text itself."""
    try:
        return None if text is None else TypeAdapter(kind).validate_python(json.loads(text))
    except ValueError:
        return text


def _payload(text: str | None) -> Any:
    try:
        return None if text is None else TypeAdapter(Payload).validate_json(text)
    except ValidationError as error:
        raise RefusedError(422, "payload must be a JSON object.") from error
