"""Floods that cost their senders little: silence, long headers, slow ones, bodies without a token."""

import asyncio
import json
import socket
import threading
import time
from contextlib import ExitStack, suppress

import httpx
import numpy as np
import pytest
from service.live import live

from surefind.gallery.gallery import Gallery
from surefind.service import guard, items
from surefind.service.app import create_app
from surefind.service.settings import Settings

SEARCH = {"vectors": [[1, 0, 0]]}
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def folder(tmp_path):
    with Gallery(path=tmp_path / "gallery") as gallery:
        gallery.add(np.eye(3), ids=list("abc"))
    return tmp_path / "gallery"


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(guard, "TURN", 0.05)


def connect(address, data=b"", source="127.0.0.1"):
    host, port = address.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=60, source_address=(source, 0))
    raw.sendall(data)
    return raw


def status(raw):
    return int(raw.recv(65536).split()[1])


def healthy(address, source="127.0.0.1"):
    with connect(address, HEAD + b"\r\n", source) as raw:
        return status(raw) == 200


def trickle(raw, data):
    for _ in range(2000):
        raw.sendall(data)
        time.sleep(0.02)


def is_closed(raw):
    try:
        return raw.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_silent_connections_give_way_to_newcomers(folder):
    with live(folder, None, max_connections=100) as address, ExitStack() as held:
        silent = [held.enter_context(connect(address)) for _ in range(120)]
        for _ in range(3):
            assert healthy(address)
        assert is_closed(silent[0])  # the longest
        silent[-1].sendall(HEAD + b"\r\n")
        assert status(silent[-1]) == 200


def test_the_address_with_the_most_connections_gives_way(folder):
    with live(folder, None, max_connections=20) as address, ExitStack() as held:
        other = held.enter_context(connect(address, source="127.0.0.2"))
        silent = [held.enter_context(connect(address)) for _ in range(60)]
        other.sendall(HEAD + b"\r\n")
        assert status(other) == 200
        assert healthy(address)
        assert is_closed(silent[0])


BEGUN = b"POST /v1/items HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"


def test_bodies_that_are_still_coming_take_no_place_from_others(folder):
    """Once 256 of one address kept the service from saying that it is well in 19 of 20 cases."""
    with live(folder, None, max_connections=64) as address, ExitStack() as held:
        slow = [held.enter_context(connect(address, BEGUN)) for _ in range(256)]
        assert all(healthy(address) for _ in range(20))
        assert httpx.post(f"{address}/v1/search/vector", json=SEARCH).status_code == 200
        slow[-1].sendall(b'"items":1')
        assert status(slow[-1]) == 422


def test_where_everybody_is_busy_health_has_a_place_and_others_are_sent_away(folder, monkeypatch):
    hold = threading.Event()
    labels = Gallery.labels
    monkeypatch.setattr(Gallery, "labels", lambda self: hold.wait(60) and labels(self))
    ask = b"GET /v1/labels HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with live(folder, None, max_connections=5, seconds=60) as address, ExitStack() as held:
        busy = [held.enter_context(connect(address, ask)) for _ in range(5)]
        time.sleep(1)
        with connect(address, ask) as raw:
            assert status(raw) == 503
        assert healthy(address)
        hold.set()
        assert [status(raw) for raw in busy] == [200] * 5
        assert httpx.get(f"{address}/v1/gallery").status_code == 200


def test_what_does_not_come_or_trickles_is_not_waited_for(folder):
    """Also of a body that was refused."""
    refused = b"POST /v1/items HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    with live(folder, None, seconds=0.5, write_token="w" * 16) as address:
        for data in (b"", b"GET /heal", HEAD):
            with connect(address, data) as raw:
                assert is_closed(raw)
        for data in (HEAD, refused):
            with connect(address, data) as raw, pytest.raises(ConnectionError):
                trickle(raw, b"x")
        assert healthy(address)


def test_who_does_not_read_the_answer_is_cut_off(tmp_path, monkeypatch):
    gone, abort = threading.Event(), guard.Connections.abort
    monkeypatch.setattr(guard.Connections, "abort", lambda *some: (abort(*some), gone.set()))
    monkeypatch.setattr(items, "LONGEST", 2**26)
    with Gallery(path=tmp_path / "gallery") as gallery:
        x = np.random.default_rng(0).normal(size=(1000, 1024))
        gallery.add(x / np.linalg.norm(x, axis=1, keepdims=True))
    ask = b"GET /v1/items?limit=1000&vectors=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with live(tmp_path / "gallery", None, seconds=5) as address, connect(address) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.sendall(ask)
        assert gone.wait(60)


def test_a_request_that_takes_minutes_is_not_cut_off(folder, monkeypatch):
    """A calibration or a snapshot has more time than others, and so has its connection."""
    snapshot = Gallery.save

    def slow(self, place):
        time.sleep(3)
        snapshot(self, place)

    monkeypatch.setattr(Gallery, "save", slow)
    with live(folder, None, seconds=1) as address:
        assert httpx.post(f"{address}/v1/snapshot", json={}, timeout=60).status_code == 201


def test_a_long_header_is_refused(folder):
    with live(folder, None) as address:
        for header in (b"X: " + b"y" * 10**6, b"X: y\r\n" * 10**5, b"X" * 10**6 + b": y"):
            with (
                connect(address, HEAD) as raw,
                suppress(ConnectionError),
            ):  # or closed before its end
                raw.sendall(header + b"\r\n\r\n")
                assert status(raw) == 431
        for length, expected in ((40_000, 431), (20_000, 200)):
            with connect(address, HEAD) as raw:
                raw.sendall(b"X: " + b"y" * length + b"\r\n\r\n")
                assert status(raw) == expected


def test_a_long_address_and_a_long_trailer_are_refused(folder):
    chunks = (
        b"POST /v1/items HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    )
    with live(folder, None) as address:
        with connect(
            address, b"GET /" + b"y" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        ) as raw:
            assert status(raw) == 431
        with connect(address, chunks) as raw, pytest.raises(ConnectionError):
            trickle(raw, b"X: " + b"y" * 65536 + b"\r\n")
        assert healthy(address)


def test_a_body_in_small_chunks_is_no_long_header(folder):
    body = json.dumps({"vectors": [[1, 0, 0]] * 200, "keep": False}).encode()
    with live(folder, None) as address:
        chunks = (body[n : n + 7] for n in range(0, len(body), 7))
        assert httpx.post(f"{address}/v1/search/vector", content=chunks).status_code == 200


def test_a_connection_is_used_again(folder):
    with live(folder, None) as address, httpx.Client(base_url=address) as client:
        for _ in range(20):
            assert client.get("/healthz").status_code == 200
        with connect(address, (HEAD + b"\r\n") * 3) as raw:
            seen = b""
            while seen.count(b"HTTP/1.1 200") < 3:
                seen += raw.recv(65536)


WRITES = (
    ("POST", "/v1/items"),
    ("POST", "/v1/items/image"),
    ("PUT", "/v1/items/a"),
    ("DELETE", "/v1/items/a"),
    ("POST", "/v1/reviews"),
    ("DELETE", "/v1/reviews/a/decision"),
    ("POST", "/v1/calibration"),
    ("POST", "/v1/snapshot"),
)
SEARCHES = ("POST", "/v1/search/vector"), ("POST", "/v1/search/image")


@pytest.mark.parametrize(
    ("token", "expected", "places"),
    [
        (None, 401, WRITES + SEARCHES),
        ("wrong", 401, WRITES + SEARCHES),
        ("r" * 16, 403, WRITES),
    ],
)
def test_nothing_of_a_body_is_read_before_the_token(tmp_path, token, expected, places):
    settings = Settings(folder=tmp_path, read_token="r" * 16, write_token="w" * 16)
    app = create_app(Gallery(), settings=settings)
    sent = []

    async def receive():
        raise AssertionError("the body was asked for")

    async def send(message):
        sent.append(message)

    for method, path in places:
        headers = [(b"content-type", b"multipart/form-data; boundary=x")] if "image" in path else []
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode()}
        scope |= {"query_string": b"", "headers": headers, "client": ("127.0.0.1", 1)}
        asyncio.run(app(scope, receive, send))
        assert sent[0]["status"] == expected, path
        sent.clear()


@pytest.mark.parametrize(
    ("trusted", "expected"), [((), [200, 429, 429]), (("10.0.0.0/8",), [200, 200, 429])]
)
def test_who_is_behind_a_proxy_counts_only_if_it_is_trusted(tmp_path, trusted, expected):
    settings = Settings(folder=tmp_path, rate=0.001, trusted_proxies=trusted)
    app = create_app(Gallery(), settings=settings)

    async def ask(peer):
        transport = httpx.ASGITransport(app, client=(peer, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [
                (await client.get("/v1/gallery", headers={"X-Forwarded-For": own})).status_code
                for own in ("1.1.1.1", "1.1.1.2", "1.1.1.2")
            ]

    assert asyncio.run(ask("10.1.2.3")) == expected
    assert asyncio.run(ask("9.9.9.9")) == [200, 429, 429]
