"""Images from strangers, decoded within bounds.

What a file is decides its content, not its name: PNG, JPEG, WebP, GIF or BMP. Anything else is no image
here; SVG and HTML can hold programs and are never decoded. Width times height is read from the header and
refused before a pixel is decoded. The rest (upright, alpha over white, CMYK, 16 bits, first frame) is done
as for training, by `surefind.data.images`.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

from surefind.data.frame import Frame, Framing
from surefind.data.images import decode_image
from surefind.errors import InputError
from surefind.service.problems import RefusedError

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
THUMBNAIL = 160
"""Longest side of a small picture."""
LOSSLESS = 64
"""Longest side up to which a small picture is kept exactly: in tiny images every pixel counts."""


@contextmanager
def checked_file(data: bytes, max_pixels: int) -> Iterator[Path]:
    """Look at an upload's header, and give it as a file for as long as it is needed.

    Args:
        data: The upload.
        max_pixels: Width times height above which it is refused.

    Yields:
        The path of a file of one of `FORMATS`.
    """
    check_header(data, max_pixels)
    handle, name = tempfile.mkstemp(prefix="surefind-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        yield Path(name)
    finally:
        os.unlink(name)


def check_header(data: bytes, max_pixels: int) -> None:
    """Require an image of a known format that is not too large.

    Args:
        data: The upload.
        max_pixels: Width times height above which it is refused.

    Raises:
        RefusedError: If it is no image, or too large.
    """
    if not data:
        raise RefusedError(422, "the file is empty; send an image.")
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width, height = max_pixels + 1, 1
    except Exception as error:  # decoders of broken files raise whatever their parsing trips over
        raise RefusedError(
            415, f"this is no image of a known format; send {', '.join(FORMATS)}."
        ) from error
    if width * height > max_pixels:
        raise RefusedError(413, f"an image may have {max_pixels:,} pixels at most; shrink it.")


def decode(path: Path, mode: str, max_pixels: int, framing: Framing) -> np.ndarray:
    """Decode a checked file.

    Args:
        path: The file.
        mode: ``"RGB"`` or ``"L"``.
        max_pixels: As for `check_header`.
        framing: Which part to take and of what size.

    Returns:
        Pixels, uint8: (h, w, 3) for RGB, (h, w) for grey.

    Raises:
        RefusedError: If it is truncated or broken.
    """
    try:
        return decode_image(path, mode=mode, max_pixels=max_pixels, framing=framing)
    except InputError as error:
        # The library's sentence names the file, which here is a temporary one.
        raise RefusedError(
            422, "the image cannot be decoded: it is damaged, cut off or of an unusual kind."
        ) from error


def small_picture(path: Path, max_pixels: int) -> bytes:
    """Make a small picture for the page.

    Args:
        path: A checked file.
        max_pixels: As for `check_header`.

    Returns:
        A WebP file.
    """
    pixels = decode(path, "RGB", max_pixels, _fitted)
    out, exact = BytesIO(), max(pixels.shape[:2]) <= LOSSLESS
    Image.fromarray(pixels).save(out, "WEBP", lossless=exact, quality=85)
    return out.getvalue()


def _fitted(width: int, height: int) -> Frame:
    scale = min(1.0, THUMBNAIL / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return Frame((0.0, 0.0, 1.0, 1.0), size)
