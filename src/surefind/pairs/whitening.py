"""Whitening by the differences of positive pairs: a linear map in closed form that makes them small.

    S = Σ_(i,j) (h_i - h_j)(h_i - h_j)ᵀ    over the m unordered positive pairs,    S̄ = S/m
    W = ((S̄ d/tr S̄ + λ I) / (1 + λ))^(-1/2),    z = W (h - μ)

with μ the mean of all h: as a head it is W with the bias -W μ. Up to a factor, which the sphere removes, W
is (S̄ + λ (tr S̄/d) I)^(-1/2): the inverse root of a covariance with linear shrinkage λ/(1 + λ) to a multiple
of the identity. The factor makes the mean eigenvalue under the root one, so that W tends to the identity
for large λ, and a given prior precision means the same with either map. Directions in which examples that
belong together differ (members of a class, a place by day and by night) count less; it is the centring
and within-class whitening of PLDA.

Every positive pair counts the same, as in the contrastive loss. With A the symmetric 0/1 matrix of positive
pairs and D its row sums, S = Hᵀ (D - A) H = Σ_i h_i (Σ_(j: A_ij = 1) (h_i - h_j))ᵀ: any relation that can
add up an example's partners has it, without a list of its pairs (`pair_scatter`). The inner sum is the
difference of two large ones: S has an error of 1 % where differences are 1e-7 of the features' spread, and
what rounding leaves of equal features, up to `ROUNDING` times the precision, counts as nothing.

Axes: ``n`` examples, ``d`` columns.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.errors import DegenerateError
from surefind.pairs.blocks import row_blocks
from surefind.pairs.relations import Relation

RIDGE = 3.0
"""λ where nothing can be left out to choose it by: the middle of 1 … 10, which gained on CUB200."""

ROUNDING = 64
"""How many times the precision of their squared lengths equal features may seem to differ by."""


def pair_scatter(
    features: Float[Tensor, "n d"], relation: Relation
) -> tuple[Float[Tensor, "d d"], int]:
    """Add up the outer products of the differences of positive pairs, in float64.

    Args:
        features: A row per example.
        relation: Which of them belong together.

    Returns:
        S, and over how many unordered pairs.
    """
    n, d = features.shape
    h = features.new_ones(n, d + 1, dtype=torch.float64)
    h[:, :-1] = features
    h[:, :-1] -= h[:, :-1].mean(0)
    sums = relation.positive_sums(h, slice(0, n))
    scatter, length = h.new_zeros(d, d), 0.0
    for rows in row_blocks(slice(0, n)):
        here, partners = h[rows, :-1], sums[rows, -1:]
        scatter += here.T @ (partners * here - sums[rows, :-1])
        length += float((partners * here.square()).sum())
    scatter = (scatter + scatter.T) / 2
    if float(scatter.trace()) <= ROUNDING * torch.finfo(h.dtype).eps * length:
        scatter = torch.zeros_like(scatter)
    return scatter, int(sums[:, -1].sum()) // 2


def centred(
    scatter: Float[Tensor, "d d"], mean: Float[Tensor, " d"], ridge: float
) -> Float[Tensor, "d features"]:
    """Compute [W, -W μ] from S, at any scale, μ and λ."""
    W = whitening(scatter, ridge)
    return torch.cat([W, -(W @ mean)[:, None]], dim=1)


def check_difference(scatter: Float[Tensor, "d d"], field: str) -> None:
    """Refuse a scatter of nothing.

    Args:
        scatter: S.
        field: Where whitening was asked for.

    Raises:
        DegenerateError: If no positive pair differs.
    """
    if not float(scatter.trace()) > 0:
        raise DegenerateError(
            "no two different examples belong together, so whitening within classes or places cannot be "
            "learnt.",
            field=field,
            hint='Take the "identity".',
        )


def whitening(scatter: Float[Tensor, "d d"], ridge: float) -> Float[Tensor, "d d"]:
    """Compute W from S, at any scale, and λ."""
    variances, directions = spectrum(scatter)
    return (directions * factors(variances, ridge)) @ directions.T


def spectrum(scatter: Float[Tensor, "d d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Compute variances, of mean one, along orthonormal directions (columns)."""
    variances, directions = torch.linalg.eigh(scatter)
    variances = variances.clamp(min=0)
    mean = variances.mean()
    return (variances / mean if mean > 0 else torch.ones_like(variances)), directions


def factors(variances: Float[Tensor, " d"], ridge: float) -> Float[Tensor, " d"]:
    """Return what W multiplies each direction by, from its variance and λ."""
    return ((variances + ridge) / (1 + ridge)).rsqrt()
