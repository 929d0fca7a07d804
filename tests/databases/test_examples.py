"""Databases answer, and the decisions are those of a search by hand: `make databases` installs them."""

import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "databases"
REAL = sorted(path.stem for path in FOLDER.glob("with_*.py") if "elastic" not in path.stem)


def by_hand(vectors, labels, queries, k):
    cosines = queries.astype(np.float64) @ vectors.T
    near = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(cosines, near, axis=1), np.array(labels, dtype=object)[near]


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yield import_module
    for name in [name for name in sys.modules if name == "digits" or name.startswith("with_")]:
        del sys.modules[name]


def check(examples, name):
    digits, database = examples("digits"), examples(name)
    expected = digits.decided("cosine", by_hand)
    found = digits.decided(database.METRIC, database.search)
    assert (found.label == expected.label).all()
    assert (found.decision == expected.decision).all()
    np.testing.assert_allclose(found.probability, expected.probability, atol=1e-3)
    assert 0.5 < (found.decision == "match").mean() < 0.8  # a fifth or so is not enrolled


@pytest.mark.slow
def test_elasticsearchs_scores_lead_to_the_same_decisions(examples):
    check(examples, "with_elasticsearch")


@pytest.mark.databases
@pytest.mark.filterwarnings("default")  # what the databases' own libraries warn of is theirs
@pytest.mark.parametrize("name", REAL)
def test_a_real_database_leads_to_the_same_decisions(examples, name):
    check(examples, name)
