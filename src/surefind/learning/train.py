"""The training loop, in one page.

What is trained is a `Task`; what it is trained on and for how long is a `TrainConfig`. Every random
choice has its own generator (`surefind.learning.seeds`), so the state of a training is: tensors, epoch and
step. A function that the caller passes writes it as a checkpoint, and a training that resumes from one ends
bit for bit as if it had never stopped. Progress is reported to another function. The loop itself writes and
prints nothing.

A training that is judged ends when it gains nothing more: when `PATIENCE` epochs together lowered the least
log loss by less than `GAIN` (`Judge`). Images that are read alike in each epoch are decoded once, if they
fit in `DECODED_BYTES`.

The learning rate of epoch e is ``lr · decay^e``. Several processes share each batch
(`surefind.learning.distributed`): each reads its rows, the loss is that of the whole batch, gradients are
added up.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from surefind.checks import check_int
from surefind.data.batches import class_batches, grid_cells, random_batches, read_batches
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import FeatureViews, Preprocessing
from surefind.errors import InputError, NumericalError
from surefind.learning.distributed import part, sum_gradients, world
from surefind.learning.seeds import seeded
from surefind.models.networks import borrowed_rng
from surefind.pairs.relations import NEGATIVE_RADIUS, POSITIVE_RADIUS, Relation, as_relation

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""Makes any torch optimiser for the parameters."""

Judge = Callable[[], float]
"""Returns the log loss, in nats, of labels that are not trained on."""

PATIENCE, GAIN = 3, 0.01
DECODED_BYTES = 1 << 29
CHECKPOINT_SECONDS = 60.0
"""A checkpoint is due at the end of each epoch, and within one as often as this."""


@runtime_checkable
class Task(Protocol):
    """What the loop trains."""

    def parameters(self) -> list[nn.Parameter]:
        """Return what the optimiser changes."""
        ...

    def loss(self, inputs: Tensor, relation: Relation, generator: torch.Generator) -> Tensor:
        """Compute the loss of a batch: this process's inputs, the whole batch's relation."""
        ...

    def after_step(self) -> None:
        """Do what follows an accepted step."""
        ...

    def after_epoch(self) -> None:
        """Do what follows an epoch, before its checkpoint."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that training changes, by name."""
        ...

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what `tensors` returned."""
        ...


@dataclass(frozen=True)
class TrainConfig:
    """How to train.

    Attributes:
        epochs: Passes over the data.
        batch_size: Examples a step, over all processes.
        optimizer: Makes the optimiser.
        decay: Factor of the learning rate from epoch to epoch.
        seed: Decides order, augmentation and noise.
        examples_per_class: K of batches with K examples of each of batch_size/K classes; None for
            batches at random.
        radii: Where the data have positions: pairs are positive within the first, negative beyond the
            second.
        preprocessing: How images are cut, resized and normalised.
        workers: Threads that read ahead.
        judge: Says after each epoch how good the training is; None trains all epochs.
    """

    epochs: int
    batch_size: int
    optimizer: Optimizer
    decay: float = math.exp(-0.1)
    seed: int = 0
    examples_per_class: int | None = None
    radii: tuple[float, float] = (POSITIVE_RADIUS, NEGATIVE_RADIUS)
    preprocessing: Preprocessing | None = None
    workers: int = 2
    judge: Judge | None = None


@dataclass(frozen=True)
class Epoch:
    """What is remembered of an epoch: its mean loss, the seconds it took, and the judge's log loss."""

    loss: float
    seconds: float
    judged: float | None = None


@dataclass(frozen=True)
class Progress:
    """How far training is: after ``step`` of ``steps`` steps of epoch ``epoch`` of ``epochs``.

    A stage that trains nothing has no loss: NaN.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float


@dataclass(frozen=True, eq=False)
class State:
    """All that training needs to resume.

    Attributes:
        epoch: The epoch to resume with.
        step: The step in it to resume with.
        loss_sum: Sum of the losses of that epoch's steps so far.
        seconds: What that epoch took so far.
        history: The epochs that are finished.
        tensors: The task's.
        optimizer: The optimiser's ``state_dict``.
    """

    epoch: int
    step: int
    loss_sum: float
    seconds: float
    history: tuple[Epoch, ...]
    tensors: dict[str, Tensor] = field(repr=False)
    optimizer: dict[str, Any] = field(repr=False)


def train(
    task: Task,
    dataset: Dataset,
    config: TrainConfig,
    *,
    start: State | None = None,
    checkpoint: Callable[[State], None] = lambda _: None,
    report: Callable[[Progress], None] = lambda _: None,
) -> tuple[Epoch, ...]:
    """Train, from the beginning or from a checkpoint.

    Args:
        task: Changed in place.
        dataset: The training data.
        config: How to train.
        start: Where to resume.
        checkpoint: Called with the state, at the end of each epoch and now and then within one.
        report: Called after each step. If it raises `KeyboardInterrupt`, a checkpoint of the state after
            that step is made before the loop ends.

    Returns:
        The history.

    Raises:
        InputError: If there is nothing to train.
        NumericalError: If the training diverged; the last checkpoint is as it was.
    """
    if config.epochs == 0:
        return ()
    parameters = _trainable(task)
    optimizer = config.optimizer(parameters)
    base_rates = [group["lr"] for group in optimizer.param_groups]
    like = parameters[0]
    first, skip, loss_sum, spent = 0, 0, 0.0, 0.0
    history: tuple[Epoch, ...] = ()
    if start is not None:
        first, skip, loss_sum, spent = start.epoch, start.step, start.loss_sum, start.seconds
        history = start.history
        task.restore(start.tensors)
        optimizer.load_state_dict(start.optimizer)
    dataset, config = _decoded(dataset, config)

    def state(epoch: int, step: int) -> State:
        tensors, now = task.tensors(), optimizer.state_dict()
        return State(epoch, step, loss_sum, spent, history, tensors, now)

    epoch = first
    while epoch < config.epochs and not _settled(history):
        for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
            group["lr"] = rate * config.decay**epoch
        batches = epoch_batches(dataset, config, epoch)
        saved = clock = time.perf_counter()
        for step, (rows, inputs) in enumerate(_read(dataset, batches[skip:], config, epoch), skip):
            optimizer.zero_grad(set_to_none=True)
            relation = relation_of(dataset, config, rows).to(like.device)
            generator = seeded(config.seed, "step", epoch, step)
            # Layers and losses of others may draw from the process's generator: it is the step's here,
            # and as it was outside.
            with _divergence_named(parameters, step, epoch):
                with borrowed_rng(generator):
                    loss = task.loss(inputs.to(like), relation, generator)
                    value = float(loss.detach())
                    if not math.isfinite(value):
                        raise NumericalError(_DIVERGED.format(f"the loss is {value}", step, epoch))
                    loss.backward()  # type: ignore[no-untyped-call]
                sum_gradients(parameters)
                optimizer.step()
                task.after_step()
            loss_sum += value
            now = time.perf_counter()
            spent, clock = spent + now - clock, now
            stop = _interruption(
                report, Progress(epoch, config.epochs, step + 1, len(batches), value)
            )
            if stop or (now - saved > CHECKPOINT_SECONDS and step + 1 < len(batches)):
                _check_weights(parameters, step, epoch)
                checkpoint(state(epoch, step + 1))
                saved = clock = time.perf_counter()
            if stop:
                raise stop
        _check_weights(parameters, len(batches) - 1, epoch)
        task.after_epoch()
        history = (*history, Epoch(loss_sum / len(batches), spent, _judged(config)))
        skip, loss_sum, spent = 0, 0.0, 0.0
        epoch += 1
        checkpoint(state(epoch, 0))
    return history


def _judged(config: TrainConfig) -> float | None:
    return None if config.judge is None else config.judge()


def _settled(history: tuple[Epoch, ...]) -> bool:
    """Return whether the last epochs gained nothing worth another."""
    judged = [epoch.judged for epoch in history if epoch.judged is not None]
    before, last = judged[:-PATIENCE], judged[-PATIENCE:]
    return bool(before) and min(last) > min(before) - GAIN


def _decoded(dataset: Dataset, config: TrainConfig) -> tuple[Dataset, TrainConfig]:
    """Read image files into memory, where training reads them alike in each epoch and they are small."""
    wanted = config.preprocessing
    at_random = wanted is not None and (wanted.flip or wanted.random_area is not None)
    if not isinstance(dataset.inputs, ImageFiles) or at_random:
        return dataset, config
    first = dataset.read(slice(1), preprocessing=wanted)
    if len(dataset) * first.nbytes > DECODED_BYTES:
        return dataset, config
    inputs = dataset.read(preprocessing=wanted)
    return replace(dataset, inputs=inputs), replace(config, preprocessing=None)


def epoch_batches(dataset: Dataset, config: TrainConfig, epoch: int) -> list[Tensor]:
    """List the rows of each batch of an epoch; they follow from the config's seed and the epoch."""
    generator = seeded(config.seed, "epoch", epoch)
    if config.examples_per_class is None:
        batches = random_batches(len(dataset), config.batch_size, generator)
        # Each process needs two examples of a batch; a last one that is too small is left out.
        least = 2 * world()[1]
        return [rows for rows in batches if len(rows) >= least] if least > 2 else batches
    check_int("examples_per_class", config.examples_per_class, least=2)
    labels = dataset.labels
    if labels is None:
        labels = grid_cells(dataset.positions, config.radii[0], generator)
    classes = max(2, config.batch_size // config.examples_per_class)
    return class_batches(labels, classes, config.examples_per_class, generator)


def relation_of(dataset: Dataset, config: TrainConfig, rows: Any = slice(None)) -> Relation:
    """Return the relation over some examples, by labels or by the config's radii."""
    positive, negative = config.radii
    found = dataset.relation(rows, positive_radius=positive, negative_radius=negative)
    return as_relation(found)


_DIVERGED = (
    "the training diverged: {} at step {} of epoch {}. Lower the learning rate, or look for broken inputs; "
    "the last checkpoint is untouched."
)
_HUGE = 1e4
"""Weights beyond this are of no network that learns."""


def _trainable(task: Task) -> list[nn.Parameter]:
    parameters = task.parameters()
    if not parameters:
        raise InputError(
            "nothing can be trained: all parameters are frozen. Call requires_grad_(True) on those "
            "that should learn, or give epochs=0 to take the network as it is."
        )
    return parameters


def _interruption(
    report: Callable[[Progress], None], progress: Progress
) -> KeyboardInterrupt | None:
    """Report between two steps, when everything is whole; return what the report raised to stop."""
    try:
        report(progress)
    except KeyboardInterrupt as stop:
        return stop
    return None


def _check_weights(parameters: list[nn.Parameter], step: int, epoch: int) -> None:
    """Refuse to save weights that are not finite."""
    if not all(bool(torch.isfinite(p).all()) for p in parameters):
        raise NumericalError(_DIVERGED.format("weights are not finite", step, epoch))


@contextmanager
def _divergence_named(parameters: list[nn.Parameter], step: int, epoch: int) -> Iterator[None]:
    """Blame huge weights, not the batch, if embeddings are refused that such weights made."""
    try:
        yield
    except InputError as error:
        if all(bool((p.detach().abs() < _HUGE).all()) for p in parameters):
            raise
        raise NumericalError(_DIVERGED.format("weights are huge", step, epoch)) from error


def _read(
    dataset: Dataset, batches: Iterable[Tensor], config: TrainConfig, epoch: int
) -> Iterable[tuple[Tensor, Tensor]]:
    """Read this process's part of each batch, with the rows of the whole batch."""
    everything = list(batches)
    augmented = config.preprocessing is not None or isinstance(dataset.inputs, FeatureViews)
    own = read_batches(
        dataset,
        [rows[part(len(rows))] for rows in everything],
        preprocessing=config.preprocessing,
        augment_seed=(config.seed, epoch) if augmented else None,
        # What is in memory already is not worth handing between threads.
        workers=config.workers if isinstance(dataset.inputs, ImageFiles) else 0,
    )
    return ((rows, inputs) for rows, (_, inputs) in zip(everything, own, strict=True))
