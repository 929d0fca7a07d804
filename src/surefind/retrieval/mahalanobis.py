"""Mahalanobis distance of features to the nearest class mean, with one shrunk covariance for all.

    S = 1/n Σ_i (h_i - μ_{y_i})(h_i - μ_{y_i})ᵀ              within-class covariance
    Σ = (1 - a) S + a tr(S)/d · I                           shrunk towards a sphere
    score(h) = min_c sqrt( (h - μ_c)ᵀ Σ^-1 (h - μ_c) )       higher means less sure

For wide features S is never formed: it is replaced by its ``rank`` largest principal directions V with
variances λ, and one variance σ² for all directions left (what of the trace is left, spread evenly),

    S ≈ V diag(λ) Vᵀ + σ² (I - V Vᵀ)

whose inverse is explicit: inside V divide by the shrunk λ, outside by the shrunk σ². The directions
come from block power iteration started at evenly spaced residuals, which needs no random numbers and
is exact when there are no more examples than directions. Up to ``EXACT_DIM`` features all directions
are kept and nothing is approximated. Work is O(n d rank), memory O(d rank) beside the features.

Axes: ``n`` examples, ``d`` features, ``c`` classes, ``p`` principal directions, ``q`` queries.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.errors import DegenerateError, InputError
from surefind.retrieval.baselines import label_codes
from surefind.retrieval.rows import as_rows
from surefind.validation import check_share, check_whole

EXACT_DIM = 1024
"""Up to this many features the covariance is decomposed as a whole."""

ROWS = 256
"""Examples worked on at once: small enough that the allocator gives the same memory again."""

OVERSAMPLING, POWER_STEPS = 16, 2
"""Extra directions and passes over the data of the power iteration: halving either loses accuracy."""


@dataclass(frozen=True, eq=False)
class Mahalanobis:
    """Class means and the inverse of their shared covariance.

    Attributes:
        means: Class means (c, d), less the centre.
        centre: Mean of all features (d).
        directions: Orthonormal principal directions (d, p).
        variances: Shrunk variance along each (p).
        rest: Shrunk variance along every other direction.
    """

    means: Float[Tensor, "c d"]
    centre: Float[Tensor, " d"]
    directions: Float[Tensor, "d p"]
    variances: Float[Tensor, " p"]
    rest: float

    def score(self, queries: Any) -> Float[Tensor, " q"]:
        """Give the distance to the nearest class mean.

        Args:
            queries: Features (q, d).

        Returns:
            Uncertainties (q) of the queries' dtype, at least 0.

        Raises:
            InputError: If the queries have another number of features.
        """
        rows = as_rows("queries", queries)
        if rows.shape[1] != len(self.centre):
            raise InputError(
                f"queries have {rows.shape[1]} features, the training set {len(self.centre)}; "
                "take both from one network."
            )
        parts = [self._squared(rows[i : i + ROWS].double()) for i in range(0, len(rows), ROWS)]
        return torch.cat(parts).sqrt().to(rows.dtype)

    def _squared(self, rows: Float[Tensor, "r d"]) -> Float[Tensor, " r"]:
        x = rows - self.centre
        along, mean_along = x @ self.directions, self.means @ self.directions
        inside = _gaps(along / self.variances.sqrt(), mean_along / self.variances.sqrt())
        outside = _gaps(x, self.means) - _gaps(along, mean_along)
        return (inside + outside.clamp(min=0) / self.rest).min(dim=1).values


def fit_mahalanobis(
    features: Any, labels: Any, *, rank: int | None = None, shrinkage: float = 0.1
) -> Mahalanobis:
    """Learn class means and their shared covariance.

    Args:
        features: Training features (n, d).
        labels: A label per example (n), a tensor or an array.
        rank: Principal directions to keep; None means all up to `EXACT_DIM` features, else 128.
        shrinkage: The share a of the sphere in the covariance, 0 … 1.

    Returns:
        The fitted baseline.

    Raises:
        DegenerateError: If features do not vary within classes, or not in all directions and
            ``shrinkage`` is 0.
    """
    x = as_rows("features", features)
    check_share("shrinkage", shrinkage)
    if rank is not None:
        check_whole("rank", rank, least=1)
    codes, counts = label_codes(labels, len(x))
    codes = codes.to(x.device)
    d = x.shape[1]
    means = torch.zeros(len(counts), d, dtype=torch.float64, device=x.device)
    for i in range(0, len(x), ROWS):
        means.index_add_(0, codes[i : i + ROWS], x[i : i + ROWS].double())
    centre = means.sum(0) / len(x)
    means /= counts.to(x.device)[:, None]
    keep = min(rank or (d if d <= EXACT_DIM else 128), d)
    directions, variances, trace = _principal(x, means, codes, keep)
    keep = len(variances)
    if not trace > 0:
        raise DegenerateError(
            "features do not vary within any class, so there is no covariance: give classes with "
            "several different examples."
        )
    left = max(trace - float(variances.sum()), 0.0) / max(d - keep, 1)
    shrunk = (1 - shrinkage) * variances.clamp(min=0) + shrinkage * trace / d
    rest = (1 - shrinkage) * left + shrinkage * trace / d
    smallest = min(float(shrunk.min()), rest if keep < d else torch.inf)
    if not smallest > 1e-12 * trace / d:
        raise DegenerateError(
            "the covariance is singular: features do not vary in some direction. "
            "Raise shrinkage above 0."
        )
    return Mahalanobis(means - centre, centre, directions, shrunk, rest if keep < d else 1.0)


def _principal(
    x: Float[Tensor, "n d"], means: Float[Tensor, "c d"], codes: Int[Tensor, " n"], keep: int
) -> tuple[Float[Tensor, "d p"], Float[Tensor, " p"], float]:
    """Give principal directions of the residuals, their variances, and the sum of all variances."""
    n, d = x.shape
    near = means.to(x.dtype)
    if d <= EXACT_DIM:
        S = torch.zeros(d, d, dtype=torch.float64, device=x.device)
        for i in range(0, n, ROWS):
            residual = (x[i : i + ROWS] - near[codes[i : i + ROWS]]).double()
            S += residual.T @ residual
        variances, directions = torch.linalg.eigh(S / n)
        return directions[:, -keep:], variances[-keep:], float(S.trace()) / n
    width = min(keep + OVERSAMPLING, d)
    start = torch.linspace(0, n - 1, min(width, n), device=x.device).round().long()
    basis = torch.linalg.qr((x[start] - near[codes[start]]).T).Q
    for _ in range(POWER_STEPS):
        product = torch.zeros_like(basis)
        for i in range(0, n, ROWS):
            residual = x[i : i + ROWS] - near[codes[i : i + ROWS]]
            product += residual.T @ (residual @ basis)
        basis = torch.linalg.qr(product).Q
    inner = torch.zeros(basis.shape[1], basis.shape[1], dtype=torch.float64, device=x.device)
    trace = 0.0
    for i in range(0, n, ROWS):
        residual = x[i : i + ROWS] - near[codes[i : i + ROWS]]
        along = (residual @ basis).double()
        inner += along.T @ along
        trace += float(residual.double().square().sum())
    variances, turn = torch.linalg.eigh(inner / n)
    keep = min(keep, len(variances))
    return basis.double() @ turn[:, -keep:], variances[-keep:], trace / n


def _gaps(a: Float[Tensor, "r m"], b: Float[Tensor, "c m"]) -> Float[Tensor, "r c"]:
    """Give squared distances; float64 and centred rows keep the product's cancellation harmless."""
    return (a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)).clamp(min=0)
