"""Data sets and loaders of PyTorch as a `Dataset`: wherever ours is taken, theirs is.

A map-style ``torch.utils.data.Dataset`` gives an example an index: ``(input, label)``, or a dict with an
input and a label under one of the usual names (`INPUT_NAMES`, `LABEL_NAMES`), or an input alone. All of it
is read once, in order, and held in memory; random transforms are drawn once then. What is too large for
that is read from files instead: `surefind.data.images.ImageFiles`, or a folder or manifest.

A ``DataLoader`` stands for its data set: every example once, in the data set's order, whatever batches it
makes, whether it shuffles or drops the last one. A sampler that chooses examples, or a ``collate_fn`` that
may change them, would be lost, and is refused.

Iterable data sets have no length and no order that could be asked for twice; they are refused.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)
from torch.utils.data import Dataset as TorchDataset

from surefind.data.dataset import Dataset
from surefind.errors import InputError

INPUT_NAMES = ("input", "inputs", "image", "images", "img", "pixel_values", "x", "features")
LABEL_NAMES = ("label", "labels", "target", "targets", "class", "y")
MOST_BYTES = 16 << 30
"""Examples that are held in memory, at most."""


def is_torch_data(value: Any) -> bool:
    """Return whether something is a data set or a loader of PyTorch."""
    return isinstance(value, TorchDataset | DataLoader)


def as_dataset(field: str, value: Any) -> Dataset:
    """Return a data set as it is, or one of PyTorch as ours.

    Args:
        field: What the argument is called.
        value: A `Dataset`, or a map-style data set or a loader of PyTorch.

    Returns:
        The data set; one of PyTorch is read into memory.

    Raises:
        InputError: If it is neither, or cannot be read as a whole.
    """
    if isinstance(value, Dataset):
        return value
    if not is_torch_data(value):
        raise InputError(
            f"{field} must be a surefind.Dataset(inputs, labels), or a data set or loader of PyTorch; got "
            f"{type(value).__name__}.",
            field=field,
        )
    if isinstance(value, DataLoader):
        value = _loaded(field, value)
    if isinstance(value, IterableDataset) or not hasattr(value, "__len__"):
        raise InputError(
            f"{field} is an iterable data set, which has no length and no order.",
            field=field,
            hint="Collect what it gives, surefind.Dataset(torch.stack(inputs), labels), or give a "
            "map-style data set.",
        )
    return _gathered(field, value)


def _loaded(field: str, loader: "DataLoader[Any]") -> Any:
    """Return the data set of a loader; refuse a loader that does more than divide it into batches."""
    if isinstance(loader.dataset, IterableDataset):
        return loader.dataset
    # Of a loader with a sampler of batches of its own, the plain one is left at its default.
    usual = loader.batch_sampler is None or type(loader.batch_sampler).__module__.startswith(
        "torch."
    )
    sampler = loader.sampler
    everything = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler)
        and not sampler.replacement
        and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    if not (usual and everything):
        raise InputError(
            f"the loader given as {field} chooses its examples with a "
            f"{type(sampler if usual else loader.batch_sampler).__name__}.",
            field=field,
            hint="Give a data set with the examples that are meant: "
            "torch.utils.data.Subset(dataset, rows).",
        )
    if loader.collate_fn is not default_collate and loader.batch_size is not None:
        raise InputError(
            f"the loader given as {field} puts batches together with a collate_fn of its own, which may "
            "change the examples.",
            field=field,
            hint="Do that in the data set, example by example, and give the data set.",
        )
    return loader.dataset


def _gathered(field: str, data: Any) -> Dataset:
    n = len(data)
    if n == 0:
        raise InputError(f"{field} holds nothing.", field=field)
    inputs: Any = None
    labels: list[Any] = []
    for row, (value, label) in enumerate(_examples(field, data, n)):
        array = _array(field, row, value)
        if inputs is None:
            inputs = _room(field, n, array)
        if array.shape != inputs.shape[1:] or array.dtype != inputs.dtype:
            raise InputError(
                f"examples of {field} must be alike: 0 is {tuple(inputs.shape[1:])} "
                f"{inputs.dtype}, {row} is {array.shape} {array.dtype}.",
                field=field,
                hint="Resize and crop images to one size in the data set's transform.",
            )
        inputs[row] = array
        labels.append(label)
    known = [label for label in labels if label is not None]
    if known and len(known) < n:
        raise InputError(
            f"some examples of {field} have a label and others have none.", field=field
        )
    return Dataset(inputs, np.array(known) if known else None, name=type(data).__name__)


def _examples(field: str, data: Any, n: int) -> Iterator[tuple[Any, Any]]:
    """Read all examples in order, each as an input and a label or None."""
    for row in range(n):
        example = data[row]
        if isinstance(example, Mapping):
            yield _named(field, row, example)
        elif isinstance(example, tuple | list):
            if not 1 <= len(example) <= 2:
                raise InputError(
                    f"example {row} of {field} has {len(example)} parts; an input and a label are "
                    "expected.",
                    field=field,
                    hint="Give a data set of (input, label).",
                )
            yield example[0], _label(field, row, example[1]) if len(example) == 2 else None
        else:
            yield example, None


def _named(field: str, row: int, example: Mapping[str, Any]) -> tuple[Any, Any]:
    inputs = [name for name in INPUT_NAMES if name in example]
    labels = [name for name in LABEL_NAMES if name in example]
    if len(inputs) != 1 or len(labels) > 1:
        raise InputError(
            f"example {row} of {field} is a dict with {', '.join(map(str, example))}, of which it "
            "is not clear what is the input and what the label.",
            field=field,
            hint=f"Name the input one of {', '.join(INPUT_NAMES)} and the label one of "
            f"{', '.join(LABEL_NAMES)}; or give (input, label).",
        )
    return example[inputs[0]], _label(field, row, example[labels[0]]) if labels else None


def _label(field: str, row: int, label: Any) -> Any:
    if isinstance(label, Tensor | np.ndarray | np.generic):
        if label.ndim:
            raise InputError(
                f"the label of example {row} of {field} has the shape {tuple(label.shape)}; a "
                "single class is expected.",
                field=field,
            )
        label = label.item()
    if isinstance(label, bool) or not isinstance(label, int | str):
        raise InputError(
            f"the label of example {row} of {field} is a {type(label).__name__}; an integer or a string is "
            "expected.",
            field=field,
        )
    return label


def _array(field: str, row: int, value: Any) -> np.ndarray:
    """Return an input as an array: images (c, h, w) or (h, w), vectors (d)."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "getbands"):  # an image of Pillow, whose channels come last
        pixels = np.asarray(value)
        return pixels if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    raise InputError(
        f"the input of example {row} of {field} is a {type(value).__name__}; a tensor, an array "
        "or an image is expected.",
        field=field,
    )


def _room(field: str, n: int, first: np.ndarray) -> np.ndarray:
    size = n * first.nbytes
    if size > MOST_BYTES:
        raise InputError(
            f"{field} has {n:,} examples of {first.nbytes:,} bytes, {size / 1e9:.0f} GB, and is read into "
            f"memory up to {MOST_BYTES / 1e9:.0f} GB.",
            field=field,
            hint="Images in files are read as they are needed: surefind.data.images.ImageFiles, "
            "surefind.data.sources.load_folder.",
        )
    return np.empty((n, *first.shape), first.dtype)
