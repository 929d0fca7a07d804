"""Vectors in a file, with labels and names if they are known.

    .npy        the vectors (n, d), or images as `Dataset` takes them
    .npz        the same under "features", "mean", "embeddings" or "inputs", or as the only array;
                "labels" and "ids" beside them if there are any
    .parquet    a column of lists called so, and columns "label" and "id"

What `surefind embed` writes can be read. Nothing is unpickled.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefind.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from surefind.data.dataset import Dataset

VECTORS = ("features", "mean", "embeddings", "embedding", "inputs", "array")
LABELS = ("labels", "label")
IDS = ("ids", "id", "name")


def holds_vectors(path: Path) -> bool:
    """Say whether a file holds vectors: NumPy's do, a Parquet file does if it lists no paths."""
    suffix = path.suffix.lower()
    if suffix in (".npy", ".npz"):
        return True
    return suffix in (".parquet", ".pq") and "path" not in _parquet_columns(path)


def read_vectors(path: Path, labels: Path | None = None) -> "Dataset":
    """Read vectors.

    Args:
        path: The file.
        labels: Where their labels are, if elsewhere: .npy, .npz, or a table with a column "label".

    Returns:
        A data set.

    Raises:
        InputError: If the file holds no vectors.
    """
    from surefind.data.dataset import Dataset

    columns = _columns(path)
    name = next((n for n in VECTORS if n in columns), None)
    if name is None and len(columns) == 1:
        name = next(iter(columns))
    if name is None:
        raise InputError(
            f"{path} holds {', '.join(map(repr, columns))} and none is called 'features'. Name the "
            "vectors so, and their labels 'labels'."
        )
    known = _column(columns, LABELS) if labels is None else _read_labels(labels)
    return Dataset(columns[name], known, names=_column(columns, IDS), name=path.stem)


def _columns(path: Path) -> "dict[str, Any]":
    from surefind.data.arrays import read_arrays

    if path.suffix.lower() in (".npy", ".npz"):
        return read_arrays(path)
    return {name: _parquet_column(path, name) for name in _parquet_columns(path)}


def _column(columns: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((columns[n] for n in names if n in columns), None)


def _read_labels(path: Path) -> Any:
    from surefind.data.arrays import read_arrays
    from surefind.data.table import read_table

    if path.suffix.lower() not in (".npy", ".npz"):
        return read_table(path).filled("label")
    arrays = read_arrays(path)
    found = _column(arrays, (*LABELS, "array"))
    if found is None:
        raise InputError(f"{path} holds {', '.join(map(repr, arrays))}; name the labels 'labels'.")
    return found


def _parquet_columns(path: Path) -> list[str]:
    from surefind.data.extras import require

    parquet = require("pyarrow.parquet", "read Parquet files")
    arrow = require("pyarrow", "read Parquet files")
    try:
        return list(parquet.read_schema(path).names)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file: {error}. Write it again.") from error


def _parquet_column(path: Path, name: str) -> "np.ndarray":
    import numpy as np

    from surefind.data.extras import require

    cells = require("pyarrow.parquet", "read Parquet files").read_table(path, columns=[name])
    values = cells.column(0).to_pylist()
    try:
        array = np.array(values)
    except ValueError as error:
        raise InputError(f"{path}: the lists of {name!r} differ in length.") from error
    return array.astype(np.float32) if array.ndim == 2 and array.dtype.kind == "f" else array
