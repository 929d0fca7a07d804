"""A linear head in closed form: members of a class, or images of a place, come close without training.

    z = W (h - μ),    μ the mean of all h,    |W|² = the number of its rows

Up to that scale, which the sphere removes and which makes a prior precision mean what it means for the
identity,

- of **classes**, W is the label model's transform (`surefind.labels.gaussian`), row by row √(b/(b+1)) T:
  members of a class differ alike in all directions, those in which classes do not differ hardly count, and
  the first rows are those in which classes differ most; further ones are random, but always the same;
- of **positions or listed pairs**, of which there are no labels, it is the inverse root of the scatter of
  their m positive pairs with linear shrinkage (λ = `RIDGE`), of as many principal components as it has
  rows,

      S = Σ_(i,j) (h_i - h_j)(h_i - h_j)ᵀ        W = (S/m + λ tr(S/m)/d I)^(-1/2)

With A the symmetric 0/1 matrix of positive pairs and D its row sums, S = Hᵀ (D - A) H, which any relation
adds up without a list of its pairs. S has an error of 1 % where differences are 1e-7 of the features'
spread; what rounding leaves of equal features, up to `ROUNDING` times the precision, counts as nothing.

**How many rows** is chosen by examples left out (`chosen_rows`): W of half of the examples, and mAP@5
among the others; the fewest rows within `TOLERANCE` of the best. From `MANY_CLASSES` classes on the halves
are of whole classes, since a gallery will hold others; then the features as they are may win too. Frozen
ImageNet features of CUB200 (EfficientNet-Lite0), fitted to half of the images of classes 1 to 100; recall@1
among the others, and among classes 101 to 200:

    rows                                         1,280             256               64
    the features themselves                      0.636, 0.550
    the first rows of W                          0.704, 0.568      0.712, 0.519      0.701, 0.471

**The posterior** over W is LAM's, exact over every pair (`surefind.curvature.pair_scan`), with scale and
prior by the one rule (`surefind.posterior.fit`). Tuning looks at fewer examples the more rows there are.

Axes: ``n`` examples, ``d`` features, ``z`` rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from surefind import metrics
from surefind.curvature.pair_scan import scan_pairs
from surefind.errors import DegenerateError, InputError
from surefind.labels.gaussian import SHRINKAGE, LabelSums, Space, fit_space
from surefind.learning.seeds import seeded
from surefind.models.vectors import Vectors, unit_rows
from surefind.neighbours import nearest
from surefind.novelty import MANY_CLASSES
from surefind.pairs.relations import Classes, Relation, row_blocks
from surefind.posterior.fit import FittedPosterior, fit_posterior
from surefind.posterior.tuning import EXAMPLES, TuningSample

RIDGE = 3.0
"""λ: 1 to 10 gained alike on unseen classes of CUB200."""

ROUNDING = 64
"""How many times the precision of their squared lengths equal features may seem to differ by."""

OF_LAYERS = 0.1
"""λ of the label model's W where features are those of all layers: with many of them κ is better so."""

ROWS = 64, 128, 256, 512
TOLERANCE = 0.003
SAMPLE = 20_000
"""Examples that a head is fitted to, at most."""
DEPTH = 5
JUDGED = 2000
"""Examples left out by which the number of rows is chosen, at most."""
CLOSE = 1e-9
"""Margin within which no different examples are: what attracts, by Euclidean distance never negative, then
says alone how well W is known."""
TUNING = 64_000, 200
"""Outputs of all examples that scale and prior are tuned on, at most; and examples, at least."""


def closed_form_head(
    features: Float[Tensor, "n d"],
    relation: Relation,
    *,
    rows: int | None = None,
    shrinkage: float = SHRINKAGE,
    field: str,
) -> Float[Tensor, "z columns"]:
    """Compute a head from which examples belong together.

    Args:
        features: A row per example.
        relation: Which of them belong together.
        rows: How many rows it has; None for as many as features.
        shrinkage: λ of the label model's W, at least.
        field: The argument that asked for it, for the error.

    Returns:
        [W, -W μ] in float64.

    Raises:
        DegenerateError: If no two different examples belong together.
    """
    d = features.shape[1]
    mean = features.mean(0, dtype=torch.float64)
    h = features - mean.to(features)
    length = float(h.square().sum(dtype=torch.float64))
    if isinstance(relation, Classes):
        names, codes = np.unique(relation.labels.cpu().numpy(), return_inverse=True)
        unit = max(length / len(h), 1e-300) ** -0.5
        sums = LabelSums.of((h * unit).cpu().numpy(), codes, len(names))
        within = np.trace(sums.second) - (np.square(sums.totals).sum(1) / sums.counts).sum()
        same = within <= ROUNDING * torch.finfo(h.dtype).eps * len(h)
    else:
        basis = torch.eye(d, dtype=torch.float64)
        if rows is not None and rows < d:
            basis = torch.linalg.eigh((h.T @ h).double()).eigenvectors[:, -rows:].cpu()
        scatter = pair_scatter(h.cpu().double() @ basis, relation)
        same = not scatter.any()
    if same:
        raise DegenerateError(
            "no two different examples belong together, so a head in closed form cannot be learnt.",
            field=field,
        )
    if isinstance(relation, Classes):
        space = fit_space(sums, normalize=False, shrinkage=shrinkage)
        weights = np.sqrt(space.spread / (space.spread + 1))[:, None] * _fixed(space, rows or d)
        W = torch.from_numpy(weights[:rows])
    else:
        variances, directions = torch.linalg.eigh(scatter)
        shrunk = variances.clamp(min=0) + RIDGE * variances.mean()
        W = directions * shrunk.rsqrt() @ directions.T @ basis.T
    W = (W * len(W) ** 0.5 / torch.linalg.matrix_norm(W)).to(mean)
    return torch.cat([W, -(W @ mean)[:, None]], dim=1)


def _fixed(space: Space, rows: int) -> Float[np.ndarray, "d d"]:
    """Return the transform with signs fixed, and rows that are arbitrary: random, always the same.

    Beyond the number of classes, all directions tell classes apart equally well, and any basis will do.
    """
    T, b = space.transform.copy(), space.spread
    first = int(np.argmax(b <= b[-1] * (1 + 1e-6)))
    equal = T[first:]
    count = min(rows, len(T)) - first
    if count > 0:
        drawn = np.random.default_rng(0).standard_normal((len(equal), T.shape[1]))[:count]
        T[first : first + count] = np.linalg.qr(equal @ drawn.T)[0].T @ equal
    largest = np.take_along_axis(T, np.abs(T).argmax(axis=1)[:, None], axis=1)
    return np.asarray(T * np.sign(largest))


def chosen_rows(
    features: Float[Tensor, "n d"],
    relation: Relation,
    generator: torch.Generator,
    shrinkage: float = SHRINKAGE,
) -> int | None:
    """Choose how many rows a head has, by examples left out.

    Args:
        features: A row per example.
        relation: Which of them belong together.
        generator: Divides them.
        shrinkage: As for `closed_form_head`.

    Returns:
        The number of rows; None for the features as they are.
    """
    d = features.shape[1]
    sizes = [*(rows for rows in ROWS if rows < d), d]
    if not isinstance(relation, Classes):
        return min(d, ROWS[-1])
    labels = torch.unique(relation.labels, return_inverse=True)[1]
    count = int(labels.max()) + 1
    unseen = count >= MANY_CLASSES
    if unseen:
        out = (torch.randperm(count, generator=generator) < count // 2)[labels]
    else:
        order = torch.randperm(len(labels), generator=generator)
        order = order[labels[order].argsort(stable=True)]  # every second example of each class
        out = torch.zeros(len(labels), dtype=torch.bool)
        out[order[1::2]] = True
    known, asked = (~out).nonzero()[:, 0], out.nonzero()[:, 0]
    asked = asked[torch.randperm(len(asked), generator=generator)[:JUDGED].sort().values]
    own, h = labels[asked], features[asked]
    findable = (torch.bincount(own, minlength=count) > 1)[own]
    if len(sizes) == 1 or not bool(findable.any()):
        return sizes[0]
    try:
        head = closed_form_head(
            features[known], Classes(labels[known]), shrinkage=shrinkage, field="y"
        )
    except DegenerateError:
        return sizes[0]
    z = h @ head[:, :-1].T.to(h) + head[:, -1].to(h)
    tried: dict[int | None, Tensor] = {rows: z[:, :rows] for rows in sizes}
    if unseen:
        tried[None] = h

    def precision(x: Tensor) -> float:
        u, k = unit_rows(x), min(DEPTH, len(x) - 1)
        found = nearest(u, u, k, exclude_self=True).indices
        judged = metrics.relevance(found, own, own, self_in_gallery=True)
        return float(metrics.average_precision_per_query(judged, k).mean())

    values = {rows: precision(x) for rows, x in tried.items()}
    return next(rows for rows, r in values.items() if r >= max(values.values()) - TOLERANCE)


def checked_rows(rows: int | None, d: int) -> int | None:
    """Refuse more rows than there are features."""
    if rows is not None and rows > d:
        raise InputError(
            f"embedding_dim is {rows}, but there are {d} features; a linear head cannot add any. Give at "
            f"most {d}, or none.",
            field="embedding_dim",
        )
    return None if rows is None else int(rows)


@dataclass(frozen=True, eq=False)
class FittedHead:
    """A head in closed form with its posterior.

    Attributes:
        fitted: The posterior, with what it rests on.
        error: Relative standard error of the curvature; 0.0 if every pair was scanned.
    """

    fitted: FittedPosterior
    error: float


def fit_head(
    vectors: Vectors,
    relation: Relation,
    *,
    rows: int | None,
    sample: Callable[[int], TuningSample],
    margin: float,
    seed: int,
    structure: Any = "diagonal",
    distance: Any = "arccos",
    scale: float | None = None,
    prior_precision: Any = None,
    columns: Any = "auto",
) -> FittedHead:
    """Fit a head in closed form to vectors, and its posterior.

    Args:
        vectors: What the head sees.
        relation: Which of them belong together.
        rows: How many rows it has; None to choose.
        sample: Draws so many examples for tuning.
        margin: Squared distance up to which negative pairs repel.
        seed: Decides what is random.
        structure: Of the posterior.
        distance: "arccos" or "euclidean".
        scale: As for `fit_posterior`.
        prior_precision: The same.
        columns: As for `scan_pairs`.

    Returns:
        The head.
    """
    n, d = len(vectors), vectors.matrix.shape[1]
    rows = checked_rows(rows, d)
    own, known = vectors, relation
    shrinkage = SHRINKAGE if vectors.directions else OF_LAYERS
    if n > SAMPLE and isinstance(relation, Classes):
        some = torch.randperm(n, generator=seeded(seed, "head"))[:SAMPLE].sort().values
        own, known = (
            Vectors(vectors.matrix[some.numpy()], vectors.directions),
            Classes(relation.labels[some]),
        )
    h = torch.cat([own.features(part)[:, :-1] for part in own.slices])
    if rows is None:
        rows = chosen_rows(h, known, seeded(seed, "rows"), shrinkage)
    if rows is None:
        head = torch.eye(d, d + 1, dtype=torch.float64)
    else:
        head = closed_form_head(h, known, rows=rows, shrinkage=shrinkage, field="y")
    weights = head.to(vectors.dtype)
    most, least = TUNING

    def fitted(margin: float, distance: Any) -> FittedHead:
        curvature, error = scan_pairs(
            vectors,
            weights,
            relation,
            structure=structure,
            distance=distance,
            margin=margin,
            columns=columns,
            generator=seeded(seed, "columns"),
        )
        made = fit_posterior(
            weights,
            curvature,
            lambda: sample(min(EXAMPLES, max(least, most // len(weights)))),
            examples=n,
            generator=seeded(seed, "width samples"),
            structure=structure,
            scale=scale,
            prior_precision=prior_precision,
        )
        return FittedHead(made, error)

    try:
        return fitted(margin, distance)
    except DegenerateError:  # classes that nothing tells apart: all of them repel each other
        return fitted(CLOSE, "euclidean")


def pair_scatter(features: Float[Tensor, "n d"], relation: Relation) -> Float[Tensor, "d d"]:
    """Add up S, the outer products of the differences of positive pairs, in float64.

    Args:
        features: A row per example.
        relation: Which of them belong together.

    Returns:
        S.
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
    if float(scatter.trace()) <= ROUNDING * torch.finfo(h.dtype).eps * length:
        return torch.zeros_like(scatter)
    return (scatter + scatter.T) / 2
