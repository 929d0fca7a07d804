"""From curvature to precision: clipped, scaled, given a prior; online LAM adds up step by step instead.

    precision = scale · max(0, curvature) + δ

``scale`` says how many observations the averaged loss stands for; δ = σ_prior⁻² is the prior's
precision. Together they set how wide the posterior is. Curvature of pairs can be negative (different
pairs push apart), and what is clipped is reported: the share of the curvature's total magnitude.

For a matrix, the eigenvalues are clipped instead of the entries.

Policy: curvature of which nothing is left is refused; the posterior would silently be the prior.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_positive
from surefind.errors import DegenerateError, InputError
from surefind.tensor_checks import check_finite


def laplace_precision(
    curvature: Float[Tensor, "..."], *, scale: float, prior_precision: float
) -> tuple[Float[Tensor, "..."], float]:
    """Clip, scale and add the prior.

    Args:
        curvature: A diagonal, or eigenvalues: a sum over pairs.
        scale: How many observations the averaged loss stands for.
        prior_precision: δ.

    Returns:
        The precision, all of it at least δ, and the share of the curvature that was clipped.
    """
    check_positive("scale", scale)
    check_positive("prior_precision", prior_precision)
    kept, clipped = clip_negative(curvature)
    return scale * kept + prior_precision, clipped


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


def check_precision(precision: Float[Tensor, "..."]) -> None:
    """Require precisions that one can be divided by.

    Args:
        precision: Finite precisions.

    Raises:
        InputError: If one is not positive, or so small that its variance overflows.
    """
    smallest, usable = float(precision.min()), torch.finfo(precision.dtype).tiny
    if smallest <= 0:
        raise InputError(
            f"every precision must be above 0; the smallest is {smallest:.3g}. "
            "Clip the curvature and add a prior: from_curvature does both."
        )
    if smallest < usable:
        raise InputError(
            f"every precision must be at least {usable:.3g} for its variance to be finite in "
            f"{precision.dtype}; the smallest is {smallest:.3g}. Use a larger prior precision."
        )
