"""A frame: which part of an image becomes the output, and of what size.

The box is given in fractions of width and height, so that it means the same for an image and for the
same image decoded at half its size. One frame stands for crop and resize together: the pixels
outside the box are never resized.

Both kinds of image are resized with antialiasing. Pillow keeps the box exactly and at its border lets
the pixels just outside have their share, as if it had cut after resizing; tensors round the box to
whole pixels and are cut first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from surefind.data.extras import require

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


def whole(width: int, height: int) -> Frame:
    """Frame an image as it is."""
    return Frame((0.0, 0.0, 1.0, 1.0), (width, height))


def decoder_scale(frame: Frame, width: int, height: int) -> int:
    """Say how much a decoder may shrink an image so that its box still covers the output size.

    Args:
        frame: What is wanted of the image.
        width: The image's width.
        height: The image's height.

    Returns:
        The largest of the decoder's factors after which nothing need be enlarged; 1 if none.
    """
    left, top, right, bottom = frame.box
    room = min((right - left) * width / frame.size[0], (bottom - top) * height / frame.size[1])
    return next((s for s in DECODER_SCALES if s <= room), 1)


def frame_image(image: Any, frame: Frame) -> Any:
    """Cut and resize a Pillow image.

    Args:
        image: The image, of mode RGB or L.
        frame: What to cut and its size.

    Returns:
        A Pillow image of the frame's size.
    """
    pil = require("PIL.Image", "resize images")
    left, top, right, bottom = frame.box
    box = (left * image.width, top * image.height, right * image.width, bottom * image.height)
    if box != (0, 0, *image.size) or frame.size != image.size:
        image = image.resize(frame.size, pil.Resampling[frame.interpolation.upper()], box=box)
    return image.transpose(pil.Transpose.FLIP_LEFT_RIGHT) if frame.flip else image


def frame_tensor(images: Tensor, frame: Frame) -> Tensor:
    """Cut and resize a batch of images in the range [0, 1].

    Args:
        images: Floating-point images (n, c, h, w).
        frame: What to cut and its size, the same for all.

    Returns:
        Images (n, c, height, width) of the frame's size.
    """
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


def _pixels(low: float, high: float, n: int) -> tuple[int, int]:
    # At least one pixel, also for a sliver of a box; and as many pixels wherever the box lies.
    count = min(max(round((high - low) * n), 1), n)
    start = min(max(round(low * n), 0), n - count)
    return start, start + count
