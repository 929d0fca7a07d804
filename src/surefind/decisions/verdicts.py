"""What is said about queries from their neighbours: labels, probabilities and, calibrated, decisions.

The one way from neighbours to a verdict, wherever they were found:

    votes → posterior over labels → signals → probability that the answer is right → decision and reasons

Axes: ``q`` queries, ``k`` neighbours, ``c`` candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.decisions.calibration import Calibration
from surefind.decisions.label_posterior import LabelModel, LabelPosterior, Votes, label_posterior
from surefind.decisions.probability import Signals, neighbour_signals
from surefind.files import Array

SHOWN = 2
"""Labels that a split names."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The neighbours of some queries, wherever they were found.

    Attributes:
        votes: Their scores and labels.
        gaps: 1 - cosine of these, rising (q, k); infinite where there is none.
        names: The labels that the votes number.
    """

    votes: Votes
    gaps: np.ndarray
    names: Sequence[Any]

    def __len__(self) -> int:
        return len(self.votes)

    def some(self, rows: Int[np.ndarray, " r"]) -> "Neighbours":
        """Return the neighbours of some of the queries."""
        return Neighbours(self.votes.some(rows), self.gaps[rows], self.names)


@dataclass(frozen=True, eq=False)
class Checked:
    """Queries whose true label is known, as far as judging them goes.

    Attributes:
        truth: Their labels (q), None where no label is right.
        enrolled: Which of these a neighbour could have (q).
        kappa: Their concentrations (q), infinite where none is known.
        novelty: Their p-values (q), or None.
        groups: Their groups, or None.
    """

    truth: Sequence[str | int | None]
    enrolled: Array
    kappa: Array
    novelty: Array | None
    groups: Sequence[Any] | None

    def some(self, rows: Int[np.ndarray, " r"]) -> "Checked":
        """Return some of them."""
        return Checked(
            [self.truth[row] for row in rows],
            self.enrolled[rows],
            self.kappa[rows],
            None if self.novelty is None else self.novelty[rows],
            None if self.groups is None else [self.groups[row] for row in rows],
        )


@dataclass(frozen=True, eq=False)
class CheckedAnswers:
    """How checked queries were answered: all that a promise is made of.

    Attributes:
        signals: Theirs.
        answer: The most probable label of each (q).
        right: Whether it is the query's (q).
        enrolled: Whether the query's label could be found at all (q).
        novelty: Their p-values (q), or None.
        groups: Their groups, or None.
    """

    signals: Signals
    answer: np.ndarray
    right: np.ndarray
    enrolled: np.ndarray
    novelty: np.ndarray | None
    groups: Sequence[Any] | None

    def __len__(self) -> int:
        return len(self.signals)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What is known about each query; the last four are None without a calibration.

    Attributes:
        label: The most probable label (q); None where no neighbour has one.
        candidates: At most five labels, the most probable first (q, c); None where there are fewer.
        label_probability: Theirs, by the neighbourhood alone (q, c).
        none: That no enrolled label is right, by the neighbourhood alone (q).
        probability: That the label is right, as calibrated (q).
        decision: "match", "review" or "no_match" (q).
        reasons: Why it is no match; none for a match.
        gate: What the novelty says: "unlike", "unusual" or "pass" (q); None without a gate.
    """

    label: np.ndarray
    candidates: np.ndarray
    label_probability: np.ndarray
    none: np.ndarray
    probability: np.ndarray | None = None
    decision: np.ndarray | None = None
    reasons: list[tuple[str, ...]] | None = None
    gate: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.none)


def judge(
    found: Neighbours,
    kappa: Float[np.ndarray, " q"],
    model: LabelModel,
    calibration: Calibration | None,
    *,
    novelty: Any = None,
    groups: Any = None,
) -> Verdicts:
    """Say which labels queries have and, with a calibration, decide about them.

    Args:
        found: Their neighbours.
        kappa: The queries' concentrations, infinite where none is known.
        model: The posterior over labels.
        calibration: When an answer is a match; None to decide nothing.
        novelty: p-value of each query; needed if the calibration has a gate.
        groups: The group of each query, if the calibration had groups.

    Returns:
        One verdict a query.
    """
    posterior = label_posterior(found.votes, model)
    called = candidate_labels(posterior, found)
    known = Verdicts(called[:, 0], called, posterior.probability, posterior.none)
    if calibration is None:
        return known
    signals = signals_of(found, kappa, posterior)
    rivals = partial(_rivals, posterior, called)
    decided = calibration.decide(signals, groups, novelty=novelty, rivals=rivals)
    nameless = posterior.candidates[:, 0] < 0
    return Verdicts(**vars(known) | vars(decided.without(nameless) if nameless.any() else decided))


def _rivals(
    posterior: LabelPosterior, called: np.ndarray, rows: Int[np.ndarray, " r"]
) -> list[str]:
    """Name the labels that compete for some queries, with their shares."""
    # Among the labels: how many are enrolled is another question than which of them it is.
    some = np.maximum(1 - posterior.none[rows], 1e-300)[:, None]
    among = (posterior.probability[rows, :SHOWN] / some).tolist()
    return [
        ", ".join([f"{p:.2f} {name}" for p, name in zip(*row, strict=True) if p])
        for row in zip(among, called[rows, :SHOWN].tolist(), strict=True)
    ]


def answer_checked(found: Neighbours, queries: Checked, model: LabelModel) -> CheckedAnswers:
    """Answer queries whose label is known, and say which answers are right."""
    posterior = label_posterior(found.votes, model)
    answer = candidate_labels(posterior, found)[:, 0]
    truth = np.empty(len(answer), dtype=object)
    truth[:] = queries.truth
    return CheckedAnswers(
        signals_of(found, queries.kappa, posterior),
        answer,
        queries.enrolled & np.asarray(answer == truth, dtype=bool),
        queries.enrolled,
        queries.novelty,
        queries.groups,
    )


def candidate_labels(posterior: LabelPosterior, found: Neighbours) -> np.ndarray:
    """Return the candidates' labels as objects (q, c); None where there are fewer."""
    called = np.empty(len(found.names) + 1, dtype=object)
    called[:-1] = found.names
    columns = posterior.candidates
    there = columns >= 0
    numbers = found.votes.labels[np.arange(len(columns))[:, None], columns]
    return np.asarray(called[numbers if there.all() else np.where(there, numbers, -1)])


def signals_of(
    found: Neighbours, kappa: Float[np.ndarray, " q"], posterior: LabelPosterior
) -> Signals:
    """Compute each query's signals: distances are those of the unit vectors."""
    votes, distances = found.votes, np.sqrt(2 * found.gaps)
    if not votes.complete:
        distances = np.where(votes.there, distances, np.inf)
    return neighbour_signals(kappa, distances, votes.labels, posterior)
