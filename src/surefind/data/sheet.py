"""Sheets: many small images of one size in one large image, row by row."""

from pathlib import Path

import numpy as np

from surefind.data.images import decode_image
from surefind.errors import InputError


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
