"""Decisions on neighbours that any search returned: no gallery, no network.

A database has answered *checked* queries, whose true label is known, with their nearest items.
`Decider.fit` learns from them what a gallery learns: how votes become a posterior over labels
(`surefind.decisions.label_posterior`), and from which probability on its answer is a match
(`surefind.decisions.calibration`). `Decider.decide` then judges what the database returns for others.

**Scores.** Whatever a database calls near becomes g = 1 - cosine of unit vectors:

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

**Split.** The third of the checked queries that the calibration fits its probability to also fits the
posterior over labels; nothing is fitted to the others, which test the thresholds. So the promise is the
calibration's: at most ``max_wrong`` of the matches are wrong, for queries like the checked ones, in the
database as it was searched. What was fitted needs the whole neighbourhood: search as many neighbours later
as in `fit`.

**Sizes.** n_l, how many items a label has in the database, keeps labels with many items from outvoting
others. Without ``counts`` all labels are taken to have the same number.

**Renewal.** When items have come or gone, search the checked queries again and give `Decider.renew` what
was found: queries whose label was enrolled or removed change sides, and the same promise is tested on the
same split. A decider cannot see the database, so nobody is told when it is time.

Axes: ``q`` queries, ``k`` neighbours.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.arrays import as_array, as_scores
from surefind.decisions.calibration import Calibration, calibrate
from surefind.decisions.gate import Gate, read_novelty
from surefind.decisions.groups import draw_parts
from surefind.decisions.label_posterior import (
    LabelModel,
    Votes,
    fit_label_model,
    label_numbers,
    label_posterior,
)
from surefind.decisions.verdicts import Verdicts, candidate_labels, judge, signals_of
from surefind.dependencies import require
from surefind.errors import DegenerateError, InputError
from surefind.files import write_atomically

FORMAT = 1
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


@dataclass(frozen=True, eq=False)
class Neighbours:
    """What a database returned, in one form.

    Attributes:
        gaps: 1 - cosine, rising (q, k); infinite where there are fewer.
        codes: Numbers of the labels (q, k), -1 for none.
        names: The labels that these number.
    """

    gaps: np.ndarray
    codes: np.ndarray
    names: list[Any]

    def votes(self, counts: Mapping[Any, int] | None) -> Votes:
        """Let the neighbours vote.

        Args:
            counts: How many items each label has; None if nobody knows.

        Returns:
            The votes by cosine.
        """
        sizes = np.ones(len(self.names) + 1, dtype=np.int64)
        if counts is not None:
            sizes[:-1] = [max(counts.get(name, 1), 1) for name in self.names]
        # Nobody knows how many more there are; that there are more matters, not how many.
        unseen = 1 if counts is None else max(sum(counts.values()) - self.gaps.shape[1], 0)
        return Votes(1 - self.gaps, self.codes, sizes[self.codes], unseen)


@dataclass(frozen=True, eq=False)
class Checked:
    """What is kept of the checked queries, for renewals.

    Attributes:
        truth: Their labels; None if nothing in the database belongs to them.
        kappa: Their concentrations (q).
        novelty: Their p-values (q), or None.
        groups: Their groups, or None.
    """

    truth: list[Any]
    kappa: np.ndarray
    novelty: np.ndarray | None
    groups: list[Any] | None

    def passing(self, gate: Gate) -> Bool[np.ndarray, " q"]:
        """Return which queries a gate lets through."""
        if self.novelty is None:
            return np.ones(len(self.truth), dtype=bool)
        return np.asarray(gate.outcome(self.novelty) == "pass")


@dataclass(frozen=True)
class Rule:
    """What was fitted.

    Attributes:
        labels: How votes become probabilities of labels.
        calibration: From which probability on an answer is a match.
        neighbours: How many each query had.
        unit: u, of any other distance; 1 where the metric has its own.
        counts: How many items each label had; None if nobody knew.
        renewals: How often it was renewed since `Decider.fit`.
    """

    labels: LabelModel
    calibration: Calibration
    neighbours: int
    unit: float
    counts: Mapping[Any, int] | None
    renewals: int


class Decider:
    """Match, review or no match, for neighbours from any database.

    Args:
        metric: What its numbers are, one of `METRICS`.
        max_wrong: The highest fraction of wrong answers among matches.
        max_fpir: The highest share of unknown queries that may be a match, promised as well; None for no
            promise about them.
        confidence: With what probability both are kept.
        max_false_alarms: Where queries have a novelty: highest fraction of inputs like those of the
            training that the gate stops.
        seed: Splits the checked queries.
    """

    def __init__(
        self,
        metric: str = "cosine",
        *,
        max_wrong: float = 0.01,
        max_fpir: float | None = None,
        confidence: float = 0.95,
        max_false_alarms: float = 0.01,
        seed: int = 0,
    ) -> None:
        if metric not in METRICS:
            raise InputError(
                f"metric must be one of {', '.join(METRICS)}; got {metric!r}.", field="metric"
            )
        self.metric = metric
        self.max_wrong = max_wrong
        self.max_fpir = max_fpir
        self.confidence = confidence
        self.max_false_alarms = max_false_alarms
        self.seed = seed
        self._rule: Rule | None = None
        self._checked: Checked | None = None

    def __repr__(self) -> str:
        fitted = "not fitted" if self._rule is None else f"{self.calibration.queries:,} queries"
        return f"Decider({self.metric!r}, max_wrong={self.max_wrong:g}; {fitted})"

    @property
    def calibration(self) -> Calibration:
        """What was found; its ``summary`` is in sentences."""
        return self._fitted.calibration

    @property
    def label_model(self) -> LabelModel:
        """How neighbours' votes become probabilities of labels."""
        return self._fitted.labels

    @property
    def renewals(self) -> int:
        """How often it was renewed since `fit`."""
        return self._fitted.renewals

    def fit(
        self,
        distances: Any,
        labels: Any,
        truth: Any,
        *,
        counts: Mapping[Any, int] | None = None,
        kappa: Any = None,
        novelty: Any = None,
        groups: Any = None,
    ) -> "Decider":
        """Learn from checked queries when an answer may be called a match.

        Args:
            distances: Distances or similarities, as the metric says, of each query's nearest items (q, k);
                lists of different lengths where fewer were found.
            labels: Theirs: strings or integers, None for an item without one.
            truth: The true label of each query (q); None or -1, or a label that the database does not
                have, for one that nothing there belongs to. Give some of these: without them nothing is
                promised about them.
            counts: How many items each label has in the database.
            kappa: Concentration of each query (q), if it is known.
            novelty: p-value of each query (q), if it is known.
            groups: A group for each query (q), for thresholds of their own.

        Returns:
            Itself.

        Raises:
            DegenerateError: If nothing was found, or there are too few queries.
        """
        require("scipy", "fit a decider", extra="decisions")
        near, codes = _read(distances, labels)
        unit = 1.0
        if self.metric == "distance":
            last = np.where(np.isfinite(near), near, -np.inf).max(axis=1)
            unit = float(np.median(last[np.isfinite(last)])) or 1.0
        checked = self._read_checked(truth, kappa, novelty, groups, len(near))
        known = None if counts is None else dict(counts)
        found = _neighbours(self.metric, near, codes, unit)
        (rows, _), _ = draw_parts(checked.passing(self._gate), self._rng)
        model = _fit_labels(found, checked, known, rows)
        self._checked = checked
        self._rule = self._calibrated(found, checked, model, unit, known, renewals=0)
        return self

    def renew(
        self, distances: Any, labels: Any, *, counts: Mapping[Any, int] | None = None
    ) -> "Decider":
        """Make the same promise for the database as it is now.

        Args:
            distances: As for `fit`, of the same queries in the same order, searched again.
            labels: Theirs.
            counts: How many items each label has now; needed if `fit` had it.

        Returns:
            Itself.

        Raises:
            InputError: If these are not as many queries as were checked.
        """
        rule, checked = self._fitted, self._checked
        assert checked is not None
        near, codes = _read(distances, labels)
        if len(near) != len(checked.truth):
            raise InputError(
                f"{len(near)} queries were searched again, and {len(checked.truth)} were checked; search "
                "these, in the same order.",
                field="distances",
            )
        if (counts is None) != (rule.counts is None):
            raise InputError("give counts to fit and to renew, or to neither.", field="counts")
        found = _neighbours(self.metric, near, codes, rule.unit)
        self._rule = self._calibrated(
            found,
            checked,
            rule.labels,
            rule.unit,
            None if counts is None else dict(counts),
            renewals=rule.renewals + 1,
        )
        return self

    def decide(
        self,
        distances: Any,
        labels: Any,
        *,
        kappa: Any = None,
        novelty: Any = None,
        groups: Any = None,
    ) -> Verdicts:
        """Say which label each query has, how probable that is, and whether it is a match.

        Args:
            distances: As for `fit`, as many neighbours a query.
            labels: Theirs.
            kappa: Concentration of each query; needed if `fit` had it.
            novelty: p-value of each query; needed if `fit` had it.
            groups: The group of each query.

        Returns:
            One verdict a query.

        Raises:
            InputError: If the neighbours are fewer than `fit` had, or what it had of queries is missing.
        """
        rule = self._fitted
        near, codes = _read(distances, labels)
        if near.shape[1] < rule.neighbours:
            raise InputError(
                f"each query has {near.shape[1]} neighbours at most and {rule.neighbours} were learned "
                f"from; search {rule.neighbours}, or fit with fewer.",
                field="distances",
            )
        found = _neighbours(self.metric, near, codes, rule.unit, most=rule.neighbours)
        sure = self._read_kappa(kappa, len(near))
        assert self._checked is not None
        had = np.isfinite(self._checked.kappa)
        if (had.all() and np.isinf(sure).any()) or (not had.any() and np.isfinite(sure).any()):
            what = "had a" if had.all() else "had no"
            raise InputError(
                f"the checked queries {what} kappa, so give it to fit and to decide, or to neither.",
                field="kappa",
            )
        return judge(
            found.votes(rule.counts),
            found.gaps,
            found.names,
            sure,
            rule.labels,
            rule.calibration,
            novelty=novelty,
            groups=groups,
        )

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` reads; the checked queries' neighbours are not in it."""
        rule, checked = self._fitted, self._checked
        assert checked is not None
        plain = {
            "format": FORMAT,
            "options": self._options(),
            "rule": asdict(rule)
            | {
                "calibration": rule.calibration.to_json(),
                "counts": None if rule.counts is None else [*rule.counts.items()],
            },
            "checked": {
                "truth": checked.truth,
                "kappa": [None if np.isinf(x) else x for x in checked.kappa.tolist()],
                "novelty": None if checked.novelty is None else checked.novelty.tolist(),
                "groups": checked.groups,
            },
        }
        text = json.dumps(plain, sort_keys=True, allow_nan=False)
        whole = {"decider": plain, "sha256": _checksum(text)}
        write_atomically(path, json.dumps(whole, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Decider":
        """Read what `save` wrote.

        Args:
            path: The file.

        Returns:
            An equal decider.

        Raises:
            InputError: If it is no such file, or was changed.
        """
        try:
            whole = json.loads(Path(path).read_text(encoding="utf-8"))
            plain = whole["decider"]
            text = json.dumps(plain, sort_keys=True, allow_nan=False)
            if plain["format"] != FORMAT or whole["sha256"] != _checksum(text):
                raise InputError("it was changed, or is of another version.")
            rule, checked = plain["rule"], plain["checked"]
            decider = cls(**plain["options"])
            decider._rule = Rule(
                **rule
                | {
                    "labels": LabelModel(**rule["labels"]),
                    "calibration": Calibration.from_json(rule["calibration"]),
                    "counts": None if rule["counts"] is None else dict(rule["counts"]),
                }
            )
            decider._checked = Checked(
                checked["truth"],
                np.array([np.inf if x is None else x for x in checked["kappa"]]),
                None if checked["novelty"] is None else np.array(checked["novelty"]),
                checked["groups"],
            )
        except FileNotFoundError as error:
            raise InputError(f"there is no {path}.", field="path") from error
        except (OSError, ValueError, KeyError, TypeError) as error:  # an InputError is a ValueError
            raise InputError(
                f"{path} is no decider that can be used: {error} Fit it again.", field="path"
            ) from error
        return decider

    @property
    def _fitted(self) -> Rule:
        if self._rule is None:
            raise InputError(
                "this decider knows nothing yet; call fit with checked queries, or Decider.load."
            )
        return self._rule

    @property
    def _gate(self) -> Gate:
        return Gate(float(self.max_false_alarms))

    @property
    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def _options(self) -> dict[str, Any]:
        names = ("metric", "max_wrong", "max_fpir", "confidence", "max_false_alarms", "seed")
        return {name: getattr(self, name) for name in names}

    def _read_kappa(self, kappa: Any, length: int) -> Float[np.ndarray, " q"]:
        if kappa is None:
            return np.full(length, np.inf)
        return as_scores("kappa", kappa, length=length)

    def _read_checked(
        self, truth: Any, kappa: Any, novelty: Any, groups: Any, length: int
    ) -> Checked:
        names = [None if name in UNKNOWN else name for name in _plain(truth)]
        if len(names) != length:
            raise InputError(
                f"truth has {len(names)} labels for {length} queries; give one each.", field="truth"
            )
        return Checked(
            names,
            self._read_kappa(kappa, length),
            None if novelty is None else read_novelty(novelty, length),
            None if groups is None else _plain(groups),
        )

    def _calibrated(
        self,
        found: Neighbours,
        checked: Checked,
        model: LabelModel,
        unit: float,
        counts: Mapping[Any, int] | None,
        *,
        renewals: int,
    ) -> Rule:
        votes = found.votes(counts)
        posterior = label_posterior(votes, model)
        answer = candidate_labels(posterior, votes, found.names)[:, 0]
        truth = np.empty(len(answer), dtype=object)
        truth[:] = checked.truth
        there = set(found.names) if counts is None else {name for name, n in counts.items() if n}
        enrolled = np.array([name is not None and name in there for name in checked.truth])
        calibration = calibrate(
            signals_of(votes, found.gaps, checked.kappa, posterior),
            enrolled & np.asarray(answer == truth, dtype=bool),
            enrolled=enrolled,
            novelty=checked.novelty,
            groups=checked.groups,
            max_wrong=self.max_wrong,
            max_fpir=self.max_fpir,
            confidence=self.confidence,
            max_false_alarms=self.max_false_alarms,
            contributions=False,
            rng=self._rng,
        )
        return Rule(model, calibration, found.gaps.shape[1], unit, counts, renewals)


def _fit_labels(
    found: Neighbours,
    checked: Checked,
    counts: Mapping[Any, int] | None,
    rows: Int[np.ndarray, " s"],
) -> LabelModel:
    """Fit the posterior over labels to some of the queries."""
    votes = found.votes(counts)
    number = {name: code for code, name in enumerate(found.names)}
    truth = np.array([number.get(checked.truth[row], -1) for row in rows], dtype=np.int64)
    some = Votes(votes.scores[rows], votes.labels[rows], votes.sizes[rows], votes.unseen)
    known = truth >= 0
    return fit_label_model(some.some(known), truth[known], some.some(~known))


def _neighbours(
    metric: str,
    near: Float[np.ndarray, "q k"],
    labels: np.ndarray,
    unit: float,
    *,
    most: int | None = None,
) -> Neighbours:
    """Turn what a database returned into gaps that rise."""
    there = np.isfinite(near)
    with np.errstate(invalid="ignore"):
        gaps = np.where(there, METRICS[metric](np.where(there, near, 0.0) / unit), np.inf)
    low, high = -TOLERANCE, np.inf if metric == "distance" else 2 + TOLERANCE
    odd = there & ((gaps < low) | (gaps > high))
    if odd.any():
        raise InputError(
            f"{near[odd][0]:g} is no {metric} of unit vectors. Name the metric that the database "
            "returned, or take 'distance' for the distances of vectors of any length.",
            field="distances",
        )
    order = np.argsort(gaps, axis=1, kind="stable")[:, :most]
    codes, names = label_numbers(np.take_along_axis(labels, order, axis=1))
    return Neighbours(np.maximum(np.take_along_axis(gaps, order, axis=1), 0.0), codes, names)


def _read(distances: Any, labels: Any) -> tuple[Float[np.ndarray, "q k"], np.ndarray]:
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
    lists = [_plain(row) for row in rows]
    table = np.full((len(lists), max(map(len, lists), default=0)), nothing, dtype=object)
    for i, row in enumerate(lists):
        table[i, : len(row)] = row
    return table


def _plain(values: Any) -> list[Any]:
    """Return a column as a list of Python's own values."""
    return list(values) if isinstance(values, (list, tuple)) else as_array(values).tolist()


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
