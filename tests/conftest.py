import json
import os

# Tests run side by side, one process a core; so do the processes that they start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest
import torch

SLOW = ("cli", "journeys", "paper", "service")
"""Rooms that start programs, services and trainings: none of their tests is in the quick set."""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    rooms = tuple(Path(__file__).parent / name for name in SLOW)
    for item in items:
        if item.path.parents[0] in rooms:
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def same_start():
    """Layers and losses that tests build draw the same weights in every run, in any order."""
    torch.default_generator.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(20230715)


@pytest.fixture
def normal(generator):
    """Draw float64 normals of a shape."""
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture
def directions(normal):
    return lambda n, z: torch.nn.functional.normalize(normal(n, z), dim=1)


@pytest.fixture
def backbone(tmp_path):
    """A folder with a tiny pretrained ResNet for images of 16 × 16."""
    import transformers

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1]}
    network = transformers.ResNetModel(transformers.ResNetConfig(**sizes))
    transformers.utils.logging.disable_progress_bar()
    network.save_pretrained(tmp_path / "tiny-resnet")
    format_ = {"size": 16, "crop_pct": 1.0, "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (tmp_path / "tiny-resnet" / "preprocessor_config.json").write_text(json.dumps(format_))
    return tmp_path / "tiny-resnet"
