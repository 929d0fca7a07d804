"""What MkDocs calls while it builds the site: print each command's help, refuse outside hosts."""

import os
import re
import subprocess
import sys

from mkdocs.exceptions import PluginError

HELP = re.compile(r"^<!-- help:(.*?) -->$", re.MULTILINE)
OUTSIDE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^>]*>")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Replace each ``<!-- help: COMMAND -->`` by what ``surefind COMMAND --help`` prints."""
    return HELP.sub(lambda mark: f"```text\n{help_of(mark[1].split())}```", markdown)


def on_post_page(output: str, **_: object) -> str:
    """Refuse a page that would fetch something from another host: the site works offline."""
    if found := OUTSIDE.search(output):
        raise PluginError(f"The page refers to an outside host: {found[0]}")
    return output


def help_of(command: list[str]) -> str:
    """Return the plain text of a command's help."""
    run = subprocess.run(
        [sys.executable, "-m", "surefind", *command, "--help"],
        env=os.environ | {"TYPER_USE_RICH": "0", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.replace("python -m surefind", "surefind")
