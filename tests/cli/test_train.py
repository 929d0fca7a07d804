import json
import signal
import tomllib

import pytest
import small_learners

import surefind as sf
from surefind.apps.cli import console as progress
from surefind.apps.cli import train as training
from surefind.apps.cli.preflight import Estimate
from surefind.models.checkpoint import load_tensors

TRAIN = ("train", "digits", "--out", "run")


def test_train_resume_and_refuse(surefind, tmp_path):
    code, out, err = surefind(*TRAIN, "--epochs", 1)
    assert code == 0, err
    assert "Saved the model and its history in run." in out
    code, _, err = surefind(*TRAIN, "--epochs", 1)
    assert code == 1
    assert "add --resume" in err
    code, _, err = surefind(*TRAIN, "--seed", 3, "--resume")
    assert code == 1
    assert "seed was 0" in err
    code, _, err = surefind(*TRAIN, "--epochs", 2, "--resume")
    assert code == 0, err
    assert len(sf.load(tmp_path / "run").history_["encoder"]) == 2
    code, _, err = surefind(*TRAIN, "--epochs", 1, "--resume")
    assert code == 1
    assert "epochs was 2. Give the same ones; only epochs may be more." in err
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["epochs"] == 2
    assert surefind("train", "digits", "--out", "whole", "--epochs", 2)[0] == 0
    one, two = (sf.load(tmp_path / name).fitted.tensors() for name in ("run", "whole"))
    assert small_learners.tensors_equal(one, two)


def test_what_was_measured_of_a_shorter_training_is_removed(surefind, run):
    train = ("train", "digits", "--out", "plain", "--method", "deterministic")
    assert surefind("evaluate", "plain", "--samples", 0)[0] == 0
    assert surefind("report", "plain")[0] == 0
    measured = ("metrics.json", "report.html", "plots/calibration.svg", "plots/sparsification.svg")
    there = [name for name in measured if (run / name).exists()]
    assert there[:2] == ["metrics.json", "report.html"]
    assert surefind(*train, "--epochs", 1, "--resume")[0] == 0
    assert all((run / name).exists() for name in there)  # the model is the same
    code, _, err = surefind(*train, "--epochs", 2, "--resume")
    assert code == 0, err
    assert not (run / "metrics.json").exists()
    assert not (run / "report.html").exists()
    assert [p.name for p in (run / "plots").iterdir()] == ["loss.svg"]
    assert "| metrics.json |" not in (run / "README.md").read_text()


def test_a_place_that_is_taken_is_refused_before_anything_is_read(surefind, run, monkeypatch):
    def read(*_, **__):
        raise AssertionError("data were read first")

    monkeypatch.setattr("surefind.apps.cli.train.read_source", read)
    monkeypatch.setattr("surefind.apps.cli.fit.read_source", read)
    for command in (("train", "digits"), ("fit", "plain")):
        code, out, err = surefind(*command, "--out", "plain")
        assert code == 1
        assert "there is a run in plain already; add --resume" in err
        assert not out


def test_a_fit_without_steps_says_what_its_estimate_leaves_out(monkeypatch, capsys):
    estimate = Estimate(720.0, None)
    monkeypatch.setattr(training, "training_estimate", lambda *_: None)
    monkeypatch.setattr(training, "passing_estimate", lambda *_: estimate)
    training.say_how_long(small_learners.learner(), small_learners.digits()[0], resume=True)
    said = capsys.readouterr().out
    assert "This takes about 12 min; choosing the posterior's width comes on top." in said
    assert said.endswith("What is kept is not done again.\n")


def test_divergence_is_a_sentence(surefind, tmp_path):
    code, _, err = surefind(*TRAIN, "--epochs", 1, "--learning-rate", 1e6)
    assert code == 1
    assert "the training diverged: weights are huge at step" in err
    assert "Lower the learning rate" in err
    assert not (tmp_path / "run").exists()


def test_divergence_after_the_estimate_names_the_folder(surefind, monkeypatch):
    def diverge(*_, **__):
        raise sf.NumericalError("the training diverged.")

    monkeypatch.setattr("surefind.apps.cli.train.say_how_long", lambda *_, **__: None)
    monkeypatch.setattr(sf.MetricLearner, "fit", diverge)
    code, _, err = surefind(*TRAIN, "--epochs", 1)
    assert code == 1
    assert "the training diverged. Start again in another folder than run." in err


def test_a_run_has_everything_in_it_and_explains_it(trained):
    files = {p.name for p in trained.iterdir()}
    expected = {"config.toml", "model.safetensors", "history.json", "log.txt", "plots", "stages"}
    assert files == expected | {"README.md"}
    assert (trained / "plots" / "loss.svg").is_file()
    page = (trained / "README.md").read_text()
    assert all(f"| {name} |" in page for name in expected)
    assert "surefind train digits" in page
    config = tomllib.loads((trained / "config.toml").read_text())
    assert (config["format"], config["method"], config["epochs"]) == (1, "deterministic", 1)
    history = json.loads((trained / "history.json").read_text())
    assert list(history) == ["encoder"]
    assert set(history["encoder"][0]) == {"loss", "seconds"}
    log = (trained / "log.txt").read_text().splitlines()
    assert "started: surefind train" in log[0]
    assert "saved the model (encoder: loss" in log[-1]


def test_an_estimate_comes_first_and_a_log_gets_no_control_characters(surefind):
    _, out, _ = surefind(*TRAIN, "--epochs", 1)
    line = "encoder: epoch 1 of 1, step 19 of 19, loss"
    assert 0 < out.index("The training steps take about") < out.index(line) < out.index("Saved")
    assert "reading, saving and what the method does after them come on top" in out
    assert "\x1b" not in out
    assert "\r" not in out


def test_bad_images_are_named_before_training(surefind, broken, tmp_path):
    train = ("train", broken, "--out", "run", "--encoder", "small")
    code, _, err = surefind(*train, "--epochs", 1, "--batch-size", 4)
    assert code == 1
    assert "broken.png" in err
    assert not (tmp_path / "run").exists()


def test_bad_images_can_be_left_out(surefind, broken):
    train = ("train", broken, "--out", "run", "--encoder", "fashion-mnist", "--on-bad", "skip")
    code, out, err = surefind(*train, "--epochs", 1, "--batch-size", 4)
    assert "Left out 1 images that cannot be read:" in out
    assert "broken.png" in out
    assert code == 1  # that network takes grey images of 28 pixels
    assert "of shape (3, 28, 28)" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train", "digits", "--out", "run", "--method", "lam"), 1, "method must be one of"),
        (("train", "nowhere", "--out", "run"), 1, "neither a known set"),
        (("train", "digits"), 2, "--out"),
        (("train", "[/x]", "--out", "run"), 1, "'[/x]' is neither a known set"),
        (
            ("train", "digits", "--out", "run", "--margin", "-1"),
            1,
            "margin must be a finite number",
        ),
        (
            ("train", "digits", "--out", "run", "--learning-rate", "-1"),
            1,
            "--learning-rate must be",
        ),
        (("train", "digits", "--out", "run", "--encoder", "cifar10"), 1, "images"),
        (("train", "digits:night", "--out", "run"), 1, "digits has no part 'night'"),
    ],
)
def test_mistakes_get_a_sentence_and_a_code(surefind, tmp_path, arguments, code, message):
    found, _, err = surefind(*arguments)
    assert found == code
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_noticed_before_training(surefind, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    code, _, err = surefind(*TRAIN, "--epochs", 1)
    assert code == 1
    assert "run needs about 1 MB and the disk has 1 MB left" in err
    assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_the_last_step_and_says_how_to_go_on(surefind, tmp_path, monkeypatch):
    """Stop in the middle by a real signal, follow the advice, and end like an undisturbed run."""
    plain = progress._in_lines

    def pressing():
        report = plain()

        def watched(stage, at):
            report(stage, at)
            if (at.epoch, at.step) == (1, 4):
                signal.raise_signal(signal.SIGINT)

        return watched

    options = ("--epochs", 2, "--seed", 1)
    with monkeypatch.context() as patch:
        patch.setattr(progress, "_in_lines", pressing)
        code, _, err = surefind(*TRAIN, *options)
    assert code == 1
    advice = "surefind train digits --out run --epochs 2 --seed 1 --resume"
    assert err.endswith(f"training is kept in run. Go on with: {advice}")
    _, kept = load_tensors(tmp_path / "run" / "stages" / "encoder.safetensors")
    assert (kept["epoch"], kept["step"]) == (1, 4)
    assert "stopped by the user" in (tmp_path / "run" / "log.txt").read_text()
    code, _, err = surefind(*advice.split()[1:])
    assert code == 0, err
    assert surefind("train", "digits", "--out", "whole", *options)[0] == 0
    one, two = (sf.load(tmp_path / name).fitted.tensors() for name in ("run", "whole"))
    assert small_learners.tensors_equal(one, two)
