"""From rows of inputs to a float32 batch.

Images come out as (n, c, h, w): divided by 255 if they were stored as uint8, and preprocessed if that
is asked. Features come out as they are. With an augmentation key, each image gets the random frame
of its key, row and occurrence in the batch (`surefind.data.preprocessing`).
"""

from collections import Counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.data.frame import Frame, Framing, frame_tensor, whole
from surefind.data.images import ImageFiles
from surefind.data.preprocessing import Preprocessing, example_rng
from surefind.errors import InputError
from surefind.validation import check_whole


def read_inputs(
    inputs: Any,
    rows: np.ndarray,
    preprocessing: Preprocessing | None,
    augment_seed: int | tuple[int, ...] | None,
) -> Tensor:
    """Read rows of a data set's inputs.

    Args:
        inputs: Tensor, array or `ImageFiles`, checked by `Dataset`.
        rows: Row numbers, int64.
        preprocessing: What to do with images.
        augment_seed: The seed, or seed and epoch, of random frames; None for evaluation.

    Returns:
        A float32 batch.

    Raises:
        InputError: If the request does not fit the inputs.
    """
    if augment_seed is not None and preprocessing is None:
        raise InputError("augment_seed needs preprocessing, which says how to augment.")
    if not isinstance(inputs, ImageFiles):
        batch = _stored(inputs, rows)
        if batch.ndim == 2:
            if preprocessing is not None:
                raise InputError("preprocessing is for images, and these inputs are features.")
            return batch
    framings = _framings(rows, preprocessing, augment_seed)
    if isinstance(inputs, ImageFiles):
        images = _decoded(inputs, rows, framings)
    else:
        images = batch if preprocessing is None else _reframed(batch, framings)
    return images if preprocessing is None else preprocessing.normalise(images)


def _stored(inputs: Any, rows: np.ndarray) -> Tensor:
    if isinstance(inputs, Tensor):
        batch = inputs[torch.from_numpy(rows).to(inputs.device)]
    else:
        batch = torch.from_numpy(np.ascontiguousarray(inputs[rows]))
    batch = batch.float().div_(255) if batch.dtype == torch.uint8 else batch.float()
    return batch.unsqueeze(1) if batch.ndim == 3 else batch


def _reframed(batch: Tensor, framings: list[Framing]) -> Tensor:
    # All images have one size, so that many share a frame (all of them in evaluation).
    members: dict[Frame, list[int]] = {}
    for i, framing in enumerate(framings):
        members.setdefault(framing(batch.shape[3], batch.shape[2]), []).append(i)
    if not members:
        return batch
    width, height = next(iter(members)).size
    out = batch.new_empty(*batch.shape[:2], height, width)
    for frame, chosen in members.items():
        out[chosen] = frame_tensor(batch[chosen], frame)
    return out


def _decoded(files: ImageFiles, rows: np.ndarray, framings: list[Framing]) -> Tensor:
    images = [files.decode(int(row), f) for row, f in zip(rows, framings, strict=True)]
    if not images:
        return torch.zeros(0, 3 if files.mode == "RGB" else 1, 1, 1)
    for row, image in zip(rows, images, strict=True):
        if image.shape != images[0].shape:
            raise InputError(
                f"images of one batch must have one size: {files.paths[rows[0]]} gives "
                f"{images[0].shape[:2]} and {files.paths[row]} gives {image.shape[:2]} "
                "(height, width). Set resize and crop in Preprocessing."
            )
    batch = torch.from_numpy(np.stack(images))
    batch = batch.unsqueeze(1) if batch.ndim == 3 else batch.permute(0, 3, 1, 2)
    return batch.to(torch.float32, memory_format=torch.contiguous_format).div_(255)


def _framings(
    rows: np.ndarray,
    preprocessing: Preprocessing | None,
    augment_seed: int | tuple[int, ...] | None,
) -> list[Framing]:
    if preprocessing is None:
        return [whole] * len(rows)
    if augment_seed is None:
        return [preprocessing.frame] * len(rows)
    key = augment_seed if isinstance(augment_seed, tuple) else (augment_seed,)
    for number in key:
        check_whole("augment_seed", number, least=0)
    seen: Counter[int] = Counter()
    framings = []
    for row in rows.tolist():
        # A repeated example must not meet its exact copy: the pair would teach nothing.
        framings.append(_random_framing(preprocessing, example_rng(key, row, seen[row])))
        seen[row] += 1
    return framings


def _random_framing(preprocessing: Preprocessing, rng: np.random.Generator) -> Framing:
    return lambda width, height: preprocessing.random_frame(width, height, rng)
