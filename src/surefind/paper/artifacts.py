"""Images of a result, not licensed to be committed with it: those of least and of greatest uncertainty.

One file per result, ``{folder}/{dataset}/{method}-seed{seed}.npz``, plain arrays without pickles:

    strip/{part}-{end}     uint8 images (n, h, w) or (n, h, w, 3): part id or ood; end lowest or highest
                           uncertainty, the most extreme first
"""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.errors import InputError
from surefind.evaluation import PARTS
from surefind.files import write_atomically

STRIPS = {
    f"{part}-{end}": f"{title}, most {word}"
    for part, title in PARTS.items()
    for end, word in (("lowest", "certain"), ("highest", "uncertain"))
}
"""The strips and their titles."""
IMAGES = 12


def extreme_images(
    part: str, read: Callable[[Tensor], Tensor], uncertainty: Any
) -> dict[str, np.ndarray]:
    """Select the images of lowest and of highest uncertainty.

    Args:
        part: "id" or "ood".
        read: Returns float images (n, c, h, w) in [0, 1] by index; `Dataset.read` is one.
        uncertainty: Of each example of the part.

    Returns:
        The two strips of the part, uint8 images (n, h, w) or (n, h, w, 3).
    """
    order = torch.as_tensor(uncertainty).argsort(stable=True)
    rows = {"lowest": order[:IMAGES], "highest": order.flip(0)[:IMAGES]}
    strips = {}
    for end, chosen in rows.items():
        bytes_ = (read(chosen).clamp(0, 1) * 255).round().to(torch.uint8)
        pixels = bytes_.permute(0, 2, 3, 1).numpy()
        grey = pixels.shape[3] == 1
        strips[f"{part}-{end}"] = np.ascontiguousarray(pixels[..., 0] if grey else pixels)
    return strips


def write_strips(file: Path, strips: Mapping[str, np.ndarray]) -> None:
    """Write strips, whole or not at all, to a file that ends in ``.npz``."""

    def save(path: Path) -> None:
        with path.open("wb") as stream:
            np.savez_compressed(stream, **{f"strip/{k}": v for k, v in strips.items()})  # type: ignore[arg-type]

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, save)


def read_strips(file: Path) -> dict[str, np.ndarray]:
    """Read the strips of a result; none if there is no such file; refuse a damaged one."""
    if not file.exists():
        return {}
    try:
        # A handle of our own: of a damaged file NumPy would leave its one open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {k: stored[f"strip/{k}"] for k in STRIPS if f"strip/{k}" in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{file} holds no valid artifacts ({error}). Delete it; the report does without."
        ) from error
