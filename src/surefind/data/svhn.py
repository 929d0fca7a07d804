"""Street View House Numbers, cropped digits: the published .mat files, or a sheet of tiles.

In the .mat files images are (32, 32, 3, n) and the digit 0 has the label 10; here it has 0. The sheet
form is ``svhn_test*.webp``, 32 × 32 tiles row by row, with ``labels.npy``.
"""

from pathlib import Path

import numpy as np

from surefind.data.arrays import read_arrays
from surefind.data.dataset import Dataset
from surefind.data.matlab import read_mat
from surefind.data.sheet import read_sheet
from surefind.data.splits import Splits
from surefind.errors import InputError

FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}
SHEET = "svhn_test*.webp"
DIGITS = tuple("0123456789")


def load_svhn(folder: str | Path) -> Splits:
    """Load SVHN.

    Args:
        folder: Where ``train_32x32.mat`` and ``test_32x32.mat`` are, or the sheet.

    Returns:
        The parts that are there, of ``"train"``, ``"test"`` and ``"extra"``.

    Raises:
        InputError: If none is there, or a file is broken.
    """
    folder = Path(folder)
    parts = {p: _read_part(folder / f) for p, f in FILES.items() if (folder / f).is_file()}
    if not parts and (sheets := sorted(folder.glob(SHEET))):
        parts["test"] = _read_sheet_part(folder, sheets[0])
    if not parts:
        raise InputError(
            f"{folder} holds no SVHN; expected train_32x32.mat and test_32x32.mat, or {SHEET} "
            "with labels.npy."
        )
    return Splits(parts)


def _read_part(path: Path) -> Dataset:
    images, labels = (read_mat(path, key) for key in ("X", "y"))
    labels = labels.reshape(-1).astype(np.int64)
    if images.ndim != 4 or images.shape != (32, 32, 3, len(labels)):
        raise InputError(
            f"{path} must hold X of shape (32, 32, 3, {len(labels)}), one image per label; "
            f"got {images.shape}."
        )
    images = np.ascontiguousarray(images.transpose(3, 2, 0, 1))
    return Dataset(images, labels % 10, classes=DIGITS, name="SVHN")


def _read_sheet_part(folder: Path, sheet: Path) -> Dataset:
    if not (folder / "labels.npy").is_file():
        raise InputError(f"{folder} has {sheet.name} but not its labels.npy; copy it too.")
    images = read_sheet(sheet)
    labels = read_arrays(folder / "labels.npy")["array"]
    if len(labels) != len(images):
        raise InputError(
            f"{folder / 'labels.npy'} has {len(labels)} entries for the {len(images)} tiles of "
            f"{sheet.name}; copy both again."
        )
    return Dataset(images, labels, classes=DIGITS, name="SVHN")
