"""Whether it pays to drop the answers that are least sure: selective accuracy.

Sort ``n`` queries by uncertainty, the surest first. With c_i = 1 if the i-th answer is correct,

    accuracy(m)    = Σ_{i<=m} c_i / m                        of the m surest
    sparsification = accuracy(n - ⌊n f⌋),  f = 0 %, 1 %, … 99 %   after dropping the fraction f
    AUSC = its mean over the 100 fractions                   1 is best
    risk(m) = 1 - accuracy(m) at coverage m / n;  AURC = its mean over m = 1 … n   0 is best
    R-AUROC = P(uncertainty of a wrong answer > of a right one) + ½ P(equal)

At least one query is always kept. Where uncertainties are equal, accuracy(m) is its expectation over
all orders of the tied queries, so nothing depends on the order of the data: under a constant
uncertainty (a deterministic model), AUSC is the plain accuracy, AURC the plain error, R-AUROC ½.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.errors import DegenerateError
from surefind.metrics.detection import auroc
from surefind.metrics.inputs import as_correct, as_scores

FRACTIONS = 100
"""Fractions dropped: 0 % to 99 % in steps of one."""


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
        coverage: Share of queries answered: 1/n, 2/n, … 1.
        risk: Share of wrong answers among them.
    """

    coverage: Float[np.ndarray, " n"]
    risk: Float[np.ndarray, " n"]


def sparsification_curve(correct: Any, uncertainty: Any) -> SparsificationCurve:
    """Trace the accuracy as the least sure 0 % … 99 % are dropped.

    Args:
        correct: Whether each query's answer is right (n).
        uncertainty: Higher means less sure (n).

    Returns:
        The curve.
    """
    accuracy = _accuracy_of_surest(*_correct_and_uncertainty(correct, uncertainty))
    # Whole numbers: ⌊0.29 · 100⌋ would be 28.
    dropped = len(accuracy) * np.arange(FRACTIONS) // FRACTIONS
    kept = len(accuracy) - dropped
    return SparsificationCurve(np.arange(FRACTIONS) / FRACTIONS, accuracy[kept - 1])


def ausc(correct: Any, uncertainty: Any) -> float:
    """Give the area under the sparsification curve.

    Args:
        correct: Whether each query's nearest neighbour is of its class (n).
        uncertainty: Higher means less sure (n).

    Returns:
        Mean accuracy over the dropped fractions; the plain accuracy for no information.
    """
    return float(sparsification_curve(correct, uncertainty).accuracy.mean())


def risk_coverage_curve(correct: Any, uncertainty: Any) -> RiskCoverageCurve:
    """Trace the error rate as more and more queries are answered, the surest first.

    Args:
        correct: Whether each query's answer is right (n).
        uncertainty: Higher means less sure (n).

    Returns:
        The curve.
    """
    accuracy = _accuracy_of_surest(*_correct_and_uncertainty(correct, uncertainty))
    n = len(accuracy)
    return RiskCoverageCurve(np.arange(1, n + 1) / n, 1 - accuracy)


def aurc(correct: Any, uncertainty: Any) -> float:
    """Give the area under the risk-coverage curve.

    Args:
        correct: Whether each query's answer is right (n).
        uncertainty: Higher means less sure (n).

    Returns:
        Mean risk over all coverages; 0 if all is right, the plain error for no information.
    """
    return float(risk_coverage_curve(correct, uncertainty).risk.mean())


def r_auroc(correct: Any, uncertainty: Any) -> float:
    """Say how well uncertainty predicts which retrievals are wrong.

    Args:
        correct: Whether each query's answer is right (n).
        uncertainty: Higher means less sure (n).

    Returns:
        1 if every wrong answer is less sure than every right one, ½ for no information.

    Raises:
        DegenerateError: If all answers are right, or all are wrong.
    """
    right, scores = _correct_and_uncertainty(correct, uncertainty)
    if right.all() or not right.any():
        raise DegenerateError(
            f"all {len(right)} answers are {'right' if right.all() else 'wrong'}: there is nothing "
            "to tell apart. Give more or harder queries."
        )
    return auroc(scores[right], scores[~right])


def _correct_and_uncertainty(correct: Any, uncertainty: Any) -> tuple[Bool[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    right = as_correct("correct", correct)
    return right, as_scores("uncertainty", uncertainty, length=len(right))


def _accuracy_of_surest(
    right: Bool[np.ndarray, " n"], scores: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Give the expected accuracy of the m surest, m = 1 … n, over all orders of tied queries."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    share = np.bincount(group, weights=right) / sizes
    # A running sum of means drifts by rounding; whole counts at each group's end do not.
    before = np.concatenate([[0], np.bincount(group, weights=right).cumsum()[:-1]])
    start = np.concatenate([[0], sizes.cumsum()[:-1]])
    member = np.repeat(np.arange(len(sizes)), sizes)
    m = np.arange(1, len(scores) + 1)
    return np.asarray((before[member] + (m - start[member]) * share[member]) / m)
