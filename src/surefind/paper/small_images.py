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
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from surefind.checks import require
from surefind.data.dataset import Dataset, Splits
from surefind.data.images import ImageFiles, decode_image
from surefind.data.sources import DIGITS, image_paths, load_folder, read_arrays
from surefind.errors import InputError
from surefind.paper.catalogue import ENTRIES

IDX_PREFIXES = {"train": "train", "test": "t10k"}
UNSIGNED_BYTE = 8
MAX_RATIO = 1100
"""More than gzip can shrink anything."""


def load_idx(
    folder: str | Path, *, name: str = "idx", classes: Sequence[str] | None = None
) -> Splits:
    """Load what a folder holds of the four files of MNIST or FashionMNIST.

    Args:
        folder: Where ``train-images-idx3-ubyte`` and the others are, with ``.gz`` or without.
        name: What to call the set.
        classes: The name of each class.

    Returns:
        The parts ``"train"`` and ``"test"``, or the one that is there.

    Raises:
        InputError: If neither part is there, or a file is broken.
    """
    parts = {}
    for part, prefix in IDX_PREFIXES.items():
        images = _find(Path(folder), f"{prefix}-images-idx3-ubyte")
        labels = _find(Path(folder), f"{prefix}-labels-idx1-ubyte")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise InputError(
                f"{folder} has only one of {prefix}-images-idx3-ubyte and "
                f"{prefix}-labels-idx1-ubyte; copy the other too."
            )
        parts[part] = Dataset(read_idx(images), read_idx(labels), classes=classes, name=name)
    if not parts:
        raise InputError(
            f"{folder} holds no idx files; expected train-images-idx3-ubyte.gz and its companions."
        )
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
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:3] != bytes([0, 0, UNSIGNED_BYTE]) or magic[3] == 0:
                raise InputError(
                    f"{path} is not an idx file of unsigned bytes: it begins with {magic!r}."
                )
            shape = struct.unpack(f">{magic[3]}I", file.read(4 * magic[3]))
            count = int(np.prod(shape, dtype=np.float64))
            # One byte more than announced, so that a file that is too long is seen as well; but
            # never more than the file can hold, whatever its header says.
            values = file.read(min(count + 1, MAX_RATIO * path.stat().st_size))
    except (EOFError, zlib.error, gzip.BadGzipFile, struct.error) as error:
        raise InputError(f"{path} is damaged or half copied ({error}). Copy it again.") from error
    if len(values) != count:
        raise InputError(
            f"{path} announces {count} values, shape {shape}, but holds "
            f"{'more' if len(values) > count else len(values)}. Copy it again."
        )
    return np.frombuffer(values, dtype=np.uint8).reshape(shape).copy()


def _find(folder: Path, stem: str) -> Path | None:
    return next((p for p in (folder / f"{stem}.gz", folder / stem) if p.is_file()), None)


CIFAR_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
CIFAR_CLASSES = ENTRIES["cifar10"].classes


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
    for part, files in CIFAR_BATCHES.items():
        images, labels = zip(*(read_python_batch(folder / f) for f in files), strict=True)
        parts[part] = Dataset(
            np.concatenate(images), np.concatenate(labels), classes=CIFAR_CLASSES, name="CIFAR-10"
        )
    return Splits(parts)


def read_python_batch(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one published batch: images, uint8 (n, 3, 32, 32), and labels, int64 (n)."""
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
    for part, files in CIFAR_BATCHES.items():
        images = np.concatenate([read_sheet(folder / f"{f}.webp") for f in files])
        labels = stored.get(f"y_{part}")
        if labels is None or len(labels) != len(images):
            raise InputError(
                f"{folder / 'labels.npz'} must hold y_{part} with {len(images)} entries, one per "
                f"tile; got {'none' if labels is None else len(labels)}."
            )
        classes = stored.get("classes", CIFAR_CLASSES)
        parts[part] = Dataset(images, labels, classes=classes, name="CIFAR-10")
    return Splits(parts)


def load_cifar100(folder: str | Path) -> Splits:
    """Load CIFAR-100.

    Args:
        folder: Where the folders ``train`` and ``test`` are.

    Returns:
        The parts ``"train"`` and ``"test"``, or the one that is there.

    Raises:
        InputError: If neither is there, or a class has no image.
    """
    splits = load_folder(folder, name="CIFAR-100")
    if "all" in splits:
        raise InputError(
            f"{folder} holds no CIFAR-100; expected train/<class>/*.png and test/<class>/*.png, and no "
            "other folder."
        )
    return splits


SVHN_FILES = {"train": "train_32x32.mat", "test": "test_32x32.mat", "extra": "extra_32x32.mat"}
SVHN_SHEET = "svhn_test*.webp"


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
    parts = {p: _read_part(folder / f) for p, f in SVHN_FILES.items() if (folder / f).is_file()}
    if not parts and (sheets := sorted(folder.glob(SVHN_SHEET))):
        parts["test"] = _read_sheet_part(folder, sheets[0])
    if not parts:
        raise InputError(
            f"{folder} holds no SVHN; expected train_32x32.mat and test_32x32.mat, or {SVHN_SHEET} "
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


OMNIGLOT_FOLDERS = {"train": "images_background", "test": "images_evaluation"}
OMNIGLOT_FIELDS = ("images_packed", "label", "drawer", "split", "class_names")
OMNIGLOT_SIDE = 105


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
    parts = {p: _from_folder(root / f) for p, f in OMNIGLOT_FOLDERS.items() if (root / f).is_dir()}
    if not parts:
        raise InputError(
            f"{root} holds no Omniglot; expected images_background and images_evaluation, or "
            "omniglot.npz."
        )
    return Splits(parts)


def _from_npz(path: Path) -> Splits:
    stored = read_arrays(path)
    if missing := [k for k in OMNIGLOT_FIELDS if k not in stored]:
        raise InputError(f"{path} is not the packed Omniglot: it has no {missing[0]!r}.")
    packed, labels, drawers, split, classes = (stored[k] for k in OMNIGLOT_FIELDS)
    if len({len(packed), len(labels), len(drawers), len(split)}) > 1:
        raise InputError(
            f"{path} does not have one label, drawer and split per image: {len(packed)} images, "
            f"{len(labels)}, {len(drawers)} and {len(split)}. Copy it again."
        )
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
    if image.shape != (OMNIGLOT_SIDE, OMNIGLOT_SIDE):
        raise InputError(
            f"{files.paths[row]} is {image.shape[1]} × {image.shape[0]}; Omniglot's drawings are "
            f"{OMNIGLOT_SIDE} × {OMNIGLOT_SIDE}."
        )
    return image


def read_mat(path: str | Path, key: str) -> Any:
    """Read one variable of a .mat file, as SciPy gives it."""
    try:
        return require("scipy.io", "read .mat files").loadmat(path, variable_names=[key])[key]
    except Exception as error:  # SciPy's parser raises whatever a broken file makes it trip over
        raise InputError(
            f"{path} is no whole file with the variable {key!r} ({error}). Copy it again."
        ) from error


def read_sheet(path: str | Path, *, tile: int = 32) -> np.ndarray:
    """Cut an RGB image into square tiles, uint8 (n, 3, tile, tile), row by row."""
    pixels = decode_image(path)
    height, width = pixels.shape[:2]
    if height % tile or width % tile:
        raise InputError(
            f"{path} has {width} × {height} pixels, which is not a whole number of tiles of "
            f"{tile} × {tile}."
        )
    tiles = pixels.reshape(height // tile, tile, width // tile, tile, 3)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3)).reshape(-1, 3, tile, tile)
