"""Where the command line speaks.

What was done goes to the standard output, what went wrong to the standard error. Lines are not broken: a
path or a command can be copied from a log as it stands.
"""

from rich.console import Console
from rich.text import Text

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def say(sentence: str, *, style: str = "") -> None:
    """Print a sentence as it is: brackets in a path are no markup."""
    console.print(Text(sentence, style=style), soft_wrap=True)


def warn(sentence: str) -> None:
    """Say what the user should know although the command goes on."""
    errors.print(Text.assemble(("Warning:", "yellow"), f" {sentence}"), soft_wrap=True)


def complain(sentence: str) -> None:
    """Say what went wrong."""
    errors.print(Text.assemble(("Error:", "red"), f" {sentence}"), soft_wrap=True)


def to_stderr(sentence: str) -> None:
    """Say something beside what a program reads from the standard output."""
    errors.print(sentence, soft_wrap=True, markup=False)
