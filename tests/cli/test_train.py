import json
import signal
import tomllib

import numpy as np
import pytest
import small_learners
from command_line import two_processes
from PIL import Image

import surefind as sf
from surefind.cli.console import whole_steps
from surefind.data.sources import load_folder
from surefind.models.saving import load_tensors

QUICK = ("--set", "tuning=trained")
"""Without tuning, which takes longer than all the rest."""
TRAIN = ("train", "digits", "--out", "run", *QUICK)


def test_train_resume_and_refuse(surefind, refused, tmp_path):
    code, out, err = surefind(*TRAIN, "--epochs", 1)
    assert code == 0, err
    assert "Saved the model and its history in run." in out
    assert refused(*TRAIN, "--epochs", 1).field == "resume"
    assert refused(*TRAIN, "--seed", 3, "--resume").field == "seed"
    code, _, err = surefind(*TRAIN, "--epochs", 2, "--resume")
    assert code == 0, err
    assert len(sf.load(tmp_path / "run").history_["encoder"]) == 2
    assert refused(*TRAIN, "--epochs", 1, "--resume").field == "epochs"
    assert tomllib.loads((tmp_path / "run" / "config.toml").read_text())["epochs"] == 2
    assert surefind("train", "digits", "--out", "whole", *QUICK, "--epochs", 2)[0] == 0
    one, two = (sf.load(tmp_path / name).fitted.tensors() for name in ("run", "whole"))
    assert small_learners.tensors_equal(one, two)


def test_what_was_measured_of_a_shorter_training_is_removed(surefind, run):
    train = ("train", "digits", "--out", "plain", "--method", "deterministic", "--held-out", 0)
    assert surefind("evaluate", "plain")[0] == 0
    measured = ("metrics.json", "plots/calibration.svg", "plots/sparsification.svg")
    there = [name for name in measured if (run / name).exists()]
    assert there[0] == "metrics.json"
    assert surefind(*train, "--epochs", 1, "--resume")[0] == 0
    assert all((run / name).exists() for name in there)  # the model is the same
    code, _, err = surefind(*train, "--epochs", 2, "--resume")
    assert code == 0, err
    assert not (run / "metrics.json").exists()
    assert [p.name for p in (run / "plots").iterdir()] == ["loss.svg"]


def test_a_place_that_is_taken_is_refused_before_anything_is_read(refused, run, monkeypatch):
    def read(*_, **__):
        raise AssertionError("data were read first")

    monkeypatch.setattr("surefind.data.sources.read_source", read)
    for command in (("train", "digits"), ("fit", "plain")):
        assert refused(*command, "--out", "plain").field == "resume"


def test_a_run_has_everything_in_it(trained):
    files = {p.name for p in trained.iterdir()}
    expected = {"config.toml", "model.safetensors", "history.json", "log.txt", "plots", "stages"}
    assert files == expected
    assert (trained / "plots" / "loss.svg").is_file()
    config = tomllib.loads((trained / "config.toml").read_text())
    assert (config["format"], config["method"], config["epochs"]) == (1, "deterministic", 1)
    history = json.loads((trained / "history.json").read_text())
    assert list(history) == ["encoder"]
    assert set(history["encoder"][0]) == {"loss", "seconds", "judged"}
    log = (trained / "log.txt").read_text().splitlines()
    assert "started: surefind train" in log[0]
    assert "saved the model (encoder: loss" in log[-1]


@pytest.mark.parametrize("per_class", [{"cat": 6}, {"cat": 1, "dog": 1}], ids=str)
def test_data_that_teach_nothing_are_refused_before_a_run_is_made(refused, tmp_path, per_class):
    for name, count in per_class.items():
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(count):
            picture = Image.fromarray(np.full((16, 16, 3), 20 * i + ord(name[0]), np.uint8))
            picture.save(tmp_path / "pets" / name / f"{i}.png")
    for method in ("deterministic", "laplace-online"):
        options = ("--encoder", "small", "--method", method, "--out", "run", "--epochs", 1)
        assert isinstance(refused("train", "pets", *options), sf.DegenerateError)
        assert not (tmp_path / "run").exists()


def test_ctrl_c_keeps_the_last_step_and_shows_how_to_resume(surefind, tmp_path, monkeypatch):
    """Interrupt in the middle by a real signal, follow the hint, and end like an undisturbed run."""

    def pressing(report):
        def watched(stage, at):
            report(stage, at)
            if (at.epoch, at.step) == (1, 4):
                signal.raise_signal(signal.SIGINT)

        return whole_steps(watched)

    options = ("--epochs", 2, "--seed", 1)
    with monkeypatch.context() as patch:
        patch.setattr("surefind.cli.learn.whole_steps", pressing)
        code, _, err = surefind(*TRAIN, *options)
    assert code == 1
    hint = "surefind train digits --out run --set tuning=trained --epochs 2 --seed 1 --resume"
    assert err.endswith(f"Interrupted: there is a checkpoint in run. Resume with: {hint}")
    _, kept = load_tensors(tmp_path / "run" / "stages" / "encoder.safetensors")
    assert (kept["epoch"], kept["step"]) == (1, 4)
    assert "interrupted by the user" in (tmp_path / "run" / "log.txt").read_text()
    code, _, err = surefind(*hint.split()[1:])
    assert code == 0, err
    assert surefind("train", "digits", "--out", "whole", *QUICK, *options)[0] == 0
    one, two = (sf.load(tmp_path / name).fitted.tensors() for name in ("run", "whole"))
    assert small_learners.tensors_equal(one, two)


@pytest.fixture
def frozen(surefind, pets, backbone):
    """Enough pictures for novelty, and the command that trains on a frozen backbone."""
    for label in ("cat", "dog"):
        for i in range(4, 16):
            (pets / label / f"{i}.png").write_bytes((pets / label / f"{i % 4}.png").read_bytes())
    train = ("train", pets, "--encoder", backbone, "--batch-size", 8)
    return (*train, "--method", "deterministic")


def test_a_frozen_backbone_is_trained_resumed_fitted_and_used(surefind, frozen):
    train = (*frozen, "--set", "trained_stages=1", "--out", "run")
    code, _, err = surefind(*train, "--epochs", 1)
    assert code == 0, err
    assert "features: 32 of 32" in err
    code, _, err = surefind(*train, "--epochs", 2, "--resume")
    assert code == 0, err
    assert "features: 32" not in err  # they are there
    for command in (
        ("fit", "run", "--out", "sure"),
        ("embed", "sure", "pets", "--out", "e.npz"),
        ("evaluate", "sure", "pets"),
        ("index", "pets", "--run", "sure", "--out", "gallery"),
    ):
        code, _, err = surefind(*command)
        assert code == 0, err
        assert "features: 32" not in err
    sure, plain = sf.load("sure"), sf.load("run")
    data = load_folder("pets")["all"]
    cosine = (
        sure.fitted.embed(data.read(preprocessing=sure.input_spec_)).mean * plain.embed(data).mean
    ).sum(1)
    assert cosine.min() > 0.9  # the network is the same, and its layers say more
    assert sure.embed(data).kappa.isfinite().all()
    assert sure.embed(data).novelty is not None


def test_views_are_computed_into_a_cache_that_may_be_moved(surefind, frozen, tmp_path):
    options = ("--set", "views=2", "--set", "head=whitened-within", "--embedding-dim", 4)
    train = (*frozen, *options, "--out", "run")
    code, _, err = surefind(*train, "--epochs", 1, "--set", "cache=cache")
    assert code == 0, err
    assert "features: 96 of 96" in err
    (tmp_path / "cache").rename(tmp_path / "moved")
    code, _, err = surefind(*train, "--epochs", 2, "--set", "cache=moved", "--resume")
    assert code == 0, err
    assert "features: 96" not in err
    assert not (tmp_path / "cache").exists()
    assert sf.load("run").freezing == sf.Freezing(views=2, head="whitened-within")


def test_what_cannot_be_frozen_is_refused(refused, frozen, tmp_path):
    assert refused(*frozen, "--out", "run", "--set", "trained_stages=2").field == "trained_stages"
    assert refused(*frozen, "--out", "run", "--set", "trained_stages=-1").field == "trained_stages"
    (tmp_path / "tiny-resnet" / "preprocessor_config.json").unlink()
    arrays = (*TRAIN, "--encoder", "tiny-resnet")
    assert refused(*arrays, "--set", "views=2").field == "views"
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_two_processes_train_on_one_cache(frozen, tmp_path):
    options = ("--out", "run", "--epochs", "1", "--set", "cache=cache")
    printed = two_processes("-m", "surefind", *frozen, *options, folder=tmp_path)
    assert printed.count("Saved the model") == 1
    (features,) = (tmp_path / "cache").glob("*/features.npy")
    assert (np.load(features).reshape(32, -1) != 0).any(1).all()
    assert sf.load(tmp_path / "run").layers_.novelty is not None


def test_training_says_what_is_decided_about_held_out_examples(surefind):
    code, out, err = surefind("train", "digits", "--out", "run", "--held-out", 0.3, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert "Guarantee: at most 5 % of matches are wrong" in found["decisions"]
    assert "asked about what was held out" in err
    assert found["stages"]["encoder"]["epochs"] < 20
