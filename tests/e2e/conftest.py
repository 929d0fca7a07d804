"""The page in a real Chromium, on a real server with a gallery of digits."""

import shutil

import pytest
from playwright.sync_api import sync_playwright
from service import world as worlds
from service.live import live

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def world():
    return worlds.world()


@pytest.fixture(scope="session")
def browser():
    assert CHROMIUM, "there is no chromium on this machine; `make e2e` installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def serve(world, tmp_path):
    """Start a server on a copy of the gallery; return its address."""
    running = []

    def start(**options):
        learner = options.pop("learner", world.learner)
        server = live(worlds.copy(world, tmp_path), learner, **options)
        running.append(server)
        return server.__enter__()

    yield start
    for server in running:
        server.__exit__(None, None, None)


@pytest.fixture
def open_page(browser):
    """Open a page; at the end, nothing may have been written to its console as an error."""
    pages = []

    def start(address, *, wait=True, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(20_000)
        page = context.new_page()
        page.defects = []
        page.on("pageerror", lambda error: page.defects.append(str(error)))
        page.goto(address)
        if wait:
            page.wait_for_selector("#about:not(:empty)")
        pages.append((context, page))
        return page

    yield start
    for context, page in pages:
        defects = page.defects
        context.close()
        assert defects == []


@pytest.fixture
def page(serve, open_page):
    return open_page(serve())
