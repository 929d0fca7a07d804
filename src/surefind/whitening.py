"""Whitening within classes or places: a linear map in closed form that makes positive pairs close.

    S = Σ_(i,j) (h_i - h_j)(h_i - h_j)ᵀ    over the m unordered positive pairs,    S̄ = S/m
    W = ((S̄ d/tr S̄ + λ I) / (1 + λ))^(-1/2),    z = W (h - μ)

with μ the mean of all h: as a head it is W with the bias -W μ. Up to a factor, which the sphere removes, W
is (S̄ + λ (tr S̄/d) I)^(-1/2): the inverse root of a covariance with linear shrinkage λ/(1 + λ) to a multiple
of the identity. The factor makes the mean eigenvalue under the root one, so that W tends to the identity
for large λ, and a given prior precision means the same with either map. Directions in which examples that
belong together differ (members of a class, a place by day and by night) count less; it is the centring
and within-class whitening of PLDA.

Every positive pair counts the same, as in the contrastive loss. With A the symmetric 0/1 matrix of positive
pairs and D its row sums, S = Hᵀ (D - A) H = Σ_i h_i (Σ_(j: A_ij = 1) (h_i - h_j))ᵀ: any relation that can
add up an example's partners has it, without a list of its pairs (`pair_scatter`). The inner sum is the
difference of two large ones: S has an error of 1 % where differences are 1e-7 of the features' spread, and
what rounding leaves of equal features, up to `ROUNDING` times the precision, counts as nothing.

**For a head on vectors**, h are the unit vectors without the one, and `choose_metric` takes the map or
leaves the vectors as they are. The identity stays uncentred: its neighbours are those of X.

**Weights of the classes.** Every positive pair counts the same, as in the contrastive loss. A class of n_c
examples so enters as n_c Σ_(i in c) (h_i - mean_c)(h_i - mean_c)ᵀ: n_c times its weight in the pooled
within-class covariance, to which S̄/2 is equal if all classes are of one size.

**λ by classes left out.** Classes with two examples and more are dealt to `SHARES` shares, and in five
rounds two shares at a time are left out (`ROUNDS`): every share in every round, every two together once.
Their classes are searched among themselves (every row among the others) after whitening by all other rows,
μ included, with each λ of `RIDGES` and without whitening. The rounds count alike. Differences in recall@1
have a standard error, paired by row and clustered by class: rows of a class, and a row's rounds, are not
independent. "whitened" takes the largest λ that is at most one standard error below the best, because the
best of several that are alike depends on the deal. "auto" takes it only if its gain over no whitening is
more than `STANDARD_ERRORS` standard errors. The choice is made before a projection (``embedding_dim``) and
before training. Of a class up to `MEMBERS` rows are judged, and up to `JUDGED` at a time, chosen at random
beyond, in every round anew.

Policy: fewer than `SHARES` such classes, and a `PairList` or positions, which have no classes: "auto" means
the identity, "whitened" takes λ = `RIDGE`. Fewer differences than columns leave S singular; λ > 0 bounds W.
No positive pair, or only equal vectors: "auto" means the identity, "whitened" is refused. Rows without a
direction must be left out before. Whatever is chosen, `Metric.reason` says why.

Cost: two passes over the rows, O(n d²), in float64, however many rounds: these only add up shares. Then 16
eigendecompositions, and 15 searches of up to `JUDGED` rows for each candidate. (`SHARES` + 2) d² numbers
and one mean a class are held. Positions are compared pair by pair, O(n² d), with three copies of the rows
in float64.

What is not guaranteed: that other classes than those of the fit gain. On training classes of CUB200 (frozen
ImageNet features) recall@1 was 0.809 without whitening and, with λ = 10, 3, 1, 0.3, 0.1, 0.03, it was
0.819, 0.818, 0.818, 0.815, 0.808, 0.800 with one deal; with four others the best λ was 3, and 10 about
0.001 below at most. λ from 1 to 10 is alike there, and `RIDGE` is the middle of it.

Axes: ``n`` examples, ``d`` columns, ``k`` classes, ``s`` shares, ``b`` rows of a block, ``r`` rows judged,
``c`` candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import normalize

from surefind.errors import DegenerateError
from surefind.models.vectors import Vectors
from surefind.neighbours import nearest_one
from surefind.pairs.relations import Classes, PairList, Relation, blocks, row_blocks

RIDGE = 3.0
"""λ where nothing can be left out to choose it by: the middle of 1 … 10, which gained on CUB200."""

ROUNDING = 64
"""How many times the precision of their squared lengths equal features may seem to differ by."""


def pair_scatter(
    features: Float[Tensor, "n d"], relation: Relation
) -> tuple[Float[Tensor, "d d"], int]:
    """Add up the outer products of the differences of positive pairs, in float64.

    Args:
        features: A row per example.
        relation: Which of them belong together.

    Returns:
        S, and over how many unordered pairs.
    """
    n, d = features.shape
    h = features.new_ones(n, d + 1, dtype=torch.float64)
    h[:, :-1] = features
    h[:, :-1] -= h[:, :-1].mean(0)
    sums = relation.positive_sums(h, slice(0, n))
    scatter, length = h.new_zeros(d, d), 0.0
    for rows in row_blocks(slice(0, n)):
        here, partners = h[rows, :-1], sums[rows, -1:]
        scatter += here.T @ (partners * here - sums[rows, :-1])
        length += float((partners * here.square()).sum())
    scatter = (scatter + scatter.T) / 2
    if float(scatter.trace()) <= ROUNDING * torch.finfo(h.dtype).eps * length:
        scatter = torch.zeros_like(scatter)
    return scatter, int(sums[:, -1].sum()) // 2


def centred(
    scatter: Float[Tensor, "d d"], mean: Float[Tensor, " d"], ridge: float
) -> Float[Tensor, "d features"]:
    """Compute [W, -W μ] from S, at any scale, μ and λ."""
    W = whitening(scatter, ridge)
    return torch.cat([W, -(W @ mean)[:, None]], dim=1)


def check_difference(scatter: Float[Tensor, "d d"], field: str) -> None:
    """Refuse a scatter of nothing.

    Args:
        scatter: S.
        field: Where whitening was asked for.

    Raises:
        DegenerateError: If no positive pair differs.
    """
    if not float(scatter.trace()) > 0:
        raise DegenerateError(
            "no two different examples belong together, so whitening within classes or places cannot be "
            "learnt.",
            field=field,
            hint='Take the "identity".',
        )


def whitening(scatter: Float[Tensor, "d d"], ridge: float) -> Float[Tensor, "d d"]:
    """Compute W from S, at any scale, and λ."""
    variances, directions = spectrum(scatter)
    return (directions * factors(variances, ridge)) @ directions.T


def spectrum(scatter: Float[Tensor, "d d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Compute variances, of mean one, along orthonormal directions (columns)."""
    variances, directions = torch.linalg.eigh(scatter)
    variances = variances.clamp(min=0)
    mean = variances.mean()
    return (variances / mean if mean > 0 else torch.ones_like(variances)), directions


def factors(variances: Float[Tensor, " d"], ridge: float) -> Float[Tensor, " d"]:
    """Return what W multiplies each direction by, from its variance and λ."""
    return ((variances + ridge) / (1 + ridge)).rsqrt()


MetricName = Literal["identity", "whitened", "auto"]
METRICS = get_args(MetricName)

RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""Candidates for λ."""

ROUNDS = (
    ((5, 0), (1, 4), (2, 3)),
    ((5, 1), (2, 0), (3, 4)),
    ((5, 2), (3, 1), (4, 0)),
    ((5, 3), (4, 2), (0, 1)),
    ((5, 4), (0, 3), (1, 2)),
)
"""Which two shares of the classes are left out at a time: a round has every share, all have every pair."""

SHARES = 6

STANDARD_ERRORS = 2.0
"""By how many of them whitening must gain for "auto"."""

MEMBERS, JUDGED = 64, 4096
"""Rows of a class, and of all classes left out at a time, that are judged."""

PAIR_ELEMENTS = 1 << 21
"""Numbers of listed pairs' differences held at a time: 16 MB."""

NO_DIFFERENCE = 1e-20
"""Mean squared distance of unit vectors up to which positive pairs are equal."""


@dataclass(frozen=True, eq=False)
class Metric:
    """The metric that was chosen.

    Attributes:
        weights: [W, -W μ] (d, d + 1), a head whose bias centres, in float64; None for the identity.
        ridge: λ; None for the identity.
        reason: Why, in a sentence.
    """

    weights: Tensor | None
    ridge: float | None
    reason: str

    @property
    def name(self) -> Literal["identity", "whitened"]:
        """What it is called."""
        return "identity" if self.ridge is None else "whitened"


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums over vectors and positive pairs, by shares of the classes; a whitening is made of these.

    Attributes:
        total: Σ h over all rows (d), whatever their class.
        rows: How many these are.
        sums: Σ h over each share's rows (s, d).
        sizes: How many these are (s).
        scatters: Σ (h_i - h_j)(h_i - h_j)ᵀ over each share's unordered positive pairs (s, d, d).
        pairs: How many these are (s).
    """

    total: Float[Tensor, " d"]
    rows: int
    sums: Float[Tensor, "s d"]
    sizes: Int[Tensor, " s"]
    scatters: Float[Tensor, "s d d"]
    pairs: Int[Tensor, " s"]

    def without(self, *shares: int) -> tuple[Float[Tensor, "d d"], Float[Tensor, " d"]]:
        """Return the scatter, summed, and the mean μ of everything but some shares."""
        out = list(shares)
        kept = [s for s in range(len(self.scatters)) if s not in shares]
        mean = (self.total - self.sums[out].sum(0)) / (self.rows - self.sizes[out].sum())
        return self.scatters[kept].sum(0), mean


@dataclass(frozen=True, eq=False)
class LeftOut:
    """How classes that were left out are retrieved; a row is there once for every time it was judged.

    Attributes:
        right: Whether each row's nearest other row is of its class (r), without whitening.
        whitened: The same with each λ (c, r).
        classes: Class of each row (r).
    """

    right: Bool[Tensor, " r"]
    whitened: Bool[Tensor, "c r"]
    classes: Int[Tensor, " r"]

    def best(self) -> int:
        """Return the first λ whose recall@1 is at most one standard error below the highest."""
        highest = int(self.whitened.sum(1).argmax())
        for candidate in range(highest):
            gain, error = self._compare(highest, self.whitened[candidate])
            if gain <= error:
                return candidate
        return highest

    def gain(self, candidate: int) -> tuple[float, float]:
        """Return a candidate's gain in recall@1 over no whitening, and its standard error."""
        return self._compare(candidate, self.right)

    def _compare(self, candidate: int, other: Bool[Tensor, " r"]) -> tuple[float, float]:
        """Return a candidate's gain over another, and its standard error, paired and by class."""
        difference = self.whitened[candidate].double() - other.double()
        _, index = torch.unique(self.classes, return_inverse=True)
        k = int(index.max()) + 1
        sums = torch.zeros(k, dtype=torch.float64)
        sums.index_add_(0, index, difference - difference.mean())
        spread = float((sums.square().sum() * k / (k - 1)).sqrt())
        return float(difference.mean()), spread / len(index)


def choose_metric(
    vectors: Vectors, relation: Relation, metric: MetricName, *, generator: torch.Generator
) -> Metric:
    """Choose the metric of a head on vectors, by their positive pairs.

    Args:
        vectors: Rows that have a direction.
        relation: Which of them belong together.
        metric: "identity", "whitened", or "auto" for what classes left out say.
        generator: Deals classes to shares, and chooses rows where there are many.

    Returns:
        The metric, with its reason.

    Raises:
        DegenerateError: If whitening is asked for and there is nothing to learn it from.
    """
    if metric == "identity":
        return Metric(None, None, "the vectors stay as they are, as asked.")
    shares = _shares(relation, generator)
    lacking = "" if len(shares[-1]) else _lacking(relation)  # the last is the smallest
    if lacking and metric == "auto":
        return Metric(None, None, f"{lacking}.")
    try:
        moments = positive_moments(vectors, relation, shares)
    except DegenerateError as refusal:
        if metric == "auto":
            return Metric(None, None, refusal.message)
        raise
    if lacking:
        return Metric(centred(*moments.without(), RIDGE), RIDGE, f"{lacking}, so λ is {RIDGE:g}.")
    assert isinstance(relation, Classes)  # only these have shares
    found = leave_classes_out(vectors, relation, shares, moments, generator)
    best = found.best()
    (gain, error), ridge = found.gain(best), RIDGES[best]
    reason = (
        f"recall@1 on classes left out is {float(found.whitened[best].double().mean()):.4f} with "
        f"λ = {ridge:g} and {float(found.right.double().mean()):.4f} without whitening, a gain of "
        f"{gain:+.4f} with a standard error of {error:.4f}."
    )
    if metric == "auto" and not gain > STANDARD_ERRORS * error:
        return Metric(None, None, reason)
    return Metric(centred(*moments.without(), ridge), ridge, reason)


def _lacking(relation: Relation) -> str:
    """Say why no classes can be left out."""
    if isinstance(relation, Classes):
        return f"fewer than {SHARES} classes with two examples are too few to leave some out"
    return "without classes, none can be left out to choose by"


def positive_moments(vectors: Vectors, relation: Relation, shares: list[Tensor]) -> Moments:
    """Add up vectors and the differences of positive pairs: of classes by share, of other pairs in one.

    Args:
        vectors: The rows (n, d).
        relation: Labels, listed pairs or positions.
        shares: As for `class_moments`.

    Returns:
        The sums.

    Raises:
        DegenerateError: If no positive pair differs.
    """
    if isinstance(relation, Classes):
        moments = class_moments(vectors, relation, shares)
    elif isinstance(relation, PairList):
        moments = listed_moments(vectors, relation)
    else:
        moments = placed_moments(vectors, relation)
    scatter = moments.scatters.sum(0)
    if float(scatter.trace()) <= NO_DIFFERENCE * int(moments.pairs.sum()):
        scatter = torch.zeros_like(scatter)
    check_difference(scatter, "metric")
    return moments


def class_moments(vectors: Vectors, classes: Classes, shares: list[Tensor]) -> Moments:
    """Add up vectors and the differences of positive pairs, for each share of the classes.

    Args:
        vectors: The rows (n, d).
        classes: Their labels.
        shares: Numbers of the classes (by rising label) of each share; no class is in two of them.

    Returns:
        The sums.
    """
    index, counts = _numbered(classes)
    d, root = vectors.matrix.shape[1], counts.double().sqrt()
    share = torch.full_like(counts, -1)
    for s, members in enumerate(shares):
        share[members] = s
    sums = torch.zeros(len(counts), d, dtype=torch.float64)
    for rows, h in _unit_blocks(vectors):
        sums.index_add_(0, index[rows], h)
    means = sums / counts[:, None]
    scatters = torch.zeros(len(shares), d, d, dtype=torch.float64)
    # From differences to the mean: a class may be so tight that sums of squares would cancel.
    for rows, h in _unit_blocks(vectors):
        own = index[rows]
        apart = (h - means[own]) * root[own, None]
        for s in range(len(shares)):
            here = apart[share[own] == s]
            scatters[s].addmm_(here.T, here)
    pairs = counts * (counts - 1) // 2
    return Moments(
        sums.sum(0),
        len(vectors),
        torch.stack([sums[members].sum(0) for members in shares]),
        torch.stack([counts[members].sum() for members in shares]),
        scatters,
        torch.stack([pairs[members].sum() for members in shares]),
    )


def listed_moments(vectors: Vectors, pairs: PairList) -> Moments:
    """Add up all vectors, and the differences of listed positive pairs, in a share without rows."""
    left, right = (side[pairs.positive].numpy() for side in (pairs.left, pairs.right))
    d = vectors.matrix.shape[1]
    total = torch.zeros(d, dtype=torch.float64)
    for _, h in _unit_blocks(vectors):
        total += h.sum(0)
    scatter = torch.zeros(d, d, dtype=torch.float64)
    for at in blocks(slice(0, len(left)), max(1, PAIR_ELEMENTS // d)):
        apart = _unit(vectors, left[at]) - _unit(vectors, right[at])
        scatter.addmm_(apart.T, apart)
    return _one_share(total, len(vectors), scatter, len(left))


def placed_moments(vectors: Vectors, relation: Relation) -> Moments:
    """Add up all vectors, and the differences of near pairs, in a share without rows."""
    h = _unit(vectors, slice(None))
    scatter, pairs = pair_scatter(h, relation)
    return _one_share(h.sum(0), len(h), scatter, pairs)


def _one_share(
    total: Float[Tensor, " d"], rows: int, scatter: Float[Tensor, "d d"], pairs: int
) -> Moments:
    none = torch.zeros(1, dtype=torch.int64)
    return Moments(total, rows, torch.zeros_like(total)[None], none, scatter[None], none + pairs)


def leave_classes_out(
    vectors: Vectors,
    classes: Classes,
    shares: list[Tensor],
    moments: Moments,
    generator: torch.Generator,
) -> LeftOut:
    """Search classes among themselves, whitened by the others with each of `RIDGES`, in all `ROUNDS`.

    Args:
        vectors: The rows (n, d).
        classes: Their labels.
        shares: As for `class_moments`; `SHARES` of them.
        moments: What that returned.
        generator: Chooses rows of large classes, in every round others.

    Returns:
        What was found, for the rows of all rounds.
    """
    index, counts = _numbered(classes)
    parts = []
    for pairs in ROUNDS:
        shuffled = torch.randperm(len(index), generator=generator)
        by_class = shuffled[index[shuffled].argsort(stable=True)].split(counts.tolist())  # type: ignore[no-untyped-call]
        for pair in pairs:
            members = torch.cat([shares[s] for s in pair])
            members = members[torch.randperm(len(members), generator=generator)]
            rows = _judged([by_class[c] for c in members.tolist()])
            scatter, mean = moments.without(*pair)
            parts.append((
                *_search(_unit(vectors, rows.numpy()), index[rows], scatter, mean),
                index[rows],
            ))
    plain, whitened, of = zip(*parts, strict=True)
    return LeftOut(torch.cat(plain), torch.cat(whitened, dim=1), torch.cat(of))


def _search(
    h: Float[Tensor, "r d"],
    own: Int[Tensor, " r"],
    scatter: Float[Tensor, "d d"],
    mean: Float[Tensor, " d"],
) -> tuple[Bool[Tensor, " r"], Bool[Tensor, "c r"]]:
    """Search each row among the others; return whether its class was found, as they are and with each λ."""
    variances, directions = spectrum(scatter)
    # In the scatter's own basis: the rotation back would change no cosine.
    rotated = (h - mean) @ directions
    spaces = (h, *(normalize(rotated * factors(variances, ridge)) for ridge in RIDGES))
    found = [own[nearest_one(u, u, exclude_self=True)] == own for u in spaces]
    return found[0], torch.stack(found[1:])


def _shares(relation: Relation, generator: torch.Generator) -> list[Int[Tensor, " k"]]:
    """Deal the classes that have a positive pair to shares, by their numbers; the last is the smallest."""
    if not isinstance(relation, Classes):
        return [torch.empty(0, dtype=torch.int64)]
    several = (_numbered(relation)[1] > 1).nonzero()[:, 0]
    dealt = several[torch.randperm(len(several), generator=generator)]
    return [dealt[s::SHARES] for s in range(SHARES)]


def _judged(classes: list[Tensor]) -> Int[Tensor, " r"]:
    """Take up to `MEMBERS` rows of each class, until there are `JUDGED`; in rising order, to be read."""
    taken: list[Tensor] = []
    total = 0
    for rows in classes:
        total += min(len(rows), MEMBERS)
        if total > JUDGED:
            break
        taken.append(rows[:MEMBERS])
    return torch.cat(taken).sort().values


def _numbered(classes: Classes) -> tuple[Int[Tensor, " n"], Int[Tensor, " k"]]:
    """Number the classes by rising label; return the number of each row, and the sizes."""
    _, index, counts = torch.unique(classes.labels, return_inverse=True, return_counts=True)
    return index, counts


def _unit_blocks(vectors: Vectors) -> Iterator[tuple[slice, Float[Tensor, "b d"]]]:
    return ((rows, _unit(vectors, rows)) for rows in vectors.slices)


def _unit(vectors: Vectors, rows: slice | np.ndarray) -> Float[Tensor, "b d"]:
    """Read rows as they are prepared everywhere, without the one, in float64."""
    return vectors.features(rows)[:, :-1].double()
