"""The object that decides: a posterior over labels and a promise, learned, renewed, saved and applied.

*Checked* queries, whose true label is known, were answered by their nearest items, wherever these were
found. A decider learns from them when an answer may be called a match, and then judges other queries by
their neighbours (`surefind.decisions.verdicts`). It knows nothing of where neighbours come from:

    a gallery       searches its own items, and holds a `Rule` (`surefind.gallery.calibrating`)
    any database    returned tables of distances and labels: `Decider.fit`, `Decider.decide`
                    (`surefind.decisions.tables`)

**Split.** The third of the checked queries that the calibration fits its probability to also fits the
posterior over labels in `Decider.fit`; nothing is fitted to the others, which test the thresholds. So the
promise is the calibration's: at most ``max_wrong`` of the matches are wrong, for queries like the checked
ones, in the database as it was searched. What was fitted needs the whole neighbourhood: search as many
neighbours later as in `fit`. (A gallery fits the posterior to its own items instead, and of the third only
learns how often labels are asked for, `learn_prior`: its items cannot say.)

**Renewal.** When items have come or gone, the checked queries are searched again: those whose label was
enrolled or removed change sides, and the same promise is tested on the same split. A gallery notices by
itself; nobody tells a decider of another database when it is time for `Decider.renew`.

Axes: ``q`` queries, ``k`` neighbours.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.checks import as_scores, check_choice, label_values
from surefind.decisions.calibration import (
    Calibration,
    Target,
    calibrate,
    draw_parts,
    draw_share,
    held_out_probability,
)
from surefind.decisions.decision import Gate, read_novelty
from surefind.decisions.label_posterior import LabelModel, Votes, fit_label_model, fit_prior
from surefind.decisions.tables import (
    ITSELF,
    METRICS,
    UNKNOWN,
    Reading,
    read_table,
)
from surefind.decisions.verdicts import (
    Checked,
    CheckedAnswers,
    Neighbours,
    Verdicts,
    answer_checked,
    judge,
)
from surefind.errors import InputError
from surefind.files import from_stored, to_stored, write_atomically


@dataclass(frozen=True)
class Rule:
    """What was learned: how votes become probabilities of labels, and from which on an answer is a match.

    Attributes:
        target: What is guaranteed.
        labels: The posterior over labels.
        calibration: Thresholds with a stated risk.
    """

    target: Target
    labels: LabelModel
    calibration: Calibration

    @classmethod
    def learn(
        cls,
        target: Target,
        answers: CheckedAnswers,
        labels: LabelModel,
        *,
        contributions: bool = False,
        notes: tuple[str, ...] = (),
    ) -> "Rule":
        """Learn from how checked queries were answered.

        Args:
            target: What to guarantee.
            answers: Of the checked queries.
            labels: The posterior over labels that they are by.
            contributions: Whether to measure what each signal adds, which takes most of the time.
            notes: What to keep in mind about the queries, a sentence each.

        Returns:
            What was learned.
        """
        how = asdict(target)
        del how["seed"]
        made = calibrate(
            answers.signals,
            answers.right,
            enrolled=answers.enrolled,
            novelty=answers.novelty,
            groups=answers.groups,
            contributions=contributions,
            rng=target.rng,
            **how,
        )
        return cls(target, labels, replace(made, notes=(*made.notes, *notes)))

    def renewed(
        self, answers: CheckedAnswers, labels: LabelModel, *, notes: tuple[str, ...] = ()
    ) -> "Rule":
        """Return the same guarantee by how the checked queries are answered now, in the same order.

        What each signal adds is not measured again.
        """
        before, rule = self.calibration, Rule.learn(self.target, answers, labels, notes=notes)
        kept = {"contributions": before.contributions, "renewals": before.renewals + 1}
        return replace(rule, calibration=replace(rule.calibration, **kept))  # type: ignore[arg-type]

    def held_out_probability(self, answers: CheckedAnswers) -> Float[np.ndarray, " q"]:
        """Return the probability of the checked queries that tested it, NaN for the others (q)."""
        return held_out_probability(
            self.calibration, answers.signals, novelty=answers.novelty, rng=self.target.rng
        )


@dataclass(frozen=True, eq=False)
class Tables:
    """What is kept where neighbours come as tables: how they are read, and the checked queries.

    Attributes:
        reading: Of the tables.
        checked: Their queries; what these found is not kept.
        drawn: Which of those that were given these are; None for all.
    """

    reading: Reading
    checked: Checked
    drawn: list[int] | None = None


@dataclass(frozen=True, eq=False)
class State:
    """All that a decider has learned, as it is saved."""

    metric: str
    rule: Rule
    tables: Tables


class Decider:
    """Match, review or no match, for neighbours from any database.

    Args:
        metric: What its numbers are, one of `surefind.decisions.tables.METRICS`.
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
        check_choice("metric", metric, METRICS)
        self.metric = metric
        self.target = Target(max_wrong, max_fpir, confidence, max_false_alarms, seed)
        self._state: State | None = None

    def __repr__(self) -> str:
        fitted = "not fitted" if self._state is None else f"{self.calibration.queries:,} queries"
        return f"Decider({self.metric!r}, max_wrong={self.target.max_wrong:g}; {fitted})"

    @property
    def calibration(self) -> Calibration:
        """What was found; its ``summary`` is in sentences."""
        return self._learned.rule.calibration

    def fit(
        self,
        distances: Any,
        labels: Any,
        truth: Any,
        *,
        counts: Mapping[Any, Any] | None = None,
        kappa: Any = None,
        novelty: Any = None,
        groups: Any = None,
        unknown_share: float | None = None,
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
            unknown_share: The share of unknown queries to expect, if it is another one than among these:
                queries are then left out at random until it is so.

        Returns:
            Itself.
        """
        table = read_table(distances, labels)
        reading = Reading.of(self.metric, table, counts)
        found = reading.neighbours_of(table)
        checked = _read_checked(truth, kappa, novelty, groups, found, reading)
        if unknown_share is not None:
            drawn = draw_share(~checked.enrolled, unknown_share, self.target.rng)
            found, checked = found.some(drawn), checked.some(drawn)
        notes = _notes(found, checked)
        model = _fit_labels(found, checked, _fitting_part(checked, self.target))
        rule = Rule.learn(self.target, answer_checked(found, checked, model), model, notes=notes)
        tables = Tables(reading, checked, None if unknown_share is None else drawn.tolist())
        self._state = State(self.metric, rule, tables)
        return self

    def renew(
        self, distances: Any, labels: Any, *, counts: Mapping[Any, Any] | None = None
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
        rule, tables = self._learned.rule, self._learned.tables
        before, checked, drawn = tables.reading, tables.checked, tables.drawn
        table = read_table(distances, labels)
        if drawn is not None and len(table) > drawn[-1]:
            table = table.some(np.array(drawn))
        if len(table) != len(checked.truth):
            raise InputError(
                f"{len(table)} queries were searched again, and {len(checked.truth)} were checked; search "
                "these, in the same order.",
                field="distances",
            )
        if (counts is None) != (before.counts is None):
            raise InputError("give counts to fit and to renew, or to neither.", field="counts")
        reading = Reading.of(self.metric, table, counts, unit=before.unit)
        found = reading.neighbours_of(table)
        checked = replace(checked, enrolled=reading.enrolled(checked.truth, table.names))
        answers = answer_checked(found, checked, rule.labels)
        rule = rule.renewed(answers, rule.labels, notes=_notes(found, checked))
        self._state = State(self.metric, rule, Tables(reading, checked, drawn))
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
            InputError: If the neighbours are fewer than `fit` had, their labels are of another kind, or
                what it had of queries is missing.
        """
        rule, tables = self._learned.rule, self._learned.tables
        reading, checked = tables.reading, tables.checked
        table = read_table(distances, labels)
        reading.check(table)
        found = reading.neighbours_of(table)
        sure = _read_kappa(kappa, len(table))
        had = np.isfinite(checked.kappa)
        if (had.all() and np.isinf(sure).any()) or (not had.any() and np.isfinite(sure).any()):
            what = "had a" if had.all() else "had no"
            raise InputError(
                f"the checked queries {what} kappa, so give it to fit and to decide, or to neither.",
                field="kappa",
            )
        return judge(found, sure, rule.labels, rule.calibration, novelty=novelty, groups=groups)

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` reads; the checked queries' neighbours are not in it."""
        text = json.dumps(to_stored(State, self._learned))
        write_atomically(path, text + "\n")

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
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {error}.", field="path") from error
        state = from_stored(State, stored, f"the decider in {path}")
        made = cls(state.metric, **asdict(state.rule.target))
        made._state = state
        return made

    @property
    def _learned(self) -> State:
        if self._state is None:
            raise InputError(
                "this decider knows nothing yet; call fit with checked queries, or Decider.load."
            )
        return self._state


def _read_kappa(kappa: Any, length: int) -> Float[np.ndarray, " q"]:
    if kappa is None:
        return np.full(length, np.inf)
    values = as_scores("kappa", kappa, length=length)
    if not (values >= 0).all():
        raise InputError(f"kappa must not be below 0; got {values.min():g}.", field="kappa")
    return values


def _read_checked(
    truth: Any, kappa: Any, novelty: Any, groups: Any, found: Neighbours, reading: Reading
) -> Checked:
    length = len(found)
    named = label_values("truth", truth, count=length)
    names = [None if name in UNKNOWN else name for name in named]
    return Checked(
        names,
        reading.enrolled(names, list(found.names)),
        _read_kappa(kappa, length),
        None if novelty is None else read_novelty(novelty, length),
        None if groups is None else label_values("groups", groups, count=length),
    )


def _notes(found: Neighbours, checked: Checked) -> tuple[str, ...]:
    """Return what to keep in mind about checked queries, a sentence each; refuse the items themselves."""
    length, notes = len(found), []
    own = np.array([*checked.truth, None], dtype=object)[:-1, None]
    names = np.array([*found.names, None], dtype=object)[found.votes.labels]
    itself = ((found.gaps <= ITSELF) & np.asarray(names == own, dtype=bool)).any(axis=1)
    met = int((itself & checked.enrolled).sum())
    if 2 * met > length:
        raise InputError(
            f"{met:,} of the {length:,} checked queries have an item of their own label at distance 0: "
            "they are items of the database, and to find oneself teaches nothing. Give queries that are "
            "not in it, or leave each one's own item out of its neighbours.",
            field="distances",
        )
    if met:
        notes.append(
            f"{met:,} of the queries have an item of their own label at distance 0. If they are items of "
            "the database, leave these out of their neighbours: nothing follows from finding oneself."
        )
    rows = np.concatenate([found.gaps, found.votes.labels], axis=1)
    if repeated := length - len(np.unique(rows, axis=0)):
        notes.append(
            f"{repeated:,} of the queries found just what another one found, so they may be the same; the "
            "promise takes all of them for independent."
        )
    return tuple(notes)


def _fitting_part(checked: Checked, target: Target) -> Int[np.ndarray, " s"]:
    """Return the rows that the calibration will fit its probability to."""
    through = np.ones(len(checked.truth), dtype=bool)
    if checked.novelty is not None:
        gate = Gate(float(target.max_false_alarms))
        through = np.asarray(gate.outcome(checked.novelty) == "pass")
    (rows, _), _ = draw_parts(through, target.rng)
    return rows


def learn_prior(
    model: LabelModel, found: Neighbours, checked: Checked, target: Target
) -> LabelModel:
    """Learn from checked queries how often labels are asked for, where the posterior is not fitted to them.

    Args:
        model: The posterior over labels.
        found: Neighbours of the queries.
        checked: What is known of them.
        target: Splits them as the calibration will, which tests on the others.

    Returns:
        The posterior with another γ.
    """
    some, truth = _fitting(found, checked, _fitting_part(checked, target))
    known = truth >= 0
    return fit_prior(some.some(known), truth[known], model)


def _fitting(
    found: Neighbours, checked: Checked, rows: Int[np.ndarray, " s"]
) -> tuple[Votes, Int[np.ndarray, " s"]]:
    """Return neighbours and labels of some of the queries, -1 for one that is not enrolled or not found."""
    number = {name: code for code, name in enumerate(found.names)}
    truth = np.array([number.get(checked.truth[row], -1) for row in rows], dtype=np.int64)
    return found.votes.some(rows), np.where(checked.enrolled[rows], truth, -1)


def _fit_labels(found: Neighbours, checked: Checked, rows: Int[np.ndarray, " s"]) -> LabelModel:
    """Fit the posterior over labels to some of the queries."""
    some, truth = _fitting(found, checked, rows)
    known = truth >= 0
    return fit_label_model(some.some(known), truth[known], some.some(~known), as_asked=True)
