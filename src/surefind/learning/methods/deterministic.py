"""The point estimate: an encoder trained on a loss, with no uncertainty.

Its κ is infinite: it claims to be exact about everything, which is what plain retrieval does. Other
methods start from it, so its `EncoderTask` is theirs too.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from surefind.data.batches import batches
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.labels.gaussian import Centres, LabelSums, fit_space
from surefind.labels.left_out import log_loss
from surefind.learning.distributed import average_buffers, gather_rows, own_generator
from surefind.learning.methods.contract import Sampler, prefixed, unprefixed
from surefind.learning.seeds import seeded
from surefind.learning.session import TrainingSession
from surefind.learning.train import Judge
from surefind.models.encoder import Encoder
from surefind.models.saving import load_state
from surefind.pairs.losses import Objective
from surefind.pairs.relations import Relation

JUDGED = 1000
"""Examples of either part by which a training is judged, at most."""
Forward = Callable[[Encoder, Tensor, torch.Generator], Tensor]
N = TypeVar("N", bound=nn.Module)


def plain_forward(encoder: Encoder, inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Embed without randomness."""
    embeddings: Tensor = encoder(inputs)
    return embeddings


@dataclass(eq=False)
class EncoderTask:
    """An encoder whose embeddings are trained on an objective.

    Attributes:
        encoder: Changed in place.
        objective: The loss of a batch of embeddings.
        forward: How to embed a batch while training.
    """

    encoder: Encoder
    objective: Objective
    forward: Forward = plain_forward

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are not frozen, and the loss's own if it has any."""
        return [*trainable(self.encoder), *self._learnt_loss().parameters()]

    def loss(self, inputs: Tensor, relation: Relation, generator: torch.Generator) -> Tensor:
        """Embed this process's inputs, gather the batch, and compute the loss of all of it."""
        self.encoder.train()
        embeddings = self.forward(self.encoder, inputs, own_generator(generator))
        return self.objective(gather_rows(embeddings, len(relation)), relation, generator)

    def after_step(self) -> None:
        """Do nothing more."""

    def after_epoch(self) -> None:
        """Average the batch statistics over processes."""
        average_buffers(self.encoder)

    def tensors(self) -> dict[str, Tensor]:
        """Return the encoder's state, and the loss's."""
        loss = prefixed("objective", self._learnt_loss().state_dict())
        return prefixed("encoder", self.encoder.state_dict()) | loss

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take both states back."""
        load_state(self.encoder, unprefixed("encoder", tensors))
        load_state(self._learnt_loss(), unprefixed("objective", tensors))

    def _learnt_loss(self) -> nn.Module:
        """Return the part of the objective that has weights, such as proxies; empty for most."""
        loss = getattr(self.objective, "loss", None)
        return loss if isinstance(loss, nn.Module) else nn.Module()


@dataclass(frozen=True, eq=False)
class PointEmbedder:
    """An encoder that is certain of everything.

    Attributes:
        encoder: In evaluation mode.
    """

    encoder: Encoder
    runs_network_once: ClassVar[bool] = True

    @property
    def network(self) -> Encoder:
        """The encoder."""
        return self.encoder

    @torch.no_grad()
    def embed(self, inputs: Tensor) -> Embeddings:
        """Embed a batch, with κ = ∞."""
        mean: Tensor = self.encoder(inputs)
        return Embeddings(mean, mean.new_full((len(mean),), torch.inf))

    def sampler(self, n_samples: int, *, joint: bool, generator: torch.Generator) -> Sampler:
        """Return a function that repeats the embedding: there is nothing random in it."""
        return lambda inputs: self.embed(inputs).mean.expand(n_samples, -1, -1)

    def tensors(self) -> dict[str, Tensor]:
        """Return the encoder's state."""
        return prefixed("encoder", self.encoder.state_dict())


@dataclass(frozen=True)
class Deterministic:
    """Train an encoder on the objective."""

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> PointEmbedder:
        """Train a copy of the encoder."""
        return PointEmbedder(trained_copy(encoder, dataset, session))

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> PointEmbedder:
        """Put the encoder together again."""
        return PointEmbedder(restored_copy(encoder, tensors))


def trained_copy(
    encoder: Encoder,
    dataset: Dataset,
    session: TrainingSession,
    *,
    stage: str = "encoder",
    kind: str = "point estimate",
    forward: Forward = plain_forward,
) -> Encoder:
    """Copy an encoder, train it as a stage of the run, and freeze it.

    Args:
        encoder: Stays as it is.
        dataset: The training data.
        session: What to train by.
        stage: The stage's name.
        kind: What is trained, see `Run.stage`.
        forward: How to embed a batch while training.

    Returns:
        The trained copy, in evaluation mode, without gradients.
    """
    copied = copy.deepcopy(encoder)
    task = EncoderTask(copied, copy.deepcopy(session.objective), forward)
    config = replace(session.config, judge=judge_of(copied, dataset, session))
    session.stage(stage, task, dataset, kind=kind, config=config)
    return frozen(copied)


def judge_of(encoder: Encoder, dataset: Dataset, session: TrainingSession) -> Judge | None:
    """Return what says how well a network that is trained tells labels apart that it is not trained on.

    Args:
        encoder: As it is at the time.
        dataset: The training data.
        session: Its held-out examples.

    Returns:
        The log loss of the held-out labels by Gaussian evidence (`surefind.labels.gaussian`) from the
        network's outputs for training examples, `JUDGED` of both at most; None without held-out labels.
    """
    held_out, seed = session.held_out, session.config.seed
    if held_out is None or held_out.labels is None or dataset.labels is None:
        return None
    parts = []
    for part, name in ((dataset, "known"), (held_out, "held out")):
        some = part[torch.randperm(len(part), generator=seeded(seed, name))[:JUDGED]]
        read = batches(some, encoder, preprocessing=session.config.preprocessing)
        parts.append(([x.clone() for x in read], some.labels))
    (known, labels), (asked, theirs) = parts
    names, codes = np.unique(labels.numpy(), return_inverse=True)
    theirs = theirs.numpy()
    rows = np.isin(theirs, names)
    own = np.searchsorted(names, theirs[rows])
    if not len(own):
        return None

    @torch.no_grad()
    def judge() -> float:
        encoder.eval()
        x, q = (
            torch.cat([encoder.outputs(b) for b in part]).double().cpu().numpy()
            for part in (known, asked)
        )
        unit = np.sqrt(np.square(x - x.mean(axis=0)).sum(axis=1).mean()) + 1e-12
        x, q = x / unit, q[rows] / unit
        space = fit_space(LabelSums.of(x, codes, len(names)), normalize=False)
        centres = Centres.of(space(x), codes, len(names), space.spread)
        return log_loss(centres.scores(space(q)), own)

    return judge


def restored_copy(encoder: Encoder, tensors: dict[str, Tensor], prefix: str = "encoder") -> Encoder:
    """Copy an encoder and fill in saved tensors with a prefix."""
    copied = copy.deepcopy(encoder)
    load_state(copied, unprefixed(prefix, tensors))
    return frozen(copied)


def trainable(*networks: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are not frozen."""
    return [p for network in networks for p in network.parameters() if p.requires_grad]


def frozen(network: N) -> N:
    """Put a network into evaluation mode and stop its gradients, in place."""
    network.eval()
    return network.requires_grad_(False)
