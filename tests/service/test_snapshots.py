"""Copies of the gallery while it is served."""

import numpy as np
import pytest

from surefind.errors import InputError, StorageError
from surefind.gallery import store
from surefind.gallery.gallery import Gallery

NEW = {"items": [{"id": "new", "vector": [0.0, 0.0, 1.0]}]}


def test_a_snapshot_is_the_gallery_at_one_moment(client, tmp_path):
    gallery = client.app.state.service.gallery
    made = client.post("/v1/snapshot")
    assert made.status_code == 201
    found = made.json()
    assert found["items"] == 240
    client.post("/v1/items", json=NEW)
    later = client.post("/v1/snapshot").json()
    assert later["items"] == 241
    folder = tmp_path / "gallery.service" / "snapshots"
    with Gallery.open(folder / later["name"]) as again:
        assert again.info["fingerprint"] == gallery.info["fingerprint"]
        assert again.calibration is not None
        again.delete(["new"])
    with Gallery.open(folder / found["name"]) as before:
        assert "new" not in before
        assert not before.calibration.stale
    assert "new" in gallery


def test_a_gallery_in_memory_has_no_snapshots(serve):
    memory = Gallery()
    memory.add(np.eye(3))
    with pytest.raises(InputError):
        memory.save()
    assert serve(gallery=memory, learner=None).post("/v1/snapshot").status_code == 409


def test_a_snapshot_that_fails_leaves_nothing(serve, tmp_path, monkeypatch):
    client = serve()

    def full(connection):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "check_pages", full)
    assert client.post("/v1/snapshot").status_code == 503
    assert list((tmp_path / "gallery.service" / "snapshots").iterdir()) == []
    with pytest.raises(StorageError):
        client.app.state.service.gallery.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
