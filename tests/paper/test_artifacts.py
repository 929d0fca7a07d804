import numpy as np
import pytest
import torch

import surefind as sf
from surefind.paper.artifacts import IMAGES, STRIPS, extreme_images, read_strips, write_strips


@pytest.mark.parametrize("channels", [1, 3])
def test_the_surest_and_the_least_sure_images_come_first_and_are_read_back(channels, tmp_path):
    images = torch.rand(40, channels, 5, 4)
    uncertainty = torch.arange(40.0).flip(0).numpy()
    strips = extreme_images("id", lambda rows: images[rows], uncertainty)
    assert set(strips) == {"id-lowest", "id-highest"} < set(STRIPS)
    shape = (IMAGES, 5, 4) if channels == 1 else (IMAGES, 5, 4, 3)
    expected = (images * 255).round().permute(0, 2, 3, 1).numpy().reshape(40, *shape[1:])
    np.testing.assert_array_equal(strips["id-lowest"], expected[::-1][:IMAGES])
    np.testing.assert_array_equal(strips["id-highest"], expected[:IMAGES])
    file = tmp_path / "digits" / "pfe-seed0.npz"
    assert read_strips(file) == {}
    write_strips(file, strips)
    again = read_strips(file)
    assert all(np.array_equal(again[name], strips[name]) for name in strips)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(sf.InputError, match="holds no valid artifacts"):
        read_strips(file)
