"""Batches of a data set, read ahead by threads.

Pillow and torch release the interpreter while they decode, resize and convert, so threads keep the
cores busy without the start-up time and the copies of worker processes. Each batch is read by one
thread as `Dataset.read` would read it: order and bits do not depend on the number of workers.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from surefind.data.dataset import Dataset
from surefind.data.preprocessing import Preprocessing
from surefind.validation import check_whole


def read_batches(
    dataset: Dataset,
    batches: Iterable[Any],
    *,
    preprocessing: Preprocessing | None = None,
    augment_seed: int | tuple[int, ...] | None = None,
    workers: int = 2,
    ahead: int = 2,
) -> Iterator[tuple[Any, Tensor]]:
    """Read batches one after the other, while workers prepare the next ones.

    Args:
        dataset: Where to read.
        batches: The rows of each batch, for example from `random_batches`.
        preprocessing: How to cut, resize and normalise images.
        augment_seed: The seed, or (seed, epoch), of random training frames; None for evaluation.
        workers: Threads that read; 0 reads in the caller's thread, when a batch is asked for.
        ahead: Finished batches that may wait, beyond one in the hands of each worker.

    Returns:
        An iterator over each batch's rows and its inputs, in the order of ``batches``. Leaving it
        early, or an error in a worker, stops the workers.
    """
    check_whole("workers", workers, least=0)
    check_whole("ahead", ahead, least=0)

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
