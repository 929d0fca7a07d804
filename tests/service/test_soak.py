"""A minute of what `benchmarks/soak.py` does for an hour, and whether its ledger would see a loss."""

import sys
from pathlib import Path

import numpy as np
import pytest
from service import poison

from surefind.embeddings import Embeddings
from surefind.gallery.gallery import Gallery

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from soaking import LABELS, WAITING, Item, Ledger, Soak, vector

OLD, NEW = Item("old", 1), Item("new", 2)


@pytest.mark.nightly
def test_what_was_acknowledged_outlives_kills_a_full_disk_and_floods(tmp_path):
    own = [f"own-{i}" for i in range(40)]
    with Gallery(path=tmp_path / "gallery", normalize=True) as gallery:
        vectors = np.array([vector(id_, 1) for id_ in own])
        labels = [LABELS[i % len(LABELS)] for i in range(40)]
        gallery.add(Embeddings(vectors, np.full(40, 400.0)), ids=own, labels=labels)
    refused = list(poison.REFUSED.values())
    options, sent = ("--review-share", "0.5"), (refused, poison.BODIES[:3])
    soak = Soak(tmp_path, options=options, poison=sent, rate=100, life=4)
    for trouble, seconds in (("full", 4), ("flood", 4), ("calm", 0)):
        soak.live(trouble, seconds)
    found = soak.results()
    assert found["faults"] == []
    assert found["server_errors"] == []
    assert found["acknowledged"]["add"] > 0
    assert found["items_and_reviews_compared"] > 0


@pytest.fixture
def ledger():
    made = Ledger()
    made.note("add", 201, {"kept": OLD})
    made.note("add", 503, {"refused": OLD})
    made.note("change", None, {"kept": NEW})
    made.note("add", None, {"a": OLD, "b": OLD})
    made.note_review("ask", 200, "r", WAITING)
    return made


@pytest.mark.parametrize("kept", [OLD, NEW])
@pytest.mark.parametrize("batch", [{}, {"a": OLD, "b": OLD}])
def test_the_ledger_bears_what_nobody_knows(ledger, kept, batch):
    ledger.compare_items({"kept": kept} | batch)
    ledger.compare_reviews({"r": WAITING})
    assert ledger.faults == []
    assert ledger.certain("kept") == kept


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"kept": Item("other", 1)},
        {"kept": OLD, "refused": OLD},
        {"kept": OLD, "a": OLD},
        {"kept": OLD, "stranger": OLD},
    ],
    ids=["lost", "changed", "refused, and there", "half a batch", "never added"],
)
def test_the_ledger_sees_a_loss(ledger, found):
    ledger.compare_items(found)
    assert ledger.faults


@pytest.mark.parametrize("found", [{}, {"r": "reject None"}, {"r": WAITING, "s": WAITING}])
def test_the_ledger_sees_a_lost_review(ledger, found):
    ledger.compare_reviews(found)
    assert len(ledger.faults) == 1
