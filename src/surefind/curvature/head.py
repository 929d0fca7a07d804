"""Curvature of the contrastive loss in the weights of a linear head, in closed form.

For z = W h (append a one to h to carry the bias) the Gauss-Newton matrix over all ordered pairs is

    G = Σ_i A_i ⊗ h_i h_iᵀ  -  Σ_ij C_ij ⊗ h_i h_jᵀ,    C_ij = 2 y_ij s_i s_j P_i P_j,  P = I - u uᵀ,

with the blocks A_i of `surefind.curvature.outputs`. The cross term is the same for both distances
(arccos "full" and "positive" in the authors' code have it with the wrong sign). Three ways towards
positive definiteness (paper, eqs. `pos`, `fix`, `full`):

- "fixed": no cross term. Euclidean: not negative where w_i >= 0, as with balanced classes. With unequal
  ones a small class can have w_i < 0: the paper's proof counts pairs per anchor, its loss over the set.
- "positive": both terms, over positive pairs only. Euclidean: not negative.
- "full": both terms, all pairs.

What comes back is a sum over pairs, neither scaled nor clipped, and linear in the targets: parts of a
pair set add up to the whole. Clipping, scale and prior happen in `surefind.posterior.precision`.

Axes: ``n`` examples, ``d`` features, ``z`` outputs, ``e`` pairs with a non-zero target.
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_choice
from surefind.curvature.outputs import (
    DISTANCES,
    Distance,
    OutputHessians,
    output_hessians_of_targets,
)
from surefind.errors import InputError
from surefind.tensor_checks import check_directed, check_finite, check_float, check_matrix

Approximation = Literal["fixed", "positive", "full"]
APPROXIMATIONS = get_args(Approximation)
CHUNK_ELEMENTS = 1 << 21
"""Numbers in a temporary of the cross term: 8 MB in float32."""


def head_curvature(
    features: Tensor,
    outputs: Tensor,
    targets: Tensor,
    *,
    distance: Distance,
    approximation: Approximation,
) -> Float[Tensor, "z d"]:
    """Compute the diagonal of the head's curvature, unclipped.

    Args:
        features: What the head sees (n, d), with a column of ones if it has a bias.
        outputs: Its outputs (n, z), before normalisation.
        targets: Symmetric pair targets (n, n) from `pair_targets`.
        distance: "euclidean" or "arccos".
        approximation: "fixed", "positive" or "full".

    Returns:
        One number for each head weight (z, d): a sum over pairs, which may be negative.
    """
    targets = checked_head(features, outputs, targets, distance, approximation)
    hessians = output_hessians_of_targets(outputs, targets, distance)
    diagonal = head_diagonal(hessians, features)
    if approximation != "fixed":
        diagonal -= _cross_diagonal(features, hessians, targets)
    return diagonal


def head_diagonal(hessians: OutputHessians, features: Float[Tensor, "n d"]) -> Float[Tensor, "z d"]:
    """Contract the blocks with the features: Σ_i diag(A_i) h_i²."""
    return hessians.diagonal().T @ (features * features)


def checked_head(
    features: Tensor, outputs: Tensor, targets: Tensor, distance: str, approximation: str
) -> Float[Tensor, "n n"]:
    """Check what the head's curvatures take, and leave in the targets what the approximation uses.

    Args:
        features: (n, d).
        outputs: (n, z), no row of them zero.
        targets: (n, n), symmetric.
        distance: One of DISTANCES.
        approximation: One of APPROXIMATIONS.

    Returns:
        The targets; for "positive" only the positive ones.

    Raises:
        InputError: If the targets do not belong to the examples, or the dtypes differ.
    """
    check_choice("distance", distance, DISTANCES)
    check_choice("approximation", approximation, APPROXIMATIONS)
    check_matrix("outputs", outputs)
    check_directed("outputs", outputs)
    check_matrix("features", features, rows=len(outputs))
    check_float("targets", targets)
    if not features.dtype == outputs.dtype == targets.dtype:
        raise InputError(
            f"features, outputs and targets must have one dtype; got {features.dtype}, "
            f"{outputs.dtype} and {targets.dtype}. Convert them with .float() or .double()."
        )
    if targets.shape != (len(outputs), len(outputs)):
        raise InputError(
            f"targets must be one number for each pair of {len(outputs)} examples; "
            f"got shape {tuple(targets.shape)}."
        )
    check_finite("targets", targets)
    if not torch.equal(targets, targets.T):
        raise InputError("targets must be symmetric: (i, j) and (j, i) are the same pair.")
    return targets.clamp(min=0) if approximation == "positive" else targets


def _cross_diagonal(
    features: Float[Tensor, "n d"], at: OutputHessians, targets: Float[Tensor, "n n"]
) -> Float[Tensor, "z d"]:
    """Compute 2 Σ_ij y_ij s_i s_j h_iq h_jq (1 - u_ik² - u_jk² + c_ij u_ik u_jk)."""
    u, s = at.directions, at.inverse_lengths
    M = targets * s[:, None] * s[None, :]
    HG = features * (M @ features)
    cross = HG.sum(0) - 2 * (u * u).T @ HG
    N = M * (u @ u.T)
    pairs = N.triu().nonzero()
    # Pair by pair costs e (z + d) to gather and e z d to multiply; output by output n² z d.
    n, z = u.shape
    if len(pairs) * (z + 32) < n * n * z:
        cross += _quadratic_over_pairs(features, u, N, pairs)
    else:
        cross += _quadratic_over_outputs(features, u, N)
    return 2 * cross


def _quadratic_over_pairs(
    features: Float[Tensor, "n d"],
    u: Float[Tensor, "n z"],
    N: Float[Tensor, "n n"],
    pairs: Tensor,
) -> Float[Tensor, "z d"]:
    """Compute Σ_ij N_ij u_ik u_jk h_iq h_jq over the non-zero pairs i < j."""
    total = torch.zeros(u.shape[1], features.shape[1], dtype=u.dtype, device=u.device)
    size = max(1, CHUNK_ELEMENTS // (u.shape[1] + features.shape[1]))
    for i, j in (part.T for part in torch.split(pairs, size)):
        uu = (2 * N[i, j])[:, None] * u[i] * u[j]
        total.addmm_(uu.T, features[i] * features[j])
    return total


def _quadratic_over_outputs(
    features: Float[Tensor, "n d"], u: Float[Tensor, "n z"], N: Float[Tensor, "n n"]
) -> Float[Tensor, "z d"]:
    """Compute the same, one output at a time: Σ_i x_iq (N x)_iq with x = u_k ∘ H."""
    rows = []
    for k in range(u.shape[1]):
        x = u[:, k, None] * features
        rows.append((x * (N @ x)).sum(0))
    return torch.stack(rows)
