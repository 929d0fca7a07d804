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

Mining (`mine_pairs`) chooses pairs of a batch, which takes O(n²) memory:

- "all": any pairs.
- "hard": the positive pairs that are farthest apart, and the negative pairs that are closest.
- "semi-hard": any positive pairs, and negative pairs inside the margin that are farther apart than one
  of the two is from its nearest positive partner (Schroff et al. 2015, FaceNet, for pairs).

Mined negative pairs lie inside the margin more often than those of the whole set, so a curvature over
them is biased. If a share f of all negative pairs is inside the margin and a share g of the mined
ones, then w_n / (1 - w_n) = f / g restores the balance between attraction and repulsion:

    w_n = f / (f + g)

which is 1/2 for an unbiased choice. (The overall factor 2 (1 - w_n) belongs to the scale.)

An *objective* is the loss that training takes, chosen by passing it: `Contrastive` over all pairs of a
batch or over mined ones, `External` a loss and a miner of pytorch-metric-learning as they are.

Policy: a relation without positive (or negative) pairs has no such term, in the loss and in the targets;
with neither, the loss is zero.

Axes: ``n`` examples, ``z`` embedding, ``m`` pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.checks import check_choice, check_fraction, check_int, check_positive
from surefind.errors import InputError
from surefind.pairs.relations import Classes, Labels, PairList, Relation, as_relation, inside_margin
from surefind.tensor_checks import check_matrix, check_unit_rows

MARGIN = 0.7
"""Squared distance up to which negative pairs repel, unless another is given."""

Negatives = Literal["all", "inside"]
"""Over which negative pairs the mean is taken: all, or those inside the margin."""

Mining = Literal["all", "hard", "semi-hard"]


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


def mine_pairs(
    labels: Labels,
    embeddings: Tensor,
    *,
    kind: Mining,
    max_pairs: int,
    margin: float,
    generator: torch.Generator,
) -> PairList:
    """Choose at most ``max_pairs`` pairs of a batch, half of them positive where there are so many.

    Args:
        labels: A class per example, or a relation over them.
        embeddings: Unit vectors (n, z).
        kind: "all", "hard" or "semi-hard".
        max_pairs: How many pairs to return at most.
        margin: Squared distance inside which negative pairs repel.
        generator: Decides between pairs that are equally good.

    Returns:
        The pairs, a relation over the same examples.
    """
    check_choice("kind", kind, get_args(Mining))
    relation = checked_pairs(labels, embeddings, margin, 0.5)
    check_int("max_pairs", max_pairs, least=1)
    everything = slice(0, len(relation))
    positive, negative = relation.block(everything, everything)
    cosine = embeddings.detach() @ embeddings.detach().T
    if kind != "all":
        negative &= inside_margin(cosine, margin)
    if kind == "semi-hard":
        nearest_positive = cosine.masked_fill(~positive, -torch.inf).amax(1)
        farther = cosine < nearest_positive[:, None]
        negative &= farther | farther.T
    attracting = _ranked(positive, cosine if kind == "hard" else None, generator)
    repelling = _ranked(negative, -cosine if kind == "hard" else None, generator)
    n_positive = min(len(attracting), max(max_pairs - max_pairs // 2, max_pairs - len(repelling)))
    chosen = torch.cat([attracting[:n_positive], repelling[: max_pairs - n_positive]])
    attracted = torch.arange(len(chosen), device=chosen.device) < n_positive
    return PairList(chosen[:, 0], chosen[:, 1], attracted, n=len(relation))


def mined_negative_weight(
    mined: PairList, labels: Labels, embeddings: Tensor, *, margin: float
) -> float:
    """Compute the weight w_n that corrects a curvature over mined pairs.

    Args:
        mined: The pairs that were chosen.
        labels: A class per example of the population they were chosen from, or a relation.
        embeddings: The population's unit vectors (n, z).
        margin: Squared distance inside which negative pairs repel.

    Returns:
        w_n in [0, 1]; 0.5 where no mined negative pair is inside the margin, so that it has no say.
    """
    relation = checked_pairs(labels, embeddings, margin, 0.5)
    one = embeddings.new_ones(len(relation), 1)
    everything = slice(0, len(relation))
    shares = [
        float(r.negative_sums(one, embeddings, margin, everything).sum()) / max(r.n_negative, 1)
        for r in (relation, mined)
    ]
    population, chosen = shares
    return population / (population + chosen) if chosen > 0 else 0.5


def _ranked(
    mask: Tensor, key: Float[Tensor, "n n"] | None, generator: torch.Generator
) -> Int[Tensor, "m 2"]:
    """List the pairs i < j of a symmetric mask, smallest key first, or in random order."""
    pairs = mask.triu(1).nonzero()
    if key is not None:
        return pairs[key[pairs[:, 0], pairs[:, 1]].argsort(stable=True)]
    order = torch.randperm(len(pairs), generator=generator, device=generator.device)
    return pairs[order.to(pairs.device)]


@runtime_checkable
class Objective(Protocol):
    """A loss of unit embeddings."""

    def __call__(
        self, embeddings: Tensor, relation: Relation, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch."""
        ...


@runtime_checkable
class ContrastiveLoss(Objective, Protocol):
    """A loss that is described by its margin, which is also the curvature's."""

    @property
    def squared_margin(self) -> float:
        """The margin as curvature takes it: a squared distance."""
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
