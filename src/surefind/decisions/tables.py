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

**Asked the wrong thing.** Similarities that are called distances lie in the same range; the order gives
them away, because databases return the nearest first: rows that all come from far to near are refused. Rows
in any other order are sorted. A neighbour with a label but without a number (NaN, as of a vector of length
0) is refused; one with neither is none. Labels are strings or integers: 1 and '1' differ.

Axes: ``q`` queries, ``k`` neighbours.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from numbers import Integral
from typing import Annotated, Any

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import PlainSerializer, PlainValidator

from surefind.checks import as_array, label_values
from surefind.decisions.label_posterior import Votes, listed_numbers
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

NEVER_NEGATIVE = ("euclidean", "squared-euclidean", "distance")
UNKNOWN = (None, -1)
"""True labels of queries that nothing in the database belongs to."""

FALLS = 10
"""Steps to a nearer neighbour, and none to a farther one, from which on rows are the wrong way round."""

ITSELF = 1e-6
"""1 - cosine, as float32 knows it, of a query that is an item."""


Counts = Annotated[
    Mapping[Any, int], PlainValidator(dict), PlainSerializer(lambda counts: [*counts.items()])
]
"""How many items each label has: stored as pairs, because the keys of JSON are texts."""


@dataclass(frozen=True, eq=False)
class Table:
    """What a database returned, as it came.

    Attributes:
        near: Its numbers (q, k), infinite where there is no neighbour.
        codes: Numbers of the labels (q, k), -1 for none.
        names: The labels that these number.
    """

    near: np.ndarray
    codes: np.ndarray
    names: list[Any]

    def __len__(self) -> int:
        return len(self.near)

    def some(self, rows: Int[np.ndarray, " r"]) -> "Table":
        """Return what was returned for some of the queries."""
        return Table(self.near[rows], self.codes[rows], self.names)

    @property
    def width(self) -> int:
        """How many neighbours a query has at most."""
        return int(self.near.shape[1])

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the labels are, in words."""
        return tuple(sorted({"strings" if isinstance(x, str) else "integers" for x in self.names}))


@dataclass(frozen=True)
class Reading:
    """How a database's numbers and labels are read.

    Attributes:
        metric: What the numbers are, one of `METRICS`.
        neighbours: How many each query has at most.
        fewest: How many each query has at least.
        unit: u, of any other distance; 1 where the metric has its own.
        kinds: What the labels are: "strings", "integers", or both.
        counts: How many items each label has; None if nobody knows.
    """

    metric: str
    neighbours: int
    fewest: int
    unit: float
    kinds: tuple[str, ...]
    counts: Counts | None

    @classmethod
    def of(
        cls,
        metric: str,
        table: Table,
        counts: Mapping[Any, Any] | None,
        *,
        unit: float | None = None,
    ) -> "Reading":
        """Return how to read what was returned for the checked queries, and for others later.

        Args:
            metric: What the numbers are.
            table: What was returned.
            counts: How many items each label has; None if nobody knows.
            unit: Of any other distance, if it is known already.

        Returns:
            The reading.
        """
        there = np.isfinite(table.near)
        if unit is None:
            unit = 1.0
            if metric == "distance":
                unit = float(np.median(np.where(there, table.near, -np.inf).max(axis=1))) or 1.0
        known = None if counts is None else _read_counts(counts, table.names)
        fewest = int(there.sum(axis=1).min())
        return cls(metric, table.width, fewest, unit, table.kinds, known)

    def check(self, table: Table) -> None:
        """Refuse what is not as it was when the checked queries were searched.

        Args:
            table: What was returned for other queries.

        Raises:
            InputError: If there are fewer neighbours, or labels of another kind.
        """
        if table.width < self.neighbours:
            raise InputError(
                f"each query has {table.width} neighbours at most and {self.neighbours} were learned "
                f"from; search {self.neighbours}, or fit with fewer.",
                field="distances",
            )
        found = np.isfinite(table.near).sum(axis=1)
        if found.min() < self.fewest:
            raise InputError(
                f"query {int(found.argmin())} has {int(found.min())} neighbours, and every checked one had "
                f"{self.fewest} or more; search {self.neighbours} for each, or fit with fewer.",
                field="distances",
            )
        if other := set(table.kinds) - set(self.kinds):
            raise InputError(
                f"some labels are {other.pop()}, and those that were learned from are "
                f"{' and '.join(self.kinds) or 'none'}; give labels as for fit (1 and '1' differ).",
                field="labels",
            )

    def neighbours_of(self, table: Table) -> Neighbours:
        """Turn a table into neighbours, the nearest first.

        Args:
            table: What was returned.

        Returns:
            As many neighbours a query as are wanted.

        Raises:
            InputError: If a number is not of the metric, or the numbers are the wrong way round.
        """
        near, codes = table.near, table.codes
        there = np.isfinite(near)
        gaps = METRICS[self.metric](np.where(there, near, 0.0) / self.unit)
        low, high = -TOLERANCE, np.inf if self.metric == "distance" else 2 + TOLERANCE
        odd = (gaps < low) | (gaps > high)
        if self.metric in NEVER_NEGATIVE:
            odd |= near < low
        if odd.any():
            raise InputError(
                f"{near[odd][0]:g} is no {self.metric} of unit vectors. Name the metric that the database "
                "returned, or take 'distance' for the distances of vectors of any length.",
                field="distances",
            )
        gaps = np.where(there, gaps, np.inf)
        with np.errstate(invalid="ignore"):
            steps = gaps[:, 1:] - gaps[:, :-1]
        if (steps < 0).any():
            self._check_way_round(there, steps)
            order = np.argsort(gaps, axis=1, kind="stable")[:, : self.neighbours]
            gaps, codes = (np.take_along_axis(x, order, axis=1) for x in (gaps, codes))
        gaps = np.maximum(gaps[:, : self.neighbours], 0.0)
        codes = codes[:, : self.neighbours]
        return Neighbours(self._votes(gaps, codes, table.names), gaps, table.names)

    def _check_way_round(
        self, there: Bool[np.ndarray, "q k"], steps: Float[np.ndarray, "q s"]
    ) -> None:
        between = there[:, 1:] & there[:, :-1]
        if not (between & (steps > 0)).any() and (between & (steps < 0)).sum() >= FALLS:
            raise InputError(
                f"as {self.metric}, every query's neighbours come from the farthest to the nearest, as no "
                "database returns them: these are similarities that were called distances, or the other "
                "way round. Name the metric that the database returned, or reverse the rows.",
                field="distances",
            )

    def _votes(self, gaps: np.ndarray, codes: np.ndarray, names: list[Any]) -> Votes:
        # Nobody knows how many more there are; that there are more matters, not how many.
        if self.counts is None:
            return Votes(1 - gaps, codes, np.ones(codes.shape, dtype=np.int64), 1)
        sizes = np.array([*(self.counts.get(name, 1) for name in names), 1], dtype=np.int64)
        unseen = max(sum(self.counts.values()) - gaps.shape[1], 0)
        return Votes(1 - gaps, codes, sizes[codes], unseen)

    def enrolled(self, truth: Sequence[Any], names: list[Any]) -> Bool[np.ndarray, " q"]:
        """Return which queries have a label that the database has, as far as that is known.

        Args:
            truth: Their labels.
            names: Labels that were found.

        Returns:
            One boolean a query.

        Raises:
            InputError: If there are labels, and the database has none of them.
        """
        there = set(names if self.counts is None else self.counts)
        known = np.array([name is not None and name in there for name in truth])
        named = [name for name in truth if name is not None]
        if named and not known.any():
            raise InputError(
                f"none of the true labels is among the neighbours' labels, such as {named[0]!r}, where "
                f"those are like {next(iter(there), None)!r}; give them as the items have them (1 and '1' "
                "differ), or None for a query that nothing belongs to.",
                field="truth",
            )
        return known


def read_table(distances: Any, labels: Any) -> Table:
    """Read what was found; where there is neither a number nor a label, or it is infinite, is nothing.

    Args:
        distances: Numbers of each query's neighbours (q, k), or lists of different lengths.
        labels: Theirs.

    Returns:
        The table.

    Raises:
        InputError: If the two do not fit together, or hold something else.
        DegenerateError: If a query has no neighbour.
    """
    numbers = _read_numbers(distances)
    codes, names = _read_labels(labels)
    if numbers.shape != codes.shape:
        raise InputError(
            f"there are distances of {numbers.shape} neighbours and labels of {codes.shape}; give as many.",
            field="labels",
        )
    there = np.isfinite(numbers)
    if not numbers.size or not there.any(axis=1).all():
        raise DegenerateError(
            "a query has no neighbour; leave it out, nothing can be said about it.",
            field="distances",
        )
    if -1 in names:
        unknown = codes == names.index(-1)
        if (unknown & there).any():
            raise InputError(
                f"an item must not have the label {UNKNOWN[1]}, which stands for a query that nothing "
                "belongs to; use None for an item without a label.",
                field="labels",
            )
        codes[unknown] = -1  # where there is no neighbour it is a search's own way to say so
    broken = np.isnan(numbers) & (codes >= 0)
    if broken.any():
        name = names[codes[broken][0]]
        raise InputError(
            f"a neighbour with the label {name!r} has no number (NaN): its vector, or the query's, may be "
            "broken or of length 0. Leave it out, or give None as its label too.",
            field="distances",
        )
    return Table(np.where(there, numbers, np.inf), codes, names)


def _read_counts(counts: Mapping[Any, Any], names: list[Any]) -> dict[Any, int]:
    """Check how many items labels have; labels that have none are left out."""
    wrong = [n for n in counts.values() if not isinstance(n, Integral) or n < 0]
    missing = [name for name in names if not counts.get(name, 0)]
    if wrong or missing:
        what = (
            f"counts holds {wrong[0]!r}; give how many items each label has."
            if wrong
            else f"counts lacks {len(missing)} of the labels that were found, such as {missing[0]!r}; give "
            "all, as the items have them (1 and '1' differ)."
        )
        raise InputError(what, field="counts")
    return {name: int(n) for name, n in counts.items() if n}


def _read_numbers(rows: Any) -> Float[np.ndarray, "q k"]:
    try:
        if isinstance(rows, (list, tuple)):
            flat, shape = _padded(rows)
            return np.array(flat, dtype=np.float64).reshape(shape)
        array = as_array(rows)
        numbers = array.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError("distances must be numbers.", field="distances") from error
    if array.ndim != 2:
        raise InputError(
            f"distances must be (queries, neighbours); got shape {array.shape}.", field="distances"
        )
    return numbers


def _read_labels(rows: Any) -> tuple[Int[np.ndarray, "q k"], list[Any]]:
    """Number the labels; the names are Python's own strings and integers."""
    if isinstance(rows, (list, tuple)):
        flat, shape = _padded(rows)
    else:
        array = as_array(rows)
        if array.ndim != 2:
            raise InputError(
                f"labels must be (queries, neighbours); got shape {array.shape}.", field="labels"
            )
        flat, shape = array.ravel().tolist(), (len(array), array.shape[1])
    different = [*dict.fromkeys(flat)]  # few labels come often: each is read once
    read = dict(zip(different, label_values("labels", different), strict=True))
    codes, names = listed_numbers([read[label] for label in flat])
    return codes.reshape(shape), names


def _padded(rows: Sequence[Any]) -> tuple[list[Any], tuple[int, int]]:
    """Return the values of rows of one length, None where one is shorter, and their shape."""
    lists = [row if isinstance(row, (list, tuple)) else as_array(row).tolist() for row in rows]
    width = max(map(len, lists), default=0)
    flat = [*chain.from_iterable([*row, *[None] * (width - len(row))] for row in lists)]
    return flat, (len(lists), width)
