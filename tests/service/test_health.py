"""Alive and ready: what is asked however busy, locked or broken the service is."""

import threading
import time

import numpy as np
import pytest
from service.world import copy

from surefind.gallery import graph, memory
from surefind.gallery.gallery import Gallery
from surefind.service import state as health


@pytest.fixture(autouse=True)
def never_remembered(monkeypatch):
    monkeypatch.setattr(health, "FRESH", 0.0)


def in_time(call, seconds=30):
    """Return what a call returns, in a thread that is not waited for longer."""
    found = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it waits"
    return found[0]


def test_a_service_that_has_everything_is_ready(client):
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})


def test_health_waits_neither_for_the_threads_nor_for_the_gallery(serve):
    client = serve()
    state = client.app.state.service
    release = threading.Event()
    with state.gallery._lock:
        for _ in range(16):
            for pool in state._pools.values():
                pool.submit(release.wait)
        try:
            assert in_time(lambda: client.get("/healthz")).status_code == 200
            assert in_time(lambda: client.get("/readyz")).status_code == 200
        finally:
            release.set()


def test_neither_needs_a_token(serve):
    client = serve(write_token="secret" * 3)
    assert client.get("/healthz").status_code == client.get("/readyz").status_code == 200


def test_a_calibration_of_another_model_is_a_reason(world, serve, tmp_path):
    gallery = Gallery.open(copy(world, tmp_path), model="another")
    client = serve(gallery=gallery)
    while client.app.state.service._renewing():
        time.sleep(0.01)
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert [reason.split(":")[0] for reason in answer.json()["reasons"]] == ["calibration"]
    assert client.get("/healthz").status_code == 200


def test_a_disk_that_cannot_be_written_is_a_reason(serve, tmp_path, monkeypatch):
    client = serve()
    monkeypatch.setattr(client.app.state.service.readiness, "_folder", tmp_path / "gone")
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert [reason.split(":")[0] for reason in answer.json()["reasons"]] == ["disk"]


def test_a_gallery_that_was_closed_is_a_reason(serve):
    client = serve()
    client.app.state.service.gallery.close()
    assert client.get("/readyz").json()["reasons"][0].startswith("gallery")


def test_a_graph_is_built_in_the_background_and_searches_are_exact_meanwhile(serve, monkeypatch):
    monkeypatch.setattr(memory, "AT_ONCE", 10)
    go, built = threading.Event(), graph.Graph.follow
    monkeypatch.setattr(graph.Graph, "follow", lambda *args: go.wait(60) and built(*args))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 8))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    gallery = Gallery(index="hnsw")
    gallery.add(x, labels=range(300))
    exact = Gallery(index="exact")
    exact.add(x, labels=range(300))
    client = serve(gallery=gallery, learner=None)
    try:
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert [reason.split(":")[0] for reason in answer.json()["reasons"]] == ["graph"]
        body = {"vectors": x[:3].tolist(), "k": 20}
        answers = client.post("/v1/search/vector", json=body).json()["answers"]
        found = [[n["id"] for n in answer["neighbours"]] for answer in answers]
        assert found == exact.search(x[:3], k=20).ids.tolist()
        assert not gallery._engine.graph_ready
        new = {"items": [{"id": 1000, "vector": [-v for v in x[0].tolist()]}]}
        assert client.post("/v1/items", json=new).status_code == 201
        assert client.delete("/v1/items/5").status_code == 200
    finally:
        go.set()
    for _ in range(600):
        if gallery._engine.graph_ready:
            break
        time.sleep(0.1)
    assert client.get("/readyz").status_code == 200
    again = {"vectors": [[-v for v in x[0].tolist()], x[5].tolist()], "k": 5}
    first, second = client.post("/v1/search/vector", json=again).json()["answers"]
    assert first["neighbours"][0]["id"] == 1000
    assert 5 not in [n["id"] for n in second["neighbours"]]


def test_a_graph_that_is_being_built_is_given_up_when_the_service_stops():
    x = np.eye(8, dtype=np.float32)[np.arange(5000) % 8]
    assert not graph.Graph().follow(x, lambda: True)
