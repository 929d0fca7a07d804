"""What goes wrong is a sentence that says what to do, and can be tried again."""

import re

import pytest
from e2e.asking import drop, go, known, says, text

pytestmark = pytest.mark.e2e


def test_a_server_that_is_gone_is_reported(page, world):
    data, _ = known(world)
    page.route("**/v1/**", lambda route: route.abort())
    drop(page, data)
    assert "The service cannot be reached" in text(page, "#trouble")


def test_a_slow_server_is_reported(page, world):
    data, _ = known(world)
    page.evaluate("document.documentElement.dataset.seconds = 1")
    page.route("**/v1/search/image*", lambda _route: None)
    drop(page, data)
    assert "Looking" in text(page, "#busy")
    assert "did not answer within 1 seconds" in text(page, "#trouble")
    page.unroute("**/v1/search/image*")
    page.evaluate("document.documentElement.dataset.seconds = 15")
    page.click("#again")
    page.wait_for_selector(".answer.match")


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, "A page of another host."),
        (413, "This is too large."),
        (415, "A page of another host."),
        (429, "Too much was asked at once. Wait 7 seconds, then try again."),
        (500, "it is not your fault"),
        (503, "The service cannot do this now."),
    ],
)
def test_every_refusal_is_a_sentence(page, world, status, words):
    answer = {
        "status": status,
        "headers": {"Retry-After": "7"},
        "json": {"error": "a page of another host."},
    }
    page.route("**/v1/search/image*", lambda route: route.fulfill(**answer))
    drop(page, known(world)[0])
    says(page, "#trouble", words)
    page.unroute("**/v1/search/image*")
    page.click("#again")
    page.wait_for_selector(".answer.match")
    assert page.is_hidden("#trouble")


def test_a_device_that_is_offline_is_told_so(page, world):
    page.context.set_offline(True)
    drop(page, known(world)[0])
    says(page, "#trouble", "This device is offline")
    page.context.set_offline(False)
    page.click("#again")
    page.wait_for_selector(".answer.match")


def test_a_token_is_asked_for_without_a_word_of_headers(serve, open_page):
    page = open_page(serve(read_token="reader" * 3, write_token="writer" * 3), wait=False)
    assert "password" in text(page, "#token-form")
    assert page.is_hidden("#trouble")
    assert not re.search("header|Bearer", page.inner_text("body"))
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    says(page, "#token-said", "does not know this token")
    page.fill("#token", "writer" * 3)
    page.press("#token", "Enter")
    says(page, "#about", "240")
    assert page.is_hidden("#token-form")
    go(page, "items")
    page.wait_for_selector("#item-list img.picture")
    page.click("#forget-token")
    page.wait_for_selector("#token-form:not([hidden])")


def test_a_token_that_may_not_change_can_be_changed(serve, open_page, world):
    page = open_page(serve(read_token="reader" * 3, write_token="writer" * 3), wait=False)
    page.fill("#token", "reader" * 3)
    page.press("#token", "Enter")
    says(page, "#about", "240")
    page.route(
        "**/v1/search/image*",
        lambda route: route.fulfill(status=403, json={"error": "this token may read."}),
    )
    drop(page, known(world)[0])
    says(page, "#trouble", "This token may read. Another token may.")
    page.click("#other-token")
    page.fill("#token", "writer" * 3)
    page.press("#token", "Enter")
    page.wait_for_selector("#token-form", state="hidden")
    go(page, "items")
    page.wait_for_selector("button[aria-label^='Edit']")
