"""The calibration of a served gallery: renewed behind the requests, watched, and told about."""

import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from service.test_searches import FIELDS, body_of
from service.world import outvoted, png
from strange import strange_images

from surefind.gallery.gallery import Gallery
from surefind.service import state as module
from surefind.service.state import Worker


def wait_until(true, seconds=30):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def calibration(client):
    return client.get("/v1/calibration").json()


def figure(client, name):
    found = re.search(rf"^surefind_{name} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return float(found.group(1))


def bodies(world, images, size=50, **more):
    embedded = world.learner.embed(images)
    for start in range(0, len(images), size):
        rows = slice(start, start + size)
        yield {name: getattr(embedded, to)[rows].tolist() for name, to in FIELDS.items()} | more


def everybody(world, n, rng):
    """Digits as they were calibrated with: known and unknown ones."""
    images = np.concatenate([world.known, world.unknown])
    return images[rng.permutation(len(images))[:n]]


def patches(n, rng):
    """Pieces of a photograph and noise, as large as the digits."""
    grey = strange_images()["temple"].mean(axis=2).astype(np.uint8)
    rows, columns = (rng.integers(side - 8, size=n // 2) for side in grey.shape)
    cut = [grey[i : i + 8, j : j + 8] for i, j in zip(rows, columns, strict=True)]
    return rng.permutation(
        np.concatenate([cut, rng.integers(256, size=(n - n // 2, 8, 8))])
    ).astype(np.uint8)


def test_after_every_kind_of_change_it_is_renewed(client, world):
    body = body_of(world, world.known[0])
    before = calibration(client)
    assert (before["renewals"], before["stale"]) == (0, False)
    item = {"id": "new", "vector": body["vectors"][0], "label": 3}
    changes = (
        lambda: client.post("/v1/items", json={"items": [item]}),
        lambda: client.put("/v1/items/new", json={"label": 4}),
        lambda: client.delete("/v1/items/new"),
    )
    for count, change in enumerate(changes, start=1):
        assert change().status_code < 300
        wait_until(lambda: not calibration(client)["stale"])
        assert calibration(client)["renewals"] == count
        assert not client.post("/v1/search/vector", json=body).json()["stale"]
        wait_until(lambda c=count: figure(client, "renewals_total") == c)
    assert calibration(client)["made"] >= before["made"]
    assert figure(client, "renewal_seconds") > 0
    assert figure(client, "stale") == figure(client, 'failures_total{kind="renew"}') == 0


def test_what_changed_while_nothing_served_is_renewed_at_the_start(serve, client, world):
    gallery = client.app.state.service.gallery
    gallery.delete("digit-3")  # by another door
    assert gallery.calibration.stale
    client.__exit__(None, None, None)
    gallery.close()
    again = serve(fresh=False)
    wait_until(lambda: not calibration(again)["stale"])
    assert calibration(again)["renewals"] == 1


def test_searches_go_on_and_are_never_mixed(client, world):
    """Twenty queries a request: an answer that is not stale is by one calibration for the items of then."""
    body = next(bodies(world, world.known[:20]))
    seen, stop = [], threading.Event()

    def ask_on():
        while not stop.is_set():
            found = client.post("/v1/search/vector", json=body).json()
            seen.append((found["stale"], tuple(a["probability"] for a in found["answers"])))

    asking = threading.Thread(target=ask_on)
    asking.start()
    for n in range(6):
        item = {"id": f"new-{n}", "vector": body["vectors"][n], "label": n % 8}
        assert client.post("/v1/items", json={"items": [item]}).status_code == 201
        time.sleep(0.2)
    wait_until(lambda: not calibration(client)["stale"])
    stop.set()
    asking.join()
    renewals = calibration(client)["renewals"]
    assert 1 <= renewals <= 6
    assert len({found for stale, found in seen if not stale}) <= 1 + renewals
    assert len(seen) > renewals


class Slow(Gallery):
    """A gallery whose renewals last until they are let go."""

    renewals = 0

    def __init__(self):
        super().__init__()
        self.renewals, self.begun, self.go = 0, 0, threading.Semaphore(0)
        self.error = None

    @property
    def calibration(self):
        return SimpleNamespace(renewals=self.renewals)

    def renew(self):
        self.begun += 1
        assert self.go.acquire(timeout=30)
        if self.error is not None:
            raise self.error
        self.renewals += 1
        return self.calibration


@pytest.fixture
def slow(monkeypatch):
    monkeypatch.setattr(module, "DELAY", 0.01)
    return Slow()


def test_a_burst_is_one_renewal_and_what_comes_meanwhile_another(slow):
    errors = []
    renewer = Worker("renew", slow.renew, lambda *error: errors.append(error), delay=0.1)
    for _ in range(50):
        renewer.tell()
    wait_until(lambda: slow.begun == 1)
    for _ in range(50):
        renewer.tell()
    assert slow.begun == 1
    slow.go.release(5)
    wait_until(lambda: slow.renewals == 2)
    time.sleep(0.1)
    assert (slow.renewals, errors) == (2, [])
    renewer.tell()
    wait_until(lambda: slow.renewals == 3)
    renewer.close()
    renewer.tell()
    assert slow.begun == 3


def test_a_failure_is_told_and_the_next_change_tries_again(slow):
    errors = []
    renewer = Worker("renew", slow.renew, lambda *error: errors.append(error), delay=0.1)
    slow.error = RuntimeError("disk")
    slow.go.release(2)
    renewer.tell()
    wait_until(lambda: errors)
    slow.error = None
    renewer.tell()
    wait_until(lambda: slow.renewals == 1)
    renewer.close()
    assert [(name, type(error)) for name, error in errors] == [("renew", RuntimeError)]


def test_a_renewal_that_fails_is_counted_and_logged_without_its_text(client, caplog, monkeypatch):
    def fail():
        raise RuntimeError("secret-label")

    monkeypatch.setattr(client.app.state.service.gallery, "renew", fail)
    assert client.delete("/v1/items/digit-5").status_code == 200
    wait_until(lambda: figure(client, 'failures_total{kind="renew"}') >= 1)
    assert figure(client, "stale") == 1
    assert calibration(client)["stale"]
    record = next(r for r in caplog.records if r.message == "renew failed")
    assert record.fields["defect"].startswith("RuntimeError at fail")
    assert "secret-label" not in caplog.text


def test_noise_among_digits_raises_the_alarm_and_health_checks_do_not(client, world):
    rng = np.random.default_rng(1)
    for body in bodies(world, everybody(world, 200, rng)):
        assert client.post("/v1/search/vector", json=body).status_code == 200
    calm = calibration(client)["watch"]
    assert (calm["queries"], calm["alarm"], calm["since"]) == (200, None, None)
    checks = patches(200, rng)
    for body in bodies(world, checks, watch=False):
        assert client.post("/v1/search/vector", json=body).status_code == 200
    assert calibration(client)["watch"]["queries"] == figure(client, "watch_queries") == 200
    assert figure(client, "watch_alarm") == 0
    mixed = np.concatenate([everybody(world, 240, rng), checks[:60]])[rng.permutation(300)]
    for body in bodies(world, mixed):
        client.post("/v1/search/vector", json=body)
    found = calibration(client)["watch"]
    assert found["alarm"].startswith("Since ")
    assert found["stream"] == "novelty"
    # Which of the two has won most when the alarm is raised depends on how the network was trained.
    directions = ("more unusual inputs", "more very unusual and very usual inputs")
    assert found["direction"] in directions
    assert found["since"] is not None
    assert figure(client, "watch_alarm") == 1
    assert figure(client, "watch_capital") >= 100


def test_an_image_can_be_left_out_too(client, ask, world):
    ask(client, png(world.known[0]), watch=False)
    assert calibration(client)["watch"]["queries"] == 0
    ask(client, png(world.known[0]))
    assert calibration(client)["watch"]["queries"] == 1


def test_without_a_calibration_there_is_nothing_to_renew_or_watch(serve):
    client = serve(gallery=outvoted(), learner=None)
    client.delete("/v1/items/i1")
    found = calibration(client)
    assert found["watch"] is found["stale"] is found["renewals"] is None
    assert figure(client, "stale") == figure(client, "watch_queries") == 0
