"""Images that are nothing like a digit, as somebody might upload them."""

import numpy as np
from sklearn.datasets import load_sample_images


def strange_images():
    """Photographs of a temple and of a flower, blank images, and noise; by name."""
    temple, flower = load_sample_images().images
    blank = {f"blank-{grey}": np.full((64, 64), grey, dtype=np.uint8) for grey in (0, 128, 255)}
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)
    return {"temple": temple, "flower": flower, **blank, "noise": noise}
