"""The Review view: by keyboard and by mouse, all labels, undo, history, filters, progress and files."""

import csv

import numpy as np
import pytest
from e2e.asking import drop, go, says, text, unsure
from playwright import sync_api as api
from service.live import live
from service.test_reviews import asked

from surefind.gallery.gallery import Gallery
from surefind.service.review_store import FILE, Reviews

pytestmark = pytest.mark.e2e


@pytest.fixture
def waiting(serve, open_page, tmp_path):
    """Let questions wait, then open the page at the review."""

    def start(questions, **options):
        reviews = Reviews(tmp_path / "gallery.service" / FILE)
        for question in questions:
            reviews.ask(question)
        reviews.close()
        return open_page(f"{serve(**options)}/#review")

    return start


def several(count, **more):
    """Different questions about digits."""
    angles = np.linspace(0.1, 1, count)
    return [
        asked(i % 8, vector=[float(np.cos(a)), float(np.sin(a)), 0.0], **more)
        for i, a in enumerate(angles)
    ]


def decided(page):
    address = page.url.split("#")[0]
    return page.request.get(f"{address}v1/reviews").json()["decided"][::-1]


def test_reviewing_by_keyboard_is_kept(waiting):
    page = waiting(several(4))
    assert "Query 1 of 4: is it 0?" in text(page, "#review-status")
    page.keyboard.press("ArrowRight")
    says(page, "#review-status", "Query 2 of 4: is it 1?")
    page.keyboard.press("a")
    says(page, "#review-status", "Accepted")
    page.keyboard.press("0")
    says(page, "#review-status", "Rejected")
    page.keyboard.press("l")
    page.keyboard.type("7")
    page.keyboard.press("Enter")
    says(page, "#review-status", "Relabelled")
    page.keyboard.press("1")
    says(page, "#review-status", "Nothing waits")
    assert [entry["label"] for entry in decided(page)] == [1, None, 7, 0]


def test_any_label_of_the_gallery_can_be_chosen_whatever_its_type(tmp_path, open_page):
    """The demo's digits are texts: "3" is a label there, and the number 3 is not."""
    # So many that others are too improbable to be listed.
    vectors = np.eye(4)[[0] * 200 + [1] * 200 + [2]]
    gallery = Gallery(normalize=True, path=tmp_path / "texts")
    gallery.add(vectors, labels=["1"] * 200 + ["2"] * 200 + ["3"])
    gallery.close()
    with live(tmp_path / "texts", None, review_share=1) as address:
        page = open_page(address)
        body = {"vectors": [[1, 0, 0, 0]], "k": 1, "keep": True}
        assert page.request.post(f"{address}/v1/search/vector", data=body).ok
        go(page, "review")
        page.wait_for_selector("#case .labels")
        assert page.locator("#case .labels strong").all_inner_texts() == ["1", "None"]
        page.fill("#label", "3")
        page.press("#label", "Enter")
        says(page, "#review-status", "Relabelled")
        assert [entry["label"] for entry in decided(page)] == ["3"]


def test_a_number_and_a_text_that_read_alike_are_told_apart(waiting):
    page = waiting(several(1))
    body = {"items": [{"id": "t", "vector": [0, 0, 1], "label": "7"}]}
    page.request.post(page.url.split("#")[0] + "v1/items", data=body)
    page.fill("#label", "7")
    page.press("#label", "Enter")
    page.click("button:has-text('the text 7')")
    says(page, "#review-status", "Relabelled")
    assert decided(page)[0]["label"] == "7"


def test_what_is_no_label_is_told_and_can_be_corrected(waiting):
    page = waiting(several(1))
    page.fill("#label", "nobody")
    page.press("#label", "Enter")
    says(page, "#label-said", "No item has the label “nobody”")
    page.fill("#label", "6")
    page.press("#label", "Enter")
    says(page, "#review-status", "Relabelled")


def test_labels_are_completed(waiting):
    page = waiting(several(1))
    page.focus("#label")
    api.expect(page.locator("#label-list option")).to_have_count(8)


def test_a_decision_is_undone_by_key_and_from_the_history(waiting):
    page = waiting(several(3))
    page.wait_for_selector("#case .labels")
    page.keyboard.press("a")
    says(page, "#review-status", "Query 1 of 2")
    says(page, "#history", "History: 1 decision")
    page.keyboard.press("u")
    says(page, "#review-status", "Taken back. Query 1 of 3: is it 0?")
    page.keyboard.press("0")
    says(page, "#history", "Not in the gallery; the answer was 0")
    page.click("#history button[aria-label^='Undo']")
    says(page, "#review-status", "Taken back. Query 1 of 3: is it 0?")
    assert decided(page) == []


def test_who_decides_is_remembered_and_sent(waiting):
    page = waiting(several(2))
    page.wait_for_selector("#case .labels")
    page.fill("#reviewer", "Ada <b>")
    page.press("#reviewer", "Tab")
    page.click("#case .labels li:first-child button[data-number]")
    says(page, "#history", "Ada <b>")
    assert decided(page)[0]["reviewer"] == "Ada <b>"
    page.reload()
    page.wait_for_selector("#case .labels")
    assert page.input_value("#reviewer") == "Ada <b>"


def test_a_long_queue_is_counted_and_goes_on(waiting):
    page = waiting(several(230))
    says(page, "#review-status", "Query 1 of 230")
    assert text(page, "#waiting") == "230"
    for _ in range(60):
        page.keyboard.press("ArrowRight")
    says(page, "#review-status", "Query 61 of 230")
    page.keyboard.press("0")
    says(page, "#review-status", "Query 61 of 229")
    says(page, "#progress", "1 decided in this tab, 229 wait")


def test_the_queue_is_filtered(waiting):
    page = waiting([
        *several(2, reasons=["unclear input"], probability=0.3),
        asked("x", vector=[0.0, 0.0, 1.0], reasons=["labels compete: 0.6 a, 0.4 b"]),
        asked("y", vector=[0.0, 1.0, 1.0], sampled=True, u=0.1, share=1.0, model="digits"),
    ])
    says(page, "#review-status", "Query 1 of 4")
    page.select_option("#why", "unclear input")
    says(page, "#review-status", "Query 1 of 2")
    page.select_option("#odds", "0.75,1")
    says(page, "#review-status", "Nothing that waits passes the filters")
    page.select_option("#odds", "0,1")
    page.select_option("#why", "a random check")
    says(page, "#review-status", "Query 1 of 1, a random check: is it y?")


def test_what_is_skipped_comes_last(waiting):
    page = waiting(several(2))
    says(page, "#review-status", "is it 0?")
    page.keyboard.press("s")
    says(page, "#review-status", "is it 1?")
    page.keyboard.press("a")
    says(page, "#review-status", "is it 0?")


def test_a_query_is_enlarged_beside_a_card_for_each_label(page, world):
    data, label = unsure(world)
    drop(page, data)
    page.wait_for_selector(".answer.review")
    go(page, "review")
    page.wait_for_selector("#case .asked img")
    names = page.locator("#case .labels strong").all_inner_texts()
    assert (names[0], names[-1]) == (str(label), "None")
    page.click("#case .asked .zoomable")
    page.wait_for_selector("#zoom[open] img")
    page.keyboard.press("Escape")
    assert page.locator("#zoom[open]").count() == 0
    page.click("#case details summary")
    assert page.locator("#case details li").count() == 10


def test_decisions_are_saved_as_a_file(waiting):
    page = waiting(several(2))
    page.wait_for_selector("#case .labels")
    page.keyboard.press("a")
    says(page, "#history", "History: 1 decision")
    with page.expect_download() as saved:
        page.click("button:has-text('Save as CSV')")
    assert saved.value.suggested_filename == "decisions.csv"
    with open(saved.value.path()) as file:
        assert [row["label"] for row in csv.DictReader(file)] == ["0"]


def test_who_may_only_look_cannot_decide(serve, open_page, tmp_path):
    reviews = Reviews(tmp_path / "gallery.service" / FILE)
    reviews.ask(several(1)[0])
    reviews.close()
    address = serve(read_token="reader" * 3, write_token="writer" * 3)
    page = open_page(f"{address}/#review", wait=False)
    page.fill("#token", "reader" * 3)
    page.press("#token", "Enter")
    assert "may read but not decide" in text(page, "#case")
    assert page.is_disabled("#case button[data-number='1']")
