"""One self-contained HTML page: tables, curves, histograms, pictures; no script, no outside host.

Charts show methods and free baselines; the ablation has its table.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surefind.data.extras import require
from surefind.files import write_whole
from surefind.report import notes
from surefind.report.beside import beside_published
from surefind.report.figures import curve_charts, damage_charts, kappa_histograms
from surefind.report.galleries import image_strips, sphere_views
from surefind.report.markdown import markdown_tables
from surefind.report.pictures import Pictures, read_pictures
from surefind.report.published import Published
from surefind.report.results import Cell, Results, ResultSet
from surefind.report.tables import ablation_table, methods_table
from surefind.report.vocabulary import METRICS, set_title

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
    write_whole(html, text)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        write_whole(markdown, markdown_tables(results, published, remarks))


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
