"""One self-contained HTML page: tables, curves, histograms, images; no script, no outside host.

Figures show methods and distance baselines; the ablation has its table. A method without artifacts is left
out of the sections that need them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from surefind.checks import require
from surefind.evaluation.figures import (
    LEVEL_COLOURS,
    corruption_charts,
    curve_charts,
    image_strip,
    kappa_charts,
    ood_charts,
    palette_css,
    sphere_charts,
)
from surefind.files import write_atomically
from surefind.paper import tables
from surefind.paper.artifacts import STRIPS, Artifacts, read_artifacts
from surefind.paper.markdown import markdown_tables
from surefind.paper.published import Published, compare_published
from surefind.paper.results import Result, Results, ResultSet
from surefind.paper.vocabulary import DEFINITIONS, dataset_title, method_title, metric_of

HERE = Path(__file__).parent


def write_report(
    results: Results,
    html: Path,
    markdown: Path | None = None,
    *,
    artifacts: Path | None = None,
    published: Published | None = None,
    remarks: Mapping[str, str] | None = None,
) -> None:
    """Write the report.

    Args:
        results: From `read_results`.
        html: The page.
        markdown: The tables, if they are wanted too.
        artifacts: Folder of artifacts, ``{dataset}/{method}-seed{seed}.npz``.
        published: Numbers to compare ours with.
        remarks: Why a method differs from what was published, by "dataset/method".
    """
    present = {m.name for s in results.sets for m in s.metrics("method", "baseline", "ablation")}
    text = fill_template(
        HERE / "page.html.j2",
        css=palette_css() + (HERE / "page.css").read_text(encoding="utf-8"),
        kappa=tables.KAPPA,
        distributions=tables.DISTRIBUTIONS,
        glossary=[(metric_of(name), text) for name, text in DEFINITIONS.items() if name in present],
        levels=LEVEL_COLOURS,
        sets=[_section(s, artifacts, published, remarks) for s in results.sets],
    )
    html.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(html, text)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(markdown, markdown_tables(results, published, remarks))


def fill_template(file: Path, **values: Any) -> str:
    """Fill in a Jinja template, escaping all values that it does not call safe."""
    jinja2 = require("jinja2", "write the report", extra="report")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return str(environment.from_string(file.read_text(encoding="utf-8")).render(values))


def _section(
    results: ResultSet,
    folder: Path | None,
    published: Published | None,
    remarks: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Gather all that the template shows of one data set."""
    title = dataset_title(results.name)
    methods = results.by_method("method", "baseline")
    firsts = {m: found[0] for m, found in methods.items()}
    artifacts = [
        (method_title(m), kept)
        for m, found in methods.items()
        if folder and (kept := _kept_artifacts(folder / results.name, found))
    ]
    vote_notes = [note for note in (tables.VOTES, tables.votes_note(results)) if note]
    titled: list[tuple[str, tables.Table | None, list[str]]] = [
        (
            "Methods",
            tables.methods_table(results),
            list(filter(None, [tables.detectors_note(results)])),
        ),
        ("Out-of-distribution sets", tables.ood_table(results), [tables.OOD_SETS]),
        ("Votes over labels", tables.votes_table(results), vote_notes),
        ("Ablation: stage × distance × approximation", tables.ablation_table(results), []),
    ]
    return {
        "id": results.name,
        "title": title,
        "about": tables.data_note(results),
        "warning": tables.version_warning(results),
        "tables": [
            (title, t, [*tables.table_notes(t), *more])
            for title, t, more in titled
            if t is not None
        ],
        "comparisons": compare_published(results, published, remarks),
        "charts": curve_charts(firsts),
        "ood": ood_charts(firsts),
        "histograms": kappa_charts(firsts),
        "corruptions": corruption_charts(firsts),
        "spheres": [
            (name, sphere_charts(a.sphere, f"{name} on {title}"))
            for name, a in artifacts
            if a.sphere
        ],
        "strips": [
            (name, [(t, image_strip(a.strips[k])) for k, t in STRIPS.items() if k in a.strips])
            for name, a in artifacts
            if a.strips
        ],
        "settings": _settings(results),
    }


def _kept_artifacts(folder: Path, results: Iterable[Result]) -> Artifacts | None:
    """Return the artifacts of the first seed that has some: others may have been measured elsewhere."""
    found = (read_artifacts(folder / f"{result.name}.npz") for result in results)
    return next((kept for kept in found if kept is not None), None)


def _settings(results: ResultSet) -> list[tuple[str, str]]:
    protocol = [
        (key.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, list) else str(v))
        for key, v in results.results[0].protocol.items()
        if key != "ood"
    ]
    versions: dict[str, set[str]] = {}
    for result in results.results:
        for library, number in result.versions.items():
            versions.setdefault(library, set()).add(number)
    return [*protocol, *((name, ", ".join(sorted(n))) for name, n in versions.items())]
