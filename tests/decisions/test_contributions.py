import numpy as np
import pytest
from decisions.worlds import everything_useful, kappa_useless, only_kappa
from sklearn.metrics import log_loss, roc_auc_score

from surefind.decisions import probability as contributions
from surefind.decisions.probability import cross_fitted, measure_contributions


def test_figures_are_those_of_scikit_learn():
    signals, right = everything_useful(300, np.random.default_rng(0))
    found = measure_contributions(signals, right, rng=np.random.default_rng(1))
    order = np.random.default_rng(1).permutation(300)
    chance = cross_fitted(signals[order], right[order], np.arange(300) % 5)
    assert found.auroc == pytest.approx(roc_auc_score(right[order], chance))
    assert found.log_loss == pytest.approx(log_loss(right[order], chance))
    margin = found.signals[2]
    assert margin.name == "margin"
    assert margin.alone_auroc == pytest.approx(roc_auc_score(right, signals.margin))
    assert margin.gain == pytest.approx(margin.without_log_loss - found.log_loss)
    assert margin.without_auroc < found.auroc
    assert margin.alone_log_loss > found.log_loss


def test_useful_signals_are_named():
    rng = np.random.default_rng(2)
    found = measure_contributions(*everything_useful(600, rng), rng=rng)
    assert all(signal.adds for signal in found.signals)
    assert "log_kappa, distance, margin, density add." in found.sentence
    assert "nothing" not in found.sentence


def test_it_says_so_if_kappa_adds_nothing():
    rng = np.random.default_rng(3)
    found = measure_contributions(*kappa_useless(600, rng), rng=rng)
    assert not found.signals[0].adds
    assert "κ adds nothing" in found.sentence


def test_one_useful_signal():
    rng = np.random.default_rng(4)
    found = measure_contributions(*only_kappa(600, rng), rng=rng)
    assert [signal.adds for signal in found.signals] == [True, False, False, False]
    assert "log_kappa adds." in found.sentence


def test_many_queries_are_sampled(monkeypatch):
    monkeypatch.setattr(contributions, "MOST_QUERIES", 60)
    signals, right = everything_useful(500, np.random.default_rng(5))
    rng = np.random.default_rng(6)
    measure_contributions(signals, right, rng=rng)
    # A sample of one outcome says nothing; all queries are used then.
    rare = np.arange(500) > 0
    found = measure_contributions(signals, rare, rng=rng)
    assert 0 <= found.auroc <= 1
