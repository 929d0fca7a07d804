"""`surefind audit`: what is probably wrong with a gallery's items.

CSV     a line for each finding: the columns of `surefind.gallery.findings`
JSON    {summary, items, labels, judged, …, findings: [the same]}
HTML    a page with pictures, and a line of Python beside each finding that would mend it
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text
from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import check_out, json_text, say, show_table, spelled, working, write_out

if TYPE_CHECKING:
    from surefind import Audit

SUFFIXES = (".csv", ".json", ".html")
TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "mislabelled": (
        "Probably mislabelled",
        {
            "item": "id",
            "label": "label",
            "rather": "other_label",
            "nearest of that": "other_id",
            "wrong": "score",
        },
    ),
    "duplicate": (
        "Near-duplicates under different labels",
        {
            "item": "id",
            "label": "label",
            "other": "other_id",
            "its label": "other_label",
            "cosine": "score",
        },
    ),
    "confusion": (
        "Labels confused with one another",
        {"label": "label", "other": "other_label", "items": "score"},
    ),
    "unusable": ("Hardly usable", {"item": "id", "label": "label", "why": "sentence"}),
    "impostor": (
        "Impostors: without their label, items are answered with another",
        {
            "item": "id",
            "label": "label",
            "found": "other_id",
            "its label": "other_label",
            "probability": "score",
        },
    ),
}
"""Title and columns of each kind of finding, by the names of a row."""

FACTS = (
    *("items", "labels", "judged", "wrong_fraction", "duplicate_pairs", "duplicate", "copies"),
    *("max_false_alarms", "ceiling", "impostor_matches", "strangers"),
)
"""Numbers of an audit that JSON has beside the findings."""


def audit(
    gallery: options.GalleryArgument,
    out: Annotated[Path | None, Option(help="File to write: .csv, .json or .html.")] = None,
    most: Annotated[
        int, Option(help="Findings of each kind to show; .csv and .json have all of them.")
    ] = 10,
    items: Annotated[
        int | None,
        Option(
            help="Judge so many items, drawn at random, instead of all; takes as much less time."
        ),
    ] = None,
    duplicate: Annotated[
        float | None,
        Option(help="Cosine from which two items are near-duplicates; follows from the gallery."),
    ] = None,
    seed: options.Seed = 0,
) -> Any:
    """Look for wrong labels, near-duplicates, confused labels, unusable items and impostors in a gallery.

    Every item is left out and judged by the rest; nothing is changed.

    Example: `surefind audit gallery --out audit.html`
    """
    from surefind.checks import check_int

    check_int("most", most, least=1)
    check_out(out, SUFFIXES)
    with sf.Gallery.open(gallery, mode="r") as opened:
        with working("auditing"):
            found = opened.audit(items=items, duplicate=duplicate, seed=seed)
        if out is not None:
            write(found, out, opened, gallery, most)
    show(found, most)
    if out is None:
        say(f"Next, with pictures: {spelled('audit', gallery, out='audit.html')}")
    else:
        say(f"Wrote the audit to {out}.")
    return lambda: as_document(found)


def show(found: "Audit", most: int) -> None:
    """Print a table of each kind of finding that there is, and the summary."""
    rows = found.to_rows(most)
    for kind in TABLES:
        own = [row for row in rows if row["kind"] == kind]
        if own:
            show_table(finding_table(kind, own), TABLES[kind][0])
    say(found.summary)


def finding_table(kind: str, rows: list[dict[str, Any]]) -> Table:
    """Return findings of one kind as a table."""
    columns = TABLES[kind][1]
    table = Table(*columns)
    for row in rows:
        table.add_row(*(Text(cell_text(row[name])) for name in columns.values()))
    return table


def cell_text(value: Any) -> str:
    """Write a value of a row for people."""
    if value is None:
        return "–"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def as_document(found: "Audit") -> dict[str, Any]:
    """Return an audit as JSON holds it."""
    facts = {name: getattr(found, name) for name in FACTS}
    return {"summary": found.summary, **facts, "findings": found.to_rows()}


def write(found: "Audit", out: Path, gallery: "sf.Gallery", place: str, most: int) -> None:
    """Write an audit as what the file's name says."""

    def page() -> str:
        from surefind.cli.audit_page import audit_page

        titles = {kind: title for kind, (title, _) in TABLES.items()}
        return audit_page(found, gallery, place, titles, most)

    formats = {
        ".csv": found.csv_text,
        ".json": lambda: json_text(as_document(found)),
        ".html": page,
    }
    write_out(out, formats)
