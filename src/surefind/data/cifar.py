"""CIFAR-10: the published python batches, or sheets of tiles.

The published files are pickles. A pickle can run any code, so they are read by an unpickler that
rebuilds arrays, strings, numbers, lists and dictionaries and refuses everything else.

Sheets: ``data_batch_1.webp`` … and ``test_batch.webp``, 32 × 32 tiles row by row, with ``labels.npz``
(``y_train``, ``y_test``, ``classes``).
"""

import pickle
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from surefind.data.arrays import read_arrays
from surefind.data.dataset import Dataset
from surefind.data.sheet import read_sheet
from surefind.data.splits import Splits
from surefind.errors import InputError

BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def load_cifar10(folder: str | Path) -> Splits:
    """Load CIFAR-10.

    Args:
        folder: Where the batches are; ``cifar-10-batches-py`` inside it is found too.

    Returns:
        The parts ``"train"`` and ``"test"``.

    Raises:
        InputError: If there are neither python batches nor sheets, or one is missing or broken.
    """
    folder = Path(folder)
    if (folder / "cifar-10-batches-py").is_dir():
        folder /= "cifar-10-batches-py"
    if (folder / "labels.npz").is_file():
        return _from_sheets(folder)
    if not (folder / "test_batch").is_file():
        raise InputError(
            f"{folder} holds no CIFAR-10; expected data_batch_1 … data_batch_5 and test_batch, "
            "or the same with .webp and labels.npz."
        )
    parts = {}
    for part, files in BATCHES.items():
        images, labels = zip(*(read_python_batch(folder / f) for f in files), strict=True)
        parts[part] = Dataset(
            np.concatenate(images), np.concatenate(labels), classes=CLASSES, name="CIFAR-10"
        )
    return Splits(parts)


def read_python_batch(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one published batch.

    Args:
        path: The pickle.

    Returns:
        Images, uint8 (n, 3, 32, 32), and labels, int64 (n).

    Raises:
        InputError: If it is missing, broken, or holds something else.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            batch = _ArrayUnpickler(file).load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; CIFAR-10 needs all of its batches.") from error
    except Exception as error:  # an unpickler of broken bytes raises whatever it trips over
        raise InputError(
            f"{path} is not a whole CIFAR-10 batch ({error}). Copy it again."
        ) from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3072):
        raise InputError(
            f"{path} must hold one row of 3072 bytes per label, {len(labels)}; "
            f"got {pixels.dtype} of shape {pixels.shape}."
        )
    return pixels.reshape(-1, 3, 32, 32), labels.astype(np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds NumPy arrays and Python's own values, and nothing that runs code."""

    def __init__(self, file: BinaryIO) -> None:
        # Written by Python 2: its strings are bytes.
        super().__init__(file, encoding="bytes")

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module.startswith("numpy.") and "multiarray" in module:
            return np.zeros(0).__reduce__()[0]
        allowed = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which data does not need")
        return allowed[module, name]


def _latin1(text: str, _encoding: str) -> bytes:
    # Python 3 writes bytes in old protocols as text to encode; the codec is always this one.
    return text.encode("latin1")


def _from_sheets(folder: Path) -> Splits:
    stored = read_arrays(folder / "labels.npz")
    parts = {}
    for part, files in BATCHES.items():
        images = np.concatenate([read_sheet(folder / f"{f}.webp") for f in files])
        labels = stored.get(f"y_{part}")
        if labels is None or len(labels) != len(images):
            raise InputError(
                f"{folder / 'labels.npz'} must hold y_{part} with {len(images)} entries, one per "
                f"tile; got {'none' if labels is None else len(labels)}."
            )
        classes = stored.get("classes", CLASSES)
        parts[part] = Dataset(images, labels, classes=classes, name="CIFAR-10")
    return Splits(parts)
