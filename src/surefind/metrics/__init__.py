"""Metrics: indices, labels and scores in, plain floats out.

Tensors, NumPy arrays and lists are taken alike. Curves and per-query values come back as NumPy
arrays.
"""

from surefind.metrics.bootstrap import Interval, bootstrap_interval
from surefind.metrics.calibration import CalibrationCurve, agreement, calibration_curve, ece
from surefind.metrics.detection import (
    PrecisionRecallCurve,
    RiskCoverageCurve,
    RocCurve,
    SparsificationCurve,
    auprc,
    aurc,
    auroc,
    ausc,
    fpr_at_tpr,
    precision_recall_curve,
    r_auroc,
    risk_coverage_curve,
    roc_curve,
    sparsification_curve,
)
from surefind.metrics.ranking import (
    Relevance,
    average_precision_per_query,
    map_at_k,
    recall_at_k,
    recall_per_query,
    relevance,
    relevance_within,
)

__all__ = [
    "CalibrationCurve",
    "Interval",
    "PrecisionRecallCurve",
    "Relevance",
    "RiskCoverageCurve",
    "RocCurve",
    "SparsificationCurve",
    "agreement",
    "auprc",
    "aurc",
    "auroc",
    "ausc",
    "average_precision_per_query",
    "bootstrap_interval",
    "calibration_curve",
    "ece",
    "fpr_at_tpr",
    "map_at_k",
    "precision_recall_curve",
    "r_auroc",
    "recall_at_k",
    "recall_per_query",
    "relevance",
    "relevance_within",
    "risk_coverage_curve",
    "roc_curve",
    "sparsification_curve",
]
