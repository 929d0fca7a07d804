"""From Gaussian outputs to the sphere: directions with a concentration, and unit samples."""

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.embeddings import Embeddings
from surefind.errors import NumericalError
from surefind.posterior.sphere import Resultant, resultant
from surefind.posterior.vmf import concentration


def gaussian_embeddings(mean: Float[Tensor, "n z"], variance: Float[Tensor, "n z"]) -> Embeddings:
    """Project N(mean, diag variance) onto the sphere and give its direction and κ, no sampling.

    Policy: an input whose mean output is zero has no direction; it gets κ = 0, at which direction
    means nothing, and the first axis for one.

    Args:
        mean: Mean outputs.
        variance: Variances of the outputs.

    Returns:
        The embeddings, in the dtype of the mean.

    Raises:
        NumericalError: If a mean or a variance has left the range of its dtype.
    """
    if not bool((torch.isfinite(mean) & torch.isfinite(variance)).all()):
        raise NumericalError(
            f"an output's mean or variance is too large for {mean.dtype}: the weights are too "
            "uncertain or the features too large. Use a larger prior precision, or float64."
        )
    return Embeddings(*directions(resultant(mean, variance), mean.dtype))


def directions(
    moments: Resultant, dtype: torch.dtype
) -> tuple[Float[Tensor, "n z"], Float[Tensor, " n"]]:
    """Turn moments on the sphere into directions and κ, in a dtype; the policy is above."""
    mean = moments.mean.to(dtype)
    kappa = concentration(moments.shortfall, mean.shape[1]).to(dtype)
    length = torch.linalg.vector_norm(mean, dim=1, keepdim=True)
    known = length > 0
    # The first axis, written so that a graph of any batch size can hold it.
    axis = torch.eye(1, mean.shape[1], dtype=dtype, device=mean.device)
    direction = torch.where(known, mean / torch.where(known, length, 1.0), axis)
    return direction, torch.where(known[:, 0], kappa, 0.0)


def unit(vectors: Float[Tensor, "*batch z"]) -> Float[Tensor, "*batch z"]:
    """Normalise samples; an exact zero, which has probability zero, goes to the first axis."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    axis = torch.zeros_like(vectors[..., :1, :])
    axis[..., 0] = 1
    return torch.where(length > 0, vectors / torch.where(length > 0, length, 1.0), axis)


def sampled_embeddings(samples: Float[Tensor, "s n z"]) -> Embeddings:
    """Sum unit samples up in a direction and κ.

    1 - R̄² is taken from the samples' spread around their mean, which keeps its digits when they are close.
    Samples that cancel out have no direction: κ = 0 and the first axis, as in `gaussian_embeddings`.

    Args:
        samples: Unit vectors, s of each input.

    Returns:
        The embeddings, in the dtype of the samples.
    """
    mean = samples.double().mean(0)
    shortfall = ((samples.double() - mean) ** 2).sum(2).mean(0)
    kappa = concentration(shortfall, samples.shape[2])
    known = torch.linalg.vector_norm(mean, dim=1) > 0
    return Embeddings(
        unit(mean).to(samples.dtype), torch.where(known, kappa, 0.0).to(samples.dtype)
    )
