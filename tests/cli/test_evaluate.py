import json
from xml.etree import ElementTree

import numpy as np
import pytest
from sklearn.datasets import load_digits

import surefind as sf
from surefind.cli.runs import RunFolder
from surefind.evaluation.evaluate import evaluate
from surefind.learning.seeds import seeded

WIDTH = ("--set", "scale=1000.0", "--set", "prior_precision=1000.0")
"""Given, because choosing it takes longer than all the rest."""


def test_a_run_is_measured_as_the_library_does_it(surefind, sure, tmp_path):
    copy = sf.load(sure)
    copy.save(tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text((sure / "config.toml").read_text())
    code, out, err = surefind("evaluate", "run", "--ood", "digits:ood", "--samples", 5)
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


def test_vectors_are_measured_too(surefind, sure):
    for part in ("train", "test"):
        assert surefind("embed", sure, f"digits:{part}", "--out", f"{part}.npz")[0] == 0
    assert surefind("fit", "train.npz", "--out", "run", *WIDTH)[0] == 0
    code, out, err = surefind("evaluate", "run", "test.npz", "--samples", 0)
    assert code == 0, err
    assert "recall@1" in out
    assert "ece" not in out


def test_queries_can_be_looked_up_elsewhere(surefind, run):
    code, _, err = surefind("evaluate", "plain", "--gallery", "digits:train")
    assert code == 0, err
    stored = json.loads((run / "metrics.json").read_text())
    splits = load_digits()
    expected = evaluate(
        sf.load(run), splits.test, gallery=splits.train, generator=seeded(0, "evaluation")
    )
    assert stored["values"] == pytest.approx(expected.values)


def test_training_data_are_never_taken_for_test_data(surefind, refused, sure):
    assert surefind("embed", sure, "digits:train", "--out", "train.npz")[0] == 0
    assert surefind("fit", "train.npz", "--out", "run", *WIDTH)[0] == 0
    assert refused("evaluate", "run").field == "source"


def test_a_model_saved_from_python_needs_data_to_be_named(surefind, refused, tmp_path, trained):
    sf.load(trained).save(tmp_path / "bare")
    assert refused("evaluate", "bare").field == "source"
    code, out, err = surefind("evaluate", "bare", "digits")
    assert code == 0, err
    assert "surefind fit bare --out bare-posthoc --on TRAINING-DATA" in out


@pytest.mark.parametrize("source", ["digits:test", "photos"])
def test_a_run_whose_test_data_are_not_known_says_so(refused, run, source):
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('"digits"', f'"{source}"', 1))
    error = refused("evaluate", "plain")
    assert error.field == "source"
    assert f"plain was trained on {source}" in error.message


def test_image_files_of_another_size_are_resized_and_arrays_refused(surefind, run, pets):
    code, _, err = surefind("embed", "plain", "pets", "--out", "pets.npz")
    assert code == 0, err
    np.savez("big.npz", inputs=np.zeros((4, 16, 16), np.uint8), labels=[0, 0, 1, 1])
    code, _, err = surefind("evaluate", "plain", "big.npz")
    assert code == 1
    assert "of shape (1, 16, 16); the model was trained on images" in err
    assert "of shape (1, 8, 8)." in err


def test_bad_images_are_refused_or_left_out(surefind, refused, run, broken):
    evaluate = ("evaluate", "plain", "pets", "--ood", "pets/cat", "--samples", 0)
    assert refused(*evaluate).field == "on_bad"
    code, out, err = surefind(*evaluate, "--on-bad", "skip")
    assert code == 0, err
    assert out.count("Left out 1 images that cannot be read:") == 2
    assert json.loads((run / "metrics.json").read_text())["examples"] == {"test": 12, "ood": 6}


def test_queries_that_count_nowhere_are_mentioned(surefind, run):
    """One nine among zeros: it has nothing to find."""
    digits = load_digits()
    zeros, nine = np.flatnonzero(digits.target == 0)[:20], np.flatnonzero(digits.target == 9)[:1]
    rows = np.concatenate([zeros, nine])
    images = (digits.images[rows] * 15).astype(np.uint8)
    np.savez("few.npz", inputs=images, labels=digits.target[rows])
    code, out, err = surefind("evaluate", "plain", "few.npz")
    assert code == 0, err
    assert "1 queries have no other example" in out


def test_too_little_to_measure_is_refused(refused, run):
    np.savez("few.npz", inputs=np.zeros((3, 8, 8), np.uint8), labels=np.zeros(3, np.int64))
    error = refused("evaluate", "plain", "few.npz")
    assert error.field == "test"
    assert error.hint
    assert not (run / "metrics.json").exists()


def test_a_second_evaluation_replaces_the_first(surefind, run):
    assert surefind("evaluate", "plain", "--samples", 0)[0] == 0
    assert surefind("evaluate", "plain", "digits:train", "--samples", 0)[0] == 0
    assert json.loads((run / "metrics.json").read_text())["test"] == "digits:train"
    RunFolder(run, {}).forget_evaluation()
    assert [p.name for p in (run / "plots").iterdir()] == ["loss.svg"]
