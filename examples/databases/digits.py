"""The data of the examples: digits of 8 × 8 pixels, those from 0 to 7 enrolled, 8 and 9 unknown."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import surefind as sf

K = 20
ENROLLED = 8

Search = Callable[[np.ndarray, list[str], np.ndarray, int], tuple[Any, Any]]
"""Stores vectors and labels, and returns the distances and the labels of the nearest of each query."""


def parts() -> tuple[np.ndarray, list[str], np.ndarray, list[str | None]]:
    """Return vectors and labels of items, and of queries, whose label is None if it is not enrolled."""
    pixels, digits = load_digits(return_X_y=True)
    vectors = (pixels / np.linalg.norm(pixels, axis=1, keepdims=True)).astype(np.float32)
    item = (np.arange(len(digits)) % 2 == 0) & (digits < ENROLLED)
    # In a random order: they come writer by writer, and a promise is about queries like those checked.
    asked = np.random.default_rng(0).permutation(np.flatnonzero(~item))
    truth = [str(digit) if digit < ENROLLED else None for digit in digits[asked].tolist()]
    return vectors[item], [str(digit) for digit in digits[item]], vectors[asked], truth


def decided(metric: str, search: Search) -> sf.Answers:
    """Let a database answer; learn from a quarter of the queries, calibrate on half, decide the rest."""
    vectors, labels, queries, truth = parts()
    distances, names = search(vectors, labels, queries, K)
    a, b = len(queries) // 4, len(queries) * 3 // 4
    evidence = sf.NeighbourModel(metric).fit(distances[:a], names[:a], truth[:a])
    posterior = evidence.posterior(distances[a:b], names[a:b])
    calibration = sf.calibrate(posterior, truth[a:b], max_wrong=0.05)
    print(calibration.summary)
    found = calibration.decide(evidence.posterior(distances[b:], names[b:]))
    right = [label == real for label, real in zip(found.label, truth[b:], strict=True)]
    match = found.decision == "match"
    wrong = int((match & ~np.array(right)).sum())
    print(f"Of {len(match)} others {match.sum()} are a match, {wrong} of them wrong.")
    return found
