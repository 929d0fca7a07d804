"""Follows a gallery that another process writes, so that several processes can answer queries.

A service that only reads (``read_only``) looks every `PAUSE` seconds whether the writer has changed
anything, reads the gallery again if it has, beside the searches, and uses it from then on. Items and
calibration are of one moment: while the writer renews its calibration, answers are stale here too.

Reading again takes as long as opening, so a gallery that changes all the time is always some seconds old
here. If it cannot be read, that is logged and counted once, and tried until it can; answers are from what
was read last.
"""

import threading
from collections.abc import Callable

from surefind.gallery.gallery import Gallery

PAUSE = 1.0


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
        while not self._closing.wait(PAUSE):
            try:
                if self._gallery.refresh():
                    self._followed()
                failing = False
            except Exception as error:  # nobody waits for it; whoever operates the service is told
                if not failing:
                    self._failed(error)
                failing = True
