import numpy as np
import pytest

from surefind.errors import DegenerateError, InputError
from surefind.gallery.forecast import _followed
from surefind.gallery.gallery import Gallery

DIM = 12


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    centres = unit(rng.normal(size=(800, DIM)))
    who = np.repeat(np.arange(800), 4)
    return who, unit(centres[who] + 0.13 * rng.normal(size=(len(who), DIM)))


def of_first(world, labels):
    who, x = world
    gallery = Gallery()
    gallery.add(x[who < labels], labels=who[who < labels])
    return gallery


def test_a_line_in_log_odds_is_followed():
    counts = [50, 100, 200, 400] * 2
    odds = np.array([3.0 * (c / 50) ** -0.5 for c in counts])
    found = _followed(list(zip(counts, odds / (1 + odds), strict=True)), 400, 10.0, 0.01, 0.5)
    later = 3.0 * 80**-0.5
    assert found.later == pytest.approx(later / (1 + later), abs=1e-6)
    assert found.interval == pytest.approx((found.later, found.later), abs=1e-5)
    assert found.labels == (50, 100, 200, 400)
    assert "At 10 times the labels" in found.summary


@pytest.mark.nightly
def test_what_is_forecast_comes_about(world):
    small = of_first(world, 160).forecast(5.0, max_wrong=0.05, unknown_share=0.3)
    whole = of_first(world, 800).forecast(2.0, max_wrong=0.05, unknown_share=0.3)
    assert small.later < small.now
    assert small.interval[0] - 0.05 <= whole.now <= small.interval[1] + 0.05


def test_the_target_is_the_calibrations(world):
    gallery = of_first(world, 60)
    gallery.calibrate(unknown_share=0.3, max_wrong=0.2, contributions=False)
    assert gallery.forecast().max_wrong == 0.2


def test_wrong_requests_are_refused(world):
    with pytest.raises(DegenerateError, match="needs 40 labels"):
        of_first(world, 30).forecast()
    with pytest.raises(DegenerateError, match="empty"):
        Gallery().forecast()
    for options, field in (({"growth": 1.0}, "growth"), ({"unknown_share": 1.0}, "unknown_share")):
        with pytest.raises(InputError) as refused:
            of_first(world, 60).forecast(**options)
        assert refused.value.field == field
