"""Files of arrays: NumPy's, read without unpickling anything; MATLAB's; and sheets of tiles.

A sheet is many small images of one size in one large image, row by row.
"""

from pathlib import Path
from typing import Any

import numpy as np

from surefind.data.images import decode_image
from surefind.dependencies import require
from surefind.errors import InputError


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
