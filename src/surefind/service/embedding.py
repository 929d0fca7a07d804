"""From uploads to embeddings: each is prepared by itself, all that wait are embedded in one pass.

The model's own `InputSpec` says how: its mode, its size and its preprocessing are those of its training.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch

from surefind.data.batches import like_network
from surefind.data.inputs import InputSpec
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.service.images import check_header, refusing_broken
from surefind.service.wire import RefusedError


@runtime_checkable
class Learner(Protocol):
    """What is needed of `surefind.MetricLearner`."""

    encoder: Any
    input_spec_: InputSpec

    def embed_batch(self, batch: torch.Tensor) -> Embeddings:
        """Embed a batch as the network takes it."""


class ImageEmbedder:
    """A fitted learner for uploads of at most ``max_pixels`` pixels."""

    def __init__(self, learner: Learner, max_pixels: int) -> None:
        self._learner, self._max_pixels = learner, max_pixels

    def read(self, data: bytes) -> np.ndarray:
        """Check an upload and prepare it as the model wants it: float32 (c, h, w)."""
        spec = self._learner.input_spec_
        if spec.mode is None:
            raise RefusedError(422, "the model of this service does not take image files.")
        check_header(data, self._max_pixels)
        with refusing_broken():
            image: np.ndarray = spec.prepare(data, max_pixels=self._max_pixels)[0].numpy()
        return image

    def embed(self, images: list[np.ndarray]) -> Sequence[Embeddings | Exception]:
        """Embed what `read` returned, images of one size in one pass; one embedding or error for each."""
        results: list[Embeddings | Exception] = [RuntimeError()] * len(images)
        for shape in {image.shape for image in images}:
            rows = [i for i, image in enumerate(images) if image.shape == shape]
            for i, one in zip(rows, self._alike([images[i] for i in rows]), strict=True):
                results[i] = one
        return results

    def _alike(self, images: list[np.ndarray]) -> Iterable[Embeddings | Exception]:
        """Embed images of one size; one that the network cannot take does not fail the others."""
        try:
            return self._pass(np.stack(images))
        except (RuntimeError, InputError):
            if len(images) > 1:
                return [one for image in images for one in self._alike([image])]
        _, height, width = images[0].shape
        sentence = f"the network cannot take an image like this, of {width} × {height} pixels."
        return [RefusedError(422, sentence)]

    @torch.no_grad()
    def _pass(self, images: np.ndarray) -> Embeddings:
        batch = like_network(torch.from_numpy(images), self._learner.encoder)
        return self._learner.embed_batch(batch).numpy()
