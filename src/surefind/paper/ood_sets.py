"""The out-of-distribution sets of a benchmark: which they are, and in which form they are asked about.

A set is *near* if its inputs are of the kind that the model was trained on, only of other classes (CIFAR100
against CIFAR10), and *far* if they are of another kind; the words are OpenOOD's. The first set of a
protocol is the paper's: it is taken as it is published, and the AUROC of a result is that of this set. The
others are brought to the form of the test images, grey or RGB and of their size, so that it is never the
form that gives them away. Omniglot's ink is bright on dark ground, as `shrunk_ink` says.

*Noise* needs no files: a third of the images are uniform, a third Gaussian around mid-grey, a third smooth
(a few uniform values, interpolated); the same each time.

A set that is not on the disk is left out with a sentence that says how to get it. A result records the
sets that it was measured on.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import Preprocessing
from surefind.errors import InputError
from surefind.learning.seeds import seeded
from surefind.paper.catalogue import find, load
from surefind.paper.vocabulary import NOISE, OodKind

NOISE_IMAGES = 3000
BLOCK = 4096
"""Images that are resized at once."""
GREY = (0.299, 0.587, 0.114)
"""What red, green and blue weigh in grey, as in ITU-R BT.601."""
GAUSSIAN_WIDTH = 0.25
"""Standard deviation of Gaussian noise, where black is 0 and white 1."""
COARSE = 7
"""Pixels of smooth noise from one value to the next."""


class OodSet(NamedTuple):
    """A part of a data set whose inputs should be detected.

    Attributes:
        name: The set, of the catalogue or `NOISE`.
        part: Its part.
        kind: "near" or "far".
    """

    name: str
    part: str
    kind: OodKind = "far"


@dataclass(frozen=True, eq=False)
class LoadedSets:
    """The sets that are there.

    Attributes:
        first: The protocol's first, as it is published; None if it is not there, or there is none.
        more: The others by name, in the form of the test data.
        notes: A sentence for each that is not there.
    """

    first: Dataset | None
    more: Mapping[str, Dataset]
    notes: tuple[str, ...]


def load_ood_sets(
    sets: tuple[OodSet, ...], test: Dataset, data: str | Path | None = None
) -> LoadedSets:
    """Load the out-of-distribution sets that are there.

    Args:
        sets: All of a protocol.
        test: The in-distribution test data; the others take their form.
        data: Folder that holds the data sets.

    Returns:
        The sets, and what to get for the rest.

    Raises:
        InputError: If there is no set of files at all, or one is broken.
    """
    found: dict[str, Dataset] = {}
    missing: dict[str, InputError] = {}
    for name, part, _ in sets:
        if name == NOISE:
            found[name] = noise_like(test)
            continue
        try:
            find(name, data)
        except InputError as error:
            missing[name] = error
            continue
        splits = load(name, data)
        if part not in splits:
            missing[name] = InputError(f"{name} has no part {part!r}, only {', '.join(splits)}.")
            continue
        published = splits[part]
        found[name] = (
            published if name == sets[0].name else like_images(published, test, drawn=name)
        )
    if missing and not set(found) - {NOISE}:
        first_one = missing[sets[0].name]
        raise InputError(first_one.message, field=first_one.field, hint=first_one.hint)
    notes = tuple(f"OOD set {name} is left out: {error}" for name, error in missing.items())
    first = found.pop(sets[0].name, None) if sets else None
    return LoadedSets(first, found, notes)


def like_images(part: Dataset, like: Dataset, *, drawn: str = "") -> Dataset:
    """Bring images to the form of others.

    Args:
        part: Images of any size, grey or RGB.
        like: uint8 images in memory, (n, h, w) or (n, c, h, w).
        drawn: The set's name: Omniglot's drawings are inverted first.

    Returns:
        The same examples as uint8 images of the other form.

    Raises:
        InputError: If the others are not images in memory.
    """
    shape = _image_shape(like)
    if drawn == "omniglot":
        part = shrunk_ink(part)
    side = shape[-1]
    wanted = Preprocessing(resize=side, crop=side) if isinstance(part.inputs, ImageFiles) else None
    blocks = []
    for start in range(0, len(part), BLOCK):
        images = part.read(slice(start, start + BLOCK), preprocessing=wanted)
        blocks.append(_bytes(_coloured(images, shape[0]), shape))
    pixels = torch.cat(blocks)
    inputs = pixels if like.inputs.ndim == 4 else pixels[:, 0]
    return Dataset(inputs, part.labels, names=part.names, classes=part.classes, name=part.name)


def noise_like(like: Dataset, count: int = NOISE_IMAGES) -> Dataset:
    """Draw noise in the form of other images, the same each time.

    Args:
        like: uint8 images in memory, (n, h, w) or (n, c, h, w).
        count: How many; a third of each kind.

    Returns:
        The noise, uint8, without labels.
    """
    channels, height, width = _image_shape(like)
    generator = seeded(0, "noise")
    sizes = [count - 2 * (count // 3), count // 3, count // 3]
    uniform = torch.rand(sizes[0], channels, height, width, generator=generator)
    gaussian = torch.randn(sizes[1], channels, height, width, generator=generator)
    coarse = [max(2, side // COARSE) for side in (height, width)]
    smooth = torch.rand(sizes[2], channels, *coarse, generator=generator)
    images = torch.cat([
        uniform,
        0.5 + GAUSSIAN_WIDTH * gaussian,
        interpolate(smooth, (height, width), mode="bicubic", align_corners=True),
    ])
    pixels = _bytes(images, (channels, height, width))
    return Dataset(pixels if like.inputs.ndim == 4 else pixels[:, 0], name=NOISE)


def shrunk_ink(drawings: Dataset) -> Dataset:
    """Shrink Omniglot's drawings to 28 × 28 by area, and make the ink bright on dark ground.

    Args:
        drawings: uint8, dark ink on white (n, h, w).

    Returns:
        The same examples, uint8 (n, 28, 28).
    """
    shrunk = []
    for block in torch.as_tensor(drawings.inputs).split(4096):  # type: ignore[no-untyped-call]
        small = interpolate(255 - block[:, None].float(), (28, 28), mode="area")
        shrunk.append(small[:, 0].round().to(torch.uint8))
    named = {key: getattr(drawings, key) for key in ("names", "classes", "name")}
    return Dataset(torch.cat(shrunk), drawings.labels, **named)


def _image_shape(like: Dataset) -> tuple[int, int, int]:
    """Return channels, height and width of images in memory."""
    shape = () if isinstance(like.inputs, ImageFiles) else tuple(like.inputs.shape[1:])
    if len(shape) not in (2, 3) or not str(like.inputs.dtype).endswith("uint8"):
        raise InputError(
            f"further OOD sets take the form of uint8 images in memory; {like.name} has none."
        )
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    return channels, height, width


def _coloured(images: Tensor, channels: int) -> Tensor:
    """Turn images (n, c, h, w) grey, or repeat grey in each channel."""
    if images.shape[1] == channels:
        return images
    if channels == 1:
        return (images * images.new_tensor(GREY)[:, None, None]).sum(1, keepdim=True)
    return images.expand(-1, channels, -1, -1)


def _bytes(images: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Resize images in [0, 1] and round them to bytes."""
    if tuple(images.shape[2:]) != shape[1:]:
        images = interpolate(images, shape[1:], mode="bilinear", antialias=True)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
