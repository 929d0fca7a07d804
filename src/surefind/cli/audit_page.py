"""The page of an audit: one file, with pictures of the items where there are some.

A picture comes from where the page of `surefind serve` has it: the service's folder beside the gallery, or
the image that the item's payload names in the gallery's folder of images. Items without one are shown by
their ids.
"""

import base64
from collections import Counter
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import surefind as sf
from surefind.cli.serve import remembered_images
from surefind.errors import RefusedError

if TYPE_CHECKING:
    from surefind import Audit

MAX_PIXELS = 100_000_000
"""Largest image that is made small: the user's own, unlike those that strangers send to a service."""

NOTES = {
    "mislabelled": "Each item was left out, with its group and its exact copies, and the rest of the "
    "gallery asked for its label. Left: the item. Right: the nearest item of the label that the rest "
    "suggests.",
    "duplicate": "Two items that are almost the same cannot both be right.",
    "confusion": "Items of one label that look more like the other. Labels that nobody can tell apart may "
    "be one; or some of their items have the other's label.",
    "unusable": "Items unlike anything that the model has seen, or of which it is far less certain than of "
    "the others. They are seldom found, and attract what does not belong to them.",
    "impostor": "What an unknown query could be matched with: all items of the left item's label were left "
    "out, and the right one is what it found then. A high probability means that a stranger gets in there.",
}
"""How to read each kind of finding."""


def audit_page(
    found: "Audit", gallery: "sf.Gallery", place: str, titles: Mapping[str, str], most: int
) -> str:
    """Compose the page.

    Args:
        found: The audit.
        gallery: It holds the items.
        place: What the user calls the gallery.
        titles: Of the kinds of findings, in their order.
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
            (kind, title, NOTES[kind], total[kind], [row for row in rows if row["kind"] == kind])
            for kind, title in titles.items()
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
