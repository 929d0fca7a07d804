"""The Items view and the Audit: list, find, add, edit and delete."""

import re

import pytest
from e2e.asking import go, says, text
from service.world import png

pytestmark = pytest.mark.e2e


def stored(page, id_):
    return page.evaluate("(id) => fetch(`/v1/items/${id}`).then((a) => a.json())", id_)


def find(page, words):
    page.fill("#sought", words)
    page.press("#sought", "Enter")


def test_items_are_found_by_label_and_by_id(page):
    go(page, "items")
    find(page, "3")
    says(page, "#place", re.compile(r"^1 to \d\d of \d\d$"))
    assert set(page.locator("#item-list strong").all_inner_texts()) == {"3"}
    find(page, "digit-7")
    says(page, "#place", "1 to 1 of 1")
    says(page, "#item-list", "digit-7")
    find(page, "nobody")
    says(page, "#item-list", "No item has the label or the id “nobody”")


def test_an_item_is_added(page, world):
    go(page, "items")
    page.click("#add-item")
    file = {"name": "x.png", "mimeType": "image/png", "buffer": png(world.known[0])}
    page.set_input_files("#new-file", file)
    page.fill("#new-id", "added")
    page.fill("#new-label", "an eight")
    page.click("#editor button.main")
    says(page, "#about", "241 items")
    assert stored(page, "added")["label"] == "an eight"


def test_an_item_is_edited_and_deleted(page):
    go(page, "items")
    find(page, "digit-7")
    page.click("button[aria-label$=', digit-7'][aria-label^='Edit']")
    page.fill("#edit-label", "5")
    page.press("#edit-label", "Enter")
    says(page, "#editor", "The label is kept.")
    assert stored(page, "digit-7")["label"] == 5
    page.click("#editor .danger")
    assert "id" in stored(page, "digit-7")  # one has to mean it
    page.click("#editor .danger")
    says(page, "#about", "239 items")
    assert "error" in stored(page, "digit-7")


def test_who_may_only_look_is_offered_no_change(serve, open_page):
    page = open_page(serve(read_token="reader" * 3, write_token="writer" * 3), wait=False)
    page.fill("#token", "reader" * 3)
    page.press("#token", "Enter")
    go(page, "items")
    page.wait_for_selector("#item-list img")
    assert page.is_hidden("#add-item")
    assert page.locator("button[aria-label^='Edit']").count() == 0


def test_browsing_and_searching_with_an_item(page):
    page.click("nav a[href='#items']")
    page.wait_for_selector("#item-list img.picture")
    assert "1 to 24 of 240" in text(page, "#place")
    first = text(page, "#item-list li:first-child")
    page.click("#next")
    says(page, "#place", re.compile("^25 to"))
    assert text(page, "#item-list li:first-child") != first
    page.click("#item-list li:first-child button")
    page.wait_for_selector("#answer .answer")
    assert "the query itself" in text(page, "#evidence")
    found = page.request.get(page.url.split("#")[0] + "v1/calibration").json()
    assert found["watch"]["queries"] == 0


def test_items_are_grouped_by_label_and_many_are_relabelled_or_deleted(page):
    go(page, "items")
    page.wait_for_selector("#item-list section")
    assert page.locator("#item-list h3").first.inner_text().startswith("0")
    assert "κ" not in text(page, "#item-list")
    ids = [page.locator("#item-list li").nth(i).get_attribute("data-id") for i in range(4)]
    assert page.is_hidden("#selection")
    for id_ in ids[:2]:
        page.check(f"input[aria-label='Select {id_}']")
    says(page, "#selected", "2 selected")
    page.fill("#selected-label", "3")
    page.click("#selection button.main")
    says(page, "#place", "relabelled 2")
    assert [stored(page, id_)["label"] for id_ in ids[:3]] == [3, 3, 0]
    for id_ in ids[2:]:
        page.check(f"input[aria-label='Select {id_}']")
    page.click("#delete-selected")
    assert stored(page, ids[2])["label"] == 0  # one has to mean it
    page.click("#delete-selected")
    says(page, "#about", "238 items")
    says(page, "#place", "deleted 2")
    page.locator("#item-list h3 button").first.click()
    shown = page.locator("#item-list section").first.locator("li").count()
    says(page, "#selected", f"{shown} selected")
    page.click("#clear-selected")
    assert page.is_hidden("#selection")


def test_an_item_says_whether_its_label_is_right(page):
    go(page, "audit")
    page.click("#look")
    says(page, "#findings", "the label is wrong with probability")
    wrong = page.locator("button[aria-label^='Relabel to']").first.get_attribute("aria-label")
    label, id_ = wrong.removeprefix("Relabel to ").split(": ")
    go(page, "items")
    find(page, id_)
    says(page, "#item-list .chip", f"rather {label}")


def test_a_wrong_label_is_found_and_mended(page):
    """The world's gallery has one: its last item is called the next digit."""
    page.click("nav a[href='#audit']")
    page.click("#look")
    says(page, "#audit-said", "were judged")
    wrong = page.locator("#findings .card", has_text="digit-").first
    wrong.wait_for()
    assert "the label is wrong with probability" in text(page, "#findings")
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
    page.click("nav a[href='#items']")
    assert page.evaluate(f"fetch('/v1/items/{removed}').then((a) => a.status)") == 404
