"""Charts as SVG text: curves, histograms and bands.

Drawn by hand, not by a plotting library, for one reason: the colours are CSS variables, so that one picture
serves light pages, dark pages and paper, and text stays text. A chart is a few kilobytes.

The frame of a chart: where numbers lie on the page, round ticks, grid, labels, and the SVG around.

Coordinates are in the units of a ``viewBox`` of about a phone's width, so that 12 units of text are legible
there.

How a row looks in all charts of a page: a colour, a dash and a badge, so that none is needed alone.

Colours are CSS variables (``page.css`` sets them for light, dark and print), named by the class of the row:
m1 … m7 for the known methods, f1 … f5 for free baselines, x1 … for methods of the user's own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from surefind.evaluation.report.vocabulary import FREE, METHODS, row_title

Number = float | int
Range = tuple[Number, Number]


@dataclass(frozen=True)
class Plane:
    """Where a chart's numbers lie on the page.

    Attributes:
        x: Range of x.
        y: Range of y.
        width: Of the whole picture.
        height: Of the whole picture.
        left: Room for the labels of y.
        right: Room for names of lines.
        bottom: Room for the labels of x.
        top: Room over the chart.
    """

    x: Range
    y: Range
    width: Number = 400
    height: Number = 320
    left: Number = 46
    right: Number = 12
    bottom: Number = 40
    top: Number = 10

    def at(self, x: object, y: object) -> np.ndarray:
        """Place points: (n, 2)."""
        across = (np.asarray(x, dtype=float) - self.x[0]) / (self.x[1] - self.x[0])
        up = (np.asarray(y, dtype=float) - self.y[0]) / (self.y[1] - self.y[0])
        inner = self.width - self.left - self.right, self.height - self.top - self.bottom
        return np.stack(
            [self.left + across * inner[0], self.height - self.bottom - up * inner[1]], axis=-1
        )


def axes(
    plane: Plane,
    x_ticks: list[tuple[Number, str]],
    y_ticks: list[tuple[Number, str]],
    x_label: str,
    y_label: str,
) -> str:
    """Draw grid, axes and labels.

    Args:
        plane: Where the chart lies.
        x_ticks: Values and their texts.
        y_ticks: Values and their texts.
        x_label: Under the chart.
        y_label: Beside the chart; may be empty.

    Returns:
        SVG.
    """
    bottom, right = plane.height - plane.bottom, plane.width - plane.right
    parts = []
    for value, text in x_ticks:
        x = plane.at(value, plane.y[0])[0]
        parts.append(
            f'<path class="grid" d="M{x:.1f} {plane.top}V{bottom}"/>'
            f'<text class="tick" x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{text}</text>'
        )
    for value, text in y_ticks:
        y = plane.at(plane.x[0], value)[1]
        parts.append(
            f'<path class="grid" d="M{plane.left} {y:.1f}H{right}"/>'
            f'<text class="tick" x="{plane.left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        )
    parts.append(f'<path class="axis" d="M{plane.left} {plane.top}V{bottom}H{right}"/>')
    middle = (plane.left + right) / 2
    parts.append(
        f'<text class="label" x="{middle}" y="{plane.height - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    if y_label:
        centre = (plane.top + bottom) / 2
        parts.append(
            f'<text class="label" transform="translate(12 {centre}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_label)}</text>"
        )
    return "".join(parts)


def ticks(span: Range) -> list[tuple[Number, str]]:
    """Choose up to six round numbers of a range, with their texts."""
    width = span[1] - span[0]
    step = 10 ** math.floor(math.log10(width))
    for part in (0.1, 0.2, 0.5, 1, 2):
        if width / (step * part) <= 5.001:
            step *= part
            break
    first, last = math.ceil(span[0] / step - 1e-6), math.floor(span[1] / step + 1e-6)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(i * step, f"{i * step:.{digits}f}") for i in range(first, last + 1)]


def powers(span: Range) -> list[tuple[Number, str]]:
    """Choose values of log10, labelled by what they stand for."""
    width = span[1] - span[0]
    if width >= 2:
        every = math.ceil(width / 6)
        whole = range(math.ceil(span[0]), math.floor(span[1]) + 1, every)
        return [(i, _plain(i)) for i in whole]
    found = [
        (power + math.log10(lead), f"{lead * 10.0**power:.4g}")
        for power in range(math.floor(span[0]), math.ceil(span[1]) + 1)
        for lead in ((1, 2, 5) if width > 0.5 else (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))
    ]
    inside = [t for t in found if span[0] <= t[0] <= span[1]]
    return inside or [(span[0], f"{10 ** span[0]:.3g}"), (span[1], f"{10 ** span[1]:.3g}")]


def _plain(power: int) -> str:
    if -3 <= power <= 4:
        return f"{10.0**power:g}"
    return f'10<tspan dy="-4" font-size="9">{power}</tspan>'


def factors(span: Range) -> list[tuple[Number, str]]:
    """Choose values of log10, labelled as multiples."""
    return [(value, f"{text}×") for value, text in powers(span)]


def path(points: np.ndarray) -> str:
    """Write points (n, 2) as the data of an SVG path."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def svg(plane: Plane, alt: str, parts: Sequence[str]) -> str:
    """Put the parts of a chart together."""
    return (
        f'<svg class="chart" viewBox="0 0 {plane.width:g} {plane.height:g}" role="img" '
        f'aria-label="{escape(alt)}">{"".join(parts)}</svg>'
    )


OWN = 4
"""Looks for methods of the user's own, used in turn."""


@dataclass(frozen=True)
class Style:
    """How a row is drawn.

    Attributes:
        css: The class of its lines.
        badge: One or two characters that stand on its lines.
        title: Its name for readers.
    """

    css: str
    badge: str
    title: str

    @property
    def swatch(self) -> str:
        """Draw a short line with the badge, for a legend."""
        return (
            '<svg class="swatch" viewBox="0 0 44 18" width="44" height="18" aria-hidden="true">'
            f'<path class="line {self.css}" d="M1 9H43"/>{badge(self, 22.0, 9.0)}</svg>'
        )


def styles_of(rows: list[str]) -> dict[str, Style]:
    """Give each row of a data set its look.

    Args:
        rows: Their names.

    Returns:
        Looks by row; a known row has the same one on every page.
    """
    own = [row for row in rows if row not in METHODS and row not in FREE]
    looks = {}
    for row in rows:
        if row in METHODS:
            place = list(METHODS).index(row) + 1
            css, mark = f"m{place}", str(place)
        elif row in FREE:
            place = list(FREE).index(row)
            css, mark = f"f{place + 1}", "abcde"[place]
        else:
            place = own.index(row)
            css, mark = f"x{place % OWN + 1}", str(len(METHODS) + place + 1)
        looks[row] = Style(css, mark, row_title(row))
    return looks


def badge(style: Style, x: float, y: float) -> str:
    """Draw a row's badge.

    Args:
        style: The row's look.
        x: Centre.
        y: Centre.

    Returns:
        SVG.
    """
    return (
        f'<circle class="badge {style.css}" cx="{x:.1f}" cy="{y:.1f}" r="7.5"/>'
        f'<text class="mark" x="{x:.1f}" y="{y + 3.6:.1f}">{escape(style.badge)}</text>'
    )


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
