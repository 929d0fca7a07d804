"""What is said about queries from their neighbours: labels, probabilities and, calibrated, decisions.

The one way from neighbours to a verdict, for a gallery as for `surefind.Decider`:

    votes → posterior over labels → signals → probability that the answer is right → decision and reasons

Axes: ``q`` queries, ``k`` neighbours, ``c`` candidates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.decisions.calibration import Calibration
from surefind.decisions.label_posterior import LabelModel, LabelPosterior, Votes, label_posterior
from surefind.decisions.signals import Signals, measured_signals

SHOWN = 2
"""Labels that a split names."""


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
    votes: Votes,
    gaps: Float[np.ndarray, "q k"],
    names: Sequence[Any],
    kappa: Float[np.ndarray, " q"],
    model: LabelModel,
    calibration: Calibration | None,
    *,
    novelty: Any = None,
    groups: Any = None,
) -> Verdicts:
    """Say which labels queries have and, with a calibration, decide about them.

    Args:
        votes: Their neighbours.
        gaps: 1 - cosine of these, rising; infinite where there is none.
        names: The labels that the votes number.
        kappa: The queries' concentrations, infinite where none is known.
        model: The posterior over labels.
        calibration: When an answer is a match; None to decide nothing.
        novelty: p-value of each query; needed if the calibration has a gate.
        groups: The group of each query, if the calibration had groups.

    Returns:
        One verdict a query.
    """
    posterior = label_posterior(votes, model)
    called = candidate_labels(posterior, votes, names)
    known = Verdicts(called[:, 0], called, posterior.probability, posterior.none)
    if calibration is None:
        return known
    signals = signals_of(votes, gaps, kappa, posterior)

    def rivals(query: int) -> str:
        # Among the labels: how many are enrolled is another question than which of them it is.
        among = posterior.probability[query] / max(1 - float(posterior.none[query]), 1e-300)
        listed = zip(among[:SHOWN].tolist(), called[query, :SHOWN], strict=True)
        return ", ".join(f"{p:.2f} {name}" for p, name in listed if p)

    found = calibration.decide(signals, groups, novelty=novelty, rivals=rivals)
    nameless = posterior.candidates[:, 0] < 0
    return Verdicts(**vars(known) | vars(found.without(nameless) if nameless.any() else found))


def candidate_labels(posterior: LabelPosterior, votes: Votes, names: Sequence[Any]) -> np.ndarray:
    """Return the candidates' labels as objects (q, c); None where there are fewer."""
    called = np.empty(len(names) + 1, dtype=object)
    called[:-1] = names
    columns = posterior.candidates
    there = columns >= 0
    numbers = votes.labels[np.arange(len(columns))[:, None], columns]
    return called[numbers if there.all() else np.where(there, numbers, -1)]


def signals_of(
    votes: Votes,
    gaps: Float[np.ndarray, "q k"],
    kappa: Float[np.ndarray, " q"],
    posterior: LabelPosterior,
) -> Signals:
    """Compute each query's signals: distances are those of the unit vectors."""
    distances = np.sqrt(2 * gaps)
    if not votes.complete:
        distances = np.where(votes.there, distances, np.inf)
    return measured_signals(kappa, distances, votes.labels, posterior)
