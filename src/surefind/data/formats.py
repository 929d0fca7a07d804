"""Formats of files: NumPy's arrays and MATLAB's variables, sheets of tiles, vectors with their labels.

Nothing is unpickled. A sheet is many small images of one size in one large image, row by row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from surefind.checks import VECTOR_KINDS, require
from surefind.data.images import decode_image
from surefind.data.tables import one_of, read_table, shortened
from surefind.errors import InputError

NUMPY = (".npy", ".npz")


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read a .npz or .npy file.

    Args:
        path: The file.

    Returns:
        The arrays by name; that of a .npy file is called ``"array"``.

    Raises:
        InputError: If it is missing, broken, or holds Python objects.
    """
    try:
        # Opened here, because NumPy leaves the file of a broken archive open.
        with Path(path).open("rb") as file:
            if file.read(4) not in (b"\x93NUM", b"PK\x03\x04", b"PK\x05\x06"):
                raise InputError(
                    f"{path} is not a file that NumPy saved. Write it with numpy.save."
                )
            file.seek(0)
            stored = np.load(file, allow_pickle=False)
            return {"array": stored} if isinstance(stored, np.ndarray) else dict(stored)
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist.") from error
    except InputError:
        raise
    except Exception as error:  # the readers of zip and header raise whatever they trip over
        if "allow_pickle" in str(error):
            raise InputError(
                f"{path} holds Python objects (NumPy's dtype object, as pandas gives texts), which are "
                "not unpickled, because that could run anything.",
                field="path",
                hint="Save them as texts or numbers: labels.astype(str), or labels.astype(int).",
            ) from error
        raise InputError(f"{path} is damaged or half copied ({error}). Copy it again.") from error


def read_mat(path: str | Path, key: str) -> Any:
    """Read one variable.

    Args:
        path: The .mat file.
        key: The variable's name.

    Returns:
        Its value as SciPy gives it, with axes of length one removed from structures only.

    Raises:
        InputError: If the file is missing or broken, or has no such variable.
    """
    scipy_io = require("scipy.io", "read .mat files")
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist.")
    try:
        variables = scipy_io.loadmat(path, variable_names=[key])
    except Exception as error:  # SciPy's parser raises whatever a broken file makes it trip over
        raise InputError(f"{path} is damaged or half copied ({error}). Copy it again.") from error
    if key not in variables:
        raise InputError(f"{path} has no variable {key!r}; is it the published file?")
    return variables[key]


def read_sheet(path: str | Path, *, tile: int = 32) -> np.ndarray:
    """Cut a sheet into its tiles.

    Args:
        path: An RGB image, stored without loss.
        tile: Side of a tile in pixels.

    Returns:
        The tiles, uint8 (n, 3, tile, tile), from left to right and top to bottom.

    Raises:
        InputError: If the sheet is not a whole number of tiles.
    """
    pixels = decode_image(path)
    height, width = pixels.shape[:2]
    if height % tile or width % tile:
        raise InputError(
            f"{path} has {width} × {height} pixels, which is not a whole number of tiles of "
            f"{tile} × {tile}."
        )
    tiles = pixels.reshape(height // tile, tile, width // tile, tile, 3)
    return np.ascontiguousarray(tiles.transpose(0, 2, 4, 1, 3)).reshape(-1, 3, tile, tile)


VECTORS = (
    "features",
    "vectors",
    "vector",
    "mean",
    "embeddings",
    "embedding",
    "inputs",
    "X",
    "array",
)
LABELS, IDS = ("labels", "label", "y"), ("ids", "id", "name")
BESIDE = {*LABELS, *IDS, "kappa", "uncertainty", "novelty"}
"""What columns may be called: of vectors, the first of these that is there; of what stands beside them."""


@dataclass(frozen=True, eq=False)
class VectorFile:
    """Vectors from a file, with what is known of each row.

    Attributes:
        vectors: Numbers (n, d), or images as `Dataset` takes them.
        labels: One a row, as they stand in the file; None if it has none. So are ids, kappa and novelty.
    """

    vectors: np.ndarray
    labels: np.ndarray | None
    ids: np.ndarray | None
    kappa: np.ndarray | None
    novelty: np.ndarray | None


def read_vector_file(path: str | Path) -> VectorFile:
    """Read vectors, and the labels, ids, κ and novelty beside them.

    Args:
        path: The file:

        .npy        the vectors alone
        .npz        an array called as `VECTORS` says, or the only one that is nothing else;
                    "labels", "ids", "kappa" and "novelty" beside it
        .parquet    the same as columns, the vectors as lists

    Returns:
        Its columns.

    Raises:
        InputError: If the file cannot be read, or it is not clear which of its columns holds the vectors.
    """
    columns = _columns(Path(path))
    unknown = [name for name in columns if name not in BESIDE]
    name = next((n for n in VECTORS if n in columns), unknown[0] if len(unknown) == 1 else None)
    if name is None:
        raise InputError(
            f"{path} holds {shortened(columns)}, and it is not clear which of them are the vectors.",
            field="path",
            hint=f"Call them {one_of(VECTORS)}, and their labels {one_of(LABELS)}.",
        )
    if columns[name].dtype.kind not in VECTOR_KINDS:
        raise InputError(f"{path}: {name!r} is no table of numbers.", field="path")
    beside = _named(columns, LABELS), _named(columns, IDS)
    return VectorFile(columns[name], *beside, columns.get("kappa"), columns.get("novelty"))


def read_column(path: str | Path, names: tuple[str, ...]) -> np.ndarray:
    """Read one column of a .npy, .npz, .csv or .parquet file; cells of the last two are texts.

    Args:
        path: The file.
        names: What the column may be called; that of a .npy file needs no name.

    Returns:
        Its cells (n); an empty cell of a table is the empty text.

    Raises:
        InputError: If the file cannot be read or has no such column.
    """
    arrays = Path(path).suffix.lower() in NUMPY
    columns: Any = read_arrays(path) if arrays else read_table(Path(path)).columns
    found = _named(columns, (*names, "array"))
    if found is None:
        raise InputError(
            f"{path} holds {shortened(columns)}, and none of them is called {one_of(names)}.",
            field="path",
            hint="Name it so.",
        )
    return np.asarray(found)


def parquet_names(path: str | Path) -> list[str]:
    """Return the names of a Parquet file's columns."""
    return list(_parquet(path, "read_schema").names)


def _columns(path: Path) -> dict[str, np.ndarray]:
    if path.suffix.lower() in NUMPY:
        return read_arrays(path)
    table = _parquet(path, "read_table")
    return {name: _array(path, name, table.column(name)) for name in table.column_names}


def _array(path: Path, name: str, cells: Any) -> np.ndarray:
    try:
        array = np.array(cells.to_pylist())
    except ValueError as error:
        raise InputError(
            f"{path}: the lists of {name!r} differ in length.", field="path"
        ) from error
    return array.astype(np.float32) if array.ndim == 2 and array.dtype.kind == "f" else array


def _parquet(path: str | Path, reader: str) -> Any:
    parquet = require("pyarrow.parquet", "read Parquet files")
    arrow = require("pyarrow", "read Parquet files")
    try:
        return getattr(parquet, reader)(path)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path} is not a Parquet file: {error}. Write it again.", field="path"
        ) from error


def _named(columns: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((columns[n] for n in names if n in columns), None)
