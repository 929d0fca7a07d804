"""Corruptions of increasing strength: does uncertainty rise with them?

Images are float tensors (n, c, h, w) in [0, 1]; a strength lies in [0, 1], where 0 changes nothing.

    blur        a Gaussian of σ = strength · min(h, w) / 8 pixels, cut at 4σ, edges continued
    noise       Gaussian noise of standard deviation strength / 2 on every value, cut to [0, 1]
    occlusion   a grey (½) rectangle of the image's shape over the fraction ``strength`` of its area,
                at a position drawn for each image

The curve of a kind is the median and the quartiles of the uncertainty over the same images at each
strength.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn.functional import conv2d, pad

STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
BLUR_FRACTION = 1 / 8
"""σ of the strongest blur as a fraction of the shorter side."""
BLUR_CUT = 4
NOISE_SD = 0.5
GREY = 0.5


def blur(images: Tensor, strength: float) -> Tensor:
    """Return images (n, c, h, w) blurred."""
    sigma = strength * BLUR_FRACTION * min(images.shape[2:])
    radius = int(BLUR_CUT * sigma + 0.5)
    if radius == 0:
        return images.clone()
    at = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    kernel = torch.exp(-0.5 * (at / sigma) ** 2)
    kernel = kernel / kernel.sum()
    n, c, h, w = images.shape
    flat = images.reshape(n * c, 1, h, w)
    flat = conv2d(pad(flat, (0, 0, radius, radius), mode="replicate"), kernel[None, None, :, None])
    flat = conv2d(pad(flat, (radius, radius, 0, 0), mode="replicate"), kernel[None, None, None, :])
    return flat.reshape(n, c, h, w)


def noise(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Return images (n, c, h, w) with noise, clipped to [0, 1]."""
    drawn = torch.randn(
        images.shape, generator=generator, dtype=images.dtype, device=generator.device
    )
    sd = strength * NOISE_SD
    return (images + sd * drawn.to(images.device)).clamp(0, 1)


def occlude(images: Tensor, strength: float, generator: Generator) -> Tensor:
    """Return images (n, c, h, w) with a rectangle covered, its sides rounded to whole pixels."""
    n, _, h, w = images.shape
    side = strength**0.5
    covered: list[Tensor] = []
    for length in (h, w):
        patch = round(length * side)
        first = torch.randint(
            0, length - patch + 1, (n, 1), generator=generator, device=generator.device
        ).to(images.device)
        at = torch.arange(length, device=images.device)
        covered.append((at >= first) & (at < first + patch))
    mask = covered[0][:, None, :, None] & covered[1][:, None, None, :]
    return images.masked_fill(mask, GREY)


def corruption_curves(
    uncertainty: Callable[[Tensor], np.ndarray],
    images: Tensor,
    generator: Generator,
) -> dict[str, dict[str, list[float]]]:
    """Trace uncertainty against the strength of each corruption.

    Args:
        uncertainty: Returns one number for each image of a batch (n, c, h, w).
        images: In-distribution images in [0, 1]; a few hundred suffice.
        generator: Draws noise and positions.

    Returns:
        For "blur", "noise" and "occlusion": strength, median, low and high (the quartiles).
    """
    kinds: dict[str, Callable[[float], Tensor]] = {
        "blur": lambda s: blur(images, s),
        "noise": lambda s: noise(images, s, generator),
        "occlusion": lambda s: occlude(images, s, generator),
    }
    curves: dict[str, dict[str, list[float]]] = {}
    for kind, corrupt in kinds.items():
        found = [np.asarray(uncertainty(corrupt(s)), dtype=np.float64) for s in STRENGTHS]
        quartiles = np.quantile(np.stack(found), [0.25, 0.5, 0.75], axis=1).tolist()
        curves[kind] = dict(zip(("low", "median", "high"), quartiles, strict=True))
        curves[kind]["strength"] = list(STRENGTHS)
    return curves
