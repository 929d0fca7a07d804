"""What every posterior of a head can do."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.validation import check_matrix


@runtime_checkable
class Posterior(Protocol):
    """A Gaussian over the weights (z, d) of a linear head."""

    @property
    def mean(self) -> Tensor:
        """The weights' mean."""
        ...

    @property
    def clipped(self) -> float:
        """Share of the curvature that was clipped to make the precision positive."""
        ...

    def predict(self, features: Tensor) -> Embeddings:
        """Give each input its direction and concentration, without sampling."""
        ...

    def sample(
        self, features: Tensor, n_samples: int, *, joint: bool, generator: torch.Generator
    ) -> Float[Tensor, "s n z"]:
        """Draw unit embeddings; jointly, one sampled head embeds all inputs."""
        ...

    def log_evidence(self) -> float:
        """Give the Laplace approximation of the log marginal likelihood."""
        ...


def check_features(features: Tensor, mean: Float[Tensor, "z d"]) -> None:
    """Require features that the head can be applied to.

    Args:
        features: (n, d).
        mean: The head's weights.

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
