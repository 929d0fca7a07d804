"""A posterior over the biases of all layers beside the head's weights: outputs' variance by linearisation.

The head's posterior sees the last features alone. Let the biases b of each layer ℓ be independent Gaussians
too, and the layers independent of each other. To first order in them, variances of the outputs add up:

    z | x ~ N(W h, V_head + Σ_ℓ J_ℓ diag(1 / precision_ℓ) J_ℓᵀ),        J_ℓ = ∂z/∂b_ℓ

κ is about directions, and to first order 1 - R̄² is the variance in the tangent space of the sphere at
u = z/|z|, over |z|². So what the layers add is one number an input, the trace over the tangent space,

    τ = Σ_ℓ Σ_t Σ_p (J_ℓᵀ t)_p² / precision_ℓp        over an orthonormal basis t of it,

spread evenly over its z - 1 dimensions. Each t is one backward pass (`surefind.paper.bias_curvature`). With
q < z - 1 *probes* the sum runs over q random orthonormal directions, times (z - 1) / q: unbiased, and exact
for q = z - 1. The probes are drawn once and turned into each input's tangent space by the reflection that
takes the first axis to u: the same input has the same κ, whatever its company.

**Prior.** Each layer has a scale of its own, or the largest would drown the rest:

    precision_ℓ = s_ℓ · (max(0, curvature_ℓ) + ρ · its mean),

and s_ℓ is such that, for the median training example, half of the relative variance in the tangent space is
the head's, and each layer below has the same share of the other half, at the level that the head's
posterior had alone. It is a prior by what it says of outputs instead of weights, whose lengths mean
nothing in a network that normalises its outputs. ρ and the half were chosen on validation data against
inputs made of them; what came of it, bad news included, is in docs/explanation/reading-kappa.md.

What is not guaranteed: without biases a ReLU network is homogeneous, so the relative variance by biases
falls with the square of an input's contrast. It finds inputs that leave the network with little to respond
to, and overlooks those that excite it more than training data do.

Joint samples are linear in the same biases, z + Σ_ℓ J_ℓ ε_ℓ: one backward pass for each output, whatever
the number of samples. They agree with κ up to Monte Carlo error, the probes' error and, for a wide
posterior, what "to first order" leaves out.

Axes: ``n`` examples, ``z`` outputs, ``p`` biases of a layer, ``q`` probes, ``s`` samples.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_int
from surefind.errors import DegenerateError, InputError
from surefind.paper.bias_curvature import Pullback
from surefind.posterior.head import HeadPosterior, clip_negative, normal

PROBES = 2
"""Backward passes an input: with two, κ costs about three times the embedding."""
SHAPE = 1e-2
"""ρ of the biases, in units of their layer's mean curvature."""
HEAD_SHARE = 0.5
"""The head's share of the variance; the layers below share the rest equally."""


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

    def isotropic_variance(self, pull: Pullback) -> Float[Tensor, "n 1"]:
        """Estimate the variance, the same for each output, that has this trace in the tangent space."""
        return self.tangent_variance(pull)[:, None] / len(self.probes)

    def tensors(self) -> dict[str, Tensor]:
        """Return its parts by name."""
        return {f"precision.{k}": v for k, v in self.precision.items()} | {"probes": self.probes}

    @staticmethod
    def restored(tensors: Mapping[str, Tensor], like: Tensor) -> "BiasPosterior":
        """Put it together again from `tensors`."""
        start = "precision."
        parts = {
            k.removeprefix(start): v.to(like) for k, v in tensors.items() if k.startswith(start)
        }
        return BiasPosterior(parts, tensors["probes"].to(like))

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
            pulled = pull(axis)
            for name, of_biases in noise.items():
                change[:, :, k] += of_biases @ pulled[name].T
        return change


def orthonormal(
    dim: int, count: int, like: Tensor, generator: torch.Generator
) -> Float[Tensor, "t q"]:
    """Draw orthonormal directions uniformly.

    Args:
        dim: Of their space.
        count: How many; no more than there are dimensions are drawn.
        like: Whose dtype and device they get.
        generator: The source of randomness.

    Returns:
        Directions in columns.
    """
    noise = normal((dim, min(dim, count)), torch.empty(0, dtype=torch.float64), generator)
    basis, triangle = torch.linalg.qr(noise)
    uniform: Tensor = (basis * triangle.diagonal().sign()).to(like)
    return uniform


def fit_biases(
    head: HeadPosterior,
    curvature: Mapping[str, Tensor],
    pulls: Callable[[], Iterable[Pullback]],
    generator: torch.Generator,
    *,
    probes: int = PROBES,
) -> tuple[HeadPosterior, BiasPosterior]:
    """Share the variance that a head's posterior has between the head and the layers below it.

    The level stays: for the median training example, the sum is what the head's alone was.

    Args:
        head: Its posterior, fitted.
        curvature: Of the biases, for each layer: a sum over pairs, unscaled and unclipped.
        pulls: Makes training examples, batch by batch.
        generator: Draws the probes.
        probes: How many.

    Returns:
        The head's posterior with its share, and that of the biases.

    Raises:
        InputError: If there is but one output: a sphere of two points has no tangent.
        DegenerateError: If no layer's curvature has anything positive.
    """
    check_int("probes", probes, least=1)
    z = len(head.mean)
    if z < 2:
        raise InputError("layers='biases' needs at least two outputs; this head has one.")
    known = {k: clip_negative(c)[0] for k, c in curvature.items() if bool((c > 0).any())}
    if not known:
        raise DegenerateError(
            "no bias below the head has a positive curvature: the backbone does not respond to its "
            "biases, or there is no positive pair in the sample. Use layers='head'."
        )
    shape = {k: c + SHAPE * c.mean() for k, c in known.items()}
    directions = orthonormal(z - 1, probes, head.mean, generator)
    of_head, of_layers = [], []
    for pull in pulls():
        squares = pull.outputs.square().sum(1)
        tangential = 1 - pull.outputs.square() / squares[:, None]
        of_head.append((head.output_variance(pull.plain) * tangential).sum(1) / squares)
        found = layer_variances(pull, {k: 1 / v for k, v in shape.items()}, directions)
        of_layers.append(torch.stack(list(found.values())) / squares)
    level = torch.cat(of_head).median()
    medians = torch.cat(of_layers, dim=1).median(dim=1).values
    share = (1 - HEAD_SHARE) * level / len(shape)
    precision = {k: v * m / share for (k, v), m in zip(shape.items(), medians, strict=True)}
    scaled = replace(head, precision=head.precision / HEAD_SHARE)
    return scaled, BiasPosterior(precision, directions)


def tangents(outputs: Float[Tensor, "n z"], probes: Float[Tensor, "t q"]) -> Float[Tensor, "q n z"]:
    """Turn probes into directions orthogonal to each output, by the reflection of the first axis to it."""
    u = torch.nn.functional.normalize(outputs, dim=1)
    axis = torch.zeros_like(u)
    axis[:, 0] = torch.where(u[:, 0] < 0, -1.0, 1.0)
    mirror = torch.nn.functional.normalize(u + axis, dim=1)
    padded = torch.cat([torch.zeros_like(probes[:1]), probes]).T[:, None]
    turned: Tensor = padded - 2 * (padded * mirror).sum(2, keepdim=True) * mirror
    return turned


def layer_variances(
    pull: Pullback, variance: Mapping[str, Tensor], probes: Float[Tensor, "t q"]
) -> dict[str, Float[Tensor, " n"]]:
    """Estimate what each layer's biases add to the variance in the tangent space.

    Args:
        pull: A batch.
        variance: Of the biases, for each layer (p).
        probes: Orthonormal columns, from `orthonormal`.

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
