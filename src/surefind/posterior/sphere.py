"""Moments of a Gaussian vector pushed onto the unit sphere, without sampling.

For z ~ N(μ, diag v) and u = z/|z|, the identities 1/|z| = (2/√π)∫ e^{-r²|z|²} dr and
1/|z|² = ∫ e^{-t|z|²} dt turn both moments into one-dimensional integrals. In units of c² = |μ|² + Σv,
with ρ = v/c², β = μ²/c², ε_k = 2sρ_k and t = s/c²,

    E[u_k]  = (μ_k/c) · (1/√π) ∫ s^{-1/2} e^{-s+δ(s)} / (1+ε_k) ds          =: (μ_k/c) (1 + a_k)
    E[u_k²] = ∫ (ρ_k/(1+ε_k) + β_k/(1+ε_k)²) e^{-s+δ(s)} ds
    δ(s)    = Σ_l ½(ε_l - log(1+ε_l)) + s Σ_l β_l ε_l/(1+ε_l)

δ and a are small when the Gaussian is narrow, and `expm1` keeps their digits; so does

    1 - R̄² = 1 - |E[u]|² = Σ_k (β_k/m²) d_k (2 - d_k),   d_k = (1-m) - m a_k,   m = |μ|/c,

which never subtracts nearly equal numbers (1 - m is Σρ/(1+m)). κ follows from 1 - R̄².

The integrals are trapezoid sums in y with s = exp(y - e^{-y}), which decays doubly exponentially to the
left; the step's error bound e^{-2πw/h} with a strip of half-width w > 1 is below 1e-13. To the right
the grid ends where the integrand is negligible. There are two evaluations:

- *series*, when the largest ρ is at most 1/200 (narrow, or many dimensions): δ and 1/(1+ε) are short
  power series in s, so an input costs O(z) for its power sums, not z × nodes logarithms. The number
  of terms comes from the bound max_s s (2ρs)^J e^{-s/(1+2ρs)} < 1e-15.
- *direct* otherwise: z × nodes logarithms.

Both work in float64 and return the dtype of the input. Axes: ``n`` inputs, ``z`` embedding,
``y`` quadrature nodes.

Policy: an input with μ = 0 has E[u] = 0, and with v = 0 too E[u²] = 1/z: nothing is known of it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from surefind.embeddings import Embeddings
from surefind.errors import InputError, NumericalError
from surefind.posterior.vmf import concentration
from surefind.tensor_checks import check_matrix

STEP = 0.25
FIRST_Y = -3.6
"""Below it, s^(3/2) and s, which bound the integrands there, are under 1e-17."""
SERIES_LIMIT = 1 / 200
SERIES_END = 78.0
"""Where the series' grid ends: there e^{-s/(1+2ρs)} < 1e-18 for all ρ up to SERIES_LIMIT."""
NEGLIGIBLE = -39.0
"""Logarithm of what the integrand may still be where the direct grid ends."""
ENDS = (60.0, 400.0, 1e6, 1e15, 1e33)
"""Where a direct grid may end; algebraic tails of the widest inputs need the last ones."""
LEAST_NODES, PART = 16, 1 << 14
"""Nodes of a part, at least, and numbers of an input that it holds, where nodes come in parts."""
CHUNK = 1 << 18
"""Numbers in a temporary: 2 MB in float64, which stays in cache."""


class Resultant(NamedTuple):
    """The mean vector of directions, and how much its length falls short of one.

    Attributes:
        mean: E[u].
        shortfall: 1 - |E[u]|², to full relative accuracy.
    """

    mean: Float[Tensor, "n z"]
    shortfall: Float[Tensor, " n"]


def spherical_moments(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Compute E[u] and E[u²] of u = z/|z| for z ~ N(mean, diag variance).

    Args:
        mean: Means (n, z).
        variance: Variances (n, z), not negative.

    Returns:
        E[u] (n, z) and the elementwise E[u²] (n, z), whose rows sum to one.
    """
    _check(mean, variance)
    second = torch.empty_like(mean)
    for rows in _chunks(mean):
        _, rho, beta = _units(mean[rows].double(), variance[rows].double())
        known = rho.sum(1, keepdim=True) + beta.sum(1, keepdim=True) > 0
        value = _evaluate(_series_second, _direct_second, rho, beta)
        second[rows] = torch.where(known, value, 1 / mean.shape[1]).to(mean.dtype)
    return resultant(mean, variance).mean, second


def resultant(mean: Float[Tensor, "n z"], variance: Float[Tensor, "n z"]) -> Resultant:
    """Compute E[u] and 1 - |E[u]|², trusting the arguments."""
    first = torch.empty_like(mean)
    shortfall = mean.new_empty(len(mean), dtype=torch.float64)
    for rows in _chunks(mean):
        part = _resultant(mean[rows], variance[rows], _excess)
        first[rows], shortfall[rows] = part.mean.to(mean.dtype), part.shortfall
    return Resultant(first, shortfall)


def resultant_on_one_grid(mean: Float[Tensor, "n z"], variance: Float[Tensor, "n z"]) -> Resultant:
    """Compute the same without a branch, for graphs that cannot have one: directly, to the farthest end.

    It takes z × 320 logarithms an input, however narrow it is; nodes come in parts, so that many dimensions
    do not take all memory.

    Args:
        mean: Means.
        variance: Variances, not negative.

    Returns:
        The same as `resultant`, in float64.
    """

    def excess(rho: Tensor, beta: Tensor) -> Tensor:
        s, weight = _grid(ENDS[-1], rho)
        size = max(LEAST_NODES, PART // rho.shape[1])
        parts = [slice(at, at + size) for at in range(0, len(s), size)]
        total = _direct_excess_at(rho, beta, s[parts[0]], weight[parts[0]])
        for part in parts[1:]:
            total = total + _direct_excess_at(rho, beta, s[part], weight[part])
        return total

    return _resultant(mean, variance, excess)


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


def _resultant(
    mean: Float[Tensor, "n z"],
    variance: Float[Tensor, "n z"],
    excess: Callable[[Tensor, Tensor], Tensor],
) -> Resultant:
    """Put E[u] and 1 - |E[u]|² together from an evaluation of a, in float64."""
    mu = mean.double()
    c, rho, beta = _units(mu, variance.double())
    a = excess(rho, beta)
    m2 = beta.sum(1)
    m = m2.sqrt()
    d = (rho.sum(1) / (1 + m))[:, None] - m[:, None] * a
    missing = torch.einsum("nz,nz,nz->n", beta, d, 2 - d) / m2
    shortfall = torch.where(m2 > 0, missing, 1.0).clamp(0, 1)
    return Resultant(mu / c[:, None] * (1 + a), shortfall)


def _excess(rho: Float[Tensor, "n z"], beta: Float[Tensor, "n z"]) -> Float[Tensor, "n z"]:
    return _evaluate(_series_excess, _direct_excess, rho, beta)


def _check(mean: Tensor, variance: Tensor) -> None:
    check_matrix("mean", mean)
    check_matrix("variance", variance, rows=len(mean))
    if variance.shape != mean.shape or bool((variance < 0).any()):
        raise InputError(
            f"variance must have the mean's shape, {tuple(mean.shape)}, and no negative entry; got shape "
            f"{tuple(variance.shape)}.",
            field="variance",
        )


def _chunks(mean: Float[Tensor, "n z"]) -> list[slice]:
    size = max(1, CHUNK // mean.shape[1])
    return [slice(i, i + size) for i in range(0, len(mean), size)]


def _units(
    mean: Float[Tensor, "n z"], variance: Float[Tensor, "n z"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n z"], Float[Tensor, "n z"]]:
    """Scale to c = 1: return c, ρ and β; each row of ρ + β sums to one."""
    beta = mean * mean
    c2 = beta.sum(1) + variance.sum(1)
    c2 = torch.where(c2 > 0, c2, 1.0)
    return c2.sqrt(), variance / c2[:, None], beta.div_(c2[:, None])


def _evaluate(
    series: Callable[[Tensor, Tensor], Tensor],
    direct: Callable[[Tensor, Tensor, float], Tensor],
    rho: Float[Tensor, "n z"],
    beta: Float[Tensor, "n z"],
) -> Float[Tensor, "n z"]:
    """Evaluate each input by the series where its bound holds, directly elsewhere."""
    wide = rho.amax(1) > SERIES_LIMIT
    if not bool(wide.any()):
        return series(rho, beta)
    value = torch.empty_like(rho)
    if not bool(wide.all()):
        value[~wide] = series(rho[~wide], beta[~wide])
    # Inputs whose integrands end at the same place share a grid; few need a long one.
    rows = wide.nonzero()[:, 0]
    ends = _ends(rho[rows], beta[rows])
    for end in torch.unique(ends).tolist():
        size = max(1, CHUNK // int((math.log(end) - FIRST_Y) / STEP * rho.shape[1]))
        for part in torch.split(rows[ends == end], size):
            value[part] = direct(rho[part], beta[part], end)
    return value


# quadrature --------------------------------------------------------------------------------


def _grid(end: float, like: Tensor) -> tuple[Float[Tensor, " y"], Float[Tensor, " y"]]:
    """Give nodes s and weights of ∫_0^∞ … ds, up to s = end."""
    y = torch.arange(FIRST_Y, math.log(end) + STEP, STEP, dtype=torch.float64, device=like.device)
    s = (y - (-y).exp()).exp()
    return s, STEP * s * (1 + (-y).exp())


# series ------------------------------------------------------------------------------------


def _terms(largest_rho: float) -> int:
    """Choose how many powers of ε the series needs for an error below 1e-15."""
    s = [0.5 * i for i in range(1, 157)]

    def error(terms: int) -> float:
        ratios = (
            (2 * largest_rho * x) ** terms * math.exp(-x / (1 + 2 * largest_rho * x)) for x in s
        )
        return max(x * ratio for x, ratio in zip(s, ratios, strict=True))

    return next(terms for terms in range(3, 40) if error(terms) < 1e-15)


class _Series(NamedTuple):
    """What both series integrals need: nodes, weights times e^{-s}, δ at the nodes, terms."""

    s: Float[Tensor, " y"]
    weight: Float[Tensor, " y"]
    delta: Float[Tensor, "n y"]
    terms: int


def _series(rho: Float[Tensor, "n z"], beta: Float[Tensor, "n z"]) -> _Series:
    """Sum the powers of ρ once, then evaluate δ at all nodes as a polynomial in s."""
    terms = _terms(float(rho.max()))
    s, weight = _grid(SERIES_END, rho)
    coefficients = rho.new_zeros(len(rho), terms + 2)  # of s^0 … s^(terms+1)
    power = rho
    for j in range(1, terms + 1):
        sign = (-1) ** j * 2.0**j
        if j > 1:
            coefficients[:, j] += sign / (2 * j) * power.sum(1)
        coefficients[:, j + 1] -= sign * torch.einsum("nz,nz->n", beta, power)
        if j < terms:
            power = power * rho
    powers = s[None, :] ** torch.arange(terms + 2, device=s.device)[:, None]
    return _Series(s, weight * (-s).exp(), coefficients @ powers, terms)


def _series_excess(rho: Float[Tensor, "n z"], beta: Float[Tensor, "n z"]) -> Float[Tensor, "n z"]:
    """Compute a_k = (T_0 - 1) + Σ_j T_j (-2ρ_k)^j, T_j = (1/√π)∫ s^{j-½} e^{-s+δ} ds."""
    s, weight, delta, terms = _series(rho, beta)
    weight = weight / (math.pi * s).sqrt()
    moments = (delta.exp() * weight) @ (s[:, None] ** torch.arange(terms + 1, device=s.device))
    value = moments[:, terms, None].expand_as(rho).clone()
    for j in reversed(range(1, terms)):
        value.mul_(rho).mul_(-2).add_(moments[:, j, None])
    return value.mul_(rho).mul_(-2).add_((torch.expm1(delta) @ weight)[:, None])


def _series_second(rho: Float[Tensor, "n z"], beta: Float[Tensor, "n z"]) -> Float[Tensor, "n z"]:
    """Compute E[u_k²] = Σ_j V_j (-2ρ_k)^j (ρ_k + (j+1) β_k), V_j = ∫ s^j e^{-s+δ} ds."""
    s, weight, delta, terms = _series(rho, beta)
    moments = (delta.exp() * weight) @ (s[:, None] ** torch.arange(terms + 1, device=s.device))
    value = torch.zeros_like(rho)
    for j in reversed(range(terms + 1)):
        value = value * (-2 * rho) + moments[:, j, None] * (rho + (j + 1) * beta)
    return value


# direct ------------------------------------------------------------------------------------


class _Direct(NamedTuple):
    """What both direct integrals need: weights, ε and 1/(1+ε), Φ and Φ - e^{-s} at the nodes.

    The embedding's axis comes first, so that sums over it, which are short, run along memory.
    """

    weight: Float[Tensor, " y"]
    s: Float[Tensor, " y"]
    epsilon: Float[Tensor, "z n y"]
    inverse: Float[Tensor, "z n y"]
    phi: Float[Tensor, "n y"]
    change: Float[Tensor, "n y"]


def _direct(
    rho: Float[Tensor, "n z"],
    beta: Float[Tensor, "n z"],
    s: Float[Tensor, " y"],
    weight: Float[Tensor, " y"],
) -> _Direct:
    """Evaluate everything at all nodes, with one logarithm for each node and dimension."""
    epsilon = (2 * rho.T)[:, :, None] * s
    inverse = 1 / (1 + epsilon)
    log1p = epsilon.log1p()
    pull = beta.T[:, :, None] * inverse
    log_phi = -log1p.sum(0) / 2 - s * pull.sum(0)
    delta = (epsilon - log1p).sum(0) / 2 + s * (pull * epsilon).sum(0)
    phi, gauss = log_phi.exp(), (-s).exp()
    # δ has the digits where s is small, log Φ = δ - s where s is so large that δ - s has none.
    change = torch.where(delta < 1, gauss * torch.expm1(delta.clamp(max=1)), phi - gauss)
    return _Direct(weight, s, epsilon, inverse, phi, change)


def _ends(rho: Float[Tensor, "n z"], beta: Float[Tensor, "n z"]) -> Float[Tensor, " n"]:
    """Find for each input an s beyond which its integrand, s Φ/(1+ε), is negligible."""
    s = torch.tensor(ENDS, dtype=rho.dtype, device=rho.device)
    epsilon = (2 * rho.T)[:, :, None] * s
    log_phi = -epsilon.log1p().sum(0) / 2 - s * (beta.T[:, :, None] / (1 + epsilon)).sum(0)
    tail = log_phi + s.log() - epsilon.amax(0).log1p()
    reached = tail < NEGLIGIBLE
    reached[:, -1] = True
    return s[reached.int().argmax(1)]


def _direct_excess(
    rho: Float[Tensor, "n z"], beta: Float[Tensor, "n z"], end: float
) -> Float[Tensor, "n z"]:
    """Compute a_k = (1/√π) ∫ s^{-½} (Φ/(1+ε_k) - e^{-s}) ds."""
    return _direct_excess_at(rho, beta, *_grid(end, rho))


def _direct_excess_at(
    rho: Float[Tensor, "n z"],
    beta: Float[Tensor, "n z"],
    s: Float[Tensor, " y"],
    weight: Float[Tensor, " y"],
) -> Float[Tensor, "n z"]:
    """Compute what some nodes of a grid add to it."""
    at = _direct(rho, beta, s, weight)
    # The bracket is (Φ - e^{-s} - ε_k e^{-s}) / (1+ε_k), whose terms are both small.
    bracket = at.change - at.epsilon * (-at.s).exp()
    weighted = at.weight / (math.pi * at.s).sqrt()
    return ((bracket * at.inverse) @ weighted).T


def _direct_second(
    rho: Float[Tensor, "n z"], beta: Float[Tensor, "n z"], end: float
) -> Float[Tensor, "n z"]:
    """Compute E[u_k²] = ∫ (ρ_k/(1+ε_k) + β_k/(1+ε_k)²) Φ ds."""
    at = _direct(rho, beta, *_grid(end, rho))
    factor = (rho.T[:, :, None] + beta.T[:, :, None] * at.inverse) * at.inverse
    return ((factor * at.phi) @ at.weight).T
