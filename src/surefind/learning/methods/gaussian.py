"""A network that predicts variances, and embeddings that are Gaussians: what PFE and HIB share.

The module is linear, batch norm, ReLU, linear, batch norm (Shi and Jain 2019); its last batch norm has one
scale and one shift for all dimensions, so that they are comparable, and starts small: log σ² = 1e-4 x - 7.

Probabilistic face embeddings (Shi and Jain 2019): variances learnt on a frozen point estimate.

Genuine pairs should be likely under the two Gaussians: the mutual likelihood score is maximised
over all positive pairs of a batch,

    loss = mean over positive pairs of ½ Σ_k ( (μ_ik - μ_jk)² / (σ²_ik + σ²_jk) + log(σ²_ik + σ²_jk) ).

The encoder is trained first, as the deterministic method does it, and then left alone; its features
are computed once and kept, so that the second stage is cheap.

Hedged instance embeddings (Oh et al. 2018): stochastic embeddings trained end to end.

Each output is a Gaussian N(μ, σ²). K samples of each are drawn and projected onto the sphere, where
retrieval takes place, and a pair matches with probability

    p = mean over K² sample pairs of sigmoid(b - a |z_1 - z_2|),    a > 0 and b learnt.

The soft contrastive loss is -log p for positive and -log(1 - p) for negative pairs, each averaged, and
both weigh half. The information bottleneck *adds* β KL(N(μ, σ²) | N(0, 1)) per example (the authors
of LAM had the sign wrong).
"""

import copy
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from surefind.data.batches import apply
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.learning.distributed import average_buffers, gather_rows, shared
from surefind.learning.methods.contract import Sampler, prefixed, unprefixed
from surefind.learning.methods.deterministic import frozen, restored_copy, trainable, trained_copy
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession, digest
from surefind.models.encoder import Encoder
from surefind.models.networks import initialize, untouched_rng
from surefind.models.saving import load_state
from surefind.pairs.relations import Relation
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


@dataclass(frozen=True)
class PFE:
    """Train an encoder, freeze it, and learn variances on genuine pairs.

    Attributes:
        epochs: Passes over the data for the variances; None for as many as the encoder's.
        learning_rate: Of Adam, for the variances.
    """

    epochs: int | None = None
    learning_rate: float = 1e-3

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> GaussianEmbedder:
        """Train encoder and variances, one stage each."""
        trained = trained_copy(encoder, dataset, session)
        preprocessing = session.config.preprocessing
        features = apply(trained.features, dataset, trained, preprocessing=preprocessing)
        kept = Dataset(
            features.cpu(), dataset.labels, positions=dataset.positions, name=dataset.name
        )
        net = VarianceNet.for_encoder(trained, seeded(session.config.seed, "variance"))
        epochs = max(1, session.config.epochs) if self.epochs is None else self.epochs
        config = replace(
            session.config,
            epochs=epochs,
            preprocessing=None,
            optimizer=lambda p: torch.optim.Adam(p, lr=self.learning_rate),
        )
        # Named by the encoder it is learnt on: another encoder needs other variances.
        stage = f"variance-{digest(trained.state_dict().values())}"
        task = VarianceTask(trained, net)
        session.stage(stage, task, kept, kind=repr(self), config=config)
        return GaussianEmbedder(trained, frozen(net), unit_mean=True)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> GaussianEmbedder:
        """Put encoder and variances together again."""
        return GaussianEmbedder.restored(encoder, tensors, unit_mean=True)


@dataclass(eq=False)
class VarianceTask:
    """A variance net on the features of a frozen encoder.

    Attributes:
        encoder: Stays as it is; only its head runs.
        net: Changed in place.
    """

    encoder: Encoder
    net: VarianceNet

    def parameters(self) -> list[nn.Parameter]:
        """Return the variance net's parameters."""
        return list(self.net.parameters())

    def loss(self, inputs: Tensor, relation: Relation, generator: torch.Generator) -> Tensor:
        """Compute the negative mutual likelihood of the batch's positive pairs; zero without any."""
        self.net.train()
        n = len(relation)
        mean = gather_rows(unit(self.encoder.outputs_of(inputs)), n)
        variance = gather_rows(self.net(inputs).exp(), n)
        positive, _ = relation.block(slice(0, n), slice(0, n))
        return mutual_likelihood_loss(mean, variance, positive.triu())

    def after_step(self) -> None:
        """Do nothing more."""

    def after_epoch(self) -> None:
        """Average the batch statistics over processes."""
        average_buffers(self.net)

    def tensors(self) -> dict[str, Tensor]:
        """Return the variance net's state."""
        return self.net.state_dict()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take the variance net's state back."""
        load_state(self.net, tensors)


def mutual_likelihood_loss(mean: Tensor, variance: Tensor, pairs: Tensor) -> Tensor:
    """Compute the mean negative mutual likelihood score of Gaussians (n, z) over a mask of pairs (n, n)."""
    i, j = pairs.nonzero().T
    if len(i) == 0:
        return variance.sum() * 0
    both = variance[i] + variance[j]
    return ((mean[i] - mean[j]) ** 2 / both + both.log()).sum(1).mean() / 2


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
