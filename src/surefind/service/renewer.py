"""Renews the calibration in the background, so that answers are marked as stale for a moment only.

After a change a thread of its own calls `Gallery.renew`, one renewal at a time; what changes meanwhile is
taken in by the next one. It waits for `DELAY` seconds first, so that a burst of changes is one renewal.
Searches go on, and each of them uses one calibration (`surefind.gallery.calibrating`).

Another thread builds the graph that searches walk, at the start and when changes have left much of it
behind; searches are exact until it is there (`surefind.Gallery.prepare`).

A renewal that fails is logged and counted; answers stay marked as stale, and the next change tries again.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from surefind.gallery.gallery import Gallery

DELAY = 0.1


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
        self._graph: Future[None] | None = None
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="surefind-graph")

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
        self.build()

    def build(self) -> None:
        """Build what is missing of the graph, if searches walk one; return at once."""
        with self._lock:
            if not self._closing.is_set() and (self._graph is None or self._graph.done()):
                self._graph = self._builder.submit(self._build)

    def close(self) -> None:
        """Wait for a renewal that has begun; one that has not is left to the next start, as is a graph."""
        with self._lock:
            self._closing.set()
        self._builder.shutdown()
        self._thread.shutdown()

    def _build(self) -> None:
        try:
            self._gallery.prepare(self._closing.is_set)
        except Exception as error:  # searches stay exact
            self._failed(error)

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
