"""What every posterior of a head can do, and how a curvature becomes one.

Whatever its structure, a curvature is diagonal in some basis: the weights themselves, a product basis, or
the eigenvectors of the whole matrix. Clipping, scale and prior act on the eigenvalues alone
(`surefind.posterior.precision`), so a `Spectrum` is all that tuning needs to try many of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.curvature.structured import Curvature, Structure
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.posterior.evidence import Evidence, laplace_log_evidence
from surefind.posterior.precision import laplace_precision
from surefind.tensor_checks import check_matrix


@runtime_checkable
class Posterior(Protocol):
    """A Gaussian over the weights (z, d) of a linear head; a frozen dataclass of its parts."""

    structure: ClassVar[Structure]

    @property
    def mean(self) -> Tensor:
        """The weights' mean."""
        ...

    @property
    def precision(self) -> Tensor:
        """Eigenvalues of the precision, one for each weight."""
        ...

    @property
    def clipped(self) -> float:
        """Share of the curvature that was clipped to make the precision positive."""
        ...

    def predict(self, features: Tensor) -> Embeddings:
        """Compute each input's direction and concentration, without sampling."""
        ...

    def predict_plain(self, plain: Tensor, outputs: Tensor) -> Embeddings:
        """Predict from features that lack the column of ones, and the mean outputs, which are known."""
        ...

    def relative_variance(self, features: Tensor) -> Float[Tensor, " n"]:
        """Compute the variance of each output over its squared mean length."""
        ...

    def sample(
        self, features: Tensor, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw unit embeddings; jointly, one sampled head embeds all inputs."""
        ...

    def draw(
        self, features: Tensor, n_samples: int, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw heads, and return by how much each changes the outputs before normalisation."""
        ...

    def log_evidence(self) -> float:
        """Compute the Laplace approximation of the log marginal likelihood."""
        ...


P = TypeVar("P", bound=Posterior)
S = TypeVar("S", bound="SpectralPosterior")


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


def spectral_posterior(
    kind: Callable[..., P],
    mean: Tensor,
    spectrum: Spectrum,
    *,
    scale: float,
    prior_precision: float,
    loss: float | None = None,
) -> P:
    """Clip and scale the eigenvalues, add the prior, and centre the posterior at the weights.

    Args:
        kind: The posterior's class.
        mean: The head's weights (z, d).
        spectrum: Of their curvature.
        scale: How many observations the averaged loss stands for.
        prior_precision: δ.
        loss: The averaged loss at the weights, if the evidence is wanted.

    Returns:
        The posterior, in the dtype of the weights.
    """
    precision, clipped = laplace_precision(
        spectrum.values, scale=scale, prior_precision=prior_precision
    )
    return kind(
        mean=mean,
        precision=precision.to(mean.dtype),
        **{name: part.to(mean.dtype) for name, part in spectrum.basis.items()},
        clipped=clipped + spectrum.clipped,
        evidence=None if loss is None else Evidence(scale * loss, prior_precision),
    )


class SpectralPosterior:
    """What posteriors of every structure do alike, once they can diagonalise their curvature."""

    spectrum: ClassVar[Callable[..., Spectrum]]
    mean: Tensor
    precision: Tensor
    evidence: Evidence | None

    @classmethod
    def from_curvature(
        cls: type[S],
        mean: Tensor,
        curvature: Curvature,
        *,
        scale: float,
        prior_precision: float,
        loss: float | None = None,
    ) -> S:
        """Clip and scale a curvature, add the prior, and centre the posterior at the weights.

        Args:
            mean: The head's weights (z, d).
            curvature: Their curvature, of the posterior's structure, from any of the curvature functions.
            scale: How many observations the averaged loss stands for.
            prior_precision: δ.
            loss: The averaged loss at the weights, if the evidence is wanted.

        Returns:
            The posterior.
        """
        spectrum = cls.spectrum(mean, curvature)
        options = {"scale": scale, "prior_precision": prior_precision}
        made: S = spectral_posterior(cls, mean, spectrum, **options, loss=loss)  # type: ignore[type-var]
        return made

    def log_evidence(self) -> float:
        """Compute the Laplace approximation of the log marginal likelihood."""
        log_det = float(self.precision.double().log().sum())
        return laplace_log_evidence(self.evidence, self.mean, log_det)


def posterior_tensors(posterior: Posterior) -> dict[str, Tensor]:
    """Return the parts of a posterior by name, but for mean and evidence."""
    parts = {f.name: getattr(posterior, f.name) for f in fields(posterior)}  # type: ignore[arg-type]
    tensors = {k: v for k, v in parts.items() if isinstance(v, Tensor) and k != "mean"}
    return tensors | {"clipped": torch.tensor(posterior.clipped, dtype=torch.float64)}


def restored_posterior(kind: Callable[..., P], mean: Tensor, tensors: Mapping[str, Tensor]) -> P:
    """Put a posterior together again from what `posterior_tensors` returned."""
    parts: dict[str, Any] = {k: v.to(mean) for k, v in tensors.items() if k != "clipped"}
    return kind(mean=mean, **parts, clipped=float(tensors["clipped"]))


def check_features(features: Tensor, mean: Float[Tensor, "z d"]) -> None:
    """Require features (n, d) that the head can be applied to.

    Raises:
        InputError: If the number of features or the dtype differs.
    """
    check_matrix("features", features)
    if features.shape[1] != mean.shape[1]:
        hint = ""
        if features.shape[1] + 1 == mean.shape[1]:
            hint = " The head seems to have a bias: append a column of ones to the features."
        raise InputError(
            f"features have {features.shape[1]} columns where the head has {mean.shape[1]}.{hint}"
        )
    if features.dtype != mean.dtype:
        raise InputError(
            f"features are {features.dtype} where the head is {mean.dtype}; convert one."
        )


def completed(plain: Float[Tensor, "n p"], mean: Float[Tensor, "z d"]) -> Float[Tensor, "n d"]:
    """Append the column of ones where the head has one more than the features."""
    ones = plain.new_ones(len(plain), mean.shape[1] - plain.shape[1])
    return torch.cat([plain, ones], dim=1)
