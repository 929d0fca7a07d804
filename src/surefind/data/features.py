"""Frozen features of published sets: what a fixed network makes of each image, in one file.

``cub200_effnetlite0.npz`` and ``cars196_test_effnetlite0.npz`` hold, a row per image,

    x       features, floating point (n, d)
    y       the class, from 1, as the publisher numbers it
    split   the publisher's part
    path    the image below the publisher's folder

The split is the zero-shot one of image retrieval, by class, not the file's: CUB trains on the first half
of the classes and tests on the second; of Cars196 there is the second half only.
"""

from pathlib import Path

from surefind.data.dataset import Dataset
from surefind.data.formats import read_arrays
from surefind.data.splits import Splits, open_set_split
from surefind.errors import InputError

CUB_FILE = "cub200_effnetlite0.npz"
CARS_FILE = "cars196_test_effnetlite0.npz"
FIELDS = ("x", "y", "split", "path")
INNER = "embeddings"
"""A folder of features that may lie in the folder of the data sets."""


def load_cub_features(folder: str | Path) -> Splits:
    """Load features of CUB-200-2011.

    Args:
        folder: Where the file is; ``embeddings`` inside it is found too.

    Returns:
        The parts ``"train"`` and ``"test"``, of different classes.
    """
    return open_set_split(read_features(_found(folder, CUB_FILE), name="CUB-200-2011 features"))


def load_cars_features(folder: str | Path) -> Splits:
    """Load features of Cars196.

    Args:
        folder: Where the file is; ``embeddings`` inside it is found too.

    Returns:
        The part ``"test"``.
    """
    return Splits({"test": read_features(_found(folder, CARS_FILE), name="Cars196 features")})


def read_features(path: str | Path, *, name: str) -> Dataset:
    """Read a file of features.

    Args:
        path: The file.
        name: What to call the set in messages.

    Returns:
        Features with labels, as the file numbers them.

    Raises:
        InputError: If the file is broken, or not one of features.
    """
    stored = read_arrays(path)
    if missing := [k for k in FIELDS if k not in stored]:
        raise InputError(f"{path} is no file of features: it has no {missing[0]!r}.")
    x, y, _, paths = (stored[k] for k in FIELDS)
    if x.ndim != 2 or len({len(v) for v in (x, y, paths)}) > 1:
        raise InputError(
            f"{path} does not have features (n, d) with a class and a path each: x has shape "
            f"{x.shape}, y {y.shape}, path {paths.shape}. Copy it again."
        )
    return Dataset(x, y.astype("int64"), names=paths, name=name)


def _found(folder: str | Path, file: str) -> Path:
    inner = Path(folder) / INNER / file
    return inner if inner.is_file() else Path(folder) / file
