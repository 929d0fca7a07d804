"""Evidence about labels from what a vector database returned: each query's k nearest items, no vectors.

**Metrics.** Whatever the database calls near becomes g = 1 - cosine of unit vectors:

    metric               what it returned                          g
    cosine               the cosine                                1 - s
    cosine-distance      1 - cosine                                d
    negative-cosine      minus the inner product of unit vectors   1 + d
    euclidean            distance of unit vectors                  d²/2
    squared-euclidean    its square                                d/2
    elasticsearch        (1 + cosine) / 2                          2 - 2 s
    distance             any other distance                        (d/u)²/2

The first six give the same posterior. u, the unit of any other distance, is the median over the fitting
queries of the distance of the last neighbour.

**Model.** With m = 1 - g, and n_l items of label l in the database (``counts``; 1 where nobody knows),

    s_l = log (1/n_l) Σ_{l_g = l} exp(m_g / T)                      log density of label l at the query
    P(none | q)         = σ(b (a - max_l s_l))                      no enrolled label
    P(l | q, not none)  = n_l^γ exp(c s_l) / Σ_k n_k^γ exp(c s_k)   which one, if there is one

s_l is a kernel estimate; 1/n_l keeps labels with many items from outvoting others, γ says how far they are
also asked for more often. An item without a label is a label of its own that is never the answer. So is one
item more, as near as the last neighbour: it stands for those that were not returned, and an answer without
a rival is no certainty.

**Fit.** T, c and γ have the highest likelihood of the true labels of enrolled queries, c by a search for
each T and γ of a grid. Wrong labels exist, so a query costs 7 nats at most, and with r the strongest rival
one more error is counted than was seen, as Platt (1999) does:

    (1/n) Σ_q min(-log P(true | q, not none), 7) + 1/(n (n + 1)) Σ_q -log P(r | q, not none)

a and b are Platt's logistic fit of enrolled against unknown queries, in the mixture in which they came.
Policies: with fewer than 20 enrolled queries T = 0.05, c = 2.5 and γ = 0; without unknown queries
the posterior has no "none"; without ``counts`` γ = 0.

**Wrong input.** Similarities that are called distances can lie in the same range. The order gives them
away, because databases return the nearest first: tables that only come from far to near are refused. Other
orders are sorted. NaN without a label, or an infinite number, is no neighbour.

Axes: ``q`` queries, ``k`` neighbours.

    Platt: Probabilistic Outputs for Support Vector Machines. Advances in Large Margin Classifiers, 1999.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from numbers import Integral
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.checks import as_array, check_choice, label_values, named_rows
from surefind.errors import InputError
from surefind.labels.posterior import LabelPosterior

METRICS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "cosine": lambda s: 1 - s,
    "cosine-distance": lambda d: d,
    "negative-cosine": lambda d: 1 + d,
    "euclidean": lambda d: np.square(d) / 2,
    "squared-euclidean": lambda d: d / 2,
    "elasticsearch": lambda s: 2 - 2 * s,
    "distance": lambda d: np.square(d) / 2,
}
NEVER_NEGATIVE = ("euclidean", "squared-euclidean", "distance")
TOLERANCE = 1e-3  # how far below 0 or above 2 rounding may put g
ITSELF = 1e-6  # g, as float32 knows it, of a query that is an item
FALLS = 10  # steps to a nearer neighbour, and none to a farther one, of rows the wrong way round
UNKNOWN = (None, -1)
LISTED = 16  # labels of a query in a posterior
USUAL = 0.05, 2.5  # T and c where the queries cannot say
LEAST = 20  # enrolled queries to fit T, c and γ to
TEMPERATURES, PRIORS = np.geomspace(2**-10, 1.0, 21), (0.0, 0.5, 1.0)
SHARPNESS = 0.05, 50.0
DOUBT = 1e-4  # nats a query that log T and log c cost, squared, away from the usual
MOST_SURPRISE = 7.0

Table = tuple[np.ndarray, np.ndarray, list[Any]]
# Numbers (q, k), infinite where there is no neighbour; codes of labels, -1 for none; the labels' names.


@dataclass(frozen=True)
class VoteSettings:
    """How a database's neighbours become probabilities of labels.

    Attributes:
        neighbours: How many each query has at most.
        fewest: How many each query has at least.
        kinds: What the labels are: "strings", "integers", or both.
        counts: Labels with the number of their items; None if nobody knows.
        unit: u, of any other distance; 1 where the metric has its own.
        enrolled: Queries that T, c and γ were fitted to.
        unknown: Queries whose label the database does not have.
        temperature: T, in units of the cosine.
        sharpness: c.
        prior: γ.
        none_level: a.
        none_slope: b; None without unknown queries.
        notes: What to keep in mind about the queries, a sentence each.
    """

    neighbours: int
    fewest: int
    kinds: tuple[str, ...]
    counts: tuple[tuple[Any, int], ...] | None = field(repr=False)
    unit: float = 1.0
    enrolled: int = 0
    unknown: int = 0
    temperature: float = USUAL[0]
    sharpness: float = USUAL[1]
    prior: float = 0.0
    none_level: float = 0.0
    none_slope: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Votes:
    """Neighbours, the nearest first, and after them the item that stands for those not returned.

    Attributes:
        scores: m (q, k + 1); -inf where there is none.
        codes: Numbers of the labels; -1 for an item without one.
        log_sizes: log n_l of each one's label.
        nearest: The place of the nearest neighbour of each one's label.
    """

    scores: np.ndarray
    codes: np.ndarray
    log_sizes: np.ndarray
    nearest: np.ndarray

    def densities(self, temperature: float) -> Float[np.ndarray, "q k"]:
        """Return s_l in the column of each label's nearest neighbour, -inf in every other column."""
        scaled = self.scores / temperature
        # Seen from its own nearest neighbour no label vanishes, however far it is from another one.
        near = np.where(np.isfinite(scaled), scaled.ravel()[self.nearest], 0.0)
        shares = np.exp(scaled - near).ravel()
        mass = np.bincount(self.nearest.ravel(), weights=shares, minlength=near.size)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(mass).reshape(near.shape) + near - self.log_sizes)


@dataclass
class NeighbourModel:
    """Probabilities of labels from the distances and labels that a vector database returned.

    Attributes:
        metric: What the database returns: "cosine", "cosine-distance", "negative-cosine", "euclidean",
            "squared-euclidean", "elasticsearch", or "distance" for vectors that have no unit length.
        settings: What was learned, and from how many queries; None before `fit`.

    Examples:
        >>> evidence = NeighbourModel("cosine").fit(distances, labels, truth)  # doctest: +SKIP
        >>> evidence.posterior(distances_of_others, labels_of_others).label  # doctest: +SKIP
    """

    metric: str = "cosine"
    settings: VoteSettings | None = None

    def __post_init__(self) -> None:
        check_choice("metric", self.metric, METRICS)

    def fit(
        self, distances: Any, labels: Any, truth: Any, *, counts: Mapping[Any, int] | None = None
    ) -> "NeighbourModel":
        """Learn what neighbours say about labels, from labelled queries.

        Give `surefind.calibrate` other queries than these: on its own fitting queries any evidence looks
        better than it is.

        Args:
            distances: Distances or similarities, as the metric says, of each query's nearest items (q, k);
                lists of different lengths where fewer were found.
            labels: Theirs: strings or integers, None for an item without one.
            truth: The true label of each query (q); None or -1, or a label that the database does not
                have, for an unknown query. Without unknown queries the posterior has no "none".
            counts: How many items each label has in the database.

        Returns:
            Itself.

        Raises:
            InputError: If these do not fit together, or no query's label is in the database, or most
                queries are items of the database.
        """
        table = near, _, names = _read(distances, labels)
        there = np.isfinite(near)
        sizes = None if counts is None else _read_counts(counts, names)
        kinds = tuple(sorted({*map(_kind, names)}))
        made = VoteSettings(near.shape[1], int(there.sum(axis=1).min()), kinds, sizes)
        if self.metric == "distance":
            last = np.where(there, near, 0.0).max(axis=1)
            made = replace(made, unit=float(np.median(last)) or 1.0)
        votes = self._votes(made, table)
        real = label_values("truth", truth, count=len(near))
        items = {*names, *dict(sizes or ())}.difference(UNKNOWN)
        known = np.array([label in items for label in real])
        if not known.any():
            raise InputError(
                "no query has a true label that the items have (1 and '1' differ).", field="truth"
            )
        number = {name: code for code, name in enumerate(names)}
        own = np.array([number.get(label, -2) for label in real])  # -1 is an item without a label
        itself = ((votes.scores >= 1 - ITSELF) & (votes.codes == own[:, None])).any(axis=1)
        note = f"{itself.sum():,} of {len(own):,} queries have an item of their label at distance 0. If "
        note += "they are items of the database, leave these out: finding oneself teaches nothing."
        _refuse(itself & (2 * itself.sum() > len(own)), note, "distances")
        made = replace(made, **_fit_votes(votes, own, known))
        best = _largest(votes.densities(made.temperature), votes.codes >= 0)
        level, slope = _fit_none(*(best[some & np.isfinite(best)] for some in (known, ~known)))
        made = replace(made, enrolled=int(known.sum()), unknown=int((~known).sum()))
        notes = (note,) if itself.any() else ()
        self.settings = replace(made, none_level=level, none_slope=slope, notes=notes)
        return self

    def posterior(self, distances: Any, labels: Any) -> LabelPosterior:
        """Return the probabilities of the labels among each query's neighbours, and of none.

        Args:
            distances: As for `fit`, with as many neighbours per query; more are cut.
            labels: Theirs. A label that `fit` never saw can be the answer.

        Returns:
            At most 16 labels per query, each query's own, the most probable first.

        Raises:
            InputError: If a query has fewer neighbours than any had in `fit`, or labels of another kind.
        """
        made = self.settings
        if made is None:
            raise InputError("this NeighbourModel is not fitted. Call fit with labelled queries.")
        table = near, codes, names = _read(distances, labels)
        message = (
            f"fit had {made.fewest} to {made.neighbours} neighbours per query; search as many."
        )
        _refuse(np.isfinite(near).sum(axis=1) < made.fewest, message, "distances")
        other = np.array([*(_kind(name) not in made.kinds for name in names), False])[codes]
        message = f"the labels of fit were {' and '.join(made.kinds)} (1 and '1' differ)."
        _refuse(other.any(axis=1), message, "labels")
        votes = self._votes(made, table)
        density, labelled = votes.densities(made.temperature), votes.codes >= 0
        weights = made.sharpness * density + made.prior * votes.log_sizes
        answerable = np.where(labelled, weights, -np.inf)[:, :-1]
        order = np.argsort(-answerable, axis=1, kind="stable")[:, :LISTED]
        share = np.exp(np.take_along_axis(answerable, order, axis=1) - _log_sum(weights)[:, None])
        listed = np.where(share > 0, np.take_along_axis(votes.codes, order, axis=1), -1)
        columns = np.array([*names, None], dtype=object)[listed]
        if made.none_slope is None:
            return LabelPosterior(columns, share)
        logit = made.none_slope * (_largest(density, labelled) - made.none_level)
        return LabelPosterior(columns, share * _sigmoid(logit)[:, None], _sigmoid(-logit))

    def _votes(self, made: VoteSettings, table: Table) -> Votes:
        """Turn a table into as many neighbours per query as are wanted; refuse another metric's."""
        near, codes, names = table
        there, metric = np.isfinite(near), self.metric
        gaps = METRICS[metric](np.where(there, near, 0.0) / made.unit)
        odd = (gaps < -TOLERANCE) | ((gaps > 2 + TOLERANCE) & (metric != "distance"))
        odd |= (near < -TOLERANCE) & (metric in NEVER_NEGATIVE)
        message = f"no {metric} of unit vectors; name what was returned, or take 'distance'."
        _refuse((odd & there).any(axis=1), message, "distances")
        steps = np.diff(gaps, axis=1)[there[:, 1:] & there[:, :-1]]
        falling = not (steps > 0).any() and (steps < 0).sum() >= FALLS
        message = f"as {metric} they come from the farthest to the nearest: are these similarities "
        message += "called distances, or the other way round? Name the metric, or reverse the rows."
        _refuse(np.full(len(near), falling), message, "distances")
        gaps = np.where(there, np.maximum(gaps, 0.0), np.inf)
        order = np.argsort(gaps, axis=1, kind="stable")[:, : made.neighbours]
        scores, codes = (np.take_along_axis(x, order, axis=1) for x in (1 - gaps, codes))
        last = np.isfinite(scores).sum(axis=1, keepdims=True) - 1
        counts = dict(made.counts or ())
        usual = np.mean([*counts.values()]) if counts else 1  # of labels that were enrolled since
        sizes = np.log([*(counts.get(name, usual) for name in names), 1])[codes]
        more = np.where(bool(counts) & (sum(counts.values()) <= last + 1), -np.inf, 0.0)
        scores = np.hstack([scores, np.take_along_axis(scores, last, axis=1) + more])
        sizes = np.hstack([sizes, np.take_along_axis(sizes, last, axis=1)])
        codes = np.hstack([codes, np.full(last.shape, -1)])
        places = np.arange(codes.size).reshape(codes.shape)
        numbers = codes + places[:, :1] * (len(names) + 1)
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        nearest = np.where(codes < 0, places, first[inverse].reshape(codes.shape))
        return Votes(scores, codes, sizes, nearest)


def _largest(values: Float[np.ndarray, "q k"], which: np.ndarray) -> Float[np.ndarray, " q"]:
    return np.asarray(np.where(which, values, -np.inf).max(axis=1))


def _log_sum(weights: Float[np.ndarray, "q k"]) -> Float[np.ndarray, " q"]:
    top = weights.max(axis=1)
    return np.asarray(top + np.log(np.exp(weights - top[:, None]).sum(axis=1)))


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(-np.logaddexp(0.0, -logit)))


def _fit_votes(votes: Votes, own: Int[np.ndarray, " q"], known: np.ndarray) -> dict[str, Any]:
    """Return T, c and γ of least loss for the enrolled queries, whose labels have these codes."""
    from scipy.optimize import minimize_scalar  # type: ignore[import-untyped]

    n = int(known.sum())
    if n < LEAST:
        return {}
    right, sizes = (votes.codes == own[:, None])[known], votes.log_sizes[known]
    trials = []
    for temperature, prior in product(TEMPERATURES, PRIORS if sizes.any() else PRIORS[:1]):
        density = votes.densities(temperature)[known]

        def loss(
            log_sharpness: float, density: Any = density, at: Any = (temperature, prior)
        ) -> Any:
            weights = np.exp(log_sharpness) * density + at[1] * sizes
            total, rival = _log_sum(weights), _largest(weights, ~right)
            seen = np.minimum(total - _largest(weights, right), MOST_SURPRISE).mean()
            unseen = (total - rival)[np.isfinite(rival)].sum() / n / (n + 1)
            away = np.square(np.log([at[0], np.exp(log_sharpness)]) - np.log(USUAL)).sum()
            return seen + unseen + DOUBT * away + at[1] ** 2 / 2 / n

        found = minimize_scalar(loss, bounds=np.log(SHARPNESS), options={"xatol": 0.01})
        trials.append((found.fun, temperature, np.exp(found.x), prior))
    values = map(float, min(trials)[1:])
    return dict(zip(("temperature", "sharpness", "prior"), values, strict=True))


def _fit_none(
    inside: Float[np.ndarray, " n"], outside: Float[np.ndarray, " m"]
) -> tuple[float, float | None]:
    """Return a and b from the largest s_l of enrolled and of unknown queries; b is None without both."""
    from scipy.optimize import minimize

    n, m = len(inside), len(outside)
    if not n or not m:
        return 0.0, None
    values = np.concatenate([inside, outside])
    target = np.repeat([(n + 1) / (n + 2), 1 / (m + 2)], [n, m])
    centre, spread = float(values.mean()), max(float(values.std()), 1e-9)
    x = np.stack([np.ones(n + m), (values - centre) / spread])

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        logit = parameters @ x
        error = _sigmoid(logit) - target
        return float((np.logaddexp(0, logit) - target * logit).mean()), x @ error / (n + m)

    bounds = [(None, None), (1e-3, None)]
    bias, slope = minimize(loss, [0.0, 1.0], jac=True, bounds=bounds, method="L-BFGS-B").x
    return float(centre - bias * spread / slope), float(slope / spread)


def _refuse(wrong: Any, message: str, name: str) -> None:
    """Refuse a table in which any query is wrong, and say which are."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        raise InputError(f"{named_rows(rows)} of {len(wrong)} queries: {message}", field=name)


def _kind(name: Any) -> str:
    return "strings" if isinstance(name, str) else "integers"


def _read(distances: Any, labels: Any) -> Table:
    """Read what was found; refuse what does not fit together."""
    (numbers, shape), (flat, other) = _rows(distances), _rows(labels)
    flat = flat.tolist() if isinstance(flat, np.ndarray) else flat
    try:
        near = np.array(numbers, dtype=np.float64).reshape(shape)
        different = [*dict.fromkeys(flat)]  # few labels come often: each is read once
    except (TypeError, ValueError) as error:
        raise InputError("each neighbour needs a number and a label.", field="distances") from error
    if shape != other or not near.size:
        what = f"there are {shape} distances and {other} labels (queries, neighbours); give as many"
        raise InputError(what, field="labels" if near.size else "distances")
    read = label_values("labels", different)
    names = [*dict.fromkeys(label for label in read if label not in UNKNOWN)]
    number: dict[Any, int] = {name: code for code, name in enumerate(names)} | {None: -1, -1: -2}
    code = dict(zip(different, map(number.__getitem__, read), strict=True))
    codes = np.fromiter(map(code.__getitem__, flat), np.int64, len(flat)).reshape(shape)
    there, broken = np.isfinite(near), np.isnan(near) & (codes >= 0)
    _refuse(broken.any(axis=1), "a label without a number (NaN); leave it out.", "distances")
    _refuse(~there.any(axis=1), "there is no neighbour; leave the query out.", "distances")
    message = "an item has the label -1, which stands for unknown queries; use None for no label."
    _refuse((there & (codes == -2)).any(axis=1), message, "labels")
    return np.where(there, near, np.inf), np.where(there, codes, -1), names


def _rows(rows: Any) -> tuple[Any, tuple[int, ...]]:
    """Return the values of rows of one length, None where one is shorter, and their shape."""
    if not isinstance(rows, list | tuple) and (array := as_array(rows)).ndim == 2:
        return array.ravel(), array.shape
    lists = [x if isinstance(x, list | tuple) else as_array(x).ravel().tolist() for x in rows]
    width = max(map(len, lists), default=0)
    return [x for row in lists for x in [*row, *[None] * (width - len(row))]], (len(lists), width)


def _read_counts(counts: Mapping[Any, Any], names: list[Any]) -> tuple[tuple[Any, int], ...]:
    """Check how many items labels have; labels that have none are left out."""
    for name in [*names, *counts]:
        if not isinstance(n := counts.get(name), Integral) or n < (name in names):
            what = f"counts must say how many items each label has (1 and '1' differ); {name!r} has {n!r}."
            raise InputError(what, field="counts")
    read = zip(label_values("counts", [*counts]), map(int, counts.values()), strict=True)
    return tuple((name, n) for name, n in read if n)
