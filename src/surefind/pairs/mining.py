"""Choosing pairs of a batch: all, hard or semi-hard ones, and the weight that corrects the choice.

- "all": any pairs.
- "hard": the positive pairs that are farthest apart, and the negative pairs that are closest.
- "semi-hard": any positive pairs, and negative pairs inside the margin that are farther apart than one
  of the two is from its nearest positive partner (Schroff et al. 2015, FaceNet, for pairs).

Mined negative pairs lie inside the margin more often than those of the whole set, so a curvature over
them is biased. If a share f of all negative pairs is inside the margin and a share g of the mined
ones, then w_n / (1 - w_n) = f / g restores the balance between attraction and repulsion:

    w_n = f / (f + g)

which is 1/2 for an unbiased choice. (The overall factor 2 (1 - w_n) belongs to the scale.)

Axes: ``n`` examples, ``z`` embedding, ``m`` pairs. Memory is O(n²): this is for batches.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.checks import check_choice, check_int
from surefind.pairs.blocks import inside_margin
from surefind.pairs.losses import checked_pairs
from surefind.pairs.relations import Labels, PairList

Mining = Literal["all", "hard", "semi-hard"]


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
