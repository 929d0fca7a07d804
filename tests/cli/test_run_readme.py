import re
import shlex

import numpy as np

import surefind as sf
from surefind.apps.cli.run_folder import open_run, readme_text


def test_only_what_is_there_is_listed(tmp_path):
    (tmp_path / "plots").mkdir()
    page = readme_text(tmp_path, {})
    assert "| plots | loss, uncertainty, ROC and other curves | `report` |" in page
    assert "model.safetensors" not in page
    assert "made by" not in page


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
