import importlib.metadata
import os
import re
import tomllib
from pathlib import Path

import torch

import surefind as sf
from surefind.cli import about as doctor

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_doctor_tells_versions_machine_and_extras(surefind):
    code, out, err = surefind("doctor")
    assert code == 0, err
    assert f"surefind {sf.__version__}" in out
    assert f"torch {torch.__version__}" in out
    assert f"{os.cpu_count()} processors" in out
    assert "cli: all there" in out
    assert "free in" in out


def test_a_missing_extra_is_named_with_its_remedy(surefind, monkeypatch):
    there = doctor.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda n: None if n == "pyarrow" else there(n))
    _, out, _ = surefind("doctor")
    assert "torch: pyarrow missing: pip install pyarrow" in out


def test_extras_are_those_of_the_project():
    """All but those of developers; what an extra takes from others is named there only."""
    project = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    names = {
        extra: {re.match(r"[\w-]+", line)[0] for line in lines} - {"surefind"}
        for extra, lines in project.items()
        if extra not in ("dev", "bench", "docs", "databases")
    }
    own = {extra: brought for extra, brought in names.items() if brought}
    assert {extra: set(brought.split()) for extra, brought in doctor.EXTRAS.items()} == own


def test_missing_or_stale_package_information_is_no_crash_and_no_claim(surefind, monkeypatch):
    def nothing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", nothing)
    code, out, err = surefind("doctor")
    assert code == 0, err
    assert "torch of unknown version" in out
    assert "cli: all there" in out


def test_messages_name_libraries_that_a_registry_has(monkeypatch):
    """Whether surefind came from a clone or a wheel, what a message says to type works."""
    sources = (PROJECT.parent / "src").rglob("*.py")
    assert not [file for file in sources if "pip install 'surefind" in file.read_text()]
    command = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["cli"]
    names = [re.match(r"[\w-]+", line)[0] for line in command if "surefind" not in line]
    text = (PROJECT.parent / "src" / "surefind" / "cli" / "__init__.py").read_text()
    assert ", ".join(f'"{name}"' for name in names) in text
    gone = ("uvicorn", "sklearn")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in gone else name)
    assert doctor.lacking("serve", "torch") == ["uvicorn", "scikit-learn"]
