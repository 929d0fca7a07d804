import pytest
import torch

# Tests run side by side, one process a core.
torch.set_num_threads(1)


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
