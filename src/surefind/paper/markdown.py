"""The tables of a report in Markdown, for a repository's documentation."""

from collections.abc import Iterable, Mapping

from surefind.paper.published import Published, compare_published
from surefind.paper.results import Results, ResultSet
from surefind.paper.tables import (
    OOD_SETS,
    VOTES,
    Entry,
    Table,
    ablation_table,
    data_note,
    detectors_note,
    methods_table,
    ood_table,
    table_notes,
    version_warning,
    votes_note,
    votes_table,
)
from surefind.paper.vocabulary import dataset_title

MARKS = "**Bold**: best. _Italic_: second best. ↑ higher is better, ↓ lower is better."


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
    parts = [_section(s, published, remarks) for s in results.sets]
    return "\n\n".join([MARKS, *parts]) + "\n"


def _section(
    results: ResultSet, published: Published | None, remarks: Mapping[str, str] | None
) -> str:
    parts = [f"## {dataset_title(results.name)}", data_note(results)]
    if warning := version_warning(results):
        parts.append(f"**Mixed versions.** {warning}")
    for heading, table, before, after in (
        ("", methods_table(results), "", detectors_note(results)),
        ("### Out-of-distribution sets", ood_table(results), OOD_SETS, ""),
        ("### Votes over labels", votes_table(results), VOTES, votes_note(results)),
        ("### Ablation: stage × distance × approximation", ablation_table(results), "", ""),
    ):
        if table is not None:
            parts += [heading, before, _table(table), " ".join(table_notes(table)), after]
    for part in compare_published(results, published, remarks):
        parts += [f"### {part.title}", f"Ours / {part.source}.", _table(part.table), part.caveat]
        parts.append("\n".join(f"- {line}" for line in part.gaps))
    return "\n\n".join(filter(None, parts))


def _table(table: Table) -> str:
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


def _entry(entry: Entry | None) -> str:
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
