"""Match, review or no match: one answer a query, with the reasons for it.

    match      probability >= threshold
    no_match   probability <  floor, and < threshold
    review     what lies between

A threshold of infinity stands for none: nothing is a match.

Axes: ``q`` queries.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from surefind.decisions.probability import MatchProbability
from surefind.decisions.reasons import ReasonLimits, give_reasons
from surefind.decisions.signals import Signals


@dataclass(frozen=True, eq=False)
class Decisions:
    """What to do with each query.

    Attributes:
        probability: That the top answer is right (q).
        decision: "match", "review" or "no_match" (q).
        reasons: None for a match, at least one for the others.
    """

    probability: np.ndarray
    decision: np.ndarray
    reasons: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.probability)


def decide(
    model: MatchProbability,
    limits: ReasonLimits,
    signals: Signals,
    *,
    threshold: Float[np.ndarray, " q"],
    floor: float,
) -> Decisions:
    """Answer each query.

    Args:
        model: The probability that a top answer is right.
        limits: Limits of the reasons.
        signals: Signals of the queries.
        threshold: Least probability of a match, for each query.
        floor: Below it there is no match.

    Returns:
        A decision with reasons for each query.
    """
    probability = model(signals)
    decision = np.where(
        probability >= threshold,
        "match",
        np.where(probability < np.minimum(floor, threshold), "no_match", "review"),
    )
    reasons = give_reasons(limits, signals, model.parts(signals), decision, np.isfinite(threshold))
    return Decisions(probability, decision, reasons)
