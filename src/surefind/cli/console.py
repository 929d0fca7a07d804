"""What the command line prints: results, errors, hints for the next command, and progress.

Results go to the standard output, errors and progress to the standard error. With ``--json`` the standard
output has one JSON document, what the command returned, and everything else that is said goes to the
standard error; tables, which hold the same for people, are left out. A reader that leaves early, as `head`
does, ends the printing and not the work: the command goes on, and its exit code says how that went. Lines
are not broken: a path or a command can be copied from a log as it stands. A line that begins with "Next" is
a hint: what follows its colon works when copied as it stands. Where only the user knows what to give, a
word in capitals stands for it, and the line does not begin so.

On a terminal each stage of training has a progress bar with its loss and the time that is left. Elsewhere a
bar would leave control characters behind, so there a line is printed at the end of a stage, and every
`LINE_SECONDS` within one and where nothing can be counted.
"""

import functools
import json
import math
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

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


@dataclass(frozen=True)
class Failure:
    """What a command returns that found something wrong: its result, and exit code 1."""

    result: Any


_asked_for_json = False


@contextmanager
def json_only(asked: bool) -> Iterator[None]:
    """Keep the standard output for one JSON document, if that is asked for."""
    global _asked_for_json
    before = _asked_for_json, console.stderr
    _asked_for_json, console.stderr = asked, asked or console.stderr
    try:
        yield
    finally:
        _asked_for_json, console.stderr = before


def show_table(table: "Table", title: str = "") -> None:
    """Print a table for people, under a title; with ``--json`` its numbers are in the document."""
    if _asked_for_json:
        return
    if title:
        say(title, style="bold")
    console.print(table)


def put_json(result: Any) -> None:
    """Print a command's result as one JSON document; a function is called for it only now."""
    _write(json_text(result() if callable(result) else result))


def json_text(value: Any) -> str:
    """Write a value as JSON: paths as texts, what is no finite number as null."""
    write = functools.partial(json.dumps, ensure_ascii=False, allow_nan=False, default=_plain)
    try:
        return write(value) + "\n"
    except ValueError:  # an infinity or a NaN, which are rare, and looking for them is slow
        return write(_finite(value)) + "\n"


def _plain(value: Any) -> Any:
    """Return what JSON does not know as something that it does: a path, or a number of NumPy."""
    return str(value) if isinstance(value, Path) else _finite(value.item())


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def put(text: str) -> None:
    """Print what a program reads, as it is; with ``--json`` it is in the document."""
    if not _asked_for_json:
        _write(text)


def _write(text: str) -> None:
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


LINE_SECONDS, BEAT_SECONDS = 10.0, 1.0
"""How often a log gets a line, and how often somebody looks whether it is time for one."""


@contextmanager
def stage_progress(what: str = "at work", *, lines: bool = True) -> "Iterator[Report]":
    """Show the progress of each stage of training; ``lines`` lets a log have it too.

    Args:
        what: What is done where no stage reports anything.
        lines: Whether a log gets lines of stages; it gets the others anyway.

    Yields:
        What to report to.
    """
    if errors.is_terminal:
        with _bars("{task.fields[loss]}") as bar:
            bar.add_task(what, total=None, loss="")
            yield _on_bars(bar)
    else:
        with _heartbeat(what) as say_at:
            yield _in_lines(say_at) if lines else (lambda _stage, _at: None)


@contextmanager
def count_progress(what: str, total: int) -> "Iterator[Callable[[int], None]]":
    """Yield a function to call with the number that is done, which goes on a bar or in lines."""
    if errors.is_terminal:
        with _bars("{task.completed} of {task.total}") as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    with _heartbeat(what) as say_at:
        yield lambda done: say_at(f"  {what}: {done:,} of {total:,}")


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show that something goes on which cannot be counted: a spinner, or a line now and then."""
    if errors.is_terminal:
        with errors.status(f"{what} …"):
            yield
    else:
        with _heartbeat(what):
            yield


@contextmanager
def _heartbeat(what: str) -> "Iterator[Callable[..., None]]":
    """Write a line after every `LINE_SECONDS` of silence; yield what writes others, if it is time."""
    begun = last = time.monotonic()
    ended, writing = threading.Event(), threading.Lock()

    def say_at(sentence: str, *, now: bool = False) -> None:
        nonlocal last
        with writing:
            if now or time.monotonic() - last >= LINE_SECONDS:
                last = time.monotonic()
                if not console.quiet:
                    to_stderr(sentence)

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            say_at(f"  {what}: {time.monotonic() - begun:.0f} s so far")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield say_at
    finally:
        ended.set()
        thread.join()


def _bars(text: str) -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn(text))
    # What is said meanwhile to a file must get there, and not to the bar's terminal.
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=errors,
        disable=console.quiet,
        redirect_stdout=console.is_terminal,
    )


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


def _in_lines(say_at: Callable[..., None]) -> "Report":
    def report(stage: str, at: Any) -> None:
        ended = (at.epoch + 1, at.step) == (at.epochs, at.steps)
        where = f"  {stage}: {at.step} of {at.steps}"
        if not math.isnan(at.loss):
            epoch = f"epoch {at.epoch + 1} of {at.epochs}"
            where = f"  {stage}: {epoch}, step {at.step} of {at.steps}, {_loss(at.loss)}"
        say_at(where, now=ended)

    return report
