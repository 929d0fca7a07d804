import re

import numpy as np
import pytest

from surefind.evaluation.artifacts import Pictures, SpherePoints
from surefind.evaluation.report.charts import (
    Band,
    Curve,
    Plane,
    band_chart,
    line_chart,
    powers,
    styles_of,
    ticks,
)
from surefind.evaluation.report.figures import class_centres, facing, globes, level_limits
from surefind.evaluation.report.page import sphere_views
from surefind.evaluation.report.vocabulary import FREE, METHODS


@pytest.mark.parametrize(
    "span", [(0, 1), (0.73, 1.0), (0.9, 0.93), (-2, 5), (0, 1e-3), (0.0, 250.0)]
)
def test_ticks_are_few_round_and_inside(span):
    found = ticks(span)
    assert 2 <= len(found) <= 6
    for value, text in found:
        assert span[0] - 1e-9 <= value <= span[1] + 1e-9
        assert float(text) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("span", [(0, 2), (0.69, 2.1), (2.9, 3.05), (2.001, 2.002), (-30, 30)])
def test_logarithmic_ticks_are_few_and_inside(span):
    found = powers(span)
    assert 1 <= len(found) <= 10
    assert all(span[0] <= value <= span[1] for value, _ in found)


def test_a_point_lies_where_it_should():
    plane = Plane((0, 1), (0, 2), 100, 50, left=10, right=10, bottom=10, top=0)
    assert plane.at([0, 1, 0.5], [0, 2, 1]).tolist() == [[10, 40], [90, 0], [50, 20]]


def test_every_row_has_a_look_of_its_own():
    rows = [*METHODS, *FREE, "mine", "yours"]
    looks = styles_of(rows)
    assert len({s.css for s in looks.values()}) == len(rows)
    assert len({s.badge for s in looks.values()}) == len(rows)
    assert styles_of(["pfe"])["pfe"] == looks["pfe"]


def test_badges_do_not_touch():
    styles = list(styles_of(list(METHODS)).values())
    x = np.linspace(0, 1, 50)
    # All of them end in one point, and two of them are the same line.
    curves = [Curve(s, x.tolist(), (x ** (0.1 * max(i, 1))).tolist()) for i, s in enumerate(styles)]
    svg = line_chart(curves, Plane((0, 1), (0, 1)), "x", "y", "alt")
    at = np.array(re.findall(r'class="badge \w+" cx="([\d.]+)" cy="([\d.]+)"', svg), dtype=float)
    gaps = np.linalg.norm(at[:, None] - at[None], axis=-1) + np.eye(len(at)) * 1e3
    assert len(at) == len(METHODS)
    assert gaps.min() > 15


def test_a_curve_of_one_point_is_drawn():
    style = styles_of(["pfe"])["pfe"]
    assert "badge" in line_chart([Curve(style, [0.5], [0.5])], Plane((0, 1), (0, 1)), "x", "y", "a")


def test_names_at_line_ends_do_not_touch():
    one = np.ones(2)
    bands = [Band(name, np.array([0.0, 1.0]), one, one, one) for name in ("a", "b", "c")]
    svg = band_chart(bands, (-0.1, 0.3), "alt")
    heights = sorted(float(y) for y in re.findall(r'class="name k\d" x="[\d.]+" y="([\d.]+)"', svg))
    assert np.diff(heights).min() >= 14


def test_the_known_face_the_reader_and_nothing_is_mirrored(directions):
    mean = directions(40, 3).numpy()
    mean[:, 0] = np.abs(mean[:, 0])
    turn = facing(SpherePoints(mean, np.ones(40)))
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(turn) == pytest.approx(1)
    middle = mean.sum(axis=0) / np.linalg.norm(mean.sum(axis=0))
    np.testing.assert_allclose(turn @ middle, [0, 0, 1], atol=1e-6)


def test_unsure_points_are_of_the_last_level_and_sides_without_points_are_left_out():
    mean = np.array([[0, 0, 1.0], [0.6, 0, 0.8]])
    points = SpherePoints(mean, np.array([1000.0, 1.0]), np.array([7, 8]))
    limits = level_limits({"id": points})
    sides = globes(points, class_centres(points), np.eye(3), limits, "alt")
    assert list(sides) == ["front"]
    assert '<path class="dot u1" d="M95.0 95.0h0"/>' in sides["front"]
    assert '<path class="dot u5" d="M147.8 95.0h0"/>' in sides["front"]
    assert ">7</text>" in sides["front"]


def test_strange_points_lie_between_the_known_classes():
    """Their own labels mean something else and are not drawn."""
    known = SpherePoints(np.array([[0, 0, 1.0]]), np.array([9.0]), np.array([7]))
    strange = SpherePoints(np.array([[0.6, 0, 0.8]]), np.array([1.0]), np.array([3]))
    (view,) = sphere_views({"pfe": Pictures({}, {"id": known, "ood": strange})})
    discs = dict(view.pictures)
    assert len(discs) == 2
    for svg in discs.values():
        assert ">7</text>" in svg
        assert ">3</text>" not in svg


def test_a_back_is_seen_from_behind():
    points = SpherePoints(np.array([[0.6, 0, -0.8]]), np.array([2.0]))
    sides = globes(points, class_centres(points), np.eye(3), level_limits({"id": points}), "alt")
    assert list(sides) == ["back"]
    assert "M42.2 95.0h0" in sides["back"]
