"""A calibration that is made while the gallery is searched."""

import threading
import time

import pytest

from surefind.gallery import gallery as module

NEW = {"items": [{"id": "new", "vector": [0.0, 0.0, 1.0], "label": 0}]}


def test_calibrating_from_the_items(client):
    body = {"from_items": True, "max_wrong": 0.2, "unknown_share": 0.3, "confidence": 0.9}
    found = client.post("/v1/calibration", json=body)
    assert found.status_code == 200
    after = client.get("/v1/calibration").json()
    assert (after["max_wrong"], after["confidence"]) == (0.2, 0.9)
    assert after["summary"] == found.json()["summary"]
    assert 0 <= after["left_out_matched"] < after["left_out_queries"]
    assert (after["renewals"], after["stale"]) == (0, False)
    body |= {"max_fpir": 0.2}
    assert "20 % of unknown" in client.post("/v1/calibration", json=body).json()["summary"]


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


def test_searches_and_changes_go_on_meanwhile_and_are_taken_in(serve, monkeypatch):
    client = serve()
    state = client.app.state.service
    begun, go, calibrate = threading.Event(), threading.Event(), module._calibrated

    def slow(*args, **kwargs):
        begun.set()
        go.wait(60)
        return calibrate(*args, **kwargs)

    monkeypatch.setattr(module, "_calibrated", slow)
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
    assert (after["max_wrong"], after["stale"]) == (0.3, False)
