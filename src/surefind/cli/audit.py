"""`surefind audit`: what is probably wrong with a gallery's items.

    CSV, Parquet    one row per finding: the columns of `surefind.gallery.findings`
    JSON            {summary, items, labels, judged, …, findings: [the same]}
    HTML            a page with pictures, and a line of Python beside each finding that would mend it

A picture comes from where the page of `surefind serve` has it: the service's folder beside the gallery, or
the image that the item's payload names in the gallery's folder of images. Items without one are shown by
their ids.
"""

import base64
from collections import Counter
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    TABLES,
    arrow_table,
    check_file,
    say,
    show_table,
    spelled,
    working,
    write_table,
)
from surefind.cli.serve import remembered_images
from surefind.files import write_atomically

if TYPE_CHECKING:
    from surefind import Audit

MAX_PIXELS = 100_000_000
"""Largest image that is made small: the user's own, unlike those that are sent to a service."""


class Kind(NamedTuple):
    """A kind of finding: its title, how to read it, and the columns of its table by the names of a row."""

    title: str
    note: str
    columns: dict[str, str]


KINDS = {
    "mislabelled": Kind(
        "Probably mislabelled",
        "Each item was left out, with its group and its exact copies, and the rest of the gallery asked "
        "for its label. Left: the item. Right: the nearest item of the label that the rest suggests.",
        {
            "item": "id",
            "label": "label",
            "rather": "other_label",
            "nearest of that": "other_id",
            "wrong": "score",
        },
    ),
    "duplicate": Kind(
        "Near-duplicates under different labels",
        "Two items that are almost the same cannot both be right.",
        {
            "item": "id",
            "label": "label",
            "other": "other_id",
            "its label": "other_label",
            "cosine": "score",
        },
    ),
    "confusion": Kind(
        "Labels confused with one another",
        "Items of one label that look more like the other. Labels that nobody can tell apart may be one; "
        "or some of their items have the other's label.",
        {"label": "label", "other": "other_label", "items": "score"},
    ),
    "unusable": Kind(
        "Hardly usable",
        "Items unlike anything that the model has seen, or of which it is far less certain than of the "
        "others. They are seldom found, and attract what does not belong to them.",
        {"item": "id", "label": "label", "why": "sentence"},
    ),
    "impostor": Kind(
        "Impostors: without their label, items are answered with another",
        "What an unknown query could be matched with: all items of the left item's label were left out, "
        "and the right one is what it found then. A high probability means that an unknown query "
        "is matched there.",
        {
            "item": "id",
            "label": "label",
            "found": "other_id",
            "its label": "other_label",
            "probability": "score",
        },
    ),
}
FACTS = (
    *("items", "labels", "judged", "wrong_fraction", "duplicate_pairs", "duplicate", "copies"),
    *("max_false_alarms", "ceiling", "impostor_matches", "strangers"),
)
"""Numbers of an audit that JSON has beside the findings."""


def audit(
    gallery: options.GalleryArgument,
    out: Annotated[
        Path | None, Option(help="File to write: .html with pictures, .csv, .json or .parquet.")
    ] = None,
    most: Annotated[
        int, Option(min=1, help="Findings of each kind to show; tables and .json have all of them.")
    ] = 10,
    items: Annotated[
        int | None,
        Option(min=1, help="Judge only so many items, drawn at random, which is faster."),
    ] = None,
    duplicate: Annotated[
        float | None,
        Option(help="Cosine from which two items are near-duplicates; found from the gallery."),
    ] = None,
) -> Any:
    """Find wrong labels, near-duplicates, confused labels, unusable items and impostors in a gallery.

    Every item is left out and judged by the rest; nothing is changed.

    Example: `surefind audit gallery --out audit.html`
    """
    check_file(out, (*TABLES, ".html"))
    with sf.Gallery.open(gallery, mode="r") as opened:
        with working("auditing"):
            found = opened.audit(items=items, duplicate=duplicate)
        rows = found.to_rows()
        facts = {name: getattr(found, name) for name in FACTS}
        document = {"summary": found.summary, **facts, "findings": rows}
        if out is not None and out.suffix.lower() == ".html":
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, audit_page(found, opened, gallery, most))
        elif out is not None:
            names = ("kind", "id", "label", "other_id", "other_label", "score", "sentence", "mend")
            write_table(out, document, lambda: arrow_table(rows, names, ("score",)))
    for name, kind in KINDS.items():
        shown = [row for row in found.to_rows(most) if row["kind"] == name]
        if shown:
            cells = [[_cell(row[key]) for key in kind.columns.values()] for row in shown]
            show_table(list(kind.columns), cells, title=kind.title)
    say(found.summary)
    if out is None:
        say(f"Next, with pictures: {spelled('audit', gallery, out='audit.html')}")
    else:
        say(f"Wrote the audit to {out}.")
    return document


def _cell(value: Any) -> Any:
    return f"{value:.4f}" if isinstance(value, float) else value


def audit_page(found: "Audit", gallery: "sf.Gallery", place: str, most: int) -> str:
    """Compose the page of an audit, one file of HTML.

    Args:
        found: The audit.
        gallery: It holds the items.
        place: What the user calls the gallery.
        most: How many findings of each kind it shows.

    Returns:
        HTML.
    """
    from surefind.evaluation.figures import fill_template, page_css

    rows = found.to_rows(most)
    total = Counter(row["kind"] for row in found.to_rows())
    total.update(duplicate=found.duplicate_pairs - total["duplicate"])  # not all are listed
    return fill_template(
        Path(__file__).with_name("audit.html.j2"),
        css=page_css(),
        place=place,
        opening=f"import surefind\ngallery = surefind.Gallery.open({place!r})",
        sentences=found.sentences,
        kinds=[
            (name, kind.title, kind.note, total[name], [row for row in rows if row["kind"] == name])
            for name, kind in KINDS.items()
        ],
        pictures=pictures(gallery, place, rows),
    )


def pictures(
    gallery: "sf.Gallery", place: str, rows: list[dict[str, Any]]
) -> dict[Any, tuple[str, bool]]:
    """Return the pictures of the items in some rows, as data URIs, and whether they are tiny."""
    try:
        from PIL import Image

        from surefind.service.images import LOSSLESS, Thumbnails
        from surefind.service.wire import RefusedError
    except ModuleNotFoundError:  # no pictures then
        return {}
    folder = Path(f"{'surefind' if '://' in place else place}.service") / "thumbnails"
    shown = Thumbnails(folder, remembered_images(gallery), MAX_PIXELS)
    found = {}
    for id_ in {row[name] for row in rows for name in ("id", "other_id")} - {None}:
        try:
            picture = shown.read(id_, gallery.get(id_).payload)
        except RefusedError:
            continue
        with Image.open(BytesIO(picture)) as image:
            tiny = max(image.size) <= LOSSLESS
        found[id_] = f"data:image/webp;base64,{base64.b64encode(picture).decode()}", tiny
    return found
