"""What a database returned for some queries, as neighbours that can be judged.

Whatever it calls near becomes g = 1 - cosine of unit vectors:

    metric               what it returned                          g
    cosine               the cosine                                1 - s
    cosine-distance      1 - cosine                                d
    negative-cosine      minus the inner product of unit vectors   1 + d
    euclidean            distance of unit vectors                  d²/2
    squared-euclidean    its square                                d/2
    elasticsearch        (1 + cosine) / 2                          2 - 2 s
    distance             any other distance                        (d/u)²/2

The first six lead to the same decisions. u, the unit of any other distance, is the median over the checked
queries of the distance of the last neighbour.

**Sizes.** n_l, how many items a label has in the database, keeps labels with many items from outvoting
others. Without ``counts`` all labels are taken to have the same number.

Axes: ``q`` queries, ``k`` neighbours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.arrays import as_array
from surefind.decisions.label_posterior import Votes, label_numbers
from surefind.decisions.verdicts import Neighbours
from surefind.errors import DegenerateError, InputError

TOLERANCE = 1e-3
"""How far below 0 or above 2 rounding may put 1 - cosine."""

METRICS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "cosine": lambda s: 1 - s,
    "cosine-distance": lambda d: d,
    "negative-cosine": lambda d: 1 + d,
    "euclidean": lambda d: np.square(d) / 2,
    "squared-euclidean": lambda d: d / 2,
    "elasticsearch": lambda s: 2 - 2 * s,
    "distance": lambda d: np.square(d) / 2,
}
"""1 - cosine from what a database returned."""
UNKNOWN = (None, -1)
"""True labels of queries that nothing in the database belongs to."""


@dataclass(frozen=True)
class Reading:
    """How a database's numbers and labels are read.

    Attributes:
        metric: What the numbers are, one of `METRICS`.
        neighbours: How many each query has.
        unit: u, of any other distance; 1 where the metric has its own.
        counts: How many items each label has; None if nobody knows.
    """

    metric: str
    neighbours: int
    unit: float
    counts: Mapping[Any, int] | None

    @classmethod
    def of(
        cls, metric: str, near: Float[np.ndarray, "q k"], counts: Mapping[Any, int] | None
    ) -> "Reading":
        """Return how to read what was returned for the checked queries, and for others later."""
        unit = 1.0
        if metric == "distance":
            last = np.where(np.isfinite(near), near, -np.inf).max(axis=1)
            unit = float(np.median(last[np.isfinite(last)])) or 1.0
        return cls(metric, near.shape[1], unit, None if counts is None else dict(counts))

    def neighbours_of(self, near: Float[np.ndarray, "q k"], labels: np.ndarray) -> Neighbours:
        """Turn what `read_tables` read into neighbours, the nearest first.

        Args:
            near: The database's numbers, infinite where there is no neighbour.
            labels: Of the same neighbours.

        Returns:
            As many neighbours a query as are wanted.

        Raises:
            InputError: If a number is not of the metric.
        """
        there = np.isfinite(near)
        with np.errstate(invalid="ignore"):
            gaps = METRICS[self.metric](np.where(there, near, 0.0) / self.unit)
        gaps = np.where(there, gaps, np.inf)
        low, high = -TOLERANCE, np.inf if self.metric == "distance" else 2 + TOLERANCE
        odd = there & ((gaps < low) | (gaps > high))
        if odd.any():
            raise InputError(
                f"{near[odd][0]:g} is no {self.metric} of unit vectors. Name the metric that the database "
                "returned, or take 'distance' for the distances of vectors of any length.",
                field="distances",
            )
        order = np.argsort(gaps, axis=1, kind="stable")[:, : self.neighbours]
        gaps = np.maximum(np.take_along_axis(gaps, order, axis=1), 0.0)
        codes, names = label_numbers(np.take_along_axis(labels, order, axis=1))
        return Neighbours(self._votes(gaps, codes, names), gaps, names)

    def _votes(self, gaps: np.ndarray, codes: np.ndarray, names: list[Any]) -> Votes:
        sizes = np.ones(len(names) + 1, dtype=np.int64)
        if self.counts is not None:
            sizes[:-1] = [max(self.counts.get(name, 1), 1) for name in names]
        # Nobody knows how many more there are; that there are more matters, not how many.
        unseen = 1
        if self.counts is not None:
            unseen = max(sum(self.counts.values()) - gaps.shape[1], 0)
        return Votes(1 - gaps, codes, sizes[codes], unseen)

    def enrolled(self, names: list[Any]) -> set[Any]:
        """Return the labels of the database, as far as they are known: its own, or those found."""
        if self.counts is None:
            return set(names)
        return {name for name, n in self.counts.items() if n}


def read_tables(distances: Any, labels: Any) -> tuple[Float[np.ndarray, "q k"], np.ndarray]:
    """Read what was found as two tables; where there is no number, or it is infinite, is nothing."""
    near, names = _table(distances, "distances", np.nan), _table(labels, "labels", None)
    if near.shape != names.shape:
        raise InputError(
            f"there are distances of {near.shape} neighbours and labels of {names.shape}; give as many.",
            field="labels",
        )
    try:
        numbers = near.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("distances must be numbers.", field="distances") from error
    there = np.isfinite(numbers)
    if not numbers.size or not there.any(axis=1).all():
        raise DegenerateError(
            "a query has no neighbour; leave it out, nothing can be said about it.",
            field="distances",
        )
    if (there & np.asarray(names == UNKNOWN[1], dtype=bool)).any():
        raise InputError(
            f"an item must not have the label {UNKNOWN[1]}, which stands for a query that nothing belongs "
            "to; use None for an item without a label.",
            field="labels",
        )
    return np.where(there, numbers, np.inf), names


def _table(rows: Any, name: str, nothing: Any) -> np.ndarray:
    """Read rows, which may have different lengths, as one table (q, k)."""
    if not isinstance(rows, (list, tuple)):
        array = as_array(rows)
        if array.ndim != 2:
            raise InputError(
                f"{name} must be (queries, neighbours); got shape {array.shape}.", field=name
            )
        return array if array.dtype.kind in "iuf" else array.astype(object)
    lists = [plain_list(row) for row in rows]
    table = np.full((len(lists), max(map(len, lists), default=0)), nothing, dtype=object)
    for i, row in enumerate(lists):
        table[i, : len(row)] = row
    return table


def plain_list(values: Any) -> list[Any]:
    """Return a column as a list of Python's own values."""
    return list(values) if isinstance(values, (list, tuple)) else as_array(values).tolist()
