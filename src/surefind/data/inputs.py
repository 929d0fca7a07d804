"""What happens to an image between its file and the network.

For evaluation: resize the shorter side, cut the centre, subtract the mean and divide by the standard
deviation of each channel. For training: a random part of the area with a random aspect ratio is
resized to the crop's size, and mirrored in one case of two. torchvision is not needed.

A random frame depends on the seed, the epoch and the example's row alone, through a generator of its
own, so that neither the number of workers nor the order of reading changes it.

Features that a frozen network has computed once: an input kind of data sets, beside images and vectors.

Of each example there is the *plain* view, of the image as evaluation sees it, and any number of augmented
ones. Training takes one of the augmented views at random, a fresh one for each epoch and occurrence;
whatever reads without an augmentation seed gets the plain one. Without augmented views both are the same.

Beside the features lie the statistics of the network's stages (`surefind.models.layers`), so that
embedding and novelty need no second pass, and what inputs the network takes. Arrays may be mapped from
files: rows are read when they are asked for, and a selection of rows copies nothing.

Axes: ``v`` views, the plain one first, ``n`` examples, ``m`` statistics of a stage; a feature may be a
vector (d) or a map (c, h, w).

What a model takes, and the one way there from a file, an upload, an array or a row of a data set.

    decode → upright, in the model's mode → frame (crop and resize) → float in [0, 1] → normalise

Training, the command line and the service all prepare inputs here. `InputSpec` is determined from the data
that a model is trained on and saved with the model, so that later inputs are prepared as those were.

Images come out as (n, c, h, w), divided by 255 if they were stored with 8 bits; floating-point images keep
their values. Features come out as they are. With an augmentation key, each image gets the random frame of
its key, row and occurrence in the batch (`surefind.data.inputs`).

Axes: ``n`` examples, ``c`` channels, ``h`` height, ``w`` width, ``d`` features.
"""

import hashlib
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from surefind.checks import check_choice, check_int
from surefind.data.images import (
    INTERPOLATIONS,
    MAX_PIXELS,
    Encoded,
    Frame,
    Framing,
    ImageFiles,
    decode_image,
    frame_tensor,
    full_frame,
    row_numbers,
)
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
    positive = std is None or all(0 < s < math.inf for s in std)
    if (mean is None) != (std is None) or len(mean or ()) != len(std or ()) or not positive:
        raise InputError(
            "mean and std need one value per channel each, those of std above 0, or both None; got "
            f"{mean} and {std}.",
            field="std",
        )


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


@dataclass(frozen=True, eq=False)
class FeatureViews:
    """Features of ``n`` examples under several views.

    Attributes:
        values: All views of all examples that were computed (v, n, …), in any floating-point dtype.
        key: What they were computed from; other features have another one.
        network: What they were computed with; another network has another one.
        spec: What inputs the network takes: a `surefind.data.inputs.InputSpec`.
        layers: Which stages are looked at, of the frozen network and of what is above it.
        statistics: Of the plain view (n, m), by the name of the stage, where that is frozen.
        rows: Which of the examples these are.
    """

    values: np.ndarray = field(repr=False)
    key: str
    network: str
    spec: Any
    layers: Any = None
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    rows: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.values.shape[1] if self.rows is None else len(self.rows)

    def __getitem__(self, index: Any) -> "FeatureViews":
        return replace(self, rows=self._stored_rows(row_numbers(index, len(self))))

    def __iter__(self) -> Iterator["FeatureViews"]:
        return (self[i] for i in range(len(self)))

    def read(self, rows: np.ndarray, augment_key: tuple[int, ...] | None = None) -> Tensor:
        """Read features of some rows, float32: the plain view, or with a key, augmented ones."""
        stored = self._stored_rows(rows)
        views = np.zeros(len(rows), np.int64)
        if augment_key is not None and len(self.values) > 1:
            seen: Counter[int] = Counter()
            for i, row in enumerate(rows.tolist()):
                rng = example_rng(augment_key, row, seen[row])
                views[i] = 1 + rng.integers(len(self.values) - 1)
                seen[row] += 1
        return torch.from_numpy(np.ascontiguousarray(self.values[views, stored])).float()

    def stage(self, name: str, rows: np.ndarray) -> Tensor:
        """Return the statistics (rows, m) of a stage."""
        found = np.ascontiguousarray(self.statistics[name][self._stored_rows(rows)])
        return torch.from_numpy(found)

    def fingerprint(self) -> str:
        """Return what the features, and which of them these are, are recognised by."""
        if self.rows is None:
            return self.key
        return hashlib.sha256(self.key.encode() + self.rows.tobytes()).hexdigest()[:16]

    def _stored_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.rows is None else self.rows[rows]


AugmentSeed = int | tuple[int, ...] | None
UNIT_RANGE = (0.0, 1.0)
"""The values of 8-bit images after scaling."""
TOLERANCE = 1e-3
"""How far rounding, as of an earlier resize, may take floating-point images beyond them."""
BLOCK_ROWS = 4096
"""Rows that are looked at together: a memory-mapped array is never held as a whole."""


@dataclass(frozen=True)
class InputSpec:
    """What a model takes; saved with it.

    Attributes:
        kind: "image" or "vector".
        shape: Of one prepared input: (features,), or (channels, height, width). Height and width are None
            where preprocessing resizes without cropping, so that they follow the image.
        mode: How image files are decoded, ``"RGB"`` or ``"L"`` (grey), as the training images were; None
            for vectors, and for images of other channels, which come as arrays only.
        value_range: Least and greatest value of the training images before normalisation, (0, 1) if they
            had 8 bits; None for vectors.
        preprocessing: How images are cut, resized and normalised, or None.
    """

    kind: Literal["image", "vector"]
    shape: tuple[int | None, ...]
    mode: str | None = None
    value_range: tuple[float, float] | None = None
    preprocessing: Preprocessing | None = None

    @classmethod
    def of(cls, inputs: Any, preprocessing: Preprocessing | None = None) -> "InputSpec":
        """Determine what a model takes from the inputs of the data set that it is trained on.

        Args:
            inputs: Those of a `Dataset`, at least one.
            preprocessing: What training does with images.

        Returns:
            The specification.
        """
        if isinstance(inputs, FeatureViews):
            known: InputSpec = inputs.spec
            return known
        shape: tuple[int | None, ...] = tuple(
            read_inputs(inputs, np.zeros(1, np.int64), preprocessing).shape[1:]
        )
        if len(shape) == 1:
            return cls("vector", shape)
        if preprocessing is not None and preprocessing.resize and not preprocessing.crop:
            shape = (shape[0], None, None)
        if isinstance(inputs, ImageFiles):
            return cls("image", shape, inputs.mode, UNIT_RANGE, preprocessing)
        stored = 1 if inputs.ndim == 3 else inputs.shape[1]
        mode = {1: "L", 3: "RGB"}.get(stored)
        return cls("image", shape, mode, _value_range(inputs), preprocessing)

    def prepare(
        self, source: Any, rows: Any = slice(None), *, max_pixels: int = MAX_PIXELS
    ) -> Tensor:
        """Prepare inputs as they were prepared for training, without augmentation.

        Image files are decoded in the model's mode. Where preprocessing neither resizes nor crops, the size
        is that of the training images, and a file of another size is resized to it, whatever its aspect
        ratio; an array of another shape is refused.

        Args:
            source: An image file's path or its bytes, which give one row; `ImageFiles`; or images or
                features as `Dataset` takes them, as a tensor or an array.
            rows: Slice, integers or boolean mask; everything by default.
            max_pixels: Width times height above which a path or bytes are refused.

        Returns:
            A float32 batch: images (n, c, h, w) or features (n, d).

        Raises:
            InputError: If the source cannot be read, or the model does not take it.
        """
        if isinstance(source, str | os.PathLike | bytes):
            encoded: Sequence[Encoded] | None = [source]
        elif isinstance(source, ImageFiles):
            encoded, max_pixels = source[rows].paths, source.max_pixels
        else:
            encoded = None
        self._check_scale(eight_bits=encoded is not None or _is_uint8(source))
        if encoded is None:
            batch = read_inputs(source, row_numbers(rows, len(source)), self.preprocessing)
        else:
            images = _decoded(encoded, self._file_mode(), max_pixels, [self.frame] * len(encoded))
            batch = _finished(images, self.preprocessing)
        if len(batch) and not self._fits(batch.shape[1:]):
            raise InputError(self._refusal(f"inputs have {describe_shape(batch.shape[1:])}"))
        return batch

    def frame(self, width: int, height: int) -> Frame:
        """Choose the frame of an image file: the preprocessing's, or the size of the training images."""
        wanted = self.preprocessing or Preprocessing()
        if wanted.resize is not None or wanted.crop is not None:
            return wanted.frame(width, height)
        _, rows, columns = self.shape
        return replace(
            full_frame(columns or width, rows or height), interpolation=wanted.interpolation
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the specification as JSON can hold it."""
        plain = asdict(replace(self, preprocessing=None))
        wanted = None if self.preprocessing is None else self.preprocessing.to_dict()
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()} | {
            "preprocessing": wanted
        }

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "InputSpec":
        """Rebuild from what `to_dict` returned."""
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
        }
        if values["preprocessing"] is not None:
            values["preprocessing"] = Preprocessing.from_dict(values["preprocessing"])
        return cls(**values)

    def _file_mode(self) -> str:
        if self.mode is None:
            raise InputError(self._refusal("inputs are image files, of one channel or three"))
        return self.mode

    def _check_scale(self, *, eight_bits: bool) -> None:
        low, high = self.value_range or UNIT_RANGE
        if eight_bits and (low < -TOLERANCE or high > 1 + TOLERANCE):
            raise InputError(
                f"the model was trained on floating-point images with values from {low:g} to {high:g}, and "
                "how 8-bit images should be scaled to those is not known. Give arrays that are scaled so."
            )

    def _fits(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (None, got) for want, got in zip(self.shape, shape, strict=True)
        )

    def _refusal(self, came: str) -> str:
        return (
            f"{came}; the model was trained on {describe_shape(self.shape)}. Bring arrays to that shape; "
            "image files are resized."
        )


def read_inputs(
    inputs: Any,
    rows: np.ndarray,
    preprocessing: Preprocessing | InputSpec | None = None,
    augment_seed: AugmentSeed = None,
) -> Tensor:
    """Read rows of a data set's inputs.

    Args:
        inputs: Tensor, array, `ImageFiles` or `FeatureViews`, checked by `Dataset`.
        rows: Row numbers, int64.
        preprocessing: What to do with images; or what a fitted model takes, which is then required.
        augment_seed: The seed, or seed and epoch, of random frames; None for evaluation.

    Returns:
        A float32 batch.

    Raises:
        InputError: If the request does not fit the inputs.
    """
    if isinstance(inputs, FeatureViews):  # prepared before they were computed
        return inputs.read(rows, None if augment_seed is None else augment_key(augment_seed))
    if isinstance(preprocessing, InputSpec):
        return preprocessing.prepare(inputs, rows)
    if augment_seed is not None and preprocessing is None:
        raise InputError("augment_seed needs preprocessing, which says how to augment.")
    framings = _framings(rows, preprocessing, augment_seed)
    if isinstance(inputs, ImageFiles):
        paths = [inputs.paths[row] for row in rows]
        images = _decoded(paths, inputs.mode, inputs.max_pixels, framings)
        return _finished(images, preprocessing)
    batch = _stored(inputs, rows)
    if batch.ndim == 2:
        if preprocessing is not None:
            raise InputError("preprocessing is for images, and these inputs are features.")
        return batch.float()
    return _finished(batch if preprocessing is None else _reframed(batch, framings), preprocessing)


def _finished(images: Tensor, preprocessing: Preprocessing | None) -> Tensor:
    """Scale 8-bit images to [0, 1] and normalise."""
    scaled = images.float().div_(255) if images.dtype == torch.uint8 else images.float()
    return scaled if preprocessing is None else preprocessing.normalise(scaled)


def _stored(inputs: Any, rows: np.ndarray) -> Tensor:
    if isinstance(inputs, Tensor):
        batch = inputs[torch.from_numpy(rows).to(inputs.device)]
    else:
        batch = torch.from_numpy(np.ascontiguousarray(inputs[rows]))
    return batch.unsqueeze(1) if batch.ndim == 3 else batch


def _reframed(batch: Tensor, framings: list[Framing]) -> Tensor:
    # All images have one size, so that many share a frame (all of them in evaluation).
    members: dict[Frame, list[int]] = {}
    for i, framing in enumerate(framings):
        members.setdefault(framing(batch.shape[3], batch.shape[2]), []).append(i)
    if not members:
        return batch
    batch = batch if batch.dtype == torch.uint8 else batch.float()
    width, height = next(iter(members)).size
    out = batch.new_empty(*batch.shape[:2], height, width)
    for frame, chosen in members.items():
        out[chosen] = frame_tensor(batch[chosen], frame)
    return out


def _decoded(
    encoded: Sequence[Encoded], mode: str, max_pixels: int, framings: Sequence[Framing]
) -> Tensor:
    images = [
        decode_image(source, mode=mode, max_pixels=max_pixels, framing=framing)
        for source, framing in zip(encoded, framings, strict=True)
    ]
    if not images:
        return torch.zeros(0, 3 if mode == "RGB" else 1, 1, 1, dtype=torch.uint8)
    for source, image in zip(encoded, images, strict=True):
        if image.shape != images[0].shape:
            raise InputError(
                f"images of one batch must have one size: {encoded[0]!s} gives "
                f"{images[0].shape[:2]} and {source!s} gives {image.shape[:2]} "
                "(height, width). Set resize and crop in Preprocessing."
            )
    batch = torch.from_numpy(np.stack(images))
    return batch.unsqueeze(1) if batch.ndim == 3 else batch.permute(0, 3, 1, 2).contiguous()


def _framings(
    rows: np.ndarray, preprocessing: Preprocessing | None, augment_seed: AugmentSeed
) -> list[Framing]:
    if preprocessing is None:
        return [full_frame] * len(rows)
    if augment_seed is None:
        return [preprocessing.frame] * len(rows)
    key = augment_key(augment_seed)
    seen: Counter[int] = Counter()
    framings: list[Framing] = []
    for row in rows.tolist():
        # A repeated example must not meet its exact copy: the pair would teach nothing.
        rng = example_rng(key, row, seen[row])
        framings.append(partial(preprocessing.random_frame, rng=rng))
        seen[row] += 1
    return framings


def augment_key(augment_seed: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return the numbers of an augmentation seed, none of them negative."""
    key = augment_seed if isinstance(augment_seed, tuple) else (augment_seed,)
    for number in key:
        check_int("augment_seed", number, least=0)
    return key


def _is_uint8(inputs: Any) -> bool:
    return str(getattr(inputs, "dtype", "")).removeprefix("torch.") == "uint8"


def _value_range(images: Any) -> tuple[float, float]:
    if _is_uint8(images):
        return UNIT_RANGE
    blocks = [images[i : i + BLOCK_ROWS] for i in range(0, len(images), BLOCK_ROWS)]
    return min(float(b.min()) for b in blocks), max(float(b.max()) for b in blocks)


def describe_shape(shape: Sequence[int | None]) -> str:
    """Describe the shape of one input for a message."""
    kind = "images (channels, height, width)" if len(shape) == 3 else "vectors"
    named = ", ".join("any" if length is None else str(length) for length in shape)
    return f"{kind} of shape ({named}{',' if len(shape) == 1 else ''})"
