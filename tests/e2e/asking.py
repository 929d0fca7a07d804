"""Which digits get which answer, asked of the gallery itself; and how to ask the page."""

from playwright import sync_api as api
from service.world import png

from surefind.gallery.gallery import Gallery


def image_with(world, decision, images):
    """The PNG of an image that the gallery answers so; the surest such answer."""
    with Gallery.open(world.folder / "gallery", mode="r") as gallery:
        found = gallery.search(world.learner.embed(images))
    rows = [i for i, d in enumerate(found.decision) if d == decision]
    best = max(rows, key=lambda i: abs(found.probability[i] - 0.5))
    return png(images[best]), found.label[best]


def known(world):
    return image_with(world, "match", world.known)


def unknown(world):
    return image_with(world, "no_match", world.unknown)


def unsure(world):
    return image_with(world, "review", world.unknown)


def drop(page, data, name="query.png"):
    file = {"name": name, "mimeType": "image/png", "buffer": data}
    page.set_input_files("#file", file)


PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
VIEWS = ("search", "items", "review", "risk", "audit")


def text(page, selector):
    """What an element says, once it is there."""
    page.wait_for_selector(selector)
    return page.inner_text(selector)


def says(page, selector, words):
    """Wait until an element says something."""
    api.expect(page.locator(selector)).to_contain_text(words, timeout=20_000)


def go(page, view):
    page.click(f"nav a[href='#{view}']")
    page.wait_for_selector(f"section#{view}:not([hidden])")
