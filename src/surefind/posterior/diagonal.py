"""The posterior with independent weights: the paper's, and the default.

Head weights are independent Gaussians, so an input's output is one with a diagonal covariance,

    z | h ~ N(W h, diag v),    v_k = Σ_q h_q² / precision_kq,

one extra matrix product. `surefind.posterior.sphere` takes it to the sphere without sampling.

Two kinds of samples: *marginal* ones draw each input's output on its own, O(z) a sample; *joint* ones draw
a head and embed all inputs with it, for comparing embeddings under one sampled network (as ECE
does). For a single input they have the same distribution.

Axes: ``n`` examples, ``d`` features, ``z`` outputs, ``s`` samples.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_int
from surefind.curvature.structured import Structure
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.pairs.blocks import blocks
from surefind.posterior.contract import SpectralPosterior, Spectrum, check_features
from surefind.posterior.evidence import Evidence
from surefind.posterior.precision import check_precision
from surefind.posterior.projection import gaussian_embeddings, unit
from surefind.tensor_checks import check_matrix

SQUARES = 1 << 19
"""Squared features held at a time: 2 MB in float32."""


@dataclass(frozen=True, eq=False)
class HeadPosterior(SpectralPosterior):
    """Independent Gaussian weights of a linear head.

    Attributes:
        mean: The weights (z, d); the last column is the bias if features carry a one.
        precision: One over their variances (z, d), all above zero.
        clipped: Share of the curvature that was clipped on the way to the precision.
        evidence: Loss and prior, for `log_evidence`; None if they are not known.

    Raises:
        InputError: If mean and precision do not fit, or a precision is not positive or too small.
    """

    structure: ClassVar[Structure] = "diagonal"
    mean: Tensor
    precision: Tensor
    clipped: float = 0.0
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        check_matrix("mean", self.mean)
        check_matrix("precision", self.precision)
        if self.precision.shape != self.mean.shape or self.precision.dtype != self.mean.dtype:
            raise InputError(
                f"mean and precision must have the same shape and dtype; got "
                f"{tuple(self.mean.shape)} {self.mean.dtype} and "
                f"{tuple(self.precision.shape)} {self.precision.dtype}."
            )
        check_precision(self.precision)

    @staticmethod
    def spectrum(mean: Tensor, curvature: Tensor) -> Spectrum:
        """Take a curvature (z, d), which is diagonal in the weights themselves."""
        if curvature.shape != mean.shape:
            raise InputError(
                f"curvature must have the weights' shape {tuple(mean.shape)}; "
                f"got {tuple(curvature.shape)}."
            )
        return Spectrum(curvature)

    @cached_property
    def _variance(self) -> Float[Tensor, "z d"]:
        return 1 / self.precision

    def predict(self, features: Tensor) -> Embeddings:
        """Compute the direction and concentration of each row of features (n, d), without sampling."""
        return gaussian_embeddings(*self.output_moments(features))

    def predict_plain(
        self, plain: Float[Tensor, "n p"], outputs: Float[Tensor, "n z"]
    ) -> Embeddings:
        """Predict from a network's own features, which would have to be copied to append a one.

        Args:
            plain: (n, d - 1), or (n, d) if the head has no bias.
            outputs: The mean outputs.

        Returns:
            The embeddings.
        """
        return gaussian_embeddings(outputs, self.output_variance(plain))

    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length."""
        outputs, variances = self.output_moments(features)
        return variances.sum(1) / outputs.square().sum(1)

    def output_moments(self, features: Tensor) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z"]]:
        """Compute mean and variance of the outputs (n, z) before normalisation."""
        check_features(features, self.mean)
        return features @ self.mean.T, _quadratic(features, self._variance)

    def output_variance(self, plain: Float[Tensor, "n p"]) -> Float[Tensor, "n z"]:
        """Compute the variance of the outputs from features with or without the column of ones."""
        width = plain.shape[1]
        return _quadratic(plain, self._variance[:, :width]) + self._variance[:, width:].sum(1)

    def sample(
        self, features: Tensor, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw unit embeddings.

        Args:
            features: (n, d).
            n_samples: How many of each input.
            joint: True: one sampled head embeds all inputs. False: each input on its own.
            generator: The source of randomness.

        Returns:
            Unit vectors (s, n, z).
        """
        check_int("n_samples", n_samples, least=1)
        if joint:
            changed = self.draw(features, n_samples, generator)
            return unit(changed.add_(features @ self.mean.T))
        mean, variance = self.output_moments(features)
        noise = normal((n_samples, *mean.shape), mean, generator)
        return unit(mean + variance.sqrt() * noise)

    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""
        check_features(features, self.mean)
        changes = features.new_empty(n_samples, len(features), len(self.mean))
        deviation = self._variance.sqrt()
        for change in changes:
            head = normal(self.mean.shape, features, generator).mul_(deviation)
            torch.matmul(features, head.T, out=change)
        return changes


def _quadratic(
    features: Float[Tensor, "n d"], variance: Float[Tensor, "z d"]
) -> Float[Tensor, "n z"]:
    """Compute Σ_q h_q² σ²_kq, squaring in pieces that stay in cache instead of in a second copy."""
    value = features.new_empty(len(features), len(variance))
    for rows in blocks(slice(0, len(features)), max(1, SQUARES // features.shape[1])):
        h = features[rows]
        torch.matmul(h * h, variance.T, out=value[rows])
    return value


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw standard normals with the generator, on the device and in the dtype of ``like``."""
    noise = torch.randn(*shape, generator=generator, dtype=like.dtype, device=generator.device)
    return noise.to(like.device)
