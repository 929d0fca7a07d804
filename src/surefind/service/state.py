"""What all endpoints share: the gallery, its listing, the queues in front of it, and the folder beside it.

Nothing slow happens on the event loop. Searches and image passes go through one queue each
(`surefind.service.batching`); decoding, writing, listing, and what takes minutes, go to small pools of
threads, so that none waits for another kind. The calibration is renewed in a thread of its own
(`surefind.service.renewer`). Images that are decoded at once have at most ``max_pixels`` pixels in all
(`surefind.service.pixels`).

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
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Request

from surefind.embeddings import Embeddings
from surefind.gallery.engine import Id
from surefind.gallery.findings import Audit
from surefind.gallery.gallery import Gallery
from surefind.service.batching import Batcher, Query, Reply, search_together
from surefind.service.embedding import ImageEmbedder, Learner
from surefind.service.follower import Follower
from surefind.service.health import Readiness
from surefind.service.images import THUMBNAIL, Thumbnails, check_header, small_picture
from surefind.service.pixels import PixelBudget
from surefind.service.renewer import Renewer
from surefind.service.reviews import FILE, Reviews
from surefind.service.settings import Settings
from surefind.service.telemetry import Metrics, tokens_failed, tokens_reloaded
from surefind.service.wire import RefusedError

R = TypeVar("R")
THREADS = 4
KEEPING = 600.0
"""Seconds for a calibration, a snapshot or an audit."""
SAMPLE = 1000
"""Items whose nearest neighbour is looked up to count confusions."""
BLOCK = 32
"""Searched at a time, so that other requests get their turn."""


class Catalogue:
    """The items of a gallery at one moment, listed.

    Attributes:
        content: The gallery's fingerprint then.
        surest: Ids, the highest κ first.
    """

    content: str
    surest: list[Id]

    def __init__(self, gallery: Gallery) -> None:
        self._gallery, self.content = gallery, gallery.info["fingerprint"]
        kappa = {item.id: item.kappa for item in gallery.items()}
        self.surest = sorted(kappa, key=lambda id_: (-kappa[id_], isinstance(id_, str), id_))

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

    gallery: Gallery
    settings: Settings
    reviews: Reviews
    draws: np.random.Generator
    thumbnails: Thumbnails
    review_thumbnails: Thumbnails
    metrics: Metrics
    renewer: Renewer
    readiness: Readiness

    def __init__(self, gallery: Gallery, learner: Learner | None, settings: Settings) -> None:
        self.gallery, self.settings = gallery, settings
        settings.keyring.reloaded, settings.keyring.failed = tokens_reloaded, tokens_failed
        self.reviews = Reviews(settings.folder / FILE)
        self.draws = np.random.default_rng()  # for reviews, which must be independent of all else
        pictures = settings.folder / "thumbnails"
        self.thumbnails = Thumbnails(pictures, settings.images, settings.max_pixels)
        # Apart from those of items, whose ids may be anything.
        asked = settings.folder / "review-thumbnails"
        self.review_thumbnails = Thumbnails(asked, None, settings.max_pixels)
        self._catalogue: Catalogue | None = None
        self._audit: tuple[str, Audit] | None = None
        self.metrics = Metrics(
            gallery,
            lambda: len(self.reviews),
            lambda: self.reviews.dropped,
            folder=settings.folder,
        )
        self.renewer = Renewer(
            gallery, renewed=self.metrics.renewed, failed=self.metrics.renewal_failed
        )
        self.readiness = Readiness(gallery, settings.folder, lambda: self.renewer.busy)
        self._follower: Follower | None = None
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="surefind-service")
        self._pixels = PixelBudget(settings.max_pixels)
        self._decoders = ThreadPoolExecutor(THREADS, thread_name_prefix="surefind-decode")
        self._lister = ThreadPoolExecutor(1, thread_name_prefix="surefind-list")
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="surefind-keep")
        batcher = functools.partial(Batcher, most=settings.max_batch, waiting=settings.max_waiting)
        search = functools.partial(search_together, gallery, self.thumbnails.has)
        self._searches: Batcher[Query, Reply] = batcher(
            search, observe=self.metrics.batch("search")
        )
        self.metrics.queue("search", lambda: len(self._searches))
        self._embedder = None if learner is None else ImageEmbedder(learner, settings.max_pixels)
        self._images: Batcher[np.ndarray, Embeddings] | None = None
        if self._embedder is not None:
            count = self.metrics.batch("embed")
            images = batcher(self._embedder.embed, wait=settings.max_wait, observe=count)
            self._images = images
            self.metrics.queue("embed", lambda: len(images))

    def begin(self) -> None:
        """Begin to renew the calibration, or to follow the process that does."""
        if self.settings.read_only:
            failed = self.metrics.following_failed
            self._follower = Follower(self.gallery, followed=self._followed, failed=failed)
            self.renewer.build()
        else:
            self.renewer.changed()  # it may have been, while nothing served it

    def _followed(self) -> None:
        self.renewer.build()
        self.thumbnails.look_again()
        self.metrics.followed(len(self.gallery))

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
        prepared = await self._in_thread(self._decoders, lambda: self._decoded(embedder.read, data))
        return await self._in_time(images.ask(prepared))

    def picture(self, data: bytes, longest: int = THUMBNAIL) -> bytes:
        """Make a small picture of an upload that was embedded; to be called in a thread."""
        most = self.settings.max_pixels
        return self._decoded(lambda data: small_picture(data, most, longest), data)

    def _decoded(self, decode: Callable[[bytes], R], data: bytes) -> R:
        with self._pixels.taken(check_header(data, self.settings.max_pixels)):
            return decode(data)

    async def work(self, call: Callable[[], R]) -> R:
        """Call something slow in a thread; past the time limit it gets 504, and is begun no more."""
        return await self._in_thread(self._pool, call)

    async def list(self, call: Callable[[], R]) -> R:
        """Call something that may read the whole gallery, one after the other, so that writes go on."""
        return await self._in_thread(self._lister, call)

    async def keep(self, call: Callable[[], R]) -> R:
        """Call what keeps the gallery in order, for minutes perhaps, one after the other."""
        return await self._in_thread(self._keeper, call, KEEPING)

    def catalogue(self) -> Catalogue:
        """Return the listing of the gallery as it is; to be called by way of `list`."""
        if self._catalogue is None or self._catalogue.content != self.gallery.info["fingerprint"]:
            self._catalogue = Catalogue(self.gallery)
        return self._catalogue

    def audit(self, items: int) -> Audit:
        """Return an audit of the gallery as it is; to be called by way of `keep`."""
        content = self.gallery.info["fingerprint"]
        if self._audit is None or self._audit[0] != content:
            self._audit = content, self.gallery.audit(items=items)
        return self._audit[1]

    async def close(self) -> None:
        """Finish what was begun, and begin nothing that waits in a pool."""
        for queue in (self._images, self._searches):
            if queue is not None:
                await queue.close()
        for pool in (self._decoders, self._pool, self._lister, self._keeper):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        await asyncio.to_thread(self.renewer.close)
        self.readiness.close()
        if self._follower is not None:
            await asyncio.to_thread(self._follower.close)
        self.reviews.close()

    async def _in_thread(
        self, pool: ThreadPoolExecutor, call: Callable[[], R], seconds: float | None = None
    ) -> R:
        waiting = True

        def begin() -> R:
            if not waiting:
                raise RefusedError(504, "nobody waits for this any more.")
            return call()

        task = asyncio.get_running_loop().run_in_executor(pool, begin)
        try:
            return await self._in_time(asyncio.shield(task), seconds)
        except BaseException:
            waiting = False
            task.add_done_callback(_unread)
            raise

    async def _in_time(self, task: Awaitable[R], seconds: float | None = None) -> R:
        seconds = self.settings.seconds if seconds is None else seconds
        try:
            async with asyncio.timeout(seconds):
                return await task
        except TimeoutError as error:
            limit = f"{seconds:g} seconds"
            raise RefusedError(504, f"this took longer than {limit}; try again.") from error


def _unread(task: "asyncio.Future[Any]") -> None:
    """Take note of an error that nobody waits for, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


async def state_of(request: Request) -> AppState:
    """Return the state of the application that got a request."""
    state: AppState = request.app.state.service
    return state


State = Annotated[AppState, Depends(state_of)]
