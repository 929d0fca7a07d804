"""Images: files that are decoded when they are read, and frames, which say what is cut out of them.

Whatever a file holds, the result is 8-bit RGB or grey, upright:

    EXIF orientation     applied, then forgotten; a broken EXIF block is ignored
    alpha, palette       laid over white
    CMYK                 converted
    16-bit grey          scaled to 8 bits
    animation            its first frame
    floating point       refused: its scale is not known
    more pixels than `max_pixels`, truncated, no image at all: refused, with the file's name

A JPEG that will be shrunk is decoded at a half, a quarter or an eighth of its size where that still
covers the output. `verify_images` decodes everything once, before hours of training.

A frame is the part of an image that becomes the output, and the output's size. Its box is given in
fractions of width and height, so that it means the same for an image and for the same image decoded at
half its size. One frame stands for crop and resize together: the pixels outside are never resized.

Images are resized with antialiasing: 8-bit ones, in files or in memory, by Pillow, which keeps the box
exactly and at its border lets the pixels just outside have their share, as if it had cut after resizing;
floating-point tensors by PyTorch, which rounds the box to pixels and cuts first.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.checks import check_choice, check_int, require
from surefind.errors import InputError

INTERPOLATIONS = ("bilinear", "bicubic")
DECODER_SCALES = (8, 4, 2, 1)
"""The factors by which a JPEG decoder can shrink while it decodes."""


@dataclass(frozen=True)
class Frame:
    """A part of an image and the size that it gets.

    Attributes:
        box: Left, top, right, bottom, in fractions of the width and the height.
        size: Width and height of the output in pixels.
        flip: Whether the output is mirrored left to right.
        interpolation: ``"bilinear"`` or ``"bicubic"``.
    """

    box: tuple[float, float, float, float]
    size: tuple[int, int]
    flip: bool = False
    interpolation: str = "bilinear"


Framing = Callable[[int, int], Frame]
"""Chooses the frame when an image's width and height are known."""


def full_frame(width: int, height: int) -> Frame:
    """Frame an image as it is, or, for another size, the whole image resized to it."""
    return Frame((0.0, 0.0, 1.0, 1.0), (width, height))


def decoder_scale(frame: Frame, width: int, height: int) -> int:
    """Return the largest factor by which a decoder may shrink an image whose box must cover the output."""
    left, top, right, bottom = frame.box
    room = min((right - left) * width / frame.size[0], (bottom - top) * height / frame.size[1])
    return next((s for s in DECODER_SCALES if s <= room), 1)


def frame_image(image: Any, frame: Frame) -> Any:
    """Cut and resize a Pillow image of mode RGB or L."""
    pil = require("PIL.Image", "resize images")
    left, top, right, bottom = frame.box
    box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
    if box != (0, 0, *image.size) or frame.size != image.size:
        image = image.resize(frame.size, pil.Resampling[frame.interpolation.upper()], box=box)
    return image.transpose(pil.Transpose.FLIP_LEFT_RIGHT) if frame.flip else image


def frame_tensor(images: Tensor, frame: Frame) -> Tensor:
    """Cut and resize a batch of images.

    Args:
        images: Images (n, c, h, w): 8 bits, which are resized as those of files are, or floating-point
            numbers in the range [0, 1].
        frame: What to cut and its size, the same for all.

    Returns:
        Images (n, c, height, width) of the frame's size.
    """
    if images.dtype == torch.uint8:
        return _frame_pixels(images, frame)
    x0, x1 = _pixels(frame.box[0], frame.box[2], images.shape[3])
    y0, y1 = _pixels(frame.box[1], frame.box[3], images.shape[2])
    out = images[:, :, y0:y1, x0:x1]
    width, height = frame.size
    if out.shape[2:] != (height, width):
        out = torch.nn.functional.interpolate(
            out, (height, width), mode=frame.interpolation, align_corners=False, antialias=True
        )
        if frame.interpolation == "bicubic":  # the one that overshoots
            out = out.clamp(0, 1)
    return out.flip(3) if frame.flip else out


def _frame_pixels(images: Tensor, frame: Frame) -> Tensor:
    n, c, h, w = images.shape
    upright = replace(frame, flip=False)
    if upright != replace(full_frame(w, h), interpolation=frame.interpolation):
        pil = require("PIL.Image", "resize images")
        # Channel by channel, which is how Pillow resizes an image of several.
        planes = images.cpu().reshape(n * c, h, w).numpy()
        framed = [np.asarray(frame_image(pil.fromarray(plane), upright)) for plane in planes]
        images = torch.from_numpy(np.stack(framed)).view(n, c, *framed[0].shape).to(images.device)
    return images.flip(3) if frame.flip else images


def _pixels(low: float, high: float, n: int) -> tuple[int, int]:
    # At least one pixel, also for a sliver of a box; and as many pixels wherever the box lies.
    count = min(max(round((high - low) * n), 1), n)
    start = min(max(round(low * n), 0), n - count)
    return start, start + count


def row_numbers(index: Any, n: int) -> np.ndarray:
    """Resolve an index into ``n`` rows.

    Args:
        index: Slice, integer (which keeps the axis), integers (negative ones count from the end) or boolean
            mask.
        n: Number of rows.

    Returns:
        The row numbers, int64, each in 0 … n - 1.

    Raises:
        InputError: If it is no index, or points outside.
    """
    if isinstance(index, slice):
        return np.arange(*index.indices(n), dtype=np.int64)
    if isinstance(index, Tensor):
        index = index.detach().cpu().numpy()
    rows = np.atleast_1d(np.asarray(index))
    if rows.size == 0:
        return np.zeros(0, dtype=np.int64)
    try:
        found = np.broadcast_to(0, n)[rows]  # which takes no memory
    except IndexError as error:
        raise InputError(
            f"rows must be integers from {-n} to {n - 1}, a slice, or a boolean mask of {n}: {error}."
        ) from error
    if found.ndim > 1:
        raise InputError(f"rows must have one axis; got an index of shape {rows.shape}.")
    if rows.dtype.kind == "b":
        return np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    return np.where(rows < 0, rows + n, rows)


MAX_PIXELS = 89_478_485
"""The size from which Pillow itself warns of a decompression bomb."""
MODES = ("RGB", "L")
ON_BAD = ("refuse", "skip")
ORIENTATION_TAG = 0x0112
UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""What turns an image of each EXIF orientation upright; from 5 on, width and height swap."""
NAMED = 5
"""How many files a message names before it counts the rest."""


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Files that are decoded when they are read.

    Attributes:
        paths: One path per image; kept as a tuple of strings.
        mode: ``"RGB"`` or ``"L"`` (grey).
        max_pixels: Width times height above which a file is refused before it is decoded. Pillow
            has a limit of its own, about 179 million, that holds in any case.

    Raises:
        InputError: If a setting cannot be used.
    """

    paths: Any
    mode: str = "RGB"
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        if isinstance(self.paths, str | os.PathLike):
            raise InputError(f"paths must be a sequence of paths; got the one path {self.paths}.")
        object.__setattr__(self, "paths", tuple(os.fspath(p) for p in self.paths))
        check_choice("mode", self.mode, MODES)
        check_int("max_pixels", self.max_pixels, least=1)

    def __len__(self) -> int:
        return len(self.paths)

    def fingerprint(self) -> str:
        """Return a short digest of the files' names and sizes."""
        total = hashlib.sha256()
        for path in self.paths:
            size = os.path.getsize(path) if os.path.exists(path) else -1
            total.update(f"{os.path.basename(path)} {size}\n".encode())
        return total.hexdigest()[:16]

    def __getitem__(self, index: Any) -> "ImageFiles":
        rows = row_numbers(index, len(self))
        return ImageFiles([self.paths[i] for i in rows], self.mode, self.max_pixels)

    def __iter__(self) -> Iterator["ImageFiles"]:
        return (self[i] for i in range(len(self)))

    def decode(self, row: int, framing: Framing = full_frame) -> np.ndarray:
        """Decode one image, as `decode_image` does."""
        return decode_image(
            self.paths[row], mode=self.mode, max_pixels=self.max_pixels, framing=framing
        )


Encoded = str | os.PathLike[str] | bytes
"""An image file: its path, or what it holds."""


def decode_image(
    source: Encoded,
    *,
    mode: str = "RGB",
    max_pixels: int = MAX_PIXELS,
    framing: Framing = full_frame,
) -> np.ndarray:
    """Decode an image file.

    Args:
        source: The file's path, or its bytes.
        mode: ``"RGB"`` or ``"L"`` (grey).
        max_pixels: Width times height above which it is refused.
        framing: Which part to take and of what size, chosen from width and height.

    Returns:
        Pixels, uint8: (h, w, 3) for RGB, (h, w) for grey.

    Raises:
        InputError: If the file is no image that can be decoded.
    """
    pil = require("PIL.Image", "read images")
    name = "the image" if isinstance(source, bytes) else os.fspath(source)
    try:
        with pil.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.width * image.height > max_pixels:
                raise InputError(
                    f"{name} has {image.width} × {image.height} pixels, more than max_pixels = "
                    f"{max_pixels}.",
                    field="max_pixels",
                    hint="Shrink the file, or raise max_pixels if you trust it.",
                )
            return np.array(_framed(pil, image, name, mode, framing))
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{name} does not exist. Restore the file or drop its row.") from error
    except Exception as error:  # decoders of broken files raise whatever their parsing trips over
        unknown = isinstance(error, pil.UnidentifiedImageError)
        reason = "not an image of a known format" if unknown else str(error) or repr(error)
        raise InputError(
            f"{name} cannot be decoded: {reason}. Replace the file or drop its row.",
            field="path",
            hint="on_bad 'skip' leaves it out.",
        ) from error


def verify_images(files: ImageFiles, *, on_bad: str = "refuse", workers: int = 2) -> dict[int, str]:
    """Decode every file once, to find those that cannot be used.

    Args:
        files: The files.
        on_bad: ``"refuse"`` raises an error that names the bad files; ``"skip"`` leaves them out.
        workers: Threads that decode.

    Returns:
        Why a file cannot be used, by its row.

    Raises:
        InputError: If files are bad and ``on_bad`` is ``"refuse"``.
    """
    check_choice("on_bad", on_bad, ON_BAD)
    check_int("workers", workers, least=1)

    def reason(row: int) -> str:
        try:
            files.decode(row, _thumbnail)
        except InputError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(workers) as pool:
        reasons = list(pool.map(reason, range(len(files))))
    bad = {row: why for row, why in enumerate(reasons) if why}
    if bad and on_bad == "refuse":
        more = f"\n… and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
        named = "\n".join([*bad.values()][:NAMED])
        raise InputError(
            f"{len(bad)} of {len(files)} image files cannot be used:\n{named}{more}",
            field="on_bad",
            hint="\nTo leave them out, set on_bad to 'skip'.",
        )
    return bad


def check_exist(paths: Sequence[str | Path], listed_in: str | Path) -> None:
    """Require that listed files exist; ``listed_in`` is what lists them, for the message."""
    missing = [p for p in paths if not os.path.isfile(p)]
    if missing:
        more = f" … and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        raise InputError(
            f"{len(missing)} of {len(paths)} files that {listed_in} lists are missing: "
            f"{', '.join(map(str, missing[:NAMED]))}{more}. Copy them, or drop their rows."
        )


def _thumbnail(width: int, height: int) -> Frame:
    # The entropy decoder still reads every byte, so a truncated file is found at an eighth's cost.
    return Frame((0.0, 0.0, 1.0, 1.0), (max(1, width // 8), max(1, height // 8)))


def _framed(pil: Any, image: Any, name: str, mode: str, framing: Framing) -> Any:
    if image.format != "JPEG":
        image.load()
    orientation = _orientation(image)
    width, height = image.size[::-1] if orientation >= 5 else image.size
    frame = framing(width, height)
    if image.format == "JPEG" and (scale := decoder_scale(frame, width, height)) > 1:
        image.draft(None, (max(1, image.width // scale), max(1, image.height // scale)))
    image = _to_mode(pil, image, name, mode)
    if orientation in UPRIGHT:
        image = image.transpose(pil.Transpose[UPRIGHT[orientation]])
    return frame_image(image, frame)


def _orientation(image: Any) -> int:
    try:
        return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # a broken EXIF block says nothing about the pixels
        return 1


def _to_mode(pil: Any, image: Any, name: str, mode: str) -> Any:
    if image.mode == mode:
        return image
    if image.mode == "F":
        raise InputError(
            f"{name} holds floating-point pixels, whose scale is not known. "
            "Export it with 8 bits per channel."
        )
    if image.mode.startswith("I"):
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        image = pil.fromarray(((grey + 128) // 257).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = pil.alpha_composite(pil.new("RGBA", image.size, "white"), image)
    return image.convert(mode)
