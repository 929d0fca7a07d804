"""Inference over a data set: batches in order, read ahead, as the network takes them.

One module decides how evaluation, post-hoc fitting and the methods read: preprocessing without
augmentation, on the network's device, in its dtype.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from surefind.data.batches import read_batches
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import InputSpec
from surefind.data.preprocessing import Preprocessing
from surefind.pairs.relations import blocks

BATCH = 512


def like_network(inputs: Tensor, network: nn.Module) -> Tensor:
    """Move inputs to a network's device and, if they are numbers, to its dtype."""
    weight = next(network.parameters(), None)
    return inputs if weight is None else inputs.to(weight.device, weight.dtype)


def batches(
    dataset: Dataset,
    network: nn.Module,
    *,
    rows: slice | None = None,
    preprocessing: Preprocessing | InputSpec | None = None,
    size: int = BATCH,
    workers: int = 2,
) -> Iterator[Tensor]:
    """Read a data set in order.

    Args:
        dataset: What to read.
        network: Where the batches go: its device and dtype are theirs.
        rows: A range of examples; all of them by default.
        preprocessing: How images are cut, resized and normalised; or what a fitted model takes.
        size: Examples a batch.
        workers: Threads that decode image files ahead.

    Returns:
        The batches.
    """
    span = rows or slice(0, len(dataset))
    threads = workers if isinstance(dataset.inputs, ImageFiles) else 0
    read = read_batches(dataset, blocks(span, size), preprocessing=preprocessing, workers=threads)
    return (like_network(inputs, network) for _, inputs in read)


@torch.no_grad()
def apply(
    run: Callable[[Tensor], Tensor], dataset: Dataset, network: nn.Module, **options: Any
) -> Tensor:
    """Apply a function of batches to a data set read as by `batches`, and concatenate the results."""
    return torch.cat([run(inputs) for inputs in batches(dataset, network, **options)])
