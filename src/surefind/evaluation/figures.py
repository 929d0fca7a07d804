"""The figures of runs, calibrations and the demo, drawn by matplotlib as SVG.

A figure is an SVG element as text, to be put into a page or a file. Its text stays text, and the same
numbers give the same bytes. Colours are CSS variables with the light colour as fallback,
``var(--blue, #0072b2)``: a page that includes `palette_css` shows its figures in light, dark and print;
`write_figure` puts that style into the file.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from surefind.checks import require
from surefind.decisions.risk import RiskCurve
from surefind.files import write_atomically

PALETTE = {
    "bg": ("#ffffff", "#15171b"),
    "ink": ("#1a1c20", "#e9ebef"),
    "soft": ("#575d68", "#a4abb8"),
    "grid": ("#e7eaef", "#282c34"),
    "blue": ("#0072b2", "#4fb0ec"),
    "orange": ("#d55e00", "#ff8a3d"),
    "green": ("#00805d", "#2fc79a"),
    "purple": ("#a2478c", "#e18bc9"),
    "ochre": ("#927000", "#dcb32e"),
    "slate": ("#33373e", "#f2f4f7"),
    "stone": ("#7d7468", "#b3a999"),
    "grey": ("#7b818c", "#949ba8"),
    "brown": ("#7a4b1e", "#d9a877"),
    "violet": ("#4b3fa8", "#a99fff"),
    "red": ("#b0284f", "#ff86a5"),
    "olive": ("#3b6b00", "#9fd35c"),
}
"""The light and the dark colour of each variable."""
LIGHT = {name: light for name, (light, _) in PALETTE.items()}
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (10, 3)))
SERIES = [
    {"color": LIGHT[colour], "linestyle": dash}
    for colour, dash in zip(("blue", "orange", "green", "purple", "ochre"), DASHES, strict=True)
]
"""The lines of figures that do not compare methods."""
PIXELS_PER_INCH = 110
STRIP_HEIGHT = 64
"""Images of strips are shrunk to this many pixels."""
PHOTOGRAPH_HEIGHT, PHOTOGRAPHS_IN_A_ROW = 96, 6
"""The same of photographs, which are larger than that."""
RC = {
    **dict.fromkeys(("axes.axisbelow", "axes.grid", "figure.constrained_layout.use"), True),
    **dict.fromkeys(("axes.spines.right", "axes.spines.top", "legend.frameon"), False),
    **dict.fromkeys(("axes.facecolor", "svg.fonttype"), "none"),
    **{f"{name}color": LIGHT["soft"] for name in ("axes.edge", "axes.label", "xtick.", "ytick.")},
    "figure.facecolor": LIGHT["bg"],
    "font.size": 10,
    "grid.color": LIGHT["grid"],
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "text.color": LIGHT["ink"],
}
plotting = partial(require, purpose="draw figures", extra="cli")


class CurveKind(NamedTuple):
    """A kind of curve: its heading, its axes, and whether y = x is a reference."""

    title: str
    x_label: str
    y_label: str
    diagonal: bool = False


CURVES = {
    "roc": CurveKind(
        "ROC curves",
        "false positive rate (in-distribution rejected)",
        "true positive rate (OOD detected)",
        diagonal=True,
    ),
    "precision-recall": CurveKind(
        "Precision-recall curves", "recall (OOD detected)", "precision (OOD among rejected)"
    ),
    "calibration": CurveKind("Calibration curves", "confidence", "accuracy", diagonal=True),
    "sparsification": CurveKind(
        "Sparsification curves",
        "fraction of most uncertain queries dropped",
        "accuracy of the rest",
    ),
}


def palette_css() -> str:
    """Return the style that gives figures their colours in light, dark and print."""
    light, dark = (
        f":root{{{''.join(f'--{name}:{pair[i]};' for name, pair in PALETTE.items())}}}"
        for i in (0, 1)
    )
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}@media print{{{light}}}"


def page_css() -> str:
    """Return the style of pages around figures."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return palette_css() + style


def fill_template(file: Path, **values: Any) -> str:
    """Fill in a Jinja template, escaping all values that it does not call safe."""
    jinja2 = require("jinja2", "write the report", extra="cli")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return str(environment.from_string(file.read_text(encoding="utf-8")).render(values))


def write_figure(file: Path, svg: str) -> None:
    """Write a figure as a file that follows the reader's light or dark setting."""
    file.parent.mkdir(parents=True, exist_ok=True)
    opening = svg.index(">") + 1
    write_atomically(file, f"{svg[:opening]}<style>{palette_css()}</style>{svg[opening:]}\n")


def curve_chart(name: str, x: Sequence[Any], y: Sequence[Any]) -> str:
    """Draw one curve of an evaluation; a name without an entry in `CURVES` has no labels."""
    kind = CURVES.get(name, CurveKind(name, "", ""))
    with styled_axes(5, 3.4) as (figure, axes):
        draw_curves(axes, kind, [(x, y, {"color": LIGHT["blue"]})])
        return svg(figure, kind.title)


def kappa_chart(edges: Sequence[Any], counts: Mapping[str, Sequence[int]], alt: str) -> str:
    """Draw the distribution of κ of several groups of inputs, from counts in bins of log10 κ."""
    few = len(counts) <= 2
    with styled_axes(*((4, 2.5) if few else (5, 3.2))) as (figure, axes):
        bins, middles = 10.0 ** np.asarray(edges), 10.0 ** (np.diff(edges) / 2 + edges[:-1])
        for (label, numbers), look in zip(counts.items(), cycle(SERIES), strict=False):
            fractions = np.asarray(numbers) / max(sum(numbers), 1)
            if few:
                axes.stairs(fractions, bins, label=label, linewidth=1.5, **look)
                axes.stairs(fractions, bins, color=look["color"], fill=True, alpha=0.16)
            else:
                axes.plot(middles, fractions, label=label, **look)
        axes.set(xscale="log", xlabel="κ (right: more certain)", yticks=[])
        axes.margins(x=0)
        plain_powers(axes.xaxis, edges[-1] - edges[0])
        axes.spines["left"].set_visible(False)
        legend(figure, "upper", 2)
        return svg(figure, alt)


def identification_chart(found: RiskCurve, alt: str) -> str:
    """Draw FNIR against FPIR over all thresholds, with exact bounds, and the threshold that is used."""
    fpir, fnir = np.array(found.fpir), np.array(found.fnir)
    least = 0.5 / max(found.unknown, 1)
    x, highest = np.maximum(fpir, least), np.array(found.fpir_bounds[1])
    low, high = (np.array(bound) for bound in found.fnir_bounds)
    with styled_axes(5, 3.2) as (figure, axes):
        confidence = f"{found.confidence:.0%}"
        axes.fill_between(
            x, low, high, color=LIGHT["blue"], alpha=0.16, label=f"FNIR, {confidence} bounds"
        )
        axes.plot(x, fnir, color=LIGHT["blue"], label="measured")
        axes.plot(highest, fnir, ":", color=LIGHT["orange"], label=f"FPIR at most ({confidence})")
        if (at := found.chosen) is not None:
            axes.plot(x[at], fnir[at], "o", color=LIGHT["slate"], label="the threshold in use")
        axes.set(
            xscale="log",
            xlim=(least, 1),
            ylim=(0, 1.01),
            xlabel="FPIR: unknown queries that are a match",
            ylabel="FNIR: enrolled ones missed",
        )
        plain_powers(axes.xaxis, -np.log10(least))
        legend(figure, "upper", 2)
        return svg(figure, alt)


def loss_chart(losses: Mapping[str, Sequence[float]]) -> str:
    """Draw the mean loss of each epoch, a line per training stage."""
    with styled_axes(5, 3.2) as (figure, axes):
        for (stage, values), look in zip(losses.items(), cycle(SERIES), strict=False):
            axes.plot(range(1, len(values) + 1), values, "o-", color=look["color"], label=stage)
        axes.set(xlabel="epoch", ylabel="mean loss")
        axes.xaxis.get_major_locator().set_params(integer=True)
        if losses:
            legend(figure, "upper", 3)
        return svg(figure, "Mean loss by epoch")


def image_strip(images: np.ndarray) -> str:
    """Lay images side by side.

    Args:
        images: In uint8, (n, h, w) or (n, h, w, 3).

    Returns:
        A data URI: small images in one row, as PNG; photographs, which would be stamps there, in rows of
        `PHOTOGRAPHS_IN_A_ROW`, as WebP.
    """
    image = require("PIL.Image", "show images")
    large = max(images.shape[1:3]) > STRIP_HEIGHT
    kind, most, columns = (
        ("webp", PHOTOGRAPH_HEIGHT, PHOTOGRAPHS_IN_A_ROW)
        if large
        else ("png", STRIP_HEIGHT, len(images))
    )
    shrunk = [image.fromarray(one) for one in images]
    for one in shrunk:
        one.thumbnail((most, most))
    width, height = shrunk[0].size
    gap = max(1, width // 14)
    places = [
        ((i % columns) * (width + gap), (i // columns) * (height + gap)) for i in range(len(shrunk))
    ]
    right, bottom = (max(side) for side in zip(*places, strict=True))
    strip = image.new("RGBA", (right + width, bottom + height))
    for one, place in zip(shrunk, places, strict=True):
        strip.paste(one, place)
    buffer = io.BytesIO()
    strip.save(buffer, format=kind, optimize=True)
    return f"data:image/{kind};base64," + base64.b64encode(buffer.getvalue()).decode()


def draw_curves(
    axes: Any, kind: CurveKind, lines: Sequence[tuple[Any, Any, dict[str, Any]]]
) -> None:
    """Draw curves of one kind: x, y and look of each."""
    lowest = 0.0
    if kind is CURVES["sparsification"]:
        lowest = max(0.0, float(np.floor(min(min(y) for _, y, _ in lines) * 20)) / 20 - 0.02)
    axes.set(xlim=(0, 1), ylim=(lowest, 1.01), xlabel=kind.x_label, ylabel=kind.y_label)
    if kind.diagonal:
        axes.plot([0, 1], [0, 1], ":", color=LIGHT["soft"], linewidth=1)
    for i, (x, y, look) in enumerate(lines):
        # The first methods are drawn last, so that nothing hides them.
        axes.plot(x, y, zorder=3 - i / 100, **look)


@contextmanager
def styled_axes(width: Any, height: Any) -> Iterator[tuple[Any, Any]]:
    """Make a styled figure (inches) without pyplot, which would keep state in the process."""
    with plotting("matplotlib").rc_context(RC):
        figure = plotting("matplotlib.figure").Figure((width, height))
        yield figure, figure.add_subplot()


def plain_powers(axis: Any, decades: Any, unit: str = "") -> None:
    """Label a logarithmic axis by plain numbers, as many as there is room for."""
    ticker = plotting("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if decades <= 2.5 else (1,)))
    axis.set_major_formatter(lambda value, _: f"{value:g}{unit}")
    axis.set_minor_locator(ticker.NullLocator())


def legend(figure: Any, where: str, columns: int) -> None:
    """Put a legend outside the axes."""
    figure.legend(loc=f"outside {where} center", ncols=columns, fontsize=9.5)


def svg(figure: Any, alt: str) -> str:
    """Return a figure as an SVG element whose colours are CSS variables."""
    stream = io.StringIO()
    # A salt of its own, so that the figures of one page share no id.
    with plotting("matplotlib").rc_context({"svg.hashsalt": alt}):
        figure.savefig(stream, format="svg", dpi=PIXELS_PER_INCH, metadata={"Date": None})
    text = stream.getvalue()[stream.getvalue().index("<svg ") :].strip()
    for name, light in LIGHT.items():
        text = text.replace(light, f"var(--{name}, {light})")
    label = f'<svg class="chart" role="img" aria-label="{escape(alt)}" '
    return text.replace("<svg ", label, 1)
