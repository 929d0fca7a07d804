"""The digits that come with scikit-learn: the one data set that needs no file and no download.

1,797 images of 8 × 8 pixels, and as out-of-distribution inputs patches of that size from the library's two
photographs. The last third, in the library's order, is the test part.
"""

import numpy as np

from surefind.checks import check_int, require
from surefind.data.dataset import Dataset, Splits

DIGITS = tuple("0123456789")
PATCH_SIDE = 8
"""The photographs' patches are as large as the digits."""
GREY_LEVELS = 16
"""The digits' grey levels run from 0 to this."""


def load_digits(*, n_ood: int = 500, seed: int = 0) -> Splits:
    """Load the digits.

    Args:
        n_ood: Number of patches of photographs.
        seed: Chooses the patches.

    Returns:
        The parts ``"train"``, ``"test"`` and ``"ood"``; the last has no labels.
    """
    check_int("n_ood", n_ood, least=1)
    datasets = require("sklearn.datasets", "load the digits")
    stored = datasets.load_digits()
    images = np.round(stored.images * (255 / GREY_LEVELS)).astype(np.uint8)
    cut = len(images) * 2 // 3
    digits = Dataset(images, stored.target, classes=DIGITS, name="digits")
    photographs = [p.mean(axis=2).astype(np.uint8) for p in datasets.load_sample_images().images]
    return Splits({
        "train": digits[:cut],
        "test": digits[cut:],
        "ood": Dataset(_patches(photographs, n_ood, seed), name="photographs"),
    })


def _patches(photographs: list[np.ndarray], n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    patches = np.zeros((n, PATCH_SIDE, PATCH_SIDE), dtype=np.uint8)
    for i in range(n):
        photograph = photographs[i % len(photographs)]
        y, x = rng.integers(0, np.array(photograph.shape) - PATCH_SIDE + 1)
        patches[i] = photograph[y : y + PATCH_SIDE, x : x + PATCH_SIDE]
    return patches
