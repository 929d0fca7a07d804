import os
import tomllib

import pytest

import surefind as sf
from surefind.cli.runs import create_run, open_run

COMMANDS = [("embed", "plain", "digits:test", "--out", "a.npz"), ("evaluate", "plain")]
COMMANDS += [("fit", "plain", "--out", "new")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_half_a_checkpoint_is_refused_by_name(refused, run, command):
    file = run / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    assert "model.safetensors" in refused(*command).message


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_run_without_a_model_says_how_to_resume_it(refused, run, command):
    (run / "model.safetensors").unlink()
    error = refused(*command)
    assert error.field == "run"
    assert "surefind train digits --out plain" in error.message
    assert error.message.endswith("--resume")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_run_of_another_format_is_refused(refused, run, command):
    config = (run / "config.toml").read_text().replace("format = 1", "format = 7")
    (run / "config.toml").write_text(config.replace(f'"{sf.__version__}"', '"9.9"', 1))
    error = refused(*command)
    assert error.field == "run"
    assert "9.9" in error.message


def test_half_a_config_is_refused(refused, run):
    (run / "config.toml").write_text('format = 1\nsource = "dig')
    error = refused("evaluate", "plain")
    assert error.field == "run"
    assert "plain/config.toml" in error.message


def test_settings_come_back_from_toml(tmp_path):
    settings = {
        "source": 'a "quoted" \\ path\n[x] é 😀',
        "margin": 1e-5,
        "epochs": 3,
        "mined": True,
    }
    create_run(tmp_path / "run", settings)
    read = open_run(tmp_path / "run").config
    assert {k: read[k] for k in settings} == settings
    assert open_run(tmp_path / "run").config["surefind"] == sf.__version__
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())
