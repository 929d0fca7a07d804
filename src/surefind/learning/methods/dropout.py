"""MC dropout: training with dropout between all trainable layers, and keeping it on (Gal, Ghahramani 2016).

An input's κ comes from its samples, all under the same sampled networks, so that it does not depend
on the company it is embedded in. The networks follow from the run's seed: embedding twice gives the
same answer.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.learning.methods.contract import Sampler, prefixed
from surefind.learning.methods.deterministic import restored_copy, trained_copy
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession
from surefind.models.dropout import (
    dropping,
    joint_samples,
    marginal_samples,
    mask_seeds,
    with_dropout,
)
from surefind.models.encoder import Encoder
from surefind.posterior.sphere import sampled_embeddings


@dataclass(frozen=True, eq=False)
class DropoutEmbedder:
    """An encoder with dropout that stays on.

    Attributes:
        encoder: In evaluation mode, with dropout layers.
        n_samples: Networks that an embedding is made of.
    """

    encoder: Encoder
    n_samples: int
    runs_network_once: ClassVar[bool] = False

    @property
    def network(self) -> Encoder:
        """The encoder, without its dropout."""
        return self.encoder

    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch under the sampled networks."""
        seeds = mask_seeds(self.n_samples, seeded(0, "mc-dropout"))
        return sampled_embeddings(joint_samples(self.encoder, inputs, seeds))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that embeds under fresh masks, the same for all inputs if ``joint``."""
        if not joint:
            return lambda inputs: marginal_samples(self.encoder, inputs, n_samples, generator)
        seeds = mask_seeds(n_samples, generator)
        return lambda inputs: joint_samples(self.encoder, inputs, seeds)

    def tensors(self) -> dict[str, Tensor]:
        """Return the encoder's state."""
        return prefixed("encoder", self.encoder.state_dict())


@dataclass(frozen=True)
class MCDropout:
    """Train with dropout and keep it on.

    Attributes:
        rate: Share of the entries that are dropped.
        n_samples: Networks that an embedding is made of.
    """

    rate: float = 0.2
    n_samples: int = 100

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> DropoutEmbedder:
        """Train a copy of the encoder with dropout."""
        dropped = with_dropout(encoder, self.rate)
        kind = f"dropout {self.rate}"
        trained = trained_copy(dropped, dataset, session, kind=kind, forward=_forward)
        return DropoutEmbedder(trained, self.n_samples)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> DropoutEmbedder:
        """Put the encoder together again, with its dropout layers."""
        dropped = with_dropout(encoder, self.rate)
        return DropoutEmbedder(restored_copy(dropped, tensors), self.n_samples)


def _forward(encoder: Encoder, inputs: Tensor, generator: torch.Generator) -> Tensor:
    with dropping(generator):
        embeddings: Tensor = encoder(inputs)
    return embeddings
