"""The tables of a report in Markdown: for a repository's documentation, made from result files."""

from collections.abc import Iterable, Mapping

from surefind.evaluation.report.notes import data_note, table_notes, version_warning
from surefind.evaluation.report.paper import Beside, Published, beside_published
from surefind.evaluation.report.tables import Entry, Line, Table, ablation_table, methods_table
from surefind.evaluation.report.vocabulary import set_title
from surefind.evaluation.results import Results, ResultSet

MARKS = "**Bold**: best. _Italic_: second best. ↑ higher is better, ↓ lower is better."


def markdown_tables(
    results: Results,
    published: Published | None = None,
    remarks: Mapping[str, str] | None = None,
) -> str:
    """Write all tables as Markdown.

    Args:
        results: What `read_results` gave.
        published: Numbers to set beside ours.
        remarks: Why a row differs from what was published, by "set/row", in whole sentences.

    Returns:
        One section for each data set, without a title over them.
    """
    parts = [_section(s, published, remarks or {}) for s in results.sets]
    return "\n\n".join([MARKS, *parts]) + "\n"


def _section(results: ResultSet, published: Published | None, remarks: Mapping[str, str]) -> str:
    parts = [f"## {set_title(results.name)}", data_note(results)]
    warning = version_warning(results)
    if warning:
        parts.append(f"**Mixed versions.** {warning}")
    for heading, table in (
        ("", methods_table(results)),
        ("### Ablation: when × distance × approximation", ablation_table(results)),
    ):
        if table is not None:
            parts += [p for p in (heading, _table(table), " ".join(table_notes(table))) if p]
    if published is not None:
        for part in beside_published(results, published, remarks):
            parts += _beside(part, published.source)
    return "\n\n".join(parts)


def _beside(part: Beside, source: str) -> list[str]:
    said = "\n".join(f"- {line}" for line in part.said)
    parts = [f"### {part.title}", f"Ours / {source}.", _table(part.table), part.caveat, said]
    return [p for p in parts if p]


def _table(table: Table) -> str:
    heads = [*table.heads, "seeds", *(f"{m.title} {m.arrow}".strip() for m in table.metrics)]
    rule = ["---"] * len(table.heads) + ["--:"] * (len(heads) - len(table.heads))
    lines = [_line(heads), _line(rule)]
    block = table.lines[0].kind
    for line in table.lines:
        if line.kind == "free" != block:
            lines.append(_line(["_free baselines_", *[""] * (len(heads) - 1)]))
        block = line.kind
        lines.append(_line(_cells(line)))
    return "\n".join(lines)


def _cells(line: Line) -> list[str]:
    return [*line.heads, line.seeds, *(map(_entry, line.entries))]


def _entry(entry: Entry | None) -> str:
    if entry is None:
        return "–"
    text = f"{entry.mean} {entry.sd}".strip()
    text = {"best": f"**{text}**", "second": f"_{text}_", "": text}[entry.rank]
    text += f" ({entry.interval})" if entry.interval else ""
    text = f"≈ {text}" if entry.alike else text
    text += "?" if entry.untested else ""
    return f"{text} / {entry.beside}" if entry.beside else text


def _line(cells: Iterable[str]) -> str:
    # A bar in a user's own row name would start a new column.
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"
