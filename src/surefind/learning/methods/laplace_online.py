"""Online LAM: Monte Carlo EM, with the posterior kept while training (paper, `Laplace online`).

The posterior has precision H = C + δ and starts at the prior, C = 0. Each step draws one head from it,

    W_s = W + √T ε / √H        (in weight space: one sampled network embeds the whole batch),

descends the loss's gradient *at the sample*, which reaches the mean W unchanged, and updates

    C ← (1 - α) C + scale · max(0, batch curvature at the sample).

The paper forgets the prior together with old curvature, H ← (1 - α) H + …; then the precision of a
weight that no example ever touches falls to zero. Here δ stays.

Training needs noise that it can learn under; afterwards, the posterior is fitted as every other
(`surefind.posterior.fit`), from the mean curvature that is remembered.

α is the paper's memory factor, and 1/α the number of steps that C remembers: its text has 1e-4, its
experiments on small images 1e-3. The temperature T is 1 for the posterior; T = 0 is deterministic training
with a posterior on the side. δ defaults to one over the mean square of the head's initial weights: a prior
as wide as what it starts from. The loss is a mean over pairs, so scale says how many observations a step
counts for.

Measured on FashionMNIST's validation data against drawings of letters, one training each: with α = 1e-4, C
remembers a network that has long changed, and AUROC is 0.014 to 0.027 below that of the exact curvature of
the same network; with 1e-3 it is not. With scale 1 the prior is stronger than the curvature, and the noise
almost the same in all directions. The number of examples as scale gave recall@1 0.863 instead of 0.857
there, but on the few digits of scikit-learn it detected classes that were never shown worse (AUROC 0.85
against 0.91, three trainings each). More noise costs recall and AUROC on FashionMNIST: 0.826 and 0.906 at
T = 1000 with scale 1e5. AUROC of trainings that differed little in noise lay between 0.93 and 0.97, so
differences of this size may be chance.
"""

import copy
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from surefind.checks import check_choice, check_fraction, check_positive
from surefind.curvature.head import Approximation, Distance, head_curvature
from surefind.data.dataset import Dataset
from surefind.errors import InputError
from surefind.learning.distributed import average_buffers, gather_rows
from surefind.learning.methods.contract import prefixed, unprefixed
from surefind.learning.methods.deterministic import frozen, trainable
from surefind.learning.methods.laplace_posthoc import (
    HeadEmbedder,
    head_posterior,
    restore_head_embedder,
)
from surefind.learning.session import TrainingSession
from surefind.models.encoder import Encoder, on_sphere, plain_features
from surefind.models.saving import load_state
from surefind.pairs.losses import Objective, pair_targets
from surefind.pairs.relations import Relation
from surefind.posterior.head import HeadPosterior, add_step, normal


@dataclass(frozen=True)
class LaplaceOnline:
    """Learn the posterior of the head while training.

    Attributes:
        distance: "euclidean" or "arccos".
        approximation: "fixed", "positive" or "full".
        memory: α, the share of the curvature that each step forgets.
        scale: Weight of a batch's curvature. At 0 nothing is learnt of the posterior, so nothing is
            drawn from it either: that is deterministic training.
        prior_precision: δ; None for one over the mean square of the head's initial weights.
        temperature: T, factor of the posterior's variance when heads are drawn in training.
        tuning: "chosen" sets scale and prior of the final posterior by the rule of
            `surefind.posterior.tuning`, from the curvature that was learnt; "trained" leaves H as it was.
    """

    distance: Distance = "arccos"
    approximation: Approximation = "fixed"
    memory: float = 1e-3
    scale: float = 1.0
    prior_precision: float | None = None
    temperature: float = 1.0
    # Not in the repr, which names the training: this comes after it.
    tuning: Literal["chosen", "trained"] = field(default="chosen", repr=False)

    def fit(self, encoder: Encoder, dataset: Dataset, session: TrainingSession) -> HeadEmbedder:
        """Train a copy of the encoder together with its posterior.

        Args:
            encoder: Stays as it is.
            dataset: The training data.
            session: What to train by.

        Returns:
            The encoder with its posterior.

        Raises:
            InputError: If an option is out of range.
        """
        check_fraction("memory", self.memory)
        check_choice("tuning", self.tuning, ("chosen", "trained"))
        if not (self.scale >= 0 and self.temperature >= 0):
            raise InputError(
                f"scale and temperature must not be negative; got {self.scale} and {self.temperature}."
            )
        weights, prior = encoder.head_weights(), self.prior_precision
        if prior is None:
            prior = 1 / float((weights.double() ** 2).mean())
        check_positive("prior_precision", prior)
        copied, start = copy.deepcopy(encoder), torch.zeros_like(weights)
        task = OnlineTask(copied, session.objective, session.margin, self, prior, start)
        kind = f"{self!r}, prior {prior:.6g}, margin {session.margin}"
        session.stage("encoder", task, dataset, kind=kind)
        trained, precision = frozen(task.encoder), task.precision
        if self.tuning == "chosen" and self.scale > 0:
            precision = head_posterior(trained, task.mean_curvature, dataset, session).precision
        posterior = HeadPosterior(trained.head_weights(), precision, clipped=task.clipped)
        return HeadEmbedder(trained, posterior)

    def restore(self, encoder: Encoder, tensors: dict[str, Tensor]) -> HeadEmbedder:
        """Put encoder and posterior together again."""
        return restore_head_embedder(encoder, tensors)


@dataclass(eq=False)
class OnlineTask:
    """An encoder and the precision of its head, trained together.

    Attributes:
        encoder: Changed in place.
        objective: The loss of a batch of embeddings.
        margin: Squared distance up to which negative pairs repel, in the curvature.
        options: The method's.
        prior_precision: δ.
        curvature: C (z, d), the bias in the last column.
        kept: Sum over the steps of the curvature that was not clipped.
        removed: Sum over the steps of the magnitude that was.
        remembered: How many steps are remembered: the sum of their weights.
    """

    encoder: Encoder
    objective: Objective
    margin: float
    options: LaplaceOnline
    prior_precision: float
    curvature: Tensor
    kept: float = 0.0
    removed: float = 0.0
    remembered: float = 0.0
    _batch: tuple[Tensor, Tensor, Relation] | None = field(default=None, repr=False)

    @property
    def precision(self) -> Tensor:
        """H = C + δ."""
        return self.curvature + self.prior_precision

    @property
    def mean_curvature(self) -> Tensor:
        """Mean of the steps' curvature, as far as they are remembered, without its scale."""
        total = self.remembered * self.options.scale
        return self.curvature / total if total else self.curvature

    @property
    def clipped(self) -> float:
        """Share of the curvature that was clipped, over all steps."""
        total = self.kept + self.removed
        return self.removed / total if total else 0.0

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are not frozen."""
        return trainable(self.encoder)

    def loss(self, inputs: Tensor, relation: Relation, generator: torch.Generator) -> Tensor:
        """Compute the loss under a head drawn from the posterior.

        Args:
            inputs: This process's part of the batch.
            relation: Over the whole batch.
            generator: The step's randomness; the same in all processes.

        Returns:
            The loss of the whole batch.
        """
        self.encoder.train()
        head = self.encoder.head
        plain = plain_features(self.encoder.backbone, head, inputs)
        noise = normal(self.curvature.shape, self.curvature, generator)
        temperature = self.options.temperature if self.options.scale > 0 else 0.0
        noise *= (temperature / self.precision).sqrt()
        bias = None if head.bias is None else head.bias + noise[:, -1]
        outputs = linear(plain, head.weight + noise[:, : head.in_features], bias)
        everyone = gather_rows(outputs, len(relation))
        self._batch = plain.detach(), everyone.detach(), relation
        return self.objective(on_sphere(everyone), relation, generator)

    @torch.no_grad()
    def after_step(self) -> None:
        """Forget a little, and add the batch's curvature at the sampled head."""
        assert self._batch is not None
        plain, outputs, relation = self._batch
        features = gather_rows(plain, len(relation))
        if self.encoder.head.bias is not None:
            features = torch.cat([features, features.new_ones(len(features), 1)], dim=1)
        targets = pair_targets(relation, on_sphere(outputs), margin=self.margin)
        curvature = head_curvature(
            features,
            outputs,
            targets,
            distance=self.options.distance,
            approximation=self.options.approximation,
        )
        memory = self.options.memory
        kept, removed = add_step(self.curvature, curvature, scale=self.options.scale, memory=memory)
        self.kept, self.removed = self.kept + kept, self.removed + removed
        self.remembered = (1 - memory) * self.remembered + 1

    def after_epoch(self) -> None:
        """Let all processes have the same statistics."""
        average_buffers(self.encoder)

    def tensors(self) -> dict[str, Tensor]:
        """Return the encoder's state, the curvature, and the sums over the steps."""
        sums = torch.tensor([self.kept, self.removed, self.remembered], dtype=torch.float64)
        own = {"curvature": self.curvature, "sums": sums}
        return prefixed("encoder", self.encoder.state_dict()) | prefixed("online", own)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` returned."""
        load_state(self.encoder, unprefixed("encoder", tensors))
        self.curvature = tensors["online.curvature"].to(self.curvature)
        self.kept, self.removed, self.remembered = tensors["online.sums"].tolist()
