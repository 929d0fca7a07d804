"""Probabilistic face embeddings (Shi and Jain 2019): variances learnt on a frozen point estimate.

Genuine pairs should be likely under the two Gaussians: the mutual likelihood score is maximised
over all positive pairs of a batch,

    loss = mean over positive pairs of ½ Σ_k ( (μ_ik - μ_jk)² / (σ²_ik + σ²_jk) + log(σ²_ik + σ²_jk) ).

The encoder is trained first, as the deterministic method does it, and then left alone; its features
are computed once and kept, so that the second stage is cheap.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from surefind.data.dataset import Dataset
from surefind.learning.distributed import average_buffers, gather_rows
from surefind.learning.inference import apply
from surefind.learning.methods.deterministic import frozen, trained_copy
from surefind.learning.methods.gaussian import GaussianEmbedder, VarianceNet
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession, digest
from surefind.models.checkpoint import load_state
from surefind.models.encoder import Encoder
from surefind.pairs.relations import Relation
from surefind.posterior.sphere import unit


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
