"""How many pixels may be decoded at once, so that memory is bounded however many clients upload.

A decoder holds a whole image, with four bytes a pixel, and now and then a second copy, turned upright or in
other colours. Images wait for each other, the first the longest, until together they have at most ``most``
pixels; so many small ones are decoded side by side, and the largest one alone.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class PixelBudget:
    """Shared by the threads that decode.

    Args:
        most: Pixels at once; one image alone may have as many.
    """

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0
        self._turn = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def taken(self, pixels: int) -> Iterator[None]:
        """Wait for one's turn and for room, and give it back at the end."""
        pixels, own = min(pixels, self._most), object()
        with self._turn:
            self._waiting.append(own)
            self._turn.wait_for(
                lambda: self._waiting[0] is own and self._used + pixels <= self._most
            )
            self._waiting.popleft()
            self._used += pixels
            self._turn.notify_all()
        try:
            yield
        finally:
            with self._turn:
                self._used -= pixels
                self._turn.notify_all()
