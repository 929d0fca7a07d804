"""What all endpoints share: the gallery, the queues in front of it, its upkeep, and the folder beside it.

Nothing slow happens on the event loop. Searches and image passes go through one queue each
(`surefind.service.batching`); decoding, writing, listing, and what takes minutes, go to small pools of
threads, so that none waits for another kind.

**Recalibration in the background.** After a change a thread of its own calls `Gallery.renew`, one renewal
at a time; what changes meanwhile is taken in by the next one. It waits for `DELAY` seconds first, so that a
burst of changes is one renewal. Answers are marked as stale until then, and each of them uses one
calibration. A renewal that fails is logged and counted, and the next change tries again. Where there is no
calibration, it fits the label model again. No search waits for it.

**Replicas.** A service that only reads (``read_only``) looks every `PAUSE` seconds whether the writer has
changed anything, and reads the gallery again if it has, beside the searches. If it cannot be read, that is
logged and counted once, and tried until it can; answers are from what was read last.

**Readiness.** Alive is whoever answers at all. Ready is a service whose gallery is open, whose graph is
built, whose calibration is fresh and whose disk can be written. A calibration that is being renewed counts
as fresh for `RENEWING` seconds. Readiness waits for no thread or lock of searches and changes: it is found
out in a thread of its own, at most once in `FRESH` seconds, and whoever asks while that takes longer than
`PATIENCE` is told so.
"""

import asyncio
import functools
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from surefind.embeddings import Embeddings
from surefind.gallery.gallery import Gallery
from surefind.service.batching import Batcher, Query, Reply, search_together
from surefind.service.images import (
    THUMBNAIL,
    ImageEmbedder,
    Learner,
    PixelBudget,
    Thumbnails,
    check_header,
    small_picture,
)
from surefind.service.review_store import FILE, Reviews
from surefind.service.settings import Settings
from surefind.service.telemetry import Metrics, tokens_failed, tokens_reloaded
from surefind.service.wire import RefusedError

R = TypeVar("R")
THREADS = 4
KEEPING = 600.0
"""Seconds for a calibration, a snapshot or an audit."""
IMAGES_WAIT = 0.002
"""Seconds that an image waits for others to be embedded with."""
DELAY, PAUSE = 0.1, 1.0
FRESH, PATIENCE, RENEWING = 0.5, 2.0, 60.0
LEAST_ROOM = 2**20
"""Bytes that must be free on the disk."""


class Renewer:
    """A thread that renews a gallery's calibration when it is told of a change.

    Args:
        gallery: Whose calibration.
        renewed: Called with the seconds of every renewal.
        failed: Called with every error.
    """

    def __init__(
        self,
        gallery: Gallery,
        *,
        renewed: Callable[[float], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._gallery, self._renewed, self._failed = gallery, renewed, failed
        self._lock = threading.Lock()
        self._wanted = False
        self._closing = threading.Event()
        self._task: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="surefind-renew")

    @property
    def busy(self) -> bool:
        """Whether a renewal is under way, or about to be."""
        return self._task is not None

    def changed(self) -> None:
        """Renew soon; return at once."""
        with self._lock:
            self._wanted = True
            if self._closing.is_set():
                return
            if self._task is None:
                self._task = self._thread.submit(self._work)

    def close(self) -> None:
        """Wait for a renewal that has begun; one that has not is left to the next start."""
        with self._lock:
            self._closing.set()
        self._thread.shutdown()

    def _work(self) -> None:
        while True:
            self._closing.wait(DELAY)
            with self._lock:
                if self._closing.is_set() or not self._wanted:
                    self._task = None
                    return
                self._wanted = False
            start, before = time.perf_counter(), self._gallery.calibration
            try:
                after = self._gallery.renew()
            except Exception as error:  # nobody waits for it; whoever operates the service is told
                self._failed(error)
            else:
                if before is not None and after is not None and after.renewals > before.renewals:
                    self._renewed(time.perf_counter() - start)


class Follower:
    """A thread that reads a gallery again when it was changed elsewhere.

    Args:
        gallery: Opened for reading.
        followed: Called when it was read again.
        failed: Called with the error when it can no longer be read.
    """

    def __init__(
        self,
        gallery: Gallery,
        *,
        followed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self._gallery, self._followed, self._failed = gallery, followed, failed
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="surefind-follow")
        self._thread.start()

    def close(self) -> None:
        """Wait until it has ended."""
        self._closing.set()
        self._thread.join()

    def _work(self) -> None:
        failing = False
        while True:
            try:
                if self._gallery.refresh():
                    self._followed()
                failing = False
            except Exception as error:  # nobody waits for it; whoever operates the service is told
                if not failing:
                    self._failed(error)
                failing = True
            if self._closing.wait(PAUSE):
                return


class Readiness:
    """Finds out what a service is not ready for.

    Args:
        gallery: What is served.
        folder: Where the service keeps its own things.
        renewing: Whether the calibration is being renewed.
    """

    def __init__(self, gallery: Gallery, folder: Path, renewing: Callable[[], bool]) -> None:
        self._gallery, self._folder, self._renewing = gallery, folder, renewing
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="surefind-ready")
        self._found: tuple[float, list[str]] | None = None
        self._asked: asyncio.Future[list[str]] | None = None
        self._stale_since: float | None = None

    async def reasons(self) -> list[str]:
        """Return why the service is not ready, a phrase each; none if it is."""
        if self._found is not None and time.monotonic() - self._found[0] < FRESH:
            return self._found[1]
        if self._asked is None or self._asked.done():
            loop = asyncio.get_running_loop()
            self._asked = loop.run_in_executor(self._thread, self._look)
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(self._asked)
        except TimeoutError:
            return [f"service: finding out takes longer than {PATIENCE:g} seconds"]

    def close(self) -> None:
        """End the thread, without waiting for a disk that does not answer."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> list[str]:
        faults: list[str] = self._gallery.info["faults"]
        stale = any(fault.startswith("calibration") for fault in faults)
        now = time.monotonic()
        self._stale_since = (self._stale_since or now) if stale else None
        if stale and self._renewing() and now - (self._stale_since or now) < RENEWING:
            faults = [fault for fault in faults if not fault.startswith("calibration")]
        found = faults + _disk_faults(self._folder)
        self._found = time.monotonic(), found
        return found


def _disk_faults(folder: Path) -> list[str]:
    """Write a byte to the disk, and look how much room is left."""
    probe = folder / ".ready"
    try:
        with probe.open("wb") as file:
            file.write(b"1")
            file.flush()
            os.fsync(file.fileno())
        room = os.statvfs(folder)
        probe.unlink()
    except OSError as error:
        return [f"disk: it cannot be written ({error.strerror or type(error).__name__})"]
    return [] if room.f_bavail * room.f_frsize >= LEAST_ROOM else ["disk: it is full"]


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
        self._made: dict[Callable[[Gallery], Any], tuple[str, Any]] = {}
        self.metrics = Metrics(gallery, self.reviews, settings.folder)
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
        search = functools.partial(search_together, gallery, self.thumbnails.has)
        searches: Batcher[Query, Reply] = Batcher(search)
        searches.observe = self.metrics.queue("search", searches.__len__)
        self._searches = searches
        self._embedder = None if learner is None else ImageEmbedder(learner, settings.max_pixels)
        self._images: Batcher[np.ndarray, Embeddings] | None = None
        if self._embedder is not None:
            self._images = Batcher(self._embedder.embed, wait=IMAGES_WAIT)
            self._images.observe = self.metrics.queue("embed", self._images.__len__)

    def begin(self) -> None:
        """Begin to renew the calibration, or to follow the process that does."""
        if self.settings.read_only:
            failed = self.metrics.following_failed
            self._follower = Follower(self.gallery, followed=self._followed, failed=failed)
        else:
            self.renewer.changed()  # it may have been, while nothing served it

    def _followed(self) -> None:
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

    def current(self, make: Callable[[Gallery], R]) -> R:
        """Return what is made of the gallery as it is: kept until the gallery changes."""
        content = self.gallery.info["fingerprint"]
        if make not in self._made or self._made[make][0] != content:
            self._made[make] = content, make(self.gallery)
        found: R = self._made[make][1]
        return found

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
