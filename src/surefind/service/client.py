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
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from surefind.checks import require
from surefind.errors import StorageError
from surefind.service import wire
from surefind.service.wire import RefusedError

if TYPE_CHECKING:
    import httpx

Id = str | int
Label = str | int | None
Picture = bytes | str | Path
Where = Mapping[str, Any]


class Client:
    """A client of a service; threads may share it.

    Args:
        address: Of the service, such as ``"http://127.0.0.1:8765"``.
        token: Its bearer token, or None.
        timeout: Seconds for an answer.
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
        timeout: float | int = 30,
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def gallery(self) -> wire.GalleryView:
        """Return what can be searched, and how."""
        return wire.GalleryView.model_validate_json(self._send("GET", "/v1/gallery"))

    def search(
        self,
        vectors: Any,
        *,
        kappa: Any = None,
        novelty: Any = None,
        k: int = 10,
        keep: bool | None = None,
        watch: bool = True,
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
    ) -> wire.SearchAnswer:
        """Search with vectors of length 1.

        Args:
            vectors: One row per query: lists, an array or a tensor.
            kappa: Their concentrations, if these are known.
            novelty: Their p-values; needed if the calibration's queries had them.
            k: How many neighbours.
            keep: Whether unsure queries wait for a person; None lets only random checks wait.
            watch: Whether these are queries like those to come.
            where: Values of the payload that items must have; nothing is decided then.
            labels: Labels that are alone possible, of the query and of the items.

        Returns:
            One answer per query.
        """
        body = {"vectors": vectors, "kappa": kappa, "novelty": novelty, "k": k, "keep": keep}
        body |= {"watch": watch, "where": where, "labels": labels}
        found = self._send("POST", "/v1/search/vector", json=_plain(body))
        return wire.SearchAnswer.model_validate_json(found)

    def search_image(
        self,
        image: Picture,
        *,
        k: int = 10,
        keep: bool = True,
        watch: bool = True,
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
    ) -> wire.SearchAnswer:
        """Search with an image: a path, or the bytes of a file; the rest as for `search`."""
        data = image if isinstance(image, bytes) else Path(image).read_bytes()
        asked = {"k": k, "keep": keep, "watch": watch} | _filter(where, labels)
        found = self._send("POST", "/v1/search/image", files={"file": data}, params=asked)
        return wire.SearchAnswer.model_validate_json(found)

    def items(
        self,
        *,
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
        vectors: bool = False,
        size: int = 500,
    ) -> Iterator[wire.ItemView]:
        """Iterate over the items, fetching ``size`` at a time; one that does not change comes once."""
        asked = {"limit": size, "vectors": vectors} | _filter(where, labels)
        while True:
            answer = self._send("GET", "/v1/items", params=asked)
            page = wire.ItemPage.model_validate_json(answer)
            yield from page.items
            if page.next is None:
                return
            asked["after"] = page.next

    def item(self, id_: Id) -> wire.ItemView:
        """Return one item."""
        return wire.ItemView.model_validate_json(self._send("GET", *_address(id_)))

    def add(self, items: Iterable[Mapping[str, Any]]) -> list[Id]:
        """Add items, all of them or none.

        Args:
            items: Each with ``vector``, and ``id``, ``kappa``, ``novelty``, ``label``, ``payload`` and
                ``group`` if there are any. An item without an id gets a random one.

        Returns:
            Their ids.
        """
        named = [{"id": uuid.uuid4().hex} | dict(item) for item in items]
        answer = self._send("POST", "/v1/items", json={"items": _plain(named)})
        return wire.Ids.model_validate_json(answer).ids

    def update(self, id_: Id, **fields: Any) -> None:
        """Change fields of an item, named as for `add`; those that are left out stay."""
        self._send("PUT", *_address(id_), json=_plain(fields))

    def delete(self, id_: Id) -> None:
        """Delete an item."""
        self._send("DELETE", *_address(id_))

    def reviews(self, *, limit: int = 50) -> wire.ReviewList:
        """Return what waits for a person, the oldest first, and the latest decisions."""
        answer = self._send("GET", "/v1/reviews", params={"limit": limit})
        return wire.ReviewList.model_validate_json(answer)

    def decide(
        self, id_: str, verdict: wire.Verdict, label: Label = None, *, reviewer: str | None = None
    ) -> wire.DecidedView:
        """Decide about a query that waits: accept, reject, or relabel with what it is."""
        said = {"id": id_, "verdict": verdict, "label": label, "reviewer": reviewer}
        return wire.DecidedView.model_validate_json(self._send("POST", "/v1/reviews", json=said))

    def _send(self, method: str, path: str, params: Any = None, **body: Any) -> bytes:
        try:
            answer = self._http.request(method, path, params=params, **body)
        except self._failure as error:
            kind = type(error).__name__
            raise StorageError(f"the service did not answer ({kind}: {error}).") from error
        if answer.is_success:
            content: bytes = answer.content
            return content
        try:
            sentence = str(answer.json()["error"])
        except (ValueError, KeyError, TypeError):
            sentence = f"the service answered with the status {answer.status_code}."
        raise RefusedError(answer.status_code, sentence, dict(answer.headers))


def _address(id_: Id) -> tuple[str, dict[str, str]]:
    kind = "text" if isinstance(id_, str) else "number"
    return f"/v1/items/{quote(str(id_), safe='')}", {"kind": kind}


def _filter(where: Where | None, labels: Sequence[Label] | None) -> dict[str, Any]:
    asked: dict[str, Any] = {} if where is None else {"where": json.dumps(dict(where))}
    return asked if labels is None else asked | {"label": [json.dumps(label) for label in labels]}


def _plain(value: Any) -> Any:
    """Return what JSON can hold: arrays and tensors as lists, an infinite κ as null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and math.isinf(value) else value
