"""What a cell's pictures are made of: histograms, images at both ends, and images made worse.

Images are not ours to publish, so they do not go into the cell but into a file beside the training that was
kept, ``{work}/{set}/{row}-seed{seed}.npz`` (`surefind.evaluation.artifacts`).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.embeddings import Embeddings
from surefind.estimators.learner import MetricLearner
from surefind.evaluation.artifacts import extreme_images, sphere_points, write_pictures
from surefind.evaluation.bench.protocols import Problem
from surefind.evaluation.corruptions import corruption_curves
from surefind.learning.inference import like_network

CORRUPTED = 256
"""Test images that are made worse."""
BINS = 60
BATCH = 64
LARGEST = 1e30
"""Uncertainty beyond this is taken as this: a picture has no room for infinity."""


def kappa_histograms(uncertainty: Mapping[str, np.ndarray]) -> dict[str, list[float]]:
    """Count log10 κ of known and strange inputs in common bins.

    Args:
        uncertainty: 1/κ by part.

    Returns:
        The bins' edges and the counts of each part.
    """
    logs = {k: -np.log10(np.clip(v, 1 / LARGEST, LARGEST)) for k, v in uncertainty.items()}
    everything = np.concatenate(list(logs.values()))
    low, high = np.quantile(everything, [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)
    counts = {k: np.histogram(v, edges)[0].tolist() for k, v in logs.items()}
    return {"edges": edges.round(4).tolist(), **counts}


def corruptions(
    problem: Problem, learner: MetricLearner, generator: torch.Generator
) -> dict[str, Any]:
    """Trace uncertainty against blur, noise and occlusion of test images.

    Args:
        problem: The data; nothing is traced if they are not images.
        learner: A fitted learner.
        generator: Chooses the images, draws noise and places.

    Returns:
        The curves by kind.
    """
    if not problem.images:
        return {}
    chosen = torch.randperm(len(problem.test), generator=generator)[:CORRUPTED].sort().values
    images = problem.test.read(chosen, preprocessing=problem.shown)

    def uncertainty(batch: Tensor) -> np.ndarray:
        wanted = problem.preprocessing
        inputs = batch if wanted is None else wanted.normalise(batch)
        parts = like_network(inputs, learner.encoder).split(BATCH)  # type: ignore[no-untyped-call]
        doubt = torch.cat([learner.fitted.embed(x).uncertainty for x in parts])
        return np.asarray(doubt.double().clamp(max=LARGEST))

    return dict(corruption_curves(uncertainty, images, generator))


def picture_file(work: Path, name: str, row: str, seed: int) -> Path:
    """Say where a cell's pictures are kept."""
    return work / name / f"{row}-seed{seed}.npz"


def keep_pictures(
    file: Path,
    problem: Problem,
    uncertainty: Mapping[str, np.ndarray],
    embeddings: Mapping[str, Embeddings],
    generator: torch.Generator,
) -> None:
    """Write the images at both ends of the uncertainty, and points of a three-dimensional sphere.

    Args:
        file: Where to; nothing is written if there is nothing to show.
        problem: The data.
        uncertainty: Of the parts "id" and "ood".
        embeddings: Of the same parts; empty for a row without κ.
        generator: Draws which points stay.
    """
    parts = {"id": problem.test, "ood": problem.ood}
    strips: dict[str, np.ndarray] = {}
    for name, doubt in uncertainty.items():
        part = parts[name]
        if problem.images and part is not None:
            strips |= extreme_images(name, partial(part.read, preprocessing=problem.shown), doubt)
    sphere = {
        name: sphere_points(e.mean.numpy(), e.kappa.numpy(), _labels(parts[name]), generator)
        for name, e in embeddings.items()
        if e.mean.shape[1] == 3
    }
    if strips or sphere:
        write_pictures(file, strips=strips, sphere=sphere)


def _labels(part: Any) -> Any:
    return None if part.labels is None else part.labels.numpy()
