import os

import pytest

from surefind.apps.cli.run_folder import RunFolder

COMMANDS = [("embed", "plain", "digits:test", "--out", "a.npz"), ("evaluate", "plain")]
COMMANDS += [("fit", "plain", "--out", "new")]


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
