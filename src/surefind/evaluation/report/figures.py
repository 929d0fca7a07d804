"""The figures that compare rows: curves, histograms of κ, uncertainty against damage.

Each is of one seed, the first of each row: a mean of curves would be smoother than any model that was
trained. A row without what a figure needs is left out of it, and a figure without rows is not there.

Three-dimensional embeddings on their sphere, front and back, coloured by how sure they are.

Orthographic views. The sphere is turned so that the known inputs' mean direction faces the reader: that is
the front. The back is seen from behind, so left and right are exchanged. Five levels of log κ between its
2 % and 98 % quantiles over known and strange points together; less sure points are both warmer and larger.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

from surefind.evaluation.artifacts import SpherePoints
from surefind.evaluation.report.charts import (
    Band,
    Curve,
    Plane,
    Style,
    band_chart,
    histogram,
    line_chart,
    styles_of,
)
from surefind.evaluation.report.vocabulary import PARTS, Metric, metric_of, row_title
from surefind.evaluation.results import Cell, Series


@dataclass(frozen=True)
class Kind:
    """A kind of curve.

    Attributes:
        name: Its key in a cell.
        title: Over the chart.
        metric: The number that sums it up.
        x_label: Under the chart.
        y_label: Beside the chart.
        caption: How to read it.
        diagonal: Whether y = x means something.
    """

    name: str
    title: str
    metric: str
    x_label: str
    y_label: str
    caption: str
    diagonal: bool = False


CURVES = (
    Kind(
        "roc",
        "ROC curves",
        "auroc",
        "known inputs turned away",
        "strange inputs caught",
        "Turn away whatever is less sure than a threshold: how many strange inputs are caught (up), for "
        "how many known ones turned away (right). The nearer to the top left corner, the better; the "
        "dotted line is a coin.",
        diagonal=True,
    ),
    Kind(
        "precision-recall",
        "Precision-recall curves",
        "auprc",
        "strange inputs caught",
        "strange among those turned away",
        "Of the inputs turned away, the share that is strange (up), as more of the strange ones are "
        "caught (right). Higher is better.",
    ),
    Kind(
        "calibration",
        "Calibration curves",
        "ece",
        "confidence",
        "share of right answers",
        "When the model says 80 %, is it right in 80 % of the cases? On the dotted line it is; below, it "
        "is too sure of itself; above, too modest.",
        diagonal=True,
    ),
    Kind(
        "sparsification",
        "Sparsification curves",
        "ausc",
        "share of least sure queries dropped",
        "accuracy of the rest",
        "Drop the queries the model is least sure of: the accuracy of the rest should rise, early and "
        "steeply.",
    ),
)


@dataclass(frozen=True)
class Chart:
    """Curves of all rows in one picture.

    Attributes:
        kind: What is drawn.
        metric: The number in the legend.
        svg: The picture.
        legend: Look and number of each row.
    """

    kind: Kind
    metric: Metric
    svg: str
    legend: tuple[tuple[Style, float | None], ...]


@dataclass(frozen=True)
class Small:
    """One of several small pictures, one a row.

    Attributes:
        title: The row.
        svg: The picture.
        caption: What it shows, in numbers.
    """

    title: str
    svg: str
    caption: str


def curve_charts(firsts: Mapping[str, Cell]) -> list[Chart]:
    """Draw the curves of all rows, one chart for each kind.

    Args:
        firsts: One cell of each row.

    Returns:
        The charts that have a line.
    """
    styles, charts = styles_of(list(firsts)), []
    for kind in CURVES:
        having = {row: c for row, c in firsts.items() if c.curves.get(kind.name, {}).get("x")}
        if not having:
            continue
        curves = [
            Curve(styles[row], c.curves[kind.name]["x"], c.curves[kind.name]["y"])
            for row, c in having.items()
        ]
        lowest = min(min(c.y) for c in curves) if kind.name == "sparsification" else 0.0
        plane = Plane((0, 1), (max(0.0, np.floor(lowest * 20) / 20 - 0.02), 1.0))
        legend = tuple((styles[row], c.values.get(kind.metric)) for row, c in having.items())
        metric = metric_of(kind.metric)
        alt = f"{kind.title}. {metric.title}: " + ", ".join(
            f"{style.title} {value:.3f}" for style, value in legend if value is not None
        )
        svg = line_chart(curves, plane, kind.x_label, kind.y_label, alt, diagonal=kind.diagonal)
        charts.append(Chart(kind, metric, svg, legend))
    return charts


def kappa_histograms(firsts: Mapping[str, Cell]) -> list[Small]:
    """Draw how κ is spread over known and strange inputs.

    Args:
        firsts: One cell of each row.

    Returns:
        One picture for each row with a κ that varies: a point estimate has κ = ∞ everywhere.
    """
    found = []
    for row, cell in firsts.items():
        kappa = cell.kappa
        if kappa is None or kappa["edges"][0] >= kappa["edges"][-1]:
            continue
        said = _medians(kappa)
        alt = f"Histogram of κ for {row_title(row)}: {said}"
        svg = histogram(kappa["edges"], kappa["id"], kappa.get("ood"), alt)
        found.append(Small(row_title(row), svg, f"{said[0].upper()}{said[1:]}."))
    return found


def damage_charts(firsts: Mapping[str, Cell]) -> list[Small]:
    """Draw uncertainty against the strength of corruptions, as multiples of that of clean images.

    Args:
        firsts: One cell of each row.

    Returns:
        One picture for each row that has such curves, all on one scale.
    """
    scaled = {row: _bands(cell) for row, cell in firsts.items()}
    scaled = {row: bands for row, bands in scaled.items() if bands}
    if not scaled:
        return []
    every = np.concatenate([v for bs in scaled.values() for b in bs for v in (b.low, b.high)])
    span = (float(min(np.log10(every.min()), -0.1)), float(max(np.log10(every.max()), 0.3)))
    found = []
    for row, bands in scaled.items():
        rises = ", ".join(f"{b.name} {b.median[-1]:.3g}×" for b in bands)
        alt = f"Uncertainty of {row_title(row)} against damage; at full strength: {rises}"
        svg = band_chart(bands, span, alt)
        found.append(Small(row_title(row), svg, f"At full strength: {rises}."))
    return found


def _medians(kappa: Series) -> str:
    edges = np.asarray(kappa["edges"], dtype=float)
    parts = []
    for part, name in PARTS.items():
        if sum(kappa.get(part, [])) > 0:
            share = np.cumsum(kappa[part]) / np.sum(kappa[part])
            at = int(np.searchsorted(share, 0.5))
            parts.append(f"{name.lower()} {10 ** edges[at : at + 2].mean():.3g}")
    return f"median κ {', '.join(parts)}"


def _bands(cell: Cell) -> list[Band]:
    """Scale a cell's corruption curves; those without a positive uncertainty have no logarithm."""
    bands = []
    for kind, curve in cell.corruptions.items():
        clean = curve["median"][0]
        if min(*curve["low"], clean) > 0:
            low, median, high = (np.asarray(curve[k]) / clean for k in ("low", "median", "high"))
            bands.append(Band(kind, np.asarray(curve["strength"]), low, median, high))
    return bands


LEVELS = 5
RADIUS = 88.0
SIZE = 190.0
CLASSES = 12
"""With more classes than this their names would hide the points."""


def globes(
    points: SpherePoints,
    classes: Mapping[str, np.ndarray],
    turn: np.ndarray,
    limits: np.ndarray,
    alt: str,
) -> dict[str, str]:
    """Draw the front and the back of a sphere.

    Args:
        points: Directions and κ.
        classes: Where classes lie, from `class_centres`.
        turn: How the sphere is turned (3, 3), from `facing`.
        limits: Inner borders of the levels of log10 κ, from `level_limits`.
        alt: What the picture shows.

    Returns:
        SVG pictures of the sides, "front" and "back", that have points.
    """
    level = LEVELS - 1 - np.digitize(np.log10(points.kappa), limits)
    centres = {name: turn @ centre for name, centre in classes.items()}
    mean = points.mean @ turn.T
    return {
        name: _disc(mean, level, centres, side, f"{alt}, {name}")
        for name, side in (("front", 1), ("back", -1))
        if (mean[:, 2] * side >= 0).any()
    }


def facing(points: SpherePoints) -> np.ndarray:
    """Turn the mean direction of points towards the reader.

    Args:
        points: The known inputs.

    Returns:
        A rotation (3, 3) of directions; the third axis points at the reader.
    """
    # The mean first, then any basis of the rest; the factors' signs are free, so they are fixed here.
    start = np.column_stack([points.mean.sum(axis=0), np.eye(3)[:, :2]]).astype(float)
    basis, upper = np.linalg.qr(start)
    basis = basis * np.where(np.diag(upper) < 0, -1.0, 1.0)
    turn = np.stack([basis[:, 1], basis[:, 2], basis[:, 0]])
    # A mirror image would put classes on the wrong side of each other.
    turn[1] *= np.sign(np.linalg.det(turn))
    return turn


def class_centres(points: SpherePoints) -> dict[str, np.ndarray]:
    """Give the mean direction of each class, on the sphere.

    Args:
        points: The known inputs.

    Returns:
        Unit vectors by class; none without labels, or where there are too many classes to name.
    """
    if points.labels is None or len(np.unique(points.labels)) > CLASSES:
        return {}
    sums = {str(k): points.mean[points.labels == k].sum(axis=0) for k in np.unique(points.labels)}
    lengths = {name: float(np.linalg.norm(v)) for name, v in sums.items()}
    return {name: v / lengths[name] for name, v in sums.items() if lengths[name] > 0}


def level_limits(parts: Mapping[str, SpherePoints]) -> np.ndarray:
    """Choose common levels for all points of a method.

    Args:
        parts: Known and strange points.

    Returns:
        The borders between the levels of log10 κ.
    """
    logs = np.log10(np.concatenate([p.kappa for p in parts.values()]))
    low, high = np.quantile(logs, [0.02, 0.98])
    return np.linspace(low, high, LEVELS + 1)[1:-1]


def _disc(
    mean: np.ndarray, level: np.ndarray, centres: dict[str, np.ndarray], side: int, alt: str
) -> str:
    middle = SIZE / 2
    parts = [
        f'<circle class="globe" cx="{middle}" cy="{middle}" r="{RADIUS}"/>',
        *(
            f'<ellipse class="grid" cx="{middle}" cy="{middle}" rx="{rx:.1f}" ry="{ry:.1f}"/>'
            for rx, ry in ((RADIUS / 2, RADIUS), (RADIUS, RADIUS / 2))
        ),
    ]
    shown = mean[:, 2] * side >= 0
    # The surest first: what is unsure must not be hidden.
    for i in range(LEVELS):
        here = _placed(mean[shown & (level == i)], side)
        if len(here):
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in here)
            parts.append(f'<path class="dot u{i + 1}" d="{dots}"/>')
    for name, centre in centres.items():
        if centre[2] * side >= 0:
            x, y = _placed(centre[None], side)[0]
            parts.append(f'<text class="class" x="{x:.1f}" y="{y + 4:.1f}">{escape(name)}</text>')
    return (
        f'<svg class="chart" viewBox="0 0 {SIZE:g} {SIZE:g}" role="img" aria-label="{escape(alt)}">'
        f"{''.join(parts)}</svg>"
    )


def _placed(mean: np.ndarray, side: int) -> np.ndarray:
    return np.stack([SIZE / 2 + side * RADIUS * mean[:, 0], SIZE / 2 - RADIUS * mean[:, 1]], axis=1)
