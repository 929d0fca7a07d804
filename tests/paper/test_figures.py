import re
from xml.etree import ElementTree

import numpy as np
import pytest

from surefind.paper.artifacts import SpherePoints
from surefind.paper.figures import (
    Dots,
    curve_charts,
    dot_chart,
    facing,
    level_limits,
    line_styles,
    ood_charts,
    panel_chart,
    sphere_charts,
)
from surefind.paper.results import Result
from surefind.paper.vocabulary import DISTANCE_BASELINES, METHODS


def words(svg):
    return [text.strip() for text in ElementTree.fromstring(svg).itertext() if text.strip()]


def test_every_method_has_a_look_of_its_own():
    methods = [*METHODS, *DISTANCE_BASELINES, "mine", "yours"]
    looks = line_styles(methods)
    assert len({(s["color"], str(s["linestyle"]), s["marker"]) for s in looks.values()}) == len(
        methods
    )
    assert line_styles(["pfe"])["pfe"] == looks["pfe"]


def test_text_stays_text_and_the_same_numbers_give_the_same_bytes(result):
    results = {m: Result(**result(m)) for m in ("pfe", "mahalanobis")}
    first, again = curve_charts(results), curve_charts(results)
    assert [f.svg for f in first] == [f.svg for f in again]
    value = results["pfe"].values["auroc"]
    assert f"PFE {value:.3f}" in words(first[0].svg)
    assert first[0].title == "ROC curves"


def test_the_mean_faces_the_reader_and_nothing_is_mirrored(directions):
    mean = directions(40, 3).numpy()
    mean[:, 0] = np.abs(mean[:, 0])
    rotation = facing(SpherePoints(mean, np.ones(40)))
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(rotation) == pytest.approx(1)
    middle = mean.sum(axis=0) / np.linalg.norm(mean.sum(axis=0))
    np.testing.assert_allclose(rotation @ middle, [0, 0, 1], atol=1e-6)


def test_levels_are_common_to_all_parts():
    points = {
        "id": SpherePoints(np.eye(3), np.array([1e4, 1e4, 1e4])),
        "ood": SpherePoints(np.eye(3), np.array([1e-1, 1e-1, 1e-1])),
    }
    np.testing.assert_allclose(level_limits(points), [0, 1, 2, 3], atol=1e-6)


@pytest.fixture
def discs(monkeypatch):
    """Record where the points and names of each disc would be drawn, and at which level."""
    drawn = {}

    def record(mean, level, names, alt):
        visible = {name: centre for name, centre in names.items() if centre[2] >= 0}
        drawn[alt.partition(":")[0]] = (mean, level, visible)
        return "<svg/>"

    monkeypatch.setattr("surefind.paper.figures._disc", record)
    return drawn


def test_uncertain_points_are_of_the_last_level_and_empty_sides_are_left_out(discs):
    mean = np.array([[0, 0, 1.0], [0.6, 0, 0.8]])
    sphere_charts({"id": SpherePoints(mean, np.array([1000.0, 1.0]), np.array([7, 8]))}, "PFE")
    assert list(discs) == ["In-distribution, front"]
    _, level, names = discs["In-distribution, front"]
    assert level.tolist() == [0, 4]
    assert set(names) == {"7", "8"}


def test_ood_points_are_drawn_among_the_in_distribution_classes(discs):
    """Their own labels mean something else and are not drawn."""
    known = SpherePoints(np.array([[0, 0, 1.0]]), np.array([9.0]), np.array([7]))
    other = SpherePoints(np.array([[0.6, 0, 0.8]]), np.array([1.0]), np.array([3]))
    figures = sphere_charts({"id": known, "ood": other}, "PFE")
    assert [f.title for f in figures] == list(discs)
    assert list(discs) == ["In-distribution, front", "Out-of-distribution, front"]
    assert [set(names) for *_, names in discs.values()] == [{"7"}, {"7"}]


def test_the_back_is_seen_from_behind(discs):
    """From behind, left and right are exchanged, up and down are not."""
    mean = np.array([[0.6, 0, -0.8], [0, 0.6, -0.8], [0, 0, 1.0], [0, 0, 1], [0, 0, 1]])
    points = SpherePoints(mean, np.full(5, 2.0))
    rotated = mean @ facing(points).T
    sphere_charts({"id": points}, "PFE")
    back, _, _ = discs["In-distribution, back"]
    expected = rotated[:2] * [-1, 1, -1]
    np.testing.assert_allclose(back, expected, atol=1e-12)
    assert (back[:, 2] > 0).all()


def test_a_disc_is_drawn_whole():
    points = SpherePoints(np.eye(3), np.array([1.0, 10.0, 100.0]), np.arange(3))
    svg = sphere_charts({"id": points}, "PFE")[0].svg
    assert {"0", "1", "2"} <= set(words(svg))
    assert "data:image/png;base64," in svg


def test_ood_sets_are_drawn_by_detector_where_there_are_several(result):
    one = {"mnist": {"examples": 9, "auroc": 0.9, "novelty_auroc": 0.8}}
    two = one | {"cifar100": {"kind": "near", "examples": 9, "auroc": 0.7}}
    results = {
        "pfe": Result(**result("pfe", ood=two)),
        "hib": Result(**result("hib", ood=one)),
        "margin": Result(**result("margin", ood=two)),
        "mc-dropout": Result(**result("mc-dropout")),
    }
    (chart,) = ood_charts(results)
    assert chart.title == "PFE"
    assert chart.caption == "Mean over its sets: κ 0.800, novelty 0.800."
    shown = words(chart.svg)
    for text in ("MNIST", "CIFAR100 (near)", "κ", "novelty"):
        assert text in shown
    assert "nearest distance" not in shown


def test_dots_name_their_rows_and_published_numbers_are_rings():
    looks = line_styles(["pfe", "hib"])
    values = [{"CUB200\nfrozen": 0.5, "LFW": 0.7}, {"LFW": 0.6}]
    plain, ringed = (
        dot_chart(
            [Dots(m, looks[m], v, p) for m, v, p in zip(looks, values, published, strict=True)],
            "recall@1",
            "in words",
            chance=0.5,
        )
        for published in ([{}, {}], [{"LFW": 0.4, "unknown": 0.1}, {}])
    )
    assert {"CUB200", "frozen", "LFW", "pfe", "hib", "recall@1"} <= {*words(plain)}
    rings = [
        len(re.findall(r'<use [^>]*style="fill-opacity: 0; stroke', svg)) for svg in (plain, ringed)
    ]
    assert rings == [0, 1]
    assert 'aria-label="in words"' in plain


def test_a_logarithmic_axis_of_dots_has_plain_numbers():
    look = line_styles(["pfe"])["pfe"]
    svg = dot_chart(
        [Dots("ours", look, {"fit": 0.002, "embed": 30.0})], "seconds", "", logarithmic=True
    )
    assert {"0.01", "1", "10"} <= {*words(svg)}


@pytest.mark.parametrize("sets", [1, 2, 7])
def test_panels_have_a_title_each_and_one_legend(sets):
    curve = (np.linspace(0, 1, 100).tolist(), np.linspace(0.7, 1, 100).tolist())
    looks = line_styles(["pfe", "knn-vote"])
    panels = {
        f"set {i}": {"pfe": curve} | ({"knn-vote": curve} if i == 0 else {}) for i in range(sets)
    }
    found = words(panel_chart("sparsification", panels, looks, "in words"))
    assert [found.count(text) for text in (*panels, "pfe", "knn-vote")] == [1] * (sets + 2)
    assert found.count("accuracy of the rest") == 1
