"""Tokens, limits, origins: who is let in, how often, how much and how long."""

import asyncio
import time

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from service.world import png

from surefind.errors import InputError
from surefind.gallery.gallery import Gallery
from surefind.service.app import create_app
from surefind.service.guard import MOST_CLIENTS, Buckets
from surefind.service.settings import NOTHING, READ, WRITE, Settings, check_listening, permission

READER, WRITER = (
    {"Authorization": "Bearer reader-reader-reader"},
    {"Authorization": "Bearer writer-writer-writer"},
)
TOKENS = {"read_token": "reader-reader-reader", "write_token": "writer-writer-writer"}
ITEM = {"items": [{"vector": [0.0, 0.0, 1.0]}]}


@pytest.fixture
def small(serve):
    """Start services on four vectors."""

    def start(**settings):
        gallery = Gallery()
        gallery.add(np.eye(3), ids=list("abc"))
        return serve(gallery=gallery, learner=None, **settings)

    return start


@pytest.mark.parametrize(
    ("tokens", "header", "expected"),
    [
        ((None, None), None, WRITE),
        (("reader-reader-reader", None), None, NOTHING),
        (("reader-reader-reader", None), "Bearer reader-reader-reader", READ),
        ((None, "writer-writer-writer"), "Bearer writer-writer-writer", WRITE),
        ((None, "writer-writer-writer"), "Bearer reader-reader-reader", NOTHING),
        (("reader-reader-reader", "writer-writer-writer"), "Bearer reader-reader-reader", READ),
        (("reader-reader-reader", "writer-writer-writer"), "bearer writer-writer-writer", WRITE),
        (("reader-reader-reader", "writer-writer-writer"), "Basic writer-writer-writer", NOTHING),
        (("reader-reader-reader", "writer-writer-writer"), "Bearer ", NOTHING),
        (("reader-reader-reader", "wrïter-wrïter-wrïter"), "Bearer wrïter-wrïter-wrïter", WRITE),
    ],
)
def test_permission(tmp_path, tokens, header, expected):
    settings = Settings(folder=tmp_path, read_token=tokens[0], write_token=tokens[1])
    assert permission(settings, header).scope == expected


def test_readers_read_writers_write_and_nobody_else_does(small):
    client = small(**TOKENS)
    search = {"vectors": [[1, 0, 0]]}
    for path in ("/v1/items", "/v1/calibration", "/v1/reviews", "/v1/gallery", "/metrics"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers=READER).status_code == 200
    assert client.post("/v1/search/vector", json=search).status_code == 401
    assert client.post("/v1/search/vector", json=search, headers=READER).status_code == 200
    assert client.post("/v1/items", json=ITEM).status_code == 401
    assert client.post("/v1/items", json=ITEM, headers=READER).status_code == 403
    assert client.post("/v1/items", json=ITEM, headers=WRITER).status_code == 201
    for method, path in (
        ("DELETE", "/v1/items/a"),
        ("PUT", "/v1/items/a"),
        ("POST", "/v1/reviews"),
    ):
        assert client.request(method, path, headers=READER).status_code in (403, 422)
    assert "a" in client.app.state.service.gallery
    assert client.get("/healthz").status_code == 200
    assert client.get("/").status_code == 200


def test_a_reader_leaves_nothing_in_the_queue(serve, world, ask):
    client = serve(read_token="reader-reader-reader")
    client.headers.update(READER)
    for image in world.unknown[:20]:
        assert ask(client, png(image)).json()["answers"][0]["review"] is None
    assert client.get("/v1/reviews").json()["total"] == 0


def test_beyond_this_machine_a_token_is_needed(tmp_path):
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.9.9.9"):
        check_listening(Settings(folder=tmp_path, host=host))
    for host in ("0.0.0.0", "::", "example.org", "192.168.0.1"):
        check_listening(Settings(folder=tmp_path, host=host, write_token="x" * 16))
        with pytest.raises(InputError):
            check_listening(Settings(folder=tmp_path, host=host))


def test_a_page_of_another_host_is_refused(small):
    client = small()
    foreign = {"Origin": "http://evil.example"}
    assert client.post("/v1/items", json=ITEM, headers=foreign).status_code == 403
    assert client.get("/v1/items", headers={"Host": "evil.example"}).status_code == 403
    for host in ("localhost:8765", "127.0.0.1:1", "[::1]:8765", "[::1]"):
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert client.get("/v1/items", headers=headers).status_code == 200


@pytest.mark.parametrize("origin", ["http://[", "null", "http://localhost.evil.example", "[::1]"])
def test_an_origin_that_is_none_is_refused(small, origin):
    assert small().get("/v1/items", headers={"Origin": origin}).status_code == 403


def test_a_page_elsewhere_gets_the_page_and_nothing_else(small):
    """An image on a page of another host names no origin, but its browser says whence it asks."""
    client = small()
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200)):
        for path in ("/v1/audit", "/v1/items", "/v1/openapi.json", "/metrics", "/healthz"):
            found = client.get(path, headers={"Sec-Fetch-Site": site}).status_code
            assert found == status or (path, found) == ("/v1/audit", 409), path
        for path in ("/", "/page/main.js"):
            assert client.get(path, headers={"Sec-Fetch-Site": site}).status_code == 200


def test_a_request_has_one_host(small):
    headers = [("Host", "localhost"), ("Host", "evil.example")]
    assert small().get("/healthz", headers=headers).status_code == 400


def test_a_body_that_is_too_large_is_refused_unread(small):
    client = small(max_bytes=1000)
    answer = client.post("/v1/items", content=b" " * 2000)
    assert answer.status_code == 413


def test_a_hundred_megabytes_without_a_length_are_cut_off_early(small):
    client = small(max_bytes=2**20)
    read = 0

    async def body():
        nonlocal read
        for _ in range(1600):
            read += 2**16
            yield bytes(2**16)

    async def call():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as direct:
            return await direct.post("/v1/items", content=body())

    assert asyncio.run(call()).status_code == 413
    assert read < 2**21


def test_a_body_that_comes_too_slowly_is_refused(small):
    client = small(seconds=0.2)

    async def body():
        yield b"{"
        await asyncio.sleep(5)
        yield b"}"

    async def call():
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as direct:
            return await direct.post("/v1/items", content=body())

    assert asyncio.run(call()).status_code == 408


def test_too_many_requests_are_refused_and_health_is_not(small):
    client = small(rate=0.5)
    statuses = [client.get("/v1/gallery").status_code for _ in range(3)]
    assert statuses == [200, 429, 429]
    assert client.get("/v1/gallery").headers["retry-after"]
    assert client.get("/healthz").status_code == 200


def test_a_search_takes_a_drop_for_each_vector(small):
    client, vectors = small(rate=40), [[1, 0, 0]]
    for count, status in ((256, 200), (1, 429)):
        body = {"vectors": vectors * count}
        assert client.post("/v1/search/vector", json=body).status_code == status


def test_a_bucket_fills_again():
    buckets = Buckets(rate=1)
    assert [buckets.wait("a", 0.0) for _ in range(3)] == [0, 0, 1]
    assert buckets.wait("b", 0.0) == 0
    assert buckets.wait("a", 1.0) == 0
    assert buckets.wait("a", 1.0) == 1
    assert [buckets.wait("a", 100.0) for _ in range(3)] == [0, 0, 1]


def test_buckets_forget_old_clients():
    buckets = Buckets(rate=0.5)
    for i in range(MOST_CLIENTS + 1):
        buckets.wait(str(i), 0.0)
    assert buckets.wait("0", 0.0) == 0
    assert buckets.wait(str(MOST_CLIENTS), 0.0) > 0


def test_what_takes_too_long_is_cut_off(small, monkeypatch):
    client = small(seconds=0.1)
    gallery = client.app.state.service.gallery
    monkeypatch.setattr(gallery, "get", lambda id_: time.sleep(0.5))
    assert client.get("/v1/items/a").status_code == 504


def test_a_defect_is_answered_without_details(small, monkeypatch, caplog):
    client = small()

    def fail(id_):
        raise KeyError("secret content")

    monkeypatch.setattr(client.app.state.service.gallery, "get", fail)
    with caplog.at_level("INFO", "surefind.service"):
        answer = client.get("/v1/items/a")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "secret" not in caplog.text
    (line,) = [r.fields for r in caplog.records if "defect" in getattr(r, "fields", {})]
    assert line["defect"].startswith("KeyError at fail:")
    assert answer.headers["x-request-id"] in answer.json()["error"]


def test_shutdown_finishes_what_was_begun(tmp_path):
    gallery = Gallery(path=tmp_path / "gallery")
    settings = Settings(folder=tmp_path / "service", seconds=0.05)
    app = create_app(gallery, settings=settings)
    slow = gallery.add

    def add(*args, **options):
        time.sleep(0.3)
        return slow(*args, **options)

    gallery.add = add
    with TestClient(app, base_url="http://localhost") as client:
        assert client.post("/v1/items", json=ITEM).status_code == 504
    assert len(gallery) == 1
    gallery.close()
