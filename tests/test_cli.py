"""The command line as a user meets it, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import surefind as sf


def surefind(*arguments, cwd):
    command = [sys.executable, "-c", "from surefind.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_train_resume_and_refuse(tmp_path):
    first = surefind("train", "digits", "--out", "run", "--epochs", 1, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "Saved the model and its history in run." in first.stdout
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"config.toml", "model.safetensors"}
    again = surefind("train", "digits", "--out", "run", "--epochs", 1, cwd=tmp_path)
    assert again.returncode == 1
    assert "add --resume" in again.stderr
    other = surefind("train", "digits", "--out", "run", "--seed", 3, "--resume", cwd=tmp_path)
    assert other.returncode == 1
    assert "seed was 0" in other.stderr
    longer = surefind("train", "digits", "--out", "run", "--epochs", 2, "--resume", cwd=tmp_path)
    assert longer.returncode == 0, longer.stderr
    assert len(sf.load(tmp_path / "run").history_["encoder"]) == 2


def test_data_check_says_what_is_there_and_what_is_wrong(tmp_path):
    good = surefind("data", "check", "digits", cwd=tmp_path)
    assert good.returncode == 0
    assert "Everything is as published." in good.stdout
    absent = surefind("data", "check", "mnist", "--data", tmp_path, cwd=tmp_path)
    assert absent.returncode == 1
    assert "MNIST is not in" in absent.stderr
    assert "Traceback" not in absent.stderr


@pytest.fixture
def folder(tmp_path):
    """Two classes of four small pictures."""
    generator = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "pets" / label).mkdir(parents=True)
        for i in range(4):
            pixels = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / label / f"{i}.png")
    return tmp_path / "pets"


def test_bad_images_are_named_before_training(folder, tmp_path):
    (folder / "cat" / "broken.png").write_bytes(b"not a picture")
    options = ("--encoder", "small", "--epochs", 1)
    refused = surefind("train", folder, "--out", "run", *options, cwd=tmp_path)
    assert refused.returncode == 1
    assert "broken.png" in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train", "digits", "--out", "run", "--method", "lam"), 1, "method must be one of"),
        (("train", "nowhere", "--out", "run"), 1, "neither a known set"),
        (("train", "digits"), 2, "--out"),
        (("data", "check", "imagenet"), 1, "name must be one of"),
    ],
)
def test_mistakes_get_a_sentence_and_a_code(tmp_path, arguments, code, message):
    run = surefind(*arguments, cwd=tmp_path)
    assert run.returncode == code
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(Path(tmp_path).iterdir())
