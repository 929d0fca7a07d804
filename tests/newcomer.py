"""What a newcomer brings: digits to learn from, to enrol, to calibrate with and to ask about."""

from functools import cache
from types import SimpleNamespace

import numpy as np
from sklearn.datasets import load_digits

KNOWN = 8
"""Digits below are enrolled; 8 and 9 are nobody's."""


@cache
def digits():
    """Return 8 × 8 images from 0 to 255 and labels in four parts; 8 and 9 are in the last two alone."""
    bunch = load_digits()
    images, labels = (bunch.images * 255 / 16).astype(np.uint8), bunch.target
    order = np.random.default_rng(0).permutation(len(labels))
    known, strangers = order[labels[order] < KNOWN], order[labels[order] >= KNOWN]
    half = len(strangers) // 2
    rows = {
        "learn": known[:500],
        "enrol": known[500:800],
        "held_out": mixed(known[800:1150], strangers[:half]),
        "asked": mixed(known[1150:], strangers[half:]),
    }
    return SimpleNamespace(**{
        name: SimpleNamespace(images=images[r], labels=labels[r]) for name, r in rows.items()
    })


def mixed(known, strangers):
    """Shuffle both: strangers who all come at the end are a change, and the watch says so."""
    return np.random.default_rng(1).permutation(np.concatenate([known, strangers]))


def vectors(part):
    """Return the images of a part as rows of numbers."""
    return part.images.reshape(-1, 64).astype(np.float32)


def truth(part):
    """Return labels as a calibration takes them: -1 for whom the gallery does not hold."""
    return np.where(part.labels < KNOWN, part.labels, -1)


def wrong_matches(decisions, labels, right):
    """Return the share of matches that are wrong: another digit, or a digit that is not enrolled."""
    matched = np.asarray(decisions) == "match"
    assert matched.any(), "a gallery that never answers promises nothing"
    return (np.asarray(labels, str)[matched] != np.asarray(right, str)[matched]).mean()
