import json
from xml.etree import ElementTree

import pytest

import surefind as sf
from surefind.cli.runs import RunFolder
from surefind.data.sources import load_digits
from surefind.evaluation.evaluate import evaluate
from surefind.learning.seeds import seeded


def test_a_run_is_measured_as_the_library_does_it(surefind, sure, tmp_path):
    copy = sf.load(sure)
    copy.save(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text((sure / "config.toml").read_text())
    code, out, err = surefind("evaluate", "run", "--ood", "digits:ood")
    assert code == 0, err
    assert "Evaluating on 599 examples of digits." in out
    assert "auroc" in out
    assert "OOD inputs: " in out
    assert "them best" in out
    stored = json.loads((tmp_path / "run" / "metrics.json").read_text())
    splits = load_digits()
    expected = evaluate(
        copy, splits.test, splits["ood"], generator=seeded(0, "evaluation"), ece_samples=5
    )
    assert stored["values"] == pytest.approx(expected.values)
    assert (stored["test"], stored["ood"]) == ("digits:test", "digits:ood")
    assert stored["examples"] == {"test": 599, "ood": 500}
    plots = {p.name for p in (tmp_path / "run" / "plots").iterdir()}
    assert {"uncertainty.svg", "roc.svg", "sparsification.svg", "calibration.svg"} <= plots
    for name in plots:
        ElementTree.parse(tmp_path / "run" / "plots" / name)
    assert "evaluated on digits:test" in (tmp_path / "run" / "log.txt").read_text()


def test_a_model_that_says_nothing_about_itself_is_told_how_to(surefind, run):
    code, out, err = surefind("evaluate", "plain", "--ood", "digits:ood")
    assert code == 0, err
    shown = out.split("This model")[0]
    assert "│ auroc" not in shown
    assert "nearest_distance_auroc" in shown
    assert "surefind fit plain --out plain-posthoc" in out


def test_queries_can_be_looked_up_elsewhere_and_replace_what_was_measured(surefind, run):
    for more in ((), ("--gallery", "digits:train")):
        code, _, err = surefind("evaluate", "plain", *more)
        assert code == 0, err
    stored = json.loads((run / "metrics.json").read_text())
    assert stored["gallery"] == "digits:train"
    splits = load_digits()
    expected = evaluate(
        sf.load(run), splits.test, gallery=splits.train, generator=seeded(0, "evaluation")
    )
    assert stored["values"] == pytest.approx(expected.values)
    RunFolder(run, {}).forget_evaluation()
    assert [p.name for p in (run / "plots").iterdir()] == ["loss.svg"]
