"""The command line as a user meets it."""

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import surefind as sf
from surefind.cli import main


@pytest.fixture
def surefind(tmp_path, monkeypatch, capsys):
    """Run a command in an empty folder; give its exit code and what it wrote."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["surefind", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        written = capsys.readouterr()
        return end.value.code or 0, " ".join(written.out.split()), " ".join(written.err.split())

    return run


def test_train_resume_and_refuse(surefind, tmp_path):
    train = ("train", "digits", "--out", "run")
    code, out, err = surefind(*train, "--epochs", 1)
    assert code == 0, err
    assert "Saved the model and its history in run." in out
    assert {p.name for p in (tmp_path / "run").iterdir()} >= {"config.toml", "model.safetensors"}
    code, _, err = surefind(*train, "--epochs", 1)
    assert code == 1
    assert "add --resume" in err
    code, _, err = surefind(*train, "--seed", 3, "--resume")
    assert code == 1
    assert "seed was 0" in err
    code, _, err = surefind(*train, "--epochs", 2, "--resume")
    assert code == 0, err
    assert len(sf.load(tmp_path / "run").history_["encoder"]) == 2


def test_demo_tells_a_story_and_leaves_a_page(surefind, tmp_path):
    code, out, err = surefind("demo", "--out", "page.html")
    assert code == 0, err
    assert "median κ" in out
    assert out.endswith(str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 4
    assert "http" not in page


def test_data_check_says_what_is_there_and_what_is_wrong(surefind, tmp_path):
    code, out, _ = surefind("data", "check", "digits")
    assert code == 0
    assert "Everything is as published" in out
    code, _, err = surefind("data", "check", "mnist", "--data", tmp_path)
    assert code == 1
    assert "MNIST is not in" in err
    code, out, _ = surefind("data", "list")
    assert code == 0
    assert "fashion-mnist" in out


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


def test_bad_images_are_named_before_training(surefind, folder, tmp_path):
    (folder / "cat" / "broken.png").write_bytes(b"not a picture")
    train = (
        "train",
        folder,
        "--out",
        "run",
        "--encoder",
        "small",
        "--epochs",
        1,
        "--batch-size",
        4,
    )
    code, _, err = surefind(*train)
    assert code == 1
    assert "broken.png" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("train", "digits", "--out", "run", "--method", "lam"), 1, "method must be one of"),
        (("train", "nowhere", "--out", "run"), 1, "neither a known set"),
        (("train", "digits"), 2, "--out"),
        (("data", "check", "imagenet"), 1, "name must be one of"),
        (("train", "[/x]", "--out", "run"), 1, "'[/x]' is neither a known set"),
        (
            ("train", "digits", "--out", "run", "--margin", "-1"),
            1,
            "margin must be a finite number",
        ),
        (("train", "digits", "--out", "run", "--learning-rate", "-1"), 1, "learning_rate must be"),
        (("train", "digits", "--out", "run", "--encoder", "cifar10"), 1, "images"),
    ],
)
def test_mistakes_get_a_sentence_and_a_code(surefind, tmp_path, arguments, code, message):
    found, _, err = surefind(*arguments)
    assert found == code
    assert message in err
    assert not list(tmp_path.iterdir())


def test_a_mistake_shows_no_traceback(tmp_path):
    """As a shell sees it, in a process of its own."""
    code = "from surefind.cli import main; main()"
    command = [sys.executable, "-c", code, "data", "check", "imagenet"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
