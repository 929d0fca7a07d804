import tomllib

import pytest

import surefind as sf
from surefind.apps.cli.run_folder import create_run, open_run, read_config

COMMANDS = [("embed", "plain", "digits:test", "--out", "a.npz"), ("evaluate", "plain")]
COMMANDS += [("fit", "plain", "--out", "new"), ("report", "plain")]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_run_of_another_format_is_refused(surefind, run, command):
    config = (run / "config.toml").read_text().replace("format = 1", "format = 7")
    (run / "config.toml").write_text(config.replace(f'"{sf.__version__}"', '"9.9"', 1))
    code, _, err = surefind(*command)
    assert code == 1
    assert "the run in plain is of format 7; this version of surefind reads 1" in err
    assert "Use the version that wrote it: 9.9." in err


def test_half_a_config_is_refused(surefind, run):
    (run / "config.toml").write_text('format = 1\nsource = "dig')
    code, _, err = surefind("evaluate", "plain")
    assert code == 1
    assert "plain/config.toml is damaged" in err


def test_settings_come_back_from_toml(tmp_path):
    settings = {
        "source": 'a "quoted" \\ path\n[x] é 😀',
        "margin": 1e-5,
        "epochs": 3,
        "mined": True,
    }
    create_run(tmp_path / "run", settings)
    read = read_config(tmp_path / "run")
    assert {k: read[k] for k in settings} == settings
    assert open_run(tmp_path / "run").config["surefind"] == sf.__version__
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())
