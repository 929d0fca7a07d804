"""How well uncertainty tells unknown inputs (OOD) from known ones (ID).

OOD is the positive class and uncertainty its score: higher means less sure. An input is flagged when
its uncertainty is at least a threshold t.

    TPR(t) = share of OOD flagged,   FPR(t) = share of ID flagged
    precision(t) = share of OOD among the flagged,   recall(t) = TPR(t)
    AUROC = P(ood > id) + ½ P(ood = id)                 the area under TPR over FPR
    AUPRC = Σ_t (recall(t) - recall(t before)) · precision(t)   average precision, no interpolation

Equal scores are flagged together, so no value depends on the order of the data: a constant
uncertainty has an AUROC of ½. Infinite uncertainty is the highest score. AUPRC depends on the ratio
of the two sets' sizes; its value for an uninformative score is the share of OOD.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from surefind.errors import InputError
from surefind.metrics.inputs import as_scores
from surefind.validation import check_share


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Rates for each distinct threshold, falling, after the point where nothing is flagged.

    Attributes:
        fpr: Share of ID flagged, rising from 0 to 1.
        tpr: Share of OOD flagged, rising from 0 to 1.
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
        precision: Share of OOD among the flagged; 1 by convention where nothing is flagged.
        recall: Share of OOD flagged, rising from 0 to 1.
        thresholds: What is flagged has at least this uncertainty. The first is infinite and stands
            for "flag nothing".
    """

    precision: Float[np.ndarray, " t"]
    recall: Float[np.ndarray, " t"]
    thresholds: Float[np.ndarray, " t"]


def auroc(id_uncertainty: Any, ood_uncertainty: Any) -> float:
    """Give the chance that an OOD input is less sure than an ID input, ties counting half.

    Args:
        id_uncertainty: Uncertainty of known inputs (n).
        ood_uncertainty: Uncertainty of unknown inputs (m).

    Returns:
        1 if every OOD input is less sure than every ID input, ½ for no information.
    """
    known, unknown = _both(id_uncertainty, ood_uncertainty)
    known.sort()
    below = np.searchsorted(known, unknown, side="left")
    up_to = np.searchsorted(known, unknown, side="right")
    return float((below + up_to).mean() / (2 * len(known)))


def auprc(id_uncertainty: Any, ood_uncertainty: Any) -> float:
    """Give the average precision of flagging OOD inputs.

    Args:
        id_uncertainty: Uncertainty of known inputs (n).
        ood_uncertainty: Uncertainty of unknown inputs (m).

    Returns:
        1 if every OOD input is less sure than every ID input, m / (n + m) for no information.
    """
    curve = precision_recall_curve(id_uncertainty, ood_uncertainty)
    return float((np.diff(curve.recall) * curve.precision[1:]).sum())


def fpr_at_tpr(id_uncertainty: Any, ood_uncertainty: Any, tpr: float = 0.95) -> float:
    """Give the share of ID flagged when at least ``tpr`` of OOD is, at the best such threshold.

    Args:
        id_uncertainty: Uncertainty of known inputs (n).
        ood_uncertainty: Uncertainty of unknown inputs (m).
        tpr: Share of OOD that must be flagged, above 0.

    Returns:
        The false positive rate; 0 is best, and ``tpr`` about what no information gives.

    Raises:
        InputError: If ``tpr`` is not in (0, 1].
    """
    check_share("tpr", tpr)
    if tpr == 0:
        raise InputError("tpr must be above 0: at 0 nothing need be flagged, and the answer is 0.")
    known, unknown = _both(id_uncertainty, ood_uncertainty)
    # 0.95 · 20 is 19 in numbers, but may be 19.000000000000004 in floats.
    needed = max(1, int(np.ceil(tpr * len(unknown) - 1e-9)))
    threshold = np.sort(unknown)[len(unknown) - needed]
    return float((known >= threshold).mean())


def roc_curve(id_uncertainty: Any, ood_uncertainty: Any) -> RocCurve:
    """Trace TPR over FPR as the threshold falls.

    Args:
        id_uncertainty: Uncertainty of known inputs (n).
        ood_uncertainty: Uncertainty of unknown inputs (m).

    Returns:
        The curve from (0, 0) to (1, 1).
    """
    known, unknown, thresholds = _flagged(*_both(id_uncertainty, ood_uncertainty))
    return RocCurve(known / known[-1], unknown / unknown[-1], thresholds)


def precision_recall_curve(id_uncertainty: Any, ood_uncertainty: Any) -> PrecisionRecallCurve:
    """Trace precision over recall as the threshold falls.

    Args:
        id_uncertainty: Uncertainty of known inputs (n).
        ood_uncertainty: Uncertainty of unknown inputs (m).

    Returns:
        The curve from recall 0 to recall 1.
    """
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
