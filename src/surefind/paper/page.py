"""The report as one self-contained HTML page, no script, no outside host; and its tables in Markdown.

Figures show methods and distance baselines; the ablation has its table. A method without artifacts is left
out of the sections that need them.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from surefind.evaluation.figures import fill_template, image_strip, page_css
from surefind.files import write_atomically
from surefind.paper import tables
from surefind.paper.artifacts import STRIPS, read_strips
from surefind.paper.figures import (
    corruption_charts,
    curve_charts,
    kappa_charts,
    ood_charts,
)
from surefind.paper.published import Published, compare_published
from surefind.paper.results import Result, Results, ResultSet
from surefind.paper.vocabulary import METRICS, dataset_title, method_title

MARKS = "**Bold**: best. _Italic_: second best. ↑ higher is better, ↓ lower is better."


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
        Path(__file__).with_name("page.html.j2"),
        css=page_css(),
        glossary=[(m, m.definition) for m in METRICS if m.definition and m.name in present],
        sets=[_section(s, artifacts, published, remarks) for s in results.sets],
    )
    html.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(html, text)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(markdown, markdown_tables(results, published, remarks))


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
    strips = [
        (method_title(m), kept)
        for m, found in methods.items()
        if folder and (kept := _kept_strips(folder / results.name, found))
    ]
    return {
        "id": results.name,
        "title": title,
        "about": tables.data_note(results),
        "warning": tables.version_warning(results),
        "tables": [
            (heading or "Methods", table, [*tables.table_notes(table), *filter(None, notes)])
            for heading, table, *notes in _tables(results)
        ],
        "comparisons": compare_published(results, published, remarks),
        "charts": curve_charts(firsts),
        "ood": ood_charts(firsts),
        "histograms": kappa_charts(firsts),
        "corruptions": corruption_charts(firsts),
        "strips": [
            (name, [(t, image_strip(kept[k])) for k, t in STRIPS.items() if k in kept])
            for name, kept in strips
        ],
        "settings": _settings(results),
    }


def _tables(results: ResultSet) -> list[tuple[str, tables.Table, str, str]]:
    """Return the tables that there are, each with its heading and what is said before and after it."""
    found = (
        ("", tables.methods_table(results), "", tables.detectors_note(results)),
        ("Out-of-distribution sets", tables.ood_table(results), tables.OOD_SETS, ""),
        ("Ablation: stage × distance × approximation", tables.ablation_table(results), "", ""),
    )
    return [(heading, t, before, after) for heading, t, before, after in found if t is not None]


def _kept_strips(folder: Path, results: Iterable[Result]) -> dict[str, np.ndarray]:
    """Return the strips of the first seed that has some: others may have been measured elsewhere."""
    found = (read_strips(folder / f"{result.name}.npz") for result in results)
    return next(filter(None, found), {})


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


def markdown_tables(
    results: Results, published: Published | None = None, remarks: Mapping[str, str] | None = None
) -> str:
    """Write all tables as Markdown.

    Args:
        results: From `read_results`.
        published: Numbers to compare ours with.
        remarks: Why a method differs from what was published, by "dataset/method", in whole sentences.

    Returns:
        One section for each data set, without a title over them.
    """
    parts = [_markdown_section(s, published, remarks) for s in results.sets]
    return "\n\n".join([MARKS, *parts]) + "\n"


def _markdown_section(
    results: ResultSet, published: Published | None, remarks: Mapping[str, str] | None
) -> str:
    parts = [f"## {dataset_title(results.name)}", tables.data_note(results)]
    if warning := tables.version_warning(results):
        parts.append(f"**Mixed versions.** {warning}")
    for heading, table, before, after in _tables(results):
        parts += [heading and f"### {heading}", before, _table(table)]
        parts += [" ".join(tables.table_notes(table)), after]
    for part in compare_published(results, published, remarks):
        parts += [f"### {part.title}", f"Ours / {part.source}.", _table(part.table), part.caveat]
        parts.append("\n".join(f"- {line}" for line in part.gaps))
    return "\n\n".join(filter(None, parts))


def _table(table: tables.Table) -> str:
    heads = [*table.heads, "seeds", *(f"{m.title} {m.arrow}".strip() for m in table.metrics)]
    rule = ["---"] * len(table.heads) + ["--:"] * (len(heads) - len(table.heads))
    lines = [_line(heads), _line(rule)]
    block = table.lines[0].kind
    for line in table.lines:
        if line.kind == "baseline" != block:
            lines.append(_line(["_distance baselines_", *[""] * (len(heads) - 1)]))
        block = line.kind
        lines.append(_line([*line.heads, line.seeds, *map(_entry, line.entries)]))
    return "\n".join(lines)


def _entry(entry: tables.Entry | None) -> str:
    if entry is None:
        return "–"
    text = f"{entry.mean} {entry.sd}".strip()
    text = {"best": f"**{text}**", "second": f"_{text}_", "": text}[entry.rank]
    text += f" ({entry.interval})" if entry.interval else ""
    text = f"≈ {text}" if entry.alike else text
    text += "?" if entry.untested else ""
    return f"{text} / {entry.published}" if entry.published else text


def _line(columns: Iterable[str]) -> str:
    # A bar in the name of a user's method would start a new column.
    return "| " + " | ".join(c.replace("|", "\\|") for c in columns) + " |"
