"""Whitening within classes: a metric for vectors in closed form, or the reason to leave them as they are.

    S = Σ_(i,j) (h_i - h_j)(h_i - h_j)ᵀ    over the m unordered positive pairs,    S̄ = S/m
    W = ((S̄ d/tr S̄ + λ I) / (1 + λ))^(-1/2),    z = W h

with h the unit vectors without the one. Up to a factor, which the sphere removes, W is
(S̄ + λ (tr S̄/d) I)^(-1/2): the inverse root of a covariance with linear shrinkage λ/(1 + λ) to a multiple of
the identity. The factor makes the mean eigenvalue under the root one, so that W tends to the identity for
large λ, and a given prior precision means the same with either metric. Directions in which members of a
class differ count less; it is the within-class whitening of PLDA, without centring: the bias stays zero.

**Weights of the classes.** Every positive pair counts the same, as in the contrastive loss. A class of n_c
examples so enters as n_c Σ_(i in c) (h_i - mean_c)(h_i - mean_c)ᵀ: n_c times its weight in the pooled
within-class covariance, to which S̄/2 is equal if all classes are of one size.

**λ by classes left out.** Classes with two examples and more are dealt to `FOLDS` folds. The classes of a
fold are searched among themselves (every row among the others) after whitening by the classes of the other
folds, with each λ of `RIDGES` and without whitening. "whitened" takes the λ of highest recall@1, of equal
ones the largest. "auto" takes it only if the gain over no whitening is more than `STANDARD_ERRORS` standard
errors, paired by row and clustered by class: rows of a class are not independent, and the best of several λ
is a little lucky (of simulated sets with nothing to gain, 30 classes of 8 rows, 3 % were whitened; with one
standard error 26 %). The choice is made before a projection (``embedding_dim``) and before training. Of a
class up to `MEMBERS` rows are judged, and up to `JUDGED` of a fold, chosen at random beyond.

Policy: fewer than two classes a fold to leave out, and a `PairList`, which has no classes: "auto" means the
identity, "whitened" takes λ = `RIDGE`. Positions: "auto" means the identity, "whitened" is refused. Fewer
differences than columns leave S singular; λ > 0 bounds W. No positive pair, or only equal vectors:
"auto" means the identity, "whitened" is refused. Rows without a direction must be left out before. Whatever
is chosen, `Metric.reason` says why.

Cost: two passes over the rows, O(n d²), in float64; (FOLDS + 1) d² numbers and one mean a class are held.

What is not guaranteed: that other classes than those of the fit gain. On frozen ImageNet features of CUB200
a λ below 0.3 lost recall@1 on training classes left out, and 1 … 10 gained (0.807 without whitening, 0.796
with 0.1, 0.813 with 1, 0.814 with 10); which one is chosen, and whether "auto" whitens at all, depended
on the folds. `RIDGE` is so no safe choice for such vectors. Centring first, which is not done, gave 0.816.

Axes: ``n`` examples, ``d`` columns, ``k`` classes, ``f`` folds, ``b`` rows of a block, ``r`` rows judged,
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

from surefind.errors import DegenerateError, InputError
from surefind.models.vectors import Vectors
from surefind.pairs.blocks import blocks
from surefind.pairs.relations import Classes, PairList, Relation
from surefind.retrieval.search import nearest

MetricName = Literal["identity", "whitened", "auto"]
METRICS = get_args(MetricName)

RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
"""Candidates for λ."""

RIDGE = 0.1
"""λ where no classes can be left out to choose it by."""

FOLDS = 3

STANDARD_ERRORS = 2.0
"""By how many of them whitening must gain."""

MEMBERS, JUDGED = 64, 4096
"""Rows of a class, and of a fold, that are judged."""

PAIR_ELEMENTS = 1 << 21
"""Numbers of listed pairs' differences held at a time: 16 MB."""

NO_DIFFERENCE = 1e-20
"""Mean squared distance of unit vectors up to which positive pairs are equal."""


@dataclass(frozen=True, eq=False)
class Metric:
    """The metric that was chosen.

    Attributes:
        matrix: W (d, d), symmetric, in float64; None for the identity.
        ridge: λ; None for the identity.
        reason: Why, in a sentence.
    """

    matrix: Tensor | None
    ridge: float | None
    reason: str

    @property
    def name(self) -> Literal["identity", "whitened"]:
        """What it is called."""
        return "identity" if self.ridge is None else "whitened"


@dataclass(frozen=True, eq=False)
class LeftOut:
    """How classes that were left out are retrieved.

    Attributes:
        right: Whether each row's nearest other row is of its class (r), without whitening.
        whitened: The same with each λ (c, r).
        classes: Class of each row (r).
    """

    right: Bool[Tensor, " r"]
    whitened: Bool[Tensor, "c r"]
    classes: Int[Tensor, " r"]

    def best(self) -> int:
        """Return which λ has the highest recall@1; the first of equal ones."""
        return int(self.whitened.sum(1).argmax())

    def gain(self, candidate: int) -> tuple[float, float]:
        """Return a candidate's gain in recall@1, and its standard error, paired and by class."""
        difference = self.whitened[candidate].double() - self.right.double()
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
        generator: Deals classes to folds, and chooses rows where there are many.

    Returns:
        The metric, with its reason.

    Raises:
        InputError: If whitening is asked for and the relation has no list of positive pairs.
        DegenerateError: If whitening is asked for and there is nothing to learn it from.
    """
    if metric == "identity":
        return Metric(None, None, "the vectors stay as they are, as asked.")
    folds = _folds(relation, generator)
    try:
        scatters = positive_scatters(vectors, relation, folds)
    except InputError as refusal:
        if metric == "auto":
            return Metric(None, None, refusal.message)
        raise
    if not isinstance(relation, Classes) or len(folds[-1]) < 2:  # the smallest
        lacking = f"fewer than {2 * FOLDS} classes with two examples are too few to leave some out"
        if metric == "auto":
            return Metric(None, None, f"{lacking}.")
        return Metric(whitening(scatters.sum(0), RIDGE), RIDGE, f"{lacking}, so λ is {RIDGE:g}.")
    found = leave_classes_out(vectors, relation, folds, scatters, generator)
    best = found.best()
    (gain, error), ridge = found.gain(best), RIDGES[best]
    reason = (
        f"recall@1 on classes left out is {float(found.whitened[best].double().mean()):.4f} with "
        f"λ = {ridge:g} and {float(found.right.double().mean()):.4f} without whitening, a gain of "
        f"{gain:+.4f} with a standard error of {error:.4f}."
    )
    if metric == "auto" and not gain > STANDARD_ERRORS * error:
        return Metric(None, None, reason)
    return Metric(whitening(scatters.sum(0), ridge), ridge, reason)


def positive_scatters(
    vectors: Vectors, relation: Relation, folds: list[Tensor]
) -> Float[Tensor, "f d d"]:
    """Add up the differences of all positive pairs: of classes by fold, of listed pairs in one sum.

    Args:
        vectors: The rows (n, d).
        relation: Labels or listed pairs.
        folds: As for `class_scatters`.

    Returns:
        Sums over unordered pairs.

    Raises:
        InputError: If the relation is neither.
        DegenerateError: If no positive pair differs.
    """
    if isinstance(relation, Classes):
        scatters, pairs = class_scatters(vectors, relation, folds)
        count = int(pairs.sum())
    elif isinstance(relation, PairList):
        scatter, count = listed_scatter(vectors, relation)
        scatters = scatter[None]
    else:
        raise InputError(
            "whitening is learnt from labels or listed pairs, not from positions.",
            field="metric",
            hint=HINT,
        )
    if float(scatters.sum(0).trace()) <= NO_DIFFERENCE * count:
        raise DegenerateError(
            "no two different vectors are a positive pair, so whitening cannot be learnt.",
            field="metric",
            hint=HINT,
        )
    return scatters


HINT = 'Take the metric "identity".'


def class_scatters(
    vectors: Vectors, classes: Classes, folds: list[Tensor]
) -> tuple[Float[Tensor, "f d d"], Int[Tensor, " f"]]:
    """Add up the differences of positive pairs for each group of classes.

    Args:
        vectors: The rows (n, d).
        classes: Their labels.
        folds: Numbers of the classes (by rising label) of each group; no class is in two of them.

    Returns:
        Σ (h_i - h_j)(h_i - h_j)ᵀ over each group's unordered pairs, and how many pairs they are.
    """
    index, counts = _numbered(classes)
    d, root = vectors.matrix.shape[1], counts.double().sqrt()
    group = torch.full_like(counts, -1)
    for f, members in enumerate(folds):
        group[members] = f
    means = torch.zeros(len(counts), d, dtype=torch.float64)
    for rows, h in _unit_blocks(vectors):
        means.index_add_(0, index[rows], h)
    means /= counts[:, None]
    scatters = torch.zeros(len(folds), d, d, dtype=torch.float64)
    # From differences to the mean: a class may be so tight that sums of squares would cancel.
    for rows, h in _unit_blocks(vectors):
        own = index[rows]
        apart = (h - means[own]) * root[own, None]
        for f in range(len(folds)):
            here = apart[group[own] == f]
            scatters[f].addmm_(here.T, here)
    pairs = counts * (counts - 1) // 2
    return scatters, torch.stack([pairs[members].sum() for members in folds])


def listed_scatter(vectors: Vectors, pairs: PairList) -> tuple[Float[Tensor, "d d"], int]:
    """Add up the differences of listed positive pairs; return how many they are, too."""
    left, right = (side[pairs.positive].numpy() for side in (pairs.left, pairs.right))
    d = vectors.matrix.shape[1]
    scatter = torch.zeros(d, d, dtype=torch.float64)
    for at in blocks(slice(0, len(left)), max(1, PAIR_ELEMENTS // d)):
        apart = _unit(vectors, left[at]) - _unit(vectors, right[at])
        scatter.addmm_(apart.T, apart)
    return scatter, len(left)


def whitening(scatter: Float[Tensor, "d d"], ridge: float) -> Float[Tensor, "d d"]:
    """Compute W from S, at any scale, and λ."""
    variances, directions = _spectrum(scatter)
    return (directions * _factors(variances, ridge)) @ directions.T


def leave_classes_out(
    vectors: Vectors,
    classes: Classes,
    folds: list[Tensor],
    scatters: Float[Tensor, "f d d"],
    generator: torch.Generator,
) -> LeftOut:
    """Search each fold's classes among themselves, whitened by the other folds with each of `RIDGES`.

    Args:
        vectors: The rows (n, d).
        classes: Their labels.
        folds: As for `class_scatters`.
        scatters: What that returned.
        generator: Chooses rows of large classes.

    Returns:
        What was found, for the rows of all folds.
    """
    index, counts = _numbered(classes)
    shuffled = torch.randperm(len(index), generator=generator)
    by_class = shuffled[index[shuffled].argsort(stable=True)].split(counts.tolist())  # type: ignore[no-untyped-call]
    parts = []
    for fold, members in enumerate(folds):
        rows = _judged([by_class[c] for c in members.tolist()])
        own = index[rows]
        others = torch.cat([scatters[:fold], scatters[fold + 1 :]]).sum(0)
        variances, directions = _spectrum(others)
        h = _unit(vectors, rows.numpy())
        # In the scatter's own basis: the rotation back would change no cosine.
        rotated = h @ directions
        right = [
            own[nearest(u, u, 1, exclude_self=True).indices[:, 0]] == own
            for u in (h, *(normalize(rotated * _factors(variances, r)) for r in RIDGES))
        ]
        parts.append((right[0], torch.stack(right[1:]), own))
    plain, whitened, of = zip(*parts, strict=True)
    return LeftOut(torch.cat(plain), torch.cat(whitened, dim=1), torch.cat(of))


def _folds(relation: Relation, generator: torch.Generator) -> list[Int[Tensor, " k"]]:
    """Deal the classes that have a positive pair to folds, by their numbers; the last is the smallest."""
    if not isinstance(relation, Classes):
        return [torch.empty(0, dtype=torch.int64)]
    several = (_numbered(relation)[1] > 1).nonzero()[:, 0]
    dealt = several[torch.randperm(len(several), generator=generator)]
    return [dealt[f::FOLDS] for f in range(FOLDS)]


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


def _spectrum(scatter: Float[Tensor, "d d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, "d d"]]:
    """Compute variances, of mean one, along orthonormal directions (columns)."""
    variances, directions = torch.linalg.eigh(scatter)
    variances = variances.clamp(min=0)
    mean = variances.mean()
    return (variances / mean if mean > 0 else torch.ones_like(variances)), directions


def _factors(variances: Float[Tensor, " d"], ridge: float) -> Float[Tensor, " d"]:
    return ((variances + ridge) / (1 + ridge)).rsqrt()


def _unit_blocks(vectors: Vectors) -> Iterator[tuple[slice, Float[Tensor, "b d"]]]:
    return ((rows, _unit(vectors, rows)) for rows in vectors.slices)


def _unit(vectors: Vectors, rows: slice | np.ndarray) -> Float[Tensor, "b d"]:
    """Read rows as they are prepared everywhere, without the one, in float64."""
    return vectors.features(rows)[:, :-1].double()
