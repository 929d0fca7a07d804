import numpy as np
import pytest


@pytest.fixture
def world():
    """Draw labelled vectors of a world that the model describes: centres, and vectors around them."""

    def draw(labels=12, each=15, d=6, spread=0.35, seed=0, queries=10):
        rng = np.random.default_rng(seed)
        centres = rng.normal(size=(labels, d))
        shape = rng.normal(size=(d, d)) / np.sqrt(d)
        codes = np.repeat(np.arange(labels), each + queries)
        vectors = centres[codes] + spread * rng.normal(size=(len(codes), d)) @ shape
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        items = np.tile(np.arange(each + queries) < each, labels)
        vectors = vectors.astype(np.float32)
        return vectors[items], codes[items], vectors[~items], codes[~items]

    return draw
