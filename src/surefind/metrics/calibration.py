"""Calibration of confidences: expected calibration error (ECE), reliability curve, vote agreement.

The interval [0, 1] is cut into ``bins`` equal bins B, each closed below and open above, **the last one
closed at 1** (a half-open last bin would silently drop every fully confident query). Then

    ECE = Σ_B |B| / n · | accuracy(B) - mean confidence(B) |

with weights that sum to one (the paper prints 1/|B|: a slip). A confidence that rounding moved below
a bin's lower edge counts as on the edge, so float32 and float64 give one answer.

Confidence comes from `agreement`: embed everything under ``s`` sampled models, look at the label of
each query's nearest neighbour under each, and take the most frequent label and the fraction that agree.

Axes: ``n`` queries, ``b`` bins, ``s`` samples.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.checks import as_array, as_correct, as_scores, check_int, complete_labels
from surefind.errors import DegenerateError, InputError


@dataclass(frozen=True, eq=False)
class CalibrationCurve:
    """Mean confidence and accuracy, bin by bin.

    Attributes:
        edges: Bounds of the bins (b + 1), from 0 to 1.
        confidence: Mean confidence in each bin (b); NaN where it is empty.
        accuracy: Fraction of correct answers in each bin (b); NaN where it is empty.
        counts: Number of queries in each bin (b).
    """

    edges: Float[np.ndarray, " edges"]
    confidence: Float[np.ndarray, " b"]
    accuracy: Float[np.ndarray, " b"]
    counts: Int[np.ndarray, " b"]


def ece(confidence: Any, correct: Any, bins: int = 10) -> float:
    """Compute the expected calibration error of confidences (n) between 0 and 1, in equal bins."""
    curve = calibration_curve(confidence, correct, bins)
    full = curve.counts > 0
    gap = np.abs(curve.accuracy[full] - curve.confidence[full])
    return float((curve.counts[full] * gap).sum() / curve.counts.sum())


def calibration_curve(confidence: Any, correct: Any, bins: int = 10) -> CalibrationCurve:
    """Compare confidence (n), between 0 and 1, and accuracy in equal bins."""
    check_int("bins", bins, least=1)
    scores, right, rounding = _checked(confidence, correct)
    index = np.floor(scores * bins + rounding * bins).astype(np.int64)
    index = np.minimum(index, bins - 1)
    counts = np.bincount(index, minlength=bins)
    size = np.where(counts > 0, counts, np.nan)
    return CalibrationCurve(
        edges=np.linspace(0, 1, bins + 1),
        confidence=np.bincount(index, weights=scores, minlength=bins) / size,
        accuracy=np.bincount(index, weights=right, minlength=bins) / size,
        counts=counts,
    )


def agreement(sampled_labels: Any) -> tuple[np.ndarray, Float[np.ndarray, " n"]]:
    """Return the most frequent label of each query over the samples, and the fraction that agree.

    Args:
        sampled_labels: Label of the nearest neighbour under each sample (s, n): integers or names.

    Returns:
        The prediction (n), the lowest in sorted order where labels are equally frequent; and the
        confidence (n), the fraction of samples that agree with it.

    Raises:
        DegenerateError: If there is no sample.
    """
    rows = [complete_labels("sampled_labels", row) for row in as_array(sampled_labels)]
    if not rows:
        raise DegenerateError("sampled_labels is empty: give one sample.", field="sampled_labels")
    labels = np.sort(rows, axis=0)
    step = np.arange(len(labels))[:, None]
    fresh = np.ones(labels.shape, dtype=bool)
    fresh[1:] = labels[1:] != labels[:-1]
    # Equal labels stand together now: the length of the run so far, longest run first found wins.
    run = step - np.maximum.accumulate(np.where(fresh, step, 0), axis=0) + 1
    mode = run.argmax(axis=0)
    column = np.arange(labels.shape[1])
    return labels[mode, column], run[mode, column] / len(labels)


def _checked(
    confidence: Any, correct: Any
) -> tuple[Float[np.ndarray, " n"], Bool[np.ndarray, " n"], float]:
    scores = as_scores("confidence", confidence)
    right = as_correct("correct", correct, length=len(scores))
    outside = (scores < 0) | (scores > 1)
    if outside.any():
        raise InputError(
            f"confidence must lie between 0 and 1; got {scores[outside][0]:g}. "
            "Give the fraction of samples that agree, or a probability.",
            field="confidence",
        )
    came_as = as_array(confidence).dtype
    return scores, right, float(np.finfo(came_as).eps) if came_as.kind == "f" else 0.0
