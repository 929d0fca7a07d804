import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def rng():
    return np.random.default_rng(20240611)


@pytest.fixture
def save_image(tmp_path, rng):
    """Write a noisy image of a size below the test's folder and return its path."""

    def save(name, size=(20, 16), mode="RGB", colour=None, **options):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if colour is None:
            channels = len(Image.new(mode, (1, 1)).getbands())
            shape = (size[1], size[0], channels) if channels > 1 else (size[1], size[0])
            noise = rng.integers(0, 256, shape, dtype=np.uint8)
            image = Image.fromarray(noise) if mode in {"RGB", "L"} else Image.new(mode, size)
        else:
            image = Image.new(mode, size, colour)
        image.save(path, **options)
        return path

    return save
