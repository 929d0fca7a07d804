import os
import re
import shlex
import tomllib

import numpy as np
import pytest

import surefind as sf
from surefind.cli.runs import RunFolder, create_run, open_run, read_config, readme_text
from surefind.data.digits import load_digits

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


@pytest.mark.parametrize(
    ("made", "again"),
    [
        ("surefind train x --out old --epochs 2", "surefind train x --out {} --epochs 2 --resume"),
        ("surefind train x --resume --out=old", "surefind train x --resume --out={}"),
        ("", ""),
    ],
)
def test_the_hint_follows_a_folder_that_was_moved(tmp_path, made, again):
    found = RunFolder(tmp_path / "new", {"command": made})
    assert found.again == again.format(tmp_path / "new")


def test_what_is_no_run_is_refused(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        assert refused("evaluate", name).field == "run"


def test_half_a_file_of_a_run_is_refused(refused, run):
    (run / "metrics.json").write_text('{"values"')
    error = refused("evaluate", "plain")
    assert error.field == "run"
    assert "plain/metrics.json" in error.message


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
    read = read_config(tmp_path / "run")
    assert {k: read[k] for k in settings} == settings
    assert open_run(tmp_path / "run").config["surefind"] == sf.__version__
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())


def test_only_what_is_there_is_listed(tmp_path):
    (tmp_path / "plots").mkdir()
    page = readme_text(tmp_path, {})
    assert "| plots | loss, uncertainty, ROC and other curves | `report` |" in page
    assert "model.safetensors" not in page
    assert "made by" not in page


def test_the_commands_of_the_readme_work_wherever_the_folder_is(surefind, run, monkeypatch):
    moved = run.rename(run.with_name("a b"))
    np.save(moved / "IMAGES.npy", np.zeros((20, 8, 8), dtype=np.uint8))
    digits = load_digits().test[:60]
    np.savez(moved / "LABELLED.npz", inputs=digits.read().numpy(), labels=digits.labels.numpy())
    open_run(moved).explain()
    page = (moved / "README.md").read_text()
    assert page.startswith("# a b\n")
    hinted = re.findall(r"^    (surefind (?!train).*)$", page, re.MULTILINE)
    assert len(hinted) == 4
    monkeypatch.chdir(moved)
    for line in hinted:
        real = line.replace("IMAGES", "IMAGES.npy").replace("LABELLED", "LABELLED.npz")
        code, _, err = surefind(*shlex.split(real)[1:])
        assert code == 0, f"{line}: {err}"
    page = (moved / "README.md").read_text()
    assert "| gallery | items that can be searched | `search`, `calibrate`, `serve` |" in page
    assert "<h1>Run a b</h1>" in (moved / "report.html").read_text()
