"""Map-style data sets of PyTorch as a `Dataset`: wherever ours is taken, theirs is.

An example is ``(input, label)``, or an input alone: a tensor, an array or an image of Pillow. All of it is
read once, in order, and held in memory; random transforms are drawn once then. What is too large for that
is read from files instead: `surefind.data.images.ImageFiles`, or a folder or manifest.

A loader has an order and batches of its own, and an iterable data set has no length: they are refused.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from surefind.data.dataset import Dataset
from surefind.errors import InputError

MOST_BYTES = 16 << 30
"""Examples that are held in memory, at most."""


def is_torch_data(value: Any) -> bool:
    """Return whether something is a data set or a loader of PyTorch."""
    return isinstance(value, TorchDataset | DataLoader)


def as_dataset(field: str, value: Any) -> Dataset:
    """Return a data set as it is, or one of PyTorch as ours.

    Args:
        field: What the argument is called.
        value: A `Dataset`, or a map-style data set of PyTorch.

    Returns:
        The data set; one of PyTorch is read into memory.

    Raises:
        InputError: If it is neither, or cannot be read as a whole.
    """
    if isinstance(value, Dataset):
        return value
    mapped = isinstance(value, TorchDataset) and not isinstance(value, IterableDataset)
    if not mapped or not hasattr(value, "__len__"):
        raise InputError(
            f"{field} must be a surefind.Dataset(inputs, labels) or a map-style data set of PyTorch; got "
            f"{type(value).__name__}.",
            field=field,
            hint="Give a loader's data set, loader.dataset."
            if isinstance(value, DataLoader)
            else "Collect what it gives: surefind.Dataset(torch.stack(inputs), labels).",
        )
    examples = [_example(value[row]) for row in range(len(value))]
    inputs, labels = zip(*examples, strict=True) if examples else ((), ())
    kinds = {(x.shape, x.dtype) if isinstance(x, np.ndarray) else type(x).__name__ for x in inputs}
    labelled = {label is not None for label in labels}
    if len(kinds) != 1 or not isinstance(inputs[0], np.ndarray) or len(labelled) != 1:
        raise InputError(
            f"{field} must hold (input, label) with inputs of one shape and type, arrays or images, all or "
            f"none of them labelled; got {len(inputs)} inputs of {sorted(map(str, kinds))[:3]}.",
            field=field,
            hint="Resize and crop images to one size in the data set's transform.",
        )
    if (size := len(inputs) * inputs[0].nbytes) > MOST_BYTES:
        raise InputError(
            f"{field} is {size / 1e9:.0f} GB, and is read into memory up to {MOST_BYTES / 1e9:.0f} GB.",
            field=field,
            hint="Images in files are read as they are needed: surefind.data.images.ImageFiles, "
            "surefind.data.sources.load_folder.",
        )
    try:
        return Dataset(np.stack(inputs), labels if labels[0] is not None else None, name=field)
    except InputError as error:
        raise InputError(f"{field}: {error.message}", field=field, hint=error.hint) from error


def _example(example: Any) -> tuple[Any, Any]:
    """Return an input, channels first, and a label or None."""
    whole = example if isinstance(example, tuple | list) else (example,)
    value, label = whole if len(whole) == 2 else (*whole[:1], None) if len(whole) == 1 else ((), 0)
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        value = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    elif hasattr(value, "getbands"):  # an image of Pillow, whose channels come last
        value = (
            np.moveaxis(np.asarray(value), -1, 0)
            if len(value.getbands()) > 1
            else np.asarray(value)
        )
    return value, label.tolist() if isinstance(label, Tensor | np.ndarray | np.generic) else label
