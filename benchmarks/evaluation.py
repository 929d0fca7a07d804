"""What it costs to evaluate: closed-set retrieval metrics, neighbours under sampled models, intervals.

Run ``python benchmarks/evaluation.py``; finished cases are kept in results/evaluation.json, and
``--again`` measures all of them anew.
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from measure import Prepared, run_cases

from surefind import metrics
from surefind.neighbours import nearest, sampled_nearest, unit64
from surefind.paper.baselines import NeighbourDistance, fit_mahalanobis, fit_margin

RESULTS = Path(__file__).parent / "results" / "evaluation.json"
SEED = 0


def clusters(n: int, z: int, spread: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around ten directions, about as tight as a trained encoder makes them."""
    g = torch.Generator().manual_seed(SEED)
    labels = torch.randint(10, (n,), generator=g)
    centres = torch.nn.functional.normalize(torch.randn(10, z, generator=g), dim=1)
    noise = spread * torch.randn(n, z, generator=g) / z**0.5
    return torch.nn.functional.normalize(centres[labels] + noise, dim=1), labels


def closed_set(n: int, z: int, spread: float = 0.2) -> Prepared:
    vectors, labels = clusters(n, z, spread)

    def evaluate() -> dict[str, float]:
        found = nearest(vectors, vectors, 10, exclude_self=True)
        relevant = metrics.relevance(found.indices, labels, labels)
        return {
            f"{name}@{k}": float(metric(relevant, k).mean())
            for k in (1, 5, 10)
            for name, metric in (
                ("recall", metrics.recall_per_query),
                ("mAP", metrics.average_precision_per_query),
            )
        }

    return evaluate


def calibration(n: int, z: int, samples: int) -> Prepared:
    vectors, labels = clusters(n, z)

    def evaluate() -> float:
        g = torch.Generator().manual_seed(SEED)
        drawn = (
            torch.nn.functional.normalize(
                vectors @ (torch.eye(z) + 0.05 * torch.randn(z, z, generator=g)), dim=1
            )
            for _ in range(samples)
        )
        prediction, confidence = metrics.agreement(labels[sampled_nearest(drawn)])
        return metrics.ece(confidence, prediction == labels.numpy())

    return evaluate


def interval(n: int, kind: str) -> Prepared:
    g = np.random.default_rng(SEED)
    known, unknown = g.random(n), g.random(n) + 0.3
    if kind == "mean":
        return partial(metrics.bootstrap_interval, known, generator=g)
    return partial(
        metrics.bootstrap_interval,
        known,
        unknown,
        statistic=metrics.auroc,
        independent=True,
        generator=g,
    )


def density(n: int, q: int, z: int) -> Prepared:
    vectors, _ = clusters(n + q, z)
    return lambda: NeighbourDistance(unit64(vectors[:n]), 10).score(vectors[n:])


def margin(n: int, q: int, z: int) -> Prepared:
    vectors, labels = clusters(n + q, z)
    return lambda: fit_margin(vectors[:n], labels[:n]).score(vectors[n:])


def mahalanobis(n: int, q: int, d: int) -> Prepared:
    g = torch.Generator().manual_seed(SEED)
    labels = torch.randint(10, (n,), generator=g)
    features = torch.randn(n, d, generator=g)
    features += torch.randn(10, d, generator=g)[labels]
    return lambda: fit_mahalanobis(features, labels).score(features[:q])


CASES = {
    "closed set 10000, z=3": partial(closed_set, 10_000, 3),
    "closed set 10000, z=128": partial(closed_set, 10_000, 128),
    "closed set 10000, z=3, collapsed": partial(closed_set, 10_000, 3, 1e-4),
    "100 joint samples 10000, z=3": partial(calibration, 10_000, 3, 100),
    "100 joint samples 10000, z=16": partial(calibration, 10_000, 16, 100),
    "bootstrap mean 10000, 1000 resamples": partial(interval, 10_000, "mean"),
    "bootstrap AUROC 10000 + 10000, 1000 resamples": partial(interval, 10_000, "auroc"),
    "k-NN density 60000, 10000 queries, z=3": partial(density, 60_000, 10_000, 3),
    "labelled margin 60000, 10000 queries, z=3": partial(margin, 60_000, 10_000, 3),
    "mahalanobis 20000, 10000 queries, d=9216": partial(mahalanobis, 20_000, 10_000, 9216),
}

if __name__ == "__main__":
    run_cases(__file__, CASES, RESULTS, sys.argv[1:])
