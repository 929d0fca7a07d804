from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from surefind import metrics
from surefind.errors import DegenerateError, InputError

ALL = [
    metrics.ausc,
    metrics.aurc,
    metrics.r_auroc,
    metrics.sparsification_curve,
    metrics.risk_coverage_curve,
]


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


def test_curves_hold_the_plain_accuracy_at_their_ends(answers):
    correct, uncertainty = answers
    curve = metrics.sparsification_curve(correct, uncertainty)
    assert curve.accuracy[0] == pytest.approx(correct.mean())
    assert (curve.dropped[0], curve.dropped[-1], len(curve.dropped)) == (0, 0.99, 100)
    risk = metrics.risk_coverage_curve(correct, uncertainty)
    assert risk.risk[-1] == pytest.approx(1 - correct.mean())
    assert risk.risk[0] == 1 - correct[uncertainty.argmin()]
    assert risk.coverage[-1] == 1


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
        with pytest.raises(DegenerateError, match=f"all 3 answers are {word}"):
            metrics.r_auroc(same, uncertainty[:3])


def test_perfect_beats_random_beats_reversed():
    correct = np.arange(200) < 150
    perfect, reverse = np.arange(200.0), -np.arange(200.0)
    shuffled = np.random.default_rng(0).permutation(200)
    assert metrics.ausc(correct, perfect) > metrics.ausc(correct, shuffled)
    assert metrics.ausc(correct, shuffled) > metrics.ausc(correct, reverse)
    assert metrics.aurc(correct, perfect) < metrics.aurc(correct, shuffled)
    assert metrics.r_auroc(correct, perfect) == 1
    assert metrics.r_auroc(correct, reverse) == 0


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


@pytest.mark.parametrize("metric", ALL)
def test_what_cannot_be_scored_is_refused(metric):
    with pytest.raises(DegenerateError, match="correct is empty"):
        metric(np.array([]), np.array([]))
    with pytest.raises(InputError, match=r"uncertainty has 1 values where .* have 2"):
        metric([True, False], [0.0])
    with pytest.raises(InputError, match="uncertainty holds 1 NaN"):
        metric([True, False], [0.0, np.nan])
    with pytest.raises(InputError, match=r"correct must be true or false .*; got 0.5"):
        metric([1, 0.5], [0.0, 1.0])
