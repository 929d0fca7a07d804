"""What a fitted learner is worth on data it has not seen.

Closed set: the test data are queries and gallery at once, without the query itself. Uncertainty is 1/κ. ECE
is over joint samples of the whole set: in each, every query takes the class of its nearest neighbour; the
prediction is the mode, the confidence its share. A learner without uncertainty (κ = ∞ everywhere) has no
numbers for what needs one: they are left out, not set to one half.

| name | what | better |
| --- | --- | --- |
| recall@k, map@k | retrieval | higher |
| auroc, auprc, fpr95 | telling out-of-distribution inputs by uncertainty | higher, higher, lower |
| ausc, r_auroc, aurc | predicting wrong retrievals by uncertainty | higher, higher, lower |
| ece | calibration of the sampled neighbours' agreement | lower |
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from surefind import metrics
from surefind.data.dataset import Dataset
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.learner import MetricLearner
from surefind.retrieval.search import nearest, sampled_nearest_labels

DEPTHS = (1, 5, 10)
CURVE_POINTS = 200


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Numbers and curves of one learner on one test set.

    Attributes:
        values: Each metric by name.
        intervals: Bootstrap intervals over queries, (low, high) by name.
        curves: Points to draw: x and y by name.
        uncertainty: Of each test input, and of each out-of-distribution input if there are any.
        left_out: Queries without a relevant item, which no ranking metric counts.
    """

    values: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    curves: dict[str, dict[str, list[float]]]
    uncertainty: dict[str, np.ndarray] = field(repr=False)
    left_out: int = 0


def evaluate(
    learner: MetricLearner,
    test: Dataset,
    ood: Dataset | None = None,
    *,
    generator: torch.Generator,
    ece_samples: int = 100,
) -> Evaluation:
    """Measure a fitted learner.

    Args:
        learner: A fitted learner.
        test: Labelled data it has not seen; queries and gallery at once.
        ood: Data of another kind.
        generator: Draws samples and bootstrap resamples.
        ece_samples: Joint samples for the calibration error; 0 leaves it out.

    Returns:
        The numbers.

    Raises:
        InputError: If the test data have no labels or fewer than eleven examples.
    """
    if test.labels is None or len(test) <= max(DEPTHS):
        raise InputError(
            f"evaluation needs labelled test data of more than {max(DEPTHS)} examples; "
            f"got {len(test)} {'without' if test.labels is None else 'with'} labels."
        )
    known = learner.embed(test)
    strange = None if ood is None else learner.embed(ood)
    values, intervals, correct, left_out = _ranking(known, test, generator)
    uncertainty = {"id": _doubt(known)}
    curves: dict[str, dict[str, list[float]]] = {}
    if strange is not None:
        uncertainty["ood"] = _doubt(strange)
    if not bool(torch.isinf(known.kappa).all()):
        _selective(correct, uncertainty["id"], values, curves)
        if strange is not None:
            _detection(uncertainty, values, intervals, curves, generator)
        if ece_samples:
            _calibration(learner, test, ece_samples, generator, values, curves)
    return Evaluation(values, intervals, curves, uncertainty, left_out)


def _doubt(embeddings: Embeddings) -> np.ndarray:
    doubt: np.ndarray = embeddings.uncertainty.double().numpy()
    return doubt


def _ranking(
    known: Embeddings, test: Dataset, generator: torch.Generator
) -> tuple[dict[str, float], dict[str, tuple[float, float]], np.ndarray, int]:
    found = nearest(known.mean, known.mean, max(DEPTHS), exclude_self=True)
    judged = metrics.relevance(found.indices, test.labels, test.labels, self_in_gallery=True)
    values: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for k in DEPTHS:
        for name, per_query in (
            (f"recall@{k}", metrics.recall_per_query(judged, k)),
            (f"map@{k}", metrics.average_precision_per_query(judged, k)),
        ):
            values[name] = float(per_query.mean())
            interval = metrics.bootstrap_interval(per_query, generator=generator)
            intervals[name] = (interval.low, interval.high)
    correct = test.labels[torch.as_tensor(found.indices[:, 0])] == test.labels
    return values, intervals, correct.numpy(), judged.unanswerable


def _selective(
    correct: np.ndarray,
    doubt: np.ndarray,
    values: dict[str, float],
    curves: dict[str, dict[str, list[float]]],
) -> None:
    values["ausc"] = metrics.ausc(correct, doubt)
    values["aurc"] = metrics.aurc(correct, doubt)
    if 0 < correct.mean() < 1:
        values["r_auroc"] = metrics.r_auroc(correct, doubt)
    sparse = metrics.sparsification_curve(correct, doubt)
    curves["sparsification"] = _points(sparse.dropped, sparse.accuracy)


def _detection(
    doubt: dict[str, np.ndarray],
    values: dict[str, float],
    intervals: dict[str, tuple[float, float]],
    curves: dict[str, dict[str, list[float]]],
    generator: torch.Generator,
) -> None:
    both = doubt["id"], doubt["ood"]
    values["auroc"] = metrics.auroc(*both)
    values["auprc"] = metrics.auprc(*both)
    values["fpr95"] = metrics.fpr_at_tpr(*both)
    interval = metrics.bootstrap_interval(
        *both, statistic=metrics.auroc, independent=True, n_resamples=200, generator=generator
    )
    intervals["auroc"] = (interval.low, interval.high)
    roc = metrics.roc_curve(*both)
    curves["roc"] = _points(roc.fpr, roc.tpr)
    pr = metrics.precision_recall_curve(*both)
    curves["precision-recall"] = _points(pr.recall, pr.precision)


def _calibration(
    learner: MetricLearner,
    test: Dataset,
    n_samples: int,
    generator: torch.Generator,
    values: dict[str, float],
    curves: dict[str, dict[str, list[float]]],
) -> None:
    samples = learner.sample(test, n_samples, joint=True, generator=generator)
    prediction, confidence = metrics.agreement(sampled_nearest_labels(samples, test.labels))
    right = prediction == test.labels.numpy()
    values["ece"] = metrics.ece(confidence, right)
    curve = metrics.calibration_curve(confidence, right)
    filled = np.asarray(curve.counts) > 0
    curves["calibration"] = _points(
        np.asarray(curve.confidence)[filled], np.asarray(curve.accuracy)[filled]
    )


def _points(x: Any, y: Any) -> dict[str, list[float]]:
    """Thin a curve out to what a picture can show."""
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    keep = np.unique(np.linspace(0, len(x) - 1, min(len(x), CURVE_POINTS)).astype(int))
    return {"x": x[keep].round(6).tolist(), "y": y[keep].round(6).tolist()}
