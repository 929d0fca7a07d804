"""Items over HTTP: what was acknowledged is in the gallery, also after a restart."""

import numpy as np
import pytest
from PIL import Image
from service.world import png

from surefind.gallery.gallery import Gallery

NORTH = [0.0, 0.0, 1.0]


def test_items_are_added_looked_at_changed_and_deleted(client):
    new = {"id": "new", "vector": NORTH, "kappa": 7.5, "label": "n", "payload": {"a": [1]}}
    assert client.post("/v1/items", json={"items": [new]}).status_code == 201
    seen = client.get("/v1/items/new").json()
    assert (seen["label"], seen["kappa"], seen["payload"]) == ("n", 7.5, {"a": [1]})
    assert seen["vector"] == NORTH
    client.put("/v1/items/new", json={"label": 3}).raise_for_status()
    assert client.get("/v1/items/new").json()["label"] == 3
    assert client.get("/v1/items/new").json()["payload"] == {"a": [1]}
    client.put("/v1/items/new", json={"vector": [1, 0, 0], "payload": None}).raise_for_status()
    changed = client.get("/v1/items/new").json()
    assert (changed["vector"], changed["kappa"], changed["payload"]) == ([1, 0, 0], None, None)
    assert client.delete("/v1/items/new").json() == {"ids": ["new"]}
    assert client.get("/v1/items/new").status_code == 404


def test_what_was_acknowledged_is_there_after_a_restart(client, tmp_path):
    body = {"items": [{"vector": NORTH}, {"vector": NORTH}]}
    ids = client.post("/v1/items", json=body).json()["ids"]
    seen = Gallery.open(tmp_path / "gallery", mode="r")
    assert all(i in seen for i in ids)


def test_an_image_is_added_with_its_picture(client, world, ask):
    form = {"id": "mine", "label": '"three"', "payload": '{"from": "here"}'}
    files = {"file": ("x.png", png(world.unknown[0]))}
    client.post("/v1/items/image", data=form, files=files).raise_for_status()
    seen = client.get("/v1/items/mine").json()
    assert (seen["label"], seen["payload"], seen["image"]) == ("three", {"from": "here"}, True)
    shown = client.get("/v1/items/mine/image")
    assert shown.headers["content-type"] == "image/webp"
    found = ask(client, png(world.unknown[0]), k=1).json()["answers"][0]["neighbours"][0]
    assert found["id"] == "mine"
    client.delete("/v1/items/mine").raise_for_status()
    assert client.get("/v1/items/mine/image").status_code == 404


def test_numbers_and_texts_are_different_ids(client):
    client.post("/v1/items", json={"items": [{"id": 7, "vector": NORTH, "label": "number"}]})
    assert client.get("/v1/items/7").json()["label"] == "number"
    client.post("/v1/items", json={"items": [{"id": "7", "vector": NORTH, "label": "text"}]})
    assert client.get("/v1/items/7?kind=text").json()["label"] == "text"
    assert client.get("/v1/items/7?kind=number").json()["label"] == "number"
    assert client.get("/v1/items/x?kind=number").status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"items": [{"id": "digit-0", "vector": NORTH}]}, 409, "id"),
        ({"items": [{"id": "a", "vector": NORTH}, {"vector": NORTH}]}, 422, "id"),
        ({"items": [{"vector": NORTH}, {"vector": [1, 0]}]}, 422, "vector"),
        ({"items": [{"vector": [1, 1, 1]}]}, 422, "length"),
        ({"items": [{"vector": NORTH, "label": -1}]}, 422, "label"),
        ({"items": [{"vector": NORTH, "id": True}]}, 422, "id"),
        ({"items": [{"id": "a", "vector": NORTH}] * 2}, 422, "id"),
        ({"items": []}, 422, "items"),
    ],
)
def test_what_cannot_be_added_is_refused_and_nothing_is_added(client, body, status, field):
    before = client.get("/v1/gallery").json()["items"]
    answer = client.post("/v1/items", json=body)
    assert answer.status_code == status
    assert field in answer.json()["error"]
    assert client.get("/v1/gallery").json()["items"] == before


def test_a_form_holds_numbers_and_texts(client, world):
    files = {"file": ("x.png", png(world.known[0]))}
    for text, label in (("7", 7), ('"7"', "7"), ("null", None), ("[1]", "[1]"), ("a b", "a b")):
        (id_,) = client.post("/v1/items/image", data={"label": text}, files=files).json()["ids"]
        assert client.get(f"/v1/items/{id_}").json()["label"] == label


@pytest.mark.parametrize(
    ("method", "id_", "body", "status"),
    [
        ("GET", "nowhere", None, 404),
        ("PUT", "nowhere", {"label": "x"}, 404),
        ("DELETE", "nowhere", None, 404),
        ("PUT", "digit-0", {"kappa": 3}, 422),
    ],
)
def test_what_cannot_be_done_with_an_item_is_refused(client, method, id_, body, status):
    assert client.request(method, f"/v1/items/{id_}", json=body).status_code == status


def test_pictures_come_from_the_images_folder_and_from_nowhere_else(serve, tmp_path):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (300, 100), "red").save(tmp_path / "pictures" / "a.jpg")
    Image.new("RGB", (10, 10)).save(tmp_path / "secret.png")
    gallery = Gallery()
    paths = ["a.jpg", "../secret.png", str(tmp_path / "secret.png"), "none.png", "a\0b"]
    gallery.add(np.eye(5), ids=range(5), payload=[{"path": p} for p in paths])
    client = serve(gallery=gallery, learner=None, images=tmp_path / "pictures")
    assert [client.get(f"/v1/items/{i}/image").status_code for i in range(5)] == [200] + [404] * 4


def test_the_group_of_an_item_is_kept_changed_and_forgotten(client, world):
    body = {"items": [{"id": "new", "vector": [0, 0, 1], "group": "monday"}]}
    client.post("/v1/items", json=body).raise_for_status()
    assert client.get("/v1/items/new").json()["group"] == "monday"
    client.put("/v1/items/new", json={"label": 3}).raise_for_status()
    assert client.get("/v1/items/new").json()["group"] == "monday"
    client.put("/v1/items/new", json={"group": 7}).raise_for_status()
    assert client.get("/v1/items/new").json()["group"] == 7
    client.put("/v1/items/new", json={"group": None}).raise_for_status()
    assert client.get("/v1/items/new").json()["group"] is None
    form = {"id": "picture", "group": "tuesday"}
    file = {"file": ("x.png", png(world.known[0]))}
    client.post("/v1/items/image", data=form, files=file).raise_for_status()
    assert client.get("/v1/items/picture").json()["group"] == "tuesday"
    refused = client.put("/v1/items/new", json={"group": [1]})
    assert (refused.status_code, "group" in refused.json()["error"]) == (422, True)
