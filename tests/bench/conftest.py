import json
from dataclasses import replace

import numpy as np
import pytest
import small_learners
import torch
import transformers
from PIL import Image

import surefind as sf
from surefind.evaluation import evaluate as evaluation
from surefind.evaluation.bench import Problem, Protocol, showing
from surefind.models.convnets import small_net

PROTOCOL = Protocol(None, ("noise", "all"), 0.7, 1, 1, 32, 32, 1e-3, ece_samples=4)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer resamples and corrupted images: what they cost here is their overhead."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 5)
    monkeypatch.setattr(showing, "CORRUPTED", 4)


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
    """Features of places: four spots in a plane, looked up in a gallery, with nothing strange."""

    def part(n):
        spot = torch.arange(n) % 4
        features = torch.eye(4)[spot] + 0.3 * torch.randn(n, 4, generator=generator)
        return sf.Dataset(features, positions=torch.stack([spot * 100.0, spot * 0.0], dim=1))

    protocol = replace(PROTOCOL, ood=None, queries="query", gallery="database", validation="none")

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


@pytest.fixture
def backbone(tmp_path):
    """A folder with a tiny pretrained ResNet for images of 16 × 16."""
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
    network = transformers.ResNetModel(transformers.ResNetConfig(**sizes))
    transformers.utils.logging.disable_progress_bar()
    network.save_pretrained(tmp_path / "tiny-resnet")
    format_ = {"size": 16, "crop_pct": 1.0, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (tmp_path / "tiny-resnet" / "preprocessor_config.json").write_text(json.dumps(format_))
    return tmp_path / "tiny-resnet"
