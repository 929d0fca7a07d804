"""The command line: parse, call the library, show what happened.

Exit codes: 0 done, 1 failed or interrupted, 2 wrong usage. A user's mistake is answered with a sentence,
never a traceback. What takes long is estimated first, shows its progress, and can be killed at any moment.

A module a command; `surefind.cli.app` puts them together. PyTorch is imported inside the commands,
when they run: `--help` and shell completion must not wait for it. Public names are taken from `surefind`,
which imports them when they are first used; others inside the functions that need them.
"""

import sys

from surefind.checks import install_command


def main() -> None:
    """Run the command line, if what it needs is installed."""
    try:
        from surefind.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("rich", "tomli_w", "typer"):
            raise
        needed = install_command("jinja2", "matplotlib", "rich", "tomli-w", "typer")
        sys.exit(f"The command line needs {error.name}: {needed}.")
    run()
