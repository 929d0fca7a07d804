"""Keyboard, screen reader, light and dark, and narrow screens; of every view."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from e2e.asking import PHONE, VIEWS, drop, go, known, says, unsure

pytestmark = pytest.mark.e2e
SERIOUS = ("serious", "critical")


def test_everything_works_by_keyboard_alone(page, world):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(14):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.hash || ''"))
    assert {"#items", "#review", "#risk", "file"} <= seen
    page.focus("nav a[href='#items']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#item-list button")
    page.focus("#item-list li:nth-child(2) button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer .answer")
    with page.expect_file_chooser() as chooser:
        page.focus("#file")
        page.keyboard.press("Enter")
    data, label = known(world)
    chooser.value.set_files({"name": "x.png", "mimeType": "image/png", "buffer": data})
    says(page, ".verdict", f"Match: {label}")


def fill(page, world):
    """Give every view something to show."""
    drop(page, unsure(world)[0])
    page.wait_for_selector(".answer.review")


def show(page, view):
    go(page, view)
    if view == "audit":
        page.click("#look")
        says(page, "#audit-said", "were judged")
    else:
        page.wait_for_selector(
            {
                "search": ".answer",
                "items": "#item-list img",
                "review": "#case img",
                "risk": ".chart.wrong",
            }[view]
        )
    page.wait_for_timeout(300)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_any_view(serve, open_page, world, scheme):
    page = open_page(serve(), color_scheme=scheme)
    found = {"start": violations(page)}
    fill(page, world)
    for view in VIEWS:
        show(page, view)
        found[view] = violations(page)
    go(page, "items")
    page.click("button[aria-label^='Edit']")
    found["editor"] = violations(page)
    assert found == {key: [] for key in found}


def test_axe_finds_nothing_serious_where_a_token_is_asked_for(serve, open_page):
    page = open_page(serve(read_token="r" * 16), wait=False)
    page.wait_for_selector("#token-form:not([hidden])")
    assert violations(page) == []


def violations(page):
    found = Axe().run(page).response["violations"]
    return [
        (one["id"], node["html"][:200])
        for one in found
        if one["impact"] in SERIOUS
        for node in one["nodes"]
    ]


def test_a_phone_needs_no_sideways_scrolling(serve, open_page, world):
    page = open_page(serve(), **PHONE)
    wide = {"start": page.evaluate("document.documentElement.scrollWidth")}
    fill(page, world)
    for view in VIEWS:
        show(page, view)
        wide[view] = page.evaluate("document.documentElement.scrollWidth")
    assert max(wide.values()) <= PHONE["viewport"]["width"], wide
