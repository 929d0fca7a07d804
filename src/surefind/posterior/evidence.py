"""The Laplace evidence, and choosing the prior precision δ by it or on held-out pairs.

    log p ≈ -scale·L - ½δ|θ|² + ½P log δ - ½ log det(precision)

Its derivative in δ vanishes where  Σ_p λ_p / (δ (λ_p + δ)) = |θ|²  (λ: eigenvalues of the scaled, clipped
curvature), whose left side falls from ∞ to 0: there is exactly one maximum, found by bisection.

|θ| is arbitrary in a network that normalises its output, so the evidence can only say what is
best *for these weights*; held-out pairs ask a question whose answer matters. There, each pair is judged
by its likelihood ratio between "one point" and "two independent points",

    LR = vMF match score - log C(0),    loss = ½ mean_same log(1 + e^-LR) + ½ mean_different log(1 + e^LR),

which punishes a κ that is too high (positive pairs far apart) as well as one that is too low (different
pairs not told apart). Never tune on test or out-of-distribution data.

Axes: ``n`` examples, ``d`` features, ``m`` pairs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.pairs.relations import PairList
from surefind.posterior.contract import Posterior
from surefind.posterior.precision import clip_negative
from surefind.posterior.vmf import match_score, paired_gap, vmf_log_normalizer
from surefind.validation import check_float, check_matrix, check_positive

PRIOR_GRID = tuple(10 ** (e / 2) for e in range(-12, 13))
"""Prior precisions from 1e-6 to 1e6, two in a decade."""


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


def tune_on_pairs(
    posterior_at: Callable[[float], Posterior],
    features: Tensor,
    pairs: PairList,
    *,
    candidates: Sequence[float] = PRIOR_GRID,
) -> float:
    """Find the prior precision that judges held-out pairs best.

    Args:
        posterior_at: Gives the posterior for a prior precision.
        features: Features of the held-out examples (n, d).
        pairs: Judged pairs of them, for example from `mine_pairs`.
        candidates: The prior precisions to try.

    Returns:
        The candidate with the smallest `pair_loss`.

    Raises:
        InputError: If there is no candidate.
    """
    if len(candidates) == 0:
        raise InputError("candidates is empty; give at least one prior precision to try.")
    return min(
        candidates, key=lambda delta: pair_loss(posterior_at(delta).predict(features), pairs)
    )


def pair_loss(embeddings: Embeddings, pairs: PairList) -> float:
    """Compute the balanced log loss of calling pairs same or different by their vMF match.

    Args:
        embeddings: Embeddings with finite κ.
        pairs: Judged pairs of them; both kinds must occur.

    Returns:
        The loss: log 2 for no information, lower is better.

    Raises:
        DegenerateError: If one kind of pairs is missing.
    """
    if pairs.n_positive == 0 or pairs.n_negative == 0:
        raise DegenerateError("held-out pairs must hold same and negative pairs, both kinds.")
    a, b = embeddings.tensors()[pairs.left], embeddings.tensors()[pairs.right]
    dim = a.mean.shape[1]
    gap = paired_gap(a.mean, b.mean)
    uniform = vmf_log_normalizer(torch.zeros_like(gap[:1]), dim)
    ratio = match_score(gap, a.kappa, b.kappa, dim) - uniform
    same = torch.nn.functional.softplus(-ratio[pairs.positive]).mean()
    different = torch.nn.functional.softplus(ratio[~pairs.positive]).mean()
    return float(same + different) / 2
