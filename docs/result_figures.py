"""The figures of the result pages: dots of many data sets, and curves side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from surefind.evaluation.figures import (
    CURVES,
    LIGHT,
    RC,
    draw_curves,
    legend,
    plain_powers,
    plotting,
    styled_axes,
)
from surefind.paper.figures import svg

DOT_BAND = 0.84
"""Which part of a row its dots take."""
PANELS_PER_ROW, PANEL_POINTS = 3, 21
"""Panels are small: more points would only be bytes."""


@dataclass(frozen=True, eq=False)
class Dots:
    """One series of a dot chart.

    Attributes:
        label: Its name in the legend.
        look: Colour and marker, of `line_styles`.
        values: A number by row.
        published: What somebody else published, by row; a ring of the same colour.
    """

    label: str
    look: Mapping[str, Any]
    values: Mapping[str, float]
    published: Mapping[str, float] = field(default_factory=dict)


def dot_chart(
    series: Sequence[Dots],
    x_label: str,
    alt: str,
    *,
    chance: float | None = None,
    logarithmic: bool = False,
) -> str:
    """Draw numbers as dots, a band for each row, a line in it for each series.

    Args:
        series: What is compared; rows are in the order in which the series name them.
        x_label: What the numbers are.
        alt: The figure in words.
        chance: Where a dotted line stands.
        logarithmic: Whether the axis is.

    Returns:
        The SVG element.
    """
    rows = list(dict.fromkeys(row for one in series for row in one.values))
    with styled_axes(7, 1.3 + len(rows) * max(0.3, 0.09 * len(series))) as (figure, axes):
        for place, one in enumerate(series):
            offset = (place + 0.5) / len(series) * DOT_BAND - DOT_BAND / 2
            look = {"linestyle": "none", "color": one.look["color"], "marker": one.look["marker"]}
            for values, face in ((one.published, "none"), (one.values, one.look["color"])):
                shown = {row: value for row, value in values.items() if row in rows}
                x, y = list(shown.values()), [rows.index(row) + offset for row in shown]
                label = one.label if values is one.values else None
                axes.plot(x, y, **look, markersize=5.5, markerfacecolor=face, label=label)
        if chance is not None:
            axes.axvline(chance, linestyle=":", color=LIGHT["soft"])
        for border in range(1, len(rows)):
            axes.axhline(border - 0.5, color=LIGHT["grid"], linewidth=0.8)
        axes.grid(visible=False, axis="y")
        axes.set(xlabel=x_label, ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), rows)
        if logarithmic:
            axes.set_xscale("log")
            plain_powers(axes.xaxis, 3)
        legend(figure, "upper", 4)
        return svg(figure, alt)


def panel_chart(
    name: str,
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float]]]],
    looks: Mapping[str, Mapping[str, Any]],
    alt: str,
) -> str:
    """Draw curves of one kind side by side, a panel for each data set, at a few points each.

    Args:
        name: The kind, one of `CURVES`.
        panels: x and y by series by title of the panel.
        looks: Colour, dash and width by series.
        alt: The figure in words.

    Returns:
        The SVG element.
    """
    ticker = plotting("matplotlib.ticker")
    kind, columns = CURVES[name], min(len(panels), PANELS_PER_ROW)
    lines = -(-len(panels) // columns)
    with plotting("matplotlib").rc_context(RC):
        figure = plotting("matplotlib.figure").Figure((max(6.4, 2.4 * columns), 0.9 + 2.3 * lines))
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
        for axes, (title, curves) in zip(grid, panels.items(), strict=False):
            thinned = []
            for one, (x, y) in curves.items():
                at = np.unique(np.linspace(0, len(x) - 1, PANEL_POINTS).astype(int))
                look = {key: looks[one][key] for key in ("color", "linestyle", "linewidth")}
                points = np.asarray(x)[at], np.asarray(y)[at]
                thinned.append((*points, look | {"label": one}))
            draw_curves(axes, kind, thinned)
            axes.set(xlabel="", ylabel="", xticks=(0, 0.5, 1))
            axes.yaxis.set_major_locator(ticker.MaxNLocator(4, steps=(1, 2, 5, 10)))
            axes.tick_params(bottom=False, left=False)
            axes.set_title(title, fontsize=9)
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        figure.supxlabel(kind.x_label, fontsize=10, color=LIGHT["soft"])
        figure.supylabel(kind.y_label, fontsize=10, color=LIGHT["soft"])
        named: dict[str, Any] = {}
        for axes in grid[: len(panels)]:
            named |= {k: h for h, k in zip(*axes.get_legend_handles_labels(), strict=True)}
        order = [one for one in looks if one in named]
        place = {"loc": "outside upper center", "ncols": 4, "fontsize": 9.5}
        figure.legend([named[one] for one in order], order, **place)
        return svg(figure, alt)
