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
    ("change", "field"),
    [
        ({"kappa": [0.0]}, "kappa"),
        ({"kappa": [1.0, 2.0]}, None),
        ({"distances": [0.1, 0.2]}, None),
        ({"labels": [[1, 2, 3]]}, None),
        ({"distances": [[np.inf, np.inf]]}, "distances"),
        ({"distances": np.empty((1, 0)), "labels": np.empty((1, 0), int)}, "distances"),
        ({"distances": [[0.2, 0.1]]}, "distances"),
        ({"distances": [[0.2, np.nan]]}, "distances"),
        ({"distances": [[-0.2, 0.1]]}, "distances"),
    ],
)
def test_unusable_neighbours_are_refused(change, field):
    given = {"kappa": [1.0], "distances": [[0.1, 0.2]], "labels": [[1, 2]]}
    with pytest.raises(InputError) as refused:
        neighbour_signals(**(given | change))
    assert refused.value.field == field


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_signals_are_finite(bad):
    with pytest.raises(InputError) as refused:
        Signals(np.ones(2), np.ones(2), np.array([1.0, bad]), np.ones(2))
    assert refused.value.field == "margin"


def test_signals_have_one_length():
    with pytest.raises(InputError) as refused:
        Signals(np.ones(2), np.ones(2), np.ones(2), np.ones(3))
    assert refused.value.field == "density"
    with pytest.raises(DegenerateError) as refused:
        Signals(*np.empty((4, 0)))
    assert refused.value.field == Signals.names[0]
