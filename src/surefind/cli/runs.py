"""A run: one folder with everything in it, which every command takes; and what a run reads.

    config.toml         what was asked for, and by which command and version
    model.safetensors   the fitted model
    history.json        loss and seconds of each epoch
    metrics.json        numbers and curves of the last evaluation
    log.txt             what was done when
    plots/              figures of both
    stages/             checkpoints of the training, and features of a frozen backbone; needed to resume it
    gallery/            items that were indexed, if they were indexed there
    gallery.service/    what `surefind serve` keeps beside it

A folder that `MetricLearner.save` wrote, with a model and nothing else, is a run too.
"""

import hashlib
import json
import shlex
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

import surefind as sf
from surefind.cli.console import check_place, say, this_command
from surefind.errors import InputError
from surefind.files import write_atomically

FORMAT = 1
CONFIG, MODEL, METRICS, LOG = "config.toml", "model.safetensors", "metrics.json", "log.txt"
LOSS = "loss.svg"
"""The figure of the training; all others are of the last evaluation."""
FINGERPRINT = "sha256:"
"""What the name of a model's content begins with."""
NAMED = 10
"""Images at most that are named when they are left out."""


def as_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command as config.toml holds them: all but where and whether to resume.

    TOML has no null: an option that was left out is an empty text.
    """
    kept = {name: value for name, value in given.items() if name not in ("out", "resume")}
    plain = {name: str(value) for name, value in kept.items() if isinstance(value, Path)}
    return kept | plain | {name: "" for name, value in kept.items() if value is None}


@dataclass(frozen=True)
class RunFolder:
    """A run on disk.

    Attributes:
        path: The folder.
        config: What its config.toml says; empty if it has none.
    """

    path: Path
    config: Mapping[str, Any]

    def learner(self) -> "sf.MetricLearner":
        """Load the fitted model; refuse a run that has none yet, or whose model cannot be read."""
        if self.trained:
            return sf.load(self.path)
        words = shlex.split(self.config.get("command", ""))
        if "--out" in words:  # wherever the folder is by now
            words[words.index("--out") + 1] = str(self.path)
        if words and not {"--resume", "index"} & {*words}:
            words.append("--resume")
        again = f" Resume it: {shlex.join(words)}" if words else ""
        raise InputError(
            f"{self.path} has no {MODEL}: its training did not end.{again}", field="run"
        )

    @property
    def trained(self) -> bool:
        """Whether there is a model."""
        return (self.path / MODEL).is_file()

    def own_source(self, otherwise: str) -> str:
        """Return what it was trained on; refuse if that is not there, and say what else to do."""
        from surefind.data.sources import split_part

        source: str | None = self.config.get("source")
        why = "does not say what it was trained on"
        if source is not None:
            with suppress(InputError):
                split_part(source)
                return source
            why = f"was trained on {source}, which is not to be found from here"
        raise InputError(f"{self.path} {why}; {otherwise}.", field="source")

    @property
    def fingerprint(self) -> str | None:
        """The digest of its model; None if there is none."""
        if not self.trained:
            return None
        with (self.path / MODEL).open("rb") as file:
            return f"{FINGERPRINT}{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"

    def forget_evaluation(self) -> None:
        """Remove what was measured of another model, or before."""
        drawn = [p for p in (self.path / "plots").glob("*.svg") if p.name != LOSS]
        for file in (self.path / METRICS, *drawn):
            file.unlink(missing_ok=True)

    def log(self, sentence: str) -> None:
        """Add a line to the log."""
        with (self.path / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {sentence}\n")

    def write_json(self, name: str, value: Any) -> None:
        """Write a file of the run, whole or not at all."""
        write_atomically(self.path / name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def draw(self, name: str, chart: str, *data: Any) -> None:
        """Draw a figure of the run by one of the charts of `surefind.evaluation.figures`."""
        from surefind.evaluation import figures

        figures.write_figure(self.path / "plots" / name, getattr(figures, chart)(*data))


def check_run(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Check that a folder is free for a run, or holds one with the same settings that can be resumed.

    Raises:
        InputError: If it cannot be written, there is a run already, or one with other settings.
    """
    check_place(folder)
    if not (folder / CONFIG).exists():
        return
    if not resume:
        raise InputError(
            f"there is a run in {folder} already; add --resume, or give another folder.",
            field="resume",
        )
    there = open_run(folder).config
    longer = settings["epochs"] >= there.get("epochs", 0)
    # Where features lie may change; what they are is in the checkpoints.
    free = {"cache", *(["epochs"] if longer else [])}
    changed = [k for k in settings if k not in free and there.get(k) != settings[k]]
    if changed:
        before = ", ".join(f"{k} was {there.get(k)!r}" for k in sorted(changed))
        raise InputError(
            f"the run in {folder} has other settings: {before}. Give the same ones; only epochs may be "
            "more.",
            field=min(changed),
        )


def create_run(folder: Path, settings: Mapping[str, Any]) -> RunFolder:
    """Make a run's folder, or resume the one that `check_run` allowed, with settings that TOML can hold."""
    made = {"format": FORMAT, "surefind": sf.__version__, "command": this_command()}
    run = RunFolder(folder, {**made, **settings})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG, tomli_w.dumps(run.config))
    run.log(f"started: {made['command']}")
    return run


def open_run(folder: Path) -> RunFolder:
    """Open a run; refuse a folder that holds none, a damaged one, or one that another version wrote."""
    file = folder / CONFIG
    if not file.is_file():
        if (folder / MODEL).is_file():
            return RunFolder(folder, {})
        what = "holds no run" if folder.is_dir() else "does not exist"
        raise InputError(
            f"{folder} {what}: a run is a folder that `surefind train` or `surefind fit` wrote.",
            field="run",
        )
    try:
        config = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(
            f"{file} is damaged ({error}). Take the run from a backup.", field="run"
        ) from error
    if config.get("format") != FORMAT:
        raise InputError(
            f"the run in {folder} is of format {config.get('format')!r}; this version of surefind reads "
            f"{FORMAT}. Use the version that wrote it: {config.get('surefind', 'unknown')}.",
            field="run",
        )
    return RunFolder(folder, config)


def readable(dataset: "sf.Dataset", on_bad: str) -> "sf.Dataset":
    """Decode every image in files once, before anything long, and return the examples that can be read.

    Args:
        dataset: What was read.
        on_bad: "refuse" or "skip" what cannot be decoded.

    Raises:
        InputError: If images cannot be read and are not to be left out, or none is left.
    """
    good, bad = dataset.verify(on_bad=on_bad)
    if bad:
        say(f"Left out {len(bad)} images that cannot be read:")
        say("\n".join(f"  {reason}" for reason in bad[:NAMED]))
    return good


def read_for(
    learner: "sf.MetricLearner", source: str, on_bad: str, prefer: str | None = None
) -> "sf.Dataset":
    """Read what a fitted learner is to embed; refuse what it cannot take, or a source that is empty."""
    from surefind.data.sources import read_source

    return usable(
        learner, read_source(source, prefer=prefer, mode=learner.input_spec_.mode), on_bad
    )


def usable(learner: "sf.MetricLearner", dataset: "sf.Dataset", on_bad: str) -> "sf.Dataset":
    """Return the examples that can be read; refuse those that a fitted learner cannot take, or none."""
    good = readable(dataset, on_bad)
    if not len(good):
        raise InputError(f"{dataset.name} holds nothing that can be read.", field="source")
    check_fits(learner, good)
    return good


def check_fits(learner: "sf.MetricLearner", dataset: "sf.Dataset") -> None:
    """Embed two examples before anything long, to see that the network takes them.

    Args:
        learner: Its network is left as it is; if it is fitted, it knows what inputs it takes.
        dataset: What will be embedded.

    Raises:
        InputError: If it refuses them.
    """
    from surefind.data.batches import like_network
    from surefind.data.inputs import describe_shape

    network, training = learner.encoder, learner.encoder.training
    wanted = getattr(learner, "input_spec_", learner.preprocessing)
    name = dataset.name
    try:
        rows = dataset.read(slice(0, 2), preprocessing=wanted)
        name = f"{name}, {describe_shape(rows.shape[1:])}"
        network.eval()(like_network(rows, network))
    except (RuntimeError, InputError) as error:
        raise InputError(
            f"the encoder cannot take {name}: {str(error).rstrip('.')}. Give other data, or train another "
            "with --encoder.",
            field="source",
        ) from error
    finally:
        network.train(training)
