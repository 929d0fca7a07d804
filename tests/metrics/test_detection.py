from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.metrics import precision_recall_curve as reference_pr
from sklearn.metrics import roc_curve as reference_roc

from surefind import metrics
from surefind.errors import DegenerateError, InputError

DETECTION = [
    metrics.auroc,
    metrics.auprc,
    metrics.fpr_at_tpr,
    metrics.roc_curve,
    metrics.precision_recall_curve,
]
SELECTIVE = [
    metrics.ausc,
    metrics.aurc,
    metrics.r_auroc,
    metrics.sparsification_curve,
    metrics.risk_coverage_curve,
]


def scores(seed, ties):
    rng = np.random.default_rng(seed)
    known, unknown = rng.normal(size=rng.integers(1, 80)), rng.normal(0.7, size=rng.integers(1, 80))
    return (np.round(known, 1), np.round(unknown, 1)) if ties else (known, unknown)


def joined(known, unknown):
    positive = np.r_[np.zeros(len(known)), np.ones(len(unknown))]
    return positive, np.r_[known, unknown]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ties", [False, True])
def test_areas_equal_scikit_learn(seed, ties):
    known, unknown = scores(seed, ties)
    both = joined(known, unknown)
    assert metrics.auroc(known, unknown) == pytest.approx(roc_auc_score(*both), abs=1e-12)
    assert metrics.auprc(known, unknown) == pytest.approx(average_precision_score(*both), abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_curves_equal_scikit_learn(ties):
    known, unknown = scores(2, ties)
    both = joined(known, unknown)
    curve = metrics.roc_curve(known, unknown)
    for ours, theirs in zip(
        (curve.fpr, curve.tpr, curve.thresholds),
        reference_roc(*both, drop_intermediate=False),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs)
    assert np.trapezoid(curve.tpr, curve.fpr) == pytest.approx(metrics.auroc(known, unknown))
    curve = metrics.precision_recall_curve(known, unknown)
    precision, recall, thresholds = reference_pr(*both)
    np.testing.assert_allclose(curve.precision, precision[::-1])
    np.testing.assert_allclose(curve.recall, recall[::-1])
    np.testing.assert_allclose(curve.thresholds[1:], thresholds[::-1])
    assert curve.thresholds[0] == np.inf


@pytest.mark.parametrize("tpr", [0.01, 0.5, 0.95, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_fpr_at_tpr_is_the_best_threshold_that_flags_enough(tpr, seed):
    known, unknown = scores(seed, ties=True)
    best = min(
        np.mean(known >= t) for t in np.r_[known, unknown] if np.mean(unknown >= t) >= tpr - 1e-12
    )
    assert metrics.fpr_at_tpr(known, unknown, tpr) == pytest.approx(best)


def test_infinity_is_the_highest_score():
    known, unknown = [0.0, 1.0, np.inf], [2.0, np.inf, np.inf, -np.inf]
    finite = np.clip(known, -9, 9), np.clip(unknown, -9, 9)
    for metric in (metrics.auroc, metrics.auprc, metrics.fpr_at_tpr):
        assert metric(known, unknown) == metric(*finite)
    assert metrics.roc_curve(known, unknown).fpr.tolist() == [0, 1 / 3, 1 / 3, 2 / 3, 1, 1]


def test_the_order_and_the_kind_of_array_do_not_matter():
    known, unknown = (torch.as_tensor(x) for x in scores(1, ties=True))
    expected = metrics.auroc(known, unknown)
    assert metrics.auroc(known.flip(0), unknown.flip(0)) == expected
    for convert in (torch.Tensor.numpy, torch.Tensor.float, torch.Tensor.tolist):
        assert metrics.auroc(convert(known), convert(unknown)) == expected
    half = metrics.auroc(torch.tensor([0.0, 1]).bfloat16(), torch.tensor([1.0, 2]).half())
    assert half == 7 / 8
    assert isinstance(metrics.auprc(known, unknown), float)


@pytest.mark.parametrize(
    ("known", "unknown", "error", "field"),
    [
        (np.array([]), [1.0], DegenerateError, "id_uncertainty"),
        ([1.0], torch.zeros(0), DegenerateError, "ood_uncertainty"),
        ([[1.0]], [1.0], InputError, "id_uncertainty"),
        ([1.0], ["high"], InputError, "ood_uncertainty"),
    ],
)
@pytest.mark.parametrize("metric", DETECTION)
def test_what_cannot_be_detected_is_refused(metric, known, unknown, error, field):
    with pytest.raises(error) as refused:
        metric(known, unknown)
    assert refused.value.field == field


@pytest.mark.parametrize("tpr", [0.0, -0.5, 1.5, float("nan")])
def test_rates_out_of_range_are_refused(tpr):
    with pytest.raises(InputError) as refused:
        metrics.fpr_at_tpr([0.0], [1.0], tpr)
    assert refused.value.field == "tpr"


def slow_ausc(correct, uncertainty):
    order = sorted(range(len(correct)), key=lambda i: uncertainty[i])
    total = 0.0
    for percent in range(100):
        kept = order[: len(order) - len(order) * percent // 100]
        total += sum(bool(correct[i]) for i in kept) / len(kept)
    return total / 100


def slow_aurc(correct, uncertainty):
    order = sorted(range(len(correct)), key=lambda i: uncertainty[i])
    risks = [sum(not correct[i] for i in order[:m]) / m for m in range(1, len(order) + 1)]
    return sum(risks) / len(risks)


@pytest.fixture(params=[1, 2, 7, 99, 100, 101, 430])
def answers(request):
    rng = np.random.default_rng(request.param)
    return rng.random(request.param) < 0.7, rng.normal(size=request.param)


def test_areas_equal_their_definitions(answers):
    assert metrics.ausc(*answers) == pytest.approx(slow_ausc(*answers), abs=1e-12)
    assert metrics.aurc(*answers) == pytest.approx(slow_aurc(*answers), abs=1e-12)


@pytest.mark.parametrize(
    ("fast", "slow"), [(metrics.ausc, slow_ausc), (metrics.aurc, slow_aurc)], ids=["ausc", "aurc"]
)
def test_ties_are_the_mean_over_all_orders(fast, slow):
    correct = np.array([1, 0, 0, 1, 1, 0])
    uncertainty = np.array([0.0, 1.0, 1.0, 1.0, 2.0, 2.0])
    every = [
        slow(correct[list(order)], np.sort(uncertainty))
        for order in permutations(range(6))
        if (uncertainty[list(order)] == np.sort(uncertainty)).all()
    ]
    assert len(every) == 12
    assert fast(correct, uncertainty) == pytest.approx(np.mean(every))
    assert fast(correct[::-1].copy(), uncertainty[::-1].copy()) == fast(correct, uncertainty)


@pytest.mark.parametrize("constant", [0.0, np.inf])
def test_a_deterministic_model_gets_its_plain_accuracy(constant):
    correct, uncertainty = np.arange(50) % 5 > 0, np.full(50, constant)
    assert metrics.ausc(correct, uncertainty) == pytest.approx(0.8)
    assert metrics.aurc(correct, uncertainty) == pytest.approx(0.2)
    assert metrics.r_auroc(correct, uncertainty) == 0.5


def test_all_right_and_all_wrong():
    uncertainty = np.random.default_rng(0).normal(size=30)
    assert metrics.ausc(np.ones(30), uncertainty) == 1
    assert metrics.aurc(np.ones(30), uncertainty) == 0
    assert metrics.ausc(np.zeros(30), uncertainty) == 0
    assert metrics.aurc(np.zeros(30), uncertainty) == 1
    for same, word in ((np.ones(3), "right"), (np.zeros(3), "wrong")):
        with pytest.raises(DegenerateError, match=f"3 answers are {word}") as refused:
            metrics.r_auroc(same, uncertainty[:3])
        assert refused.value.field == "correct"


def test_r_auroc_equals_scikit_learn():
    rng = np.random.default_rng(1)
    correct, uncertainty = rng.random(300) < 0.6, rng.normal(size=300).round(1)
    expected = roc_auc_score(~correct, uncertainty)
    assert metrics.r_auroc(correct, uncertainty) == pytest.approx(expected)


def test_tensors_of_any_kind_are_taken(answers):
    correct, uncertainty = answers
    expected = metrics.ausc(correct, uncertainty.astype(np.float32))
    value = metrics.ausc(torch.as_tensor(correct), torch.as_tensor(uncertainty).float())
    assert value == expected
    assert isinstance(value, float)
    assert metrics.ausc(correct.astype(float), torch.as_tensor(uncertainty).float()) == expected


@pytest.mark.parametrize(
    ("correct", "uncertainty", "error", "field"),
    [
        (np.array([]), np.array([]), DegenerateError, "correct"),
        ([True, False], [0.0], InputError, "uncertainty"),
        ([True, False], [0.0, np.nan], InputError, "uncertainty"),
        ([1, 0.5], [0.0, 1.0], InputError, "correct"),
    ],
)
@pytest.mark.parametrize("metric", SELECTIVE)
def test_what_cannot_be_selected_is_refused(metric, correct, uncertainty, error, field):
    with pytest.raises(error) as refused:
        metric(correct, uncertainty)
    assert refused.value.field == field
