"""The Risk view: shares at a threshold, strangers, drift, freshness, and learning from reviews."""

import re

import numpy as np
import pytest
from e2e.asking import PHONE, VIEWS, drop, go, known, says, text
from service.test_renewer import bodies, everybody, patches

pytestmark = pytest.mark.e2e


def test_three_figures_come_first(page):
    go(page, "risk")
    wrong, answered, unknown = page.locator("#risk-body > :first-child dd").all_inner_texts()
    found = page.request.get(f"{page.url.split('#')[0]}v1/calibration").json()
    curve, matched = found["risk_curve"], found["left_out_matched"]
    assert wrong == "≤ 10 %"
    shares = [curve["coverage"][curve["chosen"]], matched / found["left_out_queries"]]
    seen = [float(figure.removesuffix(" %")) for figure in (answered, unknown)]
    assert seen == pytest.approx([100 * share for share in shares], abs=0.051)
    says(page, "#risk-body dl", f"{matched} of {found['left_out_queries']}, label left out")
    assert page.is_hidden("#summary")


def test_drift_is_shown_before_it_is_an_alarm(page, world):
    drop(page, known(world)[0])
    page.wait_for_selector(".answer")
    go(page, "risk")
    says(page, "#drift", "an alarm from 100, after 1 query")


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


def test_the_gallery_is_calibrated_and_copied_from_the_page(page):
    go(page, "risk")
    page.click("#snapshot")
    says(page, "#snapshot-made", "in the service's folder of snapshots")
    assert page.input_value("#items-wrong") == "10"
    page.fill("#items-wrong", "20")
    page.fill("#items-unknown", "30")
    page.click("#calibrate-items")
    says(page, "#items-calibrated", "Calibrated from the items.")
    found = page.request.get(f"{page.url.split('#')[0]}v1/calibration").json()
    assert found["max_wrong"] == 0.2
    assert "30 % unknown" in found["summary"]


def test_who_may_only_read_can_change_nothing_here(serve, open_page):
    page = open_page(serve(read_only=True))
    go(page, "risk")
    page.wait_for_selector("#snapshot")
    assert page.is_disabled("#snapshot")
    assert page.is_disabled("#calibrate-items")


def test_the_slider_shows_what_a_risk_gives(page):
    page.click("nav a[href='#risk']")
    before = text(page, "#risk-said")
    assert "of the queries are a match" in before
    assert text(page, "#risk output") in before
    page.focus("#taken")
    page.keyboard.press("Home")
    assert "no threshold can promise this" in text(page, "#risk-said")
    page.keyboard.press("End")
    assert text(page, "#risk-said") != before
    assert page.locator(".chart.wrong path").count() == 2


def test_strangers_and_the_enrolled_have_their_own_chart(page):
    page.click("nav a[href='#risk']")
    page.wait_for_selector(".chart.rates .band")
    assert page.locator(".chart.rates .rate").count() == 1
    assert page.locator(".chart.rates circle").count() == 1
    found = page.request.get(page.url.split("#")[0] + "v1/calibration").json()
    rates, at = found["identification"], found["risk_curve"]["chosen"]
    caption = text(page, ".charts figure:has(.rates) .quiet")
    for name in ("fpir", "fnir"):
        said = float(re.search(rf"in use:.*{name.upper()} ([\d.]+) %", caption)[1])
        assert said == pytest.approx(100 * rates[name][at], abs=0.051)


def test_a_calibration_is_renewed_and_says_so(page):
    page.click("nav a[href='#risk']")
    says(page, "#risk .freshness", "Calibrated at")
    says(page, "#risk .freshness", "No query was compared")
    address = page.url.split("#")[0]
    page.request.delete(f"{address}v1/items/digit-7")
    for _ in range(100):
        if page.request.get(f"{address}v1/calibration").json()["renewals"]:
            break
        page.wait_for_timeout(100)
    page.click("nav a[href='#items']")
    page.click("nav a[href='#risk']")
    says(page, "#risk .freshness", "Renewed once since it was calibrated, last at")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_queries_that_differ_raise_a_banner_on_every_view(serve, open_page, world, scheme):
    address = serve()
    page = open_page(address, color_scheme=scheme, **PHONE)
    assert page.is_hidden("#watch")
    rng = np.random.default_rng(0)
    ask_all(page, address, world, everybody(world, 150, rng))
    page.click("nav a[href='#risk']")
    says(page, "#risk .freshness", "Nothing says that the 150 queries seen so far differ")
    assert page.is_hidden("#watch")
    noise = patches(60, rng)
    mixed = np.concatenate([everybody(world, 240, rng), noise])[rng.permutation(300)]
    ask_all(page, address, world, mixed)
    for section in VIEWS:
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
