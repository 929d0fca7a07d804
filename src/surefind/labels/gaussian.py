"""Gaussian evidence: how much more probable a label makes a vector than no label does.

Every label l has centres y ~ N(m, B), and a vector of one is x ~ N(y, W): the two-covariance model, or
PLDA. All that is known of m, B and W are sums over labelled vectors (`LabelSums`), of x and x xᵀ: they are
additive, so data may be streamed, merged and taken away. With D dimensions, L labels, N vectors,

    W = pooled covariance within labels           B = covariance of the labels' means - W mean(1/n_l)
    W ← (1-λ) W + λ tr(W)/D I                     B ← (1-γ) B + γ tr(B)/tr(W) W          λ = γ = 0.3

With few degrees of freedom f = N - L, W leans on half of the total covariance C as if 20 vectors had been
seen, and λ = max(0.3, 20/(20 + f)). One label has no covariance of means: then B = W.

One generalised eigendecomposition makes W = I and B = diag(b), b falling: x̃ = T (x - m), `Space`. With
length normalisation x̃ is then scaled to |x̃|² = Σ (b + 1). A centre of n vectors with mean x̄ has, from
Gaussian conditioning, coordinate by coordinate,

    v = 1/(1/b + n)     μ = n v x̄     p(x | centre) = N(x̃; μ, v + 1)     p(x | none) = N(x̃; 0, b + 1)
    s_l = log Σ_centres (n_c / n_l) p(x | centre) - log p(x | none)

so a label of one vector and one of a thousand need no rule of their own: v says how well a centre is known.

*Far from everything*: d²(x) = Σ x̃²/(b + 1) before length normalisation.

    Ioffe: Probabilistic Linear Discriminant Analysis. ECCV 2006.
    Brümmer, de Villiers: The Speaker Partitioning Problem. Odyssey 2010.
    Garcia-Romero, Espy-Wilson: Analysis of i-vector Length Normalization. Interspeech 2011.

Axes: ``n`` vectors, ``d`` features, ``r`` coordinates, ``l`` labels, ``c`` centres, ``q`` queries.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Int

from surefind.files import Array

SHRINKAGE = 0.3
PSEUDO = 20.0
"""Vectors as which the total covariance counts in W."""

FLOOR = 1e-4
"""Variance within labels that is taken for granted, of a unit vector's 1: copies have a spread too."""

LEAST_SPREAD = 1e-3
"""tr(B) is at least this share of tr(W): labels whose means do not differ say nothing."""

COORDINATES = 768
"""Features of more dimensions are first projected on so many principal ones: smaller spaces are estimated
better from few vectors, and cost less."""

SKETCH = 4096
"""Vectors whose principal directions are taken for those of all, where there are more dimensions."""

ROWS = 8192
"""Vectors that are worked on together."""


@dataclass(frozen=True, eq=False)
class LabelSums:
    """What the model needs to know of labelled vectors; sums of two parts add up.

    Attributes:
        counts: n_l (l).
        totals: Sums of each label's vectors (l, d).
        second: Sum of x xᵀ (d, d).
    """

    counts: np.ndarray
    totals: np.ndarray
    second: np.ndarray

    @classmethod
    def of(
        cls, vectors: Float[np.ndarray, "n d"], codes: Int[np.ndarray, " n"], labels: int
    ) -> "LabelSums":
        """Sum over vectors whose labels are numbered."""
        d = vectors.shape[1]
        second = np.zeros((d, d))
        for block in blocks(vectors):
            some = block.astype(np.float64)
            second += some.T @ some
        totals = sums_by(codes, vectors, labels)
        return cls(np.bincount(codes, minlength=labels).astype(np.float64), totals, second)

    def __add__(self, other: "LabelSums") -> "LabelSums":
        return LabelSums(
            self.counts + other.counts, self.totals + other.totals, self.second + other.second
        )

    def __sub__(self, other: "LabelSums") -> "LabelSums":
        return LabelSums(
            self.counts - other.counts, self.totals - other.totals, self.second - other.second
        )

    def beside(self, other: "LabelSums") -> "LabelSums":
        """Return the sums of both where none of the labels are the same."""
        return LabelSums(
            np.concatenate([self.counts, other.counts]),
            np.concatenate([self.totals, other.totals]),
            self.second + other.second,
        )


def blocks(vectors: np.ndarray) -> Iterator[np.ndarray]:
    """Go through rows in blocks."""
    for start in range(0, len(vectors), ROWS):
        yield vectors[start : start + ROWS]


def sums_by(codes: Int[np.ndarray, " n"], vectors: np.ndarray, count: int) -> np.ndarray:
    """Sum rows by their number (count, d), in float64."""
    order = np.argsort(codes, kind="stable")
    there, starts = np.unique(codes[order], return_index=True)
    found = np.zeros((count, vectors.shape[1]))
    for code, rows in zip(there, np.split(order, starts[1:]), strict=True):
        found[code] = vectors[rows].sum(axis=0, dtype=np.float64)
    return found


@dataclass(frozen=True, eq=False)
class Space:
    """Coordinates in which labels differ and vectors of one label spread alike.

    Attributes:
        mean: m (d).
        transform: T (r, d).
        spread: b (r), falling.
        normalize: Whether coordinates are scaled to the expected length.
    """

    mean: Array
    transform: Array
    spread: Array
    normalize: bool

    def __call__(self, vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n r"]:
        """Return x̃, scaled to the expected length if the space normalises."""
        found = self._raw(vectors)
        if self.normalize:
            lengths = np.maximum(np.einsum("nr,nr->n", found, found), 1e-30)
            found *= np.sqrt((self.spread + 1).sum() / lengths)[:, None].astype(found.dtype)
        return found

    def far(self, vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return d²."""
        return np.asarray(np.square(self._raw(vectors)) @ (1 / (self.spread + 1)))

    @cached_property
    def _single(self) -> tuple[np.ndarray, np.ndarray]:
        return self.mean.astype(np.float32), self.transform.astype(np.float32)

    def _raw(self, vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n r"]:
        single = vectors.dtype == np.float32  # such vectors are worth no more
        mean, transform = self._single if single else (self.mean, self.transform)
        return np.asarray((vectors - mean) @ transform.T)


def principal(vectors: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "r d"] | None:
    """Return the principal directions that are kept of many dimensions; None to keep all."""
    from scipy.linalg import eigh  # type: ignore[import-untyped]

    n, d = vectors.shape
    if d <= COORDINATES:
        return None
    if d > SKETCH and n > SKETCH:
        vectors = vectors[np.random.default_rng(0).permutation(n)[:SKETCH]]
    rows = vectors - vectors.mean(axis=0, dtype=np.float64)
    if len(rows) <= COORDINATES:
        return np.asarray(np.linalg.qr(rows.T)[0].T)
    few = len(rows) < d
    moments = rows @ rows.T if few else rows.T @ rows
    top = [len(moments) - COORDINATES, len(moments) - 1]
    directions = eigh(moments, subset_by_index=top)[1].T
    return np.linalg.qr((directions @ rows).T)[0].T if few else np.asarray(directions)


def fit_space(sums: LabelSums, *, normalize: bool, shrinkage: float = SHRINKAGE) -> Space:
    """Estimate m, B and W, and the coordinates in which these are simple.

    Args:
        sums: Of labelled vectors; labels without any do not count.
        normalize: Whether coordinates are scaled to the expected length.
        shrinkage: λ, at least.

    Returns:
        The coordinates.
    """
    from scipy.linalg import eigh

    there = sums.counts > 0.5
    counts, totals = sums.counts[there], sums.totals[there]
    means = totals / counts[:, None]
    n, labels, d = counts.sum(), len(counts), totals.shape[1]
    centre = totals.sum(axis=0) / n
    total = sums.second / n - np.outer(centre, centre)
    freedom = n - labels
    within = (sums.second - means.T @ totals + PSEUDO * total / 2) / (freedom + PSEUDO)
    part = max(shrinkage, PSEUDO / (PSEUDO + freedom))
    trace = max(float(np.trace(within)), 0.0)
    within = (1 - part) * within + (part * trace / d + FLOOR / d) * np.eye(d)
    trace = float(np.trace(within))
    mean = means.mean(axis=0)
    between = within
    if labels > 1:
        away = means - mean
        between = away.T @ away / (labels - 1) - within * (1 / counts).mean()
        scale = max(float(np.trace(between)) / trace, LEAST_SPREAD)
        between = (1 - SHRINKAGE) * between + SHRINKAGE * scale * within
    spread, directions = eigh(between, within)
    return Space(mean, directions[:, ::-1].T.copy(), np.maximum(spread[::-1], 1e-6), normalize)


@dataclass(frozen=True, eq=False)
class Centres:
    """Where the labels are, in a space.

    Attributes:
        owner: Number of each centre's label (c), rising.
        counts: Vectors of each (c); a label without any has a centre of none, which has no evidence.
        totals: Sums of their coordinates (c, r).
        spread: b of the space (r).
    """

    owner: Array
    counts: Array
    totals: Array
    spread: Array

    @classmethod
    def of(
        cls,
        coordinates: Float[np.ndarray, "n r"],
        codes: Int[np.ndarray, " n"],
        labels: int,
        spread: Float[np.ndarray, " r"],
        *,
        each: int = 1,
        rng: np.random.Generator | None = None,
    ) -> "Centres":
        """Put one centre on each label, or several by k-means."""
        if each == 1:
            counts = np.bincount(codes, minlength=labels).astype(np.float64)
            return cls(np.arange(labels), counts, sums_by(codes, coordinates, labels), spread)
        parts = np.zeros(len(codes), dtype=np.int64)
        for code in np.unique(codes):
            rows = np.flatnonzero(codes == code)
            parts[rows] = _parts(coordinates[rows], each, rng)
        numbers = codes * each + parts
        there = np.unique(np.concatenate([numbers, np.setdiff1d(np.arange(labels), codes) * each]))
        place = np.searchsorted(there, numbers)
        return cls(
            there // each,
            np.bincount(place, minlength=len(there)).astype(np.float64),
            sums_by(place, coordinates, len(there)),
            spread,
        )

    @property
    def labels(self) -> int:
        """How many labels there are."""
        return int(self.owner[-1]) + 1

    @cached_property
    def _table(self) -> tuple[np.ndarray, ...]:
        """Return what scoring multiplies coordinates with, for each centre and each number of vectors."""
        sizes, which = np.unique(self.counts, return_inverse=True)
        v = 1 / (1 / self.spread + sizes[:, None])
        precision = 1 / (v + 1)
        mean = v[which] * self.totals
        linear = mean * precision[which]
        constant = 0.5 * (np.log(self.spread + 1) - np.log(v + 1)).sum(axis=1)[which]
        constant = constant - 0.5 * np.einsum("cr,cr->c", mean, linear)
        of_label = np.bincount(self.owner, weights=self.counts)
        with np.errstate(divide="ignore"):
            constant = constant + np.log(self.counts / np.maximum(of_label, 1)[self.owner])
        square = 0.5 * (1 / (self.spread + 1) - precision)
        tables = (x.astype(np.float32) for x in (linear, constant, square))
        return (*tables, which)

    def scores(self, coordinates: Float[np.ndarray, "q r"]) -> Float[np.ndarray, "q l"]:
        """Return s_l, -inf for a label without vectors."""
        linear, constant, square, which = self._table
        small = coordinates.astype(np.float32)
        curved = np.square(small) @ square.T
        found = small @ linear.T
        found += curved[:, which] if len(square) > 1 else curved
        found += constant
        if len(self.owner) == self.labels:
            return np.asarray(found)
        starts = np.searchsorted(self.owner, np.arange(self.labels))
        top = np.maximum.reduceat(found, starts, axis=1)
        top = np.where(np.isfinite(top), top, 0.0)
        mass = np.add.reduceat(np.exp(found - top[:, self.owner]), starts, axis=1)
        with np.errstate(divide="ignore"):
            return np.asarray(top + np.log(mass))


def _parts(
    rows: Float[np.ndarray, "n r"], each: int, rng: np.random.Generator | None
) -> np.ndarray:
    """Divide a label's vectors by k-means."""
    from scipy.cluster.vq import kmeans2  # type: ignore[import-untyped]

    same = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    if same.max() < each:
        return same
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a part without vectors is no centre
        return np.asarray(kmeans2(rows, each, minit="++", seed=rng)[1])
