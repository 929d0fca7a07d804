"""What a calibration found, in sentences."""

import numpy as np
from jaxtyping import Bool

from surefind.decisions.groups import GroupThreshold
from surefind.decisions.risk import RiskCurve


def result_sentence(
    curve: RiskCurve, *, max_wrong: float, confidence: float, more_queries: int | None
) -> str:
    """Say whether the target was reached, and if not, what would help.

    Args:
        curve: What the thresholds gave.
        max_wrong: Highest wrong-match rate allowed.
        confidence: With what probability.
        more_queries: How many more calibration queries are needed; None if more would not help.

    Returns:
        A few sentences.
    """
    target = f"{max_wrong:.2%} wrong matches with {confidence:.0%} confidence"
    i = curve.chosen
    if i is not None:
        text = (
            f"Target reached: {target}. From a probability of {curve.thresholds[i]:.4f} up "
            f"an answer is a match: {curve.accepted[i]:,} held-out queries ({curve.coverage[i]:.1%}), "
            f"{curve.wrong[i]:,} of them wrong, at most {curve.upper_bound[i]:.2%} "
            "in truth."
        )
    elif more_queries is not None:
        text = (
            f"Target not reached: {target}. Nothing is answered as a match. At the error rates "
            f"seen, about {more_queries:,} more calibration queries are needed."
        )
    else:
        lowest = min((curve.wrong_rate[i] for i in curve.telling), default=1.0)
        text = (
            f"Target not reached: {target}. Nothing is answered as a match, and more queries like "
            f"these will not help: at every threshold at least {lowest:.2%} of the answers were "
            "wrong. Allow a higher max_wrong, or improve the embeddings or the gallery."
        )
    return text


def calibration_notes(
    right: Bool[np.ndarray, " q"], enrolled: Bool[np.ndarray, " q"], groups: list[GroupThreshold]
) -> tuple[str, ...]:
    """Say what to keep in mind: what the calibration queries did not show.

    Args:
        right: Which answers are right.
        enrolled: Which queries have their label in the gallery.
        groups: Thresholds of groups.

    Returns:
        A sentence each.
    """
    notes = []
    if enrolled.all():
        notes.append(
            "No unknown queries were calibrated on, so the promise does not cover queries whose label "
            "is not in the gallery."
        )
    if not enrolled.any():
        notes.append("All calibration queries were unknown: no answer could be right.")
    if right.all():
        notes.append("All answers were right, so nothing was learned about how wrong ones look.")
    notes += [
        f"Group {group.name}: {group.wrong} of {group.accepted} matches would be wrong at the common "
        "threshold, so nothing in it is a match."
        for group in groups
        if group.status == "refused"
    ]
    return tuple(notes)
