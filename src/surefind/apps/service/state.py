"""What all endpoints share: the gallery, the queues in front of it, and the folder beside it.

Nothing slow happens on the event loop. Searches and image passes go through one queue each
(`surefind.apps.service.batching`); decoding, writing and listing go to a small pool of threads.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypeVar

import numpy as np
from fastapi import Depends, Request

from surefind.apps.service.batching import Batcher
from surefind.apps.service.embedding import ImageEmbedder, Learner
from surefind.apps.service.images import Thumbnails, small_picture
from surefind.apps.service.listing import Catalogues
from surefind.apps.service.querying import Query, Reply, search_together
from surefind.apps.service.reviews import FILE, Reviews
from surefind.apps.service.settings import Settings
from surefind.apps.service.telemetry import Metrics
from surefind.embeddings import Embeddings
from surefind.errors import RefusedError
from surefind.gallery.gallery import Gallery

R = TypeVar("R")
THREADS = 4
"""They bound how many images are decoded, and so held in memory, at once."""


class Desk:
    """One service's state.

    Args:
        gallery: What is searched; it is not closed here.
        learner: Embeds images, or None: then only vectors can be searched.
        settings: Places, tokens and limits.
    """

    def __init__(self, gallery: Gallery, learner: Learner | None, settings: Settings) -> None:
        self.gallery, self.settings = gallery, settings
        self.reviews = Reviews(settings.folder / FILE)
        self.thumbnails = Thumbnails(
            settings.folder / "thumbnails", settings.images, settings.max_pixels
        )
        self.catalogues = Catalogues(gallery)
        self.metrics = Metrics(lambda: len(gallery), lambda: len(self.reviews))
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="surefind-service")
        self._lister = ThreadPoolExecutor(1, thread_name_prefix="surefind-list")
        self._embedder = None if learner is None else ImageEmbedder(learner, settings.max_pixels)
        self._searches: Batcher[Query, Reply] = Batcher(
            functools.partial(search_together, gallery, self.thumbnails.has),
            most=settings.max_batch,
            waiting=settings.max_waiting,
            observe=self.metrics.batch("search"),
        )
        self._images: Batcher[np.ndarray, Embeddings] | None = None
        if self._embedder is not None:
            self._images = Batcher(
                self._embedder.embed,
                most=settings.max_batch,
                wait=settings.max_wait,
                waiting=settings.max_waiting,
                observe=self.metrics.batch("embed"),
            )

    @property
    def embeds(self) -> bool:
        """Whether images can be embedded."""
        return self._embedder is not None

    async def search(self, query: Query) -> Reply:
        """Search, together with others who search now."""
        return await self._in_time(self._searches.ask(query))

    async def embed(self, data: bytes) -> Embeddings:
        """Decode and embed an upload.

        Args:
            data: The upload.

        Returns:
            Its embedding.

        Raises:
            RefusedError: If it is no image, or there is no model.
        """
        embedder, images = self._embedder, self._images
        if embedder is None or images is None:
            raise RefusedError(
                409, "this service has no model, so it cannot embed images; send vectors."
            )
        prepared = await self.work(lambda: embedder.read(data))
        return await self._in_time(images.ask(prepared))

    def picture(self, data: bytes) -> bytes:
        """Make a small picture of an upload that was embedded; to be called in a thread."""
        return small_picture(data, self.settings.max_pixels)

    async def work(self, call: Callable[[], R]) -> R:
        """Do something slow in a thread.

        Args:
            call: What to do. If it takes too long the caller is told so, and it is finished all the same.

        Returns:
            What it gave.
        """
        return await self._in_thread(self._pool, call)

    async def list(self, call: Callable[[], R]) -> R:
        """Do something that may look at the whole gallery, after others who do, so that writes go on.

        Args:
            call: What to do, as for `work`.

        Returns:
            What it gave.
        """
        return await self._in_thread(self._lister, call)

    async def close(self) -> None:
        """Finish everything that was begun."""
        for queue in (self._images, self._searches):
            if queue is not None:
                await queue.close()
        await asyncio.to_thread(self._pool.shutdown)
        await asyncio.to_thread(self._lister.shutdown)
        self.reviews.close()

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], R]) -> R:
        loop = asyncio.get_running_loop()
        return await self._in_time(asyncio.shield(loop.run_in_executor(pool, call)))

    async def _in_time(self, task: Awaitable[R]) -> R:
        try:
            async with asyncio.timeout(self.settings.seconds):
                return await task
        except TimeoutError as error:
            raise RefusedError(
                504, f"this took longer than {self.settings.seconds:g} seconds; try again."
            ) from error


async def desk_of(request: Request) -> Desk:
    """Give the desk of the application that got a request."""
    desk: Desk = request.app.state.desk
    return desk


AtDesk = Annotated[Desk, Depends(desk_of)]
