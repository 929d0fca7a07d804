"""What a pretrained network expects of its images, read from the files beside its weights.

The result is a plain dict, in the words of `surefind.data.Preprocessing`:

    resize         length that the shorter side gets
    crop           side of the square cut from the centre, which the network sees
    mean, std      per channel, of values between 0 and 1
    interpolation  "bilinear" or "bicubic"

Publishers write sizes in several ways (a number, an edge, height and width, an edge and the share of it
that the crop keeps); they are brought to this one form. A network that was trained on images squeezed to
a square (SigLIP, large ConvNeXt) gets the centre of undistorted ones. If a size or a statistic is not
written down, or is not square, the answer is None rather than a guess: wrong ones cost accuracy without
an error. Only the interpolation has a default, "bicubic", which is that of all the families of
`surefind.models.towers`.
"""

from collections.abc import Mapping
from typing import Any

BILINEAR = 2
"""The number that Pillow has for it, which is what the files hold."""

UNCROPPED_FROM = 384
"""ConvNeXt's rule: images of this size and above are not cropped."""


def image_format(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Bring a ``preprocessor_config.json`` to the form above.

    Args:
        config: Its content; or that of a ``processor_config.json``, which holds it one level down.

    Returns:
        The dict, or None if something is not written down.
    """
    config = config.get("image_processor", config)
    mean, std = config.get("image_mean"), config.get("image_std")
    if config.get("do_normalize") is False:
        mean, std = [0.0] * 3, [1.0] * 3
    resize, crop = _sizes(config)
    if mean is None or std is None or resize is None or crop is None:
        return None
    return {
        "resize": resize,
        "crop": crop,
        "mean": [float(v) for v in mean],
        "std": [float(v) for v in std],
        "interpolation": "bilinear" if config.get("resample") == BILINEAR else "bicubic",
    }


def _sizes(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Give what to resize the shorter side to, and the side of the crop."""
    edge = _side(config.get("size"))
    share = config.get("crop_pct")
    if edge is not None and share is not None:
        return (edge if edge >= UNCROPPED_FROM else int(edge / share)), edge
    if "crop_size" in config and config.get("do_center_crop", True):
        return edge, _side(config["crop_size"])
    return edge, edge


def _side(size: Any) -> int | None:
    if not isinstance(size, Mapping):
        return None if size is None else int(size)
    if "shortest_edge" in size:
        return int(size["shortest_edge"])
    height, width = size.get("height"), size.get("width")
    return int(height) if height is not None and height == width else None
