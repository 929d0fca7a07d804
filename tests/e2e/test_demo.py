"""The demo's own gallery in a real Chromium: what is no digit is not taken for one."""

import pytest
from e2e.asking import drop
from service.live import live
from service.world import png
from strange import strange_images

import surefind as sf
from surefind.apps.demo.experiment import KNOWN, material, run_demo

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The address of a service on the demo's gallery, with its run and its images."""
    folder = tmp_path_factory.mktemp("demo")
    run_demo(folder, say=lambda _: None, report=lambda *_: None)
    learner = sf.load(folder / "run")
    with live(folder / "gallery", learner, images=folder / "images") as address:
        yield address


@pytest.mark.parametrize("name", strange_images())
def test_what_is_no_digit_is_unlike_anything_seen(demo, open_page, name):
    page = open_page(demo)
    drop(page, png(strange_images()[name]))
    page.wait_for_selector(".answer")
    assert page.locator(".answer.match").count() == 0
    assert "Unknown: no match" in page.inner_text(".answer.no_match")
    assert page.locator(".reasons .chip").all_inner_texts() == ["unlike anything seen"]
    assert "unlike anything seen" in page.inner_text(".novelty figcaption")
    assert page.locator(".chance").count() == 0  # no probability was tested on such an input


def test_a_digit_is_still_a_match(demo, open_page):
    digits = material()
    pixels = (255 * digits.queries[KNOWN][0, 0]).round().byte().numpy()
    page = open_page(demo)
    drop(page, png(pixels))
    page.wait_for_selector(".answer.match")
    assert f"Match: {digits.truth[KNOWN][0]}" in page.inner_text(".answer")
    assert "like what was trained on" in page.inner_text(".novelty figcaption")
