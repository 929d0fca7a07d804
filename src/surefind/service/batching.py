"""Requests that arrive together are answered together.

Callers put items into the queue of a `Batcher`. One worker thread takes what has come, up to a limit, and
does it in one call; while it works, more items gather for the next call. So a busy service has large
batches and an idle one answers at once. Callers that ask again as soon as they are answered come one by
one: the first would be served alone, and the others after it. So a batch waits a moment until as many have
come as were there before.

The way to a thread and back takes as long as a search of some thousand items. So an item that is alone may
be done on the event loop, as long as the last one that was alone took less than `PROMPT`, and if whoever
does it says that it would wait for nothing; `/healthz` and all others wait no longer than that for it.

If a call fails, its items are done again by halves, until the one that it fails for is alone: nobody's
request fails for what somebody else sent.

`search_together` is what the queue of searches does: the queries of many callers in one search, taken
apart again. Labels and decisions do not depend on k, so searching with the largest k of all and cutting
gives each caller the same answer as searching alone. Queries with novelty and queries without are two
searches, because a gallery takes all or none with it; so are those with κ and without, of which it may
refuse the latter, those that are watched and those that are not, and those with other labels.

A request with more than `FEW` vectors is answered apart from the others, `FEW` at a time, so that smaller
ones get their turn in between.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from surefind.embeddings import Embeddings, kappa_from_json
from surefind.errors import StorageError
from surefind.gallery.gallery import Gallery
from surefind.gallery.records import Id, Label, read_vectors
from surefind.service.wire import RefusedError

LINGER = 0.004
"""Seconds that a batch waits for as many callers as there were around one that has just ended."""
PROMPT = 0.002
"""Seconds that the event loop may be held for a search."""
FEW = 16

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
        waiting: Items that may wait; later ones are sent away.
        prompt: For an item that is alone, a context that says whether it would wait for nothing.
        observe: Called with the size of every batch.
    """

    def __init__(
        self,
        run: Callable[[list[T]], Sequence[R | Exception]],
        *,
        most: int = 64,
        waiting: int = 1024,
        prompt: Callable[[T], AbstractContextManager[bool]] = lambda _: nullcontext(False),
        observe: Callable[[int], Any] = lambda _: None,
    ) -> None:
        self._run, self._most, self._waiting = run, most, waiting
        self._prompt, self._observe = prompt, observe
        self._alone = PROMPT  # seconds of a processor that the last one took that was alone
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
        start = time.thread_time()
        try:
            found = self._run(items)
        except Exception as error:
            if len(items) == 1 or isinstance(error, StorageError):
                return [error] * len(items)
            half = len(items) // 2
            return [*self._isolated(items[:half]), *self._isolated(items[half:])]
        if len(items) == 1:
            self._alone = time.thread_time() - start
        return found

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
        while self._queue:
            await self._gather()
            taken, self._queue = self._queue[: self._most], self._queue[self._most :]
            # Whoever has gone away need not be served.
            batch = [(item, future) for item, future in taken if not future.done()]
            if not batch:
                continue
            self._observe(len(batch))
            results = await self._done([item for item, _ in batch])
            self._around, self._ended = len(self._queue) + len(batch), time.perf_counter()
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        self._drain = None

    async def _done(self, items: list[T]) -> Sequence[R | Exception]:
        if len(items) == 1 and self._alone < PROMPT:
            with self._prompt(items[0]) as at_once:
                if at_once:
                    return self._isolated(items)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._isolated, items)


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
        payload: Whether the items' payloads are wanted.
    """

    vectors: Vectors
    kappa: Sequence[float | None]
    k: int
    novelty: Sequence[float] | None = None
    watch: bool = True
    labels: tuple[Label, ...] | None = None
    payload: bool = False

    def parts(self) -> list["Query"]:
        """Return queries of `FEW` vectors each."""
        every = [slice(start, start + FEW) for start in range(0, len(self.vectors), FEW)]
        return [
            replace(
                self,
                vectors=self.vectors[rows],
                kappa=self.kappa[rows],
                novelty=None if self.novelty is None else self.novelty[rows],
            )
            for rows in every
        ]


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


def search_many(gallery: Gallery, has_picture: HasPicture, query: Query) -> Reply:
    """Search with many vectors, some at a time."""
    replies = [search_together(gallery, has_picture, [part])[0] for part in query.parts()]
    return Reply(
        [answer for reply in replies for answer in reply.answers],
        np.concatenate([reply.vectors for reply in replies]),
        any(reply.stale for reply in replies),
    )


def search_together(
    gallery: Gallery, has_picture: HasPicture, queries: Sequence[Query]
) -> list[Reply]:
    """Search for several callers at once; return a reply for each."""
    found: dict[int, Reply] = {}
    kinds = [(q.novelty is not None, q.watch, None in q.kappa, q.labels) for q in queries]
    for kind in set(kinds):
        rows = [row for row, own in enumerate(kinds) if own == kind]
        alike = _searched(gallery, has_picture, [queries[row] for row in rows])
        found |= zip(rows, alike, strict=True)
    return [found[row] for row in range(len(queries))]


def _searched(gallery: Gallery, has_picture: HasPicture, queries: Sequence[Query]) -> list[Reply]:
    asked = [vector for query in queries for vector in query.vectors]
    vectors, _, _ = read_vectors(asked, normalize=gallery.normalize, dim=None, name="vectors")
    kappa = np.array([kappa_from_json(value) for query in queries for value in query.kappa])
    values = [p for query in queries for p in query.novelty or ()]
    embeddings = Embeddings(vectors, kappa, np.array(values) if values else None)
    most, only = max(query.k for query in queries), queries[0].labels
    labels = None if only is None else list(only)
    found = gallery.search(embeddings, most, labels=labels, watch=queries[0].watch)
    records, replies, start = found.records(), [], 0
    for query in queries:
        rows = slice(start, start + len(query.vectors))
        for answer in records[rows]:
            near = answer["neighbours"][: query.k]
            for item in near:
                item["image"] = has_picture(item["id"], item["payload"])
                item["payload"] = item["payload"] if query.payload else None
            answer |= {"neighbours": near, "vector": None, "review": None, "dropped": False}
        replies.append(Reply(records[rows], vectors[rows], found.stale))
        start = rows.stop
    return replies
