"""Each request of the service as a value: what is sent, and what the answer is read as.

`surefind.service.client` sends them, waiting or not; so both clients say the same.
"""

import json
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from surefind.service import messages as wire

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Id = str | int
Label = str | int | None
Picture = bytes | str | Path
Order = Literal["surest", "least-sure", "confusing"]
Where = Mapping[str, Any]
UNSET: Any = object()
"""What is left as it is."""


@dataclass(frozen=True, eq=False)
class Call(Generic[T]):
    """One request.

    Attributes:
        method: Of HTTP.
        path: With everything quoted.
        read: Makes a value of an answer that is no refusal: status and body.
        sent: Keyword arguments for httpx: params, json, files, data, headers.
        repeatable: Whether doing it twice is doing it once, so that it may be sent again when nobody knows
            what became of it.
        expected: Statuses that are answers though they are not 2xx.
    """

    method: str
    path: str
    read: Callable[[int, bytes], T]
    sent: dict[str, Any] = field(default_factory=dict)
    repeatable: bool = True
    expected: tuple[int, ...] = ()


def health() -> Call[wire.Health]:
    """Ask whether the service is up."""
    return Call("GET", "/healthz", _as(wire.Health))


def ready() -> Call[wire.Ready]:
    """Ask whether everything is there."""
    return Call("GET", "/readyz", _as(wire.Ready), expected=(503,))


def metrics() -> Call[str]:
    """Ask for the figures as Prometheus reads them."""
    return Call("GET", "/metrics", lambda _status, body: body.decode())


def gallery() -> Call[wire.GalleryView]:
    """Ask what can be searched, and how."""
    return Call("GET", "/v1/gallery", _as(wire.GalleryView))


def calibration() -> Call[wire.CalibrationView]:
    """Ask what the decisions rest on."""
    return Call("GET", "/v1/calibration", _as(wire.CalibrationView))


def recalibrate(*, from_items: bool, **target: float | None) -> Call[wire.Recalibrated]:
    """Calibrate again with reviewed random checks, or from the gallery's own items."""
    given = {name: value for name, value in target.items() if value is not None}
    sent = {"json": {"from_items" if from_items else "with_reviews": True} | given}
    return Call("POST", "/v1/calibration", _as(wire.Recalibrated), sent, repeatable=False)


def snapshot() -> Call[wire.SnapshotView]:
    """Copy the gallery."""
    return Call("POST", "/v1/snapshot", _as(wire.SnapshotView), repeatable=False)


def snapshots() -> Call[list[wire.SnapshotView]]:
    """List the copies."""
    read = _as(wire.SnapshotList)
    return Call("GET", "/v1/snapshots", lambda status, body: read(status, body).snapshots)


def labels(contains: str, limit: int) -> Call[wire.LabelList]:
    """List the labels in use."""
    params = {"contains": contains, "limit": limit}
    return Call("GET", "/v1/labels", _as(wire.LabelList), {"params": params})


def gallery_map() -> Call[wire.MapView]:
    """Ask for a sample of the gallery in two dimensions."""
    return Call("GET", "/v1/map", _as(wire.MapView))


def audit(most: int) -> Call[wire.AuditView]:
    """Ask what is probably wrong with the items."""
    return Call("GET", "/v1/audit", _as(wire.AuditView), {"params": {"most": most}})


def search(
    vectors: Any,
    *,
    kappa: Any,
    novelty: Any,
    k: int,
    keep: bool | None,
    watch: bool,
    where: Where | None,
    labels: Sequence[Label] | None,
) -> Call[wire.SearchAnswer]:
    """Search with vectors."""
    body = {
        "vectors": _numbers(vectors),
        "kappa": None if kappa is None else [_finite(value) for value in _numbers(kappa)],
        "novelty": None if novelty is None else _numbers(novelty),
        "k": k,
        "keep": keep,
        "watch": watch,
        "where": None if where is None else dict(where),
        "labels": None if labels is None else list(labels),
    }
    return Call("POST", "/v1/search/vector", _as(wire.SearchAnswer), {"json": body})


def search_image(
    image: Picture,
    *,
    k: int,
    keep: bool,
    watch: bool,
    where: Where | None,
    labels: Sequence[Label] | None,
) -> Call[wire.SearchAnswer]:
    """Search with an image."""
    params = {"k": k, "keep": keep, "watch": watch} | _filter(where, labels)
    sent = {"params": params, "files": _upload(image)}
    return Call("POST", "/v1/search/image", _as(wire.SearchAnswer), sent)


def page(
    *,
    order: Order,
    after: str | None,
    limit: int,
    vectors: bool,
    where: Where | None,
    labels: Sequence[Label] | None,
) -> Call[wire.ItemPage]:
    """List items."""
    params = {"order": order, "limit": limit, "vectors": vectors} | _filter(where, labels)
    params |= {} if after is None else {"after": after}
    return Call("GET", "/v1/items", _as(wire.ItemPage), {"params": params})


def item(id_: Id) -> Call[wire.ItemView]:
    """Look at an item."""
    return Call("GET", _address(id_), _as(wire.ItemView), _kind(id_))


def has(id_: Id) -> Call[bool]:
    """Ask whether an item is there."""
    return Call("HEAD", _address(id_), _is_there, _kind(id_), expected=(404,))


def item_image(id_: Id) -> Call[bytes]:
    """Ask for the small picture of an item."""
    return Call("GET", f"{_address(id_)}/image", _bytes, _kind(id_))


def has_image(id_: Id) -> Call[bool]:
    """Ask whether there is a picture of an item."""
    return Call("HEAD", f"{_address(id_)}/image", _is_there, _kind(id_), expected=(404,))


def add(items: Iterable[wire.NewItem | Mapping[str, Any]], key: str | None) -> Call[list[Id]]:
    """Add items."""
    read = [
        one if isinstance(one, wire.NewItem) else wire.NewItem.model_validate(_plain(one))
        for one in items
    ]
    body = {"items": [one.model_dump(mode="json", exclude_unset=True) for one in read]}
    return Call("POST", "/v1/items", _ids, {"json": body, "headers": _key(key)})


def add_image(
    image: Picture,
    *,
    id_: Id | None,
    label: Label,
    payload: Mapping[str, Any] | None,
    group: Label,
    key: str | None,
) -> Call[list[Id]]:
    """Add an image as an item."""
    given = {"id": id_, "label": label, "payload": payload, "group": group}
    # As JSON, so that "7" stays a text and 7 a number.
    form = {name: json.dumps(value) for name, value in given.items() if value is not None}
    sent = {"data": form, "files": _upload(image), "headers": _key(key)}
    return Call("POST", "/v1/items/image", _ids, sent)


def change(id_: Id, **fields: Any) -> Call[list[Id]]:
    """Change what is given of an item."""
    given = {name: value for name, value in fields.items() if value is not UNSET}
    return Call("PUT", _address(id_), _ids, {"json": _plain(given)} | _kind(id_))


def change_image(id_: Id, image: Picture) -> Call[list[Id]]:
    """Replace the image of an item."""
    sent = {"files": _upload(image)} | _kind(id_)
    return Call("PUT", f"{_address(id_)}/image", _ids, sent)


def delete(ids: Iterable[Id]) -> Call[list[Id]]:
    """Delete items."""
    sent = {"json": {"ids": list(ids)}}
    return Call("POST", "/v1/items/delete", _ids, sent, repeatable=False)


def reviews(limit: int) -> Call[wire.ReviewList]:
    """Ask what waits for a person."""
    return Call("GET", "/v1/reviews", _as(wire.ReviewList), {"params": {"limit": limit}})


def review_image(id_: str) -> Call[bytes]:
    """Ask for the small picture of a query that waits."""
    return Call("GET", f"/v1/reviews/{quote(id_, safe='')}/image", _bytes)


def review_sample() -> Call[wire.SampleView]:
    """Ask which reviews a calibration may use."""
    return Call("GET", "/v1/reviews/sample", _as(wire.SampleView))


def decide(id_: str, verdict: str, label: Label, reviewer: str | None) -> Call[wire.DecidedView]:
    """Say what a query is."""
    sent = {"json": {"id": id_, "verdict": verdict, "label": label, "reviewer": reviewer}}
    return Call("POST", "/v1/reviews", _as(wire.DecidedView), sent, repeatable=False)


def undo(id_: str) -> Call[wire.ReviewView]:
    """Take a decision back."""
    path = f"/v1/reviews/{quote(id_, safe='')}/decision"
    return Call("DELETE", path, _as(wire.ReviewView), repeatable=False)


def history(limit: int) -> Call[wire.History]:
    """Ask for the latest decisions."""
    return Call("GET", "/v1/reviews/history", _as(wire.History), {"params": {"limit": limit}})


def decisions() -> Call[wire.History]:
    """Ask for all decisions."""
    return Call("GET", "/v1/reviews/export", _as(wire.History), {"params": {"format": "json"}})


def _as(kind: type[M]) -> Callable[[int, bytes], M]:
    return lambda _status, body: kind.model_validate_json(body)


def _ids(_status: int, body: bytes) -> list[Id]:
    return wire.Ids.model_validate_json(body).ids


def _bytes(_status: int, body: bytes) -> bytes:
    return body


def _is_there(status: int, _body: bytes) -> bool:
    return status != 404


def _address(id_: Id) -> str:
    return f"/v1/items/{quote(str(id_), safe='')}"


def _kind(id_: Id) -> dict[str, Any]:
    return {"params": {"kind": "text" if isinstance(id_, str) else "number"}}


def _key(key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex if key is None else key}


def _upload(image: Picture) -> dict[str, Any]:
    data = image if isinstance(image, bytes) else Path(image).read_bytes()
    return {"file": ("image", data)}


def _filter(where: Where | None, labels: Sequence[Label] | None) -> dict[str, Any]:
    asked: dict[str, Any] = {} if where is None else {"where": json.dumps(dict(where))}
    return asked if labels is None else asked | {"label": [json.dumps(label) for label in labels]}


def _numbers(values: Any) -> Any:
    """Return arrays and tensors as lists."""
    if hasattr(values, "tolist"):
        return values.tolist()
    return [_numbers(v) for v in values] if isinstance(values, list | tuple) else values


def _finite(kappa: float | None) -> float | None:
    return None if kappa is None or math.isinf(kappa) else kappa


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item's fields as JSON holds them."""
    found = dict(fields)
    if found.get("vector") is not None:
        found["vector"] = _numbers(found["vector"])
    if "kappa" in found:
        found["kappa"] = _finite(_numbers(found["kappa"]))
    return found
