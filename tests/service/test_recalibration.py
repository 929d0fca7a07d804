"""A calibration that is made while the gallery is searched."""

import threading
import time

import numpy as np
import pytest

from surefind.decisions.decider import Rule
from surefind.embeddings import Embeddings
from surefind.gallery.calibration_queries import ReviewCounts, ReviewSample
from surefind.gallery.gallery import Gallery
from surefind.gallery.graph import Graph

NEW = {"items": [{"id": "new", "vector": [0.0, 0.0, 1.0], "label": 0}]}


def test_calibrating_from_the_items(client):
    body = {"from_items": True, "max_wrong": 0.2, "unknown_share": 0.3, "confidence": 0.9}
    found = client.post("/v1/calibration", json=body)
    assert found.status_code == 200
    after = client.get("/v1/calibration").json()
    assert (after["max_wrong"], after["confidence"]) == (0.2, 0.9)
    assert after["summary"] == found.json()["summary"]
    assert abs(after["unknown"] / after["queries"] - 0.3) < 0.02
    assert (after["renewals"], after["stale"]) == (0, False)
    body |= {"max_fpir": 0.2}
    assert "unknown matched" in client.post("/v1/calibration", json=body).json()["summary"]


@pytest.mark.parametrize("other", ["max_wrong", "confidence"])
def test_a_target_out_of_reach_is_answered(client, other):
    body = {"from_items": True, other: 5e-324, "max_fpir": 5e-324}
    found = client.post("/v1/calibration", json=body)
    assert (found.status_code, found.json()["reached"]) == (200, False)


def test_what_is_promised_is_said_clearly(client):
    for body in (
        {},
        {"with_reviews": False},
        {"with_reviews": True, "from_items": True},
        {"with_reviews": True, "unknown_share": 0.5},
        {"from_items": True, "max_wrong": 0},
        {"from_items": True, "unknown_share": 1},
    ):
        assert client.post("/v1/calibration", json=body).status_code == 422
    assert client.get("/v1/calibration").json()["max_wrong"] == 0.1


@pytest.mark.nightly
def test_it_is_made_with_the_neighbours_that_searches_find(monkeypatch):
    """A graph that misses the two nearest items is calibrated as it is, not as it should be."""
    x = np.random.default_rng(0).normal(size=(8, 16))[np.arange(1000) % 8]
    x = x + np.random.default_rng(1).normal(size=(1000, 16))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = [int(i % 8) for i in range(1000)]
    search = Graph.search

    def blind(self, vectors, queries, count):
        most = min(count + 2, len(vectors))
        return search(self, vectors, queries, most)[:, most - count :]

    monkeypatch.setattr(Graph, "search", blind)
    counts = ReviewCounts(200, 0, 0, 0, 0)
    asked = Embeddings(x[800:], np.full(200, np.inf))
    reviews = ReviewSample(asked, labels[800:], None, counts)
    found = {}
    for index in ("hnsw", "exact"):
        gallery = Gallery(index=index)
        gallery.add(x[:400], ids=range(400), labels=labels[:400])
        gallery.prepare()
        gallery.calibrate(x[400:800], labels[400:800], max_wrong=0.3, contributions=False)
        found[index] = gallery.calibrate(reviews=reviews)
    assert found["hnsw"] != found["exact"]


def test_a_copied_graph_is_not_the_one_that_goes_on():
    x = np.eye(30)[:, :20] + 0.01
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    x = x.astype(np.float32)
    graph = Graph.build(x[:20])
    copied = graph.copied()
    graph.changed(np.arange(10))
    graph.search(x, x[:1], 3)
    assert copied.missing(20) == 0
    assert copied.search(x[:20], x[:5], 1)[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_searches_and_changes_go_on_meanwhile_and_make_it_stale(serve, monkeypatch):
    client = serve()
    state = client.app.state.service
    begun, go, fit = threading.Event(), threading.Event(), Rule.learn

    def slow(*args, **kwargs):
        begun.set()
        go.wait(60)
        return fit(*args, **kwargs)

    monkeypatch.setattr(Rule, "learn", slow)
    answers = []
    ask = {"from_items": True, "max_wrong": 0.3}
    thread = threading.Thread(
        target=lambda: answers.append(client.post("/v1/calibration", json=ask))
    )
    thread.start()
    try:
        assert begun.wait(60)
        search = {"vectors": [[0.0, 0.0, 1.0]], "kappa": [20.0], "novelty": [0.5]}
        assert client.post("/v1/search/vector", json=search).status_code == 200
        assert client.post("/v1/items", json=NEW).status_code == 201
        assert client.get("/v1/items").json()["total"] == 241
    finally:
        go.set()
        thread.join(60)
    assert answers[0].status_code == 200
    for _ in range(600):
        if not state.gallery.calibration.stale:
            break
        time.sleep(0.1)
    after = client.get("/v1/calibration").json()
    assert (after["max_wrong"], after["renewals"] > 0) == (0.3, True)
