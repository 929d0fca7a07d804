"""How many decisions a second are taken on neighbours as a database returns them.

CPU time of one process, one thread, the best of several calls of 5,000 queries: made vectors of 130 labels,
100 of them enrolled with 20 items each, a tenth or so of the answers doubtful, so that reasons are written.
Tables come as arrays of integers, arrays of strings, and lists of lists, which is what most clients return.
The goal is 50,000 a second.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import environment

import surefind as sf

RESULT = Path(__file__).with_name("results") / "decider.json"
QUERIES, CHECKED, REPEATS = 5000, 1500, 7
LABELS, ENROLLED, ITEMS, DIM = 130, 100, 20, 24

Decide = Callable[..., sf.Answers]


def world(queries: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return cosines and labels of each query's nearest items, and its own label."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(3)
    means, own = fixed.normal(size=(LABELS, DIM)), np.repeat(np.arange(ENROLLED), ITEMS)
    items = unit(means[own] + 0.8 * fixed.normal(size=(len(own), DIM)))
    asked = rng.integers(LABELS, size=queries)
    cosines = unit(means[asked] + 0.8 * rng.normal(size=(queries, DIM))) @ items.T
    near = np.argsort(-cosines, axis=1)[:, :k]
    truth = np.where(asked < ENROLLED, asked, -1)
    return np.take_along_axis(cosines, near, axis=1), own[near], truth


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def named(labels: np.ndarray) -> np.ndarray:
    return np.array([f"label {x}" for x in range(LABELS)], dtype=object)[labels]


def fitted(distances: np.ndarray, labels: np.ndarray, truth: Any) -> Decide:
    """Return how to decide about later queries: evidence of a third of these, calibrated by the others."""
    first, second = slice(0, CHECKED // 3), slice(CHECKED // 3, None)
    evidence = sf.NeighbourModel("cosine").fit(distances[first], labels[first], truth[first])
    posterior = evidence.posterior(distances[second], labels[second])
    calibration = sf.calibrate(posterior, truth[second], max_wrong=0.05)
    return lambda *table: calibration.decide(evidence.posterior(*table))


def rate(decide: Decide, *table: Any) -> float:
    """Return decisions a second of CPU time."""
    best = np.inf
    for _ in range(REPEATS):
        before = time.process_time()
        decide(*table)
        best = min(best, time.process_time() - before)
    return float(QUERIES / best)


def main() -> None:
    cases = {}
    for k in (10, 50):
        cosines, labels, truth = world(CHECKED, k, 0)
        numbers = fitted(cosines, labels, truth)
        strings = fitted(cosines, named(labels), [None if x < 0 else f"label {x}" for x in truth])
        later, names, _ = world(QUERIES, k, 1)
        texts = named(names)
        cases[f"{k} neighbours"] = {
            "integers in arrays": rate(numbers, later, names),
            "strings in arrays": rate(strings, later, texts),
            "strings in lists": rate(strings, later.tolist(), texts.tolist()),
            "match": float((numbers(later, names).decision == "match").mean()),
        }
        print(k, cases[f"{k} neighbours"])
    made = {"environment": environment(), "queries": QUERIES, "cases": cases}
    RESULT.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
