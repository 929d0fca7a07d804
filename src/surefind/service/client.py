"""Two clients of the service, one that waits and one for asyncio, with the same methods.

    with surefind.Client("http://127.0.0.1:8765", token="sf_…") as client:
        found = client.search_image("query.jpg").answers[0]
        if found.decision == "match":
            print(found.label)

What the service answers is a value with types (`surefind.service.messages`); κ is None where it is
infinite. What it refuses is a `surefind.RefusedError` with its status and its sentence; a service that
cannot be reached is a `surefind.StorageError`.

Where the service is busy (429) or cannot store (503), or says when to come again, a request is sent again,
later each time, with the service's ``Retry-After`` as the least pause. Where no connection was made, too.
Where an answer was lost, it is sent again if doing it twice is doing it once: additions are, because each
has an ``Idempotency-Key``; decisions, deletions and calibrations are not, and raise. A search that is sent
again may be watched, and drawn for review, twice.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from surefind.checks import require
from surefind.errors import RefusedError, StorageError
from surefind.service import client_calls as calls
from surefind.service import messages as wire
from surefind.service.client_calls import UNSET, Call, Id, Label, Order, Picture, Where

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
BUSY = (429, 503)
SHORTEST, LONGEST = 0.2, 30.0
"""Seconds between two tries: about the first pause, and the longest that is waited for."""


class Client:
    """A client that waits for its answers; threads may share it.

    Args:
        address: Of the service, such as ``"http://127.0.0.1:8765"``.
        token: Its bearer token, or None.
        timeout: Seconds for an answer.
        retries: How often a request is sent again.
        transport: An httpx transport in place of the network.

    Raises:
        RefusedError: From every method, if the service refuses; ``status`` is its reason's number.
        StorageError: From every method, if the service cannot be reached.
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
        httpx = _httpx()
        self._retries, self._failure = retries, httpx.TransportError
        self._http: httpx.Client = httpx.Client(
            base_url=address, headers=_headers(token), timeout=timeout, transport=transport
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

    def health(self) -> wire.Health:
        """Return that the service is up."""
        return self._do(calls.health())

    def ready(self) -> wire.Ready:
        """Return whether the service is ready, and what is missing if it is not."""
        return self._do(calls.ready())

    def metrics(self) -> str:
        """Return the service's figures as Prometheus reads them."""
        return self._do(calls.metrics())

    def gallery(self) -> wire.GalleryView:
        """Return what can be searched, and how."""
        return self._do(calls.gallery())

    def calibration(self) -> wire.CalibrationView:
        """Return what the decisions rest on."""
        return self._do(calls.calibration())

    def recalibrate(
        self,
        *,
        from_items: bool = False,
        max_wrong: float | None = None,
        max_fpir: float | None = None,
        confidence: float | None = None,
        unknown_share: float | None = None,
    ) -> wire.Recalibrated:
        """Calibrate again while the service goes on.

        Args:
            from_items: Whether the gallery's own items play the queries, instead of reviewed random checks.
            max_wrong: The highest fraction of wrong answers among matches; by default as before.
            max_fpir: The highest share of unknown queries that may be a match.
            confidence: With what probability both are kept.
            unknown_share: With ``from_items``: the share of unknown queries to expect.

        Returns:
            What was found.
        """
        call = calls.recalibrate(
            from_items=from_items,
            max_wrong=max_wrong,
            max_fpir=max_fpir,
            confidence=confidence,
            unknown_share=unknown_share,
        )
        return self._do(call)

    def snapshot(self) -> wire.SnapshotView:
        """Copy the gallery, on the machine of the service."""
        return self._do(calls.snapshot())

    def snapshots(self) -> list[wire.SnapshotView]:
        """Return the copies, the oldest first."""
        return self._do(calls.snapshots())

    def labels(self, contains: str = "", *, limit: int = 100) -> wire.LabelList:
        """Return the labels in use that have this text, those of the most items first."""
        return self._do(calls.labels(contains, limit))

    def map(self) -> wire.MapView:
        """Return a random sample of the gallery in two dimensions."""
        return self._do(calls.gallery_map())

    def audit(self, most: int = 20) -> wire.AuditView:
        """Return what is probably wrong with the items: ``most`` findings of each kind."""
        return self._do(calls.audit(most))

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
            vectors: A row for each query: lists, an array or a tensor.
            kappa: Their concentrations, if these are known.
            novelty: Their p-values; needed if the calibration has a gate.
            k: How many neighbours.
            keep: Whether unsure queries wait for a person; None lets only random checks wait.
            watch: Whether these are queries like those to come.
            where: Values of the payload that items must have; nothing is decided then.
            labels: Labels that items may have; nothing is decided then.

        Returns:
            An answer for each query.
        """
        return self._do(
            calls.search(
                vectors,
                kappa=kappa,
                novelty=novelty,
                k=k,
                keep=keep,
                watch=watch,
                where=where,
                labels=labels,
            )
        )

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
        return self._do(
            calls.search_image(image, k=k, keep=keep, watch=watch, where=where, labels=labels)
        )

    def items(
        self,
        *,
        order: Order = "surest",
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
        vectors: bool = False,
        size: int = 500,
    ) -> Iterator[wire.ItemView]:
        """Go through the items, fetching ``size`` at a time; one that does not change comes once."""
        after = None
        while True:
            page = self.page(
                order=order, after=after, limit=size, where=where, labels=labels, vectors=vectors
            )
            yield from page.items
            after = page.next
            if after is None:
                return

    def page(
        self,
        *,
        order: Order = "surest",
        after: str | None = None,
        limit: int = 50,
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
        vectors: bool = False,
    ) -> wire.ItemPage:
        """Return a part of the list of items; ``after`` is the ``next`` of the part before."""
        return self._do(
            calls.page(
                order=order, after=after, limit=limit, where=where, labels=labels, vectors=vectors
            )
        )

    def item(self, id_: Id) -> wire.ItemView:
        """Return one item."""
        return self._do(calls.item(id_))

    def has(self, id_: Id) -> bool:
        """Return whether an item is there."""
        return self._do(calls.has(id_))

    def item_image(self, id_: Id) -> bytes:
        """Return the small picture of an item, a WebP file."""
        return self._do(calls.item_image(id_))

    def has_image(self, id_: Id) -> bool:
        """Return whether there is a picture of an item."""
        return self._do(calls.has_image(id_))

    def add(
        self, items: Iterable[wire.NewItem | Mapping[str, Any]], *, key: str | None = None
    ) -> list[Id]:
        """Add items, all of them or none.

        Args:
            items: Each with ``vector``, and ``id``, ``kappa``, ``novelty``, ``label``, ``payload`` and
                ``group`` if there are any.
            key: An idempotency key, to send the same again in another process; by default a new one.

        Returns:
            Their ids.
        """
        return self._do(calls.add(items, key))

    def add_image(
        self,
        image: Picture,
        *,
        id_: Id | None = None,
        label: Label = None,
        payload: Mapping[str, Any] | None = None,
        group: Label = None,
        key: str | None = None,
    ) -> Id:
        """Add an image, a path or the bytes of a file, and return the item's id; ``key`` as for `add`."""
        return self._do(
            calls.add_image(image, id_=id_, label=label, payload=payload, group=group, key=key)
        )[0]

    def change(
        self,
        id_: Id,
        *,
        vector: Any = UNSET,
        kappa: float | None = UNSET,
        novelty: float | None = UNSET,
        label: Label = UNSET,
        payload: Mapping[str, Any] | None = UNSET,
        group: Label = UNSET,
    ) -> None:
        """Change what is given of an item; None takes a label, a payload or a group away."""
        self._do(
            calls.change(
                id_,
                vector=vector,
                kappa=kappa,
                novelty=novelty,
                label=label,
                payload=payload,
                group=group,
            )
        )

    def change_image(self, id_: Id, image: Picture) -> None:
        """Replace the embedding and the picture of an item by those of another image."""
        self._do(calls.change_image(id_, image))

    def delete(self, ids: Iterable[Id]) -> None:
        """Delete items, all of them or none."""
        self._do(calls.delete(ids))

    def reviews(self, limit: int = 50) -> wire.ReviewList:
        """Return what waits for a person, the oldest first, and the latest decisions."""
        return self._do(calls.reviews(limit))

    def review_image(self, id_: str) -> bytes:
        """Return the small picture of a query that waits, a WebP file."""
        return self._do(calls.review_image(id_))

    def review_sample(self) -> wire.SampleView:
        """Return how many reviews a calibration may use, and how many it needs."""
        return self._do(calls.review_sample())

    def decide(
        self,
        id_: str,
        verdict: wire.Verdict,
        label: Label = None,
        *,
        reviewer: str | None = None,
    ) -> wire.DecidedView:
        """Accept the answered label, reject it (not in the gallery), or relabel the query.

        Args:
            id_: Of the review.
            verdict: What is said.
            label: For "relabel", what it is.
            reviewer: Who says so.

        Returns:
            The decision as it was kept.
        """
        return self._do(calls.decide(id_, verdict, label, reviewer))

    def undo(self, id_: str) -> wire.ReviewView:
        """Take a decision back: the query waits again, where it was."""
        return self._do(calls.undo(id_))

    def history(self, limit: int = 50) -> wire.History:
        """Return the latest decisions, the newest first, with what was answered."""
        return self._do(calls.history(limit))

    def decisions(self) -> wire.History:
        """Return all decisions, the newest first."""
        return self._do(calls.decisions())

    def _do(self, call: Call[T]) -> T:
        tried = 0
        while True:
            last = tried == self._retries
            try:
                answer = self._http.request(call.method, call.path, **call.sent)
            except self._failure as error:
                pause: float | None = _after_failure(call, error, last=last, tried=tried)
            else:
                pause = None if last else _pause(answer, tried)
            if pause is None:
                return _read(call, answer)
            time.sleep(pause)
            tried += 1


class AsyncClient:
    """`Client` for asyncio: the same arguments and the same methods, to be awaited.

    Args:
        address: As for `Client`.
        token: As for `Client`.
        timeout: As for `Client`.
        retries: As for `Client`.
        transport: As for `Client`.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout: float | int = 30,
        retries: int = 4,
        transport: "httpx.AsyncBaseTransport | None" = None,
    ) -> None:
        httpx = _httpx()
        self._retries, self._failure = retries, httpx.TransportError
        self._http: httpx.AsyncClient = httpx.AsyncClient(
            base_url=address, headers=_headers(token), timeout=timeout, transport=transport
        )

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def health(self) -> wire.Health:
        """Do as `Client.health`."""
        return await self._do(calls.health())

    async def ready(self) -> wire.Ready:
        """Do as `Client.ready`."""
        return await self._do(calls.ready())

    async def metrics(self) -> str:
        """Do as `Client.metrics`."""
        return await self._do(calls.metrics())

    async def gallery(self) -> wire.GalleryView:
        """Do as `Client.gallery`."""
        return await self._do(calls.gallery())

    async def calibration(self) -> wire.CalibrationView:
        """Do as `Client.calibration`."""
        return await self._do(calls.calibration())

    async def recalibrate(
        self,
        *,
        from_items: bool = False,
        max_wrong: float | None = None,
        max_fpir: float | None = None,
        confidence: float | None = None,
        unknown_share: float | None = None,
    ) -> wire.Recalibrated:
        """Do as `Client.recalibrate`."""
        call = calls.recalibrate(
            from_items=from_items,
            max_wrong=max_wrong,
            max_fpir=max_fpir,
            confidence=confidence,
            unknown_share=unknown_share,
        )
        return await self._do(call)

    async def snapshot(self) -> wire.SnapshotView:
        """Do as `Client.snapshot`."""
        return await self._do(calls.snapshot())

    async def snapshots(self) -> list[wire.SnapshotView]:
        """Do as `Client.snapshots`."""
        return await self._do(calls.snapshots())

    async def labels(self, contains: str = "", *, limit: int = 100) -> wire.LabelList:
        """Do as `Client.labels`."""
        return await self._do(calls.labels(contains, limit))

    async def map(self) -> wire.MapView:
        """Do as `Client.map`."""
        return await self._do(calls.gallery_map())

    async def audit(self, most: int = 20) -> wire.AuditView:
        """Do as `Client.audit`."""
        return await self._do(calls.audit(most))

    async def search(
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
        """Do as `Client.search`."""
        return await self._do(
            calls.search(
                vectors,
                kappa=kappa,
                novelty=novelty,
                k=k,
                keep=keep,
                watch=watch,
                where=where,
                labels=labels,
            )
        )

    async def search_image(
        self,
        image: Picture,
        *,
        k: int = 10,
        keep: bool = True,
        watch: bool = True,
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
    ) -> wire.SearchAnswer:
        """Do as `Client.search_image`."""
        return await self._do(
            calls.search_image(image, k=k, keep=keep, watch=watch, where=where, labels=labels)
        )

    async def items(
        self,
        *,
        order: Order = "surest",
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
        vectors: bool = False,
        size: int = 500,
    ) -> AsyncIterator[wire.ItemView]:
        """Do as `Client.items`."""
        after = None
        while True:
            page = await self.page(
                order=order, after=after, limit=size, where=where, labels=labels, vectors=vectors
            )
            for one in page.items:
                yield one
            after = page.next
            if after is None:
                return

    async def page(
        self,
        *,
        order: Order = "surest",
        after: str | None = None,
        limit: int = 50,
        where: Where | None = None,
        labels: Sequence[Label] | None = None,
        vectors: bool = False,
    ) -> wire.ItemPage:
        """Do as `Client.page`."""
        return await self._do(
            calls.page(
                order=order, after=after, limit=limit, where=where, labels=labels, vectors=vectors
            )
        )

    async def item(self, id_: Id) -> wire.ItemView:
        """Do as `Client.item`."""
        return await self._do(calls.item(id_))

    async def has(self, id_: Id) -> bool:
        """Do as `Client.has`."""
        return await self._do(calls.has(id_))

    async def item_image(self, id_: Id) -> bytes:
        """Do as `Client.item_image`."""
        return await self._do(calls.item_image(id_))

    async def has_image(self, id_: Id) -> bool:
        """Do as `Client.has_image`."""
        return await self._do(calls.has_image(id_))

    async def add(
        self, items: Iterable[wire.NewItem | Mapping[str, Any]], *, key: str | None = None
    ) -> list[Id]:
        """Do as `Client.add`."""
        return await self._do(calls.add(items, key))

    async def add_image(
        self,
        image: Picture,
        *,
        id_: Id | None = None,
        label: Label = None,
        payload: Mapping[str, Any] | None = None,
        group: Label = None,
        key: str | None = None,
    ) -> Id:
        """Do as `Client.add_image`."""
        ids = await self._do(
            calls.add_image(image, id_=id_, label=label, payload=payload, group=group, key=key)
        )
        return ids[0]

    async def change(
        self,
        id_: Id,
        *,
        vector: Any = UNSET,
        kappa: float | None = UNSET,
        novelty: float | None = UNSET,
        label: Label = UNSET,
        payload: Mapping[str, Any] | None = UNSET,
        group: Label = UNSET,
    ) -> None:
        """Do as `Client.change`."""
        await self._do(
            calls.change(
                id_,
                vector=vector,
                kappa=kappa,
                novelty=novelty,
                label=label,
                payload=payload,
                group=group,
            )
        )

    async def change_image(self, id_: Id, image: Picture) -> None:
        """Do as `Client.change_image`."""
        await self._do(calls.change_image(id_, image))

    async def delete(self, ids: Iterable[Id]) -> None:
        """Do as `Client.delete`."""
        await self._do(calls.delete(ids))

    async def reviews(self, limit: int = 50) -> wire.ReviewList:
        """Do as `Client.reviews`."""
        return await self._do(calls.reviews(limit))

    async def review_image(self, id_: str) -> bytes:
        """Do as `Client.review_image`."""
        return await self._do(calls.review_image(id_))

    async def review_sample(self) -> wire.SampleView:
        """Do as `Client.review_sample`."""
        return await self._do(calls.review_sample())

    async def decide(
        self,
        id_: str,
        verdict: wire.Verdict,
        label: Label = None,
        *,
        reviewer: str | None = None,
    ) -> wire.DecidedView:
        """Do as `Client.decide`."""
        return await self._do(calls.decide(id_, verdict, label, reviewer))

    async def undo(self, id_: str) -> wire.ReviewView:
        """Do as `Client.undo`."""
        return await self._do(calls.undo(id_))

    async def history(self, limit: int = 50) -> wire.History:
        """Do as `Client.history`."""
        return await self._do(calls.history(limit))

    async def decisions(self) -> wire.History:
        """Do as `Client.decisions`."""
        return await self._do(calls.decisions())

    async def _do(self, call: Call[T]) -> T:
        tried = 0
        while True:
            last = tried == self._retries
            try:
                answer = await self._http.request(call.method, call.path, **call.sent)
            except self._failure as error:
                pause: float | None = _after_failure(call, error, last=last, tried=tried)
            else:
                pause = None if last else _pause(answer, tried)
            if pause is None:
                return _read(call, answer)
            await asyncio.sleep(pause)
            tried += 1


def _httpx() -> Any:
    return require("httpx", "speak with a service", extra="client")


def _headers(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _read(call: Call[T], answer: "httpx.Response") -> T:
    status = answer.status_code
    if 200 <= status < 300 or status in call.expected:
        return call.read(status, answer.content)
    try:
        sentence = str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        sentence = f"the service answered with the status {status}."
    raise RefusedError(status, sentence, dict(answer.headers))


def _pause(answer: "httpx.Response", tried: int) -> float | None:
    """Return the seconds until a refused request is sent again; None if it is not, or was answered."""
    asked = answer.headers.get("retry-after", "")
    if answer.status_code not in BUSY and not (answer.status_code == 409 and asked):
        return None
    least = float(asked) if asked.isdecimal() else 0.0
    return None if least > LONGEST else max(least, _backoff(tried))


def _after_failure(call: Call[Any], error: Exception, *, last: bool, tried: int) -> float:
    """Return the seconds until a request that was not answered is sent again, or raise."""
    httpx = _httpx()
    sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    lost = sent and not call.repeatable
    if last or lost:
        what = "nobody knows whether it was done" if lost else "it was tried again"
        kind = type(error).__name__
        raise StorageError(f"the service did not answer ({kind}: {error}); {what}.") from error
    return _backoff(tried)


def _backoff(tried: int) -> float:
    # At random, so that many clients that were sent away together do not come back together.
    return min(LONGEST, SHORTEST * 2.0**tried) * random.uniform(0.5, 1.5)
