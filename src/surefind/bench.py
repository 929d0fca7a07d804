"""The benchmark: cells of data set × method × seed, each a JSON file that is written once.

A cell holds every metric, interval and curve, the settings, versions and times. A benchmark that was
killed goes on with the cells that are missing, and within a cell with the training that was kept. Methods
that start from the same point estimate (post-hoc LAM, PFE, the ensemble's first member, the free
baselines) share its training.

A tenth of the training data, cut class by class, is left out of training, for choices that need data the
model has not seen; the defaults need none. Test and out-of-distribution data are only looked at to be
reported. The rule for the posterior's width,
the same for all sets, is the default of `surefind.methods`: post-hoc, scale = number of training examples
and prior precision by the Laplace evidence; online, scale 1, memory 1e-4 and prior precision one over the
mean square of the head's initial weights.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from surefind import metrics
from surefind.data.catalogue import load
from surefind.data.dataset import Dataset
from surefind.data.splits import validation_split
from surefind.errors import InputError
from surefind.evaluation import Evaluation, evaluate
from surefind.learner import MetricLearner
from surefind.methods import METHODS, LaplaceOnline, LaplacePosthoc
from surefind.methods.contract import Method
from surefind.models.convnets import cifar10_net, fashion_mnist_net, small_net
from surefind.models.encoder import Encoder
from surefind.passes import apply
from surefind.retrieval.baselines import (
    Baseline,
    NegativeNorm,
    fit_knn_density,
    fit_margin,
    fit_nearest_distance,
)
from surefind.retrieval.mahalanobis import fit_mahalanobis
from surefind.retrieval.search import nearest
from surefind.runs import Report
from surefind.seeds import seeded
from surefind.validation import check_choice

FREE = ("nearest-distance", "margin", "knn-density", "mahalanobis", "norm")
"""Uncertainties that cost nothing: from the point estimate's embeddings and features."""
SHARED = ("deterministic", "laplace-posthoc", "pfe", "deep-ensemble", *FREE)
"""Methods whose first stage is the point estimate."""


@dataclass(frozen=True)
class Protocol:
    """How a data set is benchmarked: the paper's settings where it gives them.

    Attributes:
        build: Makes the encoder from a generator.
        ood: Name and part of the out-of-distribution set.
        margin: Squared distance up to which different pairs repel.
        epochs: Passes over the data.
        online_epochs: The same for online LAM.
        batch_size: Examples a step.
        online_batch_size: The same for online LAM.
        learning_rate: Of RMSprop.
    """

    build: Callable[[torch.Generator], Encoder]
    ood: tuple[str, str]
    margin: float
    epochs: int
    online_epochs: int
    batch_size: int
    online_batch_size: int
    learning_rate: float


PROTOCOLS = {
    "fashion-mnist": Protocol(
        lambda g: fashion_mnist_net(3, generator=g), ("mnist", "test"), 0.7, 20, 20, 256, 64, 1e-3
    ),
    "cifar10": Protocol(
        lambda g: cifar10_net(16, generator=g), ("svhn", "test"), 0.7, 20, 40, 256, 256, 1e-3
    ),
    "digits": Protocol(
        lambda g: small_net(1, 8, 4, generator=g), ("digits", "ood"), 0.7, 10, 10, 64, 64, 1e-3
    ),
}


def ablation() -> dict[str, Method]:
    """Name the twelve rows of the paper's ablation: when × distance × approximation."""
    rows: dict[str, Method] = {}
    for distance in ("euclidean", "arccos"):
        for approximation in ("fixed", "positive", "full"):
            kind = f"{distance}-{approximation}"
            rows[f"laplace-posthoc-{kind}"] = LaplacePosthoc(distance, approximation)
            rows[f"laplace-online-{kind}"] = LaplaceOnline(distance, approximation)
    return rows


def rows_of(methods: Iterable[str], *, with_ablation: bool) -> list[str]:
    """Resolve what was asked for to rows, in the order in which they are best run.

    Args:
        methods: Names, or "all".
        with_ablation: Whether the twelve rows of the ablation are wanted too.

    Returns:
        The rows.
    """
    known = [*METHODS, *FREE]
    wanted = set(methods)
    for name in wanted - {"all"}:
        check_choice("method", name, ["all", *known])
    chosen = [name for name in known if "all" in wanted or name in wanted]
    return [*chosen, *(ablation() if with_ablation else {})]


def run_bench(
    name: str,
    rows: list[str],
    seeds: Iterable[int],
    *,
    data: Path | None,
    results: Path,
    work: Path,
    on_cell: Callable[[str, int, dict[str, float] | None], None] = lambda *_: None,
    report: Report = lambda *_: None,
) -> None:
    """Run the cells that are missing.

    Args:
        name: The data set.
        rows: Methods, free baselines, rows of the ablation.
        seeds: One cell of each row for each seed.
        data: Folder that holds the data sets.
        results: Where cells are written.
        work: Where training is kept.
        on_cell: Called before (with None) and after each cell (with its values).
        report: Called after each training step.
    """
    check_choice("data set", name, PROTOCOLS)
    protocol = PROTOCOLS[name]
    splits = load(name, data)
    ood_name, ood_part = protocol.ood
    ood = (splits if ood_name == name else load(ood_name, data))[ood_part]
    train = validation_split(splits.train, seeded(0, "validation")).train
    for seed in seeds:
        for row in rows:
            file = results / name / f"{row}-seed{seed}.json"
            if file.exists():
                read_cell(file)
                continue
            on_cell(row, seed, None)
            start = time.perf_counter()
            cell = _cell(row, protocol, train, splits.test, ood, seed, work / name, report)
            cell |= {
                "set": name,
                "row": row,
                "seed": seed,
                "ood": ood_name,
                "protocol": {k: v for k, v in asdict(protocol).items() if k != "build"},
                "examples": {"train": len(train), "test": len(splits.test), "ood": len(ood)},
                "seconds": time.perf_counter() - start,
                "versions": {p: version(p) for p in ("surefind", "torch", "numpy")}
                | {"python": platform.python_version()},
            }
            write_cell(file, cell)
            on_cell(row, seed, cell["values"])


def read_cell(file: Path) -> dict[str, Any]:
    """Read a cell.

    Args:
        file: Its file.

    Returns:
        What it holds.

    Raises:
        InputError: If it is damaged.
    """
    try:
        cell: dict[str, Any] = json.loads(file.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(
            f"{file} is not a whole result ({error}). Delete it, and the same command makes it anew."
        ) from error
    return cell


def write_cell(file: Path, cell: dict[str, Any]) -> None:
    """Write a cell, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.tmp")
    beside.write_text(json.dumps(cell) + "\n")
    os.replace(beside, file)


def _cell(
    row: str,
    protocol: Protocol,
    train: Dataset,
    test: Dataset,
    ood: Dataset,
    seed: int,
    work: Path,
    report: Report,
) -> dict[str, Any]:
    learner = _fitted(row, protocol, train, seed, work / f"seed{seed}", report)
    generator = seeded(seed, "evaluation")
    if row in FREE:
        return {"values": _free(row, learner, train, test, ood), "curves": {}, "intervals": {}}
    result = evaluate(learner, test, ood, generator=generator)
    return {
        "values": result.values,
        "intervals": result.intervals,
        "curves": result.curves,
        "left_out": result.left_out,
        "kappa": _histograms(result),
        "history": {k: [asdict(e) for e in v] for k, v in learner.history_.items()},
    }


def _fitted(
    row: str, protocol: Protocol, train: Dataset, seed: int, work: Path, report: Report
) -> MetricLearner:
    online = row.startswith("laplace-online")
    shared = row in SHARED or row.startswith("laplace-posthoc")
    method: str | Method = ablation().get(row, "deterministic" if row in FREE else row)
    learner = MetricLearner(
        protocol.build(seeded(seed, "encoder")),
        method=method,
        epochs=protocol.online_epochs if online else protocol.epochs,
        seed=seed,
        batch_size=protocol.online_batch_size if online else protocol.batch_size,
        margin=protocol.margin,
        learning_rate=protocol.learning_rate,
    )
    return learner.fit(train, folder=work / ("shared" if shared else row), report=report)


def _free(
    row: str, learner: MetricLearner, train: Dataset, test: Dataset, ood: Dataset
) -> dict[str, float]:
    """Score test and out-of-distribution data by a free baseline, fitted on training data."""
    encoder = learner.fitted.encoder  # type: ignore[attr-defined]
    known, strange = learner.embed(test).mean, learner.embed(ood).mean
    if row in ("mahalanobis", "norm"):
        scores = _feature_scores(row, encoder, train, test, ood)
    else:
        reference = learner.embed(train).mean
        fitted: Baseline = fit_margin(reference, train.labels)
        if row == "nearest-distance":
            fitted = fit_nearest_distance(reference)
        elif row == "knn-density":
            fitted = fit_knn_density(reference, k=10)
        scores = fitted.score(known), fitted.score(strange)
    doubt, other = (np.asarray(s, dtype=np.float64) for s in scores)
    found = nearest(known, known, 10, exclude_self=True)
    correct = (test.labels[torch.as_tensor(found.indices[:, 0])] == test.labels).numpy()
    return {
        "recall@1": float(correct.mean()),
        "auroc": metrics.auroc(doubt, other),
        "auprc": metrics.auprc(doubt, other),
        "fpr95": metrics.fpr_at_tpr(doubt, other),
        "ausc": metrics.ausc(correct, doubt),
        "aurc": metrics.aurc(correct, doubt),
        "r_auroc": metrics.r_auroc(correct, doubt),
    }


def _feature_scores(
    row: str, encoder: Encoder, train: Dataset, test: Dataset, ood: Dataset
) -> tuple[torch.Tensor, torch.Tensor]:
    if row == "norm":
        outputs = (apply(encoder.outputs, part, encoder) for part in (test, ood))
        known, strange = (NegativeNorm().score(z) for z in outputs)
        return known, strange
    fitted = fit_mahalanobis(apply(encoder.backbone, train, encoder), train.labels)
    known, strange = (fitted.score(apply(encoder.backbone, p, encoder)) for p in (test, ood))
    return known, strange


def _histograms(result: Evaluation) -> dict[str, Any]:
    """Count log10 κ of known and strange inputs in common bins."""
    logs = {k: -np.log10(np.maximum(v, 1e-30)) for k, v in result.uncertainty.items()}
    everything = np.concatenate(list(logs.values()))
    low, high = np.quantile(everything, [0.001, 0.999])
    edges = np.linspace(low, max(high, low + 1e-6), 61)
    counts = {k: np.histogram(v, edges)[0].tolist() for k, v in logs.items()}
    return {"edges": edges.round(4).tolist(), **counts}
