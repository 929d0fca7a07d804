"""Processes that read one gallery follow the one that writes it, and change nothing."""

import time

import numpy as np
import pytest
from service.world import copy

from surefind.gallery.gallery import Gallery
from surefind.service import state as follower


def body(world):
    """A query that no digit is near to."""
    north = np.eye(world.learner.embed(world.known[:1]).mean.shape[1])[-1].tolist()
    return {"vectors": [north], "kappa": [20.0], "novelty": [0.5], "k": 1, "keep": True}


@pytest.fixture
def pair(world, tmp_path, serve, monkeypatch):
    """A service that writes and one that reads, on one gallery."""
    monkeypatch.setattr(follower, "PAUSE", 0.05)
    place = copy(world, tmp_path)
    writer = serve(gallery=Gallery.open(place))
    reader = serve(gallery=Gallery.open(place, mode="r"), read_only=True)
    return writer, reader


def until(condition):
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to pass within a minute")


def test_a_reader_follows_items_calibration_and_pictures(pair, world):
    from service.world import png

    writer, reader = pair
    query = body(world)
    new = {"items": [{"id": "north", "vector": query["vectors"][0], "label": 3}]}
    writer.post("/v1/items", json=new).raise_for_status()
    files = {"file": ("x.png", png(world.known[0]))}
    writer.post("/v1/items/image", files=files, data={"id": "shown"}).raise_for_status()
    until(lambda: reader.get("/v1/items/shown").status_code == 200)
    until(lambda: reader.get("/v1/items/shown/image").status_code == 200)
    found = reader.post("/v1/search/vector", json=query).json()["answers"][0]
    assert found["neighbours"][0]["id"] == "north"
    until(lambda: not writer.get("/v1/calibration").json()["stale"])
    made = writer.get("/v1/calibration").json()["made"]
    until(lambda: reader.get("/v1/calibration").json()["made"] == made)
    assert not reader.get("/v1/calibration").json()["stale"]
    answers = [c.post("/v1/search/vector", json=query).json() for c in pair]
    for one in answers:
        one["answers"][0]["review"] = None
    assert answers[0] == answers[1]
    assert 'surefind_failures_total{kind="follow"} 0.0' in reader.get("/metrics").text
    writer.delete("/v1/items/north").raise_for_status()
    until(lambda: reader.get("/v1/items/north").status_code == 404)


def test_a_reader_changes_nothing(pair, world):
    writer, reader = pair
    assert not reader.get("/v1/gallery").json()["may_write"]
    requests = [
        ("POST", "/v1/items", {"items": [{"vector": [0, 0, 1]}]}),
        ("PUT", "/v1/items/digit-0", {"label": 1}),
        ("DELETE", "/v1/items/digit-0", None),
        ("POST", "/v1/calibration", {"with_reviews": True}),
        ("POST", "/v1/reviews", {"id": "x", "verdict": "reject"}),
    ]
    for method, path, body in requests:
        assert reader.request(method, path, json=body).status_code == 403, path
    queries = world.learner.embed(world.unknown[:40])
    body = {"vectors": queries.mean.tolist(), "kappa": queries.kappa.tolist()}
    body |= {"novelty": queries.novelty.tolist(), "keep": True}
    answers = reader.post("/v1/search/vector", json=body).json()["answers"]
    assert "review" in {answer["decision"] for answer in answers}
    assert {answer["review"] for answer in answers} == {None}
    assert writer.get("/v1/reviews").json()["total"] == 0


def test_a_gallery_is_read_again_only_if_it_changed(tmp_path):
    with Gallery(path=tmp_path / "g") as writer:
        assert not writer.refresh()
        writer.add(np.eye(3), ids=["a", "b", "c"])
        with Gallery.open(tmp_path / "g", mode="r") as reader:
            assert not reader.refresh()
            writer.add(np.eye(3), ids=["d", "e", "f"])
            assert "d" not in reader
            assert reader.refresh()
            assert "d" in reader
            assert not reader.refresh()
            writer.delete(["a"])
            assert reader.refresh()
            assert len(reader) == 5
            assert reader.search(np.eye(3), k=1).ids[0, 0] == "d"


def test_what_the_watch_saw_survives_reading_again(world, tmp_path):
    place = copy(world, tmp_path)
    queries = world.learner.embed(world.known[:20])
    with Gallery.open(place) as writer, Gallery.open(place, mode="r") as reader:
        before = reader.watch().queries
        reader.search(queries)
        assert reader.watch().queries == before + 20
        writer.info |= {"images": "elsewhere"}
        assert reader.refresh()
        assert reader.watch().queries == before + 20


def test_a_gallery_that_cannot_be_read_again_stays_as_it_was(world, tmp_path, serve, monkeypatch):
    monkeypatch.setattr(follower, "PAUSE", 0.05)
    place = copy(world, tmp_path)
    reader = serve(gallery=Gallery.open(place, mode="r"), read_only=True)
    (place / "gallery.sqlite").rename(place / "away")
    (place / "lock").write_bytes((place / "lock").read_bytes() + b"\n")
    until(lambda: 'surefind_failures_total{kind="follow"} 1.0' in reader.get("/metrics").text)
    assert reader.post("/v1/search/vector", json=body(world)).status_code == 200
    (place / "away").rename(place / "gallery.sqlite")
    until(lambda: "surefind_follows_total 1.0" in reader.get("/metrics").text)
