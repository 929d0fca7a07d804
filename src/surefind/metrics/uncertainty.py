"""How good an uncertainty is: detection, selective prediction, calibration, and intervals of any metric.

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

**Calibration.** The interval [0, 1] is cut into ``bins`` equal bins B, each closed below and open above,
**the last one closed at 1** (a half-open last bin would silently drop every fully confident query). Then

    ECE = Σ_B |B| / n · | accuracy(B) - mean confidence(B) |

with weights that sum to one (the paper prints 1/|B|: a slip). A confidence that rounding moved below a
bin's lower edge counts as on the edge, so float32 and float64 give one answer. Confidence comes from
`agreement`: embed everything under ``s`` sampled models, look at the label of each query's nearest
neighbour under each, and take the most frequent label and the fraction that agree.

**Intervals** are percentiles of the bootstrap over queries. Queries are what is drawn, so an interval does
not cover another training run: that is what several seeds are for. When a metric takes several arrays, they
are drawn *together*, where row i of each belongs to query i (AUSC, ECE), or
*independently*, where each is a set of its own (AUROC of ID against OOD). Of a sum of absolute values, as
ECE is, resamples are larger on average than the metric itself, so its interval is biased upwards: do not
read closeness to it as a test. Policy: a draw on which the metric is undefined (by chance all answers are
right) is left out; `Interval.n_resamples` counts those used. If most are undefined there is no interval.
`scipy.stats.bootstrap` takes as long and has no such policy: it warns of such draws, and refuses one query.

Axes: ``n`` known inputs or queries, ``m`` unknown inputs, ``t`` thresholds, ``b`` bins, ``s`` samples.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.checks import (
    as_array,
    as_correct,
    as_scores,
    check_int,
    complete_labels,
)
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
    if not 0 < tpr <= 1:
        raise InputError(f"tpr must be above 0 and at most 1; got {tpr!r}.", field="tpr")
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


@dataclass(frozen=True, eq=False)
class Interval:
    """A metric and where it plausibly lies.

    Attributes:
        estimate: The metric on the data as given.
        low: Lower end of the interval.
        high: Upper end of the interval.
        confidence: Fraction of resamples between the two.
        n_resamples: Resamples on which the metric was defined.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    n_resamples: int


def bootstrap_interval(
    *samples: Any,
    generator: np.random.Generator,
    statistic: Callable[..., float] | None = None,
    independent: bool = False,
    confidence: float = 0.95,
    n_resamples: int = 1000,
) -> Interval:
    """Compute a percentile interval over queries.

    For the mean of per-query values (recall, mAP) pass them alone. For anything else pass the arrays
    and the metric: ``bootstrap_interval(correct, uncertainty, statistic=ausc, generator=g)``, or
    ``bootstrap_interval(known, unknown, statistic=auroc, independent=True, generator=g)``.

    Args:
        *samples: One array of values, or the arrays that the statistic takes, one entry per query.
        generator: Source of the draws.
        statistic: A metric of the arrays; None means the mean of the only array.
        independent: Whether the arrays are sets of their own, to be drawn from separately.
        confidence: Fraction of resamples that the interval holds.
        n_resamples: Number of draws.

    Returns:
        The interval around the metric.

    Raises:
        InputError: If the arrays do not fit together.
        DegenerateError: If the metric is undefined on most draws.
    """
    check_int("n_resamples", n_resamples, least=1)
    arrays = [as_scores("samples", sample) for sample in samples]
    lengths = [len(array) for array in arrays]
    if statistic is None:
        fit = len(arrays) == 1 and bool(np.isfinite(arrays[0]).all())
    else:
        fit = len(set(lengths)) == 1 or (independent and bool(lengths))
    if not fit or not 0 < confidence < 1:
        raise InputError(
            "give one array of finite values, or a statistic and arrays of one length; arrays that are "
            "sets of their own need independent=True; and a confidence between 0 and 1. Got lengths "
            f"{lengths} and {confidence!r}.",
            field="confidence" if fit else "samples",
        )
    metric: Callable[..., Any] = np.mean if statistic is None else statistic
    estimate, drawn = float(metric(*arrays)), []
    for _ in range(n_resamples):
        rows = [generator.integers(n, size=n) for n in (lengths if independent else lengths[:1])]
        rows = rows if independent else rows * len(arrays)
        with suppress(DegenerateError):
            drawn.append(float(metric(*(a[r] for a, r in zip(arrays, rows, strict=True)))))
    if 2 * len(drawn) < n_resamples:
        raise DegenerateError(
            f"the metric is undefined on {n_resamples - len(drawn)} of {n_resamples} resamples: "
            "too few queries of a kind for an interval. Give more queries."
        )
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(estimate, float(low), float(high), confidence, len(drawn))
