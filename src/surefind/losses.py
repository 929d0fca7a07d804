"""The contrastive loss of unit embeddings.

    L = (1 - w) mean_same |u_i - u_j|²  +  w mean_different max(0, m - |u_i - u_j|²)

With w = 1/2 this is the expectation of the paper's eq. `contrastive`; it is a mean over pairs, not a
sum over examples. Up to the constant ``w m |neg inside| / |neg|`` it equals ``Σ_ij y_ij ½|u_i - u_j|²``
with the targets of `surefind.pairs`. Training *descends* its gradient (the paper prints ``+λ∇L``).

Training takes the second mean over the different pairs *inside the margin* alone (``negatives="inside"``;
pytorch-metric-learning averages so too). Most different pairs soon lie outside and add nothing but their
number: over all of them, the few that still confuse the network hardly count. It is the same loss with
another w for each batch, w / (1 - w) = |neg| / |neg inside|.

Policy: a batch without same (or different) pairs has no such term; with neither, the loss is zero.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.pairs import checked_pairs, pair_weights
from surefind.relations import Labels, Relation

Negatives = Literal["all", "inside"]


def contrastive_loss(
    embeddings: Tensor, labels: Labels, *, margin: float, negative_weight: float = 0.5
) -> Float[Tensor, ""]:
    """Compute the loss of a batch over all its pairs.

    Args:
        embeddings: Unit vectors (n, z).
        labels: A class per example, or a relation over them.
        margin: Squared distance up to which different pairs repel.
        negative_weight: The weight w of different pairs.

    Returns:
        The scalar loss, differentiable in the embeddings.
    """
    relation = checked_pairs(labels, embeddings, margin, negative_weight)
    return relation_loss(embeddings, relation, margin=margin, negative_weight=negative_weight)


def relation_loss(
    embeddings: Float[Tensor, "n z"],
    relation: Relation,
    *,
    margin: float,
    negative_weight: float,
    negatives: Negatives = "all",
) -> Float[Tensor, ""]:
    """Compute the same as `contrastive_loss`, trusting its arguments: for the training loop.

    Args:
        embeddings: Unit vectors (n, z).
        relation: Over them.
        margin: Squared distance up to which different pairs repel.
        negative_weight: The weight w of different pairs.
        negatives: Over which different pairs the mean is taken.

    Returns:
        The scalar loss.
    """
    everything = slice(0, len(relation))
    same, different = relation.block(everything, everything)
    squared_distance = 2 - 2 * embeddings @ embeddings.T
    attract, repel = pair_weights(relation, negative_weight)
    pull = torch.where(same, squared_distance, 0).sum()
    push = torch.where(different, margin - squared_distance, 0).clamp(min=0)
    counted = push > 0 if negatives == "inside" else different
    repelled = push.sum() * relation.n_different / counted.sum().clamp(min=1)
    return (attract * pull + repel * repelled) / 2
