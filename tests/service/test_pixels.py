"""What is decoded at once is bounded by pixels."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from service.world import png

from surefind.service import images as embedding
from surefind.service.images import PixelBudget


def test_images_that_are_decoded_at_once_have_no_more_pixels_than_the_largest():
    budget, lock = PixelBudget(100), threading.Lock()
    now, most, alone = 0, 0, 0

    def decode(pixels):
        nonlocal now, most, alone
        with budget.taken(pixels):
            with lock:
                now += pixels
                most, alone = max(most, now), max(alone, now - pixels)
            time.sleep(0.002)
            with lock:
                now -= pixels

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(decode, [100, 10, 10, 60, 1, 1, 99, 40, 30] * 10))
    assert now == 0
    assert most <= 100
    assert alone > 0  # small ones were decoded side by side


def test_an_error_gives_its_room_back():
    budget = PixelBudget(10)
    for _ in range(3):
        try:
            with budget.taken(10):
                raise ValueError
        except ValueError:
            pass
    with budget.taken(10):
        pass


def test_uploads_share_the_bound(serve, ask, world, monkeypatch):
    """Many clients, each with the largest image allowed: one is decoded at a time."""
    client = serve(max_pixels=64)
    read, lock, now, most = embedding.ImageEmbedder.read, threading.Lock(), 0, 0

    def slow(self, data):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.02)
        try:
            return read(self, data)
        finally:
            with lock:
                now -= 1

    monkeypatch.setattr(embedding.ImageEmbedder, "read", slow)
    data = png(np.asarray(world.known[0]))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(client, data), range(16)))
    assert {answer.status_code for answer in answers} == {200}
    assert most == 1
