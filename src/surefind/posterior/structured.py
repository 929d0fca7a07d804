"""Posteriors with correlated weights: Kronecker and dense, behind the same contract.

They are for measuring what independence costs. Both predict exactly, without sampling: the sphere does
not care for a rotation, so a Gaussian output is turned into the eigenbasis of its covariance,
projected there as in `surefind.posterior.sphere`, and turned back.

- Kronecker: the curvature L ⊗ R / tr has the eigenvectors of L and R whatever the prior, so *one* basis
  serves all inputs: with h̃ = Rᵥᵀ h,  v_k = Σ_q h̃_q² / (scale · l_k r_q / tr + δ).
- Dense: an input's covariance is its own, so each has an eigendecomposition: O(z³) an input, and
  O((z d)³) once. For small heads.

Negative eigenvalues are clipped (Kronecker: of each factor). Axes: ``n``, ``d``, ``z``, ``s`` as ever.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.curvature.structured import KroneckerCurvature
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.posterior.contract import check_features
from surefind.posterior.diagonal import normal
from surefind.posterior.evidence import Evidence, laplace_log_evidence
from surefind.posterior.precision import check_precision, clip_negative, laplace_precision
from surefind.posterior.projection import gaussian_embeddings, unit
from surefind.validation import check_finite, check_int, check_matrix


@dataclass(frozen=True, eq=False)
class KroneckerPosterior:
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

    mean: Tensor
    precision: Tensor
    left: Tensor
    right: Tensor
    clipped: float
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        check_matrix("mean", self.mean)
        z, d = self.mean.shape
        _check_part("precision", self.precision, self.mean, (z, d))
        _check_part("left", self.left, self.mean, (z, z))
        _check_part("right", self.right, self.mean, (d, d))
        check_precision(self.precision)

    @classmethod
    def from_curvature(
        cls,
        mean: Tensor,
        curvature: KroneckerCurvature,
        *,
        scale: float,
        prior_precision: float,
        loss: float | None = None,
    ) -> "KroneckerPosterior":
        """Clip each factor's eigenvalues, scale, and add the prior.

        Args:
            mean: The head's weights (z, d).
            curvature: Their Kronecker curvature.
            scale: How many observations the averaged loss stands for.
            prior_precision: δ.
            loss: The averaged loss at the weights, if the evidence is wanted.

        Returns:
            The posterior.

        Raises:
            InputError: If the curvature is not the weights' own.
        """
        shape = (len(curvature.left), len(curvature.right))
        if shape != mean.shape:
            raise InputError(
                f"curvature is of a head {shape}; the weights are {tuple(mean.shape)}."
            )
        check_finite("the curvature's left factor", curvature.left)
        check_finite("the curvature's right factor", curvature.right)
        left_values, left = torch.linalg.eigh(curvature.left)
        right_values, right = torch.linalg.eigh(curvature.right)
        (a, lost_left), (b, lost_right) = clip_negative(left_values), clip_negative(right_values)
        # The product's trace is that of either factor; clipping must not change it.
        product = a[:, None] * b[None, :] / b.sum()
        precision, _ = laplace_precision(product, scale=scale, prior_precision=prior_precision)
        evidence = None if loss is None else Evidence(scale * loss, prior_precision)
        clipped = 1 - (1 - lost_left) * (1 - lost_right)
        precision, left, right = (x.to(mean.dtype) for x in (precision, left, right))
        return cls(mean, precision, left, right, clipped, evidence)

    def predict(self, features: Tensor) -> Embeddings:
        """Give each input its direction and concentration, exactly, in the one eigenbasis.

        Args:
            features: (n, d).

        Returns:
            The embeddings.
        """
        turned = gaussian_embeddings(*self._turned_moments(features))
        return Embeddings(turned.mean @ self.left.T, turned.kappa)

    def sample(
        self, features: Tensor, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw unit embeddings; arguments as `HeadPosterior.sample`.

        Args:
            features: (n, d).
            n_samples: How many of each input.
            joint: True: one sampled head embeds all inputs. False: each input on its own.
            generator: The source of randomness.

        Returns:
            Unit vectors (s, n, z).
        """
        check_int("n_samples", n_samples, least=1)
        mean, variance = self._turned_moments(features)
        if not joint:
            noise = normal((n_samples, *mean.shape), mean, generator)
            return unit((mean + variance.sqrt() * noise) @ self.left.T)
        noise = normal((n_samples, *self.mean.shape), mean, generator) / self.precision.sqrt()
        heads = self.mean + self.left @ noise @ self.right.T
        return unit(features @ heads.mT)

    def log_evidence(self) -> float:
        """Give the Laplace approximation of the log marginal likelihood."""
        return laplace_log_evidence(
            self.evidence, self.mean, float(self.precision.double().log().sum())
        )

    def _turned_moments(
        self, features: Tensor
    ) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z"]]:
        check_features(features, self.mean)
        mean = features @ self.mean.T @ self.left
        return mean, (features @ self.right) ** 2 @ (1 / self.precision).T


@dataclass(frozen=True, eq=False)
class DensePosterior:
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

    mean: Tensor
    precision: Tensor
    basis: Tensor
    clipped: float
    evidence: Evidence | None = None

    def __post_init__(self) -> None:
        check_matrix("mean", self.mean)
        p = self.mean.numel()
        _check_part("precision", self.precision, self.mean, (p,))
        _check_part("basis", self.basis, self.mean, (p, p))
        check_precision(self.precision)

    @classmethod
    def from_curvature(
        cls,
        mean: Tensor,
        curvature: Tensor,
        *,
        scale: float,
        prior_precision: float,
        loss: float | None = None,
    ) -> "DensePosterior":
        """Clip the eigenvalues, scale, and add the prior.

        Args:
            mean: The head's weights (z, d).
            curvature: Their dense curvature (z d, z d).
            scale: How many observations the averaged loss stands for.
            prior_precision: δ.
            loss: The averaged loss at the weights, if the evidence is wanted.

        Returns:
            The posterior.

        Raises:
            InputError: If the curvature is not the weights' own.
        """
        if curvature.shape != (mean.numel(), mean.numel()):
            raise InputError(
                f"curvature must be ({mean.numel()}, {mean.numel()}) for these weights; "
                f"got {tuple(curvature.shape)}."
            )
        check_finite("curvature", curvature)
        values, basis = torch.linalg.eigh(curvature)
        precision, clipped = laplace_precision(values, scale=scale, prior_precision=prior_precision)
        evidence = None if loss is None else Evidence(scale * loss, prior_precision)
        return cls(mean, precision.to(mean.dtype), basis.to(mean.dtype), clipped, evidence)

    def predict(self, features: Tensor) -> Embeddings:
        """Give each input its direction and concentration, exactly, in its own eigenbasis.

        Args:
            features: (n, d).

        Returns:
            The embeddings.
        """
        mean, covariance = self._output_moments(features)
        variance, vectors = torch.linalg.eigh(covariance)
        turned = gaussian_embeddings(
            torch.einsum("nk,nkl->nl", mean, vectors), variance.clamp(min=0)
        )
        return Embeddings(torch.einsum("nl,nkl->nk", turned.mean, vectors), turned.kappa)

    def sample(
        self, features: Tensor, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw unit embeddings; arguments as `HeadPosterior.sample`.

        Args:
            features: (n, d).
            n_samples: How many of each input.
            joint: True: one sampled head embeds all inputs. False: each input on its own.
            generator: The source of randomness.

        Returns:
            Unit vectors (s, n, z).
        """
        check_int("n_samples", n_samples, least=1)
        check_features(features, self.mean)
        if not joint:
            mean, covariance = self._output_moments(features)
            variance, vectors = torch.linalg.eigh(covariance)
            noise = normal((n_samples, *mean.shape), mean, generator)
            noise = noise * variance.clamp(min=0).sqrt()
            return unit(mean + torch.einsum("snl,nkl->snk", noise, vectors))
        noise = normal((n_samples, len(self.precision)), self.mean, generator)
        change = (noise / self.precision.sqrt()) @ self.basis.T
        heads = self.mean + change.view(n_samples, *self.mean.shape)
        return unit(features @ heads.mT)

    def log_evidence(self) -> float:
        """Give the Laplace approximation of the log marginal likelihood."""
        return laplace_log_evidence(
            self.evidence, self.mean, float(self.precision.double().log().sum())
        )

    def _output_moments(
        self, features: Tensor
    ) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z z"]]:
        check_features(features, self.mean)
        z, d = self.mean.shape
        root = (self.basis / self.precision.sqrt()).view(z, d, z * d)
        half = torch.einsum("nq,kqp->nkp", features, root)
        return features @ self.mean.T, half @ half.mT


def _check_part(name: str, value: Tensor, mean: Tensor, shape: tuple[int, ...]) -> None:
    if value.shape != shape or value.dtype != mean.dtype:
        raise InputError(
            f"{name} must be {shape} {mean.dtype} for weights {tuple(mean.shape)}; "
            f"got {tuple(value.shape)} {value.dtype}."
        )
    check_finite(name, value)
