"""A service that is stopped while it is busy."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
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


def test_who_waits_when_the_service_is_stopped_is_told_so(world, tmp_path, monkeypatch):
    """A change takes longer than the grace of a service that is stopped: nobody calls that a defect."""
    begun, answered = threading.Event(), []
    add = Gallery.add

    def slow(self, *args, **kwargs):
        begun.set()
        time.sleep(2.5)
        return add(self, *args, **kwargs)

    monkeypatch.setattr(Gallery, "add", slow)
    monkeypatch.setattr("surefind.service.guard.GRACE", 1)
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
    with Gallery.open(place, mode="r") as after:
        assert "slow" in after


@pytest.mark.nightly
def test_it_stops_soon_also_under_load_and_with_idle_connections(world, tmp_path):
    """Clients that search without a pause, one that sends half a body, and ones that keep silent."""
    arguments = [sys.executable, "-c", LAUNCH, str(copy(world, tmp_path)), "--port", "0"]
    body = request("/v1/search/vector", SEARCH | {"kappa": [20.0], "novelty": [0.5]})
    with subprocess.Popen(
        [*arguments, "--set", "rate=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
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
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=8)  # five seconds, where the machine is not busy
            stopped.set()
            for one in idle:
                one.close()
        finally:
            process.kill()
    assert process.returncode == 0


def answers(place):
    try:
        return httpx.get(f"http://{place[0]}:{place[1]}/healthz").status_code == 200
    except httpx.TransportError:
        return False
