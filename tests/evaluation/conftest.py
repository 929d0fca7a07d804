from dataclasses import replace

import pytest

import surefind as sf
from surefind.evaluation import evaluate as evaluation


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer resamples: what they cost here is their overhead."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 5)


@pytest.fixture
def novel(monkeypatch):
    """Give what every learner embeds a p-value: a function of the first coordinate."""
    embed = sf.MetricLearner.embed

    def with_novelty(self, inputs, **options):
        found = embed(self, inputs, **options)
        return replace(found, novelty=(1.1 + found.mean[:, 0]) / 2.2)

    monkeypatch.setattr(sf.MetricLearner, "embed", with_novelty)


@pytest.fixture
def plain(monkeypatch):
    """Take novelty from every learner that has it."""
    embed = sf.MetricLearner.embed
    without = lambda self, inputs, **options: replace(embed(self, inputs, **options), novelty=None)
    monkeypatch.setattr(sf.MetricLearner, "embed", without)
