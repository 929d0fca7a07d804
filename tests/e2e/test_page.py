"""People at the page: known, unknown and unsure queries, browsing, reviewing, risk, sphere, troubles."""

import json
import re

import numpy as np
import pytest
from e2e.asking import drop, known, unknown, unsure
from playwright import sync_api as api
from service.live import live
from service.test_renewer import bodies, everybody, patches
from service.world import outvoted

from surefind.apps.service.reviews import FILE, Reviews

pytestmark = pytest.mark.e2e
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


def text(page, selector):
    page.wait_for_selector(selector)
    return page.inner_text(selector)


def says(page, selector, words):
    """Wait until an element says something."""
    api.expect(page.locator(selector)).to_contain_text(words, timeout=20_000)


def test_a_known_query_is_a_match(page, world):
    data, label = known(world)
    drop(page, data)
    answer = text(page, ".answer.match")
    assert f"Match: {label}" in answer
    assert "✓" in answer
    assert "probability" in answer
    assert re.search(r"surer than \d+ % of the calibration's queries", answer)
    assert page.locator(".found li").count() >= 10  # neighbours, and evidence that is farther away
    assert re.fullmatch(r"(> )?\d+ %", text(page, ".verdict .chance"))
    assert text(page, "#evidence section:first-child h3") == f"Evidence for {label}"
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
    assert "none of these" in text(page, ".chances li:last-child")
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
        page = open_page(f"{address}/#browse")
        page.select_option("#order", "confusing")
        page.click("button[aria-label='Search with b, i30']")
        assert text(page, ".verdict").endswith("Most probable: a")
        names = page.locator(".chances .name").all_inner_texts()
        assert (names[0], names[-1]) == ("a", "none of these")
        parts = page.locator("#evidence section")
        assert [p.get_attribute("data-role") for p in parts.all()] == ["answered", "rival", "rest"]
        titles = page.locator("#evidence h3").all_inner_texts()
        assert titles == [
            "Evidence for a",
            "Evidence for b, its strongest rival",
            "Other near items",
        ]
        assert set(parts.nth(0).locator("strong").all_inner_texts()) == {"a"}
        assert "i30 (the query itself)" in parts.nth(1).inner_text()
        ids = [item.get_attribute("data-id") for item in page.locator(".found li").all()]
        assert len(ids) == len(set(ids))  # nothing is shown twice


def test_a_split_is_told_in_words(page, world):
    def split(route):
        body = route.fetch().json()
        body["answers"][0]["reasons"] = ["split neighbourhood: 0.55 a: x, 0.41 <b>"]
        route.fulfill(json=body)

    page.route("**/v1/search/image*", split)
    data, _ = unsure(world)
    drop(page, data)
    assert (
        text(page, ".reasons")
        == "split neighbourhood Two or more labels compete. Look at each of them."
    )


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
    assert page.locator(".meter:not(.novelty)").count() == 1  # κ keeps its own
    chips = page.locator(".reasons .chip").all_inner_texts()
    assert chips == ([] if reason is None else [reason.split(" (")[0]])
    odds = text(page, ".odds")
    assert ("%" in odds) == (decision == "match")  # no probability was tested on the others
    assert page.locator(".verdict .chance").count() == (decision == "match")
    assert odds.startswith(f"It is {label}" if decision == "match" else "Its most probable label")


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


def test_a_dropped_file_is_searched(page, world):
    data, _ = known(world)
    page.evaluate(
        """(bytes) => {
            const files = new DataTransfer();
            files.items.add(new File([new Uint8Array(bytes)], "x.png", { type: "image/png" }));
            document.getElementById("drop").dispatchEvent(
                new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
        }""",
        list(data),
    )
    assert "Match" in text(page, ".answer.match")


def test_browsing_and_searching_with_an_item(page):
    page.click("nav a[href='#browse']")
    page.wait_for_selector("#items img.picture")
    assert "1 to 24 of 240" in text(page, "#place")
    first = text(page, "#items li:first-child")
    page.click("#next")
    says(page, "#place", re.compile("^25 to"))
    page.select_option("#order", "least-sure")
    says(page, "#place", re.compile("^1 to"))
    assert text(page, "#items li:first-child") != first
    page.select_option("#order", "confusing")
    says(page, "#items", "confuses")
    page.click("#items li:first-child button")
    page.wait_for_selector("#answer .answer")
    assert "the query itself" in text(page, "#evidence")


def test_reviewing_by_keyboard_is_kept(page, world, tmp_path):
    data, label = unsure(world)
    for n in (1, 2, 3):
        drop(page, data)
        says(page, "#waiting", str(n))
    page.click("nav a[href='#review']")
    assert "Query 1 of 3" in text(page, "#review-status")
    page.keyboard.press("ArrowRight")
    assert "Query 2 of 3" in text(page, "#review-status")
    page.keyboard.press("a")
    says(page, "#review-status", "Accepted")
    page.keyboard.press("r")
    says(page, "#review-status", "Rejected")
    page.keyboard.press("l")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    says(page, "#review-status", "Nothing waits")
    reviews = Reviews(tmp_path / "gallery.service" / FILE)
    assert [entry["label"] for entry in reviews.decided()] == [label, None, 7]
    reviews.close()


def test_a_wrong_label_is_reported_and_can_be_corrected(page, world):
    data, _ = unsure(world)
    drop(page, data)
    page.wait_for_selector(".answer.review")
    page.click("nav a[href='#review']")
    page.wait_for_selector("#case .card")
    page.keyboard.press("l")
    page.keyboard.type("nobody")
    page.keyboard.press("Enter")
    assert "No item of the gallery has this label" in text(page, "#trouble")


def test_everything_works_by_keyboard_alone(page, world):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.hash || ''"))
    assert {"#browse", "#review", "#risk", "file"} <= seen
    page.focus("nav a[href='#browse']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#items button")
    page.focus("#items li:nth-child(2) button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#answer .answer")
    with page.expect_file_chooser() as chooser:
        page.focus("#file")
        page.keyboard.press("Enter")
    data, label = known(world)
    chooser.value.set_files({"name": "x.png", "mimeType": "image/png", "buffer": data})
    says(page, ".verdict", f"Match: {label}")


def test_a_random_check_is_reviewed_and_calibrates(serve, open_page, world):
    """A sure answer is asked about too; what is said about it joins the calibration."""
    page = open_page(serve(review_share=1))
    data, label = known(world)
    drop(page, data)
    assert "review queue" in text(page, ".answer.match")
    page.click("nav a[href='#risk']")
    says(page, "#sample", "0 reviewed random checks can be used, 1 wait")
    assert page.is_disabled("#recalibrate")
    page.click("nav a[href='#review']")
    says(page, "#review-status", f"Query 1 of 1, a random check: is it {label}?")
    page.keyboard.press("a")
    says(page, "#review-status", "Accepted")
    page.click("nav a[href='#risk']")
    says(page, "#sample", "1 reviewed random checks can be used")
    page.click("#recalibrate")
    says(page, "#recalibrated", "Calibrated again with 1 reviewed random checks.")
    says(page, "#risk-body", "1 of the queries are a random share")


def test_without_a_share_the_page_says_how_to_get_one(page):
    page.click("nav a[href='#risk']")
    says(page, "#sample", "--review-share")
    assert page.is_disabled("#recalibrate")


def test_the_slider_shows_what_a_risk_gives(page):
    page.click("nav a[href='#risk']")
    before = text(page, "#risk-said")
    assert "answered by themselves" in before
    page.focus("#taken")
    page.keyboard.press("Home")
    assert "no threshold can promise this" in text(page, "#risk-said")
    page.keyboard.press("End")
    assert text(page, "#risk-said") != before
    assert page.locator(".chart:not(.rates) path").count() == 2


def test_strangers_and_the_enrolled_have_their_own_chart(page):
    page.click("nav a[href='#risk']")
    page.wait_for_selector(".chart.rates .band")
    assert page.locator(".chart.rates .rate").count() == 1
    assert page.locator(".chart.rates circle").count() == 1
    found = page.request.get(page.url.split("#")[0] + "v1/calibration").json()
    rates, at = found["identification"], found["risk_curve"]["chosen"]
    caption = text(page, ".charts figure:last-child .quiet")
    assert f"FPIR {100 * rates['fpir'][at]:.1f} %" in caption
    assert f"FNIR {100 * rates['fnir'][at]:.1f} %" in caption


def test_a_calibration_is_renewed_and_says_so(page):
    page.click("nav a[href='#risk']")
    says(page, "#freshness", "Calibrated at")
    says(page, "#freshness", "No query was compared")
    address = page.url.split("#")[0]
    page.request.delete(f"{address}v1/items/digit-7")
    for _ in range(100):
        if page.request.get(f"{address}v1/calibration").json()["renewals"]:
            break
        page.wait_for_timeout(100)
    page.click("nav a[href='#browse']")
    page.click("nav a[href='#risk']")
    says(page, "#freshness", "Renewed once since it was calibrated, last at")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_queries_that_differ_raise_a_banner_on_every_view(serve, open_page, world, scheme):
    address = serve()
    page = open_page(address, color_scheme=scheme, **PHONE)
    assert page.is_hidden("#watch")
    rng = np.random.default_rng(0)
    ask_all(page, address, world, everybody(world, 150, rng))
    page.click("nav a[href='#risk']")
    says(page, "#freshness", "Nothing says that the 150 queries seen so far differ")
    assert page.is_hidden("#watch")
    noise = patches(60, rng)
    mixed = np.concatenate([everybody(world, 240, rng), noise])[rng.permutation(300)]
    ask_all(page, address, world, mixed)
    for section in ("search", "browse", "review", "risk", "audit", "sphere"):
        page.click(f"nav a[href='#{section}']")
        banner = text(page, "#watch")
        assert re.match(
            r"Since \d\d:\d\d queries differ from the calibration's: mostly novelty", banner
        )
        assert "calibrate again" in banner
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]


def ask_all(page, address, world, images):
    for body in bodies(world, images):
        assert page.request.post(f"{address}/v1/search/vector", data=body).ok


def test_searching_with_an_item_is_not_watched(page):
    page.click("nav a[href='#browse']")
    page.click("#items li:first-child button")
    page.wait_for_selector("#answer .answer")
    found = page.request.get(page.url.split("#")[0] + "v1/calibration").json()
    assert found["watch"]["queries"] == 0


def test_a_wrong_label_is_found_and_mended(page):
    """The world's gallery has one: its last item is called the next digit."""
    page.click("nav a[href='#audit']")
    page.click("#look")
    says(page, "#audit-said", "were judged")
    wrong = page.locator("#findings .card", has_text="digit-").first
    wrong.wait_for()
    assert "The rest of the gallery says" in text(page, "#findings")
    relabel = page.locator("button[aria-label^='Relabel to']").first
    name = relabel.get_attribute("aria-label")
    label, id_ = name.removeprefix("Relabel to ").split(": ")
    relabel.click()
    says(page, "#findings", f"Relabelled to {label}.")
    address = f"/v1/items/{id_}"
    assert str(page.evaluate(f"fetch('{address}').then((a) => a.json())")["label"]) == label
    assert relabel.is_disabled()
    gone = page.locator("button[aria-label^='Remove']:enabled").first
    removed = gone.get_attribute("aria-label").removeprefix("Remove ")
    gone.click()
    says(page, "#findings", "Removed.")
    page.click("nav a[href='#browse']")
    assert page.evaluate(f"fetch('/v1/items/{removed}').then((a) => a.status)") == 404


def test_the_sphere_is_turned_by_mouse_and_keyboard(page):
    page.click("nav a[href='#sphere']")
    page.wait_for_selector("#legend li")
    box = page.locator("#globe").bounding_box()
    first = page.evaluate("document.querySelector('#globe').toDataURL()")
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 150)
    page.mouse.up()
    second = page.evaluate("document.querySelector('#globe').toDataURL()")
    page.focus("#globe")
    page.keyboard.press("ArrowLeft")
    third = page.evaluate("document.querySelector('#globe').toDataURL()")
    assert len({first, second, third}) == 3


def test_a_failing_server_is_reported_and_asked_again(page, world):
    data, _ = known(world)
    page.route("**/v1/search/image*", lambda route: route.fulfill(status=500, body="oops"))
    drop(page, data)
    assert "answered with an error (500)" in text(page, "#trouble")
    page.unroute("**/v1/search/image*")
    page.click("#trouble button")
    page.wait_for_selector(".answer.match")
    assert page.is_hidden("#trouble")


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
    page.click("#trouble button")
    page.wait_for_selector(".answer.match")


def test_a_token_is_asked_for(serve, browser):
    address = serve(read_token="reader", write_token="writer")
    page = browser.new_page()
    page.goto(address)
    page.fill("#token", "writer")
    page.press("#token", "Enter")
    says(page, "#about", "240")
    page.click("nav a[href='#browse']")
    page.wait_for_selector("#items img.picture")
    page.close()


def test_without_a_model_the_page_says_so(serve, open_page):
    page = open_page(serve(learner=None))
    assert "has no model" in text(page, "#drop")


def test_labels_are_never_markup(page):
    body = {"id": "<img src=x onerror=alert(1)>", "vector": [0, 0, 1], "label": "<b>x</b>"}
    page.request.post(f"{page.url}v1/items", data=json.dumps({"items": [body]}), headers=JSON)
    page.click("nav a[href='#browse']")
    page.wait_for_selector("#items li")
    assert "<b>x</b>" in text(page, "#items li:first-child")


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("section", ["search", "browse", "review", "risk", "audit", "sphere"])
def test_a_phone_needs_no_sideways_scrolling(serve, open_page, world, section):
    page = open_page(serve(), **PHONE)
    data, _ = unsure(world)
    drop(page, data)
    page.wait_for_selector(".answer.review")
    page.goto(f"{page.url.split('#')[0]}#{section}")
    page.wait_for_selector(f"section#{section}:not([hidden])")
    page.wait_for_timeout(300)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= PHONE["viewport"]["width"]


def test_every_control_has_a_name(page, world):
    data, _ = unsure(world)
    drop(page, data)
    page.wait_for_selector(".answer.review")
    for section in ("search", "browse", "review", "risk", "audit", "sphere"):
        page.click(f"nav a[href='#{section}']")
        page.wait_for_timeout(300)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("button, a, input, select, img, canvas")]
                .filter((e) => e.checkVisibility() && e.alt !== "")
                .filter((e) => !(e.ariaLabel || e.alt || e.textContent.trim()
                    || e.labels?.length)).map((e) => e.outerHTML)"""
        )
        assert nameless == []
    assert page.locator("main").count() == page.locator("nav").count() == 1
