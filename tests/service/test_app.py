"""What a service says about itself: health, figures, calibration, logs, its description and its page."""

import json
import logging
import re
import time
from pathlib import Path

from service.world import outvoted, png

from surefind.service import telemetry
from surefind.service.app import PAGE


def test_the_calibration_has_curve_meter_and_summary(client):
    found = client.get("/v1/calibration").json()
    assert found["calibrated"]
    assert found["summary"].startswith("Guarantee: ")
    assert found["left_out_matched"] < found["left_out_queries"] == 240
    curve = found["risk_curve"]
    assert len(curve["coverage"]) == len(curve["upper_bound"]) == len(curve["thresholds"])
    assert curve["thresholds"][curve["chosen"]] == found["threshold"]


def test_figures_count_requests_decisions_and_batches(client, world, ask):
    ask(client, png(world.known[0]))
    client.get("/v1/items/secret-id")
    text = client.get("/metrics").text
    assert (
        'surefind_requests_total{method="POST",route="/v1/search/image",status="200"} 1.0' in text
    )
    assert re.search(r'surefind_decisions_total\{decision="\w+"\} 1.0', text)
    assert 'surefind_batch_size_count{kind="embed"} 1.0' in text
    assert "surefind_items 240.0" in text
    assert "secret-id" not in text


def test_figures_tell_queues_novelty_and_process(client, world, ask):
    ask(client, png(world.known[0]))
    body = {"vectors": [[0, 0, 1]], "kappa": [20.0], "novelty": [0.0]}
    client.post("/v1/search/vector", json=body).raise_for_status()
    lines = client.get("/metrics").text.splitlines()
    figures = {
        name: float(value) for name, value in (x.rsplit(" ", 1) for x in lines if x[0] != "#")
    }
    assert figures['surefind_decisions_total{decision="no_match"}'] >= 1
    assert (
        figures['surefind_waiting{kind="search"}'] == figures['surefind_waiting{kind="embed"}'] == 0
    )
    assert figures["surefind_calibration_age_seconds"] > 0
    assert figures["process_open_fds"] > 0
    assert figures["process_resident_memory_bytes"] > 0
    assert "process_cpu_seconds_total" in figures


def test_what_waits_is_counted(serve):
    client = serve(gallery=outvoted(), learner=None)
    state = client.app.state.service
    state._searches._queue.append((None, None))
    try:
        assert 'surefind_waiting{kind="search"} 1.0' in client.get("/metrics").text
    finally:
        state._searches._queue.clear()


def test_the_life_of_a_service_is_logged(serve, caplog):
    caplog.set_level(logging.INFO, telemetry.LOGGER.name)
    client = serve()
    client.post("/v1/items", json={"items": [{"vector": [0, 0, 1]}]}).raise_for_status()
    for _ in range(600):
        if not client.get("/v1/calibration").json()["stale"]:
            break
        time.sleep(0.1)
    client.__exit__(None, None, None)
    events = [record.getMessage() for record in caplog.records if record.msg != "request"]
    assert events[:2] == ["start", "ready"]
    assert events[-2:] == ["stopping", "stopped"]
    assert "calibration renewed" in events


def test_logs_are_json_without_what_users_sent(client, capsys):
    telemetry.write_to_stderr()
    try:
        client.get("/v1/items/secret-id", params={"kind": "text"})
        client.post("/v1/items", json={"items": [{"id": "secret-id", "vector": [1.0]}]})
    finally:
        telemetry.LOGGER.handlers = []
        telemetry.LOGGER.propagate = True
        telemetry.LOGGER.setLevel(logging.NOTSET)
    text = capsys.readouterr().err
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["method"], line["status"]) for line in lines] == [("GET", 404), ("POST", 422)]
    assert lines[0]["route"] == "/v1/items/{id:path}"
    assert "secret-id" not in text


def test_the_page_needs_no_other_host(client):
    page = client.get("/")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        assert client.get(name).status_code == 200
    for file in PAGE.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), file
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", text), file


def test_modules_import_what_is_there():
    for file in PAGE.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', file.read_text()):
            assert (PAGE / name).is_file(), (file, name)


def test_what_is_not_there_is_answered_as_json(client):
    for path in ("nowhere", "page/../app.py", "page/none.js", "v1/items/", "v1/search/vector"):
        answer = client.get(f"/{path}")
        assert answer.status_code in (404, 405)
        assert "error" in answer.json()


def test_the_documentation_lists_every_request(client):
    page = Path(__file__).parents[2] / "docs" / "reference" / "http.md"
    paths = client.get("/v1/openapi.json").json()["paths"]
    requests = {
        (m.upper(), path): about for path, all_ in paths.items() for m, about in all_.items()
    }
    assert all(about["description"] for about in requests.values())
    assert set(re.findall(r"^\| `([A-Z]+) (/\S+)`", page.read_text(), re.MULTILINE)) == {*requests}
