"""Metrics: indices, labels and scores in, plain floats out.

Tensors, NumPy arrays and lists are taken alike. Curves and per-query values come back as NumPy
arrays.
"""

from surefind.metrics.ranking import (
    Relevance,
    average_precision_per_query,
    map_at_k,
    recall_at_k,
    recall_per_query,
    relevance,
    relevance_within,
)
from surefind.metrics.uncertainty import (
    CalibrationCurve,
    Interval,
    PrecisionRecallCurve,
    RiskCoverageCurve,
    RocCurve,
    SparsificationCurve,
    agreement,
    auprc,
    aurc,
    auroc,
    ausc,
    bootstrap_interval,
    calibration_curve,
    ece,
    fpr_at_tpr,
    precision_recall_curve,
    r_auroc,
    risk_coverage_curve,
    roc_curve,
    sparsification_curve,
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
