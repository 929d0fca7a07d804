"""Evidence about labels: what is known of each query before anything is decided.

A posterior gives each query probabilities of labels, and perhaps of *none*: that no enrolled label is
right. They come from a `surefind.LabelModel`, from the neighbours that a database returned
(`surefind.NeighbourModel`), or from any classifier. Probabilities of a query add up to 1 with that of none;
what is missing belongs to labels that are not listed, and counts against the answer.

Two numbers of a query are all that a calibration looks at, in log-odds:

    among = log P(answer) / P(any other label)        which of them it is
    known = log P(any label) / P(none)                whether it is any of them; infinite without none

Axes: ``q`` queries, ``l`` labels, ``c`` labels listed for a query.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.checks import as_array, as_scores, label_values
from surefind.errors import InputError

CANDIDATES = 5
"""Labels that an answer shows with their probabilities."""

TINY = 1e-300
ROUNDING = 1e-6
"""By how much probabilities may miss their sum: float32 rounds so."""


@dataclass(frozen=True, eq=False)
class LabelPosterior:
    """Probabilities of labels for each query.

    Attributes:
        labels: Names of the columns (l), or of each query's own columns (q, c), None where it has fewer.
        probability: P(label | query), (q, l) or (q, c).
        none: P(no enrolled label | query) (q); None where that was not asked.

    Raises:
        InputError: If these do not fit together, or are no probabilities.
    """

    labels: Any
    probability: Any
    none: Any = None

    def __post_init__(self) -> None:
        probability = as_array(self.probability)
        if probability.ndim != 2 or 0 in probability.shape or probability.dtype.kind not in "fiub":
            raise InputError(
                "probability must be a table of numbers, one row per query and one column per label; got "
                f"{probability.dtype} of shape {probability.shape}.",
                field="probability",
            )
        probability = probability.astype(np.float64)
        names = self.labels
        if not (isinstance(names, np.ndarray) and names.dtype == object):
            names = np.array([*label_values("labels", names), None], dtype=object)[:-1]
        if names.shape not in {probability.shape, probability.shape[1:]}:
            raise InputError(
                f"labels must name the {probability.shape[1]} columns of probability; got shape "
                f"{names.shape}.",
                field="labels",
            )
        none = self.none
        if none is not None:
            none = as_scores("none", none, length=len(probability))
        total = probability.sum(axis=1) + (0 if none is None else none)
        lowest = probability.min() if none is None else min(probability.min(), none.min())
        if not (lowest >= 0 and (total <= 1 + ROUNDING).all()):
            raise InputError(
                "probabilities of a query must not be negative and add up to at most 1, that of none "
                f"included; got {lowest:g} at least and sums up to {total.max():g}.",
                field="probability",
                hint="Give probabilities, such as predict_proba returns, not scores or logits.",
            )
        for name, value in (("labels", names), ("probability", probability), ("none", none)):
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.probability)

    def __getitem__(self, rows: Any) -> "LabelPosterior":
        """Return the posterior of some of the queries: by an index array, a mask or a slice."""
        labels = self.labels if self.labels.ndim == 1 else self.labels[rows]
        return LabelPosterior(
            labels, self.probability[rows], None if self.none is None else self.none[rows]
        )

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(-self.probability, axis=1, kind="stable")[:, :CANDIDATES]

    @cached_property
    def candidates(self) -> np.ndarray:
        """The most probable labels (q, at most 5), the first one the answer; None where it has fewer."""
        order = self._order
        names = self.labels[order] if self.labels.ndim == 1 else self._listed(self.labels)
        return np.asarray(np.where(self.label_probability > 0, names, None))  # type: ignore[arg-type]

    @cached_property
    def label_probability(self) -> Float[np.ndarray, "q c"]:
        """Probabilities of the candidates (q, at most 5)."""
        return self._listed(self.probability)

    def _listed(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values[np.arange(len(self))[:, None], self._order])

    @property
    def label(self) -> np.ndarray:
        """The most probable label (q), None where no label is possible."""
        return np.asarray(self.candidates[:, 0])

    @cached_property
    def among(self) -> Float[np.ndarray, " q"]:
        """Log-odds of the answer against all other labels (q)."""
        own = self.label_probability[:, 0]
        rest = self.probability.copy()
        rest[np.arange(len(self)), self._order[:, 0]] = 0.0
        missing = 1 - self.probability.sum(axis=1) - (0 if self.none is None else self.none)
        others = rest.sum(axis=1) + np.where(missing > ROUNDING, missing, 0.0)
        return np.asarray(np.log(np.maximum(own, TINY)) - np.log(np.maximum(others, TINY)))

    @cached_property
    def known(self) -> Float[np.ndarray, " q"]:
        """Log-odds that any label is right against none (q); infinite where none was not asked."""
        if self.none is None:
            return np.full(len(self), np.inf)
        known = np.maximum(1 - self.none, self.probability.sum(axis=1))  # near 0 the sum is exact
        return np.asarray(np.log(np.maximum(known, TINY)) - np.log(np.maximum(self.none, TINY)))
