"""The command line as a whole: help, examples, exit codes, what becomes of errors."""

import errno
import re
import shlex
import subprocess
import sys

import pytest
import typer

from surefind.cli import main
from surefind.cli.app import app, explanation, option_names, refusal_text, run
from surefind.errors import InputError

PAPER = ("bench", "report", "data")
"""Commands of an extra, tried with it."""
EXAMPLE = re.compile(r"Example: `(surefind [^`]+)`")


def commands(group=None, name="surefind"):
    """All commands below a group, with what to type for each."""
    group = group or typer.main.get_command(app)
    for key, inner in group.commands.items():
        if hasattr(inner, "commands"):
            yield from commands(inner, f"{name} {key}")
        elif key not in PAPER:
            yield f"{name} {key}", inner


def examples():
    return [e for _, command in commands() for e in EXAMPLE.findall(command.help)]


def test_every_command_has_an_example_of_itself():
    for name, command in commands():
        found = EXAMPLE.findall(command.help)
        assert any(e.startswith(name) for e in found), name


def test_the_examples_of_the_help_can_be_typed():
    group = typer.main.get_command(app)
    for line in examples():
        _, name, *arguments = shlex.split(line)
        group.commands[name].make_context(name, arguments)  # or else: wrong usage


@pytest.mark.nightly
def test_the_examples_of_the_help_run_one_after_the_other(surefind):
    for line in examples():
        code, _, err = surefind(*shlex.split(line)[1:])
        assert code == 0, f"{line}: {err}"


@pytest.mark.parametrize("name", [name for name, _ in commands()])
def test_help_is_shown_for_every_command(surefind, name):
    code, out, _ = surefind(*name.split()[1:], "--help")
    assert code == 0
    assert "Usage" in out


PROBE = """
import sys
from surefind.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def test_help_waits_for_no_heavy_library():
    """What makes `--help` quick: none of the libraries that take seconds is imported for it."""
    probe = subprocess.run(
        [sys.executable, "-c", PROBE, "evaluate", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"torch", "scipy", "sklearn", "matplotlib", "transformers", "pyarrow", "PIL"}
    heavy |= {"faiss", "fastapi", "httpx", "jinja2", "uvicorn"}
    assert not heavy & set(probe.stderr.split())
    assert "Usage" in probe.stdout


def test_a_mistake_shows_no_traceback(tmp_path):
    """As a shell sees it, in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-m", "surefind", "embed", "nowhere", "digits"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert found.returncode == 1
    assert found.stderr.startswith("Error: nowhere does not exist")


@pytest.mark.parametrize("library", ["tomli_w", "typer"])
def test_without_its_extra_the_command_line_says_what_to_install(library):
    code = f"import sys; sys.modules[{library!r}] = None; from surefind.cli import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 1
    assert found.stderr.startswith(f"The command line needs {library}")
    assert "pip install jinja2 matplotlib rich tomli-w typer" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_missing_library_of_another_kind_is_not_hidden(monkeypatch):
    monkeypatch.delitem(sys.modules, "surefind.cli.app")
    monkeypatch.setitem(sys.modules, "surefind.cli.about", None)
    with pytest.raises(ModuleNotFoundError):
        main()


def test_a_closed_pipe_ends_quietly(tmp_path):
    line = f"{sys.executable} -m surefind search --help | true"
    found = subprocess.run(
        line, shell=True, capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "Traceback" not in found.stderr
    assert "Error" not in found.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "x"), "No space left on device. Free"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), "x: Permission denied. Check"),
        (MemoryError("3 GB"), "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "not enough memory"),
    ],
)
def test_what_the_system_refuses_is_explained(error, words):
    assert words in explanation(error)


def test_an_option_at_fault_is_named_as_it_is_typed():
    """From the command's own parameters: a new option needs no list."""
    options = option_names(app, "train")
    assert options["batch_size"] == "--batch-size"
    assert "source" not in options  # an argument
    assert option_names(app, "search")["k"] == "-k"


@pytest.mark.parametrize(
    ("message", "field", "written"),
    [
        ("margin must be above 0.", "margin", "margin must be above 0. Do."),
        ("no batch can be made.", "batch_size", "--batch-size: no batch can be made. Do."),
        ("give --out elsewhere.", "out", "give --out elsewhere. Do."),
        ("learning_rate is no run.", "source", "learning_rate is no run. Do."),
        ("margin is odd.", None, "margin is odd. Do."),
    ],
)
def test_errors_speak_of_options(message, field, written):
    error = InputError(message, field=field, hint="Do.")
    assert refusal_text(error, option_names(app, "train")) == written
    assert str(error) == f"{message} Do."


def test_hints_speak_of_options_where_they_name_an_argument():
    error = InputError("x.", hint="Lower batch_size or set margin; the margin has no_option.")
    hint = "Lower --batch-size or set margin; the margin has no_option."
    assert refusal_text(error, option_names(app, "train")) == f"x. {hint}"


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), typer.Abort()], ids=lambda error: type(error).__name__
)
def test_an_interrupt_before_a_command_runs_is_no_traceback(monkeypatch, capsys, error):
    def stop(**_):
        raise error

    monkeypatch.setattr("surefind.cli.app.app", stop)
    with pytest.raises(SystemExit, match="1"):
        run()
    assert capsys.readouterr().err == "Error: interrupted.\n"


def test_an_interrupt_within_a_command_says_that_nothing_is_lost(surefind, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("surefind.cli.about.machine", stop)
    code, _, err = surefind("doctor")
    assert code == 1
    assert "Interrupted: nothing is half written; the same command starts again." in err


def test_a_defect_keeps_its_traceback(surefind, monkeypatch):
    def broken(*_):
        raise TypeError("ours")

    monkeypatch.setattr("surefind.cli.about.machine", broken)
    with pytest.raises(TypeError, match="ours"):
        surefind("doctor")
