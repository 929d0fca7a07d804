"""The demo's own gallery in a real Chromium: what is no digit is not taken for one."""

import pytest
from e2e.asking import PHONE, drop, text
from e2e.test_access import violations
from service.live import live
from service.world import png
from strange import strange_images

import surefind as sf
from surefind.cli.demo import KNOWN, material, run_demo, write_page

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the demo leaves behind: its gallery, its run, its images and its report."""
    folder = tmp_path_factory.mktemp("demo")
    findings = run_demo(folder, lambda *_: None)
    write_page(findings, folder / "report.html")
    return folder


@pytest.fixture(scope="module")
def demo(folder):
    """The address of a service on the demo's gallery."""
    learner = sf.load(folder / "run")
    with live(folder / "gallery", learner, images=folder / "images") as address:
        yield address


def test_it_starts_without_an_alarm(demo, open_page):
    """Comes first: photographs, which the tests below ask about, raise one."""
    page = open_page(demo)
    page.wait_for_selector("#start .tries")
    assert page.is_hidden("#watch")


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
    assert "means nothing" in text(page, ".odds")
    assert page.locator("details.chances:not([open])").count() == 1  # bars would be read first


def test_a_digit_is_still_a_match(demo, open_page):
    digits = material()
    pixels = (255 * digits.queries[KNOWN][0, 0]).round().byte().numpy()
    page = open_page(demo)
    drop(page, png(pixels))
    page.wait_for_selector(".answer.match")
    assert f"Match: {digits.truth[KNOWN][0]}" in page.inner_text(".answer")
    assert "like what was trained on" in page.inner_text(".novelty figcaption")


def test_the_report_fits_a_phone(folder, open_page):
    page = open_page(f"file://{folder}/report.html", wait=False, **PHONE, is_mobile=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    squeezed = page.evaluate(
        """() => [...document.querySelectorAll(".cards img")].filter(
            (e) => getComputedStyle(e).objectFit !== "contain").length"""
    )
    assert squeezed == 0
    assert violations(page) == []
