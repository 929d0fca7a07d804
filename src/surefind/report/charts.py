"""Charts as SVG text: curves, histograms and bands.

Drawn by hand, not by a plotting library, for one reason: the colours are CSS variables, so that one picture
serves light pages, dark pages and paper, and text stays text. A chart is a few kilobytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from surefind.report.axes import Number, Plane, Range, axes, factors, path, powers, svg, ticks
from surefind.report.styles import Style, badge

BADGE_ROOM = 17.0
"""Badges nearer than this touch."""


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a chart.

    Attributes:
        style: How it looks.
        x: Along.
        y: Up.
    """

    style: Style
    x: Sequence[Number]
    y: Sequence[Number]


@dataclass(frozen=True, eq=False)
class Band:
    """A median with its quartiles.

    Attributes:
        name: What it is of.
        x: Along.
        low: Lower quartile.
        median: The middle.
        high: Upper quartile.
    """

    name: str
    x: np.ndarray
    low: np.ndarray
    median: np.ndarray
    high: np.ndarray


def line_chart(
    curves: Sequence[Curve],
    plane: Plane,
    x_label: str,
    y_label: str,
    alt: str,
    *,
    diagonal: bool = False,
) -> str:
    """Draw curves with a badge on each.

    Args:
        curves: The lines.
        plane: Where they lie.
        x_label: Under the chart.
        y_label: Beside the chart.
        alt: What the chart shows, for who cannot see it.
        diagonal: Whether to draw y = x.

    Returns:
        SVG.
    """
    placed = [plane.at(c.x, c.y) for c in curves]
    marks = _badge_places(placed, plane)
    parts = [axes(plane, ticks(plane.x), ticks(plane.y), x_label, y_label)]
    if diagonal:
        parts.append(f'<path class="guide" d="{path(plane.at([0, 1], [0, 1]))}"/>')
    # The first rows are drawn last, so that nothing hides them.
    for curve, points in reversed(list(zip(curves, placed, strict=True))):
        parts.append(f'<path class="line {curve.style.css}" d="{path(points)}"/>')
    parts += [badge(c.style, *at) for c, at in zip(curves, marks, strict=True)]
    return svg(plane, alt, parts)


def histogram(
    edges: Sequence[Number], known: Sequence[Number], strange: Sequence[Number] | None, alt: str
) -> str:
    """Draw how κ is spread over known and strange inputs.

    Args:
        edges: Of log10 κ.
        known: Counts of known inputs.
        strange: Counts of strange inputs, if there are any.
        alt: What the chart shows.

    Returns:
        SVG.
    """
    shares = [
        np.asarray(c, dtype=float) / max(sum(c), 1) for c in (known, strange) if c is not None
    ]
    top = max(float(s.max()) for s in shares) or 1.0
    plane = Plane((edges[0], edges[-1]), (0, 1.08 * top), 320, 170, left=10, right=10, bottom=38)
    parts = [axes(plane, powers(plane.x), [], "κ (right: surer)", "")]
    for css, share in zip(("known", "strange"), shares, strict=False):
        x = np.repeat(np.asarray(edges, dtype=float), 2)
        y = np.concatenate([[0], np.repeat(share, 2), [0]])
        parts.append(f'<path class="hist {css}" d="{path(plane.at(x, y))}"/>')
    return svg(plane, alt, parts)


def band_chart(bands: Sequence[Band], y_range: Range, alt: str) -> str:
    """Draw medians with quartile bands on a logarithmic scale, each with its name at its end.

    Args:
        bands: What to draw.
        y_range: Of log10, common to all charts that are compared.
        alt: What the chart shows.

    Returns:
        SVG.
    """
    plane = Plane((0, 1), y_range, 320, 210, left=40, right=66, bottom=38)
    parts = [axes(plane, ticks((0, 1)), factors(y_range), "strength of the damage", "")]
    ends: list[tuple[float, str, int]] = []
    for i, band in enumerate(bands, 1):
        lower, middle, upper = (
            plane.at(band.x, np.log10(v)) for v in (band.low, band.median, band.high)
        )
        outline = np.concatenate([upper, lower[::-1]])
        parts.append(f'<path class="band k{i}" d="{path(outline)}Z"/>')
        parts.append(f'<path class="line k{i}" d="{path(middle)}"/>')
        ends.append((float(middle[-1, 1]), band.name, i))
    parts += _end_labels(ends, plane)
    return svg(plane, alt, parts)


def _end_labels(ends: list[tuple[float, str, int]], plane: Plane) -> list[str]:
    """Write names at the right ends, pushed apart where they would overlap."""
    labels, floor = [], plane.top + 8.0
    last = plane.height - plane.bottom
    for i, (y, name, kind) in enumerate(sorted(ends)):
        room = last - 14.0 * (len(ends) - 1 - i)
        floor = min(max(y, floor), room)
        x = plane.width - plane.right + 6
        labels.append(
            f'<text class="name k{kind}" x="{x}" y="{floor + 4:.1f}">{escape(name)}</text>'
        )
        floor += 14
    return labels


def _badge_places(placed: Sequence[np.ndarray], plane: Plane) -> list[np.ndarray]:
    """Choose a point on each line far from other badges, then from other lines and the left edge."""
    chosen: list[np.ndarray] = []
    dense = [_along(points, 80) for points in placed]
    for i, line in enumerate(dense):
        candidates = line[6:-6]
        others = [d for j, d in enumerate(dense) if j != i]
        clear = (
            _distance(candidates, np.concatenate(others)) if others else np.zeros(len(candidates))
        )
        apart = _distance(candidates, np.stack(chosen)) if chosen else np.full(len(candidates), 1e3)
        inside = np.minimum(candidates[:, 0] - plane.left, BADGE_ROOM)
        score = 3 * np.minimum(apart, 2 * BADGE_ROOM) + np.minimum(clear, BADGE_ROOM) + inside
        chosen.append(candidates[int(score.argmax())])
    return chosen


def _along(points: np.ndarray, n: int) -> np.ndarray:
    """Walk a line in n equal steps."""
    steps = np.concatenate([[0], np.linalg.norm(np.diff(points, axis=0), axis=1).cumsum()])
    at = np.linspace(0, steps[-1], n)
    return np.stack(
        [np.interp(at, steps, points[:, 0]), np.interp(at, steps, points[:, 1])], axis=1
    )


def _distance(points: np.ndarray, others: np.ndarray) -> np.ndarray:
    gaps = np.linalg.norm(points[:, None] - others[None], axis=-1)
    return np.asarray(gaps.min(axis=1))
