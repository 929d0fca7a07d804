"""The Laplace evidence, and the prior precision δ at which it is largest.

    log p ≈ -scale·L - ½δ|θ|² + ½P log δ - ½ log det(precision)

Its derivative in δ vanishes where  Σ_p λ_p / (δ (λ_p + δ)) = |θ|²  (λ: eigenvalues of the scaled, clipped
curvature), whose left side falls from ∞ to 0: there is exactly one maximum, found by bisection.

|θ| is arbitrary in a network that normalises its output, so the evidence can only say what is best *for
these weights*; `surefind.posterior.tuning` asks questions whose answers matter.
"""

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_positive
from surefind.errors import DegenerateError, InputError
from surefind.posterior.precision import clip_negative
from surefind.tensor_checks import check_float, check_matrix


@dataclass(frozen=True)
class Evidence:
    """What the log evidence needs beside the posterior itself.

    Attributes:
        scaled_loss: scale · L, the loss times the number of observations it stands for.
        prior_precision: δ.
    """

    scaled_loss: float
    prior_precision: float

    def __post_init__(self) -> None:
        """Check the loss.

        Raises:
            InputError: If it is NaN or infinite.
        """
        if not math.isfinite(self.scaled_loss):
            raise InputError(
                f"loss must be a finite number; scale times loss is {self.scaled_loss}. "
                "Leave it out if the evidence is not wanted."
            )


def laplace_log_evidence(
    evidence: Evidence | None, mean: Float[Tensor, "z d"], log_det_precision: float
) -> float:
    """Compute the log evidence.

    Args:
        evidence: Loss and prior, if they are known.
        mean: The weights.
        log_det_precision: Log determinant of the posterior precision.

    Returns:
        The log evidence, comparable between posteriors of the same head and data.

    Raises:
        InputError: If the posterior was made without its loss.
    """
    if evidence is None:
        raise InputError(
            "this posterior does not know its loss and prior. Make it with "
            "from_curvature(..., scale=..., prior_precision=..., loss=...)."
        )
    delta = evidence.prior_precision
    squares = float((mean.double() ** 2).sum())
    prior = 0.5 * mean.numel() * math.log(delta) - 0.5 * delta * squares
    return prior - evidence.scaled_loss - 0.5 * log_det_precision


def tune_prior_precision(mean: Tensor, curvature: Tensor, *, scale: float) -> float:
    """Find the prior precision with the largest Laplace evidence.

    Args:
        mean: The head's weights (z, d).
        curvature: Their curvature: the diagonal (z, d), or the eigenvalues of any structure.
        scale: How many observations the averaged loss stands for.

    Returns:
        The one δ at which the evidence is largest.

    Raises:
        InputError: If the curvature is not the weights' own.
        DegenerateError: If all weights are zero.
    """
    check_positive("scale", scale)
    check_matrix("mean", mean)
    check_float("curvature", curvature)
    if curvature.numel() != mean.numel():
        raise InputError(
            f"curvature must have one number for each of the {mean.numel()} weights "
            f"{tuple(mean.shape)}: their diagonal, or all eigenvalues; "
            f"got shape {tuple(curvature.shape)}."
        )
    squares = float((mean.double() ** 2).sum())
    if squares == 0:
        raise DegenerateError("the head's weights are all zero; the evidence has no maximum in δ.")
    values = scale * clip_negative(curvature)[0].double().flatten()
    values = values[values > 0]
    # |θ|² = Σ λ/(δ(λ+δ)) < P/δ bounds the root from above; below it, half-way on a log scale.
    high = math.log(len(values) / squares)
    low = high - 1
    while float((values / (values + math.exp(low))).sum()) < squares * math.exp(low):
        low -= 2 * (high - low)
    for _ in range(60):
        middle = (low + high) / 2
        well_determined = float((values / (values + math.exp(middle))).sum())
        low, high = (
            (middle, high) if well_determined > squares * math.exp(middle) else (low, middle)
        )
    return math.exp((low + high) / 2)
