"""The figures of reports and result pages.

Figures that compare methods are of one seed: a mean of curves would be smoother than any trained model.
A method has the same colour, dash and marker in all of them, so that none is needed alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np

from surefind.evaluation import DETECTORS, PARTS, figures
from surefind.evaluation.figures import (
    CURVES,
    DASHES,
    LIGHT,
    SERIES,
    draw_curves,
    legend,
    plain_powers,
    styled_axes,
)
from surefind.paper.results import CorruptionCurve, KappaHistogram, Result
from surefind.paper.vocabulary import (
    DISTANCE_BASELINES,
    METHODS,
    VOCABULARY,
    dataset_title,
    method_title,
    metric_of,
)

METHOD_COLOURS = ("stone", "blue", "orange", "green", "purple", "ochre", "slate", "red")
CUSTOM_COLOURS = ("brown", "violet", "olive")
MARKERS = "osD^vPX<>*ph"


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
        summary, caption = VOCABULARY["curves"][name].values()
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
