"""A training session: stages, each with a checkpoint of its own, so that it can be resumed after any end.

A method trains in stages ("encoder", "member 3", "variance"). A stage that is finished is read back,
one that was cut off resumes from its last checkpoint, and both end bit for bit as an undisturbed session
would. Without a folder nothing is written.

A checkpoint is one safetensors file a stage (`surefind.models.saving`): tensors of the task and of the
optimiser, and as JSON the epoch and step, the history, and the settings that a resumed session must share.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.inputs import FeatureViews
from surefind.errors import InputError
from surefind.learning.distributed import world
from surefind.learning.train import Epoch, Progress, State, Task, TrainConfig, train
from surefind.models.saving import load_tensors, save_tensors
from surefind.pairs.losses import ContrastiveLoss, Objective

Report = Callable[[str, Progress], None]


@dataclass(frozen=True, eq=False)
class TrainingSession:
    """What every method trains by.

    Attributes:
        config: How to train.
        objective: The loss of a batch of embeddings.
        margin: Squared distance up to which negative pairs repel, in curvatures.
        folder: Where checkpoints are written; None writes nothing.
        report: Called with the stage's name and its progress.
        settings: What else decides the training, such as the learning rate; compared on resuming.
        history: The epochs of each stage, filled in as stages end.
        held_out: Labelled examples that are not trained on, by which a training ends; None for all epochs.
    """

    config: TrainConfig
    objective: Objective
    margin: float
    folder: Path | None = None
    report: Report = lambda _stage, _progress: None
    settings: dict[str, Any] = field(default_factory=dict)
    history: dict[str, tuple[Epoch, ...]] = field(default_factory=dict)
    held_out: Dataset | None = None

    def stage(
        self,
        name: str,
        task: Task,
        dataset: Dataset,
        *,
        kind: str,
        config: TrainConfig | None = None,
    ) -> None:
        """Train a stage, or resume it, or read it back if it is finished.

        Args:
            name: The stage's name; its file's too.
            task: Changed in place.
            dataset: The training data.
            kind: What is trained and with which options; a checkpoint must be of the same.
            config: How to train, where it differs from the session's.

        Raises:
            InputError: If the checkpoint is of another session, or has been trained for longer.
        """
        config = config or self.config
        if config.epochs == 0:
            self.history[name] = ()
            return
        settings: dict[str, Any] = {
            "kind": kind,
            "objective": describe_objective(self.objective),
            "training": self.settings,
            "seed": config.seed,
            "batch_size": config.batch_size,
            "examples_per_class": config.examples_per_class,
            "examples": len(dataset),
            "labels": digest([t for t in (dataset.labels, dataset.positions) if t is not None]),
        }
        if isinstance(dataset.inputs, ImageFiles | FeatureViews):
            settings["files"] = dataset.inputs.fingerprint()
        path = None if self.folder is None else self.folder / f"{name}.safetensors"
        start = None if path is None or not path.exists() else read_state(path, settings)
        if start is not None and start.epoch > config.epochs:
            raise InputError(
                f"{path} has been trained for {start.epoch} epochs, more than the {config.epochs} that "
                "are asked for. Give as many, or another folder."
            )
        if start is not None and start.epoch == config.epochs:
            task.restore(start.tensors)
            self.history[name] = start.history
            return

        def checkpoint(state: State) -> None:
            if path is not None and world()[0] == 0:
                write_state(path, state, settings)

        self.history[name] = train(
            task,
            dataset,
            config,
            start=start,
            checkpoint=checkpoint,
            report=lambda progress: self.report(name, progress),
        )


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a short hash of what tensors hold."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


def describe_objective(objective: Objective) -> str:
    """Describe a loss well enough to notice another one."""
    if isinstance(objective, ContrastiveLoss):
        return repr(objective)
    parts = (objective, getattr(objective, "loss", None), getattr(objective, "miner", None))
    return " ".join(getattr(p, "__name__", type(p).__name__) for p in parts if p is not None)


def write_state(path: Path, state: State, settings: dict[str, Any]) -> None:
    """Write a state to a file, with the settings that a run resumed from it must share."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {f"task.{k}": v for k, v in state.tensors.items()}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state.optimizer["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                numbers.setdefault(str(index), {})[key] = value
    metadata = {
        "settings": settings,
        "epoch": state.epoch,
        "step": state.step,
        "loss_sum": state.loss_sum,
        "seconds": state.seconds,
        "history": [asdict(epoch) for epoch in state.history],
        "optimizer": {"state": numbers, "groups": state.optimizer["param_groups"]},
    }
    save_tensors(path, tensors, metadata)


def read_state(path: Path, settings: dict[str, Any]) -> State:
    """Read a state, and require that it was written with these settings."""
    tensors, metadata = load_tensors(path)
    there, here = metadata.get("settings", {}), json.loads(json.dumps(settings))
    if there != here:
        changed = [k for k in here if there.get(k) != here[k]]
        said = "; ".join(f"{k} was {there.get(k)!r}, is {here[k]!r}" for k in changed)
        raise InputError(
            f"{path} was written with other settings: {said}. Give the same ones, or another "
            "folder."
        )
    optimizer: dict[int, dict[str, Any]] = {
        int(index): dict(entries) for index, entries in metadata["optimizer"]["state"].items()
    }
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            optimizer.setdefault(int(index), {})[key] = value
    return State(
        metadata["epoch"],
        metadata["step"],
        metadata["loss_sum"],
        metadata["seconds"],
        tuple(Epoch(**epoch) for epoch in metadata["history"]),
        {k.removeprefix("task."): v for k, v in tensors.items() if k.startswith("task.")},
        {"state": optimizer, "param_groups": metadata["optimizer"]["groups"]},
    )
