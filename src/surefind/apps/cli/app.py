"""All commands together, and what becomes of their errors.

A command is one line below. What it raises ends here: the library's own errors (in the words of
`surefind.apps.cli.wording`) and the system's (no such file, no space) become a sentence and exit code 1;
typer explains wrong usage itself, with exit code 2; a defect of ours keeps its traceback.
"""

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from surefind.apps.cli.bench import bench
from surefind.apps.cli.calibrate import calibrate
from surefind.apps.cli.console import complain, errors
from surefind.apps.cli.data import check_set, list_sets
from surefind.apps.cli.demo import demo
from surefind.apps.cli.doctor import doctor
from surefind.apps.cli.embed import embed
from surefind.apps.cli.evaluate import evaluate
from surefind.apps.cli.fit import fit
from surefind.apps.cli.index import index
from surefind.apps.cli.interrupts import StoppedError
from surefind.apps.cli.report import report
from surefind.apps.cli.search import search
from surefind.apps.cli.serve import serve
from surefind.apps.cli.train import train
from surefind.apps.cli.wording import for_commands
from surefind.errors import SurefindError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Retrieval that knows when it does not know.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets.")


def register(group: typer.Typer, command: Callable[..., None], name: str | None = None) -> None:
    """Add a command to a group.

    Args:
        group: The application, or a group of it.
        command: The function; its docstring is the help and holds an example.
        name: What to call it; the function's name by default.
    """

    @functools.wraps(command)
    def stoppable(*args: Any, **options: Any) -> None:
        try:
            command(*args, **options)
        except KeyboardInterrupt as stop:
            # Versions of typer differ in what they make of it.
            raise StoppedError("nothing is half written; the same command starts again.") from stop

    group.command(name)(stoppable)


register(app, train)
register(app, fit)
register(app, embed)
register(app, evaluate)
register(app, index)
register(app, calibrate)
register(app, search)
register(app, serve)
register(app, report)
register(app, bench)
register(app, demo)
register(app, doctor)
app.add_typer(data_app, name="data")
register(data_app, list_sets, "list")
register(data_app, check_set, "check")


def run() -> None:
    """Run the command line, and turn errors into sentences and exit codes."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except (typer.Abort, KeyboardInterrupt):
        complain("stopped.")
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except StoppedError as stop:
        errors.print(f"Stopped: {stop}", soft_wrap=True, markup=False)
    except Exception as error:
        if hasattr(error, "exit_code"):  # typer's own: wrong usage, which it explains itself
            error.show()  # type: ignore[attr-defined]
            sys.exit(error.exit_code)
        sentence = explanation(error)
        if sentence is None:
            raise
        complain(sentence)
    sys.exit(1)


def explanation(error: Exception) -> str | None:
    """Say in a sentence what a user can do about an error; None for a defect."""
    if isinstance(error, SurefindError):
        return for_commands(str(error))
    if isinstance(error, OSError):
        place = f" {error.filename}" if error.filename else ""
        reason = f"cannot read or write{place}: {error.strerror or error}."
        if error.errno == errno.ENOSPC:
            return f"{reason} Free some space; the same command goes on or starts again."
        return f"{reason} Check the path and its permissions."
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return (
            f"there is not enough memory ({error}). Take a smaller --batch-size or fewer examples."
        )
    return None
