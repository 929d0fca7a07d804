"""The linear head of frozen vectors: where it starts, and its training.

It starts as the identity; with fewer outputs than columns, as the projection on the leading eigenvectors
of Σ_i h_i h_iᵀ, which changes inner products least. The bias starts at zero.

Training is no default: on frozen ImageNet features of CUB200 (how: `surefind.vectors.fitted`) recall@1 on
unseen classes is 0.751 with the identity (0.749 if X is centred) and 0.730 … 0.547 after training, the
lower the longer: a linear layer forgets what the large model knew of other classes. On the classes of the
fit it brought no clear gain either (0.671; trained 0.632 … 0.681).

Axes: ``d`` columns, ``z`` outputs.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from surefind.data.dataset import Dataset
from surefind.errors import InputError
from surefind.methods.deterministic import EncoderTrainee
from surefind.models.encoder import Encoder, empty_head, on_sphere
from surefind.objectives import Contrastive
from surefind.relations import Classes, Positions, Relation
from surefind.train import Plan, train
from surefind.vectors.source import Source


def initial_head(source: Source, z: int | None) -> Float[Tensor, "z features"]:
    """Give the head before training.

    Args:
        source: The vectors.
        z: Number of outputs; None for as many as there are columns.

    Returns:
        The weights (z, d + 1), the bias in the last column.

    Raises:
        InputError: If there are to be more outputs than columns.
    """
    d = source.matrix.shape[1]
    z = d if z is None else z
    if z > d:
        raise InputError(
            f"embedding_dim is {z}, but X has {d} columns; a linear head cannot add any. "
            f"Give at most {d}, or None."
        )
    if z == d:
        return torch.eye(d, d + 1, dtype=source.dtype)
    second = torch.zeros(d, d, dtype=torch.float64)
    for h in source.batches():
        second += h[:, :d].T @ h[:, :d]
    leading = torch.linalg.eigh(second).eigenvectors.flip(1)[:, :z].T
    # A direction's sign is arbitrary; fixed, so that equal data give equal heads.
    leading *= leading.gather(1, leading.abs().argmax(1, keepdim=True)).sign()
    return torch.cat([leading, leading.new_zeros(z, 1)], dim=1).to(source.dtype)


def trained_head(
    weights: Float[Tensor, "z features"],
    source: Source,
    relation: Relation,
    *,
    margin: float,
    plan: Plan,
) -> Float[Tensor, "z features"]:
    """Train a head by the contrastive loss.

    Args:
        weights: Where to start; stays as it is.
        source: The vectors.
        relation: Labels or positions of them.
        margin: Squared distance up to which different pairs repel.
        plan: How to train.

    Returns:
        The trained weights.

    Raises:
        InputError: If the relation is neither labels nor positions.
    """
    if isinstance(relation, Classes):
        dataset = Dataset(source.matrix, relation.labels)
    elif isinstance(relation, Positions):
        dataset = Dataset(source.matrix, positions=relation.coordinates)
    else:
        raise InputError(
            "a head can be trained on labels or positions, not on a list of pairs; take epochs=0, "
            "which needs no training."
        )
    empty = empty_head(weights.shape[1] - 1, len(weights), bias=True)
    encoder = Encoder(_UnitRows(), empty).with_head(weights.float())
    train(EncoderTrainee(encoder, Contrastive(margin)), dataset, plan)
    return encoder.head_weights().to(weights.dtype)


class _UnitRows(nn.Module):
    """The backbone of frozen vectors: they become directions."""

    def forward(self, inputs: Tensor) -> Tensor:
        return on_sphere(inputs)
