import json
from dataclasses import replace

import numpy as np
import pytest
import small_learners
import torch
from cli.conftest import refused, surefind  # noqa: F401
from data.conftest import save_image  # noqa: F401
from evaluation.conftest import novel, plain  # noqa: F401
from PIL import Image

import surefind as sf
from surefind.cli.app import app, register
from surefind.evaluation import evaluate as evaluation
from surefind.models.networks import small_net
from surefind.paper import running
from surefind.paper.cli import bench, data, report
from surefind.paper.ood_sets import OodSet
from surefind.paper.protocols import PROTOCOLS, Problem, Protocol

for command in (bench, report, data):
    # As an installed distribution's entry points do.
    if command.__name__ not in {known.name for known in app.registered_commands}:
        register(app, command)

PROTOCOL = Protocol(None, (OodSet("noise", "all"),), 0.7, 1, 1, 32, 32, 1e-3, ece_samples=4)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer resamples, corrupted images and priors: what they cost here is their overhead."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 5)
    monkeypatch.setattr("surefind.posterior.tuning.SHAPES", (0.01, 1.0))
    monkeypatch.setattr(running, "CORRUPTED", 4)


@pytest.fixture(name="rng")
def source_of_noise():
    return np.random.default_rng(20240611)


@pytest.fixture
def quick(monkeypatch):
    """Let the benchmark of the digits train for one epoch."""
    short = replace(PROTOCOLS["digits"], epochs=1, online_epochs=1)
    monkeypatch.setitem(PROTOCOLS, "digits", short)


@pytest.fixture(scope="session")
def tiny():
    """A problem of four digits against noise, with three outputs, that takes a moment."""
    train, test = small_learners.digits()
    noise = torch.randint(
        256, (20, 8, 8), dtype=torch.uint8, generator=small_learners.seeded(0, "noise")
    )
    return Problem(
        "tiny",
        PROTOCOL,
        lambda generator: small_net(1, 8, 3, generator=generator),
        train[:120],
        test[:40],
        ood=sf.Dataset(noise, name="noise"),
    )


@pytest.fixture
def placed(generator):
    """Features of places: four spots in a plane, looked up in a gallery, without OOD data."""

    def part(n):
        spot = torch.arange(n) % 4
        features = torch.eye(4)[spot] + 0.3 * torch.randn(n, 4, generator=generator)
        return sf.Dataset(features, positions=torch.stack([spot * 100.0, spot * 0.0], dim=1))

    protocol = replace(PROTOCOL, ood=(), queries="query", gallery="database", validation="none")

    def build(generator):
        encoder = sf.Encoder(torch.nn.Identity(), torch.nn.Linear(4, 3))
        torch.nn.init.normal_(encoder.head.weight, generator=generator)
        return encoder

    return Problem("places", protocol, build, part(64), part(24), part(32))


@pytest.fixture
def folders(tmp_path):
    """Write a folder with a folder of images for each class: the class decides the colour."""
    rng = np.random.default_rng(0)

    def write(name, classes, images=4, size=(12, 10)):
        for c in classes:
            folder = tmp_path / name / f"class{c}"
            folder.mkdir(parents=True)
            for i in range(images):
                noise = rng.integers(0, 60, (size[1], size[0], 3))
                pixels = noise + np.array([c * 37 % 190, c * 91 % 190, c * 53 % 190])
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
        return tmp_path / name

    return write


RECORDED = {"ood": ["mnist", "test"], "margin": 0.7, "epochs": 20, "batch_size": 256}
VERSIONS = {"surefind": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6", "python": "3.11.7"}


def make_result(method="laplace-online", seed=0, dataset="fashion-mnist", **changes):
    """One result as JSON, whose numbers depend on method and seed alone."""
    rng = np.random.default_rng([sum(map(ord, method)), seed])
    made = {
        "values": {"recall@1": round(rng.uniform(0.7, 0.9), 4)},
        "intervals": {},
        "curves": {},
        "left_out": 0,
        "dataset": dataset,
        "method": method,
        "seed": seed,
        "protocol": RECORDED,
        "examples": {"train": 54000, "test": 10000, "ood": 10000},
        "seconds": 1.5,
        "versions": VERSIONS,
    }
    recall = made["values"]["recall@1"]
    made["values"] |= {"map@1": recall, "map@5": recall - 0.03}
    made["intervals"] = {"recall@1": [recall - 0.01, recall + 0.01]}
    if method != "deterministic":
        _with_uncertainty(made, rng)
    return made | changes


def _with_uncertainty(made, rng):
    made["values"] |= {
        m: round(rng.uniform(0.6, 0.99), 4) for m in ("auroc", "auprc", "ausc", "r_auroc")
    }
    made["values"] |= {m: round(rng.uniform(0.01, 0.2), 4) for m in ("fpr95", "aurc", "ece")}
    x = np.linspace(0, 1, 21)
    made["curves"] = {
        kind: {"x": x.tolist(), "y": (x ** rng.uniform(0.1, 1)).tolist()}
        for kind in ("roc", "precision-recall", "calibration", "sparsification")
    }
    made["kappa"] = {
        "edges": np.linspace(0, 2, 61).round(4).tolist(),
        "id": rng.integers(0, 50, 60).tolist(),
        "ood": rng.integers(0, 50, 60).tolist(),
    }
    made["corruptions"] = {
        kind: {
            "strength": [0.0, 0.5, 1.0],
            "median": [0.1, 0.2, 0.4],
            "low": [0.05, 0.1, 0.2],
            "high": [0.2, 0.4, 0.8],
        }
        for kind in ("blur", "noise", "occlusion")
    }


@pytest.fixture(scope="session")
def result():
    """Make a result as the benchmark writes it."""
    return make_result


@pytest.fixture(scope="session")
def write_results():
    """Write results where the benchmark would."""

    def write(folder, *results):
        for made in results:
            file = folder / made["dataset"] / f"{made['method']}-seed{made['seed']}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(made) + "\n")
        return folder

    return write


@pytest.fixture
def put(tmp_path, write_results):
    """Write results to a folder of the test's own, and return it."""
    return lambda *results: write_results(tmp_path / "results", *results)
