"""People at the page: known, unknown and unsure queries, the start, and texts that are never markup."""

import json
import re

import pytest
from e2e.asking import PHONE, drop, go, known, says, text, unknown, unsure
from service.live import live
from service.world import outvoted

pytestmark = pytest.mark.e2e


def test_a_known_query_is_a_match(page, world):
    data, label = known(world)
    drop(page, data)
    answer = text(page, ".answer.match")
    assert f"Match: {label}" in answer
    assert "✓" in answer
    assert "probability" in answer
    assert page.locator(".found li").count() == 10
    assert re.fullmatch(r"(> )?\d+ %", text(page, ".verdict .chance"))
    assert text(page, "#evidence section:first-child h3").startswith(f"{label}, ")
    page.wait_for_selector(".found img.picture")
    assert page.locator("#answer").get_attribute("aria-live") == "polite"


def test_an_unknown_query_is_unmistakably_unknown(page, world):
    data, _ = unknown(world)
    drop(page, data)
    answer = text(page, ".answer.no_match")
    assert "Unknown: no match" in answer
    assert page.locator(".chance").count() == 0  # of what would it be?
    assert "✕" in answer
    assert "Do not act on it." in answer
    assert "none of these is a match" in text(page, "#evidence")
    assert "none of these" in page.text_content(".chances li:last-child")
    assert page.locator(".answer .reasons li").count() >= 1


def test_an_unsure_query_is_for_a_person(page, world):
    data, label = unsure(world)
    drop(page, data)
    answer = text(page, ".answer.review")
    assert f"Perhaps {label}. A person should look." in answer
    assert "review queue" in answer
    assert text(page, "#waiting") == "1"


def test_the_answer_is_a_label_and_its_items_come_first(tmp_path, open_page):
    """The nearest item, here the query itself, is a b among many a."""
    with outvoted() as gallery:
        gallery.save(tmp_path / "stray")
    with live(tmp_path / "stray", None) as address:
        page = open_page(f"{address}/#items")
        page.fill("#sought", "i30")
        page.press("#sought", "Enter")
        page.click("button[aria-label='Search with b, i30']")
        assert text(page, ".verdict").endswith("Most probable: a")
        names = page.locator(".chances .name").all_inner_texts()
        assert (names[0], names[-1]) == ("a", "none of these")
        parts = page.locator("#evidence section")
        assert [p.get_attribute("data-role") for p in parts.all()] == ["answered", "rival"]
        titles = page.locator("#evidence h3").all_inner_texts()
        assert [re.sub(r"\d+ %", "some", title) for title in titles] == ["a, some", "b, some"]
        assert set(parts.nth(0).locator("strong").all_inner_texts()) == {"a"}
        assert "i30 (the query itself)" in parts.nth(1).inner_text()
        ids = [item.get_attribute("data-id") for item in page.locator(".found li").all()]
        assert len(ids) == len(set(ids))  # nothing is shown twice


@pytest.mark.parametrize(
    ("novelty", "decision", "reason", "words"),
    [
        (0.00004, "no_match", "unlike anything seen (p < 0.0001)", "p < 0.0001, unlike anything"),
        (0.0301, "review", "unusual input (p = 0.03)", "p = 0.03, unusual"),
        (0.5, "match", None, "p = 0.5, like what was trained on"),
    ],
)
def test_novelty_has_a_scale_of_its_own(serve, open_page, world, novelty, decision, reason, words):
    def novel(route):
        body = route.fetch().json()
        why = [] if reason is None else [reason]
        body["answers"][0] |= {"novelty": novelty, "decision": decision, "reasons": why}
        route.fulfill(json=body)

    def gated(route):
        route.fulfill(json=route.fetch().json() | {"max_false_alarms": 0.01})

    page = open_page("about:blank", wait=False)
    page.route("**/v1/calibration", gated)
    page.route("**/v1/search/image*", novel)
    page.goto(serve())
    data, label = known(world)
    drop(page, data)
    assert words in text(page, ".novelty figcaption")
    assert page.locator(".novelty .mark").count() == 2
    chips = page.locator(".reasons .chip").all_inner_texts()
    assert chips == ([] if reason is None else [reason.split(" (")[0]])
    odds = text(page, ".odds")
    assert ("%" in odds) == (decision == "match")  # no probability was tested on the others
    assert page.locator(".verdict .chance").count() == (decision == "match")
    first = {"match": f"It is {label}", "review": "Its most probable label"}
    assert odds.startswith(first.get(decision, "It is not like anything this gallery knows"))


def test_without_novelty_there_is_no_scale(page, world):
    def blind(route):
        body = route.fetch().json()
        body["answers"][0]["novelty"] = None
        route.fulfill(json=body)

    page.route("**/v1/search/image*", blind)
    drop(page, known(world)[0])
    page.wait_for_selector(".answer")
    assert page.locator(".novelty").count() == 0


def test_what_is_no_image_is_refused(page):
    drop(page, b"<html></html>", "cat.jpg")
    assert "This is no image of a known format" in text(page, "#trouble")


DROP = """document.getElementById("drop").dispatchEvent(
    new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }))"""
PASTE = """document.dispatchEvent(
    new ClipboardEvent("paste", { clipboardData: files, bubbles: true }))"""


@pytest.mark.parametrize("event", [DROP, PASTE], ids=["dropped", "pasted"])
def test_a_file_that_is_given_is_searched(page, world, event):
    data, _ = known(world)
    page.evaluate(
        """(bytes) => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], "x.png", { type: "image/png" }));
        """
        + event
        + "}",
        list(data),
    )
    assert "Match" in text(page, ".answer.match")


def test_without_a_model_the_page_says_so(serve, open_page):
    page = open_page(serve(learner=None))
    assert "has no model" in text(page, "#drop")


def test_labels_are_never_markup(page):
    body = {"id": "<img src=x onerror=alert(1)>", "vector": [0, 0, 1], "label": "<b>x</b>"}
    page.request.post(f"{page.url}v1/items", data=json.dumps({"items": [body]}), headers=JSON)
    page.click("nav a[href='#items']")
    page.wait_for_selector("#item-list li")
    page.fill("#sought", "<b>x</b>")
    page.press("#sought", "Enter")
    says(page, "#place", "1 to 1 of 1")
    assert "<b>x</b>" in text(page, "#item-list li:first-child")


JSON = {"Content-Type": "application/json"}


def test_the_start_says_what_there_is_and_what_to_try(page):
    tiles = text(page, "#start .tiles")
    assert "240" in tiles
    assert "≤ 10 %" in tiles
    assert "Calibrated at" in text(page, "#start .freshness")
    page.wait_for_selector("#start .tries img")
    assert page.locator("#start .tries button").count() == 6
    page.click("#start .tries li:first-child button")
    page.wait_for_selector("#answer .answer")
    assert page.locator("#start *").count() == 0


def test_a_phone_has_its_camera(serve, open_page):
    address = serve()
    phone, desk = open_page(address, **PHONE), open_page(address)
    assert phone.locator("#camera").get_attribute("capture") == "environment"
    assert phone.is_visible("label[for='camera']")
    assert desk.is_hidden("label[for='camera']")


def test_a_match_says_what_it_is_worth_and_what_was_tested(page, world):
    drop(page, known(world)[0])
    said, found = text(page, ".worth"), page.request.get(f"{page.url}v1/calibration").json()
    assert "at most 10 % are wrong, with 95 % confidence" in said
    asked, matched = found["left_out_queries"], found["left_out_matched"]
    verb = "was" if matched == 1 else "were"
    assert f"Of {asked} queries of labels left out, {matched} {verb} a match." in said


def test_what_no_queue_can_take_is_told(serve, open_page, world):
    page = open_page(serve(max_reviews=0))
    drop(page, unsure(world)[0])
    assert "review queue is full: it was not kept" in text(page, ".answer .dropped")
    go(page, "review")
    says(page, "#progress", "1 query was not kept")


def test_what_was_searched_with_becomes_an_item(page, world):
    data, _ = unsure(world)
    drop(page, data)
    page.click("#keep summary")
    page.fill("#kept-label", "7")
    page.fill("#kept-id", "new one")
    page.click("#keep button")
    says(page, "#keep", "Added to the gallery")
    says(page, "#about", "241 items")
    item = page.evaluate("fetch('/v1/items/new one').then((answer) => answer.json())")
    assert item["label"] == 7  # in use as a number, so it is one
