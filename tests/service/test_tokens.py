"""Tokens with names: a file of hashes that is followed, and who decided what."""

import hashlib
import json
import logging
import os
import stat

import pytest
import typer
from service.world import outvoted, png
from typer.testing import CliRunner

from surefind.cli.app import register
from surefind.cli.serve import serve as serving
from surefind.errors import InputError
from surefind.service import telemetry
from surefind.service.settings import (
    NOTHING,
    READ,
    WRITE,
    Settings,
    make_token,
    permission,
    read_tokens,
)

DIGEST = hashlib.sha256(b"x").hexdigest()


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tokens.toml"


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, telemetry.LOGGER.name)
    return lambda: [(record.getMessage(), record.fields) for record in caplog.records]


def bearer(secret):
    return {"Authorization": f"Bearer {secret}"}


def test_a_token_has_a_name_and_its_leave(tmp_path, file):
    reader, writer = make_token(file, "ann", write=False), make_token(file, "bob", write=True)
    settings = Settings(folder=tmp_path, tokens=file, write_token="fixed" * 4)
    found = [permission(settings, f"Bearer {t}") for t in (reader, writer, "fixed" * 4, "other")]
    assert [(c.name, c.scope) for c in found[:3]] == [
        ("ann", READ),
        ("bob", WRITE),
        ("write", WRITE),
    ]
    assert found[3].scope == NOTHING


def test_the_file_holds_no_token_and_is_its_owners(file):
    secret = make_token(file, "ann", write=True)
    assert secret not in file.read_text()
    assert hashlib.sha256(secret.encode()).hexdigest() in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(secret) > 40


def test_a_file_without_entries_leaves_nobody_anything(tmp_path, file):
    file.write_text("")
    settings = Settings(folder=tmp_path, tokens=file)
    assert settings.has_token
    assert permission(settings, None).scope == NOTHING


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[ann]\nsha256 = 'short'", "sha256"),
        (f"[ann]\nsha256 = '{DIGEST.upper()}'", "sha256"),
        (f"[ann]\nsha256 = '{DIGEST}'\nwrite = 'yes'", "write"),
        (f"[ann]\nsha256 = '{DIGEST}'\nadmin = true", "admin"),
        (f"[anonymous]\nsha256 = '{DIGEST}'", "anonymous"),
        (f"[write]\nsha256 = '{DIGEST}'", "write"),
        (f"['a b']\nsha256 = '{DIGEST}'", "a b"),
        ("ann = 3", "ann"),
        ("[ann", "tokens.toml"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, file, text, named):
    file.write_text(text)
    for read in (lambda: read_tokens(file), lambda: Settings(folder=tmp_path, tokens=file).keyring):
        with pytest.raises(InputError) as refused:
            read()
        assert str(file) in str(refused.value)
        assert named in str(refused.value)
        assert refused.value.field == "tokens"


def test_a_missing_file_is_refused(file):
    with pytest.raises(InputError, match="cannot be read"):
        read_tokens(file)


def test_a_running_service_follows_the_file(serve, file, log):
    old = make_token(file, "ann", write=True)
    client = serve(gallery=outvoted(), learner=None, tokens=file)
    assert client.get("/v1/gallery", headers=bearer(old)).json()["may_write"]
    new = make_token(file, "ann", write=False)
    assert client.get("/v1/gallery", headers=bearer(old)).status_code == 401
    assert not client.get("/v1/gallery", headers=bearer(new)).json()["may_write"]
    assert ("tokens reloaded", {"tokens": 1}) in log()
    file.write_text("")
    assert client.get("/v1/gallery", headers=bearer(new)).status_code == 401


def test_a_file_that_breaks_leaves_the_last_tokens_in_force_and_says_so_once(serve, file, log):
    secret = make_token(file, "ann", write=True)
    client = serve(gallery=outvoted(), learner=None, tokens=file)
    file.write_text("[ann")
    for _ in range(3):
        assert client.get("/v1/gallery", headers=bearer(secret)).status_code == 200
    failures = [fields for event, fields in log() if event == "tokens not reloaded"]
    assert len(failures) == 1
    assert secret not in json.dumps(failures)
    os.remove(file)
    assert client.get("/v1/gallery", headers=bearer(secret)).status_code == 401
    assert client.get("/v1/gallery").status_code == 401
    make_token(file, "bob", write=False)
    assert client.get("/v1/gallery", headers=bearer(secret)).status_code == 401


def test_the_log_has_the_name_and_never_the_token(serve, file, log):
    secret = make_token(file, "ann", write=True)
    client = serve(gallery=outvoted(), learner=None, tokens=file)
    client.get("/v1/gallery", headers=bearer(secret))
    client.get("/v1/gallery", headers=bearer("wrong-one"))
    client.post("/v1/search/vector", json={"vectors": [[1, 0, 0, 0]]}, headers=bearer(secret))
    lines = [fields for event, fields in log() if event == "request"]
    assert [line["caller"] for line in lines] == ["ann", None, "ann"]
    assert secret not in json.dumps(lines)
    assert "wrong-one" not in json.dumps(lines)


def test_who_decided_is_kept_and_shown(serve, world, ask, file):
    secrets = {name: make_token(file, name, write=True) for name in ("ann", "bob")}
    client = serve(tokens=file, review_share=1)
    for image in world.known[:3]:
        ask(client, png(image), headers=bearer(secrets["ann"]))
    waiting = client.get("/v1/reviews", headers=bearer(secrets["bob"])).json()["pending"]
    for entry, (name, secret) in zip(waiting, secrets.items(), strict=False):
        body = {"id": entry["id"], "verdict": "reject"}
        said = client.post("/v1/reviews", json=body, headers=bearer(secret)).json()
        assert said["by"] == name
    client.headers.update(bearer(secrets["ann"]))
    assert [d["by"] for d in client.get("/v1/reviews").json()["decided"]] == ["bob", "ann"]


def test_without_tokens_the_decider_is_anonymous(serve, world, ask):
    client = serve(review_share=1)
    ask(client, png(world.known[0]))
    (entry,) = client.get("/v1/reviews").json()["pending"]
    said = client.post("/v1/reviews", json={"id": entry["id"], "verdict": "reject"}).json()
    assert said["by"] == "anonymous"


app = typer.Typer()
register(app, serving)


def test_the_command_prints_the_token_alone(tmp_path, file):
    made = CliRunner().invoke(app, ["g", "--new-token", "ann", "--write", "--tokens", str(file)])
    assert made.exit_code == 0, made.output
    (secret,) = made.stdout.split()
    found = permission(Settings(folder=tmp_path, tokens=file), f"Bearer {secret}")
    assert (found.name, found.scope) == ("ann", WRITE)
    wrong = ["g", "--new-token", "no name", "--tokens", str(file)]
    assert CliRunner().invoke(app, wrong).exit_code == 1
