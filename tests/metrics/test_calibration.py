from collections import Counter

import numpy as np
import pytest
import torch

from surefind import metrics
from surefind.errors import DegenerateError, InputError


def slow_ece(confidence, correct, bins):
    total = 0.0
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        inside = [
            i for i, c in enumerate(confidence) if low <= c < high or (b == bins - 1 and c == 1)
        ]
        if inside:
            accuracy = sum(bool(correct[i]) for i in inside) / len(inside)
            mean = sum(confidence[i] for i in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(accuracy - mean)
    return total


@pytest.mark.parametrize("bins", [1, 3, 10, 15])
@pytest.mark.parametrize("n", [1, 5, 500])
def test_ece_equals_the_definition(bins, n):
    rng = np.random.default_rng(n)
    confidence = np.r_[rng.random(n), 1.0, 0.0]
    correct = rng.random(n + 2) < confidence
    assert metrics.ece(confidence, correct, bins) == pytest.approx(
        slow_ece(confidence, correct, bins)
    )
    assert isinstance(metrics.ece(confidence, correct), float)


def test_full_confidence_is_counted():
    assert metrics.ece([1.0, 1.0, 1.0, 1.0], [1, 0, 0, 0]) == 0.75
    assert metrics.ece([1.0, 1.0], [1, 1]) == 0
    curve = metrics.calibration_curve([1.0, 0.95, 0.0], [1, 0, 0])
    assert curve.counts.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert curve.accuracy[-1] == 0.5
    assert curve.confidence[-1] == pytest.approx(0.975)
    assert np.isnan(curve.accuracy[1])
    assert curve.edges.tolist() == pytest.approx([i / 10 for i in range(11)])


def test_weights_are_shares_of_the_queries():
    assert metrics.ece([0.05] * 3 + [0.95], [0, 0, 0, 1]) == pytest.approx(0.05)
    assert metrics.ece([0.05] * 3 + [0.95], [1, 1, 1, 1]) == pytest.approx(
        0.75 * 0.95 + 0.25 * 0.05
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shares_on_an_edge_belong_to_the_upper_bin(dtype):
    shares = torch.arange(0, 101).to(dtype) / 100
    for bins in (10, 20, 100):
        counts = metrics.calibration_curve(shares, torch.ones(101), bins).counts
        assert counts.tolist() == [100 // bins] * (bins - 1) + [100 // bins + 1]


def test_agreement_is_the_mode_and_its_share():
    rng = np.random.default_rng(0)
    labels = rng.integers(-3, 4, (25, 60))
    prediction, confidence = metrics.agreement(torch.as_tensor(labels))
    for q in range(60):
        counts = Counter(labels[:, q].tolist())
        most = max(counts.values())
        assert prediction[q] == min(label for label, c in counts.items() if c == most)
        assert confidence[q] == most / 25
    shuffled = metrics.agreement(rng.permutation(labels))
    np.testing.assert_array_equal(shuffled[0], prediction)


def test_one_sample_is_always_sure():
    prediction, confidence = metrics.agreement(np.array([["dog", "cat"]]))
    assert prediction.tolist() == ["dog", "cat"]
    assert confidence.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "field"),
    [
        (([], []), DegenerateError, "confidence"),
        (([0.5, 0.5], [1]), InputError, "correct"),
        (([np.nan], [1]), InputError, "confidence"),
        (([0.5, 1.5], [1, 1]), InputError, "confidence"),
        (([0.5], [1], 0), InputError, "bins"),
    ],
)
@pytest.mark.parametrize("metric", [metrics.ece, metrics.calibration_curve])
def test_what_cannot_be_calibrated_is_refused(metric, arguments, error, field):
    with pytest.raises(error) as refused:
        metric(*arguments)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("labels", "error"), [([0, 1], InputError), (np.zeros((0, 4), int), DegenerateError)]
)
def test_agreement_wants_samples_by_queries(labels, error):
    with pytest.raises(error) as refused:
        metrics.agreement(labels)
    assert refused.value.field == "sampled_labels"
