"""One self-contained HTML page: tables, curves, histograms, pictures; no script, no outside host.

Charts show methods and free baselines; the ablation has its table.

Pictures of single rows: embeddings on their sphere, and strips of the surest and least sure images.

A row without such pictures is left out.
"""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from surefind.dependencies import require
from surefind.evaluation.artifacts import Pictures, read_pictures
from surefind.evaluation.report import notes
from surefind.evaluation.report.figures import (
    class_centres,
    curve_charts,
    damage_charts,
    facing,
    globes,
    kappa_histograms,
    level_limits,
)
from surefind.evaluation.report.markdown import markdown_tables
from surefind.evaluation.report.paper import Published, beside_published
from surefind.evaluation.report.tables import ablation_table, methods_table
from surefind.evaluation.report.vocabulary import METRICS, PARTS, row_title, set_title
from surefind.evaluation.results import Cell, Results, ResultSet
from surefind.files import write_atomically

TALLEST = 64
"""Images of strips are shrunk to this many pixels."""
STRIPS = {
    "id-lowest": "Known, surest",
    "id-highest": "Known, least sure",
    "ood-lowest": "Strange, surest",
    "ood-highest": "Strange, least sure",
}


@dataclass(frozen=True)
class Gallery:
    """Several pictures of one row.

    Attributes:
        title: The row.
        pictures: A title, and SVG or a data URI.
    """

    title: str
    pictures: tuple[tuple[str, str], ...]


def sphere_views(found: Mapping[str, Pictures]) -> list[Gallery]:
    """Draw embeddings of three dimensions on their sphere.

    Args:
        found: Pictures by row.

    Returns:
        Front and back, known and strange, for each row that has points.
    """
    views = []
    for row, pictures in found.items():
        if not pictures.sphere:
            continue
        limits = level_limits(pictures.sphere)
        known = pictures.sphere.get("id") or next(iter(pictures.sphere.values()))
        turn, classes = facing(known), class_centres(known)
        discs = tuple(
            (f"{PARTS[part]}, {side}", svg)
            for part, points in pictures.sphere.items()
            for side, svg in globes(
                points,
                classes,
                turn,
                limits,
                f"{PARTS[part]} inputs of {row_title(row)} on the sphere",
            ).items()
        )
        views.append(Gallery(row_title(row), discs))
    return views


def image_strips(found: Mapping[str, Pictures]) -> list[Gallery]:
    """Lay the surest and the least sure images side by side.

    Args:
        found: Pictures by row.

    Returns:
        Up to four strips, as PNG data URIs, for each row that has images.
    """
    return [
        Gallery(
            row_title(row),
            tuple(
                (title, _png(pictures.strips[key]))
                for key, title in STRIPS.items()
                if key in pictures.strips
            ),
        )
        for row, pictures in found.items()
        if pictures.strips
    ]


def _png(images: np.ndarray) -> str:
    """Lay images side by side, as a data URI."""
    image = require("PIL.Image", "write the report")
    shrunk = [image.fromarray(one) for one in images]
    for one in shrunk:
        one.thumbnail((TALLEST, TALLEST))
    gap = max(1, shrunk[0].width // 14)
    width = (shrunk[0].width + gap) * len(shrunk) - gap
    strip = image.new("RGBA", (width, shrunk[0].height))
    for i, one in enumerate(shrunk):
        strip.paste(one, (i * (one.width + gap), 0))
    buffer = io.BytesIO()
    strip.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


HERE = Path(__file__).parent


def write_report(
    results: Results,
    html: Path,
    markdown: Path | None = None,
    *,
    pictures: Path | None = None,
    published: Published | None = None,
    remarks: Mapping[str, str] | None = None,
) -> None:
    """Write the report.

    Args:
        results: What `read_results` gave.
        html: The page.
        markdown: The tables, if they are wanted too.
        pictures: Folder of `write_pictures`, ``{set}/{row}-seed{seed}.npz``.
        published: Numbers to set beside ours.
        remarks: Why a row differs from what was published, by "set/row".
    """
    jinja2 = require("jinja2", "write the report", extra="report")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    present = {m.name for s in results.sets for m in s.metrics("method", "free", "ablation")}
    text = environment.get_template("page.html.j2").render(
        css=(HERE / "page.css").read_text(encoding="utf-8"),
        kappa=notes.KAPPA,
        known_strange=notes.KNOWN_STRANGE,
        glossary=[m for m in METRICS if m.meaning and m.name in present],
        sets=[_set(s, pictures, published, remarks or {}) for s in results.sets],
        published=published,
    )
    html.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(html, text)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(markdown, markdown_tables(results, published, remarks))


def _set(
    results: ResultSet,
    folder: Path | None,
    published: Published | None,
    remarks: Mapping[str, str],
) -> dict[str, Any]:
    """Gather all that the template shows of one data set."""
    firsts = {row: cells[0] for row, cells in results.rows("method", "free").items()}
    found = {} if folder is None else _pictures(results.name, firsts, folder)
    tables = [
        ("Methods", methods_table(results)),
        ("Ablation: when × distance × approximation", ablation_table(results)),
    ]
    return {
        "id": results.name,
        "title": set_title(results.name),
        "about": notes.data_note(results),
        "warning": notes.version_warning(results),
        "tables": [(title, t, notes.table_notes(t)) for title, t in tables if t is not None],
        "beside": beside_published(results, published, remarks) if published else [],
        "charts": curve_charts(firsts),
        "histograms": kappa_histograms(firsts),
        "corruptions": damage_charts(firsts),
        "spheres": sphere_views(found),
        "strips": image_strips(found),
        "settings": _settings(results),
    }


def _pictures(name: str, firsts: Mapping[str, Cell], folder: Path) -> dict[str, Pictures]:
    read = {
        row: read_pictures(folder / name / f"{cell.file.stem}.npz") for row, cell in firsts.items()
    }
    return {row: pictures for row, pictures in read.items() if pictures is not None}


def _settings(results: ResultSet) -> list[tuple[str, str]]:
    protocol = [
        (key.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, list) else str(v))
        for key, v in results.cells[0].protocol.items()
        if key != "ood"
    ]
    versions: dict[str, set[str]] = {}
    for cell in results.cells:
        for library, number in cell.versions.items():
            versions.setdefault(library, set()).add(str(number))
    return [*protocol, *((name, ", ".join(sorted(n))) for name, n in versions.items())]
