"""Distance baselines: uncertainty scores that need only the embeddings or features one has anyway.

Each is fitted on *training* vectors and scores queries; **higher means less sure**. With |·| the chord
between unit vectors, d_1 <= d_2 <= … a query's distances to the training set:

    nearest distance    d_1
    k-NN density        (d_1 + … + d_k) / k              far from its neighbours: a thin region
    margin              d_1 - d_2                        close to 0 when the runner-up is as near
    labelled margin     d_1 - d_o, o the nearest of another label than the first: who else could it be?
    norm                -|z|, z the head's output before normalisation
    Mahalanobis         min_c sqrt( (h - μ_c)ᵀ Σ^-1 (h - μ_c) ), h features, μ_c class means

Distances are computed from differences in float64, so near duplicates do not drown in the rounding of
2 - 2 cos.

**Mahalanobis** distance has one covariance for all classes, shrunk towards a sphere:

    S = 1/n Σ_i (h_i - μ_{y_i})(h_i - μ_{y_i})ᵀ              within-class covariance
    Σ = (1 - a) S + a tr(S)/d · I

For wide features S is never formed: it is replaced by its ``rank`` largest principal directions V with
variances λ, and one variance σ² for all directions left (what of the trace is left, spread evenly),

    S ≈ V diag(λ) Vᵀ + σ² (I - V Vᵀ)

whose inverse is explicit: inside V divide by the shrunk λ, outside by the shrunk σ². The directions
come from block power iteration started at evenly spaced residuals, which needs no random numbers and
is exact when there are no more examples than directions. Up to ``EXACT_DIM`` features all directions
are kept and nothing is approximated. Work is O(n d rank), memory O(d rank) beside the features.

Axes: ``n`` training examples, ``q`` queries, ``z`` embedding, ``k`` neighbours, ``d`` features, ``c``
classes, ``p`` principal directions.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from surefind.checks import check_fraction, check_int
from surefind.errors import DegenerateError, InputError
from surefind.neighbours import as_rows, as_unit_rows, highest_cosines, unit64

FARTHEST = 2.0
"""The longest chord: how far a runner-up is that is not there."""


class Baseline(Protocol):
    """Anything that scores the uncertainty of vectors."""

    def score(self, queries: Any) -> Tensor:
        """Return one uncertainty per row; higher means less sure."""
        ...


@dataclass(frozen=True, eq=False)
class NeighbourDistance:
    """Mean distance to the ``k`` nearest training vectors.

    Attributes:
        vectors: Training vectors (n, z), float64, unit.
        k: Number of neighbours.
    """

    vectors: Float[Tensor, "n z"]
    k: int

    def score(self, queries: Any, *, exclude_self: bool = False) -> Float[Tensor, " q"]:
        """Return the mean chord to the nearest training vectors.

        Args:
            queries: Unit vectors (q, z).
            exclude_self: Whether the queries are the training vectors, and must not find themselves.

        Returns:
            Uncertainties (q) of the queries' dtype, 0 … 2.
        """
        rows = _queries(queries, self.vectors, others=self.k if exclude_self else None)
        u = unit64(rows)
        indices, _ = highest_cosines(u, self.vectors, self.k, exclude_self=exclude_self)
        total = sum(_chord(u, self.vectors[indices[:, i]]) for i in range(self.k))
        return torch.as_tensor(total / self.k).to(rows.dtype)


@dataclass(frozen=True, eq=False)
class Margin:
    """How much nearer the nearest is than the runner-up.

    Attributes:
        vectors: Training vectors (n, z), float64, unit; sorted by label if there are labels.
        bounds: Where each label's vectors begin, and the end (c + 1); None without labels.
        order: The row that each vector had before it was sorted (n); None without labels.
    """

    vectors: Float[Tensor, "n z"]
    bounds: Int[Tensor, " bounds"] | None
    order: Int[Tensor, " n"] | None = None

    def score(self, queries: Any, *, exclude_self: bool = False) -> Float[Tensor, " q"]:
        """Return d_1 - d_2, or d_1 - d_o with labels.

        Args:
            queries: Unit vectors (q, z).
            exclude_self: Whether the queries are the training vectors, in their order, and must find
                themselves neither first nor as a runner-up.

        Returns:
            Uncertainties (q) of the queries' dtype, -2 … 0.
        """
        rows = _queries(queries, self.vectors, others=2 if exclude_self else None)
        u = unit64(rows)
        if self.bounds is None or self.order is None:
            indices, _ = highest_cosines(u, self.vectors, 2, exclude_self=exclude_self)
            first, second = (_chord(u, self.vectors[indices[:, i]]) for i in (0, 1))
            return (first - second).to(rows.dtype)
        if exclude_self:
            u = u[self.order]
        found = highest_cosines(u, self.vectors, 1, exclude_self=exclude_self)[0][:, 0]
        margin = _chord(u, self.vectors[found])
        label = torch.searchsorted(self.bounds, found, right=True) - 1
        for near in sorted(set(label.tolist())):
            who = (label == near).nonzero()[:, 0]
            own = who if exclude_self else None
            start, stop = self.bounds[near : near + 2].tolist()
            margin[who] -= self._distance_outside(u[who], start, stop, own)
        if exclude_self:
            margin = torch.empty_like(margin).index_copy_(0, self.order, margin)
        return margin.to(rows.dtype)

    def _distance_outside(
        self, u: Float[Tensor, "r z"], start: int, stop: int, own: Int[Tensor, " r"] | None
    ) -> Float[Tensor, " r"]:
        """Return the distance to the nearest vector outside a range, and other than one's own."""
        best = u.new_full((len(u),), FARTHEST)
        for first, others in ((0, self.vectors[:start]), (stop, self.vectors[stop:])):
            if len(others):
                # One more than needed: one of the two is not the query itself.
                k = 1 if own is None else min(2, len(others))
                indices = highest_cosines(u, others, k, exclude_self=False)[0]
                for found in indices.T:
                    distance = _chord(u, others[found])
                    if own is not None:
                        distance[found + first == own] = FARTHEST
                    best = torch.minimum(best, distance)
        return best


@dataclass(frozen=True, eq=False)
class NegativeNorm:
    """Short outputs are unsure; there is nothing to fit."""

    def score(self, queries: Any) -> Float[Tensor, " q"]:
        """Return the negative length of the head's outputs (q, z), those *before* normalisation."""
        norm: Tensor = torch.linalg.vector_norm(as_rows("queries", queries), dim=1)
        return -norm


def fit_nearest_distance(embeddings: Any) -> NeighbourDistance:
    """Keep unit vectors (n, z) to measure the distance to the nearest."""
    return fit_knn_density(embeddings, k=1)


def fit_knn_density(embeddings: Any, *, k: int = 10) -> NeighbourDistance:
    """Keep unit vectors (n, z) to measure the mean distance to the ``k`` nearest."""
    rows = as_unit_rows("embeddings", embeddings)
    check_int("k", k, least=1)
    if k > len(rows):
        raise InputError(
            f"k is {k}, but there are {len(rows)} training vectors; lower k.", field="k"
        )
    return NeighbourDistance(unit64(rows), k)


def fit_margin(embeddings: Any, labels: Any = None) -> Margin:
    """Keep training vectors to compare the nearest with the runner-up.

    Args:
        embeddings: Unit vectors (n, z).
        labels: A label per vector (n), a tensor or an array; the runner-up then is the nearest of
            another label. Without labels it is the second nearest.

    Returns:
        The fitted baseline.

    Raises:
        DegenerateError: If there is only one vector, or one label.
    """
    rows = as_unit_rows("embeddings", embeddings)
    if len(rows) < 2:
        raise DegenerateError("a margin needs two training vectors; got 1.", field="embeddings")
    if labels is None:
        return Margin(unit64(rows), None)
    codes, counts = label_codes(labels, len(rows))
    if len(counts) < 2:
        raise DegenerateError(
            "a labelled margin needs two labels; got 1. Leave the labels out.", field="labels"
        )
    bounds = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(rows.device)
    order = codes.argsort(stable=True).to(rows.device)
    return Margin(unit64(rows)[order], bounds, order)


def label_codes(labels: Any, n: int) -> tuple[Int[Tensor, " n"], Int[Tensor, " c"]]:
    """Number the labels, one for each of ``n`` examples, from 0, and count each."""
    array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if array.shape != (n,):
        raise InputError(
            f"labels must be one per example, shape ({n},); got {array.shape}.", field="labels"
        )
    _, codes, counts = np.unique(array, return_inverse=True, return_counts=True)
    return torch.from_numpy(codes), torch.from_numpy(counts)


def _queries(queries: Any, vectors: Float[Tensor, "n z"], *, others: int | None) -> Tensor:
    """Check queries; if they are the vectors themselves, that ``others`` beside each can be found."""
    rows = as_unit_rows("queries", queries)
    if rows.shape[1] != vectors.shape[1]:
        raise InputError(
            f"queries have {rows.shape[1]} dimensions, the training vectors {vectors.shape[1]}; "
            "embed both with one model.",
            field="queries",
        )
    if others is not None and not (len(rows) == len(vectors) > others):
        raise InputError(
            f"exclude_self needs the {len(vectors)} training vectors themselves as "
            f"queries, and more of them than k = {others}; got {len(rows)} queries.",
            field="exclude_self",
        )
    return rows


def _chord(a: Float[Tensor, "q z"], b: Float[Tensor, "q z"]) -> Float[Tensor, " q"]:
    chord: Tensor = torch.linalg.vector_norm(a - b, dim=1)
    return chord


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
        """Return the distance of features (q, d) to the nearest class mean, in their dtype."""
        rows = as_rows("queries", queries)
        if rows.shape[1] != len(self.centre):
            raise InputError(
                f"queries have {rows.shape[1]} features, the training set {len(self.centre)}; "
                "take both from one network.",
                field="queries",
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
        shrinkage: The fraction a of the sphere in the covariance, 0 … 1.

    Returns:
        The fitted baseline.

    Raises:
        DegenerateError: If features do not vary within classes, or not in all directions and
            ``shrinkage`` is 0.
    """
    x = as_rows("features", features)
    check_fraction("shrinkage", shrinkage)
    if rank is not None:
        check_int("rank", rank, least=1)
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
            "several different examples.",
            field="features",
        )
    left = max(trace - float(variances.sum()), 0.0) / max(d - keep, 1)
    shrunk = (1 - shrinkage) * variances.clamp(min=0) + shrinkage * trace / d
    rest = (1 - shrinkage) * left + shrinkage * trace / d
    smallest = min(float(shrunk.min()), rest if keep < d else torch.inf)
    if not smallest > 1e-12 * trace / d:
        raise DegenerateError(
            "the covariance is singular: features do not vary in some direction. "
            "Raise shrinkage above 0.",
            field="shrinkage",
        )
    return Mahalanobis(means - centre, centre, directions, shrunk, rest if keep < d else 1.0)


def _principal(
    x: Float[Tensor, "n d"], means: Float[Tensor, "c d"], codes: Int[Tensor, " n"], keep: int
) -> tuple[Float[Tensor, "d p"], Float[Tensor, " p"], float]:
    """Return principal directions of the residuals, their variances, and the sum of all variances."""
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
    """Return squared distances; float64 and centred rows keep the product's cancellation harmless."""
    return (a.square().sum(1)[:, None] - 2 * a @ b.T + b.square().sum(1)).clamp(min=0)
