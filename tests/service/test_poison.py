"""What cannot be read back is refused at the door, and what is let in harms nobody."""

import asyncio
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from service import poison
from service.stub import NEAR, Encoder

from surefind.errors import StorageError
from surefind.gallery.gallery import Gallery
from surefind.service.batching import Batcher
from surefind.service.images import ImageEmbedder
from surefind.service.wire import RefusedError


@pytest.fixture
def client(serve, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    (images / "loop").symlink_to("loop")
    gallery = Gallery()
    gallery.add(np.eye(3), ids=list("abc"), labels=["x", "y", None])
    return serve(gallery=gallery, learner=None, images=images)


def add(client, **item):
    body = json.dumps({"items": [{"vector": NEAR} | item]})
    return client.post("/v1/items", content=body.encode())


def search(client, count=1):
    return client.post(
        "/v1/search/vector", json={"vectors": [NEAR] * count, "k": 10, "payload": True}
    )


def test_what_cannot_be_read_back_is_refused_and_no_item_is_changed_into_it(client):
    for name, item in poison.REFUSED.items():
        answer = add(client, **item)
        assert answer.status_code == 422, (name, answer.text)
        assert answer.json()["error"]
        body = json.dumps(item).encode()
        assert client.put("/v1/items/a", content=body).status_code == 422, name
    assert len(client.app.state.service.gallery) == 3
    assert client.get("/v1/items/a").json()["label"] == "x"


def test_an_item_of_any_id_can_be_used_in_every_address(client):
    for id_ in poison.IDS.values():
        use_everywhere(client, id_)


def use_everywhere(client, id_):
    kind = {"kind": "number" if isinstance(id_, int) else "text"}
    assert add(client, id=id_, payload={"n": 1}).json() == {"ids": [id_]}
    address = f"/v1/items/{quote(str(id_), safe='')}"
    found = client.get(address, params=kind)
    assert (found.status_code, found.json()["id"]) == (200, id_)
    changed = client.put(address, params=kind, json={"label": "new"})
    assert changed.json() == {"ids": [id_]}
    assert client.get(f"{address}/image", params=kind).status_code == 404
    state = client.app.state.service
    state.thumbnails.keep(id_, b"picture")
    assert client.get(f"{address}/image", params=kind).content == b"picture"
    assert id_ in [item["id"] for item in client.get("/v1/items").json()["items"]]
    nearest = search(client).json()["answers"][0]["neighbours"][0]
    assert (nearest["id"], nearest["label"], nearest["image"]) == (id_, "new", True)
    assert client.delete(address, params=kind).json() == {"ids": [id_]}
    assert len(state.gallery) == 3
    assert not state.thumbnails.has(id_)


def test_an_id_that_looks_like_a_picture_is_not_one(client):
    add(client, id="x")
    add(client, id="x/image")
    client.app.state.service.thumbnails.keep("x", b"of x")
    assert client.get("/v1/items/x/image").content == b"of x"
    assert client.get("/v1/items/x%2Fimage").json()["id"] == "x/image"
    assert client.get("/v1/items/x%2Fimage/image").status_code == 404
    assert client.delete("/v1/items/x%2Fimage").status_code == 200
    assert "x" in client.app.state.service.gallery


def test_no_payload_harms_anybody(client):
    for payload in poison.PAYLOADS.values():
        harm(client, payload)
        client.delete("/v1/items/p").raise_for_status()


def harm(client, payload):
    assert add(client, id="p", payload=payload).status_code == 201
    assert client.get("/v1/items/p").json()["payload"] == payload
    assert client.get("/v1/items").status_code == 200
    nearest = search(client).json()["answers"][0]["neighbours"][0]
    assert (nearest["payload"], nearest["image"]) == (payload, False)
    assert client.get("/v1/items/p/image").status_code == 404
    assert client.get("/v1/audit").status_code in (200, 409)
    assert client.put("/v1/items/a", json={"payload": payload}).status_code == 200


def test_a_gallery_that_was_filled_elsewhere_can_be_served(serve):
    gallery = Gallery()
    ids = ["", ".", "..", 2**100, -(2**80), "x" * 3000]
    gallery.add(np.tile(NEAR, (6, 1)), ids=ids, labels=["", 2**90, None, "y" * 999, 0, "z"])
    client = serve(gallery=gallery, learner=None)
    assert {i["id"] for i in client.get("/v1/items").json()["items"]} == set(ids)
    assert len(search(client).json()["answers"][0]["neighbours"]) == 6
    assert client.get("/v1/labels").json()["total"] == 5
    for id_ in ("", 2**100, -(2**80), "x" * 3000):
        assert client.get(f"/v1/items/{id_}").json()["id"] == id_
        assert client.delete(f"/v1/items/{id_}").status_code == 200


def test_automatic_ids_go_on_whatever_numbers_were_given(client):
    for highest in (poison.LARGEST, poison.LARGEST - 1, 2**52):
        assert add(client, id=highest).status_code == 201
    assert [add(client).json()["ids"] for _ in range(3)] == [[0], [1], [2]]
    assert add(client, id=50).status_code == 201
    assert add(client).json()["ids"] == [51]
    assert client.get("/v1/items").status_code == 200


def test_an_upload_is_refused_by_the_same_rules(serve):
    client = serve(gallery=Gallery(), learner=Encoder())
    out = BytesIO()
    Image.new("L", (4, 4)).save(out, "PNG")
    for form in (
        {"id": "."},
        {"id": '".."'},
        {"id": "x" * 257},
        {"payload": '{"x": "\\ud800"}'},
        {"payload": "[1]"},
    ):
        answer = client.post("/v1/items/image", files={"file": out.getvalue()}, data=form)
        assert answer.status_code == 422
    deep = json.dumps({"x": poison.nested(150)})
    answer = client.post("/v1/items/image", files={"file": out.getvalue()}, data={"payload": deep})
    assert answer.status_code == 422
    assert len(client.app.state.service.gallery) == 0


PLACES = (
    ("POST", "/v1/items"),
    ("PUT", "/v1/items/a"),
    ("POST", "/v1/items/image"),
    ("POST", "/v1/search/vector"),
    ("POST", "/v1/search/image"),
    ("POST", "/v1/reviews"),
    ("POST", "/v1/calibration"),
)


def test_no_body_is_a_server_error(client):
    for body, (method, address) in itertools.product(poison.BODIES, PLACES):
        kind = "multipart/form-data; boundary=x" if "image" in address else "application/json"
        answer = client.request(method, address, content=body, headers={"content-type": kind})
        assert answer.status_code < 500, (address, body[:100], answer.text)
    assert client.get("/v1/items").status_code == 200
    assert search(client).status_code == 200


def test_an_item_cannot_replace_a_reviewers_picture(client):
    state = client.app.state.service
    review = state.reviews.ask({"label": "x", "vector": NEAR, "kappa": None})
    state.review_thumbnails.keep(review, b"what was asked")
    for id_ in (f"review:{review}", review):
        assert add(client, id=id_).status_code == 201
        state.thumbnails.keep(id_, b"another one")
        assert client.get(f"/v1/reviews/{review}/image").content == b"what was asked"
        assert client.delete(f"/v1/items/{quote(id_)}").status_code == 200
    assert client.get(f"/v1/reviews/{review}/image").content == b"what was asked"


def test_whoever_asks_beside_a_query_that_breaks_is_answered(client, monkeypatch):
    """Something that nobody foresaw goes wrong with one item; other queries do not find it."""
    gallery = client.app.state.service.gallery
    gallery.add(np.array([NEAR]), ids=["bad"], payload=[{"path": "bad"}])

    def fail(payload):
        if payload is not None:
            raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr(client.app.state.service.thumbnails, "_source", fail)
    gate = threading.Barrier(8)

    def ask(n):
        vector = NEAR if n % 4 == 0 else np.eye(3)[n % 3].tolist()
        gate.wait()
        return client.post("/v1/search/vector", json={"vectors": [vector], "k": 1}).status_code

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert [found[n] for n in (0, 4)] == [500, 500]
    assert [status for n, status in enumerate(found) if n % 4] == [200] * 6


def test_a_batch_that_fails_is_done_again_by_halves():
    calls = []

    def run(items):
        calls.append(len(items))
        if "bad" in items:
            raise ZeroDivisionError
        return items

    async def main():
        batcher = Batcher(run, most=16)
        asked = (batcher.ask("bad" if n == 5 else n) for n in range(16))
        found = await asyncio.gather(*asked, return_exceptions=True)
        await batcher.close()
        return found

    found = asyncio.run(main())
    assert isinstance(found.pop(5), ZeroDivisionError)
    assert found == [n for n in range(16) if n != 5]
    assert len(calls) == 9


def test_what_fails_for_everybody_is_not_tried_again():
    calls = []

    def run(items):
        calls.append(items)
        raise StorageError("the server is gone")

    async def main():
        batcher = Batcher(run, most=16)
        found = await asyncio.gather(*map(batcher.ask, range(4)), return_exceptions=True)
        await batcher.close()
        return found

    assert [type(error) for error in asyncio.run(main())] == [StorageError] * 4
    assert len(calls) == 1


def test_an_image_that_the_network_cannot_take_fails_alone():
    images = [np.full((1, 4, 4), shade, dtype=np.float32) for shade in (1, 0, 2)]
    first, wrong, last = ImageEmbedder(Encoder(), 100).embed(images)
    assert isinstance(wrong, RefusedError)
    assert len(first) == len(last) == 1
