import numpy as np
import pytest

from surefind.decisions import (
    LabelModel,
    Votes,
    label_posterior,
    neighbour_signals,
)
from surefind.decisions.label_posterior import CAP
from surefind.decisions.probability import MARGIN_CAP
from surefind.errors import InputError

MODEL = LabelModel(temperature=0.1, sharpness=1.0)


def signals_of(kappa, distances, labels):
    distances, labels = np.asarray(distances, float), np.asarray(labels)
    scores = np.where(np.isfinite(distances), 1 - distances**2 / 2, -np.inf)
    votes = Votes(scores, labels, np.ones(labels.shape))
    return neighbour_signals(
        np.array(kappa), np.array(distances), np.array(labels), label_posterior(votes, MODEL)
    )


def test_signals_are_read_off_the_neighbours():
    signals = signals_of([1.0, np.e], [[0.1, 0.2, 0.6], [0.3, 0.3, 0.9]], [[0, 0, 1], [1, 0, 1]])
    np.testing.assert_allclose(signals.matrix()[0, 2:], [0, 0.1, 0.5, 0.3])
    np.testing.assert_allclose(signals.matrix()[1, 2:], [1, 0.3, 0.0, 0.5])
    np.testing.assert_allclose(signals.oriented()[0, 2:], [0, -0.1, 0.5, -0.3])
    assert signals.names == ("consensus", "evidence", "log_kappa", "distance", "margin", "density")


def test_they_are_about_the_answered_label_not_the_nearest_item():
    signals = signals_of([1.0], [[0.2, 0.25, 0.26, 0.27]], [[5, 2, 2, 2]])
    assert signals.distance[0] == 0.25
    assert signals.margin[0] == pytest.approx(-0.05)
    assert signals.consensus[0] > 0


def test_density_looks_at_the_nearest_ten():
    distances = np.linspace(0.1, 1.2, 12)[None]
    signals = signals_of([1.0], distances, np.zeros((1, 12), int))
    assert signals.density[0] == pytest.approx(distances[0, :10].mean())


def test_missing_neighbours_are_left_out():
    signals = signals_of([1.0], [[0.2, 0.4, np.inf]], [[7, 7, -1]])
    assert signals.margin[0] == MARGIN_CAP
    assert signals.density[0] == pytest.approx(0.3)


def test_without_a_label_there_is_no_margin():
    signals = signals_of([1.0], [[0.2, 0.4]], [[-1, -1]])
    assert (signals.distance[0], signals.margin[0]) == (0.2, 0.0)
    assert signals.consensus[0] == signals.evidence[0] == -CAP


@pytest.mark.parametrize("distances", [np.full((1, 2), np.inf), np.empty((1, 0))])
def test_a_query_without_a_neighbour_is_refused(distances):
    votes = Votes(np.array([[0.9, 0.8]]), np.array([[1, 2]]), np.ones((1, 2)))
    labels = np.zeros(distances.shape, dtype=int)
    with pytest.raises(InputError) as refused:
        neighbour_signals(np.ones(1), distances, labels, label_posterior(votes, MODEL))
    assert refused.value.field == "distances"
