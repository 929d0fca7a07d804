"""The pass that computes features of a frozen network once, and keeps them.

A data set passes through the part of the network that stays as it is, the plain view and any number of
augmented ones; what comes out, and the statistics of the stages that it passed, are a `FeatureViews`.
Vectors are kept as float32; maps, which are large, as float16, clamped to its range.

With a folder the arrays are files there, in a subfolder named by the *key*: a digest of the network and its
weights, of how images are prepared, and of the inputs: names and sizes of files, and of formats that do
not compress, where different images have one size, bytes from their middle; the content of arrays. A pass
with the same key takes what is there; one that was cut off computes the rows that are missing. Several
processes of one machine compute their rows into the same files.

    KEY/features.npy      (v, n, …), written row by row
    KEY/stage-0.npy …     (n, m) statistics of a stage
    KEY/done.npy          (v, n), 1 where a row is whole; written after the rows are on the disk
    KEY/about.json        what the key was made from, for people

Without a folder everything is held in memory.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from surefind.data.batches import like_network, read_batches
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import FeatureViews, InputSpec, Preprocessing
from surefind.errors import InputError
from surefind.files import write_atomically
from surefind.learning.distributed import gather_rows, part, wait_for_all, world
from surefind.learning.session import digest
from surefind.models.layers import Layers, StageWatch
from surefind.tensor_checks import as_tensor

BATCH = 32
SAVE_EVERY = 15.0
"""Seconds after which rows are marked as done."""
UNCOMPRESSED = (".bmp", ".pgm", ".ppm", ".tif", ".tiff")
SAMPLED_BYTES = 4096
NOTHING = Layers(())
LARGEST_HALF = float(np.finfo(np.float16).max)

Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
Arrays = Mapping[str, np.ndarray]
OnRows = Callable[[int, int], None]
"""Called with how many rows of how many are done."""


@dataclass(frozen=True, eq=False)
class FeaturePass:
    """What features are computed with.

    Attributes:
        network: Maps prepared inputs to features; in evaluation mode.
        spec: What inputs it takes.
        stages: Names of modules in it whose statistics are kept, by the name to keep them under.
        preprocessing: How images are augmented; needed with views.
        views: Augmented views of each example, beside the plain one.
        seed: Decides the augmented views.
        workers: Threads that read images ahead.
        layers: What is kept of a stage.
    """

    network: nn.Module
    spec: InputSpec
    stages: Mapping[str, str] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    views: int = 0
    seed: int = 0
    workers: int = 2
    layers: Layers = NOTHING

    def run(
        self, dataset: Dataset, folder: Path | None = None, on_rows: OnRows = lambda *_: None
    ) -> Dataset:
        """Compute the features of a data set, or take those that are there.

        Args:
            dataset: Images, or whatever the network takes.
            folder: Where features are kept; None holds them in memory.
            on_rows: Called after each batch. If it raises, what is done is kept.

        Returns:
            The data set with `FeatureViews` as inputs.

        Raises:
            InputError: If the inputs do not fit, or the disk is full.
        """
        about = self._about(dataset)
        key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:24]
        features, statistics = self._compute(dataset.read(slice(0, 1), preprocessing=self.spec))
        shapes = {
            "features": ((1 + self.views, len(dataset), *features.shape[1:]), features.dtype),
            **{
                f"stage-{i}": ((len(dataset), *s.shape[1:]), np.dtype(np.float32))
                for i, s in enumerate(statistics)
            },
            "done": ((1 + self.views, len(dataset)), np.dtype(np.uint8)),
        }
        arrays = _open(folder and folder / key, shapes, about)
        self._fill(arrays, dataset, on_rows)
        arrays = _finished(arrays)
        named = {name: arrays[f"stage-{i}"] for i, name in enumerate(self.stages)}
        views = FeatureViews(
            arrays["features"], key, about["network"], self.spec, self.layers, named
        )
        return Dataset(
            views,
            dataset.labels,
            positions=dataset.positions,
            names=dataset.names,
            classes=dataset.classes,
            name=dataset.name,
        )

    def _about(self, dataset: Dataset) -> dict[str, Any]:
        inputs = dataset.inputs
        files = isinstance(inputs, ImageFiles)
        content = uncompressed_digest(inputs.paths) if files else None
        return {
            "network": network_digest(self.network),
            "stages": asdict(self._watched),
            "inputs": inputs.fingerprint() if files else digest([as_tensor("inputs", inputs)]),
            "examples": len(dataset),
            "spec": _without_augmentation(self.spec).to_dict(),
            "views": [self.views, self.seed if self.views else None],
            "augmentation": self.preprocessing.to_dict()
            if self.views and self.preprocessing
            else None,
            **({} if content is None else {"content": content}),
        }

    @property
    def _watched(self) -> Layers:
        return replace(self.layers, names=tuple(self.stages.values()))

    @torch.no_grad()
    def _compute(self, inputs: Tensor) -> tuple[np.ndarray, list[np.ndarray]]:
        watch = StageWatch(self.network, self._watched)
        with watch.watching():
            found: Tensor = self.network(like_network(inputs, self.network))
        statistics = [s.cpu().numpy() for s in watch.take(len(inputs))]
        if not found.isfinite().all():
            raise InputError(
                "the frozen network gives NaN or infinite features. Check its weights, and that images are "
                "normalised as it expects."
            )
        return as_kept(found).cpu().contiguous().numpy(), statistics

    def _fill(self, arrays: Arrays, dataset: Dataset, on_rows: OnRows) -> None:
        own, done = part(len(dataset)), arrays["done"]
        todo = [
            (view, own.start + np.flatnonzero(done[view, own] == 0)) for view in range(len(done))
        ]
        total = len(done) * (own.stop - own.start)
        count = total - sum(len(rows) for _, rows in todo)
        finished: list[tuple[int, np.ndarray]] = []
        saved = time.monotonic()
        try:
            for view, missing in todo:
                for rows, inputs in self._read(dataset, view, missing):
                    features, statistics = self._compute(inputs)
                    arrays["features"][view][rows] = features
                    for i, values in enumerate(statistics if view == 0 else ()):
                        arrays[f"stage-{i}"][rows] = values
                    finished.append((view, rows))
                    count += len(rows)
                    if time.monotonic() - saved > SAVE_EVERY:
                        _mark(arrays, finished)
                        saved = time.monotonic()
                    on_rows(count, total)
        finally:
            _mark(arrays, finished)

    def _read(
        self, dataset: Dataset, view: int, rows: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        batches = [rows[i : i + BATCH] for i in range(0, len(rows), BATCH)]
        threads = self.workers if isinstance(dataset.inputs, ImageFiles) else 0
        how: dict[str, Any] = {"preprocessing": self.spec}
        if view:
            how = {"preprocessing": self.preprocessing, "augment_seed": (self.seed, view)}
        return read_batches(dataset, batches, workers=threads, **how)


def as_kept(features: Tensor) -> Tensor:
    """Return features in the precision in which they are kept: half for maps, single for vectors."""
    if features.ndim <= 2:
        return features.float()
    return features.clamp(-LARGEST_HALF, LARGEST_HALF).half()


def network_digest(network: nn.Module) -> str:
    """Return what a network is recognised by: its layers and its weights."""
    layers = hashlib.sha256(repr(network).encode()).hexdigest()[:16]
    return f"{layers} {digest(network.state_dict().values())}"


def uncompressed_digest(paths: Sequence[str]) -> str | None:
    """Return a digest of bytes from the middle of files that are not compressed; None if there are none."""
    chosen = [p for p in paths if p.lower().endswith(UNCOMPRESSED) and os.path.exists(p)]
    if not chosen:
        return None
    total = hashlib.sha256()
    for path in chosen:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - SAMPLED_BYTES) // 2)
            total.update(file.read(SAMPLED_BYTES))
    return total.hexdigest()[:16]


def _without_augmentation(spec: InputSpec) -> InputSpec:
    if spec.preprocessing is None:
        return spec
    return replace(spec, preprocessing=replace(spec.preprocessing, random_area=None, flip=False))


def _mark(arrays: Arrays, finished: list[tuple[int, np.ndarray]]) -> None:
    """Mark rows as done, once they are on the disk."""
    done = arrays["done"]
    rest = [array for array in arrays.values() if array is not done]
    for array in rest if finished else ():
        if isinstance(array, np.memmap):
            array.flush()
    for view, rows in finished:
        done[view, rows] = 1
    if finished and isinstance(done, np.memmap):
        done.flush()
    finished.clear()


def _open(folder: Path | None, shapes: Shapes, about: Mapping[str, Any]) -> Arrays:
    """Make arrays in memory; or map those in the files of a folder, which are made if they are missing."""
    if folder is None:
        return {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    paths = {name: folder / f"{name}.npy" for name in shapes}
    try:
        if world()[0] == 0:
            _create(paths, shapes, about)
        wait_for_all()
        found = {name: np.load(path, mmap_mode="r") for name, path in paths.items()}
        wrong = [n for n, (shape, _) in shapes.items() if found[n].shape != shape]
    except OSError as error:
        raise InputError(
            f"features cannot be written to {folder} ({error.strerror}). Free some room, or name another "
            "folder for the cache, or fewer views; what is done is kept.",
            field="cache",
        ) from error
    except ValueError:
        wrong = list(shapes)
    if wrong:
        raise InputError(
            f"the cache of features is damaged: delete {folder}, and they are computed again.",
            field="cache",
        )
    return {name: open_memmap(path, mode="r+") for name, path in paths.items()}


def _create(paths: Mapping[str, Path], shapes: Shapes, about: Mapping[str, Any]) -> None:
    paths["done"].parent.mkdir(parents=True, exist_ok=True)
    if all(path.exists() for path in paths.values()):
        return
    paths["done"].unlink(missing_ok=True)  # marks of rows that somebody deleted would be wrong
    for name, path in paths.items():
        if not path.exists():
            write_atomically(path, lambda file: _allocate(file, *shapes[name]))  # noqa: B023
    write_atomically(paths["done"].with_name("about.json"), json.dumps(about, indent=1))


def _allocate(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write an array of zeros, with all the room it needs: a full disk would end a process that maps it."""
    open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _finished(arrays: Arrays) -> Arrays:
    """Return arrays with the rows of all processes, files read-only."""
    wait_for_all()
    if isinstance(arrays["done"], np.memmap):
        return {n: np.load(a.filename, mmap_mode="r") for n, a in arrays.items()}  # type: ignore[attr-defined]
    return arrays if world()[1] == 1 else {name: _gathered(a, name) for name, a in arrays.items()}


def _gathered(array: np.ndarray, name: str) -> np.ndarray:
    viewed = name in ("features", "done")
    views = array if viewed else array[None]
    n = views.shape[1]
    whole = np.stack([gather_rows(torch.from_numpy(v[part(n)]), n).numpy() for v in views])
    return whole if viewed else whole[0]
