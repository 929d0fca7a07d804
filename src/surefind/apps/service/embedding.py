"""From uploads to embeddings: each is decoded by itself, all that wait are embedded in one pass.

A network with preprocessing says how images are cut and resized. One without takes a fixed size, which is
found by trying (`native_side`), and everything is resized to that; or it takes any size, and images are
embedded as they are, those of one size together.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn

from surefind.apps.service.images import decode
from surefind.data.images import Frame, whole
from surefind.embeddings import Embeddings
from surefind.errors import InputError, RefusedError
from surefind.learning.inference import like_network

SIDES = (8, 16, 28, 32, 48, 64, 96, 128, 160, 192, 224, 256, 384)
"""Sides that networks for small images are commonly made for."""
UNFIT = (RuntimeError, InputError)
"""What PyTorch and an encoder raise for a size that a layer cannot take."""


@runtime_checkable
class Learner(Protocol):
    """What is needed of `surefind.MetricLearner`."""

    encoder: Any
    preprocessing: Any

    @property
    def fitted(self) -> Any:
        """Has ``embed``, from a batch to `Embeddings`."""


class ImageEmbedder:
    """A learner for uploads.

    Args:
        learner: It is fitted.
        max_pixels: Largest image.
    """

    def __init__(self, learner: Learner, max_pixels: int) -> None:
        self._learner, self._max_pixels = learner, max_pixels
        self._channels = channels(learner.encoder)
        self._side = None
        if learner.preprocessing is None:
            self._side = native_side(learner.encoder, self._channels)

    def read(self, path: Path) -> np.ndarray:
        """Decode an upload as the network wants it.

        Args:
            path: A checked file.

        Returns:
            Pixels, uint8 (c, h, w).
        """
        mode = "L" if self._channels == 1 else "RGB"
        pixels = decode(path, mode, self._max_pixels, self._frame)
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)

    def embed(self, images: list[np.ndarray]) -> Sequence[Embeddings | Exception]:
        """Embed images together, those of one size in one pass.

        Args:
            images: What `read` gave.

        Returns:
            One embedding, or the error, for each.
        """
        results: list[Embeddings | Exception] = [RuntimeError()] * len(images)
        for shape in {image.shape for image in images}:
            rows = [i for i, image in enumerate(images) if image.shape == shape]
            try:
                found = self._pass(np.stack([images[i] for i in rows]))
            except UNFIT:
                refused = RefusedError(
                    422, f"the network cannot take an image of {shape[2]} × {shape[1]} pixels."
                )
                for i in rows:
                    results[i] = refused
            else:
                for i, one in zip(rows, found, strict=True):
                    results[i] = one
        return results

    def _frame(self, width: int, height: int) -> Frame:
        if self._learner.preprocessing is not None:
            frame: Frame = self._learner.preprocessing.frame(width, height)
            return frame
        if self._side is None:
            return whole(width, height)
        return Frame((0.0, 0.0, 1.0, 1.0), (self._side, self._side))

    @torch.no_grad()
    def _pass(self, pixels: np.ndarray) -> Embeddings:
        batch = torch.from_numpy(pixels).float().div_(255)
        if self._learner.preprocessing is not None:
            batch = self._learner.preprocessing.normalise(batch)
        found: Embeddings = self._learner.fitted.embed(like_network(batch, self._learner.encoder))
        return found.numpy()


def channels(encoder: nn.Module) -> int:
    """Give the channels that a network takes: 1 if its first convolution has one, or else 3."""
    first = next((m for m in encoder.modules() if isinstance(m, nn.Conv2d)), None)
    return 1 if first is not None and first.in_channels == 1 else 3


def native_side(encoder: nn.Module, n_channels: int) -> int | None:
    """Find the one square size that a network takes.

    Args:
        encoder: The network.
        n_channels: Of its images.

    Returns:
        The side; None if it takes several of `SIDES`, or none.
    """
    training = encoder.training
    try:
        encoder.eval()
        taken = [side for side in SIDES if _takes(encoder, n_channels, side)]
    finally:
        encoder.train(training)
    return taken[0] if len(taken) == 1 else None


@torch.no_grad()
def _takes(encoder: nn.Module, n_channels: int, side: int) -> bool:
    try:
        encoder(like_network(torch.zeros(1, n_channels, side, side), encoder))
    except UNFIT:
        return False
    return True
