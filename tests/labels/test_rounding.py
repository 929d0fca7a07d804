"""Probabilities add up to one, however large the evidence is."""

import numpy as np

from surefind.labels.left_out import posterior_of


def test_many_labels_of_large_evidence():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 2000, size=(500, 40)).astype(np.float32)
    names = np.array([*range(40), None], dtype=object)[:-1]
    found = posterior_of(logits, names, 0.0)
    total = found.probability.sum(axis=1) + found.none
    assert (total <= 1 + 1e-9).all()
    np.testing.assert_allclose(total, 1, atol=1e-3)
    assert (found.label == logits.argmax(axis=1)).all()
