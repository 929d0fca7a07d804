"""The pass over training data that fits novelty, and the guard that gives every embedding its p-value.

A sample of the training data, all of them up to `Novelty.sample`, passes once through the fitted embedder
while the stages of its network are watched (`surefind.novelty.statistics`); so do the held-out examples.
What is kept of an input are some hundred numbers, so the rest happens in memory
(`surefind.novelty.model`). With a folder, the statistics are kept there as they come, and a pass that was
cut off resumes; several processes each take their rows, and all fit the same model.

Inference needs no second pass: the stages are watched while the embedder runs. A method that runs its
network many times, with something random in it (MC dropout), is watched in one more pass without.

Where the inputs are vectors and the network has no stages, the vector is the statistic: its direction and
its length, which `surefind.models.vectors` throws away.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.checks import check_fraction, check_int
from surefind.data.batches import batches
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import FeatureViews, InputSpec
from surefind.embeddings import Embeddings
from surefind.errors import InputError
from surefind.learning.distributed import gather_rows, part, world
from surefind.learning.frozen import FrozenEmbedder
from surefind.learning.methods.contract import Embedder, prefixed, unprefixed
from surefind.learning.seeds import seeded
from surefind.learning.session import digest
from surefind.models.saving import load_tensors, save_tensors
from surefind.novelty.model import CONFIDENCE, LEAST, NoveltyModel, fit_novelty_model
from surefind.novelty.statistics import StageWatch, choose_stages, stage_statistics
from surefind.tensor_checks import as_tensor

BATCH = 256
SAVE_EVERY = 30.0
"""Seconds after which a pass keeps what it has."""

OnBatch = Callable[[int, int], None]
"""Called with how many examples of how many have passed."""


@dataclass(frozen=True)
class Novelty:
    """How novelty is fitted.

    Attributes:
        stages: Names of modules in the backbone whose outputs are looked at; None for the rule of
            `surefind.novelty.statistics`.
        sample: Most training examples, and most held-out ones, that are looked at.
        confidence: With what probability over the held-out examples the promise holds.

    Raises:
        InputError: If the sample is below 20, or the confidence is not between 0 and 1.
    """

    stages: tuple[str, ...] | None = None
    sample: int = 10_000
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        check_int("sample", self.sample, least=LEAST)
        check_fraction("confidence", self.confidence)
        if self.confidence in (0, 1):
            raise InputError(
                f"confidence must be above 0 and below 1; got {self.confidence!r}. No number of examples "
                "gives certainty; 0.95 is usual.",
                field="confidence",
            )


@dataclass(frozen=True, eq=False)
class NoveltyGuard:
    """A novelty model, and which stages of the network it looks at.

    Attributes:
        model: Turns statistics and embeddings into p-values.
        stages: Names of modules in the backbone; none if the inputs themselves are looked at.
    """

    model: NoveltyModel
    stages: tuple[str, ...]

    def embed(self, embedder: Embedder, inputs: Tensor) -> Embeddings:
        """Embed a batch, each input with its p-value."""
        found, statistics = watched(embedder, self.stages, inputs)
        p = self.model.p_value(self.model.score(statistics, found.mean))
        return Embeddings(found.mean, found.kappa, p.to(found.kappa))

    def embed_features(
        self, embedder: FrozenEmbedder, views: FeatureViews, rows: np.ndarray
    ) -> Embeddings:
        """Embed features of a frozen backbone, each with its p-value."""
        found, statistics = embedder.watched_features(views, rows, self.stages)
        p = self.model.p_value(self.model.score(statistics, found.mean))
        return Embeddings(found.mean, found.kappa, p.to(found.kappa))

    def parts(self, embedder: Embedder, inputs: Tensor) -> Tensor:
        """Return each standardised score of a batch (n, scores), columns as the model's ``names`` says."""
        found, statistics = watched(embedder, self.stages, inputs)
        return self.model.parts(statistics, found.mean)

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's tensors."""
        return prefixed("novelty", self.model.tensors())

    @classmethod
    def restored(cls, tensors: dict[str, Tensor], stages: Sequence[str]) -> "NoveltyGuard":
        """Put together what `tensors` returned."""
        return cls(NoveltyModel.restored(unprefixed("novelty", tensors)), tuple(stages))


def watched(
    embedder: Embedder, stages: Sequence[str], inputs: Tensor
) -> tuple[Embeddings, list[Tensor]]:
    """Embed a batch, and return the statistics of the stages it passed."""
    if isinstance(embedder, FrozenEmbedder):
        return embedder.watched(inputs, stages)
    if not stages:
        return embedder.embed(inputs), [stage_statistics(inputs, whole=True)]
    network = embedder.network
    watch = StageWatch(network.backbone, stages)
    if embedder.runs_network_once:
        with watch.watching():
            found = embedder.embed(inputs)
        return found, watch.take(len(inputs))
    with torch.no_grad(), watch.watching():
        network.backbone(inputs)
    return embedder.embed(inputs), watch.take(len(inputs))


def fit_novelty(
    embedder: Embedder,
    dataset: Dataset,
    held_out: Dataset | None = None,
    *,
    options: Novelty,
    spec: InputSpec,
    seed: int,
    folder: Path | None = None,
    workers: int = 2,
    on_batch: OnBatch = lambda *_: None,
) -> NoveltyGuard | None:
    """Fit novelty of a fitted embedder.

    Args:
        embedder: In evaluation mode.
        dataset: What it was trained on.
        held_out: Known examples that it was not trained on, which give the p-value; None to cross-fit.
        options: How to fit.
        spec: What inputs the model takes.
        seed: Chooses the sample.
        folder: Where statistics are kept as they come; None keeps none.
        workers: Threads that read images ahead.
        on_batch: Called after each batch.

    Returns:
        The guard; None if there are fewer than 20 examples, or 20 held-out ones.
    """
    sample = dataset[sampled_rows(len(dataset), options.sample, seed)]
    known = None
    if held_out is not None:
        known = held_out[sampled_rows(len(held_out), options.sample, seed)]
    if too_few(sample, known):
        return None
    reading: dict[str, Any] = {"preprocessing": spec, "workers": workers}
    stages = options.stages
    if stages is None:
        stages = choose_stages(embedder.network.backbone, _first(sample, embedder, reading))
    total = len(sample) + (0 if known is None else len(known))

    def gathered(data: Dataset, name: str, before: int) -> tuple[list[Tensor], Tensor]:
        kept = None
        if folder is not None:
            settings = _settings(embedder, data, stages, reading, seed)
            kept = folder / f"novelty-{name}-{world()[0]}.safetensors", settings
        report = lambda done: on_batch(before + done, total)  # noqa: E731
        return _pass(embedder, data, stages, reading, kept, report)

    statistics, mean = gathered(sample, "sample", 0)
    others = None if known is None else gathered(known, "held-out", len(sample))
    model = novelty_model(
        statistics,
        mean,
        maps=bool(stages),
        held_out=others,
        groups=sample.labels,
        confidence=options.confidence,
        seed=seed,
    )
    return NoveltyGuard(model, tuple(stages))


def fit_frozen_novelty(
    embedder: FrozenEmbedder,
    dataset: Dataset,
    held_out: Dataset | None = None,
    *,
    options: Novelty,
    seed: int,
) -> NoveltyGuard | None:
    """Fit novelty of an embedder on a frozen backbone, from statistics that lie beside its features.

    Args:
        embedder: In evaluation mode.
        dataset: What it was trained on, with `FeatureViews` as inputs.
        held_out: Known examples that it was not trained on, likewise; None to cross-fit.
        options: How to fit.
        seed: Chooses the sample.

    Returns:
        The guard; None if there are fewer than 20 examples, or 20 held-out ones.
    """
    if too_few(dataset, held_out):
        return None
    stages = dataset.inputs.stages

    def gathered(data: Dataset) -> tuple[list[Tensor], Tensor]:
        rows = np.arange(len(data))[sampled_rows(len(data), options.sample, seed)]
        parts = [
            embedder.watched_features(data.inputs, rows[i : i + BATCH], stages)
            for i in range(0, len(rows), BATCH)
        ]
        columns = zip(*(statistics for _, statistics in parts), strict=True)
        mean = torch.cat([found.mean.float().cpu() for found, _ in parts])
        return [torch.cat(column).cpu() for column in columns], mean

    statistics, mean = gathered(dataset)
    labels = dataset.labels
    if labels is not None:
        labels = labels[sampled_rows(len(dataset), options.sample, seed)]
    model = novelty_model(
        statistics,
        mean,
        maps=bool(stages),
        held_out=None if held_out is None else gathered(held_out),
        groups=labels,
        confidence=options.confidence,
        seed=seed,
    )
    return NoveltyGuard(model, stages)


def too_few(dataset: Dataset, held_out: Dataset | None) -> bool:
    """Return whether there are too few examples to fit novelty."""
    return min(len(dataset), LEAST if held_out is None else len(held_out)) < LEAST


def sampled_rows(n: int, most: int, seed: int) -> Any:
    """Return which of n rows are looked at, in order: all of them, or so many at random."""
    if n <= most:
        return slice(0, n)
    return torch.randperm(n, generator=seeded(seed, "novelty"))[:most].sort().values


def novelty_model(
    statistics: Sequence[Tensor], mean: Tensor, *, seed: int, **how: Any
) -> NoveltyModel:
    """Fit the model by `fit_novelty_model`, with the references that belong to a seed."""
    generator = seeded(seed, "novelty references")
    return fit_novelty_model(statistics, mean, generator=generator, **how)


def _settings(
    embedder: Embedder, data: Dataset, stages: Sequence[str], reading: dict[str, Any], seed: int
) -> dict[str, Any]:
    """Return what decides the statistics of a process's rows: those kept are of no use with others."""
    own = part(len(data))
    found, statistics = watched(embedder, stages, _first(data, embedder, reading))
    inputs = data.inputs
    return {
        "weights": digest(embedder.tensors().values()),
        # What the weights do not say: the method's options, and how inputs are prepared.
        "first": digest([*statistics, found.mean]),
        "stages": list(stages),
        "rows": [own.start, own.stop, len(data)],
        "inputs": inputs.fingerprint()
        if isinstance(inputs, ImageFiles)
        else digest([as_tensor("inputs", inputs)]),
        "seed": seed,
    }


def _first(data: Dataset, embedder: Embedder, reading: dict[str, Any]) -> Tensor:
    return next(batches(data[:2], embedder.network, **reading))


def _pass(
    embedder: Embedder,
    data: Dataset,
    stages: Sequence[str],
    reading: dict[str, Any],
    keep: tuple[Path, dict[str, Any]] | None,
    on_rows: Callable[[int], None],
) -> tuple[list[Tensor], Tensor]:
    """Return statistics of each stage and embeddings of all data; what a file holds is not done again."""
    own = part(len(data))
    kept = [] if keep is None else _kept(*keep)
    done = len(kept[0]) if kept else 0
    parts = [kept] if kept else []
    saved = time.monotonic()
    rows = slice(own.start + done, own.stop)
    for inputs in batches(data, embedder.network, rows=rows, size=BATCH, **reading):
        found, statistics = watched(embedder, stages, inputs)
        parts.append([*(x.cpu() for x in statistics), found.mean.float().cpu()])
        done += len(inputs)
        on_rows(done)
        if keep is not None and time.monotonic() - saved > SAVE_EVERY:
            parts = [_joined(parts)]
            _keep(*keep, parts[0])
            saved = time.monotonic()
    if not parts:  # more processes than examples: this one has none, and says of which shape
        found, statistics = watched(embedder, stages, _first(data, embedder, reading))
        parts = [[x[:0].cpu() for x in (*statistics, found.mean.float())]]
    *statistics, mean = _joined(parts)
    n = len(data)
    return [gather_rows(x, n) for x in statistics], gather_rows(mean, n)


def _kept(place: Path, settings: dict[str, Any]) -> list[Tensor]:
    """Return what an earlier pass with the same settings kept, if there was one."""
    if not place.exists():
        return []
    tensors, metadata = load_tensors(place)
    return [tensors[str(i)] for i in range(len(tensors))] if metadata == settings else []


def _keep(place: Path, settings: dict[str, Any], columns: Sequence[Tensor]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    save_tensors(place, {str(i): column for i, column in enumerate(columns)}, settings)


def _joined(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]
