"""A network that predicts variances, and embeddings that are Gaussians: what PFE and HIB share.

The module is linear, batch norm, ReLU, linear, batch norm (Shi and Jain 2019); its last batch norm has one
scale and one shift for all dimensions, so that they are comparable, and starts small: log σ² = 1e-4 x - 7.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from surefind.embeddings import Embeddings
from surefind.learning.methods.contract import Sampler, prefixed, unprefixed
from surefind.learning.methods.deterministic import frozen, restored_copy
from surefind.learning.seeds import seeded
from surefind.models.checkpoint import load_state
from surefind.models.encoder import Encoder
from surefind.models.initialization import initialize, untouched_rng
from surefind.posterior.head import normal
from surefind.posterior.sphere import gaussian_embeddings, unit

LEAST_LOG, MOST_LOG = -20.0, 10.0


class VarianceNet(nn.Module):
    """Features to the logarithms of variances.

    Args:
        features: Number of features.
        outputs: Dimension of the embedding.
        generator: Draws the weights.
        shift: Where the last shift starts: the logarithm of the first variances.
    """

    def __init__(
        self, features: int, outputs: int, *, generator: torch.Generator, shift: float = -7.0
    ) -> None:
        super().__init__()
        hidden = max(outputs, 128)
        with untouched_rng():
            self.layers: nn.Sequential = nn.Sequential(
                nn.Linear(features, hidden),
                nn.BatchNorm1d(hidden),
                nn.ReLU(),
                nn.Linear(hidden, outputs),
                nn.BatchNorm1d(outputs, affine=False),
            )
        initialize(self.layers, generator)
        self.scale: nn.Parameter = nn.Parameter(torch.tensor(1e-4))
        self.shift: nn.Parameter = nn.Parameter(torch.tensor(shift))

    @classmethod
    def for_encoder(
        cls, encoder: Encoder, generator: torch.Generator, **options: float
    ) -> "VarianceNet":
        """Draw a net from an encoder's features to its outputs, in its dtype."""
        width = encoder.head_weights().shape[1]
        net = cls(width, encoder.embedding_dim, generator=generator, **options)
        return net.to(encoder.head.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Compute log σ² (n, z), held where its exponential is a number."""
        value: Tensor = self.scale * self.layers(features) + self.shift
        return value.clamp(LEAST_LOG, MOST_LOG)


@dataclass(frozen=True, eq=False)
class GaussianEmbedder:
    """An encoder and a variance net: each output is a Gaussian, projected onto the sphere.

    Attributes:
        encoder: In evaluation mode.
        variance: In evaluation mode.
        unit_mean: Whether the Gaussian's mean is the embedding on the sphere, or the output before it.
    """

    encoder: Encoder
    variance: VarianceNet
    unit_mean: bool
    runs_network_once: ClassVar[bool] = True

    @property
    def network(self) -> Encoder:
        """The encoder."""
        return self.encoder

    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch: direction and κ of the projected Gaussian, without sampling."""
        return gaussian_embeddings(*self._moments(inputs))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that draws from the projected Gaussians.

        There is no sampled network in this model: inputs are independent whatever ``joint`` says.
        """

        def draw(inputs: Tensor) -> Tensor:
            mean, variance = self._moments(inputs)
            return unit(mean + variance.sqrt() * normal((n_samples, *mean.shape), mean, generator))

        return draw

    def tensors(self) -> dict[str, Tensor]:
        """Return both networks' states."""
        variance = prefixed("variance", self.variance.state_dict())
        return prefixed("encoder", self.encoder.state_dict()) | variance

    @classmethod
    def restored(
        cls, encoder: Encoder, tensors: dict[str, Tensor], *, unit_mean: bool
    ) -> "GaussianEmbedder":
        """Put encoder and variances together again from their tensors."""
        copied = restored_copy(encoder, tensors)
        net = VarianceNet.for_encoder(copied, seeded(0))
        load_state(net, unprefixed("variance", tensors))
        return cls(copied, frozen(net), unit_mean)

    @torch.no_grad()
    def _moments(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder.features(inputs)
        outputs = self.encoder.outputs_of(features)
        if self.unit_mean:
            outputs = unit(outputs)
        return outputs, self.variance(features).exp()
