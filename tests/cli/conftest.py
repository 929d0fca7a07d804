"""Commands as a user gives them, in a folder of their own; one small run that many tests look at."""

import shutil

import numpy as np
import pytest
from command_line import command
from PIL import Image

from surefind.cli.app import refusal_text


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer priors, examples to tune by and resamples: their number is not what commands are about."""
    monkeypatch.setattr("surefind.posterior.tuning.SHAPES", (0.01, 1.0))
    monkeypatch.setattr("surefind.posterior.tuning.EXAMPLES", 100)
    monkeypatch.setattr("surefind.evaluation.evaluate.RESAMPLES", 20)
    monkeypatch.setattr("surefind.cli.measure.SAMPLES", 5)


def unit(n, seed=0, z=4):
    """Return random vectors of length 1."""
    x = np.random.default_rng(seed).normal(size=(n, z)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.fixture
def surefind(tmp_path, monkeypatch):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREFIND_DATA", raising=False)
    return command


@pytest.fixture
def refused(surefind, monkeypatch):
    """Run a command that must be refused with exit code 1 and a sentence; give the error."""

    def run(*arguments):
        caught = []

        def recording(error, options):
            caught.append((error, options))
            return refusal_text(error, options)

        with monkeypatch.context() as patch:
            patch.setattr("surefind.cli.app.refusal_text", recording)
            code, _, err = surefind(*arguments)
        assert code == 1, err
        assert err.startswith("Error: ")
        assert "Traceback" not in err
        ((error, options),) = caught
        assert (
            options.get(error.field, "") in err
        )  # at fault is an option: it is named as it is typed
        return error

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A deterministic run of one epoch on the digits; not to be changed."""
    folder = tmp_path_factory.mktemp("trained") / "plain"
    options = ("--method", "deterministic", "--epochs", 1, "--held-out", 0)
    code, out, err = command("train", "digits", "--out", folder, *options)
    assert code == 0, err
    assert out.endswith(f"Next: surefind evaluate {folder}")
    return folder


@pytest.fixture
def run(trained, tmp_path):
    """A copy of that run, in the folder of the test."""
    return shutil.copytree(trained, tmp_path / "plain")


@pytest.fixture(scope="session")
def sure(trained, tmp_path_factory):
    """The same model with a posterior, about as wide as tuning makes it; not to be changed."""
    folder = tmp_path_factory.mktemp("sure") / "sure"
    given = ("--set", "scale=1200.0", "--set", "prior_precision=2800.0")
    code, out, err = command("fit", trained, "--out", folder, *given)
    assert code == 0, err
    assert out.endswith(f"Next: surefind evaluate {folder}")
    return folder


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    """The demo's folder, and what it said; not to be changed."""
    folder = tmp_path_factory.mktemp("demo") / "shown"
    code, out, err = command("demo", "--out", folder)
    assert code == 0, err
    return folder, out


def pictures(folder, side, per_class):
    """Write random pictures of two classes."""
    generator = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(per_class):
            pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")
    return folder


@pytest.fixture
def pets(tmp_path):
    """Two classes of four small pictures."""
    return pictures(tmp_path / "pets", 16, 4)


@pytest.fixture
def broken(tmp_path):
    """Two classes of six pictures of the size of the digits, and a file that is none."""
    folder = pictures(tmp_path / "pets", 8, 6)
    (folder / "cat" / "broken.png").write_bytes(b"not a picture")
    return folder
