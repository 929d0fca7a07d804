import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from surefind.paper.artifacts import write_strips
from surefind.paper.page import write_report
from surefind.paper.published import PAPER
from surefind.paper.results import read_results

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


def outline(file):
    found = Outline()
    found.feed(file.read_text(encoding="utf-8"))
    assert found.open == []
    return found


OOD = {
    "mnist": {"kind": "far", "examples": 10000, "auroc": 0.9, "novelty_auroc": 0.8},
    "cifar100": {"kind": "near", "examples": 10000, "auroc": 0.6, "nearest_distance_auroc": 0.7},
}


@pytest.fixture
def page(put, tmp_path):
    def make(*results, **options):
        write_report(read_results(put(*results)), tmp_path / "report.html", **options)
        return outline(tmp_path / "report.html")

    return make


@pytest.fixture(scope="module")
def whole(result, write_results, tmp_path_factory):
    """The file of a page that has every section, made once."""
    folder = tmp_path_factory.mktemp("whole")
    strips = {
        "id-lowest": np.zeros((3, 8, 8), np.uint8),
        "ood-highest": np.zeros((3, 100, 80, 3), np.uint8),
    }
    write_strips(folder / "work" / "fashion-mnist" / "laplace-online-seed0.npz", strips)
    methods = ("deterministic", "laplace-online", "pfe", "mine & <b>yours", "mahalanobis")
    results = write_results(
        folder / "results",
        *(result(m, seed) for m in methods for seed in range(3)),
        result("hib", ood=OOD),
        result("laplace-online-arccos-fixed"),
        result("pfe", dataset="cifar10"),
    )
    file = folder / "out" / "report.html"
    write_report(read_results(results), file, artifacts=folder / "work", published=PAPER)
    return file


def test_the_page_holds_everything_and_needs_nothing(whole):
    found = outline(whole)
    text = "".join(found.text)
    for heading in (
        "How to read this",
        "FashionMNIST",
        "CIFAR10",
        "Ablation: stage × distance × approximation",
        "Comparison with the paper",
        "ROC curves",
        "Precision-recall curves",
        "Calibration curves",
        "Sparsification curves",
        "Out-of-distribution sets",
        "Detection of each out-of-distribution set",
        "Distribution of κ",
        "Uncertainty under corruption",
        "Most certain and most uncertain images",
    ):
        assert heading in text, heading
    assert found.all("script") == []
    assert found.all("link") == []
    for attrs in (a for _, a in found.seen):
        for key in ("src", "href", "xlink:href"):
            assert re.match(r"data:image/(png|webp);base64,|#", attrs.get(key) or "#")
    assert "@import" not in text
    assert "url(" not in text


def test_figures_have_alternative_text(whole):
    found = outline(whole)
    assert len(found.all("img")) == 2
    assert all(a["alt"] for a in found.all("img"))
    svgs = found.all("svg")
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in svgs)
    assert any("AUROC: LAM (online) 0." in (a.get("aria-label") or "") for a in svgs)


def test_svg_is_well_formed_and_holds_only_finite_numbers(whole):
    charts = re.findall(r"<svg.*?</svg>", whole.read_text(), flags=re.S)
    assert len(charts) > 15
    for chart in charts:
        ElementTree.fromstring(chart)
        without_images = re.sub(r"base64,[^\"]*", "", chart)
        assert not re.search(r"\bnan\b|\binf\b", without_images, flags=re.IGNORECASE)


def test_figures_of_a_page_share_no_id(whole):
    ids = [attrs["id"] for _, attrs in outline(whole).seen if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_names_are_escaped(whole):
    assert "mine & <b>yours" in outline(whole).text
    assert "<b>yours" not in whole.read_text()


def test_tables_come_as_markdown_too(put, result, tmp_path):
    results = read_results(put(result("deterministic")))
    write_report(results, tmp_path / "r.html", tmp_path / "sub" / "r.md")
    assert "| Deterministic | 1 |" in (tmp_path / "sub" / "r.md").read_text()
