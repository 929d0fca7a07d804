"""Gaussian posteriors of a linear head: what they hold, what they predict, and how a curvature becomes one.

    precision = scale · max(0, curvature) + δ

``scale`` says how many observations the averaged loss stands for; δ = σ_prior⁻² is the prior's precision.
Together they set how wide the posterior is. Curvature of pairs can be negative (negative pairs push apart),
and what is clipped is reported: the share of the curvature's total magnitude. Whatever its structure, a
curvature is diagonal in some basis: the weights themselves, a product basis, or the eigenvectors of the
whole matrix. Clipping, scale and prior act on the eigenvalues alone, so a `Spectrum` is all that tuning
needs to try many of them. Online LAM adds up clipped curvature step by step instead (`add_step`).

- *Diagonal*, the paper's and the default: independent weights, so an output has a diagonal covariance,

      z | h ~ N(W h, diag v),    v_k = Σ_q h_q² / precision_kq,

  one extra matrix product. `surefind.posterior.sphere` takes it to the sphere without sampling.
- *Kronecker* and *dense* take more memory and time, and say what independence costs. Both predict exactly,
  without sampling: the sphere does not care for a rotation, so a Gaussian output is turned into the
  eigenbasis of its covariance, projected there, and turned back. Kronecker: the curvature L ⊗ R / tr has
  the eigenvectors of L and R whatever the prior, so *one* basis serves all inputs: with h̃ = Rᵥᵀ h,
  v_k = Σ_q h̃_q² / (scale · l_k r_q / tr + δ). Dense: an input's covariance is its own, so each has an
  eigendecomposition: O(z³) an input, and O((z d)³) once; for small heads. Negative eigenvalues are clipped
  (Kronecker: of each factor).

Two kinds of samples: *marginal* ones draw each input's output on its own, O(z) a sample; *joint* ones draw
a head and embed all inputs with it, for comparing embeddings under one sampled network (as ECE
does). For a single input they have the same distribution.

The Laplace evidence is  log p ≈ -scale·L - ½δ|θ|² + ½P log δ - ½ log det(precision).

Policy: curvature of which nothing is left is refused; the posterior would silently be the prior.

Axes: ``n`` examples, ``d`` features, ``z`` outputs, ``s`` samples.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_int, check_positive
from surefind.curvature.head import Curvature, KroneckerCurvature, Structure
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.pairs.relations import blocks
from surefind.posterior.sphere import gaussian_embeddings, unit
from surefind.tensor_checks import check_finite, check_matrix

SQUARES = 1 << 19
"""Squared features held at a time: 2 MB in float32."""

P = TypeVar("P", bound="Posterior")


@dataclass(frozen=True)
class Evidence:
    """What the log evidence needs beside the posterior itself.

    Attributes:
        scaled_loss: scale · L, the loss times the number of observations it stands for.
        prior_precision: δ.

    Raises:
        InputError: If the loss is NaN or infinite.
    """

    scaled_loss: float
    prior_precision: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.scaled_loss):
            raise InputError(
                f"loss must be a finite number; scale times loss is {self.scaled_loss}. "
                "Leave it out if the evidence is not wanted.",
                field="loss",
            )


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A curvature in the basis in which it is diagonal.

    Attributes:
        values: Its eigenvalues, unscaled; not clipped but where the structure has to.
        basis: The posterior's parts that hold the basis, by name; empty for the weights themselves.
        clipped: Share of the curvature that was clipped already.
    """

    values: Tensor
    basis: Mapping[str, Tensor] = field(default_factory=dict)
    clipped: float = 0.0


@dataclass(frozen=True, eq=False)
class Posterior(ABC):
    """A Gaussian over the weights of a linear head.

    Attributes:
        mean: The weights (z, d); the last column is the bias if features carry a one.
        precision: Eigenvalues of the precision, one for each weight, all above zero.
        clipped: Share of the curvature that was clipped to make the precision positive.
        evidence: Loss and prior, for `log_evidence`; None if they are not known.

    Raises:
        InputError: If the parts do not fit together, or a precision is not positive or too small.
    """

    structure: ClassVar[Structure]
    mean: Tensor
    precision: Tensor
    clipped: float = field(default=0.0, kw_only=True)
    evidence: Evidence | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_matrix("mean", self.mean)
        for name, shape in self._shapes(*self.mean.shape).items():
            part = getattr(self, name)
            if part.shape != shape or part.dtype != self.mean.dtype:
                raise InputError(
                    f"{name} must be {shape} {self.mean.dtype} for weights {tuple(self.mean.shape)}; "
                    f"got {tuple(part.shape)} {part.dtype}.",
                    field=name,
                )
            check_finite(name, part)
        smallest, usable = float(self.precision.min()), torch.finfo(self.mean.dtype).tiny
        if smallest < usable:
            raise InputError(
                f"every precision must be at least {usable:.3g} for its variance to be finite in "
                f"{self.mean.dtype}; the smallest is {smallest:.3g}. Use a larger prior precision; "
                "from_curvature clips the curvature and adds it.",
                field="precision",
            )

    @staticmethod
    @abstractmethod
    def _shapes(z: int, d: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each part beside the mean."""

    @staticmethod
    @abstractmethod
    def spectrum(mean: Tensor, curvature: Any) -> Spectrum:
        """Diagonalise a curvature of this structure, of the weights ``mean``."""

    @classmethod
    def from_curvature(
        cls: type[P],
        mean: Tensor,
        curvature: Curvature,
        *,
        scale: float,
        prior_precision: float,
        loss: float | None = None,
    ) -> P:
        """Clip and scale a curvature, add the prior, and centre the posterior at the weights.

        Args:
            mean: The head's weights (z, d).
            curvature: Their curvature, of the posterior's structure, from any of the curvature functions.
            scale: How many observations the averaged loss stands for.
            prior_precision: δ.
            loss: The averaged loss at the weights, if the evidence is wanted.

        Returns:
            The posterior, in the dtype of the weights.
        """
        return cls.from_spectrum(mean, cls.spectrum(mean, curvature), scale, prior_precision, loss)

    @classmethod
    def from_spectrum(
        cls: type[P],
        mean: Tensor,
        spectrum: Spectrum,
        scale: float,
        prior_precision: float,
        loss: float | None = None,
    ) -> P:
        """Do the same with a curvature that is diagonalised already."""
        check_positive("scale", scale)
        check_positive("prior_precision", prior_precision)
        kept, clipped = clip_negative(spectrum.values)
        return cls(
            mean=mean,
            precision=(scale * kept + prior_precision).to(mean.dtype),
            **{name: part.to(mean.dtype) for name, part in spectrum.basis.items()},
            clipped=clipped + spectrum.clipped,
            evidence=None if loss is None else Evidence(scale * loss, prior_precision),
        )

    @abstractmethod
    def predict(self, features: Tensor) -> Embeddings:
        """Compute the direction and concentration of each row of features (n, d), without sampling."""

    def predict_plain(
        self, plain: Float[Tensor, "n p"], outputs: Float[Tensor, "n z"]
    ) -> Embeddings:
        """Predict from features that may lack the column of ones, and the mean outputs, which are known."""
        return self.predict(completed(plain, self.mean))

    @abstractmethod
    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length."""

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
        self._check_features(features)
        if joint:
            return unit(self.draw(features, n_samples, generator).add_(features @ self.mean.T))
        noise = normal((n_samples, len(features), len(self.mean)), features, generator)
        return unit(self._marginal(features, noise))

    @abstractmethod
    def _marginal(
        self, features: Float[Tensor, "n d"], noise: Float[Tensor, "s n z"]
    ) -> Float[Tensor, "s n z"]:
        """Make outputs, of each input on its own, from standard normals."""

    @abstractmethod
    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""

    def log_evidence(self) -> float:
        """Compute the Laplace approximation of the log marginal likelihood.

        Returns:
            The log evidence, comparable between posteriors of the same head and data.

        Raises:
            InputError: If the posterior was made without its loss.
        """
        if self.evidence is None:
            raise InputError(
                "this posterior does not know its loss and prior. Make it with "
                "from_curvature(..., scale=..., prior_precision=..., loss=...)."
            )
        delta = self.evidence.prior_precision
        squares = float((self.mean.double() ** 2).sum())
        prior = 0.5 * self.mean.numel() * math.log(delta) - 0.5 * delta * squares
        log_det = float(self.precision.double().log().sum())
        return prior - self.evidence.scaled_loss - 0.5 * log_det

    def _check_features(self, features: Tensor) -> None:
        """Require features (n, d) that the head can be applied to."""
        check_matrix("features", features)
        width = self.mean.shape[1]
        if features.shape[1] != width or features.dtype != self.mean.dtype:
            hint = "Convert one." if features.shape[1] == width else ""
            if features.shape[1] + 1 == width:
                hint = "The head seems to have a bias: append a column of ones to the features."
            raise InputError(
                f"features have {features.shape[1]} columns of {features.dtype} where the head has "
                f"{width} of {self.mean.dtype}.",
                field="features",
                hint=hint,
            )


@dataclass(frozen=True, eq=False)
class HeadPosterior(Posterior):
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

    @staticmethod
    def _shapes(z: int, d: int) -> dict[str, tuple[int, ...]]:
        return {"precision": (z, d)}

    @staticmethod
    def spectrum(mean: Tensor, curvature: Tensor) -> Spectrum:
        """Take a curvature (z, d), which is diagonal in the weights themselves."""
        _check_curvature(curvature.shape, mean.shape, mean)
        return Spectrum(curvature)

    @cached_property
    def _variance(self) -> Float[Tensor, "z d"]:
        return 1 / self.precision

    def predict(self, features: Tensor) -> Embeddings:
        """Compute the direction and concentration of each row of features (n, d), without sampling."""
        self._check_features(features)
        return gaussian_embeddings(*self.output_moments(features))

    def predict_plain(
        self, plain: Float[Tensor, "n p"], outputs: Float[Tensor, "n z"]
    ) -> Embeddings:
        """Predict from a network's own features, which would have to be copied to append a one."""
        return gaussian_embeddings(outputs, self.output_variance(plain))

    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length."""
        outputs, variances = self.output_moments(features)
        return variances.sum(1) / outputs.square().sum(1)

    def output_moments(self, features: Tensor) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z"]]:
        """Compute mean and variance of the outputs (n, z) before normalisation."""
        return features @ self.mean.T, _quadratic(features, self._variance)

    def output_variance(self, plain: Float[Tensor, "n p"]) -> Float[Tensor, "n z"]:
        """Compute the variance of the outputs from features with or without the column of ones."""
        width = plain.shape[1]
        return _quadratic(plain, self._variance[:, :width]) + self._variance[:, width:].sum(1)

    def _marginal(
        self, features: Float[Tensor, "n d"], noise: Float[Tensor, "s n z"]
    ) -> Float[Tensor, "s n z"]:
        mean, variance = self.output_moments(features)
        return mean + variance.sqrt() * noise

    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""
        changes = features.new_empty(n_samples, len(features), len(self.mean))
        deviation = self._variance.sqrt()
        for change in changes:
            head = normal(self.mean.shape, features, generator).mul_(deviation)
            torch.matmul(features, head.T, out=change)
        return changes


@dataclass(frozen=True, eq=False)
class KroneckerPosterior(Posterior):
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
    left: Tensor
    right: Tensor

    @staticmethod
    def _shapes(z: int, d: int) -> dict[str, tuple[int, ...]]:
        return {"precision": (z, d), "left": (z, z), "right": (d, d)}

    @staticmethod
    def spectrum(mean: Tensor, curvature: KroneckerCurvature) -> Spectrum:
        """Diagonalise both factors of a curvature, and clip their eigenvalues."""
        shape = torch.Size((len(curvature.left), len(curvature.right)))
        _check_curvature(shape, mean.shape, mean)
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
        self._check_features(features)
        turned = gaussian_embeddings(*self._turned_moments(features))
        return Embeddings(turned.mean @ self.left.T, turned.kappa)

    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length; turning changes neither."""
        outputs, variances = self._turned_moments(features)
        return variances.sum(1) / outputs.square().sum(1)

    def _marginal(
        self, features: Float[Tensor, "n d"], noise: Float[Tensor, "s n z"]
    ) -> Float[Tensor, "s n z"]:
        mean, variance = self._turned_moments(features)
        return (mean + variance.sqrt() * noise) @ self.left.T

    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""
        noise = normal((n_samples, *self.mean.shape), features, generator) / self.precision.sqrt()
        return features @ (self.left @ noise @ self.right.T).mT

    def _turned_moments(
        self, features: Tensor
    ) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z"]]:
        mean = features @ self.mean.T @ self.left
        return mean, (features @ self.right) ** 2 @ (1 / self.precision).T


@dataclass(frozen=True, eq=False)
class DensePosterior(Posterior):
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
    basis: Tensor

    @staticmethod
    def _shapes(z: int, d: int) -> dict[str, tuple[int, ...]]:
        return {"precision": (z * d,), "basis": (z * d, z * d)}

    @staticmethod
    def spectrum(mean: Tensor, curvature: Tensor) -> Spectrum:
        """Diagonalise a curvature (z d, z d)."""
        _check_curvature(curvature.shape, torch.Size((mean.numel(), mean.numel())), mean)
        check_finite("curvature", curvature)
        values, basis = _eigenbasis(curvature)
        return Spectrum(values, {"basis": basis})

    def predict(self, features: Tensor) -> Embeddings:
        """Compute the direction and concentration of each row (n, d), exactly, in its own eigenbasis."""
        self._check_features(features)
        mean, covariance = self._output_moments(features)
        variance, vectors = torch.linalg.eigh(covariance)
        turned = gaussian_embeddings(
            torch.einsum("nk,nkl->nl", mean, vectors), variance.clamp(min=0)
        )
        return Embeddings(torch.einsum("nl,nkl->nk", turned.mean, vectors), turned.kappa)

    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length."""
        outputs, covariances = self._output_moments(features)
        total = covariances.diagonal(dim1=1, dim2=2).sum(1)
        return total / outputs.square().sum(1)

    def _marginal(
        self, features: Float[Tensor, "n d"], noise: Float[Tensor, "s n z"]
    ) -> Float[Tensor, "s n z"]:
        mean, covariance = self._output_moments(features)
        variance, vectors = torch.linalg.eigh(covariance)
        noise = noise * variance.clamp(min=0).sqrt()
        return mean + torch.einsum("snl,nkl->snk", noise, vectors)

    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""
        noise = normal((n_samples, len(self.precision)), self.mean, generator)
        heads = (noise / self.precision.sqrt()) @ self.basis.T
        return features @ heads.view(n_samples, *self.mean.shape).mT

    def _output_moments(
        self, features: Tensor
    ) -> tuple[Float[Tensor, "n z"], Float[Tensor, "n z z"]]:
        z, d = self.mean.shape
        root = (self.basis / self.precision.sqrt()).view(z, d, z * d)
        half = torch.einsum("nq,kqp->nkp", features, root)
        return features @ self.mean.T, half @ half.mT


POSTERIORS: dict[Structure, type[Posterior]] = {
    kind.structure: kind for kind in (HeadPosterior, KroneckerPosterior, DensePosterior)
}


def clip_negative(curvature: Float[Tensor, "..."]) -> tuple[Float[Tensor, "..."], float]:
    """Set what is negative to zero.

    Args:
        curvature: A diagonal, or eigenvalues.

    Returns:
        What is left, and how much of the total magnitude was removed.

    Raises:
        DegenerateError: If nothing is left.
    """
    check_finite("curvature", curvature)
    kept = curvature.clamp(min=0)
    total = float(curvature.abs().sum(dtype=torch.float64))
    left = float(kept.sum(dtype=torch.float64))
    if left == 0:
        raise DegenerateError(
            "the curvature has no positive entry, so the posterior would be the prior alone. Usual "
            "causes: every different pair is inside the margin (untrained encoder, or a margin that "
            "is too large), or there is no same pair."
        )
    return kept, 1 - left / total


def add_step(
    total: Float[Tensor, "..."], curvature: Float[Tensor, "..."], *, scale: float, memory: float
) -> tuple[float, float]:
    """Forget a share of a running total, in place, and add a batch's curvature, clipped and scaled.

    Args:
        total: What online LAM has learnt so far, without the prior.
        curvature: Of one batch; unlike elsewhere nothing may be left of it.
        scale: Weight of the batch.
        memory: The share of the total that is forgotten.

    Returns:
        The sum of what was kept of the batch's curvature, and the magnitude that was clipped.
    """
    positive = curvature.clamp(min=0)
    kept = float(positive.sum())
    total.mul_(1 - memory).add_(positive, alpha=scale)
    return kept, float(curvature.abs().sum()) - kept


def posterior_tensors(posterior: Posterior) -> dict[str, Tensor]:
    """Return the parts of a posterior by name, but for mean and evidence."""
    parts = {f.name: getattr(posterior, f.name) for f in fields(posterior)}
    tensors = {k: v for k, v in parts.items() if isinstance(v, Tensor) and k != "mean"}
    return tensors | {"clipped": torch.tensor(posterior.clipped, dtype=torch.float64)}


def restored_posterior(
    structure: Structure, mean: Tensor, tensors: Mapping[str, Tensor]
) -> Posterior:
    """Put a posterior together again from what `posterior_tensors` returned."""
    parts: dict[str, Any] = {k: v.to(mean) for k, v in tensors.items() if k != "clipped"}
    return POSTERIORS[structure](mean=mean, **parts, clipped=float(tensors["clipped"]))


def completed(plain: Float[Tensor, "n p"], mean: Float[Tensor, "z d"]) -> Float[Tensor, "n d"]:
    """Append the column of ones where the head has one more than the features."""
    ones = plain.new_ones(len(plain), mean.shape[1] - plain.shape[1])
    return torch.cat([plain, ones], dim=1)


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw standard normals with the generator, on the device and in the dtype of ``like``."""
    noise = torch.randn(*shape, generator=generator, dtype=like.dtype, device=generator.device)
    return noise.to(like.device)


def _quadratic(
    features: Float[Tensor, "n d"], variance: Float[Tensor, "z d"]
) -> Float[Tensor, "n z"]:
    """Compute Σ_q h_q² σ²_kq, squaring in pieces that stay in cache instead of in a second copy."""
    value = features.new_empty(len(features), len(variance))
    for rows in blocks(slice(0, len(features)), max(1, SQUARES // features.shape[1])):
        h = features[rows]
        torch.matmul(h * h, variance.T, out=value[rows])
    return value


def _eigenbasis(matrix: Float[Tensor, "k k"]) -> tuple[Float[Tensor, " k"], Float[Tensor, "k k"]]:
    """Diagonalise; signs are fixed, so that equal noise draws equal heads in any precision."""
    values, vectors = torch.linalg.eigh(matrix)
    signed = vectors * vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    # Row by row, as a file holds it: products of another layout may differ in the last bit.
    return values, signed.contiguous()


def _check_curvature(shape: torch.Size, wanted: torch.Size, mean: Tensor) -> None:
    if shape != wanted:
        raise InputError(
            f"curvature must be {tuple(wanted)} for weights {tuple(mean.shape)}; got {tuple(shape)}.",
            field="curvature",
        )
