"""A head with a posterior on vectors that any model made, as a scikit-learn estimator.

    h = [x/|x|, 1],    z = W h,    u = z/|z|,    W ~ a Gaussian around the head

Vectors are prepared by `surefind.models.vectors`, as at every door, and the posterior is fitted to every
pair of them by `surefind.posterior.fit`, which says what its rule for scale and prior is worth on vectors.
1/κ says how well the *weights* are known for an input. It is no substitute for the distance to the nearest
neighbour; decide with both.

The head is in closed form (`surefind.learning.closed_form`): the label model's transform, or of positions
and pairs their whitening, with as many rows as examples left out say; of many classes the identity where
that finds unseen ones better. On frozen ImageNet features of CUB200 (EfficientNet-Lite0) recall@1 on unseen
classes is 0.577 instead of 0.550. Training one forgets what the large model knew of other classes: 0.751
with the identity, 0.730 … 0.547 after training, the lower the longer; to do so all the same, use
`surefind.MetricLearner(embedding="head")`.

Policy: ``y`` has a label per row (`surefind.checks`), or a position (n, 2) in the units of the two radii,
or is a `PairList`. Classes with one example have no positive pair but count as negatives of the others. A
zero row has no direction: `fit` leaves it out with a warning, and `embed` returns κ = 0.

The scan of the pairs is exact up to 200,000 examples, and samples 8,192 columns beyond
(`surefind.curvature.pair_scan`), labels and the diagonal only. X may be memory-mapped; an exact scan holds
outputs (n, z) three to five times, a sampled one only blocks; the head is fitted to up to 20,000 rows.

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
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.learning.closed_form import checked_rows, fit_head
from surefind.learning.layered import sampled_rows
from surefind.learning.methods.contract import prefixed, unprefixed
from surefind.learning.seeds import seeded
from surefind.models.saving import load_tensors, save_tensors
from surefind.models.vectors import Vectors, unit_rows, with_ones
from surefind.neighbours import nearest
from surefind.novelty import LEAST, Novelty, fit_novelty
from surefind.pairs.losses import MARGIN
from surefind.pairs.relations import (
    NEGATIVE_RADIUS,
    POSITIVE_RADIUS,
    Classes,
    Positions,
    Relation,
    as_relation,
)
from surefind.posterior.fit import FittedPosterior
from surefind.posterior.head import Posterior, posterior_tensors, restored_posterior
from surefind.posterior.tuning import draw_sample

base = require("sklearn.base", "use LaplaceHead, a scikit-learn estimator")
validation = require("sklearn.utils.validation", "use LaplaceHead, a scikit-learn estimator")

POSITIVE = ("margin", "positive_radius", "negative_radius")
"""Options that are finite numbers above zero."""

TUNED: dict[str, tuple[Any, ...]] = {"prior_precision": (None, "evidence"), "scale": (None,)}
"""Options that are so too, or one of these."""

KIND = "laplace-head"
"""What a saved file says that it holds."""


class LaplaceHead(base.ClassNamePrefixFeaturesOutMixin, base.TransformerMixin, base.BaseEstimator):  # type: ignore[misc]
    """Post-hoc Laplace approximation on fixed embeddings: a scikit-learn estimator.

    Args:
        embedding_dim: z; None to choose it.
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
        novelty: Whether embeddings also say whether such a vector was ever seen (`surefind.novelty`).

    Attributes:
        posterior_: The posterior over weights (z, d + 1).
        embedding_dim_: z.
        prior_precision_: δ.
        scale_: What the curvature was multiplied with.
        clipped_: Share of the curvature that was clipped.
        pair_scan_error_: Relative standard error of the curvature; 0.0 if every pair was scanned.
        novelty_: What is usual; None without, or with fewer than 20 rows.
        n_features_in_: d.
    """

    def __init__(
        self,
        embedding_dim: Any = None,
        *,
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
        labels = relation.labels if isinstance(relation, Classes) else None
        head = fit_head(
            vectors,
            relation,
            rows=checked_rows(self.embedding_dim, self.n_features_in_),
            # What the learner's methods draw, in the same precision.
            sample=lambda most: draw_sample(
                len(vectors),
                lambda rows: vectors.read(rows.numpy()).float(),
                lambda x: with_ones(unit_rows(x)),
                labels,
                seeded(seed, "width"),
                most=most,
            ),
            margin=float(self.margin),
            seed=seed,
            structure=self.structure,
            distance=self.distance,
            scale=scale,
            prior_precision=prior,
            columns=scan if isinstance(scan, str) else int(scan),
        )
        self._set_fitted(head.fitted, head.error)
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
                novelty[rows] = self.novelty_.of(h[:, :-1], part.mean).to(kappa)
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
        head.novelty_ = Novelty.restored(novelty) if novelty else None
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
    ) -> Novelty | None:
        """Fit novelty to a sample of vectors."""
        if min(len(vectors), LEAST if held_out is None else len(held_out)) < LEAST:
            return None

        W = self.posterior_.mean

        def sampled(source: Vectors, rows: Any) -> tuple[Tensor, Tensor]:
            h = source.features(rows)
            return h[:, :-1].float(), unit_rows(h.to(W) @ W.T)

        rows = sampled_rows(len(vectors), seed)
        others = None
        if held_out is not None:
            others = sampled(held_out, sampled_rows(len(held_out), seed))
        return fit_novelty(
            *sampled(vectors, rows),
            held_out=others,
            groups=relation.labels[rows] if isinstance(relation, Classes) else None,
            generator=seeded(seed, "novelty references"),
        )

    def _set_fitted(self, fitted: FittedPosterior, error: float) -> "LaplaceHead":
        """Take over what was learnt, under the names that scikit-learn gives such things."""
        self.posterior_: Posterior = fitted.posterior
        self.embedding_dim_ = len(fitted.posterior.mean)
        self.prior_precision_ = fitted.prior_precision
        self.scale_ = fitted.scale
        self.clipped_ = fitted.posterior.clipped
        self.pair_scan_error_ = error
        return self


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that are out of range; scikit-learn forbids the constructor to look at them."""
    if options["embedding_dim"] is not None:
        check_int("embedding_dim", options["embedding_dim"], least=2)
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
