"""All commands together, and what becomes of their errors.

A command is one name in `PANELS`, or an entry point of the group ``surefind.commands``, which is how the
extra ``paper`` brings its own. Each has ``--json``, which prints what it returned as one JSON document
(`surefind.cli.console`): what a script would read of it, None if that is nothing. What it raises ends
here: the library's own errors, with their hint for the command line, and the system's (no such file, no
space) become a sentence and exit code 1; typer explains wrong usage itself, with exit code 2; a defect of
ours keeps its traceback.

An error's field that is an option of the running command is named as the user types it: ``batch_size``
becomes ``--batch-size``.
"""

import contextlib
import errno
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

import surefind as sf
from surefind.cli.about import doctor
from surefind.cli.console import (
    Failure,
    complain,
    discard,
    json_text,
    put,
    result_of,
    to_stderr,
)
from surefind.cli.decide import audit, calibrate, search
from surefind.cli.demo import demo
from surefind.cli.galleries import index, items
from surefind.cli.learn import fit, train
from surefind.cli.measure import embed, evaluate
from surefind.cli.serve import serve
from surefind.errors import CommandInterruptedError, SurefindError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Retrieval that knows when it does not know.",
)
AsJson = Annotated[
    bool,
    typer.Option("--json", help="Print the result as one JSON document; notes go to stderr."),
]


def _show_version(asked: bool) -> bool:
    if asked:
        put(f"surefind {sf.__version__}\n")
        raise typer.Exit
    return asked


@app.callback()
def whole(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Take what goes before a command."""


def register(group: typer.Typer, command: Callable[..., Any], panel: str | None = None) -> None:
    """Add a command to a group and a panel of its help; the function has its name and its help."""
    name = command.__name__

    @functools.wraps(command)
    def explained(*args: Any, as_json: bool = False, **options: Any) -> None:
        try:
            with result_of(as_json=as_json):
                found = command(*args, **options)
            result = found.result if isinstance(found, Failure) else found
            if as_json and result is not None:
                put(json_text(result))
            if not isinstance(found, Failure):
                return
        except KeyboardInterrupt:  # versions of typer differ in what they make of it
            to_stderr("Interrupted: nothing is half written; the same command starts again.")
        except CommandInterruptedError as interrupted:
            to_stderr(f"Interrupted: {interrupted}")
        except SurefindError as error:
            complain(refusal_text(error, option_names(group, name)))
        raise typer.Exit(1)

    own = inspect.signature(command)
    last = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False)
    asked = last.replace(annotation=AsJson)
    explained.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*own.parameters.values(), asked], return_annotation=None
    )
    explained.__annotations__ = command.__annotations__ | {"as_json": AsJson, "return": None}
    group.command(name, rich_help_panel=panel)(explained)


def option_names(group: typer.Typer, command: str) -> dict[str, str]:
    """Return the option of each parameter of a command, as it is typed."""
    found: Any = typer.main.get_command(group)  # of a single command it is that one
    listed = getattr(found, "commands", {command: found})[command].params
    typed = {p.name: max(p.opts, key=len) for p in listed}
    return {name: option for name, option in typed.items() if option.startswith("-")}


PANELS: dict[str, tuple[Callable[..., Any], ...]] = {
    "Start": (demo, doctor),
    "Build": (train, fit, embed, index, calibrate),
    "Use": (search, items, audit),
    "Deploy": (serve,),
    "Evaluate": (evaluate,),
}
for title, commands in PANELS.items():
    for each in commands:
        register(app, each, title)
for plugin in entry_points(group="surefind.commands"):
    # A command of an extra that is not installed is not there.
    with contextlib.suppress(ModuleNotFoundError):
        register(app, plugin.load(), "Evaluate")


def run() -> None:
    """Run the command line, and turn errors into sentences and exit codes."""
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except (typer.Abort, KeyboardInterrupt):
        complain("interrupted.")
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except BrokenPipeError:  # of what typer prints itself: the reader has seen enough
        discard(sys.stdout)
    except Exception as error:
        if hasattr(error, "exit_code"):  # typer's own: wrong usage, which it explains itself
            error.show()  # type: ignore[attr-defined]
            sys.exit(error.exit_code)
        sentence = explanation(error)
        if sentence is None:
            raise
        complain(sentence)
    sys.exit(1)


def refusal_text(error: SurefindError, options: Mapping[str, str]) -> str:
    """Return an error of the library as the command line says it: by options in place of arguments."""
    message, field = error.message, error.field or ""
    option = options.get(field)
    if option is not None and option not in str(error):
        named = message.startswith(f"{field} ")
        message = f"{option}{message.removeprefix(field)}" if named else f"{option}: {message}"
    hint = re.sub(r"(?<=\bset )\w+|\b\w+_\w+\b", lambda m: options.get(m[0], m[0]), error.hint)
    return f"{message} {hint}".rstrip()


def explanation(error: Exception) -> str | None:
    """Return what a user can do about an error of the system; None for a defect."""
    if isinstance(error, OSError):
        place = f" {error.filename}" if error.filename else ""
        reason = f"cannot read or write{place}: {error.strerror or error}."
        if error.errno == errno.ENOSPC:
            return f"{reason} Free some space; the same command resumes or starts again."
        return f"{reason} Check the path and its permissions."
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return f"not enough memory ({error}). Use a smaller --batch-size or fewer examples."
    return None
