"""The map: a bounded sample, the same as principal components by definition, and new after a change."""

import numpy as np
import pytest

from surefind.service import projection


def test_the_map_shows_the_largest_variance(client):
    found = client.get("/v1/map").json()
    assert found["total"] == len(found["points"]) == 240
    items = client.get("/v1/items", params={"limit": 1000, "vectors": True}).json()["items"]
    vectors = {item["id"]: np.array(item["vector"]) for item in items}
    x = np.stack([vectors[point["id"]] for point in found["points"]])
    places = np.array([[point["x"], point["y"]] for point in found["points"]])
    axes, centre = np.array(found["axes"]), np.array(found["centre"])
    np.testing.assert_allclose((x - centre) @ axes.T, places, atol=1e-6)
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-9)
    variances = np.sort(np.linalg.eigvalsh(np.cov(x.T, bias=True)))
    np.testing.assert_allclose(np.sort(places.var(axis=0)), variances[-2:], rtol=1e-5)
    assert found["explained"] == pytest.approx(variances[-2:].sum() / variances.sum(), rel=1e-5)


def test_a_large_gallery_is_sampled(client, monkeypatch):
    monkeypatch.setattr(projection, "MOST", 50)
    found = client.get("/v1/map").json()
    assert (found["total"], len({point["id"] for point in found["points"]})) == (240, 50)


def test_the_map_is_kept_until_the_gallery_changes(client):
    before = client.get("/v1/map").json()
    assert client.get("/v1/map").json() == before
    gone = before["points"][0]["id"]
    client.delete(f"/v1/items/{gone}").raise_for_status()
    after = client.get("/v1/map").json()
    assert after["total"] == 239
    assert gone not in {point["id"] for point in after["points"]}


def keep(client, left):
    gallery = client.app.state.service.gallery
    gallery.delete([item.id for block in gallery.records() for item in block][left:])
    return client.get("/v1/map")


@pytest.mark.parametrize("left", [1, 2])
def test_few_items_have_a_map_too(client, left):
    points = keep(client, left).json()["points"]
    assert len(points) == left
    assert np.isfinite([[point["x"], point["y"]] for point in points]).all()


def test_nothing_has_no_map(client):
    assert keep(client, 0).status_code == 409
