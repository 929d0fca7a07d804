"""A head with a posterior on vectors that any model made, as a scikit-learn estimator.

    h = [x/|x|, 1],    z = W h,    u = z/|z|,    W ~ a Gaussian around the head

Vectors are prepared by `surefind.models.vectors`, as at every door, and the posterior is fitted to every
pair of them by `surefind.posterior.fit`, which says what its rule for scale and prior is worth on vectors.
1/κ says how well the *weights* are known for an input. It is no substitute for the distance to the nearest
neighbour; decide with both.

The head is not trained: on frozen ImageNet features of CUB200 (split as there) recall@1 on unseen classes
is 0.751 with the identity (0.749 if X is centred) and 0.730 … 0.547 after training, the lower the longer: a
linear layer forgets what the large model knew of other classes. On the classes of the fit it brought no
clear gain either (0.671; trained 0.632 … 0.681). To train one all the same, use `surefind.MetricLearner`.

Policy: ``y`` has a label per row (`surefind.checks`), or a position (n, 2) in the units of the two radii,
or is a `PairList`. Classes with one example have no positive pair but count as negatives of the others. A
zero row has no direction: `fit` leaves it out with a warning, and `embed` returns κ = 0.

``metric="whitened"`` takes the head in closed form (`surefind.learning.closed_form`) instead of the
identity: the label model's transform, or of positions and pairs their whitening. The identity is the
default: its neighbours are those of X. On unseen classes of CUB200, with features of EfficientNet-Lite0,
recall@1 is 0.577 instead of 0.550 (0.523 instead of 0.501 with 64 outputs), and κ tells Cars196 apart with
an AUROC of 0.989 instead of 0.999. For other vectors `score` of classes left out says which is better.

The scan of the pairs is exact up to 200,000 examples, and samples 8,192 columns beyond
(`surefind.curvature.pair_scan`), labels and the diagonal only. X may be memory-mapped; an exact scan holds
outputs (n, z) three to five times, a sampled one only blocks; whitening holds X in float64, four times.

Axes: ``n`` examples, ``d`` columns of X, ``z`` embedding.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from surefind.checks import (
    check_choice,
    check_int,
    check_positive,
    check_rows,
    complete_labels,
    require,
)
from surefind.curvature.dataset import check_informative
from surefind.curvature.head import DISTANCES, STRUCTURES
from surefind.curvature.pair_scan import scan_pairs
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.learning.closed_form import closed_form_head
from surefind.learning.methods.contract import prefixed, unprefixed
from surefind.learning.novelty_pass import Novelty, novelty_model, sampled_rows
from surefind.learning.seeds import seeded
from surefind.models.encoder import Encoder
from surefind.models.saving import load_tensors, save_tensors
from surefind.models.vectors import Vectors, unit_rows, vector_encoder, with_ones
from surefind.neighbours import nearest
from surefind.novelty.model import LEAST, NoveltyModel
from surefind.novelty.statistics import stage_statistics
from surefind.pairs.losses import MARGIN
from surefind.pairs.relations import (
    NEGATIVE_RADIUS,
    POSITIVE_RADIUS,
    Classes,
    Positions,
    Relation,
    as_relation,
)
from surefind.posterior.fit import FittedPosterior, fit_posterior
from surefind.posterior.head import Posterior, posterior_tensors, restored_posterior
from surefind.posterior.tuning import draw_sample

base = require("sklearn.base", "use LaplaceHead, a scikit-learn estimator")
validation = require("sklearn.utils.validation", "use LaplaceHead, a scikit-learn estimator")

POSITIVE = ("margin", "positive_radius", "negative_radius")
"""Options that are finite numbers above zero."""

TUNED: dict[str, tuple[Any, ...]] = {"prior_precision": (None, "evidence"), "scale": (None,)}
"""Options that are so too, or one of these."""

METRICS = ("identity", "whitened")

KIND = "laplace-head"
"""What a saved file says that it holds."""


class LaplaceHead(base.ClassNamePrefixFeaturesOutMixin, base.TransformerMixin, base.BaseEstimator):  # type: ignore[misc]
    """Post-hoc Laplace approximation on fixed embeddings: a scikit-learn estimator.

    Args:
        embedding_dim: z; None for as many as X has columns.
        metric: What the head is: "identity", or "whitened" within classes or places.
        distance: "arccos" or "euclidean", see `surefind.curvature.head`.
        margin: Squared distance up to which negative pairs repel.
        structure: Of the posterior: "diagonal", "kronecker" or, for small heads, "dense".
        prior_precision: δ; None to tune it, "evidence" for the δ of largest evidence.
        scale: How many observations the loss stands for; None to tune it, or for the number of examples
            if δ is given.
        positive_radius: Where y are positions: distance up to which two are the same place.
        negative_radius: Where y are positions: distance beyond which two are different places.
        scan_columns: "auto", "all" for every pair, or how many random columns to scan.
        random_state: Seeds tuning and the sampled scan; as scikit-learn takes it.
        novelty: Whether embeddings also say whether such a vector was ever seen (`surefind.novelty.model`).

    Attributes:
        posterior_: The posterior over weights (z, d + 1).
        embedding_dim_: z.
        prior_precision_: δ.
        scale_: What the curvature was multiplied with.
        clipped_: Share of the curvature that was clipped.
        pair_scan_error_: Relative standard error of the curvature; 0.0 if every pair was scanned.
        novelty_: Direction, length and neighbourhood of usual vectors; None without, or with fewer than 20.
        n_features_in_: d.
    """

    def __init__(
        self,
        embedding_dim: Any = None,
        *,
        metric: Any = "identity",
        distance: Any = "arccos",
        margin: Any = MARGIN,
        structure: Any = "diagonal",
        prior_precision: Any = None,
        scale: Any = None,
        positive_radius: Any = POSITIVE_RADIUS,
        negative_radius: Any = NEGATIVE_RADIUS,
        scan_columns: Any = "auto",
        random_state: Any = 0,
        novelty: Any = True,
    ) -> None:
        self.embedding_dim = embedding_dim
        self.metric = metric
        self.distance = distance
        self.margin = margin
        self.structure = structure
        self.prior_precision = prior_precision
        self.scale = scale
        self.positive_radius = positive_radius
        self.negative_radius = negative_radius
        self.scan_columns = scan_columns
        self.random_state = random_state
        self.novelty = novelty

    def fit(self, X: Any, y: Any = None, *, held_out: Any = None) -> "LaplaceHead":
        """Fit the posterior, and novelty.

        Args:
            X: Vectors (n, d).
            y: A label per row, positions (n, 2), or a `PairList`.
            held_out: Further known vectors, which give the p-values of novelty; None to cross-fit X.

        Returns:
            The estimator itself.
        """
        check_options(self.get_params(deep=False))
        vectors = Vectors(self._matrix(X, fitting=True))
        vectors, relation = without_zero_rows(vectors, self._relation(y, len(vectors)))
        check_informative(relation)
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = validation.check_random_state(seed).randint(2**31 - 1)
        seed, scan = int(seed), self.scan_columns
        scale, prior = (
            float(v) if isinstance(v, Real) else v for v in (self.scale, self.prior_precision)
        )
        width = None if self.embedding_dim is None else int(self.embedding_dim)
        encoder = vector_encoder(vectors, width)
        if self.metric == "whitened":
            encoder = whitened(encoder, vectors, relation)
        weights = encoder.head_weights()
        curvature, error = scan_pairs(
            vectors,
            weights,
            relation,
            structure=self.structure,
            distance=self.distance,
            margin=float(self.margin),
            columns=scan if isinstance(scan, str) else int(scan),  # type: ignore[arg-type]
            generator=seeded(seed, "columns"),
        )
        fitted = fit_posterior(
            weights,
            curvature,
            # The rows that the learner's methods draw, in the same precision.
            lambda: draw_sample(
                len(vectors),
                lambda rows: vectors.read(rows.numpy()).float(),
                lambda x: with_ones(unit_rows(x)),
                relation.labels if isinstance(relation, Classes) else None,
                seeded(seed, "width"),
            ),
            examples=len(vectors),
            generator=seeded(seed, "width samples"),
            structure=self.structure,
            scale=scale,
            prior_precision=prior,
        )
        self._set_fitted(fitted, error)
        known = None if held_out is None else Vectors(self._matrix(held_out, fitting=False))
        self.novelty_ = self._fit_novelty(vectors, relation, known, seed) if self.novelty else None
        return self

    def transform(self, X: Any) -> Any:
        """Compute the directions of `embed` alone: unit vectors (n, z), of the kind of X."""
        return self.embed(X).mean

    def embed(self, X: Any) -> Embeddings:
        """Compute each vector's direction, concentration and novelty without sampling, of the kind of X."""
        validation.check_is_fitted(self)
        vectors = Vectors(self._matrix(X, fitting=False))
        own = self.posterior_.mean
        mean = own.new_empty(len(vectors), len(own), dtype=vectors.dtype)
        kappa = own.new_empty(len(vectors), dtype=vectors.dtype)
        novelty = None if self.novelty_ is None else torch.empty_like(kappa)
        for rows in vectors.slices:
            h = vectors.features(rows)
            part = self.posterior_.predict(h.to(own.dtype)).tensors()
            mean[rows] = part.mean.to(vectors.dtype)
            kappa[rows] = part.kappa.to(vectors.dtype) * h[:, :-1].any(1)
            if novelty is not None and self.novelty_ is not None:
                statistics = [stage_statistics(vectors.read(rows), whole=True)]
                novelty[rows] = self.novelty_.p_value(
                    self.novelty_.score(statistics, part.mean)
                ).to(kappa)
        found = Embeddings(mean, kappa, novelty)
        if not isinstance(X, Tensor):
            return found.numpy()
        return Embeddings(*(x if x is None else x.to(X.device) for x in vars(found).values()))

    def uncertainty(self, X: Any) -> Any:
        """Compute one over κ for each row (n), of the kind of X; higher means less sure."""
        return self.embed(X).uncertainty

    def score(self, X: Any, y: Any) -> float:
        """Compute recall@1 of searching each row among the others, by labels or positions y."""
        mean = torch.as_tensor(self.transform(X))
        return recall_among(mean, self._relation(y, len(mean)))

    def save(self, path: str | Path) -> None:
        """Write the fitted head to a file: safetensors with JSON, no pickle; all but the evidence."""
        validation.check_is_fitted(self)
        if not isinstance(self.random_state, int | np.integer | None):
            raise InputError(
                "random_state is a generator, which cannot be saved; "
                "set_params(random_state=None) or a number first."
            )
        options = self.get_params(deep=False).items()
        metadata = {
            "kind": KIND,
            "parameters": {k: v.item() if isinstance(v, np.generic) else v for k, v in options},
            "structure": self.posterior_.structure,
            "prior_precision": self.prior_precision_,
            "scale": self.scale_,
            "pair_scan_error": self.pair_scan_error_,
            "feature_names": list(getattr(self, "feature_names_in_", [])),
        }
        tensors = {"mean": self.posterior_.mean} | posterior_tensors(self.posterior_)
        if self.novelty_ is not None:
            tensors |= prefixed("novelty", self.novelty_.tensors())
        save_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> "LaplaceHead":
        """Read what `save` wrote; the fitted head is equal bit for bit."""
        tensors, metadata = load_tensors(path)
        if metadata.get("kind") != KIND:
            raise InputError(f"{path} does not hold a LaplaceHead; load models by surefind.load.")
        mean = tensors.pop("mean")
        novelty = unprefixed("novelty", tensors)
        tensors = {name: t for name, t in tensors.items() if not name.startswith("novelty.")}
        posterior = restored_posterior(metadata["structure"], mean, tensors)
        fitted = FittedPosterior(posterior, metadata["prior_precision"], metadata["scale"])
        head = cls(**metadata["parameters"])
        head._set_fitted(fitted, metadata["pair_scan_error"])
        head.novelty_ = NoveltyModel.restored(novelty) if novelty else None
        head.n_features_in_ = mean.shape[1] - 1
        if metadata["feature_names"]:
            head.feature_names_in_ = np.array(metadata["feature_names"], dtype=object)
        return head

    @property
    def _n_features_out(self) -> int:
        return int(self.embedding_dim_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _matrix(self, X: Any, *, fitting: bool) -> np.ndarray:
        """Check X as scikit-learn does, without copying floating-point arrays."""
        if isinstance(X, Tensor):
            X = (X.float() if X.dtype == torch.bfloat16 else X).detach().cpu().numpy()
        X = np.asarray(X) if isinstance(X, list | tuple) else X
        if len(getattr(X, "shape", (0, 0))) != 2:
            raise InputError(
                f"X must be a 2-d table, one row per example; got shape {tuple(X.shape)}.",
                field="X",
                hint="Reshape your data; or the arguments are swapped: fit(X, y) takes the vectors first.",
            )
        matrix: np.ndarray = validation.validate_data(
            self,
            X,
            reset=fitting,
            dtype=(np.float64, np.float32, np.float16),
            ensure_min_features=1 + fitting,
            ensure_min_samples=1 + fitting,
            ensure_all_finite=False,
        )
        check_rows("X", matrix)
        return matrix

    def _relation(self, y: Any, n: int) -> Relation:
        inner, outer = float(self.positive_radius), float(self.negative_radius)
        return relation_of_targets(y, n, positive_radius=inner, negative_radius=outer)

    def _fit_novelty(
        self, vectors: Vectors, relation: Relation, held_out: Vectors | None, seed: int
    ) -> NoveltyModel | None:
        """Fit novelty to a sample of vectors: what the learner's pass does for a network."""
        if min(len(vectors), LEAST if held_out is None else len(held_out)) < LEAST:
            return None
        own = self.posterior_.mean

        def looked_at(source: Vectors, rows: Any) -> tuple[list[Tensor], Tensor]:
            x = source.read(rows if isinstance(rows, slice) else rows.numpy())
            parts = x.split(4096)  # type: ignore[no-untyped-call]
            mean = [self.posterior_.predict(with_ones(unit_rows(p)).to(own)).mean for p in parts]
            return [stage_statistics(x, whole=True)], torch.cat(mean)

        others = None
        if held_out is not None:
            others = looked_at(held_out, sampled_rows(len(held_out), Novelty.sample, seed))
        rows = sampled_rows(len(vectors), Novelty.sample, seed)
        groups = relation.labels[rows] if isinstance(relation, Classes) else None
        sample = looked_at(vectors, rows)
        return novelty_model(*sample, maps=False, held_out=others, groups=groups, seed=seed)

    def _set_fitted(self, fitted: FittedPosterior, error: float) -> "LaplaceHead":
        """Take over what was learnt, under the names that scikit-learn gives such things."""
        self.posterior_: Posterior = fitted.posterior
        self.embedding_dim_ = len(fitted.posterior.mean)
        self.prior_precision_ = fitted.prior_precision
        self.scale_ = fitted.scale
        self.clipped_ = fitted.posterior.clipped
        self.pair_scan_error_ = error
        return self


def whitened(encoder: Encoder, vectors: Vectors, relation: Relation) -> Encoder:
    """Put the head in closed form behind that of an encoder of vectors: the identity, or a projection."""
    start = encoder.head.weight.detach().double()
    h = torch.cat([vectors.features(rows)[:, :-1] for rows in vectors.slices]).double()
    head = closed_form_head(h @ start.T, relation, field="metric")
    return encoder.with_head(
        torch.cat([head[:, :-1] @ start, head[:, -1:]], dim=1).to(encoder.head.weight)
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that are out of range; scikit-learn forbids the constructor to look at them."""
    if options["embedding_dim"] is not None:
        check_int("embedding_dim", options["embedding_dim"], least=2)
    check_choice("metric", options["metric"], METRICS)
    check_choice("distance", options["distance"], DISTANCES)
    check_choice("structure", options["structure"], STRUCTURES)
    for name in (*POSITIVE, *TUNED):
        if options[name] not in TUNED.get(name, ()):
            check_positive(name, options[name])
    if isinstance(options["scan_columns"], str):
        check_choice("scan_columns", options["scan_columns"], ("auto", "all"))
    else:
        check_int("scan_columns", options["scan_columns"], least=1)


def relation_of_targets(
    y: Any, n: int, *, positive_radius: float, negative_radius: float
) -> Relation:
    """Resolve y, for n rows, to a relation: array-likes of labels or positions, or one as it is."""
    if y is None:
        raise InputError(
            "LaplaceHead requires y to be passed, but the target y is None. Give a label per row, "
            "positions (n, 2), or a PairList.",
            field="y",
        )
    if not isinstance(y, Relation):
        y = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
    relation = isinstance(y, Relation)
    placed = not relation and y.ndim == 2 and y.shape[1] == 2 and y.dtype.kind in "fiu"
    if len(y) != n or not (relation or placed or y.ndim == 1):
        raise InputError(
            f"y must be one label per row of X, ({n},), or positions ({n}, 2); got "
            f"{(len(y),) if relation else y.shape}.",
            field="y",
        )
    if isinstance(y, Relation):
        return y
    if placed:
        return Positions(torch.from_numpy(y.astype(np.float64)), positive_radius, negative_radius)
    return as_relation(complete_labels("y", y))


def without_zero_rows(vectors: Vectors, relation: Relation) -> tuple[Vectors, Relation]:
    """Leave rows without a direction out of vectors and relation, with a warning."""
    zero = vectors.zero_rows()
    if len(zero) == 0:
        return vectors, relation
    known = np.delete(np.arange(len(vectors)), zero)
    rows = torch.from_numpy(known)
    found = f"{len(zero)} rows of X are zero, the first at {zero[0]}, and have no direction"
    if isinstance(relation, Classes):
        relation = Classes(relation.labels[rows])
    elif isinstance(relation, Positions):
        relation = replace(relation, coordinates=relation.coordinates[rows])
    else:
        raise InputError(f"{found}. Leave these rows and their pairs out.")
    left_out = "they are left out of the fit. Often they stand for inputs that could not be read."
    warnings.warn(f"{found}; {left_out}", UserWarning, stacklevel=3)
    return Vectors(vectors.matrix[known]), relation


def recall_among(directions: Float[Tensor, "n z"], relation: Relation) -> float:
    """Search each row among the others; return how often the nearest of those with a positive is one."""
    if not isinstance(relation, Classes | Positions):
        raise InputError("score needs labels or positions; a PairList does not judge every pair.")
    n = len(directions)
    findable = relation.positive_sums(directions.new_ones(n, 1), slice(0, n))[:, 0] > 0
    if not bool(findable.any()):
        raise DegenerateError(
            "no row has another of its own kind, so nothing can be found; give classes with two "
            "examples, or use folds that keep classes together."
        )
    found = nearest(directions, directions, 1, exclude_self=True).indices[:, 0]
    if isinstance(relation, Classes):
        right = relation.labels == relation.labels[found]
    else:
        gap = relation.coordinates - relation.coordinates[found]
        right = torch.linalg.vector_norm(gap, dim=1) <= relation.positive_radius
    return float(right[findable].double().mean())
