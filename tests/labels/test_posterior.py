"""Evidence about labels: what a calibration looks at, by its definition."""

import math

import numpy as np
import pytest

from surefind import LabelPosterior
from surefind.errors import InputError


def drawn(rng, n=40, labels=7, none=True):
    share = rng.dirichlet(np.full(labels, 0.4), size=n)
    absent = rng.random(n) if none else None
    return share if absent is None else share * (1 - absent)[:, None], absent


@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize("listed", [True, False])
def test_log_odds_are_those_of_the_answer(none, listed):
    """What is missing from a query's list counts against the answer."""
    probability, absent = drawn(np.random.default_rng(3), none=none)
    labels = np.arange(7)
    if listed:
        columns = np.argsort(-probability, axis=1)[:, [2, 0, 1]]
        labels = columns.astype(object)
        probability = np.take_along_axis(probability, columns, axis=1)
    found = LabelPosterior(labels, probability, absent)
    for row, own in enumerate(probability.tolist()):
        best, nobody = max(own), 0.0 if absent is None else absent[row]
        assert found.among[row] == pytest.approx(math.log(best / (1 - nobody - best)), abs=1e-6)
        known = math.inf if absent is None else math.log((1 - nobody) / nobody)
        assert found.known[row] == pytest.approx(known)
        names = labels[row].tolist() if listed else labels.tolist()
        assert found.label[row] == names[own.index(best)]


def test_candidates_are_the_most_probable_labels():
    found = LabelPosterior([*"abcdefg"], [[0.1, 0.3, 0, 0.2, 0, 0.15, 0.05], [1, 0, 0, 0, 0, 0, 0]])
    assert found.candidates.tolist() == [[*"bdfag"], ["a", None, None, None, None]]
    assert found.label_probability[0].tolist() == [0.3, 0.2, 0.15, 0.1, 0.05]
    assert LabelPosterior(["a"], [[0.0]], [1.0]).label.tolist() == [None]


def test_certainty_has_finite_odds_among_labels():
    found = LabelPosterior(["a", "b"], [[1.0, 0.0], [0.0, 0.0]], [0.0, 1.0])
    assert np.isfinite(found.among).all()
    assert found.among[0] > 600
    assert (found.known[0] > 600, found.known[1] < -600) == (True, True)


@pytest.mark.parametrize("rows", [slice(2, 9), np.array([5, 1]), np.arange(40) % 3 == 0])
def test_some_of_the_queries_have_what_they_had(rows):
    probability, absent = drawn(np.random.default_rng(4))
    whole = LabelPosterior([*"abcdefg"], probability, absent)
    some = whole[rows]
    assert len(some) == len(whole.among[rows])
    for name in ("among", "known", "none", "label"):
        np.testing.assert_array_equal(getattr(some, name), getattr(whole, name)[rows])


@pytest.mark.parametrize(
    ("labels", "probability", "none", "field"),
    [
        (["a", "b"], [0.5, 0.5], None, "probability"),
        (["a", "b"], [["x", "y"]], None, "probability"),
        (["a", "b"], np.zeros((0, 2)), None, "probability"),
        (["a"], [[0.5, 0.5]], None, "labels"),
        (["a", 0.5], [[0.5, 0.5]], None, "labels"),
        (["a", "b"], [[0.7, 0.7]], None, "probability"),
        (["a", "b"], [[-0.1, 0.7]], None, "probability"),
        (["a", "b"], [[np.nan, 0.7]], None, "probability"),
        (["a", "b"], [[0.5, 0.5]], [0.2], "probability"),
        (["a", "b"], [[0.5, 0.4]], [0.1, 0.1], "none"),
        (["a", "b"], [[0.5, 0.4]], [np.nan], "none"),
    ],
)
def test_what_is_no_posterior_is_refused(labels, probability, none, field):
    with pytest.raises(InputError) as refused:
        LabelPosterior(labels, probability, none)
    assert refused.value.field == field


def test_float32_may_miss_the_sum():
    share = np.random.default_rng(5).dirichlet(np.ones(500), size=20).astype(np.float32)
    assert len(LabelPosterior(range(500), share)) == 20
