"""`surefind bench`: compare methods on a data set, a line a cell."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from surefind.apps.cli.console import say, spelled, stage_progress
from surefind.apps.cli.interrupts import this_command, whole_steps
from surefind.apps.cli.options import (
    DataFolder,
    complete_benched,
    complete_methods,
    complete_source,
)
from surefind.apps.cli.preflight import check_place, duration_text
from surefind.errors import CommandInterruptedError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from surefind.evaluation.bench import Problem

WORK = Path("runs/bench")
"""Where training and pictures are kept, if no other place is named."""
SHOWN = ("recall@1", "auroc", "ausc", "ece")


def bench(
    source: Annotated[
        str,
        typer.Argument(
            help="A set that has a benchmark, or your own images: a folder per class, or a CSV/Parquet "
            "list.",
            autocompletion=complete_benched,
        ),
    ],
    ood: Annotated[
        str | None,
        typer.Option(
            help="With your own images: a folder of images of another kind.",
            autocompletion=complete_source,
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(help="Methods, separated by commas, or all.", autocompletion=complete_methods),
    ] = "all",
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, …")] = 1,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Also the paper's twelve rows.")
    ] = False,
    backbone: Annotated[
        Path | None, typer.Option(help="Folder of a pretrained network, where one is needed.")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="With your own images: passes over them; 20 by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where results are written.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Where training is kept.")] = WORK,
    data: DataFolder = None,
) -> None:
    """Compare methods on a data set; killed at any moment, the same command goes on.

    Example: `surefind bench digits --methods deterministic,laplace-posthoc`

    Example: `surefind report results`
    """
    from surefind.evaluation.bench import rows_of, run_problem
    from surefind.evaluation.bench.cells import cell_file
    from surefind.validation import check_int

    check_int("seeds", seeds, least=1)
    if epochs is not None:
        check_int("epochs", epochs, least=0)
    check_place(out, 0)
    check_place(work, 0, field="work")
    rows = rows_of(methods.split(","), with_ablation=ablation)
    problem = chosen_problem(source, ood, backbone, epochs, data)
    cells = [cell_file(out, problem.name, row, s) for s in range(seeds) for row in rows]
    there = sum(cell.exists() for cell in cells)
    say(f"{len(cells)} cells of {problem.name}, {there} of them there already.")
    try:
        with stage_progress(lines=False) as shown, whole_steps(shown) as report:
            run_problem(
                problem,
                rows,
                range(seeds),
                results=out,
                work=work,
                on_cell=cell_lines(len(cells) - there),
                say=say,
                report=report,
            )
    except KeyboardInterrupt as stop:
        raise CommandInterruptedError(
            f"finished cells are kept. Go on with: {this_command()}"
        ) from stop
    say(f"Results are in {out / problem.name}.")
    say(f"Next: {spelled('report', out, work=None if work == WORK else work)}")


def chosen_problem(
    source: str, ood: str | None, backbone: Path | None, epochs: int | None, data: Path | None
) -> "Problem":
    """Load what is benchmarked: a set with a benchmark of its own, or the user's images.

    Args:
        source: A set's name, a folder or a list of images.
        ood: Images of another kind, for the user's own.
        backbone: Folder of a pretrained network.
        epochs: Passes over the user's images.
        data: Folder that holds the data sets.

    Returns:
        The problem.

    Raises:
        InputError: If there is no such set and no such folder, a set of its own benchmark is to be run
            otherwise, or the images do not do, such as too few of them.
    """
    from surefind.evaluation.bench import PROTOCOLS, load_problem, own_problem

    if source not in PROTOCOLS and Path(source).exists():
        passes = 20 if epochs is None else epochs
        try:
            return own_problem(source, ood, backbone=backbone, epochs=passes)
        except InputError as error:
            why = f"{source} cannot be benchmarked: {error.message}"
            raise InputError(why, field=error.field, hint=error.hint) from error
    if source not in PROTOCOLS:
        raise InputError(
            f"{source!r} is neither a set with a benchmark ({', '.join(PROTOCOLS)}) nor a folder or a list "
            "of images of your own.",
            field="source",
        )
    if ood is not None or epochs is not None:
        raise InputError(
            f"--ood and --epochs are for your own images; the benchmark of {source} has its own.",
            field="epochs" if ood is None else "ood",
        )
    return load_problem(source, data, backbone=backbone)


def cell_lines(left: int) -> "Callable[[str, int, dict[str, float] | None], None]":
    """Give a function that prints a line when a cell is done, and how long the rest may take.

    Args:
        left: Cells that are to be made.

    Returns:
        What a benchmark calls before and after each cell.
    """
    begun = started = time.monotonic()
    total = left

    def on_cell(row: str, seed: int, values: dict[str, float] | None) -> None:
        nonlocal started, left
        now = time.monotonic()
        if values is None:
            started = now
            return
        left -= 1
        numbers = ", ".join(f"{k} {values[k]:.3f}" for k in SHOWN if k in values)
        rest = duration_text((now - begun) / (total - left) * left)
        more = f"; {left} left, about {rest}" if left > 0 else ""
        say(f"{row}, seed {seed}: {numbers}; took {duration_text(now - started)}{more}.")

    return on_cell
