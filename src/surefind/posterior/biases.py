"""A posterior over the biases of all layers, beside the head's weights: variance of the outputs by linearisation.

The head's posterior sees the last features alone. Let the biases b of layer ℓ be independent Gaussians too, and the
layers independent of each other. To first order in them, an input's output is Gaussian, and variances add up:

    z | x ~ N(W h, V_head + Σ_ℓ J_ℓ diag(1 / precision_ℓ) J_ℓᵀ),        J_ℓ = ∂z/∂b_ℓ

κ is about directions, and to first order 1 - R̄² is the variance in the tangent space of the sphere at u = z/|z|, over |z|².
So what the layers add is one number an input, the trace over the tangent space,

    τ = Σ_ℓ Σ_t Σ_p (J_ℓᵀ t)_p² / precision_ℓp        over an orthonormal basis t of it,

spread evenly over its z - 1 dimensions. Each t is one backward pass. With q < z - 1 *probes* the sum runs over q random orthonormal
directions, times (z - 1) / q: unbiased, and exact for q = z - 1. The probes are drawn once and turned into each input's tangent
space by the reflection that takes the first axis to u: the same input has the same κ, whatever its company.

**Prior.** Each layer has a scale of its own, or the largest would drown the rest:

    precision_ℓ = s_ℓ · (max(0, curvature_ℓ) + ρ · its mean),

and s_ℓ is such that, for the median training example, every layer has the same share of the relative variance τ_ℓ / |z|². It is a prior
by what it says of outputs instead of weights, whose lengths mean nothing in a network with normalised outputs.

Joint samples are linear in the same biases (z + Σ_ℓ J_ℓ ε_ℓ, one backward pass for each output, whatever the number of samples),
so they agree with κ up to Monte Carlo error and, for a wide posterior, what "to first order" leaves out.

Axes: ``n`` examples, ``z`` outputs, ``p`` biases of a layer, ``q`` probes, ``s`` samples.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.curvature.biases import Pullback
from surefind.errors import InputError
from surefind.posterior.diagonal import normal
from surefind.posterior.precision import clip_negative
from surefind.validation import check_int


@dataclass(frozen=True, eq=False)
class BiasPosterior:
    """Independent Gaussian biases of a backbone's layers.

    Attributes:
        precision: For each layer, one over the variances of its biases (p).
        probes: Orthonormal columns (z - 1, q).
    """

    precision: Mapping[str, Tensor]
    probes: Tensor

    def tangent_variance(self, pull: Pullback) -> Float[Tensor, " n"]:
        """Estimate the variance of the outputs in the tangent space, summed over it."""
        found = layer_variances(pull, {k: 1 / v for k, v in self.precision.items()}, self.probes)
        return torch.stack(list(found.values())).sum(0)

    def draw(
        self, pull: Pullback, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw biases, and return by how much each changes the outputs, linearised."""
        noise = {
            k: normal((n_samples, len(v)), v, generator) / v.sqrt()
            for k, v in self.precision.items()
        }
        outputs = pull.outputs
        change = outputs.new_zeros(n_samples, *outputs.shape)
        for k in range(outputs.shape[1]):
            axis = torch.zeros_like(outputs)
            axis[:, k] = 1
            for name, g in pull(axis).items():
                change[:, :, k] += noise[name] @ g.T
        return change


def draw_probes(z: int, count: int, like: Tensor, generator: torch.Generator) -> Float[Tensor, "t q"]:
    """Draw orthonormal directions of a tangent space, uniformly.

    Args:
        z: Dimension of the outputs.
        count: How many; no more than z - 1 are drawn, which are all.
        like: Whose dtype and device they get.
        generator: The source of randomness.

    Returns:
        Directions in columns (z - 1, q).

    Raises:
        InputError: If the outputs are of one dimension: a sphere of two points has no tangent.
    """
    check_int("probes", count, least=1)
    if z < 2:
        raise InputError(
            "a posterior over the biases needs at least two outputs; this head has one."
        )
    square = normal((z - 1, z - 1), torch.empty(0, dtype=torch.float64), generator)
    basis, triangle = torch.linalg.qr(square)
    uniform = basis * triangle.diagonal().sign()
    return uniform[:, :count].to(like)


def tangents(
    outputs: Float[Tensor, "n z"], probes: Float[Tensor, "t q"]
) -> Float[Tensor, "q n z"]:
    """Turn probes into directions orthogonal to each output, by the reflection of the first axis to it."""
    u = torch.nn.functional.normalize(outputs, dim=1)
    axis = torch.zeros_like(u)
    axis[:, 0] = torch.where(u[:, 0] < 0, -1.0, 1.0)
    mirror = torch.nn.functional.normalize(u + axis, dim=1)
    padded = torch.cat([torch.zeros_like(probes[:1]), probes]).T[:, None]
    return padded - 2 * (padded * mirror).sum(2, keepdim=True) * mirror


def layer_variances(
    pull: Pullback, variance: Mapping[str, Tensor], probes: Float[Tensor, "t q"]
) -> dict[str, Float[Tensor, " n"]]:
    """Estimate what each layer's biases add to the variance in the tangent space.

    Args:
        pull: A batch.
        variance: Of the biases, for each layer (p).
        probes: From `draw_probes`.

    Returns:
        For each layer the trace over the tangent space (n).
    """
    total = dict.fromkeys(variance, pull.outputs.new_zeros(()))
    for direction in tangents(pull.outputs, probes):
        pulled = pull(direction)
        for name, of_biases in variance.items():
            total[name] = total[name] + (pulled[name] ** 2) @ of_biases
    factor = len(probes) / probes.shape[1]
    return {name: factor * value for name, value in total.items()}
