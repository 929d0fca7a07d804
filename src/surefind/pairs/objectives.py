"""What a batch of embeddings should look like: a loss, chosen by passing it.

`Contrastive` is the paper's loss over all pairs of a batch, or over mined ones; `UnsquaredContrastive` the
one that its numbers were trained on. `External` takes a loss and a miner of pytorch-metric-learning as they
are. Losses see the whole batch's embeddings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from surefind.checks import check_choice, check_fraction, check_positive
from surefind.errors import InputError
from surefind.pairs.losses import Negatives, relation_loss, unsquared_loss
from surefind.pairs.mining import Mining, mine_pairs
from surefind.pairs.relations import Classes, Relation

MARGIN = 0.7
"""Squared distance up to which negative pairs repel, unless another is given."""


@runtime_checkable
class Objective(Protocol):
    """A loss of unit embeddings."""

    def __call__(
        self, embeddings: Tensor, relation: Relation, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch."""
        ...


@dataclass(frozen=True)
class Contrastive:
    """The contrastive loss.

    Attributes:
        margin: Squared distance up to which negative pairs repel.
        negative_weight: The weight of negative pairs.
        negatives: Over which negative pairs the mean is taken: "inside" the margin, or "all".
        mining: Which pairs of the batch to take; None for all of them.
        max_pairs: How many of them at most, when they are mined.

    Raises:
        InputError: If an option is out of range.
    """

    margin: float = MARGIN
    negative_weight: float = 0.5
    negatives: Negatives = "inside"
    mining: Mining | None = None
    max_pairs: int = 5000

    def __post_init__(self) -> None:
        check_positive("margin", self.margin)
        check_fraction("negative_weight", self.negative_weight)
        check_choice("negatives", self.negatives, get_args(Negatives))

    @property
    def squared_margin(self) -> float:
        """The margin as curvature takes it."""
        return self.margin

    def __call__(
        self, embeddings: Tensor, relation: Relation, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch; the generator decides between equally good pairs."""
        if self.mining is not None:
            relation = mine_pairs(
                relation,
                embeddings.detach(),
                kind=self.mining,
                max_pairs=self.max_pairs,
                margin=self.margin,
                generator=generator,
            )
        return relation_loss(
            embeddings,
            relation,
            margin=self.margin,
            negative_weight=self.negative_weight,
            negatives=self.negatives,
        )


@dataclass(frozen=True)
class UnsquaredContrastive:
    """The contrastive loss of distances that are not squared, over all pairs of a batch.

    Attributes:
        margin: Distance, not squared, up to which negative pairs repel.

    Raises:
        InputError: If the margin is not positive.
    """

    margin: float = MARGIN

    def __post_init__(self) -> None:
        check_positive("margin", self.margin)

    @property
    def squared_margin(self) -> float:
        """The margin as curvature takes it: the same pairs are inside."""
        return self.margin**2

    def __call__(
        self, embeddings: Tensor, relation: Relation, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch; nothing in it is random."""
        return unsquared_loss(embeddings, relation, margin=self.margin)


ContrastiveLoss = Contrastive | UnsquaredContrastive
"""The losses that are described by their margin, and whose margin is also the curvature's."""


@dataclass(frozen=True, eq=False)
class External:
    """A loss of pytorch-metric-learning, with or without a miner, as they are.

    Attributes:
        loss: Called with embeddings and labels, and with what the miner found.
        miner: Called with embeddings and labels.
    """

    loss: Callable[..., Any]
    miner: Callable[..., Any] | None = None

    def __call__(
        self, embeddings: Tensor, relation: Relation, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch of class labels; such losses have their own randomness, if any."""
        if not isinstance(relation, Classes):
            raise InputError("an external loss needs class labels; this data set has positions.")
        labels = relation.labels
        if self.miner is None:
            return torch.as_tensor(self.loss(embeddings, labels))
        return torch.as_tensor(self.loss(embeddings, labels, self.miner(embeddings, labels)))
