"""Requests that arrive together are done together.

Callers put items into a queue. One worker thread takes what has come, up to a limit, and does it in one
call; while it works, more items gather for the next call. So a busy service has large batches and an idle
one answers at once, or after ``wait`` seconds if that is given to let others join.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from surefind.errors import RefusedError

T = TypeVar("T")
R = TypeVar("R")


class Batcher(Generic[T, R]):
    """A queue and the thread that works it off.

    Args:
        run: Does a batch; gives a result, or an error, for each item.
        most: Items in a batch.
        wait: Seconds to wait for more when fewer have come.
        waiting: Items that may wait.
        observe: Told the size of every batch.
    """

    def __init__(
        self,
        run: Callable[[list[T]], Sequence[R | Exception]],
        *,
        most: int,
        wait: float | int = 0,
        waiting: int = 1024,
        observe: Callable[[int], Any] = lambda _size: None,
    ) -> None:
        self._run, self._most, self._wait, self._waiting = run, most, wait, waiting
        self._observe = observe
        self._queue: list[tuple[T, asyncio.Future[R]]] = []
        self._drain: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="surefind-batch")

    async def ask(self, item: T) -> R:
        """Have an item done.

        Args:
            item: What to do.

        Returns:
            Its result.

        Raises:
            RefusedError: If too many wait already.
        """
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

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            if self._wait and len(self._queue) < self._most:
                await asyncio.sleep(self._wait)
            taken, self._queue = self._queue[: self._most], self._queue[self._most :]
            # Whoever has gone away need not be served.
            batch = [(item, future) for item, future in taken if not future.done()]
            if not batch:
                continue
            self._observe(len(batch))
            results: Sequence[Any]
            try:
                items = [item for item, _ in batch]
                results = await loop.run_in_executor(self._thread, self._run, items)
            except Exception as error:  # it belongs to those who asked
                results = [error] * len(batch)
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        self._drain = None
