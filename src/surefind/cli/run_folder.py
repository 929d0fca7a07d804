"""A run: one folder with everything in it, that explains itself and that every command takes.

    config.toml         what was asked for, and by which command and version
    model.safetensors   the fitted model
    history.json        loss and seconds of each epoch
    metrics.json        numbers and curves of the last evaluation
    log.txt             what was done when
    plots/              figures of both
    evaluations/        numbers and figures of the evaluations before the last, a folder each
    stages/             checkpoints of the training, and features of a frozen backbone; needed to resume it
    gallery/            items that were indexed, if they were indexed there
    gallery.service/    what `surefind serve` keeps beside it
    README.md           this list, for that run

A folder that `MetricLearner.save` wrote, with a model and nothing else, is a run too.
"""

import hashlib
import itertools
import json
import shlex
import shutil
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

import surefind as sf
from surefind.cli.console import check_place, this_command
from surefind.cli.plots import LOSS
from surefind.cli.sources import split_part
from surefind.errors import InputError
from surefind.files import write_atomically

FORMAT = 1
CONFIG = "config.toml"


def read_config(folder: Path) -> dict[str, Any]:
    """Read a run's config.toml; refuse one that is damaged or of another format."""
    file = folder / CONFIG
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
    return config


NUMBERS = ("embedding_dim", "examples_per_class", "margin", "prior_precision", "scale")
"""Options that may be left out, for which config.toml, which has no null, then holds 0."""


def as_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a command as config.toml holds them: all but where and whether to resume."""
    settings = {k: v for k, v in given.items() if k not in ("out", "resume")}
    for name, value in settings.items():
        if value is None:
            settings[name] = 0 if name in NUMBERS else ""
        elif isinstance(value, Path):
            settings[name] = str(value)
    return settings


EXPLAINED = {
    "config.toml": ("what was asked for", "`surefind train … --resume` compares it"),
    "model.safetensors": (
        "the fitted model: weights, uncertainty, preprocessing",
        "`embed`, `evaluate`, `fit`",
    ),
    "history.json": ("loss and seconds of each epoch, by stage", "you"),
    "metrics.json": ("numbers and curves of the last evaluation", "you"),
    "evaluations": (
        "numbers and figures of earlier evaluations, by when they were made",
        "you",
    ),
    "log.txt": ("what was done when", "you"),
    "plots": ("loss, uncertainty, ROC and other curves", "you"),
    "stages": ("checkpoints; delete them when the run is finished", "`train … --resume`"),
    "gallery": ("items that can be searched", "`search`, `calibrate`, `serve`"),
    "gallery.service": ("reviews and thumbnails", "`serve`"),
}
"""What each file is, and what uses it."""
AFTER = """\
What to do with it, from within this folder; capitals stand for data of yours:

    surefind evaluate . LABELLED
    surefind embed . IMAGES --out embeddings.npz
    surefind index IMAGES --run . --out gallery
"""


def readme_text(folder: Path, config: Mapping[str, Any]) -> str:
    """Explain a run.

    Args:
        folder: The run; what is there is listed.
        config: Its settings; the command that made it is among them, if it is known.

    Returns:
        Markdown.
    """
    head = [f"# {folder.resolve().name}", ""]
    if made := config.get("command", ""):
        version = config.get("surefind", "")
        head += [f"A run of surefind {version}, made by:", "", f"    {made}", ""]
    rows = [
        f"| {name} | {what} | {users} |"
        for name, (what, users) in EXPLAINED.items()
        if (folder / name).exists()
    ]
    table = ["| file | what it is | used by |", "| --- | --- | --- |", *rows, ""]
    return "\n".join([*head, *table, AFTER])


MODEL, LOG = "model.safetensors", "log.txt"
METRICS, EVALUATIONS = "metrics.json", "evaluations"
FINGERPRINT = "sha256:"
"""What the name of a model's content begins with."""


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
        if not self.trained:
            raise InputError(self.unfinished, field="run")
        return sf.load(self.path)

    @property
    def trained(self) -> bool:
        """Whether there is a model."""
        return (self.path / MODEL).is_file()

    @property
    def unfinished(self) -> str:
        """Why there is none, and how to resume its training."""
        hint = f" Resume it: {self.again}" if self.again else ""
        return f"{self.path} has no {MODEL}: its training did not end.{hint}"

    @property
    def again(self) -> str:
        """The command that resumes it, wherever its folder is by now; empty if that is not known."""
        words = shlex.split(self.config.get("command", ""))
        if "--out" in words:
            words[words.index("--out") + 1] = str(self.path)
        words = [f"--out={self.path}" if w.startswith("--out=") else w for w in words]
        return shlex.join([*words, *(["--resume"] if words and "--resume" not in words else [])])

    @property
    def data(self) -> Path | None:
        """The folder that held the data sets when it was trained."""
        return Path(self.config["data"]) if self.config.get("data") else None

    def own_source(self, otherwise: str) -> str:
        """Return what it was trained on.

        Args:
            otherwise: What to do if that is not known or not there, for the error.

        Raises:
            InputError: If it is not known, or not to be found from here.
        """
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
        """Remove what was measured of an earlier model."""
        measured = [self.path / METRICS]
        for file in (*measured, *self._drawn()):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.path / EVALUATIONS, ignore_errors=True)

    def set_evaluation_aside(self) -> Path | None:
        """Move the last evaluation where the earlier ones are; return that folder, or None without one."""
        last = self.path / METRICS
        if not last.exists():
            return None
        made = datetime.fromtimestamp(last.stat().st_mtime, UTC)
        name = f"{made:%Y-%m-%dT%H%M%S}"
        names = itertools.chain([name], (f"{name}-{n}" for n in itertools.count(2)))
        aside = next(p for p in (self.path / EVALUATIONS / n for n in names) if not p.exists())
        (aside / "plots").mkdir(parents=True)
        for file in self._drawn():
            file.rename(aside / "plots" / file.name)
        last.rename(aside / METRICS)
        return aside

    @property
    def earlier_evaluations(self) -> list[str]:
        """Files of the evaluations before the last one, within the run, the newest first."""
        found = (self.path / EVALUATIONS).glob(f"*/{METRICS}")
        return [str(file.relative_to(self.path)) for file in sorted(found, reverse=True)]

    def _drawn(self) -> list[Path]:
        return [p for p in (self.path / "plots").glob("*.svg") if p.name != LOSS]

    def log(self, sentence: str) -> None:
        """Add a line to the log."""
        with (self.path / LOG).open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {sentence}\n")

    def write_json(self, name: str, value: Any) -> None:
        """Write a file of the run, whole or not at all."""
        write_atomically(self.path / name, json.dumps(value, indent=1, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """Read a file of the run; None if it is not there, and refused if it is damaged."""
        file = self.path / name
        if not file.exists():
            return None
        try:
            return json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(
                f"{file} is damaged ({error}). Delete it and make it anew.", field="run"
            ) from error

    def explain(self) -> None:
        """Write the README.md that explains the folder."""
        write_atomically(self.path / "README.md", readme_text(self.path, self.config))


def check_run(folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
    """Check that a folder is free for a run, or holds one with the same settings that can be resumed.

    Raises:
        InputError: If it cannot be written, there is a run already, or one with other settings.
    """
    check_place(folder, 0)
    if not (folder / CONFIG).exists():
        return
    if not resume:
        raise InputError(
            f"there is a run in {folder} already; add --resume, or give another folder.",
            field="resume",
        )
    there = read_config(folder)
    longer = settings["epochs"] >= there.get("epochs", 0)
    # Where data and features lie may change; what they are is in the checkpoints.
    free = {"data", "cache", *(["epochs"] if longer else [])}
    changed = [k for k in settings if k not in free and there.get(k) != settings[k]]
    if changed:
        said = ", ".join(f"{k} was {there.get(k)!r}" for k in sorted(changed))
        raise InputError(
            f"the run in {folder} has other settings: {said}. Give the same ones; only epochs may be more.",
            field=min(changed),
        )


def create_run(folder: Path, settings: Mapping[str, Any]) -> RunFolder:
    """Make a run's folder, or resume the one that `check_run` allowed, with settings that TOML can hold."""
    made = {"format": FORMAT, "surefind": sf.__version__, "command": this_command()}
    run = RunFolder(folder, {**made, **settings})
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG, tomli_w.dumps(run.config))
    run.log(f"started: {made['command']}")
    run.explain()
    return run


def open_run(folder: Path) -> RunFolder:
    """Open a run; refuse a folder that holds none, or one that another version wrote."""
    if not (folder / CONFIG).is_file():
        if (folder / MODEL).is_file():
            return RunFolder(folder, {})
        what = "holds no run" if folder.is_dir() else "does not exist"
        raise InputError(
            f"{folder} {what}: a run is a folder that `surefind train` or `surefind fit` wrote.",
            field="run",
        )
    return RunFolder(folder, read_config(folder))
