"""`surefind data`: which sets are known, and whether one is whole."""

from typing import Annotated

import typer

from surefind.apps.cli.console import console, say
from surefind.apps.cli.options import DataFolder, complete_set


def list_sets() -> None:
    """List the data sets that are known by name.

    Example: `surefind data list`
    """
    from surefind.data.catalogue import ENTRIES

    for name, entry in ENTRIES.items():
        console.print(f"[bold]{name:15s}[/bold] {entry.title}: {entry.get}")


def check_set(
    name: Annotated[
        str,
        typer.Argument(help="A set's name; see `surefind data list`.", autocompletion=complete_set),
    ],
    data: DataFolder = None,
) -> None:
    """Compare a data set with what its publisher announces: counts and checksums.

    Example: `surefind data check digits`
    """
    from surefind.data.catalogue import check

    report = check(name, data)
    say(f"{report.title} in {report.folder or 'an installed library'}", style="bold")
    for part, count in report.counts.items():
        classes = f", {report.n_classes[part]} classes" if part in report.n_classes else ""
        say(f"  {part}: {count} examples{classes}")
    for file, verdict in report.checksums.items():
        say(f"  {file}: checksum {verdict}")
    for problem in report.problems:
        say(problem, style="red")
    if not report.ok:
        raise typer.Exit(1)
    known = "counts and checksums" if report.checksums else "counts" if report.counts else "nothing"
    say(f"Everything is as published, as far as that is known here: {known} compared.")
