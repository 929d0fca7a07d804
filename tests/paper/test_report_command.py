import json
import re
from pathlib import Path

import pytest

import surefind as sf
from surefind.cli.run_folder import RunFolder, open_run
from surefind.paper.report_command import run_page


def test_a_run_becomes_a_page_without_anything_from_outside(surefind, run):
    assert surefind("evaluate", "plain")[0] == 0
    code, out, err = surefind("report", "plain")
    assert code == 0, err
    assert out.endswith(str(run / "report.html"))
    page = (run / "report.html").read_text()
    value = json.loads((run / "metrics.json").read_text())["values"]["recall@1"]
    assert f"<td>{value:.3f}</td>" in page
    assert "nearest_distance_r_auroc" in page
    assert page.count("data:image/svg+xml;base64,") == len(list((run / "plots").iterdir()))
    assert not re.search(r"(src|href)=.http", page)
    assert "| report.html |" in (run / "README.md").read_text()


def test_a_run_whose_training_did_not_end_says_so(surefind, run):
    (run / "model.safetensors").unlink()
    code, _, err = surefind("report", "plain")
    assert code == 0, err
    assert err.startswith("Warning: plain has no model.safetensors")
    assert "surefind train digits --out plain" in err
    assert RunFolder(Path("plain"), {}).unfinished in (run / "report.html").read_text()


def test_a_run_that_was_not_evaluated_says_so(trained):
    page = run_page(open_run(trained))
    assert "Not evaluated yet" in page
    assert "1 epochs" in page


def test_settings_are_text_not_markup(tmp_path):
    page = run_page(RunFolder(tmp_path, {"source": "<script>alert(1)</script>"}))
    assert "<script>" not in page


def test_results_of_a_benchmark_become_a_page(surefind, tmp_path, quick):
    assert surefind("bench", "digits", "--methods", "margin")[0] == 0
    code, out, err = surefind("report", "results", "--out", "page.html")
    assert code == 0, err
    assert out.endswith(str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").is_file()
    assert (tmp_path / "page.md").is_file()


def test_a_report_overwrites_nothing_but_reports(surefind, refused, tmp_path, quick):
    assert surefind("bench", "digits", "--methods", "norm")[0] == 0
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    assert refused("report", "results", "--out", "notes.html").field == "out"
    assert notes.read_text() == "mine"
    assert refused("report", "results", "--out", "page.md").field == "out"
    for _ in range(2):
        assert surefind("report", "results", "--out", "page.html")[0] == 0


def test_results_that_are_left_out_or_missing_are_named(surefind, tmp_path, quick):
    assert surefind("bench", "digits", "--methods", "margin,norm", "--seeds", 2)[0] == 0
    folder = tmp_path / "results" / "digits"
    half = folder / "margin-seed1.json"
    half.write_text(half.read_text()[:100])
    (folder / "norm-seed0.json").unlink()
    code, _, err = surefind("report", "results")
    assert code == 0, err
    assert "Warning: left out: results/digits/margin-seed1.json" in err
    assert "Warning: digits has no margin-seed1, norm-seed0" in err
    assert (tmp_path / "results" / "report.html").is_file()
    for file in folder.iterdir():
        file.write_text("{")
    code, _, err = surefind("report", "results")
    assert code == 1
    assert "none of the 3 results in results" in err


@pytest.mark.parametrize("name", ["nowhere", "file"])
def test_what_is_no_folder_is_refused(refused, tmp_path, name):
    (tmp_path / "file").touch()
    assert refused("report", name).field == "folder"


def test_an_empty_folder_is_no_results(refused, tmp_path):
    (tmp_path / "results").mkdir()
    assert isinstance(refused("report", "results"), sf.InputError)


def test_the_page_of_a_run_says_what_detects_best(tmp_path):
    (tmp_path / "model.safetensors").touch()
    values = {"auroc": 0.4, "nearest_distance_auroc": 0.8}
    measured = {"test": "digits:test", "ood": "digits:ood", "when": "today", "values": values}
    (tmp_path / "metrics.json").write_text(json.dumps(measured))
    page = run_page(RunFolder(tmp_path, {}))
    assert "<p>OOD inputs: nearest distance detects them best (0.800); κ 0.400.</p>" in page
