"""A disk that is full or fails: searches are answered, and what was not acknowledged is not there."""

import contextlib
import os
import resource
import sqlite3
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from service.stub import NEAR, Encoder

from surefind.errors import StorageError
from surefind.gallery import store
from surefind.gallery.gallery import Gallery
from surefind.service.review_store import Reviews


@pytest.fixture
def place(tmp_path):
    with Gallery(path=tmp_path / "gallery") as gallery:
        gallery.add(np.eye(3), ids=list("abc"), labels=["x", "y", "x"])
        gallery.renew()
    return tmp_path / "gallery"


@pytest.fixture
def client(serve, place):
    """A service that lets every query wait for a person."""
    gallery = Gallery.open(place)
    return serve(gallery=gallery, learner=Encoder(), review_share=1)


def picture(shade):
    out = BytesIO()
    Image.new("L", (4, 4), shade).save(out, "PNG")
    return out.getvalue()


def upload(client, **form):
    return client.post("/v1/items/image", files={"file": picture(9)}, data=form)


def search(client):
    by_image = client.post("/v1/search/image", files={"file": picture(5)})
    return by_image, client.post("/v1/search/vector", json={"vectors": [NEAR]})


def pictures(client):
    folder = client.app.state.service.settings.folder
    return sorted(p.name for p in folder.glob("*thumbnails/*"))


def failures(client):
    lines = client.get("/metrics").text.splitlines()
    return next(
        float(x.split()[1])
        for x in lines
        if x.startswith('surefind_failures_total{kind="review"} ')
    )


@contextlib.contextmanager
def full_disk():
    """Let no file grow: the system refuses, as on a full disk, and keeps what fits before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(client, place, tmp_path):
    state = client.app.state.service
    assert upload(client, id="before").status_code == 201
    kept = [answer.json()["answers"][0]["review"] for answer in search(client)]
    assert all(kept)
    shown = pictures(client)
    with full_disk():
        for answer in search(client):
            assert answer.status_code == 200
            assert answer.json()["answers"][0]["review"] is None
        assert upload(client, id="lost").status_code == 503
        assert upload(client).status_code == 503
        body = {"items": [{"id": "lost", "vector": NEAR}]}
        assert client.post("/v1/items", json=body).status_code == 503
        assert client.delete("/v1/items/b").status_code == 503
        verdict = {"id": kept[0], "verdict": "reject"}
        assert client.post("/v1/reviews", json=verdict).status_code == 503
    assert failures(client) == 2
    assert set(state.gallery) == {"a", "b", "c", "before"}
    assert pictures(client) == shown
    assert upload(client, id="after").status_code == 201
    later = [answer.json()["answers"][0]["review"] for answer in search(client)]
    # As a kill would leave it: nothing is tidied up.
    with Gallery.open(place, mode="r") as gallery:
        assert set(gallery) == {"a", "b", "c", "before", "after"}
        assert gallery.get("a").vector.tolist() == [1, 0, 0]
    waiting = Reviews(tmp_path / "gallery.service" / "reviews.sqlite")
    assert [question["id"] for question in waiting.pending()] == kept + later
    waiting.close()


@pytest.mark.parametrize(
    "error",
    [StorageError("no room"), OSError(28, "no space"), sqlite3.OperationalError("disk I/O error")],
)
def test_a_search_is_answered_whatever_becomes_of_its_review(client, monkeypatch, error):
    @contextlib.contextmanager
    def fail(_connection):
        raise error
        yield

    monkeypatch.setattr(store, "transaction", fail)
    for answer in search(client):
        assert answer.status_code == 200
        assert answer.json()["answers"][0]["review"] is None
    assert failures(client) == 2
    assert pictures(client) == []


@pytest.mark.parametrize("fails", ["write", "gallery"])
def test_an_upload_that_fails_has_stored_nothing(client, monkeypatch, fails):
    state = client.app.state.service
    assert upload(client, id="before").status_code == 201
    shown = pictures(client)

    def fail(*_args, **_options):
        raise StorageError("no room") if fails == "gallery" else OSError(28, "no space")

    if fails == "write":
        monkeypatch.setattr(Path, "write_bytes", fail)
    else:
        monkeypatch.setattr(state.gallery, "add", fail)
    assert upload(client).status_code == 503
    monkeypatch.undo()
    assert len(state.gallery) == 4
    assert pictures(client) == shown


def test_a_picture_that_gets_no_place_is_missing_rather_than_wrong(client, monkeypatch):
    def fail(*_):
        raise OSError(5, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        assert upload(client, id="bare").status_code == 201
    assert client.get("/v1/items/bare/image").status_code == 404
    assert not client.get("/v1/items/bare").json()["image"]
