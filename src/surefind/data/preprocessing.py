"""What happens to an image between its file and the network.

For evaluation: resize the shorter side, cut the centre, subtract the mean and divide by the standard
deviation of each channel. For training: a random part of the area with a random aspect ratio is
resized to the crop's size, and mirrored in one case of two. torchvision is not needed.

A random frame depends on the seed, the epoch and the example's row alone, through a generator of its
own, so that neither the number of workers nor the order of reading changes it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.checks import check_choice, check_int
from surefind.data.images import INTERPOLATIONS, Frame
from surefind.errors import InputError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ATTEMPTS = 10
"""Draws of a random crop that fits, before the largest centred one is taken instead."""


@dataclass(frozen=True)
class Preprocessing:
    """How images are cut, resized and normalised; a value that is saved with the model.

    Attributes:
        resize: Length that the shorter side gets; None leaves the size.
        crop: Side of the square cut from the centre; None keeps everything.
        mean: Mean of each channel, subtracted; None leaves values in [0, 1].
        std: Standard deviation of each channel; given with the mean.
        random_area: Smallest and largest share of the area that a training crop covers; None cuts
            the centre in training too. Needs ``crop``.
        random_ratio: Smallest and largest width over height of a training crop.
        flip: Whether training images are mirrored at random.
        interpolation: ``"bilinear"`` or ``"bicubic"``, with antialiasing.

    Raises:
        InputError: If the settings contradict each other.
    """

    resize: int | None = None
    crop: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    random_area: tuple[float, float] | None = None
    random_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = False
    interpolation: str = "bilinear"

    def __post_init__(self) -> None:
        check_choice("interpolation", self.interpolation, INTERPOLATIONS)
        for name in ("resize", "crop"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), least=1)
        if self.resize is not None and self.crop is not None and self.crop > self.resize:
            raise InputError(f"crop ({self.crop}) must not be larger than resize ({self.resize}).")
        _check_statistics(self.mean, self.std)
        if self.random_area is not None:
            if self.crop is None:
                raise InputError("random_area needs crop: the size that the random part gets.")
            _check_range("random_area", self.random_area, 1.0)
        _check_range("random_ratio", self.random_ratio, math.inf)

    def frame(self, width: int, height: int) -> Frame:
        """Choose the frame for evaluation, the same for every image of a size."""
        scale = self.resize / min(width, height) if self.resize is not None else 1.0
        if self.crop is None:
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
            return Frame((0.0, 0.0, 1.0, 1.0), size, interpolation=self.interpolation)
        # Multiplied first, or the side of a crop as large as the resized image may round to more than it.
        side = self.crop if self.resize is None else self.crop * min(width, height) / self.resize
        if side > min(width, height):
            raise InputError(
                f"crop ({self.crop}) is larger than the image ({width} × {height}); "
                "set resize to enlarge small images."
            )
        box = _centred(side / width, side / height)
        return Frame(box, (self.crop, self.crop), interpolation=self.interpolation)

    def random_frame(self, width: int, height: int, rng: np.random.Generator) -> Frame:
        """Choose a frame for training; ``rng`` is the example's own, from `example_rng`."""
        flip = self.flip and bool(rng.random() < 0.5)
        if self.random_area is None or self.crop is None:
            plain = self.frame(width, height)
            return Frame(plain.box, plain.size, flip, self.interpolation)
        box = self._random_box(width, height, rng)
        return Frame(box, (self.crop, self.crop), flip, self.interpolation)

    def normalise(self, images: Tensor) -> Tensor:
        """Subtract the mean and divide by the standard deviation.

        Policy: images of one channel are repeated when the statistics have more.

        Args:
            images: Images (n, c, h, w) in the range [0, 1].

        Returns:
            The normalised images, with as many channels as the statistics.

        Raises:
            InputError: If the numbers of channels do not fit.
        """
        if self.mean is None or self.std is None:
            return images
        if images.shape[1] not in (1, len(self.mean)):
            raise InputError(
                f"mean has {len(self.mean)} channels but the images have {images.shape[1]}; "
                "give one value per channel."
            )
        column = (1, -1, 1, 1)
        mean = torch.tensor(self.mean, dtype=images.dtype, device=images.device).view(column)
        std = torch.tensor(self.std, dtype=images.dtype, device=images.device).view(column)
        return (images - mean).div_(std)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON can hold them."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Preprocessing":
        """Rebuild from what `to_dict` returned; settings left out get their defaults."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(settings) - known):
            raise InputError(
                f"preprocessing has no setting {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(sorted(known))}."
            )
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
        }
        return cls(**values)

    def _random_box(
        self, width: int, height: int, rng: np.random.Generator
    ) -> tuple[float, float, float, float]:
        area = self.random_area or (1.0, 1.0)
        low, high = math.log(self.random_ratio[0]), math.log(self.random_ratio[1])
        for _ in range(ATTEMPTS):
            share, ratio = rng.uniform(*area), math.exp(rng.uniform(low, high))
            # Both in fractions of the image: w h = share, and w width / (h height) = ratio.
            w = math.sqrt(share * ratio * height / width)
            h = share / w
            if w <= 1 and h <= 1:
                left, top = rng.uniform(0, 1 - w), rng.uniform(0, 1 - h)
                return left, top, left + w, top + h
        side = min(width, height)
        return _centred(side / width, side / height)


def example_rng(key: tuple[int, ...], row: int, occurrence: int) -> np.random.Generator:
    """Make an example's own generator from seed (and epoch), row and earlier occurrences in the batch."""
    return np.random.default_rng([*key, row, occurrence])


def _centred(w: float, h: float) -> tuple[float, float, float, float]:
    return (1 - w) / 2, (1 - h) / 2, (1 + w) / 2, (1 + h) / 2


def _check_statistics(mean: tuple[float, ...] | None, std: tuple[float, ...] | None) -> None:
    if (mean is None) != (std is None) or (mean is not None and len(mean) != len(std or ())):
        raise InputError(
            f"mean and std need one value per channel each, or both None; got {mean} and {std}."
        )
    if std is not None and not all(0 < s < math.inf for s in std):
        raise InputError(f"std must be above 0 in every channel; got {std}.")


def _check_range(name: str, value: tuple[float, float], top: float) -> None:
    if len(value) != 2 or not 0 < value[0] <= value[1] <= top or value[1] == math.inf:
        raise InputError(f"{name} must be (low, high) with 0 < low ≤ high ≤ {top}; got {value}.")


IMAGENET = Preprocessing(
    resize=256,
    crop=224,
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    random_area=(0.08, 1.0),
    flip=True,
)
"""What networks trained on ImageNet expect."""
