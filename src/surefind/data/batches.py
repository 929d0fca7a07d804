"""The batches of one epoch, as rows of a data set, and reading them ahead by threads.

Policies, so that every batch holds a pair:

- No batch has fewer than two examples. A last batch of one example joins the batch before it, which
  then has one more.
- Class batches take ``examples_per_class`` images of each of ``classes_per_batch`` classes. A class
  is cut into groups of that size; a last, incomplete group is filled with other images of the class,
  repeated only when the class has too few.
- Positions are cut into `grid_cells`, which then are the classes of a batch.
- A class with a single image has no positive pair, and is left out of class batches.
- When the groups of all classes but one are used up, the epoch ends: what is left of that class would
  have no negative pair. The fullest classes go first, so that little is left.

Pillow and torch release the interpreter while they decode, resize and convert, so threads keep the
cores busy without the start-up time and the copies of worker processes. Each batch is read by one
thread as `Dataset.read` would read it: order and bits do not depend on the number of workers.

Inference over a data set: batches in order, read ahead, as the network takes them.

One module decides how evaluation, post-hoc fitting and the methods read: preprocessing without
augmentation, on the network's device, in its dtype.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from surefind.checks import check_int
from surefind.data.dataset import Dataset, rows_by_class
from surefind.data.images import ImageFiles
from surefind.data.inputs import AugmentSeed, InputSpec, Preprocessing
from surefind.errors import DegenerateError
from surefind.pairs.relations import blocks


def random_batches(n: int, batch_size: int, generator: torch.Generator) -> list[Tensor]:
    """Shuffle all rows and cut them into batches.

    Args:
        n: Number of examples.
        batch_size: Examples per batch, at least two.
        generator: Source of the order.

    Returns:
        The rows of each batch, int64. Every row comes once.

    Raises:
        DegenerateError: If not one batch can be made.
    """
    check_int("batch_size", batch_size, least=2)
    if n < 2:
        raise DegenerateError(
            f"no batch can be made of {n} examples. A batch needs two; give more.",
            field="batch_size",
        )
    batches = list(torch.split(torch.randperm(n, generator=generator), batch_size))
    if len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def class_batches(
    labels: Any,
    classes_per_batch: int,
    examples_per_class: int,
    generator: torch.Generator,
) -> list[Tensor]:
    """Make batches of P classes with K examples each.

    Args:
        labels: A class per example (n), integers.
        classes_per_batch: P, at least two. The last batches may hold fewer, but two.
        examples_per_class: K, at least two.
        generator: Source of the order.

    Returns:
        The rows of each batch, int64.

    Raises:
        DegenerateError: If fewer than two classes can be used.
    """
    check_int("classes_per_batch", classes_per_batch, least=2)
    check_int("examples_per_class", examples_per_class, least=2)
    labels = torch.as_tensor(labels)
    members = [rows for rows in rows_by_class(labels) if len(rows) > 1]
    if len(members) < 2:
        raise DegenerateError(
            f"class batches need two classes with two examples; {len(members)} have them. Give more, or "
            "random batches.",
            field="examples_per_class",
        )
    groups = [_groups(rows, examples_per_class, generator) for rows in members]
    left = torch.tensor([float(len(g)) for g in groups])
    batches = []
    while int((left > 0).sum()) >= 2:
        # The noise is below one, so it decides between classes with as many groups left.
        order = left + torch.rand(len(left), generator=generator)
        chosen = order.masked_fill(left == 0, -1.0).topk(min(classes_per_batch, len(left))).indices
        chosen = chosen[left[chosen] > 0]
        batches.append(torch.cat([groups[c].pop() for c in chosen.tolist()]))
        left[chosen] -= 1
    return batches


def grid_cells(
    positions: Float[Tensor, "n axes"], radius: float, generator: torch.Generator
) -> Int[Tensor, " n"]:
    """Cut the ground into cells, whose examples are all within a radius of each other.

    They are squares with that diagonal. Where the grid lies is drawn anew with every call, so that
    neighbours whom one grid parts meet in another.

    Args:
        positions: Metric coordinates.
        radius: Distance up to which two positions are a positive pair.
        generator: Where the grid lies.

    Returns:
        The number of each example's cell.
    """
    axes = positions.shape[1]
    offset = torch.rand(axes, generator=generator, dtype=torch.float64)
    squares = (positions.double() * (axes**0.5 / radius) + offset).floor().long()
    cells: Tensor = torch.unique(squares, dim=0, return_inverse=True)[1]
    return cells


def _groups(rows: Tensor, size: int, generator: torch.Generator) -> list[Tensor]:
    groups = list(torch.split(rows[torch.randperm(len(rows), generator=generator)], size))
    last = groups[-1]
    if lack := size - len(last):
        others = torch.cat(groups[:-1]) if len(groups) > 1 else last
        order = [torch.randperm(len(others), generator=generator) for _ in range(size)]
        groups[-1] = torch.cat([last, others[torch.cat(order)[:lack]]])
    return groups


def read_batches(
    dataset: Dataset,
    batches: Iterable[Any],
    *,
    preprocessing: Preprocessing | InputSpec | None = None,
    augment_seed: AugmentSeed = None,
    workers: int = 2,
    ahead: int = 2,
) -> Iterator[tuple[Any, Tensor]]:
    """Read batches one after the other, while workers prepare the next ones.

    Args:
        dataset: Where to read.
        batches: The rows of each batch, for example from `random_batches`.
        preprocessing: How to cut, resize and normalise images; or what a fitted model takes.
        augment_seed: The seed, or (seed, epoch), of random training frames; None for evaluation.
        workers: Threads that read; 0 reads in the caller's thread, when a batch is asked for.
        ahead: Finished batches that may wait, beyond one in the hands of each worker.

    Returns:
        An iterator over each batch's rows and its inputs, in the order of ``batches``. Leaving it
        early, or an error in a worker, stops the workers.
    """
    check_int("workers", workers, least=0)
    check_int("ahead", ahead, least=0)

    def read(rows: Any) -> tuple[Any, Tensor]:
        inputs = dataset.read(rows, preprocessing=preprocessing, augment_seed=augment_seed)
        return rows, inputs

    if workers == 0:
        return (read(rows) for rows in batches)
    return _read_ahead(read, batches, workers, ahead)


def _read_ahead(
    read: Any, batches: Iterable[Any], workers: int, ahead: int
) -> Iterator[tuple[Any, Tensor]]:
    pool = ThreadPoolExecutor(workers, thread_name_prefix="surefind-read")
    waiting: deque[Future[tuple[Any, Tensor]]] = deque()
    try:
        for rows in batches:
            waiting.append(pool.submit(read, rows))
            if len(waiting) >= workers + ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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
