"""The frame of a chart: where numbers lie on the page, round ticks, grid, labels, and the SVG around.

Coordinates are in the units of a ``viewBox`` of about a phone's width, so that 12 units of text are legible
there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

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
