"""Uncertainty as a score: detecting out-of-distribution inputs, and selective prediction.

**Detection.** OOD is the positive class and uncertainty its score: higher means less sure. An input is
flagged when its uncertainty is at least a threshold t.

    TPR(t) = fraction of OOD flagged,   FPR(t) = fraction of ID flagged
    precision(t) = fraction of OOD among the flagged,   recall(t) = TPR(t)
    AUROC = P(ood > id) + ½ P(ood = id)                 the area under TPR over FPR
    AUPRC = Σ_t (recall(t) - recall(t before)) · precision(t)   average precision, no interpolation

Equal scores are flagged together, so no value depends on the order of the data: a constant uncertainty has
an AUROC of ½. Infinite uncertainty is the highest score. AUPRC depends on the ratio of the two sets' sizes;
its value for an uninformative score is the fraction of OOD.

**Selective prediction**: whether it pays to drop the answers that are least sure. Sort ``n`` queries by
uncertainty, the surest first. With c_i = 1 if the i-th answer is correct,

    accuracy(m)    = Σ_{i<=m} c_i / m                        of the m surest
    sparsification = accuracy(n - ⌊n f⌋),  f = 0 %, 1 %, … 99 %   after dropping the fraction f
    AUSC = its mean over the 100 fractions                   1 is best
    risk(m) = 1 - accuracy(m) at coverage m / n;  AURC = its mean over m = 1 … n   0 is best
    R-AUROC = P(uncertainty of a wrong answer > of a right one) + ½ P(equal)

At least one query is always kept. Where uncertainties are equal, accuracy(m) is its expectation over
all orders of the tied queries, so nothing depends on the order of the data: under a constant
uncertainty (a deterministic model), AUSC is the plain accuracy, AURC the plain error, R-AUROC ½.

Axes: ``n`` known inputs or queries, ``m`` unknown inputs, ``t`` thresholds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.checks import as_correct, as_scores, check_fraction
from surefind.errors import DegenerateError, InputError

FRACTIONS = 100
"""Fractions dropped: 0 % to 99 % in steps of one."""


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Rates for each distinct threshold, falling, after the point where nothing is flagged.

    Attributes:
        fpr: Fraction of ID flagged, rising from 0 to 1.
        tpr: Fraction of OOD flagged, rising from 0 to 1.
        thresholds: What is flagged has at least this uncertainty. The first is infinite and stands
            for "flag nothing", even if scores are infinite.
    """

    fpr: Float[np.ndarray, " t"]
    tpr: Float[np.ndarray, " t"]
    thresholds: Float[np.ndarray, " t"]


@dataclass(frozen=True, eq=False)
class PrecisionRecallCurve:
    """Precision and recall for each distinct threshold, falling.

    Attributes:
        precision: Fraction of OOD among the flagged; 1 by convention where nothing is flagged.
        recall: Fraction of OOD flagged, rising from 0 to 1.
        thresholds: What is flagged has at least this uncertainty. The first is infinite and stands
            for "flag nothing".
    """

    precision: Float[np.ndarray, " t"]
    recall: Float[np.ndarray, " t"]
    thresholds: Float[np.ndarray, " t"]


def auroc(id_uncertainty: Any, ood_uncertainty: Any) -> float:
    """Compute the probability that an OOD input is less sure than an ID input, ties counting half."""
    known, unknown = _both(id_uncertainty, ood_uncertainty)
    known.sort()
    below = np.searchsorted(known, unknown, side="left")
    up_to = np.searchsorted(known, unknown, side="right")
    return float((below + up_to).mean() / (2 * len(known)))


def auprc(id_uncertainty: Any, ood_uncertainty: Any) -> float:
    """Compute the average precision of flagging OOD inputs (m) among ID inputs (n)."""
    curve = precision_recall_curve(id_uncertainty, ood_uncertainty)
    return float((np.diff(curve.recall) * curve.precision[1:]).sum())


def fpr_at_tpr(id_uncertainty: Any, ood_uncertainty: Any, tpr: float = 0.95) -> float:
    """Compute the fraction of ID flagged at the best threshold that flags at least ``tpr`` of OOD.

    Args:
        id_uncertainty: Uncertainty of known inputs (n).
        ood_uncertainty: Uncertainty of unknown inputs (m).
        tpr: Fraction of OOD that must be flagged, above 0.

    Returns:
        The false positive rate; 0 is best, and ``tpr`` about what no information gives.

    Raises:
        InputError: If ``tpr`` is not in (0, 1].
    """
    check_fraction("tpr", tpr)
    if tpr == 0:
        raise InputError(
            "tpr must be above 0: at 0 nothing need be flagged, and the answer is 0.", field="tpr"
        )
    known, unknown = _both(id_uncertainty, ood_uncertainty)
    # 0.95 · 20 is 19 in numbers, but may be 19.000000000000004 in floats.
    needed = max(1, int(np.ceil(tpr * len(unknown) - 1e-9)))
    threshold = np.sort(unknown)[len(unknown) - needed]
    return float((known >= threshold).mean())


def roc_curve(id_uncertainty: Any, ood_uncertainty: Any) -> RocCurve:
    """Trace TPR over FPR from (0, 0) to (1, 1) as the threshold falls."""
    known, unknown, thresholds = _flagged(*_both(id_uncertainty, ood_uncertainty))
    return RocCurve(known / known[-1], unknown / unknown[-1], thresholds)


def precision_recall_curve(id_uncertainty: Any, ood_uncertainty: Any) -> PrecisionRecallCurve:
    """Trace precision over recall, from recall 0 to 1, as the threshold falls."""
    known, unknown, thresholds = _flagged(*_both(id_uncertainty, ood_uncertainty))
    precision = np.ones(len(thresholds))
    precision[1:] = unknown[1:] / (known + unknown)[1:]
    return PrecisionRecallCurve(precision, unknown / unknown[-1], thresholds)


def _both(
    id_uncertainty: Any, ood_uncertainty: Any
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    return (
        as_scores("id_uncertainty", id_uncertainty),
        as_scores("ood_uncertainty", ood_uncertainty),
    )


def _flagged(
    known: Float[np.ndarray, " n"], unknown: Float[np.ndarray, " m"]
) -> tuple[Int[np.ndarray, " t"], Int[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Count what is flagged in each set at each distinct threshold, falling, from none at all."""
    levels, level = np.unique(np.concatenate([known, unknown]), return_inverse=True)
    counts = [
        np.bincount(part, minlength=len(levels))[::-1].cumsum()
        for part in (level[: len(known)], level[len(known) :])
    ]
    known_flagged, unknown_flagged = (np.concatenate([[0], c]) for c in counts)
    return known_flagged, unknown_flagged, np.concatenate([[np.inf], levels[::-1]])


@dataclass(frozen=True, eq=False)
class SparsificationCurve:
    """Accuracy after dropping the least sure queries.

    Attributes:
        dropped: The fractions 0.00, 0.01, … 0.99.
        accuracy: Accuracy of what is kept.
    """

    dropped: Float[np.ndarray, "100"]
    accuracy: Float[np.ndarray, "100"]


@dataclass(frozen=True, eq=False)
class RiskCoverageCurve:
    """Error rate among the surest queries.

    Attributes:
        coverage: Fraction of queries answered: 1/n, 2/n, … 1.
        risk: Fraction of wrong answers among them.
    """

    coverage: Float[np.ndarray, " n"]
    risk: Float[np.ndarray, " n"]


def sparsification_curve(correct: Any, uncertainty: Any) -> SparsificationCurve:
    """Trace the accuracy as the least sure 0 % … 99 % are dropped."""
    accuracy = _accuracy_of_surest(*_correct_and_uncertainty(correct, uncertainty))
    # Whole numbers: ⌊0.29 · 100⌋ would be 28.
    dropped = len(accuracy) * np.arange(FRACTIONS) // FRACTIONS
    kept = len(accuracy) - dropped
    return SparsificationCurve(np.arange(FRACTIONS) / FRACTIONS, accuracy[kept - 1])


def ausc(correct: Any, uncertainty: Any) -> float:
    """Compute the area under the sparsification curve; the plain accuracy for no information."""
    return float(sparsification_curve(correct, uncertainty).accuracy.mean())


def risk_coverage_curve(correct: Any, uncertainty: Any) -> RiskCoverageCurve:
    """Trace the error rate as more and more queries are answered, the surest first."""
    accuracy = _accuracy_of_surest(*_correct_and_uncertainty(correct, uncertainty))
    n = len(accuracy)
    return RiskCoverageCurve(np.arange(1, n + 1) / n, 1 - accuracy)


def aurc(correct: Any, uncertainty: Any) -> float:
    """Compute the area under the risk-coverage curve; the plain error for no information."""
    return float(risk_coverage_curve(correct, uncertainty).risk.mean())


def r_auroc(correct: Any, uncertainty: Any) -> float:
    """Compute how well uncertainty predicts which retrievals are wrong: 1 is best, ½ no information.

    Args:
        correct: Whether each query's answer is right (n).
        uncertainty: Higher means less sure (n).

    Returns:
        The AUROC of wrong answers against right ones.

    Raises:
        DegenerateError: If all answers are right, or all are wrong.
    """
    right, scores = _correct_and_uncertainty(correct, uncertainty)
    if right.all() or not right.any():
        raise DegenerateError(
            f"all {len(right)} answers are {'right' if right.all() else 'wrong'}: there is nothing "
            "to separate. Give more or harder queries.",
            field="correct",
        )
    return auroc(scores[right], scores[~right])


def _correct_and_uncertainty(
    correct: Any, uncertainty: Any
) -> tuple[Bool[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    right = as_correct("correct", correct)
    return right, as_scores("uncertainty", uncertainty, length=len(right))


def _accuracy_of_surest(
    right: Bool[np.ndarray, " n"], scores: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the expected accuracy of the m surest, m = 1 … n, over all orders of tied queries."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    rate = np.bincount(group, weights=right) / sizes
    # A running sum of means drifts by rounding; whole counts at each group's end do not.
    before = np.concatenate([[0], np.bincount(group, weights=right).cumsum()[:-1]])
    start = np.concatenate([[0], sizes.cumsum()[:-1]])
    member = np.repeat(np.arange(len(sizes)), sizes)
    m = np.arange(1, len(scores) + 1)
    return np.asarray((before[member] + (m - start[member]) * rate[member]) / m)
