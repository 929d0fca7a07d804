"""`surefind serve` as a user calls it, up to a real server that is stopped by a signal."""

import gc
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest
import typer
import uvicorn
from service.world import copy
from typer.testing import CliRunner

from surefind.cli.app import register
from surefind.cli.runs import open_run
from surefind.cli.serve import gallery_and_run, listen, open_gallery, run_until_stopped, serve
from surefind.errors import InputError
from surefind.gallery.gallery import Gallery

app = typer.Typer()
register(app, serve)
LAUNCH = "import typer; from surefind.cli.serve import serve; typer.run(serve)"


def invoke(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture
def gallery(world, tmp_path):
    return copy(world, tmp_path)


@pytest.fixture
def run(world, tmp_path):
    world.learner.save(tmp_path / "run")
    return tmp_path / "run"


def test_a_gallery_is_ready(gallery, run):
    found = invoke(gallery, "--check")
    assert found.exit_code == 0, found.output
    assert "240 items, calibrated; searched with vectors only" in " ".join(found.output.split())
    found = invoke(gallery, "--check", "--model", run)
    assert "searched with images and vectors" in " ".join(found.output.split())


def test_a_check_makes_nothing_and_says_how_to_fill_a_gallery(run):
    before = {p: p.stat().st_mtime_ns for p in run.parent.rglob("*")}
    found = invoke(run, "--check")
    assert found.exit_code == 0, found.output
    output = " ".join(found.output.split())
    assert "0 items, not calibrated" in output
    assert f"surefind index SOURCE --run {run} --out {run / 'gallery'}" in output
    assert {p: p.stat().st_mtime_ns for p in run.parent.rglob("*")} == before


def test_a_run_gets_a_gallery_of_its_own(run):
    with open_gallery(str(run / "gallery"), run, check=False) as made:
        assert made.model == open_run(run).fingerprint
    with open_gallery(str(run / "gallery"), run, check=False) as again:
        assert again.model == open_run(run).fingerprint


def test_a_check_beside_a_server_is_not_in_its_way(gallery):
    with Gallery.open(gallery):
        found = invoke(gallery, "--check")
    assert found.exit_code == 0, found.output


def test_a_run_that_did_not_embed_the_gallery_is_refused(run):
    Gallery(path=run / "gallery", model="sha256:0123456789abcdef").close()
    found = invoke(run, "--check")
    assert found.exit_code == 1
    assert "made with another run" in " ".join(found.output.split())


def test_a_gallery_finds_the_run_that_it_remembers(run, tmp_path):
    Gallery(path=tmp_path / "own", model=str(run)).close()
    assert "images and vectors" in " ".join(invoke(tmp_path / "own", "--check").output.split())


def test_beyond_this_machine_without_a_token_is_refused(gallery):
    found = invoke(gallery, "--host", "0.0.0.0", "--check")
    assert found.exit_code == 1
    assert "SUREFIND_WRITE_TOKEN" in found.output
    found = CliRunner().invoke(
        app, [str(gallery), "--host", "0.0.0.0", "--check"], env={"SUREFIND_WRITE_TOKEN": "x" * 16}
    )
    assert found.exit_code == 0, found.output


def test_what_is_neither_run_nor_gallery_is_refused(tmp_path):
    for target in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match=str(target)):
            gallery_and_run(str(target))
    assert gallery_and_run("http://host:19530") == ("http://host:19530", None)


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="port"):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    "stop", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)]
)
def test_it_serves_until_it_is_stopped(gallery, stop):
    arguments = [sys.executable, "-c", LAUNCH, str(gallery), "--port", "0"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            first = process.stdout.readline() + process.stdout.readline()
            address = re.search(rb"http://\S+", first).group().decode()
            wait_for(address)
            body = {"items": [{"id": "kept", "vector": [0, 0, 1]}]}
            assert httpx.post(f"{address}v1/items", json=body).status_code == 201
            process.send_signal(stop)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, err
    assert b"Traceback" not in err
    with Gallery.open(gallery) as after:
        assert "kept" in after


@contextmanager
def served(*arguments):
    """Run `surefind serve` on a free port; yield its address."""
    command = [sys.executable, "-c", LAUNCH, *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            first = process.stdout.readline() + process.stdout.readline()
            address = re.search(rb"http://\S+", first).group().decode()
            wait_for(address)
            yield address
        finally:
            process.terminate()


@pytest.mark.nightly
def test_one_process_writes_and_another_reads_what_it_wrote(gallery):
    with served(gallery) as writer, served(gallery, "--read-only") as reader:
        body = {"items": [{"id": "new", "vector": [0, 0, 1]}]}
        assert httpx.post(f"{reader}v1/items", json=body).status_code == 403
        assert httpx.post(f"{writer}v1/items", json=body).status_code == 201
        for _ in range(600):
            if httpx.get(f"{reader}v1/items/new").status_code == 200:
                break
            time.sleep(0.1)
        assert httpx.get(f"{reader}v1/items/new").status_code == 200


def test_a_reader_of_a_run_without_a_gallery_is_refused(run):
    assert invoke(run, "--read-only", "--check").exit_code == 1


def wait_for(address):
    for _ in range(200):
        try:
            return httpx.get(f"{address}healthz").raise_for_status()
        except httpx.TransportError:
            time.sleep(0.05)
    raise TimeoutError(address)


def test_what_is_not_needed_to_listen_is_not_imported():
    """Each of them takes a second or so, which a service that is started again has not."""
    imports = "import sys; from surefind.service.app import create_app; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", imports], capture_output=True, text=True, check=True
    )
    assert not {"sklearn", "scipy", "pandas", "matplotlib"} & {*run.stdout.split()}


def test_what_stays_is_not_searched_for_garbage(monkeypatch):
    """Full collections of 10,000 items held all requests up for 0.1 s of each second."""
    frozen = []
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda *_, **__: frozen.append(gc.get_freeze_count())
    )
    listening = listen("127.0.0.1", 0)
    run_until_stopped(uvicorn.Config(lambda *_: None), listening)
    assert frozen[0] > 0
    assert gc.get_freeze_count() == 0
    assert listening.fileno() == -1
