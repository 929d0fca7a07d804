"""Posteriors of queries from known distributions."""

import numpy as np

from surefind.labels.posterior import LabelPosterior

NAMES = [f"label {i}" for i in range(6)]


def asked(n, rng, *, unknown=0.25, evidence=1.6, none=True):
    """Posteriors, truths, and novelty p-values: a quarter of the queries is unknown."""
    truth, strange = rng.integers(len(NAMES), size=n), rng.random(n) < unknown
    logits = 1.5 * rng.normal(size=(n, len(NAMES)))
    logits[np.arange(n), truth] += np.where(strange, 0, rng.gamma(4, evidence, size=n))
    odds = logits.max(axis=1) - 3.5 + rng.normal(size=n)
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share /= share.sum(axis=1, keepdims=True)
    absent = 1 / (1 + np.exp(odds))
    names = [None if s else NAMES[t] for t, s in zip(truth, strange, strict=True)]
    novelty = np.where(strange, rng.random(n) ** 3, rng.random(n))
    if not none:
        return LabelPosterior(NAMES, share), names, novelty
    return LabelPosterior(NAMES, share * (1 - absent)[:, None], absent), names, novelty


def is_right(posterior, truth):
    return np.array([a == b for a, b in zip(posterior.label, truth, strict=True)])
