"""What the command line prints: results, errors, hints for the next command, and progress.

Results go to the standard output, errors to the standard error. A reader that leaves early, as `head` does,
ends the printing and not the work: the command goes on, and its exit code says how that went. Lines are not
broken: a path or a command can be copied from a log as it stands. A line that begins with "Next" is a hint:
what follows its colon works when copied as it stands. Where only the user knows what to give, a word in
capitals stands for it, and the line does not begin so.

On a terminal each stage of training has a progress bar with its loss and the time that is left. Elsewhere a
bar would leave control characters behind, so there a line is printed at the end of a stage, and every half
minute within one.
"""

import math
import os
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress

    from surefind.learning.session import Report


class PatientConsole(Console):
    """A console that goes on without its reader; Rich's own would end the process."""

    def on_broken_pipe(self) -> None:
        """Let what is printed from now on go nowhere."""
        discard(self.file)


def discard(stream: IO[Any]) -> None:
    """Let what is written to a stream, also what waits in its buffer, go nowhere: its reader has left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


console = PatientConsole(highlight=False)
errors = PatientConsole(stderr=True, highlight=False)


def say(sentence: str, *, style: str = "") -> None:
    """Print a sentence as it is: brackets in a path are no markup."""
    console.print(Text(sentence, style=style), soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a warning; the command continues."""
    errors.print(Text.assemble(("Warning:", "yellow"), f" {sentence}"), soft_wrap=True)


def complain(sentence: str) -> None:
    """Print an error."""
    errors.print(Text.assemble(("Error:", "red"), f" {sentence}"), soft_wrap=True)


def put(text: str) -> None:
    """Print what a program reads, as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)


def to_stderr(sentence: str) -> None:
    """Print a sentence apart from what a program reads from the standard output."""
    errors.print(sentence, soft_wrap=True, markup=False)


DEFAULTS = {"on_bad": "refuse"}
"""Defaults of options that are never empty."""


def spelled(command: str, *arguments: object, **options: object) -> str:
    """Return a command, quoted for a shell; options that are None, False, empty or default are left out."""
    words = ["surefind", command, *map(str, arguments)]
    for name, value in options.items():
        if value is None or value is False or value in ("", DEFAULTS.get(name)):
            continue
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


LINE_SECONDS = 30.0
"""How often a log gets a line."""


@contextmanager
def stage_progress(*, lines: bool = True) -> "Iterator[Report]":
    """Show the progress of each stage of training; ``lines`` lets a log have it too."""
    if console.is_terminal:
        with _bars("{task.fields[loss]}") as bar:
            yield _on_bars(bar)
    else:
        yield _in_lines() if lines else (lambda _stage, _at: None)


@contextmanager
def count_progress(what: str, total: int) -> "Iterator[Any]":
    """Yield a function to call with the number that is done; nothing is shown without a terminal."""
    with _bars("{task.completed} of {task.total}", disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _bars(text: str, *, disable: bool = False) -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(text))
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=disable)


def _on_bars(bar: "Progress") -> "Report":
    tasks: dict[str, Any] = {}

    def report(stage: str, at: Any) -> None:
        done, total = at.epoch * at.steps + at.step, at.epochs * at.steps
        if stage not in tasks:
            tasks[stage] = bar.add_task(stage, total=total, loss="")
        bar.update(tasks[stage], completed=done, loss=_loss(at.loss))

    return report


def _loss(value: float) -> str:
    return "" if math.isnan(value) else f"loss {value:.4f}"


def _in_lines() -> "Report":
    last = time.monotonic()

    def report(stage: str, at: Any) -> None:
        nonlocal last
        ended = (at.epoch + 1, at.step) == (at.epochs, at.steps)
        if ended or time.monotonic() - last > LINE_SECONDS:
            last = time.monotonic()
            say(
                f"  {stage}: {at.step} of {at.steps}"
                if math.isnan(at.loss)
                else f"  {stage}: epoch {at.epoch + 1} of {at.epochs}, step {at.step} of {at.steps}, "
                f"{_loss(at.loss)}"
            )

    return report
