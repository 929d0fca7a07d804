"""A head with a posterior on vectors that any model made, as a scikit-learn estimator.

    h = [x/|x|, 1],    z = W h,    u = z/|z|,    W ~ N(mean, 1/precision)

Rows of X are used at unit length (`surefind.vectors.source`). A zero row has no direction: `fit` leaves it
out with a warning, and `embed` gives it κ = 0, an infinite uncertainty. The head starts as the
identity, or, if ``embedding_dim`` is less than the columns of X, as the projection on their leading
principal directions. It is trained by the contrastive loss only if ``epochs`` is above 0, and the
posterior is fitted to every pair of the data, exactly (`surefind.curvature.dataset`).

Defaults, and what they were measured on: no training (`surefind.vectors.head`), δ = scale · mean of the
clipped curvature with the number of examples as scale (`surefind.vectors.fitted`). X is not centred: that
brought nothing.

1/κ says how well the *weights* are known for an input. It is no substitute for the distance to the
nearest neighbour; decide with both.

Policy: ``y`` has one label per row (whole numbers, texts, booleans), or a position (n, 2) in metres, or
is a `PairList`. Classes with one example have no same pair but count as different from the others.

The scan of the pairs is exact up to 200,000 examples, and samples 8,192 columns beyond
(`surefind.vectors.scan`), labels only; ``pair_scan_error_`` then is the relative standard error of the
curvature that this leaves. X may be memory-mapped; an exact scan holds outputs (n, z) three to five
times, a sampled one only blocks.

Axes: ``n`` examples, ``d`` columns of X, ``z`` embedding.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import (  # type: ignore[import-untyped]
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor

from surefind.curvature.dataset import check_informative
from surefind.embeddings import Embeddings
from surefind.relations import Classes, Relation
from surefind.train import Plan
from surefind.vectors.directed import without_zero_rows
from surefind.vectors.fitted import FittedHead, fit_posterior
from surefind.vectors.head import initial_head, trained_head
from surefind.vectors.head_file import read_head, write_head
from surefind.vectors.options import check_options
from surefind.vectors.recall import recall_among
from surefind.vectors.source import Source
from surefind.vectors.targets import relation_of_targets

EXAMPLES_PER_CLASS = 4
"""Of each class in a training batch, where there are labels."""

READ = (np.float64, np.float32, np.float16)
"""What X may be without being converted, and copied, as a whole."""


class LaplaceHead(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Embed vectors on the unit sphere, and say how surely.

    Args:
        embedding_dim: z; None for as many as X has columns.
        epochs: Passes of training; 0 keeps the identity, or the principal projection.
        distance: "arccos" or "euclidean", see `surefind.curvature.outputs`.
        margin: Squared distance up to which different pairs repel.
        prior_precision: δ; None for the rule of the module's docstring, "evidence" for the δ of
            largest evidence.
        scale: How many observations the loss stands for; None for the number of examples.
        same_within: Where y are positions: distance up to which two are the same place.
        different_beyond: Where y are positions: distance beyond which two are different places.
        scan_columns: "auto", "all" for every pair, or how many random columns to scan.
        batch_size: Examples of a training step.
        learning_rate: Of Adam.
        random_state: Seeds training and the sampled scan; as scikit-learn takes it.

    Attributes:
        posterior_: The `HeadPosterior` over weights (z, d + 1).
        embedding_dim_: z.
        prior_precision_: δ.
        scale_: What the curvature was multiplied with.
        clipped_: Share of the curvature that was clipped.
        pair_scan_error_: Relative standard error of the curvature; 0.0 if every pair was scanned.
        n_features_in_: d.
    """

    def __init__(
        self,
        embedding_dim: Any = None,
        *,
        epochs: Any = 0,
        distance: Any = "arccos",
        margin: Any = 0.7,
        prior_precision: Any = None,
        scale: Any = None,
        same_within: Any = 25.0,
        different_beyond: Any = 50.0,
        scan_columns: Any = "auto",
        batch_size: Any = 128,
        learning_rate: Any = 1e-4,
        random_state: Any = 0,
    ) -> None:
        self.embedding_dim = embedding_dim
        self.epochs = epochs
        self.distance = distance
        self.margin = margin
        self.prior_precision = prior_precision
        self.scale = scale
        self.same_within = same_within
        self.different_beyond = different_beyond
        self.scan_columns = scan_columns
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> "LaplaceHead":
        """Fit the head's posterior.

        Args:
            X: Vectors (n, d): an array, memory-mapped or not, or a tensor.
            y: A label per row, positions (n, 2), or a `PairList`.

        Returns:
            Itself.
        """
        check_options(self.get_params(deep=False))
        source = Source(self._matrix(X, fitting=True))
        source, relation = without_zero_rows(source, self._relation(y, len(source)))
        check_informative(relation)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        columns: Any = self.scan_columns
        columns = columns if isinstance(columns, str) else int(columns)
        fitted = fit_posterior(
            self._head(source, relation, seed),
            source,
            relation,
            distance=self.distance,
            margin=float(self.margin),
            prior_precision=self.prior_precision,
            scale=self.scale,
            columns=columns,
            generator=torch.Generator().manual_seed(seed),
        )
        return self._keep(fitted)

    def transform(self, X: Any) -> Any:
        """Embed without the concentrations.

        Args:
            X: Vectors (n, d), an array or a tensor.

        Returns:
            Unit vectors (n, z), of the kind of X: the directions of `embed`.
        """
        return self.embed(X).mean

    def embed(self, X: Any) -> Embeddings:
        """Give each vector its direction and concentration, without sampling.

        Args:
            X: Vectors (n, d), an array or a tensor.

        Returns:
            The embeddings: arrays for an array, tensors for a tensor.
        """
        check_is_fitted(self)
        source = Source(self._matrix(X, fitting=False))
        own = self.posterior_.mean
        mean = own.new_empty(len(source), len(own), dtype=source.dtype)
        kappa = own.new_empty(len(source), dtype=source.dtype)
        for rows in source.slices:
            h = source.features(rows)
            part = self.posterior_.predict(h.to(own.dtype))
            mean[rows] = part.mean.to(source.dtype)
            kappa[rows] = part.kappa.to(source.dtype) * h[:, :-1].any(1)
        if isinstance(X, Tensor):
            return Embeddings(mean.to(X.device), kappa.to(X.device))
        return Embeddings(mean.numpy(), kappa.numpy())

    def uncertainty(self, X: Any) -> Any:
        """Give one over κ.

        Args:
            X: Vectors (n, d), an array or a tensor.

        Returns:
            One number per row (n), of the kind of X; higher means less sure.
        """
        return self.embed(X).uncertainty

    def score(self, X: Any, y: Any) -> float:
        """Give recall@1 of searching each row among the others.

        Args:
            X: Vectors (n, d).
            y: A label per row, or positions (n, 2).

        Returns:
            The share of rows whose nearest other row is the same, among those that have such a row.

        Raises:
            InputError: If y is a list of pairs, which does not say of every neighbour what it is.
            DegenerateError: If no row has another that is the same.
        """
        mean = torch.as_tensor(self.transform(X))
        return recall_among(mean, self._relation(y, len(mean)))

    def save(self, path: str | Path) -> None:
        """Write the fitted head to a file: safetensors with JSON, no pickle.

        Args:
            path: The file; its folder must exist.

        Raises:
            InputError: If ``random_state`` is a generator, which JSON cannot hold.
        """
        check_is_fitted(self)
        fitted = FittedHead(
            self.posterior_, self.prior_precision_, self.scale_, self.pair_scan_error_
        )
        names = list(getattr(self, "feature_names_in_", []))
        write_head(path, fitted, self.get_params(deep=False), names)

    @classmethod
    def load(cls, path: str | Path) -> "LaplaceHead":
        """Read what `save` wrote.

        Args:
            path: The file.

        Returns:
            The fitted head, equal bit for bit.

        Raises:
            InputError: If the file holds something else.
        """
        fitted, options, names = read_head(path)
        head = cls(**options)._keep(fitted)
        head.n_features_in_ = fitted.posterior.mean.shape[1] - 1
        if names:
            head.feature_names_in_ = np.array(names, dtype=object)
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
            X = X.detach().cpu()
            X = (X if X.dtype != torch.bfloat16 else X.float()).numpy()
        matrix: np.ndarray = validate_data(
            self,
            X,
            reset=fitting,
            dtype=READ,
            ensure_min_features=1 + fitting,
            ensure_min_samples=1 + fitting,
        )
        return matrix

    def _relation(self, y: Any, n: int) -> Relation:
        inner, outer = float(self.same_within), float(self.different_beyond)
        return relation_of_targets(y, n, same_within=inner, different_beyond=outer)

    def _head(self, source: Source, relation: Relation, seed: int) -> Tensor:
        z = None if self.embedding_dim is None else int(self.embedding_dim)
        weights = initial_head(source, z)
        if self.epochs == 0:
            return weights
        plan = Plan(
            epochs=int(self.epochs),
            batch_size=int(self.batch_size),
            optimizer=partial(torch.optim.Adam, lr=float(self.learning_rate)),
            seed=seed,
            examples_per_class=EXAMPLES_PER_CLASS if isinstance(relation, Classes) else None,
            radii=(float(self.same_within), float(self.different_beyond)),
        )
        return trained_head(weights, source, relation, margin=float(self.margin), plan=plan)

    def _keep(self, fitted: FittedHead) -> "LaplaceHead":
        """Take over what was learnt, under the names that scikit-learn gives such things."""
        self.posterior_ = fitted.posterior
        self.embedding_dim_ = len(fitted.posterior.mean)
        self.prior_precision_ = fitted.prior_precision
        self.scale_ = fitted.scale
        self.clipped_ = fitted.posterior.clipped
        self.pair_scan_error_ = fitted.pair_scan_error
        return self
