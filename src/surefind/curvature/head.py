"""Curvature of the contrastive loss in the weights of a linear head, in closed form.

**In the outputs.** With z = n u (length n, direction u), s = 1/n and the targets y_ij of
`surefind.pairs.losses`, every example's own block of the Gauss-Newton matrix in output space has the form

    A_i = 2 s_i² (a_i I + u_i b_iᵀ + b_i u_iᵀ)

Euclidean (the normalisation belongs to the network and is linearised; paper, `Euclidean distance`):
    a_i = w_i,  b_i = -½ w_i u_i           with w_i = Σ_j y_ij
Arccos (the normalisation belongs to the loss and is not; paper, `Arccos distance`):
    a_i = p_i,  b_i = m_i - 3/2 p_i u_i    with m_i = Σ_j y_ij u_j, p_i = <u_i, m_i>

The factor 2 is there because ordered pairs meet each example twice. Only w_i or m_i depends on the
pairs; this is why "fixed" curvature over all pairs of a data set is affordable. Blocks may be indefinite:
negative pairs push apart. Nothing here repairs that.

**In the weights.** For z = W h (append a one to h to carry the bias) the Gauss-Newton matrix over all
ordered pairs is

    G = Σ_i A_i ⊗ h_i h_iᵀ  -  Σ_ij C_ij ⊗ h_i h_jᵀ,    C_ij = 2 y_ij s_i s_j P_i P_j,  P = I - u uᵀ.

The cross term is the same for both distances (arccos "full" and "positive" in the authors' code have it
with the wrong sign). Three ways towards positive definiteness (paper, eqs. `pos`, `fix`, `full`):

- "fixed": no cross term. Euclidean: not negative where w_i >= 0, as with balanced classes. With unequal
  ones a small class can have w_i < 0: the paper's proof counts pairs per anchor, its loss over the set.
- "positive": both terms, over positive pairs only. Euclidean: not negative.
- "full": both terms, all pairs.

What comes back is a sum over pairs, neither scaled nor clipped, and linear in the targets: parts of a
pair set add up to the whole. Clipping, scale and prior happen in `surefind.posterior.head`.

**Structures.** Of G there is the diagonal, the dense matrix, exact with (z d)² numbers, or the two partial
traces

    L = Σ_q G_{·q,·q}  (z, z),    R = Σ_k G_{k·,k·}  (d, d),    G ≈ L ⊗ R / tr G,

a Kronecker product, which is exact whenever G is one, and has the right trace always.

Axes: ``n`` examples, ``d`` features, ``z`` outputs, ``p`` = z d weights, row by row, ``e`` pairs with a
non-zero target.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_choice
from surefind.errors import InputError
from surefind.tensor_checks import check_directed, check_finite, check_float, check_matrix

Distance = Literal["euclidean", "arccos"]
DISTANCES = get_args(Distance)
Approximation = Literal["fixed", "positive", "full"]
APPROXIMATIONS = get_args(Approximation)
Structure = Literal["diagonal", "kronecker", "dense"]
STRUCTURES = get_args(Structure)

CHUNK_ELEMENTS = 1 << 21
"""Numbers in a temporary of the cross term: 8 MB in float32."""


@dataclass(frozen=True, eq=False)
class OutputHessians:
    """The blocks A_i, in the compact form of the module's docstring.

    Attributes:
        directions: u.
        inverse_lengths: s.
        isotropic: a.
        partners: b.
    """

    directions: Float[Tensor, "n z"]
    inverse_lengths: Float[Tensor, " n"]
    isotropic: Float[Tensor, " n"]
    partners: Float[Tensor, "n z"]

    def diagonal(self) -> Float[Tensor, "n z"]:
        """Return each block's diagonal: 2s²(a + 2 u∘b)."""
        inner = self.isotropic[:, None] + 2 * self.directions * self.partners
        return 2 * self.inverse_lengths[:, None] ** 2 * inner

    def trace(self) -> Float[Tensor, " n"]:
        """Return each block's trace: 2s²(z a + 2 <u, b>)."""
        inner = self.isotropic * self.directions.shape[1]
        inner = inner + 2 * (self.directions * self.partners).sum(1)
        return 2 * self.inverse_lengths**2 * inner

    def dense(self) -> Float[Tensor, "n z z"]:
        """Return the blocks themselves."""
        outer = self.directions[:, :, None] * self.partners[:, None, :]
        eye = torch.eye(outer.shape[1], dtype=outer.dtype, device=outer.device)
        blocks = self.isotropic[:, None, None] * eye + outer + outer.mT
        return 2 * self.inverse_lengths[:, None, None] ** 2 * blocks


def output_hessians(
    outputs: Float[Tensor, "n z"],
    target_sums: Float[Tensor, " n"],
    target_means: Float[Tensor, "n z"],
    distance: Distance,
) -> OutputHessians:
    """Form the blocks from what the pairs add up to.

    Args:
        outputs: The head's outputs z, before normalisation; no row is zero.
        target_sums: w_i = Σ_j y_ij.
        target_means: m_i = Σ_j y_ij u_j.
        distance: Whether the normalisation is linearised ("euclidean") or not ("arccos").

    Returns:
        The blocks.
    """
    inverse_lengths = 1 / torch.linalg.vector_norm(outputs, dim=1)
    u = outputs * inverse_lengths[:, None]
    if distance == "euclidean":
        return OutputHessians(u, inverse_lengths, target_sums, -0.5 * target_sums[:, None] * u)
    p = (u * target_means).sum(1)
    return OutputHessians(u, inverse_lengths, p, target_means - 1.5 * p[:, None] * u)


def output_hessians_of_targets(
    outputs: Float[Tensor, "n z"], targets: Float[Tensor, "n n"], distance: Distance
) -> OutputHessians:
    """Form the blocks from a matrix of targets."""
    u = torch.nn.functional.normalize(outputs, dim=1)
    return output_hessians(outputs, targets.sum(1), targets @ u, distance)


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
    check_finite("targets", targets)
    square = targets.shape == (len(outputs), len(outputs))
    if not square or not torch.equal(targets, targets.T):
        raise InputError(
            f"targets must be one number for each pair of {len(outputs)} examples, a symmetric matrix: "
            f"(i, j) and (j, i) are the same pair; got shape {tuple(targets.shape)}.",
            field="targets",
        )
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
