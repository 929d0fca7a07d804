"""Second derivatives of the contrastive loss in the head's outputs, one block an example.

With z = n u (length n, direction u), s = 1/n and the targets y_ij of `surefind.pairs.losses`, every
example's own block of the Gauss-Newton matrix in output space has the form

    A_i = 2 s_i² (a_i I + u_i b_iᵀ + b_i u_iᵀ)

Euclidean (the normalisation belongs to the network and is linearised; paper, `Euclidean distance`):
    a_i = w_i,  b_i = -½ w_i u_i           with w_i = Σ_j y_ij
Arccos (the normalisation belongs to the loss and is not; paper, `Arccos distance`):
    a_i = p_i,  b_i = m_i - 3/2 p_i u_i    with m_i = Σ_j y_ij u_j, p_i = <u_i, m_i>

The factor 2 is there because ordered pairs meet each example twice. Only w_i or m_i depends on the
pairs; this is why "fixed" curvature over all pairs of a data set is affordable.

Blocks may be indefinite: negative pairs push apart. Nothing here repairs that.

Axes: ``n`` examples, ``z`` outputs.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

Distance = Literal["euclidean", "arccos"]
DISTANCES = get_args(Distance)


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
