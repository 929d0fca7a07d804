import json

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter

from surefind.paper.corruptions import blur, corruption_curves, noise, occlude


@pytest.fixture
def images(generator):
    return lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("shape", [(3, 1, 28, 28), (2, 3, 32, 20), (1, 2, 8, 8), (1, 1, 1, 5)])
@pytest.mark.parametrize("strength", [0.1, 0.5, 1.0])
def test_blur_is_scipys(images, shape, strength):
    x = images(*shape)
    sigma = strength * min(shape[2:]) / 8
    expected = gaussian_filter(x.numpy(), sigma=(0, 0, sigma, sigma), mode="nearest", truncate=4.0)
    np.testing.assert_allclose(blur(x, strength).numpy(), expected, atol=1e-12)


def test_no_strength_changes_nothing(images, generator):
    x = images(4, 3, 9, 7)
    for changed in (blur(x, 0), noise(x, 0, generator), occlude(x, 0, generator)):
        assert torch.equal(changed, x)
        assert changed is not x


def test_noise_has_the_deviation_it_says(generator):
    x = torch.full((20, 1, 50, 50), 0.5)
    changed = noise(x, 0.2, generator)
    assert float((changed - x).std()) == pytest.approx(0.1, rel=0.02)
    strong = noise(x, 1, generator)
    assert float(strong.min()) == 0
    assert float(strong.max()) == 1


@pytest.mark.parametrize("strength", [0.05, 0.25, 0.5, 1])
def test_occlusion_covers_one_rectangle_of_the_area(images, generator, strength):
    x = images(50, 2, 40, 20) * 0.4
    changed = occlude(x, strength, generator)
    covered = (changed == 0.5).numpy()
    assert (covered[:, 0] == covered[:, 1]).all()
    corners = set()
    for mask in covered[:, 0]:
        rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
        assert len(rows) == round(40 * strength**0.5)
        assert len(columns) == round(20 * strength**0.5)
        assert mask.sum() == len(rows) * len(columns)
        assert rows[-1] - rows[0] == len(rows) - 1
        corners.add((rows[0], columns[0]))
    assert torch.equal(changed[~torch.from_numpy(covered)], x[~torch.from_numpy(covered)])
    assert len(corners) > (1 if strength < 1 else 0)


def test_the_same_generator_draws_the_same(images):
    x = images(3, 1, 8, 8)
    for corrupt in (noise, occlude):
        first, again = (corrupt(x, 0.5, torch.Generator().manual_seed(1)) for _ in range(2))
        assert torch.equal(first, again)


def test_curves_are_medians_and_quartiles_as_json(images, generator):
    x = images(101, 1, 8, 8)
    curves = corruption_curves(lambda batch: batch.mean(dim=(1, 2, 3)).numpy(), x, generator)
    assert list(curves) == ["blur", "noise", "occlusion"]
    assert json.loads(json.dumps(curves)) == curves
    means = np.sort(x.mean(dim=(1, 2, 3)).numpy())
    for curve in curves.values():
        assert curve["strength"] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
        assert curve["median"][0] == pytest.approx(means[50])
        assert curve["low"][0] == pytest.approx(means[25])
        assert curve["high"][0] == pytest.approx(means[75])
    assert curves["occlusion"]["median"][-1] == pytest.approx(0.5)
