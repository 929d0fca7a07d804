import os
import re
import shlex
import tomllib

import numpy as np
import pytest

import surefind as sf
from surefind.cli.run_folder import (
    RunFolder,
    check_place,
    create_run,
    open_run,
    read_config,
    write_whole,
)

COMMANDS = [("embed", "plain", "digits:test", "--out", "a.npz"), ("evaluate", "plain")]
COMMANDS += [("fit", "plain", "--out", "new")]


def test_a_place_that_cannot_be_written_is_noticed_first(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(sf.InputError, match=r"cannot write to .*file/run: .*file is a file"):
        check_place(tmp_path / "file" / "run", 1)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(sf.InputError, match="is read-only"):
        check_place(tmp_path / "run", 1)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_half_a_checkpoint_is_refused_by_name(surefind, run, command):
    file = run / "model.safetensors"
    os.truncate(file, file.stat().st_size // 2)
    code, _, err = surefind(*command)
    assert code == 1
    assert "model.safetensors is not a whole safetensors file" in err


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_run_without_a_model_says_how_to_go_on(surefind, run, command):
    (run / "model.safetensors").unlink()
    code, _, err = surefind(*command)
    assert code == 1
    assert "its training did not end. Go on: surefind train digits --out plain" in err
    assert err.endswith("--resume")


@pytest.mark.parametrize(
    ("made", "again"),
    [
        ("surefind train x --out old --epochs 2", "surefind train x --out {} --epochs 2 --resume"),
        ("surefind train x --resume --out=old", "surefind train x --resume --out={}"),
        ("", ""),
    ],
)
def test_the_advice_follows_a_folder_that_was_moved(tmp_path, made, again):
    found = RunFolder(tmp_path / "new", {"command": made})
    assert found.again == again.format(tmp_path / "new")


def test_the_commands_of_the_readme_work_wherever_the_folder_is(surefind, run, monkeypatch):
    moved = run.rename(run.with_name("a b"))
    np.save(moved / "IMAGES.npy", np.zeros((20, 8, 8), dtype=np.uint8))
    digits = sf.data.catalogue.load("digits").test[:60]
    np.savez(moved / "LABELLED.npz", inputs=digits.read().numpy(), labels=digits.labels.numpy())
    open_run(moved).explain()
    page = (moved / "README.md").read_text()
    assert page.startswith("# a b\n")
    advised = re.findall(r"^    (surefind (?!train).*)$", page, re.MULTILINE)
    assert len(advised) == 4
    monkeypatch.chdir(moved)
    for line in advised:
        real = line.replace("IMAGES", "IMAGES.npy").replace("LABELLED", "LABELLED.npz")
        code, _, err = surefind(*shlex.split(real)[1:])
        assert code == 0, f"{line}: {err}"
    page = (moved / "README.md").read_text()
    assert "| gallery | items that can be searched | `search`, `calibrate`, `serve` |" in page
    assert "<h1>Run a b</h1>" in (moved / "report.html").read_text()


@pytest.mark.parametrize("command", [*COMMANDS, ("report", "plain")], ids=lambda c: c[0])
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


def test_what_is_no_run_is_refused(surefind, tmp_path):
    code, _, err = surefind("evaluate", "nowhere")
    assert code == 1
    assert "nowhere does not exist: a run is a folder" in err
    (tmp_path / "empty").mkdir()
    code, _, err = surefind("evaluate", "empty")
    assert code == 1
    assert "empty holds no run" in err


def test_half_a_file_of_a_run_is_refused(surefind, run):
    (run / "metrics.json").write_text('{"values"')
    code, _, err = surefind("report", "plain")
    assert code == 1
    assert "plain/metrics.json is damaged" in err


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


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")

    def broken(*_):
        raise OSError("gone")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="gone"):
        write_whole(tmp_path / "a", "new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


def test_space_is_looked_for_where_the_folder_will_be(tmp_path):
    check_place(tmp_path / "not" / "yet", 1)
    with pytest.raises(sf.InputError, match=r"needs about 1000000000\.0 GB and the disk has"):
        check_place(tmp_path / "not" / "yet", 10**18)
