"""Settings from options, variables and a file: which goes first, and what is refused where."""

import importlib.util
import ipaddress
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from surefind.cli.app import register
from surefind.cli.serve import serve
from surefind.errors import InputError
from surefind.gallery.gallery import Gallery
from surefind.service.settings import PATHS, Settings, configure, unknown_variables

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = Path("here.service")


@pytest.fixture
def file(tmp_path):
    def write(text):
        (tmp_path / "service.toml").write_text(text)
        return tmp_path / "service.toml"

    return write


@pytest.fixture(scope="module")
def example():
    """Return the text that the documentation's example should have."""
    spec = importlib.util.spec_from_file_location("maker", DOCS / "make_service_toml.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker.example()


def test_an_option_goes_before_the_environment_and_that_before_the_file(file, monkeypatch):
    path = file("rate = 1\nmax_bytes = 1\nmax_pixels = 1\nimages = 'pictures'")
    monkeypatch.setenv("SUREFIND_RATE", "2")
    monkeypatch.setenv("SUREFIND_MAX_BYTES", "2")
    monkeypatch.setenv("SUREFIND_TRUSTED_PROXIES", "10.0.0.1, 10.1.0.0/16")
    found, places = configure(FOLDER, {"rate": 3.0, "host": None}, path)
    assert (found.rate, found.max_bytes, found.max_pixels) == (3, 2, 1)
    assert (found.folder, found.images) == (FOLDER, path.parent / "pictures")
    assert found.trusted_proxies == tuple(map(ipaddress.ip_network, ("10.0.0.1/32", "10.1.0.0/16")))
    names = ("rate", "max_bytes", "max_pixels", "seconds")
    expected = ["option", "SUREFIND_MAX_BYTES", str(path), "default"]
    assert [places[name] for name in names] == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("max_bites = 3", "max_bites"),
        ("max_bytes = 0", "max_bytes"),
        ("max_bytes = 1.5", "max_bytes"),
        ("rate = -1", "rate"),
        ("rate = nan", "rate"),
        ("seconds = 0", "seconds"),
        ("port = 70000", "port"),
        ("images = 3", "images"),
        ("[limits]\nrate = 3", "limits"),
        ("read_token = 'fifteen letters'", "read_token"),
        ("read_token = 'sixteen letters!'\nwrite_token = 'sixteen letters!'", "read_token"),
        ("write_token = ['hush-hush-hush-hush']", "write_token"),
        ("trusted_proxies = ['hush-hush-hush-hush']", "trusted_proxies"),
        ("read_only = true\nreview_share = 0.1", "review_share"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place_and_name(file, text, field):
    path = file(text)
    with pytest.raises(InputError) as refused:
        configure(FOLDER, {}, path)
    assert str(path) in str(refused.value)
    assert (refused.value.field, field in str(refused.value)) == (field, True)
    assert field != "write_token" or "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "variables", "path", "field"),
    [
        ({}, {"SUREFIND_MAX_BYTES": "many"}, None, "max_bytes"),
        ({}, {"SUREFIND_RATE": "inf"}, None, "rate"),
        ({}, {"SUREFIND_PORT": "tcp://10.0.0.1:80"}, None, "port"),
        ({"rates": "3"}, {}, None, "rates"),
        ({"rate": -2.0}, {}, None, "rate"),
        ({}, {}, Path("nowhere.toml"), "config"),
    ],
)
def test_other_places_are_named_too(monkeypatch, options, variables, path, field):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as refused:
        configure(FOLDER, options, path)
    assert refused.value.field == field


def test_settings_are_validated_together_when_all_places_were_read(file):
    path = file("read_only = true\nreview_share = 0.1")
    found, _ = configure(FOLDER, {"review_share": 0.0}, path)
    assert (found.read_only, found.review_share) == (True, 0)


def test_variables_that_are_perhaps_misspelt_are_found(monkeypatch):
    monkeypatch.setenv("SUREFIND_RAET", "1")
    monkeypatch.setenv("SUREFIND_RATE", "1")
    assert unknown_variables() == ["SUREFIND_RAET"]


def test_the_example_is_up_to_date_names_every_setting_and_can_be_used(file, example):
    written = (DOCS / "reference" / "service.toml").read_text()
    assert written == example, "run python docs/make_service_toml.py"
    lines = [x.removeprefix("# ") for x in example.splitlines() if re.match(r"# \w+ = ", x)]
    entries = tomllib.loads("\n".join(lines))
    assert list(entries) == list(Settings.model_fields)
    assert tomllib.loads(example) == {}
    found, places = configure(FOLDER, {}, file("\n".join(lines)))
    assert "default" not in places.values()
    for name, field in Settings.model_fields.items():
        assert name in PATHS or field.default is None or getattr(found, name) == field.default


app = typer.Typer()
register(app, serve)


@pytest.fixture
def gallery(tmp_path):
    with Gallery(path=tmp_path / "gallery") as made:
        made.add(np.eye(3))
    return tmp_path / "gallery"


def test_a_check_shows_the_settings_and_where_they_came_from(gallery, file):
    path = file("rate = 7\nwrite_token = 'hush-hush-hush-hush'")
    arguments = [str(gallery), "--check", "--config", str(path), "--set", "max_bytes=9"]
    found = CliRunner().invoke(app, arguments, env={"SUREFIND_SECONDS": "3", "SUREFIND_X": "1"})
    assert found.exit_code == 0, found.output
    rows = {line.split()[0]: line.split(None, 2)[1:] for line in found.output.splitlines() if line}
    assert rows["rate"] == ["7.0", str(path)]
    assert rows["max_bytes"] == ["9", "option"]
    assert rows["seconds"] == ["3.0", "SUREFIND_SECONDS"]
    assert rows["write_token"] == ["hidden", str(path)]
    assert rows["read_token"] == ["none", "default"]
    assert "hush" not in found.output
    assert "SUREFIND_X" in found.output
    assert set(Settings.model_fields) <= set(rows)


def test_a_wrong_setting_is_refused_at_the_command_line(gallery, file):
    for wrong in (["--config", str(file("rat = 7"))], ["--set", "rat=7"], ["--set", "rate"]):
        found = CliRunner().invoke(app, [str(gallery), "--check", *wrong])
        assert found.exit_code == 1
        assert "rat" in found.output
