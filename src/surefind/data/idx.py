"""The idx format of MNIST and FashionMNIST: a header with the shape, then unsigned bytes.

    0x00 0x00 0x08 d        two zeros, the type (8: unsigned byte), the number of axes
    d × uint32, big endian  the length of each axis
    the values              row by row

Files may be compressed with gzip, as they are published.
"""

import gzip
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from surefind.data.dataset import Dataset
from surefind.data.splits import Splits
from surefind.errors import InputError

PREFIXES = {"train": "train", "test": "t10k"}
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
    for part, prefix in PREFIXES.items():
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


def read_idx(path: str | Path) -> np.ndarray:
    """Read one idx file.

    Args:
        path: The file, compressed if its name ends in ``.gz``.

    Returns:
        Its values, uint8, in the shape that the header gives.

    Raises:
        InputError: If it is not a whole idx file of unsigned bytes.
    """
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
