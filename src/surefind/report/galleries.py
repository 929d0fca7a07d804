"""Pictures of single rows: embeddings on their sphere, and strips of the surest and least sure images.

A row without such pictures is left out.
"""

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from surefind.data.extras import require
from surefind.report.globe import class_centres, facing, globes, level_limits
from surefind.report.pictures import Pictures
from surefind.report.vocabulary import PARTS, row_title

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
