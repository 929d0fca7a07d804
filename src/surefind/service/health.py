"""Whether the service is alive, and whether it is ready for what it is there for.

Alive is whoever answers at all. Ready is a service whose gallery is open, whose graph is built, whose
calibration is fresh and whose disk can be written. A calibration that is being renewed counts as fresh for
`RENEWING` seconds: changes come all the time, and answers say that they are stale.

Neither waits for the threads or the lock that searches and changes wait for. Readiness is found out in a
thread of its own, at most once in `FRESH` seconds, and whoever asks while that takes longer than `PATIENCE`
is told so.
"""

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from surefind.gallery.gallery import Gallery

FRESH, PATIENCE, RENEWING = 0.5, 2.0, 60.0
LEAST_ROOM = 2**20
"""Bytes that must be free on the disk."""


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
