"""A frozen backbone under a posterior of its head: what both Laplace methods end in."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surefind.embeddings import Embeddings
from surefind.learning.methods.contract import Sampler, prefixed
from surefind.learning.methods.deterministic import restored_copy
from surefind.models.encoder import Encoder, plain_features
from surefind.posterior.diagonal import HeadPosterior
from surefind.posterior.projection import gaussian_embeddings


@dataclass(frozen=True, eq=False)
class HeadEmbedder:
    """An encoder with a posterior over the weights of its head.

    Attributes:
        encoder: In evaluation mode; its head is the posterior's mean.
        posterior: Over the head's weights, the bias in the last column.
    """

    encoder: Encoder
    posterior: HeadPosterior

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch, with κ from the posterior, without sampling."""
        head = self.encoder.head
        plain = plain_features(self.encoder.backbone, head, inputs)
        return gaussian_embeddings(head(plain), self.posterior.output_variance(plain))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Give a function that draws embeddings from the posterior.

        Args:
            n_samples: How many of each input.
            joint: One sampled head embeds all inputs of all batches.
            generator: The source of randomness.

        Returns:
            The function.
        """
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))

        @torch.no_grad()
        def draw(inputs: Tensor) -> Tensor:
            # The same heads again for each batch, drawn anew instead of kept: 100 may not fit.
            source = torch.Generator().manual_seed(seed) if joint else generator
            features = self.encoder.features(inputs)
            return self.posterior.sample(features, n_samples, joint=joint, generator=source)

        return draw

    def tensors(self) -> dict[str, Tensor]:
        """Give the encoder's state and the posterior's precision."""
        clipped = torch.tensor(self.posterior.clipped, dtype=torch.float64)
        own = {"precision": self.posterior.precision, "clipped": clipped}
        return prefixed("encoder", self.encoder.state_dict()) | prefixed("posterior", own)


def restore_head_embedder(encoder: Encoder, tensors: dict[str, Tensor]) -> HeadEmbedder:
    """Put a head embedder together again from its tensors."""
    copied = restored_copy(encoder, tensors)
    mean = copied.head_weights()
    precision = tensors["posterior.precision"].to(mean)
    posterior = HeadPosterior(mean, precision, float(tensors["posterior.clipped"]))
    return HeadEmbedder(copied, posterior)
