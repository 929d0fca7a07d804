"""What all endpoints share: the gallery, its listing, the queues in front of it, and the folder beside it.

Nothing slow happens on the event loop. Searches and image passes go through one queue each
(`surefind.apps.service.batching`); decoding, writing and listing go to a small pool of threads, and the
calibration is renewed in one of its own (`surefind.apps.service.renewer`).

The listing goes from the surest item to the least sure: an item is surer the higher its κ. An item
*confuses* another one if it is that one's nearest neighbour and has another label; how many it confuses is
counted over a sample of the gallery. The listing is made when it is first asked for, and again after the
gallery has changed.
"""

import asyncio
import functools
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypeVar

import numpy as np
from fastapi import Depends, Request

from surefind.apps.service.batching import Batcher, Query, Reply, search_together
from surefind.apps.service.embedding import ImageEmbedder, Learner
from surefind.apps.service.images import Thumbnails, small_picture
from surefind.apps.service.renewer import Renewer
from surefind.apps.service.reviews import FILE, Reviews
from surefind.apps.service.settings import Settings
from surefind.apps.service.telemetry import Metrics
from surefind.embeddings import Embeddings
from surefind.errors import RefusedError
from surefind.gallery.engine import Id, Label
from surefind.gallery.findings import Audit
from surefind.gallery.gallery import Gallery

R = TypeVar("R")
THREADS = 4
"""They bound how many images are decoded, and so held in memory, at once."""
SAMPLE = 1000
"""Items whose nearest neighbour is looked up to count confusions."""
BLOCK = 32
"""Searched at a time, so that other requests get their turn."""


class Catalogue:
    """The items of a gallery at one moment, listed.

    Attributes:
        content: The gallery's fingerprint then.
        surest: Ids, the highest κ first.
        labels: In use.
    """

    def __init__(self, gallery: Gallery) -> None:
        self._gallery, self.content = gallery, gallery.fingerprint
        kappa: dict[Id, float] = {}
        self.labels: set[Label] = set()
        for block in gallery.records():
            kappa |= {item.id: item.kappa for item in block}
            self.labels |= {item.label for item in block if item.label is not None}
        self.surest = sorted(kappa, key=lambda i: (-kappa[i], isinstance(i, str), i))

    @functools.cached_property
    def confusing(self) -> dict[Id, int]:
        """How many of the sample each item confuses, if any; the most first."""
        gallery, ids = self._gallery, self.surest
        chosen = np.random.default_rng(0).permutation(len(ids))[:SAMPLE]
        counts: Counter[Id] = Counter()
        for start in range(0, len(chosen), BLOCK):
            block = [ids[i] for i in chosen[start : start + BLOCK]]
            items = [gallery.get(i) for i in block if i in gallery]
            if not items:
                continue
            mean, kappa = zip(*((item.vector, item.kappa) for item in items), strict=True)
            queries = Embeddings(np.stack(mean), np.array(kappa))
            found = gallery.search(queries, k=2, decide=False)
            for item, near, labels in zip(items, found.ids, found.labels, strict=True):
                nearest = next((n for n, id_ in enumerate(near) if id_ != item.id), None)
                if nearest is not None and labels[nearest] != item.label:
                    counts[near[nearest]] += 1
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], str(pair[0]))))


class AppState:
    """One service's state.

    Args:
        gallery: What is searched; it is not closed here.
        learner: Embeds images, or None: then only vectors can be searched.
        settings: Places, tokens and limits.
    """

    def __init__(self, gallery: Gallery, learner: Learner | None, settings: Settings) -> None:
        self.gallery, self.settings = gallery, settings
        self.reviews = Reviews(settings.folder / FILE)
        self.draws = np.random.default_rng()  # for reviews, which must be independent of all else
        pictures = settings.folder / "thumbnails"
        self.thumbnails = Thumbnails(pictures, settings.images, settings.max_pixels)
        # Apart from those of items, whose ids may be anything.
        asked = settings.folder / "review-thumbnails"
        self.review_thumbnails = Thumbnails(asked, None, settings.max_pixels)
        self._catalogue: Catalogue | None = None
        self._audit: tuple[str, Audit] | None = None
        self.metrics = Metrics(gallery, lambda: len(self.reviews))
        self.renewer = Renewer(
            gallery, renewed=self.metrics.renewed, failed=self.metrics.renewal_failed
        )
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="surefind-service")
        self._lister = ThreadPoolExecutor(1, thread_name_prefix="surefind-list")
        batcher = functools.partial(Batcher, most=settings.max_batch, waiting=settings.max_waiting)
        search = functools.partial(search_together, gallery, self.thumbnails.has)
        self._searches: Batcher[Query, Reply] = batcher(
            search, observe=self.metrics.batch("search")
        )
        self._embedder = None if learner is None else ImageEmbedder(learner, settings.max_pixels)
        self._images: Batcher[np.ndarray, Embeddings] | None = None
        if self._embedder is not None:
            count = self.metrics.batch("embed")
            self._images = batcher(self._embedder.embed, wait=settings.max_wait, observe=count)

    @property
    def embeds(self) -> bool:
        """Whether images can be embedded."""
        return self._embedder is not None

    async def search(self, query: Query) -> Reply:
        """Search, in one batch with others who search now."""
        return await self._in_time(self._searches.ask(query))

    async def embed(self, data: bytes) -> Embeddings:
        """Decode and embed an upload; refused if it is no image, or there is no model."""
        embedder, images = self._embedder, self._images
        if embedder is None or images is None:
            sentence = "this service has no model, so it cannot embed images; send vectors."
            raise RefusedError(409, sentence)
        prepared = await self.work(lambda: embedder.read(data))
        return await self._in_time(images.ask(prepared))

    def picture(self, data: bytes) -> bytes:
        """Make a small picture of an upload that was embedded; to be called in a thread."""
        return small_picture(data, self.settings.max_pixels)

    async def work(self, call: Callable[[], R]) -> R:
        """Call something slow in a thread; past the time limit the caller gets 504, and it is finished."""
        return await self._in_thread(self._pool, call)

    async def list(self, call: Callable[[], R]) -> R:
        """Call something that may read the whole gallery, one after the other, so that writes go on."""
        return await self._in_thread(self._lister, call)

    def catalogue(self) -> Catalogue:
        """Return the listing of the gallery as it is; to be called by way of `list`."""
        if self._catalogue is None or self._catalogue.content != self.gallery.fingerprint:
            self._catalogue = Catalogue(self.gallery)
        return self._catalogue

    def audit(self, items: int) -> Audit:
        """Return an audit of the gallery as it is; to be called by way of `list`."""
        content = self.gallery.fingerprint
        if self._audit is None or self._audit[0] != content:
            self._audit = content, self.gallery.audit(items=items)
        return self._audit[1]

    async def close(self) -> None:
        """Finish everything that was begun."""
        for queue in (self._images, self._searches):
            if queue is not None:
                await queue.close()
        await asyncio.to_thread(self._pool.shutdown)
        await asyncio.to_thread(self._lister.shutdown)
        await asyncio.to_thread(self.renewer.close)
        self.reviews.close()

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[[], R]) -> R:
        loop = asyncio.get_running_loop()
        return await self._in_time(asyncio.shield(loop.run_in_executor(pool, call)))

    async def _in_time(self, task: Awaitable[R]) -> R:
        try:
            async with asyncio.timeout(self.settings.seconds):
                return await task
        except TimeoutError as error:
            limit = f"{self.settings.seconds:g} seconds"
            raise RefusedError(504, f"this took longer than {limit}; try again.") from error


async def state_of(request: Request) -> AppState:
    """Return the state of the application that got a request."""
    state: AppState = request.app.state.service
    return state


State = Annotated[AppState, Depends(state_of)]
