"""A head with a posterior on vectors that any model made, as a scikit-learn estimator.

    h = [x/|x|, 1],    z = W h,    u = z/|z|,    W ~ N(mean, 1/precision)

Rows of X are used at unit length (`surefind.curvature.rows`). A zero row has no direction: `fit` leaves it
out with a warning, and `embed` gives it κ = 0, an infinite uncertainty. The head starts as the
identity, or, if ``embedding_dim`` is less than the columns of X, as the projection on their leading
principal directions. It is trained by the contrastive loss only if ``epochs`` is above 0, and the
posterior is fitted to every pair of the data, exactly (`surefind.curvature.dataset`).

Defaults, and what they were measured on: no training (`surefind.estimators.laplace_head`), δ = scale · mean
of the clipped curvature with the number of examples as scale (`surefind.posterior.fit`). X is not centred:
that brought nothing.

1/κ says how well the *weights* are known for an input. It is no substitute for the distance to the
nearest neighbour; decide with both.

Policy: ``y`` has one label per row (whole numbers, texts, booleans), or a position (n, 2) in metres, or
is a `PairList`. Classes with one example have no same pair but count as different from the others.

The scan of the pairs is exact up to 200,000 examples, and samples 8,192 columns beyond
(`surefind.curvature.pair_scan`), labels only; ``pair_scan_error_`` then is the relative standard error of
the curvature that this leaves. X may be memory-mapped; an exact scan holds outputs (n, z) three to five
times, a sampled one only blocks.

Axes: ``n`` examples, ``d`` columns of X, ``z`` embedding.

What the options of a head on frozen vectors may be.

scikit-learn's rules forbid a constructor to look at its arguments, so they are checked when `fit` begins.
Numbers of any kind count, NumPy's too.

Rows that have a direction: the others are left out before anything is learnt.

What ``y`` may be: a label per row, a position per row, or judged pairs.

Labels are whole numbers, texts or booleans (n); positions are numbers (n, 2) in the units of the two radii;
a relation is taken as it is. Policy: a label that is no whole number is refused, because a regression
target as a class would make almost every pair different.

The linear head of frozen vectors: where it starts, and its training.

It starts as the identity; with fewer outputs than columns, as the projection on the leading eigenvectors
of Σ_i h_i h_iᵀ, which changes inner products least. The bias starts at zero.

Training is no default: on frozen ImageNet features of CUB200 (how: `surefind.posterior.fit`) recall@1 on
unseen classes is 0.751 with the identity (0.749 if X is centred) and 0.730 … 0.547 after training, the
lower the longer: a linear layer forgets what the large model knew of other classes. On the classes of the
fit it brought no clear gain either (0.671; trained 0.632 … 0.681).

Axes: ``d`` columns, ``z`` outputs.

A fitted head in a file: safetensors with JSON, no pickle (`surefind.models.checkpoint`).

Beside the posterior and what it rests on, the file holds the options of the estimator that made it, so that
it can be fitted again, and the names of the columns, if there were any. All comes back bit for bit; the
evidence of the posterior is not kept.

recall@1 of rows searched among each other: how often the nearest other row is the same.

Policy: a row that has no other of its own kind cannot be answered right and is left out.

Axes: ``n`` rows, ``z`` embedding.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from sklearn.base import (  # type: ignore[import-untyped]
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]
from torch import Tensor, nn

from surefind.curvature.dataset import check_informative
from surefind.curvature.outputs import DISTANCES
from surefind.curvature.rows import Source
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.errors import DegenerateError, InputError
from surefind.learning.methods.deterministic import EncoderTask
from surefind.learning.train import TrainConfig, train
from surefind.models.checkpoint import load_tensors, save_tensors
from surefind.models.encoder import Encoder, empty_head, on_sphere
from surefind.pairs.objectives import Contrastive
from surefind.pairs.relations import Classes, Positions, Relation, as_relation
from surefind.posterior.diagonal import HeadPosterior
from surefind.posterior.fit import FittedHead, fit_posterior
from surefind.retrieval.search import nearest
from surefind.validation import check_choice, check_int, check_positive

POSITIVE = (
    "margin",
    "prior_precision",
    "scale",
    "learning_rate",
    "same_within",
    "different_beyond",
)
"""Options that are finite numbers above zero."""

SPECIAL = {"prior_precision": (None, "evidence"), "scale": (None,)}
"""What some of them may be instead."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse options that are out of range.

    Args:
        options: All of them by name, as ``LaplaceHead.get_params`` gives them.

    Raises:
        InputError: If one is none of what it may be.
    """
    if options["embedding_dim"] is not None:
        check_int("embedding_dim", options["embedding_dim"], least=2)
    check_int("epochs", options["epochs"], least=0)
    check_choice("distance", options["distance"], DISTANCES)
    check_int("batch_size", options["batch_size"], least=2)
    for name in POSITIVE:
        value = options[name]
        if isinstance(value, Real):
            check_positive(name, float(value))
        elif not isinstance(value, str | None) or value not in SPECIAL.get(name, ()):
            raise InputError(f"{name} must be a finite number above 0; got {value!r}.")
    if isinstance(options["scan_columns"], str):
        check_choice("scan_columns", options["scan_columns"], ("auto", "all"))
    else:
        check_int("scan_columns", options["scan_columns"], least=1)


def without_zero_rows(source: Source, relation: Relation) -> tuple[Source, Relation]:
    """Leave rows without a direction out, with a warning.

    Args:
        source: The vectors.
        relation: Over its rows.

    Returns:
        Both without these rows: the same two if there are none.

    Raises:
        InputError: If y is a list of pairs, from which rows cannot be left out.
    """
    zero = source.zero_rows()
    if len(zero) == 0:
        return source, relation
    known = np.delete(np.arange(len(source)), zero)
    rows = torch.from_numpy(known)
    left: Relation
    if isinstance(relation, Classes):
        left = Classes(relation.labels[rows])
    elif isinstance(relation, Positions):
        left = replace(relation, coordinates=relation.coordinates[rows])
    else:
        raise InputError(
            f"{len(zero)} rows of X are zero, the first at {zero[0]}: a zero vector has no direction. "
            "Leave these rows and their pairs out."
        )
    warnings.warn(
        f"{len(zero)} rows of X are zero, the first at {zero[0]}, and have no direction; they are left "
        "out of the fit. Often they stand for inputs that could not be read.",
        UserWarning,
        stacklevel=3,
    )
    return Source(source.matrix[known]), left


def relation_of_targets(y: Any, n: int, *, same_within: float, different_beyond: float) -> Relation:
    """Resolve y to a relation.

    Args:
        y: Labels, positions, or a relation; a list, an array or a tensor.
        n: How many rows it is about.
        same_within: Distance up to which two positions are the same place.
        different_beyond: Distance beyond which they are different places.

    Returns:
        The relation.

    Raises:
        InputError: If y is missing, has another length, or is none of what it may be.
    """
    if y is None:
        raise InputError(
            "LaplaceHead requires y to be passed, but the target y is None. Give a label per row, "
            "positions (n, 2), or a PairList."
        )
    if not isinstance(y, Relation):
        y = np.asarray(y.detach().cpu() if isinstance(y, Tensor) else y)
        if y.ndim == 2 and y.shape[1] == 1:
            y = y[:, 0]
    if len(y) != n:
        raise InputError(f"X has {n} rows and y {len(y)}; give one y for each row.")
    if isinstance(y, Relation):
        return y
    if y.ndim == 2 and y.shape[1] == 2 and y.dtype.kind in "fiu":
        return Positions(torch.from_numpy(y.astype(np.float64)), same_within, different_beyond)
    if y.ndim != 1:
        raise InputError(
            f"y must be one label per row, shape (n,), or positions (n, 2); got {y.shape}."
        )
    if y.dtype.kind == "f" and not bool((np.isfinite(y) & (y == np.round(y))).all()):
        raise InputError(
            "y holds fractions, NaN or infinity where labels are expected: whole numbers or texts. "
            "Positions must be (n, 2)."
        )
    return as_relation(y)


def initial_head(source: Source, z: int | None) -> Float[Tensor, "z features"]:
    """Give the head before training.

    Args:
        source: The vectors.
        z: Number of outputs; None for as many as there are columns.

    Returns:
        The weights (z, d + 1), the bias in the last column.

    Raises:
        InputError: If there are to be more outputs than columns.
    """
    d = source.matrix.shape[1]
    z = d if z is None else z
    if z > d:
        raise InputError(
            f"embedding_dim is {z}, but X has {d} columns; a linear head cannot add any. "
            f"Give at most {d}, or None."
        )
    if z == d:
        return torch.eye(d, d + 1, dtype=source.dtype)
    second = torch.zeros(d, d, dtype=torch.float64)
    for h in source.batches():
        second += h[:, :d].T @ h[:, :d]
    leading = torch.linalg.eigh(second).eigenvectors.flip(1)[:, :z].T
    # A direction's sign is arbitrary; fixed, so that equal data give equal heads.
    leading *= leading.gather(1, leading.abs().argmax(1, keepdim=True)).sign()
    return torch.cat([leading, leading.new_zeros(z, 1)], dim=1).to(source.dtype)


def trained_head(
    weights: Float[Tensor, "z features"],
    source: Source,
    relation: Relation,
    *,
    margin: float,
    config: TrainConfig,
) -> Float[Tensor, "z features"]:
    """Train a head by the contrastive loss.

    Args:
        weights: Where to start; stays as it is.
        source: The vectors.
        relation: Labels or positions of them.
        margin: Squared distance up to which negative pairs repel.
        config: How to train.

    Returns:
        The trained weights.

    Raises:
        InputError: If the relation is neither labels nor positions.
    """
    if isinstance(relation, Classes):
        dataset = Dataset(source.matrix, relation.labels)
    elif isinstance(relation, Positions):
        dataset = Dataset(source.matrix, positions=relation.coordinates)
    else:
        raise InputError(
            "a head can be trained on labels or positions, not on a list of pairs; take epochs=0, "
            "which needs no training."
        )
    empty = empty_head(weights.shape[1] - 1, len(weights), bias=True)
    encoder = Encoder(_UnitRows(), empty).with_head(weights.float())
    train(EncoderTask(encoder, Contrastive(margin)), dataset, config)
    return encoder.head_weights().to(weights.dtype)


class _UnitRows(nn.Module):
    """The backbone of frozen vectors: they become directions."""

    def forward(self, inputs: Tensor) -> Tensor:
        return on_sphere(inputs)


KIND = "laplace-head"
"""What a file says that it holds."""


def write_head(
    path: str | Path, fitted: FittedHead, options: Mapping[str, Any], columns: list[str]
) -> None:
    """Write a fitted head.

    Args:
        path: The file; its folder must exist.
        fitted: What was learnt.
        options: Of the estimator, by name.
        columns: Names of the columns; empty if they have none.

    Raises:
        InputError: If ``random_state`` is a generator, which JSON cannot hold.
    """
    if not isinstance(options["random_state"], int | np.integer | None):
        raise InputError(
            "random_state is a generator, which cannot be saved; "
            "set_params(random_state=None) or a number first."
        )
    metadata = {
        "kind": KIND,
        "parameters": {k: v.item() if isinstance(v, np.generic) else v for k, v in options.items()},
        "prior_precision": fitted.prior_precision,
        "scale": fitted.scale,
        "clipped": fitted.posterior.clipped,
        "pair_scan_error": fitted.pair_scan_error,
        "feature_names": columns,
    }
    tensors = {"mean": fitted.posterior.mean, "precision": fitted.posterior.precision}
    save_tensors(path, tensors, metadata)


def read_head(path: str | Path) -> tuple[FittedHead, dict[str, Any], list[str]]:
    """Read what `write_head` wrote.

    Args:
        path: The file.

    Returns:
        What was learnt, the estimator's options, and the names of the columns.

    Raises:
        InputError: If the file holds something else.
    """
    tensors, metadata = load_tensors(path)
    if metadata.get("kind") != KIND:
        raise InputError(
            f"{path} does not hold a LaplaceHead; load a trained model with surefind.load."
        )
    posterior = HeadPosterior(tensors["mean"], tensors["precision"], metadata["clipped"])
    fitted = FittedHead(
        posterior, metadata["prior_precision"], metadata["scale"], metadata["pair_scan_error"]
    )
    return fitted, metadata["parameters"], metadata["feature_names"]


def recall_among(directions: Float[Tensor, "n z"], relation: Relation) -> float:
    """Search each row among the others.

    Args:
        directions: Unit vectors.
        relation: Labels or positions of them.

    Returns:
        The share of rows whose nearest other row is the same, among those that have such a row.

    Raises:
        InputError: If the relation is a list of pairs.
        DegenerateError: If no row has another that is the same.
    """
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
    return float(is_same(relation, found)[findable].double().mean())


def is_same(relation: Classes | Positions, found: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Say of each row whether the row that it found is the same.

    Args:
        relation: Over the rows.
        found: A row number for each row.

    Returns:
        Booleans.
    """
    if isinstance(relation, Classes):
        return relation.labels == relation.labels[found]
    gap: Tensor = torch.linalg.vector_norm(
        relation.coordinates - relation.coordinates[found], dim=1
    )
    return gap <= relation.positive_radius


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
        margin: Squared distance up to which negative pairs repel.
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
        config = TrainConfig(
            epochs=int(self.epochs),
            batch_size=int(self.batch_size),
            optimizer=partial(torch.optim.Adam, lr=float(self.learning_rate)),
            seed=seed,
            examples_per_class=EXAMPLES_PER_CLASS if isinstance(relation, Classes) else None,
            radii=(float(self.same_within), float(self.different_beyond)),
        )
        return trained_head(weights, source, relation, margin=float(self.margin), config=config)

    def _keep(self, fitted: FittedHead) -> "LaplaceHead":
        """Take over what was learnt, under the names that scikit-learn gives such things."""
        self.posterior_ = fitted.posterior
        self.embedding_dim_ = len(fitted.posterior.mean)
        self.prior_precision_ = fitted.prior_precision
        self.scale_ = fitted.scale
        self.clipped_ = fitted.posterior.clipped
        self.pair_scan_error_ = fitted.pair_scan_error
        return self
