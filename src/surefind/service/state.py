"""What all endpoints share: the gallery, the queues in front of it, its upkeep, and the folder beside it.

Nothing slow happens on the event loop. Searches and image passes go through queues
(`surefind.service.batching`), requests of many vectors through one of their own; decoding, writing,
listing, and what takes minutes, go to small pools of threads, so that none waits for another kind. Two
images are decoded at a time, which bounds the memory that uploads take.

**Upkeep** (`Worker`). After a change `Gallery.renew` is called, one renewal at a time; what changes
meanwhile is taken in by the next one. It begins `DELAY` seconds later, so that a burst of changes is one
renewal. Answers are marked as stale until then, and each of them uses one calibration. Where there is no
calibration, it fits the label model again. No search waits for it. What fails is logged and counted, and
tried again after the next change.

**Replicas.** A service that only reads (``read_only``) looks every `PAUSE` seconds whether the writer has
changed anything, and reads the gallery again if it has, beside the searches. If it cannot be read, answers
are from what was read last.

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
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from surefind.embeddings import Embeddings
from surefind.gallery.gallery import Gallery, at_once
from surefind.service.batching import FEW, Batcher, Query, Reply, search_many, search_together
from surefind.service.guard import Buckets
from surefind.service.images import THUMBNAIL, ImageEmbedder, Learner, Thumbnails, small_picture
from surefind.service.review_store import FILE, Reviews
from surefind.service.settings import Settings
from surefind.service.telemetry import Metrics
from surefind.service.wire import RefusedError

R = TypeVar("R")
THREADS, DECODERS, LARGE = 4, 2, 64
"""Threads that write and look, threads that decode, and requests of many vectors that may wait."""
KEEPING = 600.0
"""Seconds for a calibration, a snapshot or an audit."""
DELAY, PAUSE, STOPPING = 0.1, 1.0, 1.0
FRESH, PATIENCE, RENEWING = 0.5, 2.0, 60.0
LEAST_ROOM = 2**20
"""Bytes that must be free on the disk."""


class Worker:
    """A thread that does something after it was told to, once for all that it was told meanwhile.

    Args:
        name: Of what it does.
        work: Does it.
        failed: Called with the name and the error if it fails, once for failures in a row.
        delay: Seconds that it waits first.
        every: Seconds after which it does it without being told.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], object],
        failed: Callable[[str, Exception], None],
        *,
        delay: float = 0.0,
        every: float | None = None,
    ) -> None:
        self._name, self._work, self._failed = name, work, failed
        self._delay, self._every = delay, every
        self._told, self.closing = threading.Event(), threading.Event()
        self.busy = False
        """Whether something is done, or about to be."""
        self._thread = threading.Thread(target=self._go_on, name=f"surefind-{name}", daemon=True)
        self._thread.start()

    def tell(self) -> None:
        """Let it be done soon; return at once."""
        self.busy = True
        self._told.set()

    def close(self) -> None:
        """End, and leave what takes longer than a moment to the end of the process."""
        self.closing.set()
        self._told.set()
        self._thread.join(STOPPING)

    def _go_on(self) -> None:
        failing = False
        while True:
            self._told.wait(self._every)
            if self.closing.wait(self._delay):
                return
            self._told.clear()
            try:
                self._work()
                failing = False
            except Exception as error:  # nobody waits for it; whoever operates the service is told
                if not (failing or self.closing.is_set()):
                    self._failed(self._name, error)
                failing = True
            self.busy = self._told.is_set()


class Readiness:
    """Finds out what a service is not ready for.

    Args:
        gallery: What is served.
        folder: Where the service keeps its own things.
        renewing: Whether the calibration is being renewed.
    """

    def __init__(self, gallery: Gallery, folder: Path, renewing: Callable[[], bool]) -> None:
        self._gallery, self._folder, self._renewing = gallery, folder, renewing
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="surefind-ready")
        self._found: tuple[float, list[str]] = -FRESH, []
        self._asked: asyncio.Future[list[str]] | None = None
        self._stale_since: float | None = None

    async def reasons(self) -> list[str]:
        """Return why the service is not ready, a phrase each; none if it is."""
        if time.monotonic() - self._found[0] < FRESH:
            return self._found[1]
        if self._asked is None or self._asked.done():
            loop = asyncio.get_running_loop()
            self._asked = loop.run_in_executor(self.thread, self._look)
        try:
            async with asyncio.timeout(PATIENCE):
                return await asyncio.shield(self._asked)
        except TimeoutError:
            return [f"service: finding out takes longer than {PATIENCE:g} seconds"]

    def _look(self) -> list[str]:
        faults: list[str] = self._gallery.info["faults"]
        fresh = [fault for fault in faults if not fault.startswith("calibration")]
        now = time.monotonic()
        self._stale_since = (self._stale_since or now) if fresh != faults else None
        if self._renewing() and now - (self._stale_since or now) < RENEWING:
            faults = fresh
        self._found = now, faults + _disk_faults(self._folder)
        return self._found[1]


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

    def __init__(self, gallery: Gallery, learner: Learner | None, settings: Settings) -> None:
        self.gallery, self.settings, self.buckets = gallery, settings, Buckets(settings.rate)
        self.reviews = Reviews(settings.folder / FILE)
        self.draws = np.random.default_rng()  # for reviews, which must be independent of all else
        pictures = settings.folder / "thumbnails"
        self.thumbnails = Thumbnails(pictures, settings.images, settings.max_pixels)
        # Apart from those of items, whose ids may be anything.
        asked = settings.folder / "review-thumbnails"
        self.review_thumbnails = Thumbnails(asked, None, settings.max_pixels)
        self._made: dict[Callable[[Gallery], Any], tuple[str, Any]] = {}
        self.metrics = metrics = Metrics(gallery, self.reviews)
        self._workers: dict[str, Worker] = {}
        self.readiness = Readiness(gallery, settings.folder, self._renewing)
        named = {"service": THREADS, "decode": DECODERS, "list": 1, "keep": 1}
        self._pools = {
            name: ThreadPoolExecutor(most, thread_name_prefix=f"surefind-{name}")
            for name, most in named.items()
        }
        has_picture = self.thumbnails.has
        self._searches: Batcher[Query, Reply] = Batcher(
            functools.partial(search_together, gallery, has_picture),
            prompt=self._at_once,
            observe=metrics.queue("search", lambda: len(self._searches)),
        )
        self._large: Batcher[Query, Reply] = Batcher(
            lambda queries: [search_many(gallery, has_picture, query) for query in queries],
            most=1,
            waiting=LARGE,
            observe=metrics.queue("search-many", lambda: len(self._large)),
        )
        self._embedder = None if learner is None else ImageEmbedder(learner, settings.max_pixels)
        self._images: Batcher[np.ndarray, Embeddings] = Batcher(
            self._embedder.embed if self._embedder is not None else list,  # type: ignore[arg-type]
            observe=metrics.queue("embed", lambda: len(self._images)),
        )

    def begin(self) -> None:
        """Begin to renew the calibration, or to follow the process that does."""
        make = functools.partial(Worker, failed=self.metrics.failed)

        if self.settings.read_only:
            self._workers["follow"] = make("follow", self._follow, every=PAUSE)
        else:
            self._workers["renew"] = make("renew", self._renew, delay=DELAY)
        self.changed()  # it may have been, while nothing served it

    def changed(self) -> None:
        """Renew soon what was made of the items; return at once."""
        for worker in self._workers.values():
            worker.tell()

    def _renew(self) -> None:
        start, before = time.perf_counter(), self.gallery.calibration
        after = self.gallery.renew()
        if before is not None and after is not None and after.renewals > before.renewals:
            self.metrics.renewed(time.perf_counter() - start)

    def _follow(self) -> None:
        if self.gallery.refresh():
            self.thumbnails.look_again()
            self.metrics.followed(len(self.gallery))

    def _renewing(self) -> bool:
        return "renew" in self._workers and self._workers["renew"].busy

    def _at_once(self, query: Query) -> AbstractContextManager[bool]:
        alone = len(query.vectors) == 1 and query.labels is None
        return at_once(self.gallery) if alone else nullcontext(False)

    @property
    def embeds(self) -> bool:
        """Whether images can be embedded."""
        return self._embedder is not None

    async def search(self, query: Query) -> Reply:
        """Search, in one batch with others who search now; or apart, with many vectors."""
        queue = self._searches if len(query.vectors) <= FEW else self._large
        return await self._in_time(queue.ask(query))

    async def embed(self, data: bytes) -> Embeddings:
        """Decode and embed an upload; refused if it is no image, or there is no model."""
        embedder = self._embedder
        if embedder is None:
            sentence = "this service has no model, so it cannot embed images; send vectors."
            raise RefusedError(409, sentence)
        prepared = await self._in_thread("decode", lambda: embedder.read(data))
        return await self._in_time(self._images.ask(prepared))

    def picture(self, data: bytes, longest: int = THUMBNAIL) -> bytes:
        """Make a small picture of an upload that was embedded; to be called in a thread."""
        most = self.settings.max_pixels
        return self._pools["decode"].submit(small_picture, data, most, longest).result()

    async def work(self, call: Callable[[], R]) -> R:
        """Call something slow in a thread; past the time limit it gets 504, and is begun no more."""
        return await self._in_thread("service", call)

    async def list(self, call: Callable[[], R]) -> R:
        """Call something that may read the whole gallery, one after the other, so that writes go on."""
        return await self._in_thread("list", call)

    async def keep(self, call: Callable[[], R]) -> R:
        """Call what keeps the gallery in order, for minutes perhaps, one after the other."""
        return await self._in_thread("keep", call, KEEPING)

    def current(self, make: Callable[[Gallery], R]) -> R:
        """Return what is made of the gallery as it is: kept until the gallery changes."""
        content = self.gallery.info["fingerprint"]
        if make not in self._made or self._made[make][0] != content:
            self._made[make] = content, make(self.gallery)
        found: R = self._made[make][1]
        return found

    async def close(self) -> None:
        """Finish what writes, and begin nothing that waits; what only computes is not waited for."""
        for queue in (self._images, self._searches, self._large):
            await queue.close()
        pools = {**self._pools, "ready": self.readiness.thread}
        for name, pool in pools.items():
            writes = name == "service"
            await asyncio.to_thread(pool.shutdown, wait=writes, cancel_futures=True)
        for worker in self._workers.values():
            await asyncio.to_thread(worker.close)
        self.reviews.close()

    async def _in_thread(self, pool: str, call: Callable[[], R], seconds: float | None = None) -> R:
        waiting = True

        def begin() -> R:
            if not waiting:
                raise RefusedError(504, "nobody waits for this any more.")
            return call()

        task = asyncio.get_running_loop().run_in_executor(self._pools[pool], begin)
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
