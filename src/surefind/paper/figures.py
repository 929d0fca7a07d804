"""The figures of reports and result pages.

Figures that compare methods are of one seed: a mean of curves would be smoother than any trained model.
A method has the same colour, dash and marker in all of them, so that none is needed alone.

Embeddings on the sphere are orthographic views. The sphere is rotated so that the mean direction of the
in-distribution inputs faces the reader: that is the front. The back is seen from behind, so left and right
are exchanged. Colour and size show five levels of log κ between its 2 % and 98 % quantiles over
in-distribution and OOD points together.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from surefind.evaluation import DETECTORS, PARTS, figures
from surefind.evaluation.figures import (
    CURVES,
    DASHES,
    LIGHT,
    RC,
    SERIES,
    draw_curves,
    legend,
    plain_powers,
    plotting,
    styled_axes,
)
from surefind.paper.artifacts import SpherePoints
from surefind.paper.results import CorruptionCurve, KappaHistogram, Result
from surefind.paper.vocabulary import (
    DISTANCE_BASELINES,
    METHODS,
    dataset_title,
    method_title,
    metric_of,
)

METHOD_COLOURS = ("stone", "blue", "orange", "green", "purple", "ochre", "slate")
CUSTOM_COLOURS = ("brown", "violet", "red", "olive")
MARKERS = "osD^vPX<>*ph"
LEVEL_COLOURS = ("#2b6ca3", "#7fb3d8", "#a0a0a0", "#e99c45", "#c4500a")
"""From certain to uncertain; legible on light and on dark."""
DOT_BAND = 0.84
"""Which part of a row its dots take."""
PANELS_PER_ROW, PANEL_POINTS = 3, 21
"""Panels are small: more points would only be bytes."""
MAX_NAMED_CLASSES = 12
"""With more classes than this their names would hide the points."""
CAPTIONS = {
    "roc": (
        "auroc",
        "Inputs more uncertain than a threshold are rejected: the fraction of OOD inputs detected against "
        "the fraction of in-distribution inputs rejected. The dotted line is chance.",
    ),
    "precision-recall": (
        "auprc",
        "Fraction of OOD inputs among the rejected, against the fraction of OOD inputs detected.",
    ),
    "calibration": (
        "ece",
        "Accuracy of the queries of each confidence. On the dotted line the model is calibrated; below it "
        "is overconfident, above underconfident.",
    ),
    "sparsification": (
        "ausc",
        "Accuracy of the remaining queries as the most uncertain ones are dropped; it should rise early "
        "and steeply.",
    ),
}
"""The metric that sums up each kind of curve, and how to read it."""


@dataclass(frozen=True)
class Figure:
    """A figure with its words.

    Attributes:
        title: Its heading.
        svg: The SVG element.
        caption: How to read it, or its numbers.
    """

    title: str
    svg: str
    caption: str = ""


def curve_charts(results: Mapping[str, Result]) -> list[Figure]:
    """Draw each kind of curve of all methods that have it, from one result of each method."""
    looks, charts = line_styles(list(results)), []
    for name, kind in CURVES.items():
        summary, caption = CAPTIONS[name]
        metric, lines = metric_of(summary), []
        for method, result in results.items():
            if curve := result.curves.get(name):
                value = result.values.get(summary)
                label = method_title(method) + ("" if value is None else f" {value:.3f}")
                lines.append((curve.x, curve.y, looks[method] | {"label": label}))
        if not lines:
            continue
        labels = ", ".join(look["label"] for *_, look in lines)
        with styled_axes(4.9, 4.9) as (figure, axes):
            draw_curves(axes, kind, lines)
            legend(figure, "lower", 2)
            alt = f"{kind.title} on {_dataset(results)}. {metric.title}: {labels}"
            number = f"The number is the {metric.title}; {metric.better} is better."
            charts.append(Figure(kind.title, svg(figure, alt), f"{caption} {number}"))
    return charts


def line_styles(methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return colour, dash and marker of each method; a known method always has the same."""
    custom = [m for m in methods if m not in METHODS and m not in DISTANCE_BASELINES]
    looks = {}
    for names, colours, first_marker, width in (
        (METHODS, METHOD_COLOURS, 0, 1.8),
        (DISTANCE_BASELINES, ("grey",), len(METHODS), 1.1),
        (custom, CUSTOM_COLOURS, 0, 1.8),
    ):
        for place, method in enumerate(names):
            looks[method] = {
                "color": LIGHT[colours[place % len(colours)]],
                "linestyle": DASHES[place % len(DASHES)],
                "marker": MARKERS[(first_marker + place) % len(MARKERS)],
                "markevery": (0.02 * (1 + place), 0.22),
                "linewidth": width,
            }
    return {method: looks[method] for method in methods}


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


def kappa_charts(results: Mapping[str, Result]) -> list[Figure]:
    """Draw the distribution of κ of each method whose κ varies, from one result of each."""
    charts = []
    for method, result in results.items():
        kappa = result.kappa
        if kappa is None or kappa.edges[0] >= kappa.edges[-1]:
            continue
        counts = {PARTS["id"]: kappa.id} | ({PARTS["ood"]: kappa.ood} if kappa.ood else {})
        title, medians = method_title(method), _medians(kappa)
        alt = f"Distribution of κ for {title} on {_dataset(results)}: {medians}"
        chart = compact(figures.kappa_chart(kappa.edges, counts, alt))
        charts.append(Figure(title, chart, f"{medians[0].upper()}{medians[1:]}."))
    return charts


def ood_charts(results: Mapping[str, Result]) -> list[Figure]:
    """Draw the AUROC of each OOD set by κ, distance and novelty, for each method with several sets."""
    charts = []
    for method, result in results.items():
        series = {
            title: {
                n: o.values[p + "auroc"] for n, o in result.ood.items() if p + "auroc" in o.values
            }
            for p, title in DETECTORS.items()
        }
        series = {title: values for title, values in series.items() if values}
        if len(result.ood) < 2 or not series or method in DISTANCE_BASELINES:
            continue
        names = list(result.ood)
        labels = [
            dataset_title(n) + (" (near)" if result.ood[n].kind == "near" else "") for n in names
        ]
        with styled_axes(4, 0.9 + 0.32 * len(names)) as (figure, axes):
            for (title, values), look, marker in zip(series.items(), SERIES, MARKERS, strict=False):
                places = [names.index(n) for n in values]
                dots = {"linestyle": "none", "marker": marker, "color": look["color"]}
                axes.plot(list(values.values()), places, label=title, **dots)
            axes.axvline(0.5, linestyle=":", color=LIGHT["soft"])
            axes.set(xlim=(0, 1.02), ylim=(len(names) - 0.5, -0.5), xlabel="AUROC (dotted: chance)")
            axes.set_yticks(range(len(names)), labels)
            legend(figure, "upper", 3)
            means = ", ".join(f"{t} {np.mean(list(v.values())):.3f}" for t, v in series.items())
            title, means = method_title(method), f"Mean over its sets: {means}"
            alt = f"AUROC of {title} on {_dataset(results)} by OOD set. {means}"
            charts.append(Figure(title, svg(figure, alt), f"{means}."))
    return charts


def corruption_charts(results: Mapping[str, Result]) -> list[Figure]:
    """Draw uncertainty relative to clean images against corruption strength, on one scale for all."""
    relative = {m: curves for m, r in results.items() if (curves := _relative(r.corruptions))}
    if not relative:
        return []
    every = np.concatenate([c.low + c.high for cs in relative.values() for c in cs.values()])
    charts = []
    for method, curves in relative.items():
        rises = ", ".join(f"{name} {c.median[-1]:.3g}×" for name, c in curves.items())
        title = method_title(method)
        with styled_axes(4, 2.9) as (figure, axes):
            for (name, c), look in zip(curves.items(), cycle(SERIES), strict=False):
                band = {"color": look["color"], "alpha": 0.13, "linewidth": 0}
                axes.fill_between(c.strength, c.low, c.high, **band)
                axes.plot(c.strength, c.median, label=name, **look)
            axes.set(yscale="log", xlabel="corruption strength", xlim=(0, 1))
            axes.set_ylim(min(every.min(), 0.8), max(every.max(), 2))
            plain_powers(axes.yaxis, float(np.log10(every.max() / every.min())), "×")
            legend(figure, "upper", 3)
            rises = f"At full strength: {rises}"
            alt = f"Uncertainty of {title} on corrupted {_dataset(results)}. {rises}"
            charts.append(Figure(title, svg(figure, alt), f"{rises}."))
    return charts


def sphere_charts(sphere: Mapping[str, SpherePoints], title: str) -> list[Figure]:
    """Draw front and back of the sphere by part, with the centres of in-distribution classes."""
    known = sphere.get("id") or next(iter(sphere.values()))
    rotation, centres = facing(known), class_centres(known)
    limits = level_limits(sphere)
    charts = []
    for part, points in sphere.items():
        level = len(limits) - np.digitize(np.log10(points.kappa), limits)
        for side, sign in (("front", 1), ("back", -1)):
            mean = points.mean @ rotation.T * [sign, 1, sign]
            shown = mean[:, 2] >= 0
            if not shown.any():
                continue
            names = {k: v @ rotation.T * [sign, 1, sign] for k, v in centres.items()}
            name = f"{PARTS[part]}, {side}"
            disc = _disc(mean[shown], level[shown], names, f"{name}: embeddings of {title}")
            charts.append(Figure(name, disc))
    return charts


def facing(points: SpherePoints) -> np.ndarray:
    """Return the rotation (3, 3) that turns the points' mean direction to the reader, the third axis."""
    # The mean first, then any basis of the rest; the factors' signs are free, so they are fixed here.
    start = np.column_stack([points.mean.sum(axis=0), np.eye(3)[:, :2]]).astype(float)
    basis, upper = np.linalg.qr(start)
    basis = basis * np.where(np.diag(upper) < 0, -1.0, 1.0)
    rotation = np.stack([basis[:, 1], basis[:, 2], basis[:, 0]])
    # A mirror image would put classes on the wrong side of each other.
    rotation[1] *= np.sign(np.linalg.det(rotation))
    return rotation


def class_centres(points: SpherePoints) -> dict[str, np.ndarray]:
    """Return the mean direction of each class; none without labels, or with too many classes to name."""
    if points.labels is None or len(np.unique(points.labels)) > MAX_NAMED_CLASSES:
        return {}
    sums = {str(k): points.mean[points.labels == k].sum(axis=0) for k in np.unique(points.labels)}
    lengths = {name: float(np.linalg.norm(v)) for name, v in sums.items()}
    return {name: v / lengths[name] for name, v in sums.items() if lengths[name] > 0}


def level_limits(parts: Mapping[str, SpherePoints]) -> np.ndarray:
    """Return the borders between the levels of log10 κ, common to all parts."""
    logs = np.log10(np.concatenate([p.kappa for p in parts.values()]))
    low, high = np.quantile(logs, [0.02, 0.98])
    return np.asarray(np.linspace(low, high, len(LEVEL_COLOURS) + 1)[1:-1])


def _disc(mean: np.ndarray, level: np.ndarray, names: dict[str, np.ndarray], alt: str) -> str:
    ellipse = partial(plotting("matplotlib.patches").Ellipse, (0, 0), fill=False, zorder=0)
    with styled_axes(2.6, 2.6) as (figure, axes):
        axes.set(xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), aspect="equal")
        axes.axis("off")
        for width, height in ((2, 2), (1, 2), (2, 1)):
            axes.add_patch(ellipse(width, height, color=LIGHT["grid"]))
        # The certain ones first: what is uncertain must not be hidden. Thousands of points are pixels.
        order = np.argsort(level, kind="stable")
        size, colour = 3 + level[order] * 1.5, np.asarray(LEVEL_COLOURS)[level[order]]
        axes.scatter(*mean[order, :2].T, s=size, c=colour, linewidths=0, rasterized=True)
        box = {"boxstyle": "round,pad=0.1", "facecolor": LIGHT["bg"], "edgecolor": "none"}
        look = {"ha": "center", "va": "center", "weight": "bold", "bbox": box | {"alpha": 0.75}}
        for name, centre in names.items():
            if centre[2] >= 0:
                axes.text(*centre[:2], name, **look)
        return svg(figure, alt)


def _relative(corruptions: Mapping[str, CorruptionCurve]) -> dict[str, CorruptionCurve]:
    """Divide by the uncertainty of clean images; leave out what has no logarithm."""
    return {
        name: CorruptionCurve(
            strength=c.strength,
            **{k: [v / c.median[0] for v in getattr(c, k)] for k in ("median", "low", "high")},
        )
        for name, c in corruptions.items()
        if min(*c.low, c.median[0]) > 0
    }


def _dataset(results: Mapping[str, Result]) -> str:
    return dataset_title(next(iter(results.values())).dataset)


def _medians(kappa: KappaHistogram) -> str:
    edges, parts = np.asarray(kappa.edges), []
    for short, counts in (("ID", kappa.id), ("OOD", kappa.ood)):
        if counts and sum(counts) > 0:
            at = int(np.searchsorted(np.cumsum(counts) / np.sum(counts), 0.5))
            parts.append(f"{short} {10 ** edges[at : at + 2].mean():.3g}")
    return f"median κ: {', '.join(parts)}"


def svg(figure: Any, alt: str) -> str:
    """Return a figure as a small SVG element."""
    return compact(figures.svg(figure, alt))


def compact(text: str) -> str:
    """Take from a figure what matplotlib says of itself, and digits that nobody sees."""
    # matplotlib's own style would apply to the whole page.
    text = re.sub(r"(?s)<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text)
    text = re.sub(r">\s+<", "><", re.sub(r'<g id="[^"]*"', "<g", text))
    # A tenth of a point is enough, and most texts are rotated by nothing.
    text = re.sub(r' d="[^"]*"', lambda d: re.sub(r"(\.\d)\d+|\s*\n", r"\1", d[0]), text)
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    return re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", text)
