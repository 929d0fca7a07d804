import os
import subprocess
import sys

import pytest

from surefind.cli.options import complete_run, complete_source, read_assigned
from surefind.errors import InputError


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("runs/one", "runs/two", "runs/bench", "digital", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs" / "one" / "config.toml").touch()
    (tmp_path / "runs" / "two" / "model.safetensors").touch()
    (tmp_path / "dig.npy").touch()
    return tmp_path


def test_runs_are_found_one_folder_down(place):
    assert complete_run("") == ["runs/one", "runs/two"]
    assert complete_run("ru") == ["runs/"]
    assert complete_run("runs/") == ["runs/bench/", "runs/one", "runs/two"]
    assert complete_run("nowhere/x") == []


def test_sources_are_sets_and_files(place):
    assert complete_source("dig") == ["digits", "dig.npy", "digital/"]
    assert ".hidden/" not in complete_source("")
    assert complete_source(".h") == [".hidden/"]
    assert complete_source(f"{place}/dig") == [f"{place}/dig.npy", f"{place}/digital/"]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("surefind train --method laplace-o", "laplace-online"),
        ("surefind evaluate runs/o", "runs/one"),
    ],
)
def test_the_shell_gets_them(place, typed, offered):
    """As bash asks, with the answer printed a line each, and no PyTorch loaded for it."""
    code = (
        "import sys\nfrom surefind.cli import main\nsys.argv = ['surefind']\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules"
    )
    environment = {
        **os.environ,
        "_SUREFIND_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        cwd=place,
        check=False,
    )
    assert found.stdout.split() == [offered], found.stderr


def test_settings_are_numbers_or_texts_by_name():
    names = {"margin", "head"}
    assert read_assigned(["margin=0.5", "head=identity"], names) == {
        "margin": 0.5,
        "head": "identity",
    }
    assert read_assigned(None, names) == {}
    for wrong in ("gain=1", "margin"):
        with pytest.raises(InputError, match="head, margin") as caught:
            read_assigned([wrong], names)
        assert caught.value.field == "assigned"
