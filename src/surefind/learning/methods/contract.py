"""What a method is, and what comes out of it.

A `Method` is a frozen value of options. Its `fit` trains a *copy* of the caller's encoder in one or
more stages of a run and returns an `Embedder`: the fitted thing, which embeds, draws joint or
marginal samples, and can be written as tensors and put together again by `restore`.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.learning.session import TrainingSession
from surefind.models.encoder import Encoder

Sampler = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to unit samples (s, n, z)."""


@runtime_checkable
class Embedder(Protocol):
    """A fitted method. It is in evaluation mode and does not change."""

    @property
    def runs_network_once(self) -> bool:
        """Whether `embed` passes its inputs through `network` once, as it is."""
        ...

    @property
    def network(self) -> Encoder:
        """The encoder, or the first of several: whose stages are watched for novelty."""
        ...

    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch of inputs."""
        ...

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that draws samples of a batch.

        With ``joint``, the same sampled networks embed every batch that the function is called with.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return all that it consists of, by name."""
        ...


@runtime_checkable
class Method(Protocol):
    """How to learn an encoder and its uncertainty."""

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> Embedder:
        """Learn; the caller's encoder stays as it is."""
        ...

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> Embedder:
        """Put together what `Embedder.tensors` returned, on an encoder of the same architecture."""
        ...


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Put a prefix before each name."""
    return {f"{prefix}.{name}": value for name, value in tensors.items()}


def unprefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, without it."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
