"""Artifacts of a result: images and embeddings too large, or not licensed, to be committed with it.

One file per result, ``{folder}/{dataset}/{method}-seed{seed}.npz``, plain arrays without pickles:

    strip/{part}-{end}     uint8 images (n, h, w) or (n, h, w, 3): part id or ood; end lowest or highest
                           uncertainty, the most extreme first
    sphere/{part}/mean     unit directions (n, 3), n <= 2000
    sphere/{part}/kappa    their concentrations (n)
    sphere/{part}/labels   their classes (n), integers; optional
"""

import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from surefind.checks import check_int
from surefind.errors import InputError
from surefind.evaluation import PARTS
from surefind.files import write_atomically

STRIPS = {
    f"{part}-{end}": f"{title}, most {word}"
    for part, title in PARTS.items()
    for end, word in (("lowest", "certain"), ("highest", "uncertain"))
}
"""The strips and their titles."""
POINTS = 2000
IMAGES = 12
KAPPA_RANGE = (1e-30, 1e30)
"""κ is clipped to this range, since 0 and ∞ have no place on a logarithmic scale."""


@dataclass(frozen=True, eq=False)
class SpherePoints:
    """Three-dimensional embeddings.

    Attributes:
        mean: Unit directions (n, 3).
        kappa: Concentrations (n), above zero and finite.
        labels: Classes (n), or None.

    Raises:
        InputError: If shapes do not agree or a value is not finite.
    """

    mean: np.ndarray
    kappa: np.ndarray
    labels: np.ndarray | None = None

    def __post_init__(self) -> None:
        n = len(self.mean)
        shapes = [None if a is None else a.shape for a in (self.mean, self.kappa, self.labels)]
        if not n or shapes[:2] != [(n, 3), (n,)] or shapes[2] not in (None, (n,)):
            raise InputError(
                f"sphere points need directions (n, 3), κ (n) and labels (n) or none; got {shapes}."
            )
        finite = np.isfinite(self.mean).all() and np.isfinite(self.kappa).all()
        if not finite or self.kappa.min() <= 0:
            raise InputError("sphere points need finite directions and finite κ above 0.")


@dataclass(frozen=True, eq=False)
class Artifacts:
    """The artifacts of a result.

    Attributes:
        strips: uint8 images by "id-lowest", "id-highest", "ood-lowest", "ood-highest".
        sphere: Points by "id" and "ood"; empty if embeddings are not three-dimensional.

    Raises:
        InputError: If a strip has another name, dtype or shape.
    """

    strips: Mapping[str, np.ndarray]
    sphere: Mapping[str, SpherePoints]

    def __post_init__(self) -> None:
        for name, images in self.strips.items():
            shape = images.shape
            fits = images.ndim == 3 or (images.ndim == 4 and shape[3] == 3)
            if name not in STRIPS or images.dtype != np.uint8 or not fits or 0 in shape:
                raise InputError(
                    f"a strip is one of {', '.join(STRIPS)}, of uint8 images (n, h, w) or (n, h, w, 3); "
                    f"got {name!r} of {images.dtype} {shape}."
                )


def extreme_images(
    part: str, read: Callable[[Tensor], Tensor], uncertainty: Any, count: int = IMAGES
) -> dict[str, np.ndarray]:
    """Select the images of lowest and of highest uncertainty.

    Args:
        part: "id" or "ood".
        read: Returns float images (n, c, h, w) in [0, 1] by index; `Dataset.read` is one.
        uncertainty: Of each example of the part.
        count: Images in a strip.

    Returns:
        The two strips of the part.
    """
    check_int("count", count, least=1)
    order = torch.as_tensor(uncertainty).argsort(stable=True)
    rows = {"lowest": order[:count], "highest": order.flip(0)[:count]}
    return {f"{part}-{end}": _pixels(read(chosen)) for end, chosen in rows.items()}


def sphere_points(
    mean: Any, kappa: Any, labels: Any | None, generator: Generator, at_most: int = POINTS
) -> SpherePoints:
    """Draw at most so many of the embeddings (n, 3), without replacement."""
    check_int("at_most", at_most, least=1)
    chosen = torch.randperm(len(mean), generator=generator)[:at_most].sort().values.numpy()
    return SpherePoints(
        np.asarray(mean, dtype=np.float32)[chosen],
        np.clip(np.asarray(kappa, dtype=np.float32)[chosen], *KAPPA_RANGE),
        None if labels is None else np.asarray(labels)[chosen],
    )


def write_artifacts(file: Path, artifacts: Artifacts) -> None:
    """Write artifacts, whole or not at all, to a file that ends in ``.npz``."""
    arrays = {f"strip/{name}": images for name, images in artifacts.strips.items()}
    for part, points in artifacts.sphere.items():
        arrays |= {f"sphere/{part}/{k}": v for k, v in vars(points).items() if v is not None}

    def save(path: Path) -> None:
        with path.open("wb") as stream:
            np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, save)


def read_artifacts(file: Path) -> Artifacts | None:
    """Read artifacts.

    Returns:
        The artifacts, or None if there is no such file.

    Raises:
        InputError: If the file is damaged or holds something else.
    """
    if not file.exists():
        return None
    try:
        # A handle of our own: of a damaged file NumPy would leave its one open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        return Artifacts(
            {n.removeprefix("strip/"): a for n, a in arrays.items() if n.startswith("strip/")},
            {
                part: SpherePoints(
                    arrays[f"sphere/{part}/mean"],
                    arrays[f"sphere/{part}/kappa"],
                    arrays.get(f"sphere/{part}/labels"),
                )
                for part in PARTS
                if f"sphere/{part}/mean" in arrays
            },
        )
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{file} holds no valid artifacts ({error}). Delete it; the report does without."
        ) from error


def _pixels(images: Tensor) -> np.ndarray:
    """Convert float images (n, c, h, w) to uint8 (n, h, w) or (n, h, w, 3)."""
    pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return np.ascontiguousarray(pixels[..., 0] if pixels.shape[3] == 1 else pixels)
