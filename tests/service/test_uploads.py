"""Uploads from strangers: a right answer or a clear refusal; never a crash, never a leak."""

import gc
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from service.hostile import noise, rotated, save, uploads
from service.world import png

from surefind.service.images import check_header, small_picture
from surefind.service.wire import RefusedError

UPLOADS = uploads()
ROUNDS = 200
LEAK = 40 * 2**20


@pytest.fixture
def light(serve):
    """A service whose limit is below that of the smaller bomb."""
    return serve(max_pixels=20_000_000)


def test_each_upload_is_answered_or_refused(light, ask):
    for name, (data, statuses) in UPLOADS.items():
        answer = ask(light, data, "photo.jpg", keep=False)
        assert answer.status_code in statuses, (name, answer.text)
        if answer.status_code != 200:
            assert answer.json()["error"].endswith(".")
            assert "photo" not in answer.text
            assert "/tmp" not in answer.text


@pytest.mark.nightly
def test_many_of_them_leave_no_memory_behind(light, ask):
    def round_of(count):
        for i in range(count):
            data, _ = list(UPLOADS.values())[i % len(UPLOADS)]
            ask(light, data, keep=False)
        gc.collect()
        return resident()

    before = round_of(2 * len(UPLOADS))
    assert round_of(ROUNDS) - before < LEAK


def resident():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_what_is_no_image_is_refused_wherever_it_is_sent(client):
    for path in ("/v1/search/image", "/v1/items/image"):
        answer = client.post(path, files={"file": ("x.jpg", b"<html></html>")})
        assert answer.status_code == 415


def test_too_many_pixels_are_refused_before_they_are_decoded():
    with pytest.raises(RefusedError, match="1,000 pixels") as refused:
        check_header(save(noise(), "PNG"), 1000)
    assert refused.value.status == 413


def test_small_pictures_are_small_and_upright():
    with Image.open(BytesIO(small_picture(save(noise(1600, 400), "JPEG"), 10**7))) as small:
        assert (small.format, small.size) == ("WEBP", (160, 40))
    with Image.open(BytesIO(small_picture(rotated(), 10**7))) as small:
        assert small.size == (30, 40)


def test_tiny_pictures_are_kept_exactly(world):
    with Image.open(BytesIO(small_picture(png(world.known[0]), 10**7))) as small:
        assert (np.asarray(small)[..., 0] == world.known[0]).all()
