"""What an answer, a review and an item may have at most, and who waits for a large request."""

import os
import sqlite3
import stat
import threading
from contextlib import closing

import numpy as np
import pytest
from service.stub import NEAR, Encoder

from surefind.checks import LONGEST_PAYLOAD
from surefind.errors import StorageError
from surefind.gallery.gallery import Gallery
from surefind.service import items, state
from surefind.service.review_store import FILE, Reviews, read_reviews

LONG = {"text": "x" * (LONGEST_PAYLOAD - 20)}


@pytest.fixture
def client(serve):
    gallery = Gallery()
    x = np.random.default_rng(0).normal(size=(300, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    gallery.add(x, labels=[f"l{i % 2}" for i in range(300)], payload=[LONG] * 300)
    return serve(gallery=gallery, learner=Encoder(), review_share=1)


def test_a_payload_has_an_end(client):
    longer = {"text": LONG["text"] + "x" * 20}
    for method, path, body in (
        ("POST", "/v1/items", {"items": [{"vector": NEAR, "payload": longer}]}),
        ("PUT", "/v1/items/0", {"payload": longer}),
    ):
        answer = client.request(method, path, json=body)
        assert (answer.status_code, "16,384" in answer.json()["error"]) == (422, True)


@pytest.mark.parametrize(
    ("count", "k", "payload", "status"),
    [(25, 100, False, 200), (26, 100, False, 422), (2, 100, True, 200), (3, 100, True, 422)],
)
def test_neighbours_are_counted_and_payloads_come_on_request_alone(
    client, count, k, payload, status
):
    body = {"vectors": [NEAR] * count, "k": k, "payload": payload, "keep": False}
    answer = client.post("/v1/search/vector", json=body)
    assert answer.status_code == status
    if status == 200:
        near = [n for one in answer.json()["answers"] for n in one["neighbours"]]
        assert len(near) == count * k
        assert all(n["payload"] == (LONG if payload else None) for n in near)
    assert len(answer.content) < 5 * 2**20


def test_a_list_ends_where_it_is_long_and_goes_on(client, monkeypatch):
    monkeypatch.setattr(items, "LONGEST", 20 * LONGEST_PAYLOAD)
    seen, params = [], {"limit": 1000}
    while params.get("after", "") is not None:
        page = client.get("/v1/items", params=params)
        assert len(page.content) < 22 * LONGEST_PAYLOAD
        seen += [item["id"] for item in page.json()["items"]]
        params["after"] = page.json()["next"]
    assert sorted(seen) == list(range(300))


def test_a_review_keeps_ids_and_shows_the_items_as_they_are(client, tmp_path):
    for _ in range(6):
        body = {"vectors": [NEAR], "k": 100, "payload": True, "keep": None}
        assert client.post("/v1/search/vector", json=body).json()["answers"][0]["review"]
    assert (tmp_path / "gallery.service" / FILE).stat().st_size < 2**16
    near = client.get("/v1/reviews").json()["pending"][0]["neighbours"]
    assert len(near) == 10
    client.put(f"/v1/items/{near[0]['id']}", json={"label": "other"}).raise_for_status()
    client.delete(f"/v1/items/{near[1]['id']}").raise_for_status()
    after = client.get("/v1/reviews").json()["pending"][0]["neighbours"]
    assert [n["id"] for n in after] == [n["id"] for n in near if n != near[1]]
    assert after[0] == near[0] | {"label": "other"}


def test_small_searches_do_not_wait_for_large_ones(client, monkeypatch):
    go, begun, many = threading.Event(), threading.Event(), state.search_many

    def slow(*asked):
        begun.set()
        go.wait(60)
        return many(*asked)

    monkeypatch.setattr(state, "search_many", slow)
    answers, body = [], {"vectors": [NEAR] * 200, "keep": False}
    large = threading.Thread(
        target=lambda: answers.append(client.post("/v1/search/vector", json=body))
    )
    large.start()
    assert begun.wait(30)
    small = client.post("/v1/search/vector", json=body | {"vectors": [NEAR]})
    go.set()
    large.join()
    assert small.status_code == answers[0].status_code == 200
    assert [one["label"] for one in answers[0].json()["answers"]] == 200 * [
        small.json()["answers"][0]["label"]
    ]


def questions(path):
    reviews = Reviews(path)
    for i in range(4):
        asked = {"vector": [1.0, float(i)], "kappa": 3.0, "novelty": None, "label": "x"}
        drawn = {"sampled": True, "u": 0.1, "share": 0.5, "model": None}
        reviews.decide(reviews.ask(asked | drawn), "accept")
    return reviews


@pytest.mark.parametrize("column", ["question", "vector", "decision", "checksum", "decided"])
def test_a_bit_that_flips_in_the_reviews_is_noticed(tmp_path, column):
    path = tmp_path / FILE
    questions(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM reviews WHERE number = 2").fetchone()
        if isinstance(value, int):
            value ^= 2**4
        else:
            data = bytearray(value.encode() if isinstance(value, str) else value)
            data[len(data) // 2] ^= 1
            value = data.decode() if isinstance(value, str) else bytes(data)
        connection.execute(f"UPDATE reviews SET {column} = ? WHERE number = 2", (value,))
    with pytest.raises(StorageError, match="row 2 is damaged"):
        Reviews(path)
    with pytest.raises(StorageError, match="row 2 is damaged"):
        read_reviews(path)


def test_nobody_else_on_the_machine_reads_what_is_kept(tmp_path):
    before = os.umask(0)
    try:
        gallery = Gallery(path=tmp_path / "gallery", index="hnsw")
        gallery.add(np.eye(3))
        gallery.save(tmp_path / "copy")
        questions(tmp_path / "service" / FILE).close()
        gallery.close()
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
