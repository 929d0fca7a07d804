"""Posteriors with correlated weights: Kronecker and dense, behind the same contract.

Both take more memory and time, and say what independence costs. Both predict exactly, without sampling: the
sphere does not care for a rotation, so a Gaussian output is turned into the eigenbasis of its covariance,
projected there as in `surefind.posterior.sphere`, and turned back.

- Kronecker: the curvature L ⊗ R / tr has the eigenvectors of L and R whatever the prior, so *one* basis
  serves all inputs: with h̃ = Rᵥᵀ h,  v_k = Σ_q h̃_q² / (scale · l_k r_q / tr + δ).
- Dense: an input's covariance is its own, so each has an eigendecomposition: O(z³) an input, and
  O((z d)³) once. For small heads.

Negative eigenvalues are clipped (Kronecker: of each factor). Axes: ``n``, ``d``, ``z``, ``s`` as ever.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_int
from surefind.curvature.structured import KroneckerCurvature, Structure
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.posterior.contract import SpectralPosterior, Spectrum, check_features, completed
from surefind.posterior.diagonal import normal
from surefind.posterior.evidence import Evidence
from surefind.posterior.precision import check_precision, clip_negative
from surefind.posterior.projection import gaussian_embeddings, unit
from surefind.tensor_checks import check_finite, check_matrix


@dataclass(frozen=True, eq=False)
class KroneckerPosterior(SpectralPosterior):
    """Gaussian weights whose covariance is diagonal in a product basis.

    Attributes:
        mean: The weights (z, d).
        precision: Eigenvalues of the precision (z, d), for left vector k and right vector q.
        left: Eigenvectors over the outputs (z, z), in columns.
        right: Eigenvectors over the features (d, d), in columns.
        clipped: Share of the curvature's eigenvalues that was clipped.
        evidence: Loss and prior, for `log_evidence`.

    Raises:
        InputError: If the parts do not fit together, or a precision is not positive or too small.
    """

    structure: ClassVar[Structure] = "kronecker"
    mean: Tensor
    precision: Tensor
    left: Tensor
    right: Tensor
    clipped: float = 0.0
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        check_matrix("mean", self.mean)
        z, d = self.mean.shape
        _check_part("precision", self.precision, self.mean, (z, d))
        _check_part("left", self.left, self.mean, (z, z))
        _check_part("right", self.right, self.mean, (d, d))
        check_precision(self.precision)

    @staticmethod
    def spectrum(mean: Tensor, curvature: KroneckerCurvature) -> Spectrum:
        """Diagonalise both factors of a curvature, and clip their eigenvalues."""
        shape = (len(curvature.left), len(curvature.right))
        if shape != mean.shape:
            raise InputError(
                f"curvature is of a head {shape}; the weights are {tuple(mean.shape)}."
            )
        check_finite("the curvature's left factor", curvature.left)
        check_finite("the curvature's right factor", curvature.right)
        left_values, left = _eigenbasis(curvature.left)
        right_values, right = _eigenbasis(curvature.right)
        (a, lost_left), (b, lost_right) = clip_negative(left_values), clip_negative(right_values)
        # The product's trace is that of either factor; clipping must not change it.
        values = a[:, None] * b[None, :] / b.sum()
        lost = 1 - (1 - lost_left) * (1 - lost_right)
        return Spectrum(values, {"left": left, "right": right}, lost)

    def predict(self, features: Tensor) -> Embeddings:
        """Compute the direction and concentration of each row (n, d), exactly, in the one eigenbasis."""
        turned = gaussian_embeddings(*self._turned_moments(features))
        return Embeddings(turned.mean @ self.left.T, turned.kappa)

    def predict_plain(self, plain: Tensor, outputs: Tensor) -> Embeddings:
        """Predict from features that may lack the column of ones."""
        return self.predict(completed(plain, self.mean))

    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length; turning changes neither."""
        outputs, variances = self._turned_moments(features)
        return variances.sum(1) / outputs.square().sum(1)

    def sample(
        self, features: Tensor, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw unit embeddings (s, n, z); arguments as `HeadPosterior.sample`."""
        check_int("n_samples", n_samples, least=1)
        if joint:
            return unit(self.draw(features, n_samples, generator) + features @ self.mean.T)
        mean, variance = self._turned_moments(features)
        noise = normal((n_samples, *mean.shape), mean, generator)
        return unit((mean + variance.sqrt() * noise) @ self.left.T)

    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""
        check_features(features, self.mean)
        noise = normal((n_samples, *self.mean.shape), features, generator) / self.precision.sqrt()
        return features @ (self.left @ noise @ self.right.T).mT

    def _turned_moments(
        self, features: Tensor
    ) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z"]]:
        check_features(features, self.mean)
        mean = features @ self.mean.T @ self.left
        return mean, (features @ self.right) ** 2 @ (1 / self.precision).T


@dataclass(frozen=True, eq=False)
class DensePosterior(SpectralPosterior):
    """Gaussian weights with any covariance.

    Attributes:
        mean: The weights (z, d).
        precision: Eigenvalues of the precision (p), p = z d.
        basis: Its eigenvectors (p, p), in columns, over the weights row by row.
        clipped: Share of the curvature's eigenvalues that was clipped.
        evidence: Loss and prior, for `log_evidence`.

    Raises:
        InputError: If the parts do not fit together, or a precision is not positive or too small.
    """

    structure: ClassVar[Structure] = "dense"
    mean: Tensor
    precision: Tensor
    basis: Tensor
    clipped: float = 0.0
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        check_matrix("mean", self.mean)
        p = self.mean.numel()
        _check_part("precision", self.precision, self.mean, (p,))
        _check_part("basis", self.basis, self.mean, (p, p))
        check_precision(self.precision)

    @staticmethod
    def spectrum(mean: Tensor, curvature: Tensor) -> Spectrum:
        """Diagonalise a curvature (z d, z d)."""
        if curvature.shape != (mean.numel(), mean.numel()):
            raise InputError(
                f"curvature must be ({mean.numel()}, {mean.numel()}) for these weights; "
                f"got {tuple(curvature.shape)}."
            )
        check_finite("curvature", curvature)
        values, basis = _eigenbasis(curvature)
        return Spectrum(values, {"basis": basis})

    def predict(self, features: Tensor) -> Embeddings:
        """Compute the direction and concentration of each row (n, d), exactly, in its own eigenbasis."""
        mean, covariance = self._output_moments(features)
        variance, vectors = torch.linalg.eigh(covariance)
        turned = gaussian_embeddings(
            torch.einsum("nk,nkl->nl", mean, vectors), variance.clamp(min=0)
        )
        return Embeddings(torch.einsum("nl,nkl->nk", turned.mean, vectors), turned.kappa)

    def predict_plain(self, plain: Tensor, outputs: Tensor) -> Embeddings:
        """Predict from features that may lack the column of ones."""
        return self.predict(completed(plain, self.mean))

    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length."""
        outputs, covariances = self._output_moments(features)
        total = covariances.diagonal(dim1=1, dim2=2).sum(1)
        return total / outputs.square().sum(1)

    def sample(
        self, features: Tensor, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw unit embeddings (s, n, z); arguments as `HeadPosterior.sample`."""
        check_int("n_samples", n_samples, least=1)
        if joint:
            return unit(self.draw(features, n_samples, generator) + features @ self.mean.T)
        mean, covariance = self._output_moments(features)
        variance, vectors = torch.linalg.eigh(covariance)
        noise = normal((n_samples, *mean.shape), mean, generator)
        noise = noise * variance.clamp(min=0).sqrt()
        return unit(mean + torch.einsum("snl,nkl->snk", noise, vectors))

    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""
        check_features(features, self.mean)
        noise = normal((n_samples, len(self.precision)), self.mean, generator)
        heads = (noise / self.precision.sqrt()) @ self.basis.T
        return features @ heads.view(n_samples, *self.mean.shape).mT

    def _output_moments(
        self, features: Tensor
    ) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z z"]]:
        check_features(features, self.mean)
        z, d = self.mean.shape
        root = (self.basis / self.precision.sqrt()).view(z, d, z * d)
        half = torch.einsum("nq,kqp->nkp", features, root)
        return features @ self.mean.T, half @ half.mT


def _eigenbasis(matrix: Float[Tensor, "k k"]) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """Diagonalise; signs are fixed, so that equal noise draws equal heads in any precision."""
    values, vectors = torch.linalg.eigh(matrix)
    signed = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    # Row by row, as a file holds it: products of another layout may differ in the last bit.
    return values, signed.contiguous()


def _check_part(name: str, value: Tensor, mean: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape != shape or value.dtype != mean.dtype:
        raise InputError(
            f"{name} must be {shape} {mean.dtype} for weights {tuple(mean.shape)}; "
            f"got {tuple(value.shape)} {value.dtype}."
        )
    check_finite(name, value)
