"""Three-dimensional embeddings on their sphere, front and back, coloured by how sure they are.

Orthographic views. The sphere is turned so that the known inputs' mean direction faces the reader: that is
the front. The back is seen from behind, so left and right are exchanged. Five levels of log κ between its
2 % and 98 % quantiles over known and strange points together; less sure points are both warmer and larger.
"""

from collections.abc import Mapping
from html import escape

import numpy as np

from surefind.report.pictures import SpherePoints

LEVELS = 5
RADIUS = 88.0
SIZE = 190.0
CLASSES = 12
"""With more classes than this their names would hide the points."""


def globes(
    points: SpherePoints,
    classes: Mapping[str, np.ndarray],
    turn: np.ndarray,
    limits: np.ndarray,
    alt: str,
) -> dict[str, str]:
    """Draw the front and the back of a sphere.

    Args:
        points: Directions and κ.
        classes: Where classes lie, from `class_centres`.
        turn: How the sphere is turned (3, 3), from `facing`.
        limits: Inner borders of the levels of log10 κ, from `level_limits`.
        alt: What the picture shows.

    Returns:
        SVG pictures of the sides, "front" and "back", that have points.
    """
    level = LEVELS - 1 - np.digitize(np.log10(points.kappa), limits)
    centres = {name: turn @ centre for name, centre in classes.items()}
    mean = points.mean @ turn.T
    return {
        name: _disc(mean, level, centres, side, f"{alt}, {name}")
        for name, side in (("front", 1), ("back", -1))
        if (mean[:, 2] * side >= 0).any()
    }


def facing(points: SpherePoints) -> np.ndarray:
    """Turn the mean direction of points towards the reader.

    Args:
        points: The known inputs.

    Returns:
        A rotation (3, 3) of directions; the third axis points at the reader.
    """
    # The mean first, then any basis of the rest; the factors' signs are free, so they are fixed here.
    start = np.column_stack([points.mean.sum(axis=0), np.eye(3)[:, :2]]).astype(float)
    basis, upper = np.linalg.qr(start)
    basis = basis * np.where(np.diag(upper) < 0, -1.0, 1.0)
    turn = np.stack([basis[:, 1], basis[:, 2], basis[:, 0]])
    # A mirror image would put classes on the wrong side of each other.
    turn[1] *= np.sign(np.linalg.det(turn))
    return turn


def class_centres(points: SpherePoints) -> dict[str, np.ndarray]:
    """Give the mean direction of each class, on the sphere.

    Args:
        points: The known inputs.

    Returns:
        Unit vectors by class; none without labels, or where there are too many classes to name.
    """
    if points.labels is None or len(np.unique(points.labels)) > CLASSES:
        return {}
    sums = {str(k): points.mean[points.labels == k].sum(axis=0) for k in np.unique(points.labels)}
    lengths = {name: float(np.linalg.norm(v)) for name, v in sums.items()}
    return {name: v / lengths[name] for name, v in sums.items() if lengths[name] > 0}


def level_limits(parts: Mapping[str, SpherePoints]) -> np.ndarray:
    """Choose common levels for all points of a method.

    Args:
        parts: Known and strange points.

    Returns:
        The borders between the levels of log10 κ.
    """
    logs = np.log10(np.concatenate([p.kappa for p in parts.values()]))
    low, high = np.quantile(logs, [0.02, 0.98])
    return np.linspace(low, high, LEVELS + 1)[1:-1]


def _disc(
    mean: np.ndarray, level: np.ndarray, centres: dict[str, np.ndarray], side: int, alt: str
) -> str:
    middle = SIZE / 2
    parts = [
        f'<circle class="globe" cx="{middle}" cy="{middle}" r="{RADIUS}"/>',
        *(
            f'<ellipse class="grid" cx="{middle}" cy="{middle}" rx="{rx:.1f}" ry="{ry:.1f}"/>'
            for rx, ry in ((RADIUS / 2, RADIUS), (RADIUS, RADIUS / 2))
        ),
    ]
    shown = mean[:, 2] * side >= 0
    # The surest first: what is unsure must not be hidden.
    for i in range(LEVELS):
        here = _placed(mean[shown & (level == i)], side)
        if len(here):
            dots = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in here)
            parts.append(f'<path class="dot u{i + 1}" d="{dots}"/>')
    for name, centre in centres.items():
        if centre[2] * side >= 0:
            x, y = _placed(centre[None], side)[0]
            parts.append(f'<text class="class" x="{x:.1f}" y="{y + 4:.1f}">{escape(name)}</text>')
    return (
        f'<svg class="chart" viewBox="0 0 {SIZE:g} {SIZE:g}" role="img" aria-label="{escape(alt)}">'
        f"{''.join(parts)}</svg>"
    )


def _placed(mean: np.ndarray, side: int) -> np.ndarray:
    return np.stack([SIZE / 2 + side * RADIUS * mean[:, 0], SIZE / 2 - RADIUS * mean[:, 1]], axis=1)
