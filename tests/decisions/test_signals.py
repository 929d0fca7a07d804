import numpy as np
import pytest

from surefind.decisions import Signals, neighbour_signals
from surefind.decisions.signals import MARGIN_CAP
from surefind.errors import DegenerateError, InputError


def test_signals_are_read_off_the_neighbours():
    signals = neighbour_signals(
        kappa=[1.0, np.e],
        distances=[[0.1, 0.2, 0.6], [0.3, 0.3, 0.9]],
        labels=np.array([["a", "a", "b"], ["b", "a", "b"]], dtype=object),
    )
    np.testing.assert_allclose(signals.matrix()[0], [0, 0.1, 0.5, 0.3])
    np.testing.assert_allclose(signals.matrix()[1], [1, 0.3, 0.0, 0.5])
    np.testing.assert_allclose(signals.oriented()[0], [0, -0.1, 0.5, -0.3])
    assert signals.names == ("log_kappa", "distance", "margin", "density")


def test_missing_neighbours_are_left_out():
    signals = neighbour_signals([1.0], [[0.2, 0.4, np.inf]], [[7, 7, -1]])
    assert signals.margin[0] == MARGIN_CAP
    assert signals.density[0] == pytest.approx(0.3)


def test_one_neighbour_is_enough():
    signals = neighbour_signals([3.0, 4.0], [[0.2], [0.5]], [[1], [2]])
    np.testing.assert_array_equal(signals.distance, signals.density)
    np.testing.assert_array_equal(signals.margin, MARGIN_CAP)


def test_a_query_without_uncertainty_has_a_finite_signal():
    assert np.isfinite(neighbour_signals([np.inf], [[0.2]], [[1]]).log_kappa).all()


def test_rows_can_be_chosen():
    signals = Signals(*np.arange(12.0).reshape(4, 3))
    np.testing.assert_array_equal(signals[[2, 0]].matrix(), signals.matrix()[[2, 0]])
    assert len(signals[np.array([True, False, False])]) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kappa": [0.0]}, "above 0"),
        ({"kappa": [1.0, 2.0]}, "one row for each of the 2"),
        ({"distances": [0.1, 0.2]}, r"\(q, k\)"),
        ({"labels": [[1, 2, 3]]}, r"\(q, k\)"),
        ({"distances": [[np.inf, np.inf]]}, "no neighbour"),
        ({"distances": np.empty((1, 0)), "labels": np.empty((1, 0), int)}, "no neighbour"),
        ({"distances": [[0.2, 0.1]]}, "nearest first"),
        ({"distances": [[0.2, np.nan]]}, "numbers from 0"),
        ({"distances": [[-0.2, 0.1]]}, "numbers from 0"),
    ],
)
def test_unusable_neighbours_are_refused(change, message):
    given = {"kappa": [1.0], "distances": [[0.1, 0.2]], "labels": [[1, 2]]}
    with pytest.raises(InputError, match=message):
        neighbour_signals(**(given | change))


@pytest.mark.parametrize(("bad", "message"), [(np.nan, "NaN"), (np.inf, "margin is infinite")])
def test_signals_are_finite(bad, message):
    with pytest.raises(InputError, match=message):
        Signals(np.ones(2), np.ones(2), np.array([1.0, bad]), np.ones(2))


def test_signals_have_one_length():
    with pytest.raises(InputError, match="density has 3"):
        Signals(np.ones(2), np.ones(2), np.ones(2), np.ones(3))
    with pytest.raises(DegenerateError, match="empty"):
        Signals(*np.empty((4, 0)))
