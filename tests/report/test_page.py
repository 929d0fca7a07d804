import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

import surefind as sf
from surefind.evaluation.report import (
    PAPER,
    SpherePoints,
    read_results,
    write_pictures,
    write_report,
)

VOID = {"meta", "img", "br"}


class Outline(HTMLParser):
    """Collects what a page holds, and fails on tags that do not close."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.seen if name == tag]


@pytest.fixture
def page(put, tmp_path):
    def make(*cells, **options):
        file = tmp_path / "out" / "report.html"
        write_report(read_results(put(*cells)), file, **options)
        outline = Outline()
        outline.feed(file.read_text(encoding="utf-8"))
        assert outline.open == []
        return outline

    return make


@pytest.fixture
def pictures(tmp_path, directions):
    folder = tmp_path / "pictures"
    points = SpherePoints(directions(30, 3).numpy(), np.logspace(0, 3, 30), np.arange(30) % 5)
    write_pictures(
        folder / "fashion-mnist" / "laplace-online-seed0.npz",
        strips={
            "id-lowest": np.zeros((3, 8, 8), np.uint8),
            "ood-highest": np.zeros((3, 100, 80, 3), np.uint8),
        },
        sphere={"id": points, "ood": points},
    )
    return folder


def everything(cell):
    rows = ("deterministic", "laplace-online", "pfe", "mine & <b>yours", "mahalanobis")
    return [
        *(cell(row, seed) for row in rows for seed in range(3)),
        cell("laplace-online-arccos-fixed"),
        cell("pfe", name="cifar10"),
    ]


def test_the_page_holds_everything_and_needs_nothing(page, cell, pictures):
    found = page(*everything(cell), pictures=pictures, published=PAPER)
    text = "".join(found.text)
    for heading in (
        "How to read this",
        "FashionMNIST",
        "CIFAR10",
        "Ablation: when × distance × approximation",
        "Beside the paper",
        "ROC curves",
        "Precision-recall curves",
        "Calibration curves",
        "Sparsification curves",
        "How sure of known, how sure of strange?",
        "Does uncertainty rise with damage?",
        "The sphere",
        "The surest and the least sure",
    ):
        assert heading in text, heading
    assert found.all("script") == []
    assert found.all("link") == []
    for attrs in (a for _, a in found.seen):
        for key in ("src", "href"):
            assert re.match(r"data:image/png;base64,|#", attrs.get(key) or "#")
    assert "@import" not in text
    assert "url(" not in text


def test_pictures_have_words_for_who_cannot_see_them(page, cell, pictures):
    found = page(*everything(cell), pictures=pictures)
    assert len(found.all("img")) == 2
    assert all(a["alt"] for a in found.all("img"))
    svgs = found.all("svg")
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in svgs)
    assert any("AUROC: LAM (online) 0." in (a.get("aria-label") or "") for a in svgs)


def test_svg_is_well_formed_and_holds_only_finite_numbers(page, cell, pictures, tmp_path):
    page(*everything(cell), pictures=pictures)
    text = (tmp_path / "out" / "report.html").read_text()
    charts = re.findall(r"<svg.*?</svg>", text, flags=re.S)
    assert len(charts) > 20
    for chart in charts:
        ElementTree.fromstring(chart)
        assert not re.search(r"nan|inf\b", chart)


def test_names_are_escaped(page, cell, tmp_path):
    found = page(*everything(cell))
    assert "mine & <b>yours" in found.text
    assert "<b>yours" not in (tmp_path / "out" / "report.html").read_text()


def test_light_dark_and_print_have_the_same_colours(page, cell):
    css = "".join(page(cell()).text)
    light, dark, paper = (
        set(re.findall(r"(--[a-z0-9]+): #", block))
        for block in re.findall(r":root \{(.*?)\}", css, flags=re.S)
    )
    assert light == dark == paper
    assert "@media (prefers-color-scheme: dark)" in css
    assert "@media print" in css


def test_sections_without_content_are_not_there(page, cell):
    text = "".join(page(cell("deterministic")).text)
    for heading in ("ROC", "How sure of known", "damage?", "The sphere", "The surest", "Beside"):
        assert heading not in text


def test_a_point_estimate_has_no_histogram(page, cell):
    flat = {"edges": [30.0, 30.0], "id": [5], "ood": [5]}
    text = "".join(page(cell("deterministic", kappa=flat)).text)
    assert "How sure of known" not in text


def test_known_inputs_alone_have_a_histogram(page, cell):
    found = page(cell("pfe", kappa={"edges": [0.0, 0.5, 1.0], "id": [5, 9]}))
    assert "Median κ known 5.62." in found.text


def test_damage_to_an_uncertainty_of_zero_is_not_drawn(page, cell):
    zero = {k: [0.0, 0.0] for k in ("strength", "median", "low", "high")}
    text = "".join(page(cell("pfe", corruptions={"blur": zero})).text)
    assert "damage?" not in text


def test_mixed_versions_are_said_before_the_table(page, cell):
    text = "".join(page(cell(), cell("pfe", versions={"surefind": "9.9"})).text)
    assert text.index("Mixed versions.") < text.index("Methods")
    assert "9.9 made 1 (pfe-seed0.json)" in text


def test_tables_come_as_markdown_too(put, cell, tmp_path):
    results = read_results(put(cell()))
    write_report(results, tmp_path / "r.html", tmp_path / "sub" / "r.md")
    assert "| LAM (online) | 1 |" in (tmp_path / "sub" / "r.md").read_text()


def test_a_damaged_picture_is_named(page, cell, pictures):
    file = pictures / "fashion-mnist" / "laplace-online-seed0.npz"
    file.write_bytes(b"PK")
    with pytest.raises(
        sf.InputError, match=r"laplace-online-seed0.npz does not hold whole pictures"
    ):
        page(cell(), pictures=pictures)


def test_the_same_results_make_the_same_page(put, cell, tmp_path):
    results = read_results(put(*everything(cell)))
    for name in ("a", "b"):
        write_report(results, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
