"""The head's curvature beyond its diagonal: dense, and as a Kronecker product.

Both are of the matrix G of `surefind.curvature.head`, for all six curvatures, unscaled and unclipped.
The dense one is exact and takes (z d)² numbers. The Kronecker one keeps its two partial traces,

    L = Σ_q G_{·q,·q}  (z, z),    R = Σ_k G_{k·,k·}  (d, d),    G ≈ L ⊗ R / tr G,

which is exact whenever G is a Kronecker product, and has the right trace always. Both parts are linear
in the targets, so they add over batches and processes.

Axes: ``n`` examples, ``d`` features, ``z`` outputs, ``p`` = z d weights, row by row.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.curvature.head import Approximation, checked_head
from surefind.curvature.outputs import Distance, OutputHessians, output_hessians_of_targets

Structure = Literal["diagonal", "kronecker", "dense"]
STRUCTURES = get_args(Structure)


@dataclass(frozen=True, eq=False)
class KroneckerCurvature:
    """Partial traces of the head's curvature.

    Attributes:
        left: Over the features: (z, z).
        right: Over the outputs: (d, d).
    """

    left: Float[Tensor, "z z"]
    right: Float[Tensor, "d d"]

    def __add__(self, other: "KroneckerCurvature") -> "KroneckerCurvature":
        return KroneckerCurvature(self.left + other.left, self.right + other.right)


Curvature = Tensor | KroneckerCurvature
"""Of any structure: a diagonal (z, d), a dense matrix (z d, z d), or partial traces."""


def kronecker_curvature(
    features: Tensor,
    outputs: Tensor,
    targets: Tensor,
    *,
    distance: Distance,
    approximation: Approximation,
) -> KroneckerCurvature:
    """Compute the partial traces of the head's curvature; arguments as `head_curvature`.

    Args:
        features: (n, d).
        outputs: (n, z), before normalisation.
        targets: (n, n), from `pair_targets`.
        distance: "euclidean" or "arccos".
        approximation: "fixed", "positive" or "full".

    Returns:
        The two factors, whose traces are equal.
    """
    targets = checked_head(features, outputs, targets, distance, approximation)
    hessians = output_hessians_of_targets(outputs, targets, distance)
    curvature = kronecker_of_blocks(hessians, features)
    if approximation == "fixed":
        return curvature
    return curvature + _cross_traces(features, hessians, targets)


def kronecker_of_blocks(
    hessians: OutputHessians, features: Float[Tensor, "n d"]
) -> KroneckerCurvature:
    """Take the partial traces of Σ_i A_i ⊗ h_i h_iᵀ without forming a block."""
    u, b = hessians.directions, hessians.partners
    weight = 2 * hessians.inverse_lengths**2 * (features * features).sum(1)
    outer = (weight[:, None] * u).T @ b
    left = outer + outer.T
    left.diagonal().add_((weight * hessians.isotropic).sum())
    return KroneckerCurvature(left, (hessians.trace()[:, None] * features).T @ features)


def dense_curvature(
    features: Tensor,
    outputs: Tensor,
    targets: Tensor,
    *,
    distance: Distance,
    approximation: Approximation,
) -> Float[Tensor, "p p"]:
    """Compute the head's whole curvature; arguments as `head_curvature`.

    Args:
        features: (n, d).
        outputs: (n, z), before normalisation.
        targets: (n, n), from `pair_targets`.
        distance: "euclidean" or "arccos".
        approximation: "fixed", "positive" or "full".

    Returns:
        The symmetric matrix (z d, z d) over the head's weights, row by row.
    """
    targets = checked_head(features, outputs, targets, distance, approximation)
    hessians = output_hessians_of_targets(outputs, targets, distance)
    G = torch.einsum("nkl,nq,nr->kqlr", hessians.dense(), features, features)
    if approximation != "fixed":
        u = hessians.directions
        P = torch.eye(u.shape[1], dtype=u.dtype, device=u.device) - u[:, :, None] * u[:, None, :]
        X = torch.einsum("n,nkl,nq->nklq", hessians.inverse_lengths, P, features)
        # Σ_ij y_ij (P_i P_j) ⊗ h_i h_jᵀ, in two steps so that nothing is n × n × z × d.
        Y = torch.einsum("ij,jmlr->imlr", targets, X)
        G -= 2 * torch.einsum("ikmq,imlr->kqlr", X, Y)
    p = outputs.shape[1] * features.shape[1]
    return G.reshape(p, p)


def _cross_traces(
    features: Float[Tensor, "n d"], at: OutputHessians, targets: Float[Tensor, "n n"]
) -> KroneckerCurvature:
    """Take the partial traces of -2 Σ_ij y_ij s_i s_j P_i P_j ⊗ h_i h_jᵀ."""
    u, s = at.directions, at.inverse_lengths
    M = targets * s[:, None] * s[None, :]
    C = u @ u.T
    K = M * (features @ features.T)
    # P_i P_j = I - u_i u_iᵀ - u_j u_jᵀ + c_ij u_i u_jᵀ, with trace z - 2 + c_ij².
    left = u.T @ ((K * C) @ u) - 2 * (K.sum(1)[:, None] * u).T @ u
    left.diagonal().add_(K.sum())
    right = features.T @ ((M * (u.shape[1] - 2 + C * C)) @ features)
    return KroneckerCurvature(-2 * left, -2 * right)
