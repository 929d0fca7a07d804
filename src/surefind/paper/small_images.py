"""Published sets of small images, held in memory: digits, clothes, drawings, tiny photographs.

MNIST and FashionMNIST, in the idx format: a header with the shape, then unsigned bytes. Files may be
compressed with gzip, as they are published.

    0x00 0x00 0x08 d        two zeros, the type (8: unsigned byte), the number of axes
    d × uint32, big endian  the length of each axis
    the values              row by row

CIFAR-10: the published python batches, or sheets of tiles. The published files are pickles. A pickle can
run any code, so they are read by an unpickler that rebuilds arrays, strings, numbers, lists and
dictionaries and refuses everything else. Sheets: ``data_batch_1.webp`` … and ``test_batch.webp``, 32 × 32
tiles row by row, with ``labels.npz`` (``y_train``, ``y_test``, ``classes``).

CIFAR-100: a folder per part and in each a folder per class, of 32 × 32 PNG files, which stay on the disk.

    train/<class>/<name>.png  test/<class>/<name>.png

SVHN, cropped digits: the published .mat files, or a sheet of tiles. In the .mat files images are
(32, 32, 3, n) and the digit 0 has the label 10; here it has 0. The sheet form is ``svhn_test*.webp``,
32 × 32 tiles row by row, with ``labels.npy``.

Omniglot, drawings of characters: the published folders, or ``omniglot.npz`` with ``images_packed`` (a bit
per pixel, 1 for ink), ``label``, ``drawer``, ``split`` (0 background, 1 evaluation) and ``class_names``.
Either way images are uint8, black ink (0) on white (255), 105 × 105, and a class is
"<alphabet>/<character>".

    images_background/<alphabet>/<character>/<number>_<drawer>.png    training
    images_evaluation/…                                               test, other alphabets
"""

import gzip
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from surefind.checks import check_count, require
from surefind.data.dataset import Dataset, Splits
from surefind.data.images import ImageFiles, decode_image
from surefind.data.sources import DIGITS, load_folder, read_arrays
from surefind.errors import InputError
from surefind.paper.catalogue import ENTRIES

IDX_PREFIXES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 8
MAX_RATIO = 1100
"""More than gzip can shrink anything."""


def load_idx(folder: str | Path, *, name: str, classes: Sequence[str]) -> Splits:
    """Load what a folder holds of the four files of MNIST or FashionMNIST, with ``.gz`` or without."""
    parts = {}
    for part, prefix in IDX_PREFIXES.items():
        found = sorted(Path(folder).glob(f"{prefix}-*-ubyte*"))
        if found:
            images, labels = (read_idx(path) for path in found)
            parts[part] = Dataset(images, labels, classes=classes, name=name)
    return Splits(parts)


def load_mnist(folder: str | Path) -> Splits:
    """Load MNIST, see `load_idx`."""
    return load_idx(folder, name="MNIST", classes=DIGITS)


def load_fashion_mnist(folder: str | Path) -> Splits:
    """Load FashionMNIST, see `load_idx`."""
    return load_idx(folder, name="FashionMNIST", classes=ENTRIES["fashion-mnist"].classes)


def read_idx(path: str | Path) -> np.ndarray:
    """Read one idx file, gzipped if its name ends in ``.gz``: uint8, in the shape that its header gives."""
    path = Path(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        magic = file.read(4)
        if magic[:3] != bytes([0, 0, UNSIGNED_BYTE]):
            raise InputError(f"{path} is not an idx file of bytes: it begins with {magic!r}.")
        shape = struct.unpack(f">{magic[3]}I", file.read(4 * magic[3]))
        # One byte more than announced, so that a file that is too long is seen as well; but never more than
        # the file can hold, whatever its header says.
        count = int(np.prod(shape, dtype=np.float64))
        values = file.read(min(count + 1, MAX_RATIO * path.stat().st_size))
    return np.frombuffer(values, dtype=np.uint8).reshape(shape).copy()


CIFAR_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
CIFAR_CLASSES = ENTRIES["cifar10"].classes


def load_cifar10(folder: str | Path) -> Splits:
    """Load CIFAR-10.

    Args:
        folder: Where the batches are; ``cifar-10-batches-py`` inside it is found too.

    Returns:
        The parts ``"train"`` and ``"test"``.
    """
    folder = Path(folder)
    if (folder / "cifar-10-batches-py").is_dir():
        folder /= "cifar-10-batches-py"
    if (folder / "labels.npz").is_file():
        return _from_sheets(folder)
    parts = {}
    for part, files in CIFAR_BATCHES.items():
        images, labels = zip(*(read_python_batch(folder / f) for f in files), strict=True)
        parts[part] = Dataset(
            np.concatenate(images), np.concatenate(labels), classes=CIFAR_CLASSES, name="CIFAR-10"
        )
    return Splits(parts)


def read_python_batch(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one published batch: images, uint8 (n, 3, 32, 32), and labels, int64 (n)."""
    with Path(path).open("rb") as file:
        batch = _ArrayUnpickler(file).load()
    pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
    return pixels.reshape(len(labels), 3, 32, 32), labels.astype(np.int64)


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
    for part, files in CIFAR_BATCHES.items():
        images = np.concatenate([read_sheet(folder / f"{f}.webp") for f in files])
        classes = stored.get("classes", CIFAR_CLASSES)
        parts[part] = Dataset(images, stored[f"y_{part}"], classes=classes, name="CIFAR-10")
    return Splits(parts)


def load_cifar100(folder: str | Path) -> Splits:
    """Load the parts "train" and "test" of CIFAR-100, folders of classes in ``folder``."""
    splits = load_folder(folder, name="CIFAR-100")
    if "all" in splits:
        raise InputError(f"{folder} holds no CIFAR-100; expected train/<class> and test/<class>.")
    return splits


SVHN_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}
SVHN_SHEET = "svhn_test*.webp"


def load_svhn(folder: str | Path) -> Splits:
    """Load SVHN.

    Args:
        folder: Where ``train_32x32.mat`` and ``test_32x32.mat`` are, or the sheet.

    Returns:
        The parts that are there, of ``"train"``, ``"test"`` and ``"extra"``.
    """
    folder = Path(folder)
    parts = {p: _read_part(folder / f) for p, f in SVHN_FILES.items() if (folder / f).is_file()}
    if not parts and (sheets := sorted(folder.glob(SVHN_SHEET))):
        parts["test"] = _read_sheet_part(folder, sheets[0])
    return Splits(parts)


def _read_part(path: Path) -> Dataset:
    images, labels = (read_mat(path, key) for key in ("X", "y"))
    labels = labels.reshape(-1).astype(np.int64)
    images = np.ascontiguousarray(images.reshape(32, 32, 3, len(labels)).transpose(3, 2, 0, 1))
    return Dataset(images, labels % 10, classes=DIGITS, name="SVHN")


def _read_sheet_part(folder: Path, sheet: Path) -> Dataset:
    labels = read_arrays(folder / "labels.npy")["array"]
    return Dataset(read_sheet(sheet), labels, classes=DIGITS, name="SVHN")


OMNIGLOT_FOLDERS = {"train": "images_background", "test": "images_evaluation"}
OMNIGLOT_FIELDS = ("images_packed", "label", "drawer", "split", "class_names")
OMNIGLOT_SIDE = 105


def load_omniglot(folder: str | Path) -> Splits:
    """Load Omniglot.

    Args:
        folder: Where ``omniglot.npz`` or the two published folders are.

    Returns:
        The parts ``"train"`` (background) and ``"test"`` (evaluation), or the one that is there.
    """
    root = Path(folder)
    if (root / "omniglot.npz").is_file():
        return _from_npz(root / "omniglot.npz")
    parts = {p: _from_folder(root / f) for p, f in OMNIGLOT_FOLDERS.items() if (root / f).is_dir()}
    return Splits(parts)


def _from_npz(path: Path) -> Splits:
    stored = read_arrays(path)
    packed, labels, drawers, split, classes = (stored[k] for k in OMNIGLOT_FIELDS)
    for name, column in (("label", labels), ("drawer", drawers), ("split", split)):
        check_count(name, column, len(packed))
    parts = {}
    for code, part in enumerate(OMNIGLOT_FOLDERS):
        rows = np.flatnonzero(split == code)
        if len(rows) == 0:
            continue
        ink = np.unpackbits(packed[rows], axis=2)[..., :OMNIGLOT_SIDE]
        names = [f"{classes[labels[i]]}/{drawers[i]:02d}" for i in rows]
        parts[part] = Dataset(
            (1 - ink) * np.uint8(255), labels[rows], names=names, classes=classes, name="Omniglot"
        )
    return Splits(parts)


def _from_folder(folder: Path) -> Dataset:
    paths = sorted(folder.glob("*/*/*.png"))
    files = ImageFiles(paths, "L")
    images = np.stack([files.decode(row) for row in range(len(files))])
    inner = [p.relative_to(folder) for p in paths]
    labels = [p.parent.as_posix() for p in inner]
    return Dataset(images, labels, names=[p.as_posix() for p in inner], name="Omniglot")


def read_mat(path: str | Path, key: str) -> Any:
    """Read one variable of a .mat file, as SciPy gives it."""
    return require("scipy.io", "read .mat files").loadmat(path, variable_names=[key])[key]


def read_sheet(path: str | Path, *, tile: int = 32) -> np.ndarray:
    """Cut an RGB image into square tiles, uint8 (n, 3, tile, tile), row by row."""
    pixels = decode_image(path)
    height, width = pixels.shape[:2]
    tiles = pixels.reshape(height // tile, tile, width // tile, tile, 3)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3)).reshape(-1, 3, tile, tile)
