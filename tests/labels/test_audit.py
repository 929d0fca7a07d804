"""The audit finds planted labels, says how many there are, and says the same twice."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

import surefind as sf
from surefind.labels.audit import audit_labels, wrong_labels, wrong_share


@pytest.fixture(scope="module")
def planted():
    vectors, labels = load_digits(return_X_y=True)
    vectors, labels = vectors[:900], labels[:900]
    rng = np.random.default_rng(0)
    wrong = np.zeros(len(labels), dtype=bool)
    wrong[rng.permutation(len(labels))[:27]] = True
    shown = np.where(wrong, (labels + rng.integers(1, 10, len(labels))) % 10, labels)
    return vectors, labels, shown, wrong


@pytest.fixture(scope="module")
def audit(planted):
    return audit_labels(planted[0], planted[2])


def test_planted_labels_come_first(planted, audit):
    _, labels, shown, wrong = planted
    doubt = np.zeros(len(labels))
    doubt[audit.rows] = audit.wrong
    assert average_precision_score(wrong, doubt) > 0.93
    assert (audit.labels == shown[audit.rows]).all()
    caught = wrong[audit.rows] & (audit.wrong > 0.5)
    assert (audit.suggested == labels[audit.rows])[caught].mean() > 0.9
    assert all(row["wrong"] >= 0.5 for row in audit.to_rows())


def test_it_says_about_how_many_there_are(audit):
    assert 0.02 < audit.share < 0.045


def test_the_same_vectors_are_judged_the_same_twice(planted, audit):
    again = audit_labels(planted[0], planted[2])
    np.testing.assert_array_equal(again.rows, audit.rows)
    np.testing.assert_array_equal(again.wrong, audit.wrong)


def test_the_share_is_that_of_most_likelihood():
    """Of labels drawn by the probabilities that the model gives them, then replaced at random."""
    rng = np.random.default_rng(1)
    chance = rng.dirichlet(np.full(20, 0.02), 4000)
    labels = (rng.random((4000, 1)) > chance.cumsum(axis=1)).sum(axis=1)
    bad = rng.random(4000) < 0.06
    labels = np.where(bad, rng.integers(20, size=4000), labels)
    own = np.clip(chance[np.arange(4000), np.minimum(labels, 19)], 1e-12, 1 - 1e-12)
    odds = np.log(own / (1 - own))

    def surprise(share):
        return -np.log((1 - share) / (1 + np.exp(-np.clip(odds, -30, 30))) + share / 20).sum()

    best = minimize_scalar(surprise, bounds=(1e-4, 0.5), method="bounded").x
    share = wrong_share(odds, 20)
    assert share == pytest.approx(best, abs=1e-3)
    assert share == pytest.approx(bad.mean(), abs=0.015)
    assert (wrong_labels(odds, 20, share)[bad] > 0.5).mean() > 0.7


@pytest.mark.parametrize("labels", [["one"] * 12, [*range(12)]])
def test_refuses_what_cannot_be_judged(labels):
    with pytest.raises(sf.DegenerateError) as refused:
        audit_labels(np.random.default_rng(0).normal(size=(12, 4)), labels)
    assert refused.value.field == "labels"
