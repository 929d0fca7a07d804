"""The Map: all items and the last queries in two dimensions, moved by mouse and keyboard."""

import numpy as np
import pytest
from e2e.asking import drop, go, known, says, text
from service.live import live

from surefind.gallery.gallery import Gallery

pytestmark = pytest.mark.e2e


def picture(page):
    """What is on the canvas, two frames later."""
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    return page.evaluate("document.querySelector('#chart').toDataURL()")


def test_the_map_is_moved_by_mouse_and_keyboard(page):
    go(page, "map")
    page.wait_for_selector("#legend li")
    box = page.locator("#chart").bounding_box()
    seen = [picture(page)]
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 150)
    page.mouse.up()
    seen.append(picture(page))
    page.focus("#chart")
    for key in ("ArrowLeft", "+"):
        page.keyboard.press(key)
        seen.append(picture(page))
    page.click("#whole")
    assert len(set(seen)) == 4
    assert picture(page) == seen[0]


def test_items_are_counted_picked_and_searched_with(page):
    go(page, "map")
    says(page, "#map-said", "240 items, of 8 labels")
    assert page.locator("#legend li").count() == 8
    box = page.locator("#chart").bounding_box()
    for x in np.linspace(0.1, 0.9, 40):
        for y in (0.2, 0.35, 0.5, 0.65, 0.8):
            page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
    page.click("#picked button")
    page.wait_for_selector("#answer .answer")


def test_items_are_picked_by_keyboard(page):
    go(page, "map")
    page.wait_for_selector("#legend li")
    page.focus("#chart")
    for key in ["ArrowLeft"] * 12 + [
        "ArrowUp",
        *["ArrowRight"] * 24,
        "ArrowUp",
        *["ArrowLeft"] * 24,
    ]:
        page.keyboard.press(key)
    assert "digit-" in text(page, "#picked .card")


def test_one_label_is_lit(page):
    go(page, "map")
    page.wait_for_selector("#legend li")
    before = picture(page)
    page.click("#legend li:first-child button")
    assert page.get_attribute("#legend li:first-child button", "aria-pressed") == "true"
    assert picture(page) != before
    page.click("#legend li:first-child button")
    assert picture(page) == before


def test_the_last_queries_are_on_the_map(page, world):
    go(page, "map")
    page.wait_for_selector("#legend li")
    before = picture(page)
    go(page, "search")
    drop(page, known(world)[0])
    page.wait_for_selector(".answer")
    go(page, "map")
    says(page, "#map-said", "Crosses: your last query.")
    assert picture(page) != before


def test_every_dimension_counts(tmp_path, open_page):
    """Two labels that differ in the fourth coordinate alone are apart."""
    rng = np.random.default_rng(0)
    vectors = np.tile([1.0, 0, 0, 0.5], (40, 1)) + 0.01 * rng.normal(size=(40, 4))
    vectors[20:, 3] *= -1
    gallery = Gallery(normalize=True, path=tmp_path / "four")
    gallery.add(vectors, labels=["a"] * 20 + ["b"] * 20)
    gallery.close()
    with live(tmp_path / "four", None) as address:
        page = open_page(f"{address}/#map")
        says(page, "#map-said", "40 items, of 2 labels")
        points = page.evaluate("fetch('/v1/map').then((answer) => answer.json())")["points"]
        x = {label: [p["x"] for p in points if p["label"] == label] for label in "ab"}
        assert max(x["a"]) < min(x["b"]) or max(x["b"]) < min(x["a"])


def test_thousands_of_items_are_drawn(tmp_path, open_page):
    rng = np.random.default_rng(0)
    gallery = Gallery(normalize=True, path=tmp_path / "many")
    gallery.add(rng.normal(size=(4000, 16)), labels=(np.arange(4000) % 50).tolist())
    gallery.close()
    with live(tmp_path / "many", None, seconds=60) as address:
        page = open_page(f"{address}/#map")
        says(page, "#map-said", "3,000 of 4,000 items, drawn at random, of 50 labels")
        assert "and 10 more" in text(page, "#legend")
        before = picture(page)
        page.focus("#chart")
        page.keyboard.press("ArrowRight")
        assert picture(page) != before
