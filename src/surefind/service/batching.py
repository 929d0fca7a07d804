"""Requests that arrive together are answered together.

Callers put items into the queue of a `Batcher`. One worker thread takes what has come, up to a limit, and
does it in one call; while it works, more items gather for the next call. So a busy service has large
batches and an idle one answers at once, or after ``wait`` seconds if that is given to let others join.
Callers that ask again as soon as they are answered come one by one: the first would be served alone, and
the others after it. So a batch waits a moment until as many have come as were there before, which serves
four such clients 1.3 times as fast and sixteen 1.1 times. Searching on the event loop, which saves the way
to a thread and back, was measured too: sixteen and sixty-four clients are served 1.15 times as fast. But
`/healthz`, and whoever asks for anything else, would wait for every search, so it is not done.

If a call fails for a reason that nobody foresaw, its items are done again by halves, until the one that it
fails for is alone: nobody's request fails for what somebody else sent.

`search_together` is what the queue of searches does: the queries of many callers in one search, taken
apart again. Labels and decisions do not depend on k, so searching with the largest k of all and cutting
gives each caller the same answer as searching alone. Queries with novelty and queries without are two
searches, because a gallery takes all or none with it; so are those with κ and without, of which it may
refuse the latter, those that are watched and those that are not, and those with other labels. A query that
cannot be searched fails by itself, and does not spoil the others.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from surefind.checks import UNIT_TOLERANCE
from surefind.embeddings import Embeddings, kappa_from_json
from surefind.errors import DegenerateError, InputError, SurefindError
from surefind.gallery.gallery import Gallery
from surefind.gallery.records import Id, Label, read_vectors
from surefind.service.wire import RefusedError

LINGER = 0.004
"""Seconds that a batch waits for as many callers as there were around one that has just ended."""

T = TypeVar("T")
R = TypeVar("R")
Vectors = Sequence[Sequence[float] | np.ndarray]
HasPicture = Callable[[Id, Any], bool]
"""Whether there is a picture of the item with this id and payload."""


class Batcher(Generic[T, R]):
    """A queue and the thread that works it off.

    Args:
        run: Does a batch; returns a result, or an error, for each item.
        most: Items in a batch.
        wait: Seconds to wait for more when fewer have come.
        waiting: Items that may wait; later ones are sent away.

    Attributes:
        observe: Called with the size of every batch.
    """

    observe: Callable[[int], Any]

    def __init__(
        self,
        run: Callable[[list[T]], Sequence[R | Exception]],
        *,
        most: int = 64,
        wait: float = 0.0,
        waiting: int = 1024,
    ) -> None:
        self._run, self._most, self._wait, self._waiting = run, most, wait, waiting
        self.observe = lambda _size: None
        self._around, self._ended = 0, 0.0  # callers around the last batch, and when that ended
        self._queue: list[tuple[T, asyncio.Future[R]]] = []
        self._drain: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="surefind-batch")

    def __len__(self) -> int:
        return len(self._queue)

    async def ask(self, item: T) -> R:
        """Queue an item and return its result; refused if too many wait already."""
        if len(self._queue) >= self._waiting:
            raise RefusedError(429, "the service is busy; try again.", {"Retry-After": "1"})
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._queue.append((item, future))
        if self._drain is None:
            self._drain = loop.create_task(self._work())
        return await future

    async def close(self) -> None:
        """Finish what waits, and end the thread."""
        if self._drain is not None:
            await self._drain
        self._thread.shutdown()

    def _isolated(self, items: list[T]) -> Sequence[R | Exception]:
        try:
            return self._run(items)
        except SurefindError as error:  # foreseen, and everybody's
            return [error] * len(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
        half = len(items) // 2
        return [*self._isolated(items[:half]), *self._isolated(items[half:])]

    async def _gather(self) -> None:
        # Requests that have reached the socket are read turn by turn of the loop. As long as each turn
        # brings some, they join, because a batch costs little more than one of its items. Callers that
        # were just answered tend to ask again, and are waited for a little longer.
        before, last = 0, time.perf_counter() + LINGER
        expected = self._around if last - self._ended < 2 * LINGER else 0
        while len(self._queue) < self._most:
            patient = len(self._queue) < expected and time.perf_counter() < last
            if len(self._queue) == before and not patient:
                return
            before = len(self._queue)
            await asyncio.sleep(0)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            if self._wait and len(self._queue) < self._most:
                await asyncio.sleep(self._wait)
            await self._gather()
            taken, self._queue = self._queue[: self._most], self._queue[self._most :]
            # Whoever has gone away need not be served.
            batch = [(item, future) for item, future in taken if not future.done()]
            if not batch:
                continue
            self.observe(len(batch))
            results: Sequence[Any]
            try:
                items = [item for item, _ in batch]
                results = await loop.run_in_executor(self._thread, self._isolated, items)
            except Exception as error:  # it belongs to those who asked
                results = [error] * len(batch)
            self._around, self._ended = len(self._queue) + len(batch), time.perf_counter()
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        self._drain = None


@dataclass(frozen=True, eq=False)
class Query:
    """What one caller asks.

    Attributes:
        vectors: Finite numbers, in rows of one length.
        kappa: Their concentrations, not negative; None for infinite ones.
        k: How many neighbours of each.
        novelty: Their p-values, from 0 to 1; None if they have none.
        watch: Whether they are queries like those to come, which the gallery's watch should see.
        labels: Those that are alone possible; None for all.
    """

    vectors: Vectors
    kappa: Sequence[float | None]
    k: int
    novelty: Sequence[float] | None = None
    watch: bool = True
    labels: tuple[Label, ...] | None = None


@dataclass(frozen=True, eq=False)
class Reply:
    """What one caller gets.

    Attributes:
        answers: What JSON can hold, as `surefind.service.wire.Answer`; one for each vector.
        vectors: What was searched with: unit vectors (q, z), float32.
        stale: Whether the gallery has changed since it was calibrated.
    """

    answers: list[dict[str, Any]]
    vectors: np.ndarray
    stale: bool


def search_together(
    gallery: Gallery, has_picture: HasPicture, queries: Sequence[Query]
) -> list[Reply | Exception]:
    """Search for several callers at once; return a reply, or what is wrong with the query, for each."""
    found: dict[int, Reply | Exception] = {}
    kinds = [(q.novelty is not None, q.watch, None in q.kappa, q.labels) for q in queries]
    for kind in set(kinds):
        rows = [row for row, own in enumerate(kinds) if own == kind]
        alike = _search_alike(gallery, has_picture, [queries[row] for row in rows])
        found |= zip(rows, alike, strict=True)
    return [found[row] for row in range(len(queries))]


def _search_alike(
    gallery: Gallery, has_picture: HasPicture, queries: Sequence[Query]
) -> list[Reply | Exception]:
    try:
        return [*_searched(gallery, has_picture, queries)]
    except InputError as error:
        if len(queries) == 1:
            return [error]
    # Somebody's vectors cannot be used. Reading is cheap, so all are read again, one by one.
    faults = [_fault(gallery, query) for query in queries]
    good = [query for query, fault in zip(queries, faults, strict=True) if fault is None]
    replies: Iterator[Reply | Exception]
    try:
        replies = iter(_searched(gallery, has_picture, good) if good else ())
    except InputError as error:  # nothing is wrong with their vectors, so it belongs to all of them
        replies = iter([error] * len(good))
    return [fault or next(replies) for fault in faults]


def _searched(gallery: Gallery, has_picture: HasPicture, queries: Sequence[Query]) -> list[Reply]:
    vectors = unit_vectors(gallery, [vector for query in queries for vector in query.vectors])
    kappa = np.array([kappa_from_json(value) for query in queries for value in query.kappa])
    values = [p for query in queries for p in query.novelty or ()]
    embeddings = Embeddings(vectors, kappa, np.array(values) if values else None)
    most, only = max(query.k for query in queries), queries[0].labels
    labels = None if only is None else list(only)
    found = gallery.search(embeddings, most, labels=labels, watch=queries[0].watch)
    answers = found.records()
    ks = [query.k for query in queries for _ in query.vectors]
    for answer, k in zip(answers, ks, strict=True):
        near = answer["neighbours"][:k]
        for item in near:
            item["image"] = has_picture(item["id"], item["payload"])
        answer |= {"neighbours": near, "vector": None, "review": None}
    replies, start = [], 0
    for query in queries:
        rows = slice(start, start + len(query.vectors))
        replies.append(Reply(answers[rows], vectors[rows], found.stale))
        start = rows.stop
    return replies


def unit_vectors(gallery: Gallery, vectors: Vectors) -> np.ndarray:
    """Return queries as unit vectors (q, z), float32; refused if the gallery has no use for them."""
    dim = gallery.info["dim"]
    if dim is None:
        raise DegenerateError("the gallery is empty, so nothing can be found; add items first.")
    odd = next((vector for vector in vectors if len(vector) != dim), None)
    if odd is not None:
        raise InputError(
            f"a vector has {len(odd)} dimensions and the gallery {dim}; embed both with one model."
        )
    rows = np.array(vectors, dtype=np.float64)
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if (abs(lengths - 1) <= UNIT_TOLERANCE).all():
        return np.asarray(rows / lengths, dtype=np.float32)
    # The gallery's own door, which is slower, rescales the vectors or says what is wrong.
    return read_vectors(rows, normalize=gallery.normalize, dim=dim)[0]


def _fault(gallery: Gallery, query: Query) -> InputError | None:
    try:
        unit_vectors(gallery, query.vectors)
    except InputError as error:
        return error
    return None
