"""What the command line prints and writes: results, errors, hints for the next command, and progress.

Results go to the standard output, errors and progress to the standard error. With ``--json`` the standard
output has one JSON document, what the command returned, and everything else that is said goes to the
standard error; tables, which hold the same for people, are left out. A reader that leaves early, as `head`
does, ends the printing and not the work: the command goes on, and its exit code says how that went. Lines
are not broken: a path or a command can be copied from a log as it stands. A line that begins with "Next" is
a hint: what follows its colon works when copied as it stands. Where only the user knows what to give, a
word in capitals stands for it, and the line does not begin so.

Files of results: the suffix decides the format, and a file is written whole or not at all.

During training the first Ctrl-C waits for the end of the current step; the training loop then writes a
checkpoint, and nothing is lost (`surefind.learning.train`). At any other moment, and the second time, it
interrupts at once.

On a terminal each stage of training has a progress bar with its loss and the time that is left. Elsewhere a
bar would leave control characters behind, so there a line is printed at the end of a stage, and every
`LINE_SECONDS` within one and where nothing can be counted.
"""

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
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from surefind.checks import require
from surefind.errors import InputError
from surefind.files import write_atomically

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


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str = "", caption: str = ""
) -> None:
    """Print a table for people; with ``--json`` its numbers are in the document.

    Args:
        columns: Their headings.
        rows: A cell each; None is a dash, and other values are shown as they are.
        title: A line above it.
        caption: What explains it.
    """
    from rich.table import Table

    if _asked_for_json:
        return
    if title:
        say(title, style="bold")
    table = Table(caption=caption or None)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text("–" if cell is None else str(cell)) for cell in row))
    console.print(table)


def put_json(result: Any) -> None:
    """Print a command's result as one JSON document; a function is called for it only now."""
    _write(json_text(result() if callable(result) else result))


def json_text(value: Any) -> str:
    """Write a value as JSON: paths as texts, what is no finite number as null."""
    from pydantic_core import to_json

    plain = to_json(value, inf_nan_mode="null", fallback=lambda number: number.item())
    return f"{plain.decode()}\n"


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

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked or not training:
            raise KeyboardInterrupt
        asked = True
        errors.print("Interrupting after this step; once more interrupts at once.")

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


def check_file(file: Path | None, suffixes: Sequence[str]) -> None:
    """Require a file that can be written, if there is to be one, before anything long."""
    if file is None:
        return
    if file.suffix.lower() not in suffixes or file.is_dir():
        raise InputError(
            f"{file} must be a file that ends in {' or '.join(suffixes)}, which decides what is written.",
            field="out",
        )
    if file.suffix.lower() in (".csv", ".parquet"):
        require("pyarrow", f"write {file.suffix} files")
    check_place(file.parent)


def write_table(file: Path, records: Any, table: Callable[[], Any]) -> None:
    """Write results in the format that the file's suffix says, whole or not at all.

    Args:
        file: Its suffix is one of `TABLES`; its folder is made if need be.
        records: What a JSON file holds.
        table: Makes a table of Arrow with the same, for the others. In a CSV file lists and objects are
            JSON.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    suffix = file.suffix.lower()
    if suffix == ".json":
        write_atomically(file, json_text(records))
    elif suffix == ".parquet":
        write = require("pyarrow.parquet", "write Parquet files").write_table
        write_atomically(file, lambda beside: write(table(), beside))
    else:
        write = require("pyarrow.csv", "write CSV files").write_csv
        write_atomically(file, lambda beside: write(_flat(table()), beside))


def arrow_table(
    records: Sequence[Mapping[str, Any]], names: Sequence[str], numbers: Sequence[str]
) -> Any:
    """Return a table of Arrow whose types do not depend on the values: numbers, and else texts."""
    arrow = require("pyarrow", "write tables")
    columns = {name: [record[name] for record in records] for name in names}
    return arrow.table({
        name: arrow.array(cells, arrow.float64())
        if name in numbers
        else arrow.array(map(_cell_text, cells), arrow.string())
        for name, cells in columns.items()
    })


def _flat(table: Any) -> Any:
    """Return a table of Arrow with nested columns as JSON."""
    arrow = require("pyarrow", "write CSV files")
    for at, field in enumerate(table.schema):
        if arrow.types.is_nested(field.type):
            texts = arrow.array(map(_cell_text, table.column(at).to_pylist()), arrow.string())
            table = table.set_column(at, field.name, texts)
    return table


def _cell_text(value: Any) -> str | None:
    if value is None:
        return None
    return json_text(value).rstrip() if isinstance(value, list | dict) else str(value)
