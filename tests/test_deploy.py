"""What is in deploy/ fits the package: paths exist, commands are understood, and nothing runs as root."""

import ast
import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from surefind.cli.app import app
from surefind.service.settings import Settings
from surefind.service.state import KEEPING

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
SETTINGS = Settings(folder=Path("x"))


def instructions():
    """Return the instructions of the Dockerfile: a word and the rest of its line each."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line.strip()]


def of(word):
    return [rest for name, rest in instructions() if name == word]


def check_command(words):
    """Let the command line parse a command of ours, without running it."""
    assert words[0].rsplit("/", 1)[-1] == "surefind"
    group = typer.main.get_command(app)
    command = group.commands[words[1]]
    command.make_context(words[1], list(words[2:]))


def test_what_the_image_copies_is_there_and_reaches_the_build():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sources = [s for rest in of("COPY") if "--from" not in rest for s in rest.split()[:-1]]
    assert {"constraints.txt", "pyproject.toml", "src"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {metadata["readme"], *metadata["license-files"]} <= set(sources)


def test_the_image_installs_an_extra_that_exists_with_pinned_versions():
    (install,) = [rest for rest in of("RUN") if "pip install" in rest]
    assert install.count("pip install") == install.count("-c constraints.txt") == 2
    assert any(rest.startswith("TORCH_INDEX=") and rest.endswith("/cpu") for rest in of("ARG"))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (default,) = [rest.split("=")[1] for rest in of("ARG") if rest.startswith("EXTRAS=")]
    assert default in extras
    assert '".[${EXTRAS}]"' in install
    for base in of("FROM"):
        assert re.match(r"python:3\.\d+\.\d+-slim-\w+( AS \w+)?$", base), base


def test_the_image_does_not_run_as_root_and_runs_a_command_of_ours():
    order = [name for name, _ in instructions()]
    (user,) = of("USER")
    assert user.split(":")[0] not in ("root", "0")
    assert order.index("USER") > max(i for i, name in enumerate(order) if name == "RUN")
    (entry,), (command,) = of("ENTRYPOINT"), of("CMD")
    check_command([*json.loads(entry), *json.loads(command)])
    assert of("EXPOSE") == [str(SETTINGS.port)]
    known = {f"SUREFIND_{name.upper()}" for name in Settings.model_fields}
    ours = set(re.findall(r"SUREFIND_\w+", (DEPLOY / "Dockerfile").read_text()))
    assert ours <= known


def test_the_health_check_is_a_program_that_asks_our_address():
    (check,) = of("HEALTHCHECK")
    python, flag, code = json.loads(check[check.index("[") :])
    assert (python, flag) == ("python", "-c")
    ast.parse(code)
    assert str(SETTINGS.port) in code
    assert "/healthz" in code
    # Nothing listens there, so it fails, as a health check must.
    code = code.replace(f"'{SETTINGS.port}'", "'9'")
    assert (
        subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode
        != 0
    )


@pytest.fixture
def unit():
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str
    read.read(DEPLOY / "surefind.service")
    return read


def test_the_unit_runs_a_command_of_ours_not_as_root_and_hardened(unit):
    service = unit["Service"]
    check_command(shlex.split(service["ExecStart"]))
    assert service["User"] not in ("", "root")
    for name, value in {
        "NoNewPrivileges": "yes",
        "ProtectSystem": "strict",
        "ProtectHome": "yes",
        "PrivateTmp": "yes",
        "CapabilityBoundingSet": "",
        "RestrictNamespaces": "yes",
    }.items():
        assert service[name] == value
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    assert int(service["TimeoutStopSec"]) > 30  # requests have so long to end


def test_systemd_accepts_the_unit_where_it_is_installed(tmp_path):
    copy = tmp_path / "surefind.service"
    text = (DEPLOY / "surefind.service").read_text()
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    assert copy.read_text() != text
    if shutil.which("systemd-analyze"):
        found = subprocess.run(
            ["systemd-analyze", "verify", str(copy)], check=False, capture_output=True, text=True
        )
        assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("name", ["nginx.conf", "Caddyfile"])
def test_proxies_pass_to_our_port_and_let_through_what_we_accept(name):
    text = (DEPLOY / name).read_text()
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", text)) == {str(SETTINGS.port)}
    (number, _) = re.search(r"(?:client_max_body_size|max_size) (\d+)(m;|MiB)", text).groups()
    assert int(number) * 2**20 == SETTINGS.max_bytes
    assert text.count("{") == text.count("}")


def test_nginx_waits_for_what_the_service_works_on():
    (seconds,) = re.findall(r"proxy_read_timeout (\d+)s;", (DEPLOY / "nginx.conf").read_text())
    assert int(seconds) > KEEPING


def test_nginx_replaces_what_clients_say_about_themselves():
    text = (DEPLOY / "nginx.conf").read_text()
    assert "X-Forwarded-For $remote_addr;" in text
    assert "$proxy_add_x_forwarded_for" not in text
    assert text.count("proxy_set_header Host $http_host;") == text.count("proxy_pass ")
