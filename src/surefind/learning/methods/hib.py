"""Hedged instance embeddings (Oh et al. 2018): stochastic embeddings trained end to end.

Each output is a Gaussian N(μ, σ²). K samples of each are drawn and projected onto the sphere, where
retrieval takes place, and a pair matches with probability

    p = mean over K² sample pairs of sigmoid(b - a |z_1 - z_2|),    a > 0 and b learnt.

The soft contrastive loss is -log p for positive and -log(1 - p) for negative pairs, each averaged, and
both weigh half. The information bottleneck *adds* β KL(N(μ, σ²) | N(0, 1)) per example (the authors
of LAM had the sign wrong).
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from surefind.data.dataset import Dataset
from surefind.learning.distributed import average_buffers, gather_rows, shared
from surefind.learning.methods.contract import unprefixed
from surefind.learning.methods.deterministic import frozen, trainable
from surefind.learning.methods.gaussian import GaussianEmbedder, VarianceNet
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession
from surefind.models.checkpoint import load_state
from surefind.models.encoder import Encoder
from surefind.pairs.relations import Relation
from surefind.posterior.head import normal
from surefind.posterior.sphere import unit


@dataclass(frozen=True)
class HIB:
    """Train means and variances together.

    Attributes:
        n_samples: K, samples of each example in training.
        bottleneck: β, weight of the KL divergence.
    """

    n_samples: int = 8
    bottleneck: float = 1e-4

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> GaussianEmbedder:
        """Train a copy of the encoder with its variances, on the method's own loss, not the session's."""
        copied = copy.deepcopy(encoder)
        # Outputs before the sphere have lengths of about one, so their first variances are larger.
        net = VarianceNet.for_encoder(copied, seeded(session.config.seed, "variance"), shift=-4.0)
        task = HedgedTask(copied, net, MatchScale().to(copied.head.weight), self)
        session.stage("encoder", task, dataset, kind=repr(self))
        return GaussianEmbedder(frozen(copied), frozen(net), unit_mean=False)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> GaussianEmbedder:
        """Put encoder and variances together again."""
        return GaussianEmbedder.restored(encoder, tensors, unit_mean=False)


class MatchScale(nn.Module):
    """The sigmoid's slope and offset, a and b; a stays positive as the softplus of what is learnt."""

    def __init__(self) -> None:
        super().__init__()
        self.slope: nn.Parameter = nn.Parameter(torch.tensor(4.0))
        self.offset: nn.Parameter = nn.Parameter(torch.tensor(4.0))

    def forward(self, distance: Tensor) -> Tensor:
        """Compute the logits of a match."""
        return shared(self.offset) - softplus(shared(self.slope)) * distance


@dataclass(eq=False)
class HedgedTask:
    """Encoder, variances and match scale, trained together.

    Attributes:
        encoder: Changed in place.
        net: Changed in place.
        match: Changed in place.
        options: The method's.
    """

    encoder: Encoder
    net: VarianceNet
    match: MatchScale
    options: HIB

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of encoder, variances and match scale."""
        return trainable(self.encoder, self.net, self.match)

    def loss(self, inputs: Tensor, relation: Relation, generator: torch.Generator) -> Tensor:
        """Compute the soft contrastive loss of a batch, plus the bottleneck."""
        self.encoder.train()
        self.net.train()
        features, n = self.encoder.features(inputs), len(relation)
        mean = gather_rows(self.encoder.outputs_of(features), n)
        log_variance = gather_rows(self.net(features), n)
        noise = normal((self.options.n_samples, *mean.shape), mean, generator)
        samples = unit(mean + (log_variance / 2).exp() * noise)
        positive, negative = relation.block(slice(0, n), slice(0, n))
        match = soft_contrastive_loss(samples, positive, negative, self.match)
        divergence = (mean**2 + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        return match + self.options.bottleneck * divergence

    def after_step(self) -> None:
        """Do nothing more."""

    def after_epoch(self) -> None:
        """Average the batch statistics over processes."""
        average_buffers(self.encoder)
        average_buffers(self.net)

    def tensors(self) -> dict[str, Tensor]:
        """Return the states of encoder, variances and match scale."""
        states = {name: m.state_dict() for name, m in self._networks().items()}
        return {f"{name}.{k}": v for name, state in states.items() for k, v in state.items()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take these states back."""
        for name, network in self._networks().items():
            load_state(network, unprefixed(name, tensors))

    def _networks(self) -> dict[str, nn.Module]:
        return {"encoder": self.encoder, "variance": self.net, "match": self.match}


def soft_contrastive_loss(
    samples: Tensor, positive: Tensor, negative: Tensor, match: MatchScale
) -> Tensor:
    """Compute -log p of positive and -log(1 - p) of negative pairs, both kinds weighing half.

    Args:
        samples: Unit samples (s, n, z).
        positive: Which pairs (n, n) are positive.
        negative: Which are negative.
        match: Maps distances to logits.

    Returns:
        The loss; a kind of pairs that does not occur adds nothing.
    """
    s, n, z = samples.shape
    flat = samples.reshape(s * n, z)
    squared = (2 - 2 * flat @ flat.T).clamp(min=1e-12)
    logits = match(squared.sqrt()).view(s, n, s, n)
    # log of a mean of sigmoids, on both sides, without rounding to 0 or 1.
    count = 2 * torch.tensor(float(s)).log()
    log_match = logsigmoid(logits).logsumexp(dim=(0, 2)) - count
    log_differ = logsigmoid(-logits).logsumexp(dim=(0, 2)) - count
    total = log_match.sum() * 0
    if bool(positive.any()):
        total = total - log_match[positive].mean() / 2
    if bool(negative.any()):
        total = total - log_differ[negative].mean() / 2
    return total
