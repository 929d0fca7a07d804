"""Clients that go, and a service that is stopped while it is busy."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest
from service.live import live
from service.world import copy

from surefind.gallery.gallery import Gallery

LAUNCH = "import typer; from surefind.cli.serve import serve; typer.run(serve)"
SEARCH = {"vectors": [[0.0, 0.0, 1.0]]}


def request(path, body):
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


def wait_until(true, seconds=60):
    for _ in range(int(seconds / 0.02)):
        if true():
            return
        time.sleep(0.02)
    raise TimeoutError


def test_what_waits_for_a_client_that_has_gone_is_not_begun(world, tmp_path, monkeypatch):
    """A change waits behind one that holds the gallery, its client goes, and it is never made."""
    begun, release = threading.Event(), threading.Event()
    add = Gallery.add

    def slow(self, *args, **kwargs):
        if kwargs["ids"] == ["slow"]:
            begun.set()
            release.wait(60)
        return add(self, *args, **kwargs)

    monkeypatch.setattr(Gallery, "add", slow)
    monkeypatch.setattr("surefind.service.state.THREADS", 1)
    with live(copy(world, tmp_path), None) as address:
        host, port = address.removeprefix("http://").split(":")

        def item(name):
            return {"items": [{"id": name, "vector": [0.0, 0.0, 1.0]}]}

        with socket.create_connection((host, int(port))) as first:
            first.sendall(request("/v1/items", item("slow")))
            assert begun.wait(60)
            with socket.create_connection((host, int(port))) as second:
                second.sendall(request("/v1/items", item("abandoned")))
                time.sleep(0.5)
            time.sleep(1.0)  # for the service to see that the second one is gone
            release.set()
            assert b"201" in first.recv(100)
        assert httpx.get(f"{address}/v1/items/slow").status_code == 200
        assert httpx.get(f"{address}/v1/items/abandoned").status_code == 404
        text = httpx.get(f"{address}/metrics").text
        assert 'status="499"' in text


def test_a_slow_request_whose_client_stays_is_answered(world, tmp_path, monkeypatch):
    search = Gallery.search

    def slow(self, *args, **kwargs):
        time.sleep(0.5)
        return search(self, *args, **kwargs)

    monkeypatch.setattr(Gallery, "search", slow)
    with live(copy(world, tmp_path), None) as address:
        known = {"kappa": [20.0], "novelty": [0.5]}
        answers = httpx.post(f"{address}/v1/search/vector", json=SEARCH | known, timeout=60)
        assert answers.status_code == 200


def test_who_waits_when_the_service_is_stopped_is_told_so(world, tmp_path, monkeypatch):
    """A change takes longer than the grace of a service that is stopped: nobody calls that a defect."""
    begun, answered = threading.Event(), []
    add = Gallery.add

    def slow(self, *args, **kwargs):
        begun.set()
        time.sleep(2.5)
        return add(self, *args, **kwargs)

    monkeypatch.setattr(Gallery, "add", slow)
    monkeypatch.setattr("surefind.service.connections.GRACE", 1)
    place = copy(world, tmp_path)

    def ask(address):
        body = {"items": [{"id": "slow", "vector": [0.0, 0.0, 1.0]}]}
        answered.append(httpx.post(f"{address}/v1/items", json=body, timeout=60))

    with live(place, None) as address:
        client = threading.Thread(target=ask, args=(address,))
        client.start()
        assert begun.wait(60)
    client.join()
    assert answered[0].status_code == 504
    assert "stopped" in answered[0].json()["error"]
    with Gallery.open(place, mode="r", on_stale="mark") as after:
        assert "slow" in after


@pytest.mark.slow
def test_it_stops_soon_also_under_load_and_with_idle_connections(world, tmp_path):
    """Clients that search without a pause, one that sends half a body, and ones that keep silent."""
    arguments = [sys.executable, "-c", LAUNCH, str(copy(world, tmp_path)), "--port", "0"]
    body = request("/v1/search/vector", SEARCH | {"kappa": [20.0], "novelty": [0.5]})
    with subprocess.Popen(
        [*arguments, "--rate", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            lines = (re.search(rb"http://([^/:]+):(\d+)", line) for line in process.stdout)
            host, port = next(found for found in lines if found).groups()
            place = host.decode(), int(port)
            wait_until(lambda: answers(place))
            stopped = threading.Event()

            def load():
                try:
                    with socket.create_connection(place) as own:
                        while not stopped.is_set():
                            own.sendall(body)
                            if not own.recv(2**16):
                                return
                except OSError:
                    return

            clients = [threading.Thread(target=load, daemon=True) for _ in range(4)]
            idle = [socket.create_connection(place) for _ in range(20)]
            idle[0].sendall(body[:-10])
            for client in clients:
                client.start()
            time.sleep(1.0)
            before = time.monotonic()
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)
            took = time.monotonic() - before
            stopped.set()
            for one in idle:
                one.close()
        finally:
            process.kill()
    assert process.returncode == 0
    assert took < 9  # half of it, where the machine is not busy; half a body alone may take ten


def answers(place):
    try:
        return httpx.get(f"http://{place[0]}:{place[1]}/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_the_index_is_chosen_at_the_start(tmp_path, index):
    from surefind.cli.serve import open_gallery

    x = np.eye(4, dtype=np.float32)
    with Gallery(path=tmp_path / "gallery") as made:
        made.add(x)
    with open_gallery(str(tmp_path / "gallery"), None, index, check=False) as gallery:
        assert repr(gallery).endswith(f"{index})")
