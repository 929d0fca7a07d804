import os

import torch

import surefind as sf
from surefind.cli import doctor


def test_doctor_tells_versions_machine_extras_and_data(surefind):
    code, out, err = surefind("doctor")
    assert code == 0, err
    assert f"surefind {sf.__version__}" in out
    assert f"torch {torch.__version__}" in out
    assert f"{os.cpu_count()} processors" in out
    assert "cli: all there" in out
    assert "digits: comes with scikit-learn" in out
    assert "mnist: not there" in out
    assert "free in" in out


def test_a_missing_extra_is_named_with_its_remedy(surefind, monkeypatch):
    there = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda n: None if n == "pyarrow" else there(n))
    _, out, _ = surefind("doctor")
    assert "data: pyarrow missing: pip install 'surefind[data]'" in out


def test_extras_of_developers_are_nobody_elses_business():
    assert "dev" not in doctor.missing_extras()


def test_memory_is_not_known_everywhere(monkeypatch):
    total, free = doctor.memory()
    assert total > free > 0
    monkeypatch.setattr(os, "sysconf_names", {})
    assert doctor.memory() == (None, None)
    assert not any(line.startswith("memory") for line in doctor.machine())
