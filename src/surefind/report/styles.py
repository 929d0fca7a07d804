"""How a row looks in all charts of a page: a colour, a dash and a badge, so that none is needed alone.

Colours are CSS variables (``page.css`` sets them for light, dark and print), named by the class of the row:
m1 … m7 for the known methods, f1 … f5 for free baselines, x1 … for methods of the user's own.
"""

from dataclasses import dataclass
from html import escape

from surefind.report.vocabulary import FREE, METHODS, row_title

OWN = 4
"""Looks for methods of the user's own, used in turn."""


@dataclass(frozen=True)
class Style:
    """How a row is drawn.

    Attributes:
        css: The class of its lines.
        badge: One or two characters that stand on its lines.
        title: Its name for readers.
    """

    css: str
    badge: str
    title: str

    @property
    def swatch(self) -> str:
        """Draw a short line with the badge, for a legend."""
        return (
            '<svg class="swatch" viewBox="0 0 44 18" width="44" height="18" aria-hidden="true">'
            f'<path class="line {self.css}" d="M1 9H43"/>{badge(self, 22.0, 9.0)}</svg>'
        )


def styles_of(rows: list[str]) -> dict[str, Style]:
    """Give each row of a data set its look.

    Args:
        rows: Their names.

    Returns:
        Looks by row; a known row has the same one on every page.
    """
    own = [row for row in rows if row not in METHODS and row not in FREE]
    looks = {}
    for row in rows:
        if row in METHODS:
            place = list(METHODS).index(row) + 1
            css, mark = f"m{place}", str(place)
        elif row in FREE:
            place = list(FREE).index(row)
            css, mark = f"f{place + 1}", "abcde"[place]
        else:
            place = own.index(row)
            css, mark = f"x{place % OWN + 1}", str(len(METHODS) + place + 1)
        looks[row] = Style(css, mark, row_title(row))
    return looks


def badge(style: Style, x: float, y: float) -> str:
    """Draw a row's badge.

    Args:
        style: The row's look.
        x: Centre.
        y: Centre.

    Returns:
        SVG.
    """
    return (
        f'<circle class="badge {style.css}" cx="{x:.1f}" cy="{y:.1f}" r="7.5"/>'
        f'<text class="mark" x="{x:.1f}" y="{y + 3.6:.1f}">{escape(style.badge)}</text>'
    )
