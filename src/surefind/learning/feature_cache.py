"""The pass that computes features of a frozen network once, and keeps them.

A data set passes through the part of the network that stays as it is, the plain view and any number of
augmented ones; what comes out, and the statistics of the stages that it passed, are a `FeatureViews`.
Vectors are kept as float32; maps, which are large, as float16, clamped to its range.

With a folder the arrays are files there, in a subfolder named by the *key*: a digest of the network and its
weights, of how images are prepared, and of the inputs: names and sizes of files, and of formats that do
not compress, where different images have one size, bytes from their middle; the content of arrays. A pass
with the same key takes what is there; one that was cut off computes the rows that are missing. Several
processes compute their rows into the same files, which all of them must see.

    KEY/features.npy      (v, n, …), written row by row
    KEY/stage-0.npy …     (n, m) statistics of a stage
    KEY/done.npy          (v, n), 1 where a row is whole; written after the rows are on the disk
    KEY/about.json        what the key was made from, for people

Without a folder everything is held in memory.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from surefind.data.batches import like_network, read_batches
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import FeatureViews, InputSpec, Preprocessing
from surefind.errors import InputError
from surefind.files import flush, write_atomically
from surefind.learning.distributed import gather_rows, part, wait_for_all, world
from surefind.learning.session import digest
from surefind.novelty.statistics import StageWatch
from surefind.tensor_checks import as_tensor

BATCH = 32
SAVE_EVERY = 15.0
"""Seconds after which rows are marked as done."""
UNCOMPRESSED = (".bmp", ".pgm", ".ppm", ".tif", ".tiff")
SAMPLED_BYTES = 4096
LARGEST_HALF = float(np.finfo(np.float16).max)

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
    """

    network: nn.Module
    spec: InputSpec
    stages: Mapping[str, str] = field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    views: int = 0
    seed: int = 0
    workers: int = 2

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
        }
        store = _Memory(shapes) if folder is None else _Files(folder / key, shapes, about)
        self._fill(store, dataset, on_rows)
        arrays = store.finished()
        named = {name: arrays[f"stage-{i}"] for i, name in enumerate(self.stages)}
        views = FeatureViews(
            arrays["features"], key, about["network"], self.spec, tuple(self.stages), named
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
            "stages": list(self.stages.values()),
            "inputs": inputs.fingerprint() if files else digest([as_tensor("inputs", inputs)]),
            "examples": len(dataset),
            "spec": _without_augmentation(self.spec).to_dict(),
            "views": [self.views, self.seed if self.views else None],
            "augmentation": self.preprocessing.to_dict()
            if self.views and self.preprocessing
            else None,
            **({} if content is None else {"content": content}),
        }

    @torch.no_grad()
    def _compute(self, inputs: Tensor) -> tuple[np.ndarray, list[np.ndarray]]:
        watch = StageWatch(self.network, list(self.stages.values()))
        with watch.watching():
            found: Tensor = self.network(like_network(inputs, self.network))
        statistics = [s.cpu().numpy() for s in watch.take(len(inputs))]
        if not found.isfinite().all():
            raise InputError(
                "the frozen network gives NaN or infinite features. Check its weights, and that images are "
                "normalised as it expects."
            )
        return as_kept(found).cpu().contiguous().numpy(), statistics

    def _fill(self, store: "_Memory | _Files", dataset: Dataset, on_rows: OnRows) -> None:
        own = part(len(dataset))
        todo = [
            (view, own.start + np.flatnonzero(~store.done(view, own)))
            for view in range(1 + self.views)
        ]
        total = (1 + self.views) * (own.stop - own.start)
        count = total - sum(len(rows) for _, rows in todo)
        saved = time.monotonic()
        try:
            for view, missing in todo:
                for rows, inputs in self._read(dataset, view, missing):
                    features, statistics = self._compute(inputs)
                    store.write("features", features, rows, view)
                    for i, values in enumerate(statistics if view == 0 else ()):
                        store.write(f"stage-{i}", values, rows)
                    store.mark(view, rows)
                    count += len(rows)
                    if time.monotonic() - saved > SAVE_EVERY:
                        store.save()
                        saved = time.monotonic()
                    on_rows(count, total)
        finally:
            store.save()

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


Shapes = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


class _Memory:
    """Arrays in memory; each process fills its rows, and gets the others' in the end."""

    def __init__(self, shapes: Shapes) -> None:
        self._arrays = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}

    def done(self, view: int, rows: slice) -> np.ndarray:
        return np.zeros(rows.stop - rows.start, bool)

    def write(
        self, name: str, values: np.ndarray, rows: np.ndarray, view: int | None = None
    ) -> None:
        array = self._arrays[name]
        (array if view is None else array[view])[rows] = values

    def mark(self, view: int, rows: np.ndarray) -> None:
        """Do nothing: nothing is resumed."""

    def save(self) -> None:
        """Do nothing: nothing outlives the process."""

    def finished(self) -> dict[str, np.ndarray]:
        if world()[1] == 1:
            return self._arrays
        return {name: self._gathered(name, array) for name, array in self._arrays.items()}

    def _gathered(self, name: str, array: np.ndarray) -> np.ndarray:
        views = array if name == "features" else array[None]
        n = views.shape[1]
        whole = np.stack([gather_rows(torch.from_numpy(v[part(n)]), n).numpy() for v in views])
        return whole if name == "features" else whole[0]


class _Files:
    """Arrays in files of a folder, filled row by row by one process or several."""

    def __init__(self, folder: Path, shapes: Shapes, about: Mapping[str, Any]) -> None:
        self._folder = folder
        views, n = shapes["features"][0][:2]
        self._shapes = dict(shapes) | {"done": ((views, n), np.dtype(np.uint8))}
        self._marked: list[tuple[int, np.ndarray]] = []
        if world()[0] == 0:
            try:
                self._create(about)
            except OSError as error:
                raise self._unwritable(error) from error
        wait_for_all()
        for name in self._shapes:
            self._map(name)

    def done(self, view: int, rows: slice) -> np.ndarray:
        return np.asarray(self._map("done")[view, rows]).astype(bool)

    def write(
        self, name: str, values: np.ndarray, rows: np.ndarray, view: int | None = None
    ) -> None:
        shape, dtype = self._shapes[name]
        axis = 0 if view is None else 1
        size = int(np.prod(shape[axis + 1 :], dtype=np.int64)) * dtype.itemsize
        first = 0 if view is None else view * shape[1]
        data = np.ascontiguousarray(values, dtype)
        try:
            # Not through the map: a full disk would end the process there, without a word.
            with self._path(name).open("r+b") as file:
                for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) != 1) + 1):
                    file.seek(self._offset(name) + (first + int(rows[run[0]])) * size)
                    file.write(data[run].tobytes())
        except OSError as error:
            raise self._unwritable(error) from error

    def mark(self, view: int, rows: np.ndarray) -> None:
        self._marked.append((view, rows))

    def save(self) -> None:
        if not self._marked:
            return
        for name in self._shapes:
            if name != "done":
                flush(self._path(name))
        for view, rows in self._marked:
            self.write("done", np.ones(len(rows), np.uint8), rows, view)
        self._marked.clear()

    def finished(self) -> dict[str, np.ndarray]:
        wait_for_all()
        return {name: self._map(name) for name in self._shapes if name != "done"}

    def _create(self, about: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        missing = {n: s for n, s in self._shapes.items() if not self._path(n).exists()}
        needed = sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in missing.values())
        free = shutil.disk_usage(self._folder).free
        if needed > free:
            raise InputError(
                f"features need {needed / 1e9:.1f} GB, and {self._folder} has {free / 1e9:.1f} GB left. "
                "Name another folder for the cache, or fewer views.",
                field="cache",
            )
        if missing:  # marks of rows that somebody deleted would be wrong
            self._path("done").unlink(missing_ok=True)
            missing["done"] = self._shapes["done"]
        for name, (shape, dtype) in missing.items():
            write_atomically(self._path(name), lambda path: _empty_array(path, shape, dtype))  # noqa: B023
        write_atomically(self._folder / "about.json", json.dumps(about, indent=1))

    def _map(self, name: str) -> np.ndarray:
        shape, dtype = self._shapes[name]
        try:
            found = np.load(self._path(name), mmap_mode="r")
        except (OSError, ValueError) as error:
            raise self._damaged(name) from error
        if found.shape != shape or found.dtype != dtype:
            raise self._damaged(name)
        return np.asarray(found) if name == "done" else found

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(
            f"features cannot be written to {self._folder} ({error.strerror}). Free some room, or name "
            "another folder for the cache; what is done is kept.",
            field="cache",
        )

    def _damaged(self, name: str) -> InputError:
        return InputError(
            f"{self._path(name)} is damaged: delete {self._folder}, and the features are computed again.",
            field="cache",
        )

    def _offset(self, name: str) -> int:
        shape, dtype = self._shapes[name]
        whole = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return os.path.getsize(self._path(name)) - whole

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"


def _empty_array(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write the header of an array, and as much room behind it as its values need."""
    whole = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    with path.open("wb") as file:
        header = {
            "descr": np.lib.format.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": shape,
        }
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + whole)
