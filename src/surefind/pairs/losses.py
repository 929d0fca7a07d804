"""The contrastive loss of unit embeddings, and the targets that write it as a sum over pairs.

    L = (1 - w) mean_pos |u_i - u_j|²  +  w mean_neg max(0, m - |u_i - u_j|²)

With w = 1/2 this is the expectation of the paper's eq. `contrastive`; it is a mean over pairs, not a
sum over examples. Training *descends* its gradient (the paper prints ``+λ∇L``).

Training takes the second mean over the negative pairs *inside the margin* alone (``negatives="inside"``;
pytorch-metric-learning averages so too). Most negative pairs soon lie outside and add nothing but their
number: over all of them, the few that still confuse the network hardly count. It is the same loss with
another w for each batch, w / (1 - w) = |neg| / |neg inside|.

Up to the constant ``w m |neg inside| / |neg|``, L equals ``Σ_ij y_ij ½|u_i - u_j|²``. With a relation over
``n`` examples (`surefind.pairs.relations`), the target of the ordered pair (i, j) is

    y_ij =  2 (1 - w) / |pos|   positive
    y_ij = -2 w / |neg|         negative, inside the margin: |u_i - u_j|² <= m
    y_ij =  0                   everything else, the diagonal included

(the paper's eq. `target_definition`, with the weight w = w_n of eq. `minibatching_logic` for mined
pairs; w = 1/2 leaves both as they are). ``|pos|`` and ``|neg|`` count *all* ordered positive and
negative pairs of the relation, self-pairs left out. The margin compares the squared distance, as the
loss ``max(0, m - |·|²)`` does; the paper's appendix prints the distance itself.

The *unsquared* loss (`unsquared_loss`) has the distance in place of its square, and its margin m compares
the distance itself, so that the same pairs are inside the margin m² of the squared one:

    L = ½ mean_pos |u_i - u_j|  +  ½ mean_neg inside max(0, m - |u_i - u_j|)

Its pull on a positive pair does not weaken as the pair gets close. Where two embeddings coincide it has no
gradient; zero is taken. Curvature is always that of the squared loss.

Policy: a relation without positive (or negative) pairs has no such term, in the loss and in the targets;
with neither, the loss is zero.

Axes: ``n`` examples, ``z`` embedding.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_fraction, check_positive
from surefind.pairs.blocks import inside_margin
from surefind.pairs.relations import Labels, Relation, as_relation
from surefind.tensor_checks import check_matrix, check_unit_rows


def pair_targets(
    labels: Labels, embeddings: Tensor, *, margin: float, negative_weight: float = 0.5
) -> Float[Tensor, "n n"]:
    """Weigh every ordered pair of a batch: y_ij of the module's docstring.

    Args:
        labels: A class per example, or a relation over them.
        embeddings: Unit vectors (n, z); they decide which negative pairs are inside the margin.
        margin: Squared distance up to which negative pairs repel.
        negative_weight: The weight w of negative pairs; 0.5 is unbiased, 0 leaves them out.

    Returns:
        The symmetric matrix (n, n) of targets, with a zero diagonal.
    """
    relation = checked_pairs(labels, embeddings, margin, negative_weight)
    everything = slice(0, len(relation))
    positive, negative = relation.block(everything, everything)
    inside = inside_margin(embeddings @ embeddings.T, margin)
    # The product's rounding may differ between (i, j) and (j, i); the pair is one pair.
    inside = inside.triu() | inside.triu().T
    attract, repel = pair_weights(relation, negative_weight)
    return attract * positive.to(embeddings.dtype) - repel * (negative & inside).to(
        embeddings.dtype
    )


def pair_weights(relation: Relation, negative_weight: float) -> tuple[float, float]:
    """Return the size of a positive and of a negative pair's target, zero where there are none."""
    attract = 2 * (1 - negative_weight) / relation.n_positive if relation.n_positive else 0.0
    repel = 2 * negative_weight / relation.n_negative if relation.n_negative else 0.0
    return attract, repel


def checked_pairs(
    labels: Labels, embeddings: Tensor, margin: float, negative_weight: float
) -> Relation:
    """Check what `pair_targets` and the loss take, and return the relation over the embeddings' rows."""
    relation = as_relation(labels).to(embeddings.device)
    check_matrix("embeddings", embeddings, rows=len(relation))
    check_unit_rows("embeddings", embeddings)
    check_positive("margin", margin)
    check_fraction("negative_weight", negative_weight)
    return relation


Negatives = Literal["all", "inside"]
"""Over which negative pairs the mean is taken: all, or those inside the margin."""


def contrastive_loss(
    embeddings: Tensor, labels: Labels, *, margin: float, negative_weight: float = 0.5
) -> Float[Tensor, ""]:
    """Compute the loss of a batch over all its pairs.

    Args:
        embeddings: Unit vectors (n, z).
        labels: A class per example, or a relation over them.
        margin: Squared distance up to which negative pairs repel.
        negative_weight: The weight w of negative pairs.

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
    """Compute `contrastive_loss`, trusting its arguments; ``negatives`` are those that the mean is over."""
    everything = slice(0, len(relation))
    positive, negative = relation.block(everything, everything)
    squared_distance = 2 - 2 * embeddings @ embeddings.T
    attract, repel = pair_weights(relation, negative_weight)
    pull = torch.where(positive, squared_distance, 0).sum()
    push = torch.where(negative, margin - squared_distance, 0).clamp(min=0)
    counted = push > 0 if negatives == "inside" else negative
    repelled = push.sum() * relation.n_negative / counted.sum().clamp(min=1)
    return (attract * pull + repel * repelled) / 2


def unsquared_loss(
    embeddings: Float[Tensor, "n z"], relation: Relation, *, margin: float
) -> Float[Tensor, ""]:
    """Compute the loss of the module's docstring that has the distance in place of its square.

    Args:
        embeddings: Unit vectors (n, z).
        relation: Over them.
        margin: Distance up to which negative pairs repel.

    Returns:
        The scalar loss, differentiable in the embeddings.
    """
    everything = slice(0, len(relation))
    positive, negative = relation.block(everything, everything)
    # Differences, not products: 1 - cosine has no digits left for the root of a small distance.
    mode = "donot_use_mm_for_euclid_dist"
    distance = torch.cdist(embeddings, embeddings, compute_mode=mode)
    pull = torch.where(positive, distance, 0).sum() / positive.sum().clamp(min=1)
    push = torch.where(negative, margin - distance, 0).clamp(min=0)
    return (pull + push.sum() / (push > 0).sum().clamp(min=1)) / 2
