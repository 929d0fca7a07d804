"""A linear head in closed form: members of a class, or images of a place, come close without training.

    z = W (h - μ),    μ the mean of all h,    |W|² = the number of its rows

Up to that scale, which the sphere removes and which makes a prior precision mean what it means for the
identity,

- of **classes**, W is the label model's transform (`surefind.labels.gaussian`), row by row √(b/(b+1)) T:
  members of a class differ alike in all directions, those in which classes do not differ hardly count;
- of **positions or listed pairs**, of which there are no labels, it is the inverse root of the scatter of
  their m positive pairs with linear shrinkage (λ = `RIDGE`),

      S = Σ_(i,j) (h_i - h_j)(h_i - h_j)ᵀ        W = (S/m + λ tr(S/m)/d I)^(-1/2)

With A the symmetric 0/1 matrix of positive pairs and D its row sums, S = Hᵀ (D - A) H, which any relation
adds up without a list of its pairs. S has an error of 1 % where differences are 1e-7 of the features'
spread; what rounding leaves of equal features, up to `ROUNDING` times the precision, counts as nothing.

A narrower head first takes principal components. Frozen ImageNet features of CUB200 (EfficientNet-Lite0),
fitted to half of the images of classes 1 to 100; recall@1 among the others, and among classes 101 to 200:

    outputs                                  1,280             256               64
    principal components alone               0.636, 0.550      0.640, 0.542      0.614, 0.502
    W of these components                    0.704, 0.568      0.682, 0.550      0.637, 0.521
    the first rows of W of all features      0.704, 0.568      0.712, 0.519      0.701, 0.471

Axes: ``n`` examples, ``d`` features.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from surefind.errors import DegenerateError
from surefind.labels.gaussian import LabelSums, fit_space
from surefind.pairs.relations import Classes, Relation, row_blocks

RIDGE = 3.0
"""λ: 1 to 10 gained alike on unseen classes of CUB200."""

ROUNDING = 64
"""How many times the precision of their squared lengths equal features may seem to differ by."""


def closed_form_head(
    features: Float[Tensor, "n d"], relation: Relation, *, field: str
) -> Float[Tensor, "d columns"]:
    """Compute a head from which examples belong together.

    Args:
        features: A row per example.
        relation: Which of them belong together.
        field: The argument that asked for it, for the error.

    Returns:
        [W, -W μ] in float64.

    Raises:
        DegenerateError: If no two different examples belong together.
    """
    mean = features.double().mean(0)
    h = features.double() - mean
    scatter = pair_scatter(h, relation)
    if not scatter.any():
        raise DegenerateError(
            "no two different examples belong together, so a head in closed form cannot be learnt.",
            field=field,
            hint='Take the "identity".',
        )
    if isinstance(relation, Classes):
        names, codes = np.unique(relation.labels.cpu().numpy(), return_inverse=True)
        rows = (h / h.square().sum(1).mean().sqrt()).cpu().numpy()
        space = fit_space(LabelSums.of(rows, codes, len(names)), normalize=False)
        weights = np.sqrt(space.spread / (space.spread + 1))[:, None] * space.transform
        W = torch.from_numpy(weights).to(h)
    else:
        variances, directions = torch.linalg.eigh(scatter)
        shrunk = variances.clamp(min=0) + RIDGE * variances.mean()
        W = directions * shrunk.rsqrt() @ directions.T
    W *= len(W) ** 0.5 / torch.linalg.matrix_norm(W)
    return torch.cat([W, -(W @ mean)[:, None]], dim=1)


def pair_scatter(features: Float[Tensor, "n d"], relation: Relation) -> Float[Tensor, "d d"]:
    """Add up S, the outer products of the differences of positive pairs, in float64.

    Args:
        features: A row per example.
        relation: Which of them belong together.

    Returns:
        S.
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
    if float(scatter.trace()) <= ROUNDING * torch.finfo(h.dtype).eps * length:
        return torch.zeros_like(scatter)
    return (scatter + scatter.T) / 2
