"""Omniglot: drawings of characters, as published folders or packed in one file.

    images_background/<alphabet>/<character>/<number>_<drawer>.png    training
    images_evaluation/…                                               test, other alphabets

or ``omniglot.npz``: ``images_packed`` (a bit per pixel, 1 for ink, 105 × 105), ``label``, ``drawer``,
``split`` (0 background, 1 evaluation) and ``class_names``. Either way images are uint8, black ink (0)
on white (255), 105 × 105, and a class is "<alphabet>/<character>".
"""

from pathlib import Path

import numpy as np

from surefind.data.dataset import Dataset
from surefind.data.folder import image_paths
from surefind.data.formats import read_arrays
from surefind.data.images import ImageFiles
from surefind.data.splits import Splits
from surefind.errors import InputError

FOLDERS = {"train": "images_background", "test": "images_evaluation"}
FIELDS = ("images_packed", "label", "drawer", "split", "class_names")
SIDE = 105


def load_omniglot(folder: str | Path) -> Splits:
    """Load Omniglot.

    Args:
        folder: Where ``omniglot.npz`` or the two published folders are.

    Returns:
        The parts ``"train"`` (background) and ``"test"`` (evaluation), or the one that is there.

    Raises:
        InputError: If neither form is there, or a file is broken.
    """
    root = Path(folder)
    if (root / "omniglot.npz").is_file():
        return _from_npz(root / "omniglot.npz")
    parts = {p: _from_folder(root / f) for p, f in FOLDERS.items() if (root / f).is_dir()}
    if not parts:
        raise InputError(
            f"{root} holds no Omniglot; expected images_background and images_evaluation, or "
            "omniglot.npz."
        )
    return Splits(parts)


def _from_npz(path: Path) -> Splits:
    stored = read_arrays(path)
    if missing := [k for k in FIELDS if k not in stored]:
        raise InputError(f"{path} is not the packed Omniglot: it has no {missing[0]!r}.")
    packed, labels, drawers, split, classes = (stored[k] for k in FIELDS)
    if len({len(packed), len(labels), len(drawers), len(split)}) > 1:
        raise InputError(
            f"{path} does not have one label, drawer and split per image: {len(packed)} images, "
            f"{len(labels)}, {len(drawers)} and {len(split)}. Copy it again."
        )
    parts = {}
    for code, part in enumerate(FOLDERS):
        rows = np.flatnonzero(split == code)
        if len(rows) == 0:
            continue
        ink = np.unpackbits(packed[rows], axis=2)[..., :SIDE]
        names = [f"{classes[labels[i]]}/{drawers[i]:02d}" for i in rows]
        parts[part] = Dataset(
            (1 - ink) * np.uint8(255), labels[rows], names=names, classes=classes, name="Omniglot"
        )
    return Splits(parts)


def _from_folder(folder: Path) -> Dataset:
    paths = image_paths(folder)
    if not paths:
        raise InputError(f"{folder} holds no drawings; expected <alphabet>/<character>/*.png.")
    inner = [p.relative_to(folder) for p in paths]
    if odd := [p for p in inner if len(p.parts) != 3]:
        raise InputError(
            f"{folder / odd[0]} is not in an alphabet's and a character's folder; expected "
            "<alphabet>/<character>/*.png."
        )
    files = ImageFiles(paths, "L")
    images = np.stack([_drawing(files, i) for i in range(len(files))])
    labels = [p.parent.as_posix() for p in inner]
    return Dataset(images, labels, names=[p.as_posix() for p in inner], name="Omniglot")


def _drawing(files: ImageFiles, row: int) -> np.ndarray:
    image = files.decode(row)
    if image.shape != (SIDE, SIDE):
        raise InputError(
            f"{files.paths[row]} is {image.shape[1]} × {image.shape[0]}; Omniglot's drawings are "
            f"{SIDE} × {SIDE}."
        )
    return image
