"""Pictures beside a cell: images and points that are too large, or not ours, to commit with the results.

One file per cell, ``{folder}/{set}/{row}-seed{seed}.npz``, plain arrays without pickles:

    strip/{part}-{end}     uint8 images (n, h, w) or (n, h, w, 3): part id or ood; end lowest or highest
                           uncertainty, the most extreme first
    sphere/{part}/mean     unit directions (n, 3), n <= 2000
    sphere/{part}/kappa    their concentrations (n)
    sphere/{part}/labels   their classes (n), integers; may be missing
"""

import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from surefind.errors import InputError
from surefind.validation import check_int

PARTS = ("id", "ood")
ENDS = ("lowest", "highest")
STRIPS = tuple(f"{part}-{end}" for part in PARTS for end in ENDS)
POINTS = 2000
IMAGES = 12
SHOWN_KAPPA = (1e-30, 1e30)
"""κ beyond this is drawn as if it were this: a logarithm has no room for 0 and ∞."""


@dataclass(frozen=True, eq=False)
class SpherePoints:
    """Embeddings in three dimensions.

    Attributes:
        mean: Unit directions (n, 3).
        kappa: Concentrations (n), above zero and finite.
        labels: Classes (n), or None.

    Raises:
        InputError: If the parts do not fit together.
    """

    mean: np.ndarray
    kappa: np.ndarray
    labels: np.ndarray | None = None

    def __post_init__(self) -> None:
        n = len(self.mean)
        labelled = self.labels is None or self.labels.shape == (n,)
        if self.mean.shape != (n, 3) or self.kappa.shape != (n,) or not labelled or not n:
            raise InputError(
                "sphere points need directions (n, 3), κ (n) and labels (n) or none; got "
                f"{self.mean.shape}, {self.kappa.shape} and "
                f"{None if self.labels is None else self.labels.shape}."
            )
        if not (np.isfinite(self.mean).all() and np.isfinite(self.kappa).all()) or (
            self.kappa.min() <= 0
        ):
            raise InputError("sphere points need finite directions and finite κ above 0.")


@dataclass(frozen=True, eq=False)
class Pictures:
    """What stands beside a cell.

    Attributes:
        strips: Images by "id-lowest", "id-highest", "ood-lowest", "ood-highest".
        sphere: Points by "id" and "ood"; empty if embeddings are not three-dimensional.
    """

    strips: Mapping[str, np.ndarray]
    sphere: Mapping[str, SpherePoints]


def extreme_images(
    part: str, read: Callable[[Tensor], Tensor], uncertainty: Any, count: int = IMAGES
) -> dict[str, np.ndarray]:
    """Take the images of lowest and highest uncertainty.

    Args:
        part: "id" or "ood".
        read: Gives float images (n, c, h, w) in [0, 1] of row numbers; `Dataset.read` is one.
        uncertainty: Of each example of the part.
        count: Images a strip.

    Returns:
        Two strips, for `write_pictures`.
    """
    check_int("count", count, least=1)
    order = torch.as_tensor(uncertainty).argsort(stable=True)
    rows = {"lowest": order[:count], "highest": order.flip(0)[:count]}
    return {f"{part}-{end}": _pixels(read(rows[end])) for end in ENDS}


def sphere_points(
    mean: Any, kappa: Any, labels: Any | None, generator: Generator, at_most: int = POINTS
) -> SpherePoints:
    """Thin embeddings out to what a picture can show.

    Args:
        mean: Unit directions (n, 3), tensor or array.
        kappa: Concentrations (n).
        labels: Classes (n), or None.
        generator: Draws which points stay.
        at_most: How many stay.

    Returns:
        The points, for `write_pictures`.
    """
    check_int("at_most", at_most, least=1)
    chosen = torch.randperm(len(mean), generator=generator)[:at_most].sort().values.numpy()
    return SpherePoints(
        np.asarray(mean, dtype=np.float32)[chosen],
        np.clip(np.asarray(kappa, dtype=np.float32)[chosen], *SHOWN_KAPPA),
        None if labels is None else np.asarray(labels)[chosen],
    )


def write_pictures(
    file: Path,
    *,
    strips: Mapping[str, np.ndarray],
    sphere: Mapping[str, SpherePoints] | None = None,
) -> None:
    """Write the pictures of a cell, whole or not at all.

    Args:
        file: Ends in ``.npz``.
        strips: uint8 images by strip, see `extreme_images`.
        sphere: Points by part, see `sphere_points`.
    """
    for name, images in strips.items():
        _check_strip(str(file), name, images)
    arrays: dict[str, np.ndarray] = {f"strip/{name}": images for name, images in strips.items()}
    for part, points in (sphere or {}).items():
        arrays[f"sphere/{part}/mean"] = points.mean
        arrays[f"sphere/{part}/kappa"] = points.kappa
        if points.labels is not None:
            arrays[f"sphere/{part}/labels"] = points.labels
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    with beside.open("wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    os.replace(beside, file)


def read_pictures(file: Path) -> Pictures | None:
    """Read the pictures of a cell.

    Args:
        file: Where `write_pictures` wrote them.

    Returns:
        The pictures, or None if there is no such file.

    Raises:
        InputError: If the file is damaged or holds something else.
    """
    if not file.exists():
        return None
    try:
        # A handle of our own: of a damaged file NumPy would leave its one open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        strips = {n.removeprefix("strip/"): a for n, a in arrays.items() if n.startswith("strip/")}
        sphere = {
            part: SpherePoints(
                arrays[f"sphere/{part}/mean"],
                arrays[f"sphere/{part}/kappa"],
                arrays.get(f"sphere/{part}/labels"),
            )
            for part in PARTS
            if f"sphere/{part}/mean" in arrays
        }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{file} does not hold whole pictures ({error}). Delete it; the report does without."
        ) from error
    for name, images in strips.items():
        _check_strip(str(file), name, images)
    return Pictures(strips, sphere)


def _check_strip(file: str, name: str, images: np.ndarray) -> None:
    shape = images.shape
    fits = images.ndim == 3 or (images.ndim == 4 and shape[3] == 3)
    if name not in STRIPS or images.dtype != np.uint8 or not fits or 0 in shape:
        raise InputError(
            f"{file}: a strip is one of {', '.join(STRIPS)}, of uint8 images (n, h, w) or (n, h, w, 3); "
            f"got {name!r} of {images.dtype} {shape}."
        )


def _pixels(images: Tensor) -> np.ndarray:
    """Turn float images (n, c, h, w) into bytes (n, h, w) or (n, h, w, 3)."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[3] == 1 else pixels)
