"""What a model takes, and the one way there from a file, an upload, an array or a row of a data set.

    decode → upright, in the model's mode → frame (crop and resize) → float in [0, 1] → normalise

Training, the command line and the service all prepare inputs here. `InputSpec` is determined from the data
that a model is trained on and saved with the model, so that later inputs are prepared as those were.

Images come out as (n, c, h, w), divided by 255 if they were stored with 8 bits; floating-point images keep
their values. Features come out as they are. With an augmentation key, each image gets the random frame of
its key, row and occurrence in the batch (`surefind.data.preprocessing`).

Axes: ``n`` examples, ``c`` channels, ``h`` height, ``w`` width, ``d`` features.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from surefind.checks import check_int
from surefind.data.feature_views import FeatureViews
from surefind.data.images import (
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
from surefind.data.preprocessing import Preprocessing, example_rng
from surefind.errors import InputError

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
