"""`surefind bench`, `report` and `data` as a user gives them."""

import json
from dataclasses import replace

import pytest

from surefind.paper import catalogue, running
from surefind.paper.cli import complete_methods, result_lines


@pytest.fixture
def benched(surefind, quick, write_results, result, tmp_path):
    """Results of two methods and two seeds, as the command writes them."""
    made = [result(m, s, "digits") for m in ("margin", "norm") for s in (0, 1)]
    write_results(tmp_path / "results", *made)
    return tmp_path / "results"


def test_a_line_per_result_and_never_a_result_twice(surefind, quick):
    bench = ("bench", "digits", "--methods", "deterministic,margin", "--out", "my results")
    code, out, err = surefind(*bench)
    assert code == 0, err
    assert "2 results of digits, 0 of them there already." in out
    assert "deterministic, seed 0: recall@1" in out
    assert "Next: surefind report 'my results'" in out
    assert "epoch" not in out + err  # a line per result, not a line a stage
    code, out, err = surefind(*bench, "--json")
    assert code == 0, err
    assert {found["method"] for found in json.loads(out)["results"]} == {"deterministic", "margin"}
    code, out, err = surefind("report", "my results")
    assert code == 0, err
    assert out.endswith("my results/report.html")


def test_a_stopped_benchmark_names_the_command_that_goes_on(surefind, monkeypatch, quick):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "run_problem", stop)
    code, _, err = surefind("bench", "digits", "--methods", "pfe")
    assert code == 1
    assert "finished results are kept. Go on with: surefind bench digits --methods pfe" in err


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("bench", "imagenet"), "source"),
        (("bench", "digits", "--methods", "lam"), "method"),
        (("bench", "digits", "--recipe", "paper"), "recipe"),
        (("bench", "cifar10", "--recipe", "mine"), "recipe"),
        (("bench", "digits", "--out", "file"), "out"),
        (("bench", "digits", "--work", "file"), "work"),
        (("bench", "digits", "--trained-stages", 1), "freeze_backbone"),
        (("bench", "digits", "--cache", "cache"), "freeze_backbone"),
        (("bench", "digits", "--freeze-backbone"), "freeze_backbone"),
        (("report", "empty"), None),
        (("report", "empty", "--out", "page.md"), "out"),
        (("data", "imagenet"), "name"),
        (("data", "mnist", "--data", "empty"), "folder"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_mistakes_get_a_sentence(refused, tmp_path, arguments, field):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert refused(*arguments).field == field
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file"]


@pytest.mark.parametrize(
    "arguments", [("bench", "digits", "--seeds", 0), ("report", "nowhere"), ("report", "file")]
)
def test_wrong_usage_is_explained(surefind, tmp_path, arguments):
    (tmp_path / "file").touch()
    assert surefind(*arguments)[0] == 2


def test_a_result_says_what_detects_best(capsys):
    on_result = result_lines()
    values = {"recall@1": 0.8, "auroc": 0.4, "nearest_distance_auroc": 0.8}
    for stage in (None, values):
        on_result("pfe", 0, stage)
    shown = " ".join(capsys.readouterr().out.split())
    assert "pfe, seed 0: OOD inputs: nearest distance detects them best (0.800); κ 0.400." in shown


def test_a_report_overwrites_nothing_but_reports(surefind, refused, benched, tmp_path):
    notes = tmp_path / "notes.md"
    notes.write_text("mine")
    assert refused("report", "results", "--out", "notes.html").field == "out"
    assert notes.read_text() == "mine"
    for _ in range(2):
        assert surefind("report", "results", "--out", "page.html")[0] == 0
    assert (tmp_path / "page.md").is_file()


def test_results_that_are_left_out_or_missing_are_named(surefind, benched):
    folder = benched / "digits"
    half = folder / "margin-seed1.json"
    half.write_text(half.read_text()[:100])
    (folder / "norm-seed0.json").unlink()
    code, _, err = surefind("report", "results")
    assert code == 0, err
    assert "Warning: left out: results/digits/margin-seed1.json" in err
    assert "Warning: digits has no margin-seed1, norm-seed0" in err
    for file in folder.iterdir():
        file.write_text("{")
    code, _, err = surefind("report", "results")
    assert code == 1
    assert "none of the 3 results in results" in err


def test_sets_are_listed_and_checked(surefind, refused, monkeypatch, tmp_path):
    code, out, _ = surefind("data")
    assert code == 0
    assert "mnist MNIST: get the four idx" in out
    assert "comes with scikit-learn" in out
    code, out, _ = surefind("data", "digits")
    assert code == 0
    assert "digits in a library" in out
    assert "train: 1198 examples of 1198 published, 10 classes of 10 published" in out
    assert "examples and classes compared" in out
    assert refused("data", "msls").field == "folder"
    monkeypatch.setenv("SUREFIND_DATA", str(tmp_path))
    assert str(tmp_path) in refused("data", "mnist").message
    other = replace(catalogue.ENTRIES["digits"], counts={"train": 7})
    monkeypatch.setattr(catalogue, "ENTRIES", {"digits": other})
    code, out, _ = surefind("data", "digits", "--json")
    assert code == 1
    assert json.loads(out)["problems"] == ["part 'train' has 1198 examples where 7 are published."]


def test_names_are_completed():
    assert complete_methods("pfe,h") == ["pfe,hib"]
    assert complete_methods("a") == ["all"]
