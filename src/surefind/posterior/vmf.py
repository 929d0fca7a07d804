"""The von Mises-Fisher distribution on the unit sphere of R^dim.

    p(u | μ, κ) = C(κ) exp(κ <μ, u>),    C(κ) = κ^ν / ((2π)^(dim/2) I_ν(κ)),    ν = dim/2 - 1

Concentration from the mean resultant length R̄ (Sra 2012, eq. 4; the paper's `Parameters estimators`):

    κ = R̄ (dim - R̄²) / (1 - R̄²)

The log normaliser never forms I_ν, which under- and overflows. With Ĩ_ν = κ^-ν I_ν,

    Ĩ_{ν-1} / Ĩ_ν = 2ν + κ² Ĩ_{ν+1} / Ĩ_ν

has positive terms only, so it is stable downwards; it starts at an order where Debye's uniform
expansion is exact to double precision. Both are smooth at κ = 0 and differentiable everywhere.
lc(κ) = log C(κ) + κ, which grows like log κ only and so keeps its digits at any κ, has its own
evaluation.

The match score of two distributions is the log of the expected likelihood that both are one point:

    log ∫ p(u | a) p(u | b) du = log C(κ_a) + log C(κ_b) - log C(κ_ab),    κ_ab = |κ_a μ_a + κ_b μ_b|
                               = lc(κ_a) + lc(κ_b) - lc(κ_ab) - 2 κ_a κ_b g / (κ_a + κ_b + κ_ab)

with g = 1 - <μ_a, μ_b> = ½|μ_a - μ_b|². The second line never subtracts numbers of the size of κ.
It is a log density, so only its differences (and its sign against a uniform prior) mean something.

References:
    S. Sra (2012), A short note on parameter approximation for von Mises-Fisher distributions.
    NIST Digital Library of Mathematical Functions, 10.41.3 (uniform expansion), 10.29.1 (recurrence).
"""

import math
from fractions import Fraction

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import check_int
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.tensor_checks import check_float

DEBYE_TERMS = 9
DEBYE_ORDER = 24
"""From this order on, `DEBYE_TERMS` terms leave a relative error below 1e-15."""

SMALLEST_SHORTFALL = torch.finfo(torch.float64).eps ** 2
"""1 - R̄² is held above this, so that κ stays finite, in float32 too."""


def vmf_concentration(resultant_length: Tensor, dim: int) -> Tensor:
    """Estimate κ from the mean resultant length.

    The length is all that comes, so 1 - R̄² is only as exact as its dtype; where the embedding's
    spread is known, `concentration` keeps the digits.

    Args:
        resultant_length: R̄ in [0, 1], any shape.
        dim: Dimension of the ambient space.

    Returns:
        κ of the same shape: 0 at R̄ = 0, and at most about dim / eps at R̄ = 1.

    Raises:
        InputError: If a length is outside [0, 1].
    """
    check_int("dim", dim, least=2)
    check_float("resultant_length", resultant_length)
    if not bool(((resultant_length >= 0) & (resultant_length <= 1)).all()):
        raise InputError(
            "resultant_length must lie between 0 and 1: it is the length of a mean.",
            field="resultant_length",
        )
    eps = torch.finfo(resultant_length.dtype).eps
    shortfall = ((1 - resultant_length) * (1 + resultant_length)).clamp(min=eps)
    return concentration(shortfall, dim)


def concentration(shortfall: Float[Tensor, "..."], dim: int) -> Float[Tensor, "..."]:
    """Estimate κ from ``1 - R̄²``, keeping its relative accuracy."""
    shortfall = shortfall.clamp(min=SMALLEST_SHORTFALL)
    squared_length = (1 - shortfall).clamp(min=0)
    return squared_length.sqrt() * (dim - squared_length) / shortfall


def vmf_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """Compute log C(κ).

    Args:
        kappa: Concentrations, finite and not negative, any shape.
        dim: Dimension of the ambient space.

    Returns:
        log C(κ) of the same shape, differentiable in κ. At κ = 0 it is minus the log of the
        sphere's area.

    Raises:
        InputError: If a concentration is negative, NaN or infinite.
    """
    check_int("dim", dim, least=2)
    check_float("kappa", kappa)
    _check_kappa(kappa)
    value = _log_normalizer(kappa.double(), dim, shifted=False)
    return value.to(kappa.dtype)


def _check_kappa(kappa: Tensor) -> None:
    if not bool(((kappa >= 0) & torch.isfinite(kappa)).all()):
        raise InputError("kappa must be finite and not negative to have a density.", field="kappa")


def vmf_match_score(a: Embeddings, b: Embeddings) -> Tensor:
    """Score each pair of two sets of embeddings; higher means: more likely the same point.

    Args:
        a: n_a embeddings with finite κ.
        b: n_b embeddings with finite κ.

    Returns:
        Log scores (n_a, n_b), a tensor of the means' dtype.

    Raises:
        InputError: If the dimensions differ.
    """
    a, b = a.tensors(), b.tensors()
    if a.mean.shape[1] != b.mean.shape[1]:
        raise InputError(
            f"embeddings of different dimensions cannot match: {a.mean.shape[1]} "
            f"and {b.mean.shape[1]}."
        )
    left, right = (_renormalized(e.mean) for e in (a, b))
    # Differences, not products: 1 - cosine has no digits left where the directions are close.
    distance = torch.cdist(left, right, compute_mode="donot_use_mm_for_euclid_dist")
    score = match_score(distance**2 / 2, a.kappa[:, None], b.kappa[None, :], a.mean.shape[1])
    return score.to(a.mean.dtype)


def paired_gap(a: Float[Tensor, "m z"], b: Float[Tensor, "m z"]) -> Float[Tensor, " m"]:
    """Compute 1 - <a, b> of unit rows, one by one, to full relative accuracy, in float64."""
    return ((_renormalized(a) - _renormalized(b)) ** 2).sum(1) / 2


def match_score(
    gap: Float[Tensor, "..."],
    kappa_a: Float[Tensor, "..."],
    kappa_b: Float[Tensor, "..."],
    dim: int,
) -> Float[Tensor, "..."]:
    """Score pairs of given 1 - cosine and concentrations, broadcasting, in float64."""
    _check_kappa(kappa_a)
    _check_kappa(kappa_b)
    ka, kb = kappa_a.double(), kappa_b.double()
    total = ka + kb
    # (κa - κb)² + 2κaκb(1 + c) has no cancellation, unlike κa² + κb² + 2κaκb c near c = -1.
    square = (ka - kb) ** 2 + 2 * ka * kb * (2 - gap).clamp(min=0)
    # The root has no slope at zero. Opposite directions of equal κ need none there; where both κ are
    # zero, κab = κa + κb keeps the score's slope right.
    joint = torch.where(square > 0, square, 1.0).sqrt()
    joint = torch.where(square > 0, joint, torch.where(total > 0, 0.0, total))
    apart = 2 * ka * kb * gap / torch.where(total > 0, total + joint, 1.0)
    lc_a, lc_b, lc_joint = (_log_normalizer(k, dim, shifted=True) for k in (ka, kb, joint))
    return lc_a + lc_b - lc_joint - apart


def _renormalized(rows: Float[Tensor, "n z"]) -> Float[Tensor, "n z"]:
    """Make rows of unit length in float64; as stored, they have it to their own dtype only."""
    return torch.nn.functional.normalize(rows.double(), dim=1)


def _log_normalizer(
    kappa: Float[Tensor, "..."], dim: int, *, shifted: bool
) -> Float[Tensor, "..."]:
    """Compute log C(κ), or lc(κ) = log C(κ) + κ if shifted, in float64."""
    order = dim / 2 - 1
    steps = max(0, math.ceil(DEBYE_ORDER - order))
    top = order + steps
    level, above = _hypotenuse(kappa, top), _hypotenuse(kappa, top + 1)
    rest = _debye_rest(kappa, top)
    # top² / (level + κ) is level - κ; unshifted, the slope keeps its digits at small κ instead.
    value = rest + (top**2 / (level + kappa) if shifted else level)
    # q = Ĩ_{ν+1}/Ĩ_ν, walked down from the top order; the quotient is above - level.
    q = ((2 * top + 1) / (above + level) + _debye_rest(kappa, top + 1) - rest).exp()
    for step in range(steps):
        q = 1 / (2 * (top - step) + kappa * (kappa * q))
        value = value - q.log()
    return -dim / 2 * math.log(2 * math.pi) - value


def _hypotenuse(kappa: Float[Tensor, "..."], order: float) -> Float[Tensor, "..."]:
    """Compute sqrt(ν² + κ²), the term of the expansion that grows like κ."""
    return torch.hypot(kappa, kappa.new_tensor(order))


def _debye_rest(kappa: Float[Tensor, "..."], order: float) -> Float[Tensor, "..."]:
    """Compute log(κ^-ν I_ν(κ)) - sqrt(ν² + κ²) by the uniform expansion, for ν >= DEBYE_ORDER."""
    root = _hypotenuse(kappa, order) / order
    p = 1 / root
    series = torch.zeros_like(p)
    for k in reversed(range(len(_DEBYE))):
        series = series / order + _polynomial(_DEBYE[k], p)
    return (
        -order * torch.log1p(root)
        - order * math.log(order)
        - 0.5 * math.log(2 * math.pi * order)
        - 0.5 * root.log()
        + series.log()
    )


def _polynomial(coefficients: list[float], x: Tensor) -> Tensor:
    value = torch.zeros_like(x)
    for c in reversed(coefficients):
        value = value * x + c
    return value


def _debye_polynomials(terms: int) -> list[list[float]]:
    """Derive u_k(p): u_{k+1} = ½p²(1-p²)u_k' + ⅛∫_0^p (1-5t²)u_k dt, u_0 = 1 (DLMF 10.41.9)."""
    u = [Fraction(1)]
    polynomials = [u]
    for _ in range(terms - 1):
        following = [Fraction(0)] * (len(u) + 3)
        for power, c in enumerate(u):
            following[power + 1] += c * power / 2 + c / (8 * (power + 1))
            following[power + 3] -= c * power / 2 + 5 * c / (8 * (power + 3))
        u = following
        polynomials.append(u)
    return [[float(c) for c in u] for u in polynomials]


_DEBYE = _debye_polynomials(DEBYE_TERMS)
