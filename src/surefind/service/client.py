"""A client of the service: the ten requests that programs make.

    with surefind.Client("http://127.0.0.1:8765", token="sf_…") as client:
        found = client.search_image("query.jpg").answers[0]
        if found.decision == "match":
            print(found.label)

Answers are values with types (`surefind.service.wire`); κ is None where it is infinite. All other requests
are in ``/v1/openapi.json``.

A connection that cannot be made is tried again. A lost answer is not: search, read, change and delete again
as you like. Items that `Client.add` adds have an id, so that adding them again after a lost answer is
refused with status 409 if it was done.
"""

import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from surefind.checks import require
from surefind.errors import StorageError
from surefind.service import wire
from surefind.service.wire import RefusedError

if TYPE_CHECKING:
    import httpx

Id = str | int
Label = str | int | None
Picture = bytes | str | Path
M = TypeVar("M", bound=BaseModel)


class Client:
    """A client of a service; threads may share it.

    Args:
        address: Of the service, such as ``"http://127.0.0.1:8765"``.
        token: Its bearer token, or None.
        timeout: Seconds for an answer. A service that is busy takes a minute before it gives up.
        retries: How often a connection is tried again.
        transport: An httpx transport in place of the network.

    Raises:
        RefusedError: From every method, if the service refuses; ``status`` is the HTTP status.
        StorageError: From every method, if the service does not answer.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout: float | int = 120,
        retries: int = 4,
        transport: "httpx.BaseTransport | None" = None,
    ) -> None:
        httpx = require("httpx", "speak with a service", extra="client")
        self._failure: type[Exception] = httpx.TransportError
        self._http: httpx.Client = httpx.Client(
            base_url=address,
            headers={} if token is None else {"Authorization": f"Bearer {token}"},
            timeout=timeout,
            transport=transport or httpx.HTTPTransport(retries=retries),
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def gallery(self) -> wire.GalleryView:
        """Return what can be searched, and how."""
        return self._ask(wire.GalleryView, "GET", "/v1/gallery")

    def search(
        self, vectors: Any, *, labels: Sequence[Label] | None = None, **asked: Any
    ) -> wire.SearchAnswer:
        """Search with vectors of length 1.

        Args:
            vectors: One row per query: lists, an array or a tensor.
            labels: Labels that are alone possible, of the query and of the items.
            **asked: ``kappa`` and ``novelty`` of each, if they are known; ``k``, by default 10; ``keep``:
                let unsure queries wait for a person; ``watch``: False if these are no queries like those
                to come; ``payload``: True for the items' payloads.

        Returns:
            One answer per query.
        """
        body = _plain({"vectors": vectors, "labels": labels} | asked)
        return self._ask(wire.SearchAnswer, "POST", "/v1/search/vector", json=body)

    def search_image(
        self, image: Picture, *, labels: Sequence[Label] | None = None, **asked: Any
    ) -> wire.SearchAnswer:
        """Search with an image: a path, or the bytes of a file; the rest as for `search`."""
        files = {"file": image if isinstance(image, bytes) else Path(image).read_bytes()}
        given = asked | _labels(labels)
        return self._ask(wire.SearchAnswer, "POST", "/v1/search/image", files=files, params=given)

    def items(
        self, *, labels: Sequence[Label] | None = None, vectors: bool = False, size: int = 500
    ) -> Iterator[wire.ItemView]:
        """Iterate over the items, fetching ``size`` at a time; one that does not change comes once."""
        asked = {"limit": size, "vectors": vectors} | _labels(labels)
        while True:
            page = self._ask(wire.ItemPage, "GET", "/v1/items", params=asked)
            yield from page.items
            if page.next is None:
                return
            asked["after"] = page.next

    def item(self, id_: Id) -> wire.ItemView:
        """Return one item."""
        return self._ask(wire.ItemView, "GET", *_address(id_))

    def add(self, items: Iterable[Mapping[str, Any]]) -> list[Id]:
        """Add items, all of them or none.

        Args:
            items: Each with ``vector``, and ``id``, ``kappa``, ``novelty``, ``label``, ``payload`` and
                ``group`` if there are any. An item without an id gets a random one.

        Returns:
            Their ids.
        """
        body = {"items": _plain([{"id": uuid.uuid4().hex} | dict(item) for item in items])}
        return self._ask(wire.Ids, "POST", "/v1/items", json=body).ids

    def update(self, id_: Id, **fields: Any) -> None:
        """Change fields of an item, named as for `add`; those that are left out stay."""
        self._ask(wire.Ids, "PUT", *_address(id_), json=_plain(fields))

    def delete(self, id_: Id) -> None:
        """Delete an item."""
        self._ask(wire.Ids, "DELETE", *_address(id_))

    def reviews(self, *, limit: int = 50) -> wire.ReviewList:
        """Return what waits for a person, the oldest first, and the latest decisions."""
        return self._ask(wire.ReviewList, "GET", "/v1/reviews", params={"limit": limit})

    def decide(
        self, id_: str, verdict: wire.Verdict, label: Label = None, *, reviewer: str | None = None
    ) -> wire.DecidedView:
        """Decide about a query that waits: accept, reject, or relabel with what it is."""
        said = {"id": id_, "verdict": verdict, "label": label, "reviewer": reviewer}
        return self._ask(wire.DecidedView, "POST", "/v1/reviews", json=said)

    def _ask(self, kind: type[M], method: str, path: str, params: Any = None, **body: Any) -> M:
        try:
            answer = self._http.request(method, path, params=params, **body)
        except self._failure as error:
            name = type(error).__name__
            raise StorageError(f"the service did not answer ({name}: {error}).") from error
        if answer.is_success:
            return kind.model_validate_json(answer.content)
        try:
            sentence = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            sentence = f"the service answered with the status {answer.status_code}."
        raise RefusedError(answer.status_code, sentence, dict(answer.headers))


def _address(id_: Id) -> tuple[str, dict[str, str]]:
    kind = "text" if isinstance(id_, str) else "number"
    return f"/v1/items/{quote(str(id_), safe='')}", {"kind": kind}


def _labels(labels: Sequence[Label] | None) -> dict[str, Any]:
    return {} if labels is None else {"label": [json.dumps(label) for label in labels]}


def _plain(value: Any) -> Any:
    """Return what JSON can hold: arrays and tensors as lists, an infinite κ as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isinf(value) else value
