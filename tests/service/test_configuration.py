"""Settings from options, variables and a file: which goes first, and what is refused where."""

import dataclasses
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
from surefind.service.configuration import (
    FIELDS,
    configure,
    example,
    meanings,
    unknown_variables,
    variable,
)
from surefind.service.settings import Settings

EXAMPLE = Path(__file__).parents[2] / "docs" / "reference" / "service.toml"
DEFAULTS = {"folder": Path("here.service")}
VALUES = {
    Path: ("place", Path("place")),
    str: ("text", "text"),
    int: (7, 7),
    float: (0.5, 0.5),
    bool: (True, True),
    tuple: (["10.0.0.1", "10.0.0.2"], ("10.0.0.1", "10.0.0.2")),
}


def value_for(name):
    """Return a value of a setting as a file has it, and as it is read."""
    kind = str(dataclasses.fields(Settings)[list(FIELDS).index(name)].type)
    found = next(k for k in (Path, tuple, bool, float, int, str) if k.__name__ in kind)
    return VALUES[found]


@pytest.fixture
def file(tmp_path):
    def write(text):
        (tmp_path / "service.toml").write_text(text)
        return tmp_path / "service.toml"

    return write


@pytest.mark.parametrize("name", list(FIELDS))
def test_every_setting_can_stand_in_the_file_and_in_the_environment(file, name):
    written, read = value_for(name)
    path = file(f"{name} = {str(written).lower() if written is True else repr(written)}")
    expected = path.parent / read if isinstance(read, Path) else read
    found = configure(DEFAULTS, file=path)
    assert (getattr(found.settings, name), found.places[name]) == (expected, str(path))
    text = ", ".join(written) if isinstance(written, list) else str(written)
    for given in ({"environment": {variable(name): text}}, {"assigned": [f"{name}={text}"]}):
        found = configure(DEFAULTS, **given)
        assert getattr(found.settings, name) == read
        assert found.places[name] != "default"


def test_an_option_goes_before_the_environment_and_that_before_the_file(file):
    path = file("rate = 1\nburst = 1\nmax_queries = 1")
    found = configure(
        DEFAULTS,
        options={"rate": 3.0, "host": None},
        environment={"SUREFIND_RATE": "2", "SUREFIND_BURST": "2", "SUREFIND_OTHER": "?"},
        file=path,
    )
    assert (found.settings.rate, found.settings.burst, found.settings.max_queries) == (3, 2, 1)
    places = [found.places[name] for name in ("rate", "burst", "max_queries", "seconds")]
    assert places == ["option --rate", "SUREFIND_BURST", str(path), "default"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("max_bites = 3", "max_bites"),
        ("max_bytes = 0", "max_bytes"),
        ("max_bytes = '10'", "max_bytes"),
        ("max_bytes = true", "max_bytes"),
        ("max_bytes = 1.5", "max_bytes"),
        ("rate = -1", "rate"),
        ("rate = nan", "rate"),
        ("port = 70000", "port"),
        ("images = 3", "images"),
        ("rate = 2026-01-01", "rate"),
        ("[limits]\nrate = 3", "limits"),
        ("read_token = ''", "read_token"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_file_and_the_key(file, text, name):
    path = file(text)
    with pytest.raises(InputError) as refused:
        configure(DEFAULTS, file=path)
    assert str(path) in str(refused.value)
    assert name in str(refused.value)
    assert refused.value.field == name


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"environment": {"SUREFIND_BURST": "many"}}, "burst"),
        ({"environment": {"SUREFIND_RATE": "inf"}}, "rate"),
        ({"environment": {"SUREFIND_PORT": "tcp://10.0.0.1:80"}}, "port"),
        ({"assigned": ["burst"]}, "set"),
        ({"assigned": ["bursts=3"]}, "bursts"),
        ({"options": {"rate": -2.0}}, "rate"),
        ({"file": Path("nowhere.toml")}, "config"),
    ],
)
def test_other_places_are_named_too(given, field):
    with pytest.raises(InputError) as refused:
        configure(DEFAULTS, **given)
    assert refused.value.field == field


def test_a_refusal_does_not_repeat_a_token(file):
    with pytest.raises(InputError) as refused:
        configure(DEFAULTS, file=file("write_token = ['hush-hush']"))
    assert "hush" not in str(refused.value)


def test_variables_that_are_perhaps_misspelt_are_found():
    there = {"SUREFIND_RAET": "1", "SUREFIND_RATE": "1", "SUREFIND_DATA": "x", "HOME": "y"}
    assert unknown_variables(there) == ["SUREFIND_RAET"]


def test_the_example_is_up_to_date_and_names_every_setting():
    assert EXAMPLE.read_text() == example(), "run python docs/make_service_toml.py"
    assert list(meanings()) == list(FIELDS)
    lines = [line for line in example().splitlines() if re.match(r"# \w+ = ", line)]
    entries = tomllib.loads("\n".join(line.removeprefix("# ") for line in lines))
    assert list(entries) == list(FIELDS)
    assert tomllib.loads(example()) == {}
    for name, field in FIELDS.items():
        if field.default not in (None, dataclasses.MISSING):
            shown = tuple(entries[name]) if isinstance(entries[name], list) else entries[name]
            assert shown == field.default


def test_the_example_can_be_used_line_by_line(file):
    lines = [line for line in example().splitlines() if re.match(r"# \w+ = ", line)]
    for line in lines:
        path = file(line.removeprefix("# "))
        name = line.split()[1]
        assert configure(DEFAULTS, file=path).places[name] == str(path)


app = typer.Typer()
register(app, serve)


@pytest.fixture
def gallery(tmp_path):
    with Gallery(path=tmp_path / "gallery") as made:
        made.add(np.eye(3))
    return tmp_path / "gallery"


def test_a_check_shows_the_settings_and_where_they_came_from(gallery, file):
    path = file("rate = 7\nwrite_token = 'hush-hush'")
    arguments = [str(gallery), "--check", "--config", str(path), "--set", "burst=9"]
    found = CliRunner().invoke(app, arguments, env={"SUREFIND_SECONDS": "3", "SUREFIND_X": "1"})
    assert found.exit_code == 0, found.output
    rows = {line.split()[0]: line.split(None, 2)[1:] for line in found.output.splitlines() if line}
    assert rows["rate"] == ["7", str(path)]
    assert rows["burst"] == ["9", "option --set"]
    assert rows["seconds"] == ["3.0", "SUREFIND_SECONDS"]
    assert rows["write_token"] == ["hidden", str(path)]
    assert rows["read_token"] == ["none", "default"]
    assert rows["max_pixels"][1] == "default"
    assert "hush" not in found.output
    assert "SUREFIND_X" in found.output
    assert set(FIELDS) <= set(rows)


def test_a_wrong_file_is_refused_at_the_command_line(gallery, file):
    found = CliRunner().invoke(app, [str(gallery), "--check", "--config", str(file("rat = 7"))])
    assert found.exit_code == 1
    assert "service.toml" in found.output
    assert "rat " in found.output
