"""What the command line prints and writes: results, errors, hints for the next command, and progress.

Results go to the standard output, errors and progress to the standard error. With ``--json`` the standard
output has one JSON document, what the command returned, and everything else that is said goes to the
standard error; tables, which hold the same for people, are left out. A reader that leaves early, as `head`
does, ends the printing and not the work: the command goes on, and its exit code says how that went. Lines
are not broken: a path or a command can be copied from a log as it stands. A command ends with a hint that
begins with "Next": what follows its colon works when copied as it stands.

Files of results: the suffix decides the format, and a file is written whole or not at all.

During training the first Ctrl-C waits for the end of the current step; the training loop then writes a
checkpoint, and nothing is lost (`surefind.learning.train`). The second interrupts at once.

On a terminal and in notebooks whatever takes long has a progress bar. Elsewhere a bar would leave control
characters behind, so a line says every `LINE_SECONDS` how far it is, and when a
stage is done.
"""

import csv
import io
import json
import math
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from surefind.checks import require
from surefind.errors import InputError
from surefind.files import write_atomically

if TYPE_CHECKING:
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


def to_stderr(sentence: str, mark: str = "", style: str = "") -> None:
    """Print a sentence apart from what a program reads from the standard output."""
    errors.print(Text.assemble((mark, style), sentence), soft_wrap=True)


def warn(sentence: str) -> None:
    """Print a warning; the command continues."""
    to_stderr(f" {sentence}", "Warning:", "yellow")


def complain(sentence: str) -> None:
    """Print an error."""
    to_stderr(f" {sentence}", "Error:", "red")


@dataclass(frozen=True)
class Failure:
    """What a command returns that found something wrong: its result, and exit code 1."""

    result: Any


_now = SimpleNamespace(as_json=False, hint="")
"""Whether the running command was asked for JSON, and what it hints at."""


@contextmanager
def result_of(*, as_json: bool) -> Iterator[None]:
    """Keep the standard output for one JSON document, if that is asked for; give the hint at the end."""
    before = _now.as_json, console.stderr
    _now.as_json, console.stderr, _now.hint = as_json, as_json or console.stderr, ""
    try:
        yield
        if _now.hint:
            say(_now.hint)
    finally:
        _now.as_json, console.stderr = before


def say_next(command: str, *, why: str = "Next") -> None:
    """Hint at a command when this one ends; of commands that ran within another the last one counts."""
    _now.hint = f"{why}: {command}"


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "") -> None:
    """Print a table for people, None as a dash; with ``--json`` its numbers are in the document."""
    from rich.table import Table

    if _now.as_json:
        return
    if title:
        say(title, style="bold")
    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    console.print(table)


def json_text(value: Any) -> str:
    """Write a value as JSON: paths as texts, what is no finite number as null."""
    from pydantic_core import to_json

    plain = to_json(value, inf_nan_mode="null", fallback=lambda number: number.item())
    return f"{plain.decode()}\n"


def put(text: str) -> None:
    """Print what a program reads, as it is; with ``--json`` it is in the document."""
    if _now.as_json:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard(sys.stdout)


DEFAULTS = {"on_bad": "refuse", "out": "gallery"}
"""Defaults of options that are never empty."""


def spelled(command: str, *arguments: object, **options: object) -> str:
    """Return a command, quoted for a shell; options that are None, False, empty or default are left out."""
    words = ["surefind", command, *map(str, arguments)]
    for name, value in options.items():
        if value is None or value is False or value in ("", DEFAULTS.get(name)):
            continue
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


LINE_SECONDS = 10.0
"""How often a log gets a line."""


@contextmanager
def progress(what: str, total: int | None = None) -> "Iterator[Callable[..., None]]":
    """Show that something goes on and, where it is counted, how far it is.

    Args:
        what: What is done.
        total: How many there are to do, if that is known.

    Yields:
        What to call with the number that is done, and perhaps another total, a stage and a note.
    """
    if errors.is_terminal or errors.is_jupyter:
        with _bars() as bar:
            tasks = {what: bar.add_task(what, total=total, note="")}

            def move(done: int, total: int | None = total, at: str = what, note: str = "") -> None:
                if at not in tasks:
                    tasks[at] = bar.add_task(at, total=total, note="")
                bar.update(tasks[at], completed=done, note=note or f"{done:,} of {total:,}")

            yield move
        return
    begun, now, ended = time.monotonic(), [what], threading.Event()

    def line(text: str) -> None:
        if not console.quiet:
            to_stderr(f"  {text} ({time.monotonic() - begun:.0f} s)")

    def tell(done: int, total: int = total or 0, at: str = what, note: str = "") -> None:
        text = f"{at}: {done:,} of {total:,}{note and f', {note}'}"
        now[0] = what if done >= total else text
        if done >= total and at != what:  # a stage is done
            line(text)

    def beat() -> None:
        while not ended.wait(LINE_SECONDS):
            line(now[0])

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()


def _bars() -> Any:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    # What is said meanwhile to a file must get there, and not to the bar's terminal.
    return Progress(
        *columns,
        TimeRemainingColumn(),
        console=errors,
        disable=console.quiet,
        redirect_stdout=console.is_terminal,
    )


@contextmanager
def stage_progress(what: str = "at work") -> "Iterator[Report]":
    """Show the progress of each stage of training, to what is yielded; ``what`` is done between them."""
    with progress(what) as show:

        def report(stage: str, at: Any) -> None:
            note = "" if math.isnan(at.loss) else f"loss {at.loss:.4f}"
            show(at.epoch * at.steps + at.step, at.epochs * at.steps, stage, note)

        yield report


@contextmanager
def whole_steps(report: "Report") -> "Iterator[Report]":
    """Let Ctrl-C wait for the end of a step.

    Args:
        report: Called with each step's progress.

    Yields:
        What to report to instead; it raises `KeyboardInterrupt` at the end of an interrupted step.
    """
    from surefind.learning.distributed import world

    if world()[1] > 1 or threading.current_thread() is not threading.main_thread():
        # Several processes would end at different steps; they resume from the last checkpoint.
        yield report
        return
    asked = training = False

    def on_signal(*_: Any) -> None:
        nonlocal asked
        if asked or not training:
            raise KeyboardInterrupt
        asked = True
        to_stderr("Interrupting after this step; once more interrupts at once.")

    def watched(stage: str, at: Any) -> None:
        nonlocal training
        report(stage, at)
        training = (at.epoch + 1, at.step) != (at.epochs, at.steps)
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield watched
    finally:
        signal.signal(signal.SIGINT, before)


def this_command(*more: str) -> str:
    """Return the running command as it can be typed again, with options added that are not there."""
    name, *arguments = sys.argv
    program = ["python", "-m", "surefind"] if Path(name).name == "__main__.py" else ["surefind"]
    return shlex.join([*program, *arguments, *(m for m in more if m not in arguments)])


def check_place(folder: Path, *, field: str = "out") -> None:
    """Require a folder, perhaps yet to be made, that can be written."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(
            f"cannot write to {folder}: {there} is {'read-only' if there.is_dir() else 'a file'}. Give "
            "another folder.",
            field=field,
        )


TABLES = (".csv", ".json", ".parquet")
"""Suffixes of the files of results that `write_table` writes."""


def check_file(file: Path | None, suffixes: Sequence[str] = TABLES) -> None:
    """Require a file that can be written, if there is to be one, before anything long."""
    if file is None:
        return
    if file.suffix.lower() not in suffixes or file.is_dir():
        raise InputError(
            f"{file} must be a file that ends in {' or '.join(suffixes)}, which decides what is written.",
            field="out",
        )
    if file.suffix.lower() == ".parquet":
        require("pyarrow", "write Parquet files")
    check_place(file.parent)


def write_table(
    file: Path,
    records: Sequence[Mapping[str, Any]],
    columns: Mapping[str, type],
    table: Callable[[], Any] | None = None,
) -> None:
    """Write results in the format that the file's suffix says, whole or not at all.

    Args:
        file: Its suffix is one of `TABLES`; its folder is made if need be.
        records: A row each. In a CSV file lists and objects are JSON.
        columns: The names of those that tables have, and whether they hold numbers (float) or texts.
        table: Makes a table of Arrow for a Parquet file, if it has more types than these.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    suffix = file.suffix.lower()
    if suffix == ".json":
        write_atomically(file, json_text(records))
        return
    if suffix == ".parquet":
        write = require("pyarrow.parquet", "write Parquet files").write_table
        made = _arrow_table(records, columns) if table is None else table()
        write_atomically(file, lambda beside: write(made, beside))
        return
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(columns)
    lines.writerows([cell_text(record[name]) for name in columns] for record in records)
    write_atomically(file, text.getvalue())


def _arrow_table(records: Sequence[Mapping[str, Any]], columns: Mapping[str, type]) -> Any:
    """Return a table of Arrow whose types do not depend on the values."""
    arrow = require("pyarrow", "write tables")
    return arrow.table({
        name: arrow.array([record[name] for record in records], arrow.float64())
        if kind is float
        else arrow.array([cell_text(record[name]) for record in records], arrow.string())
        for name, kind in columns.items()
    })


def cell_text(value: Any) -> str | None:
    """Write a cell of a table: lists and objects as JSON."""
    if value is None:
        return None
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
