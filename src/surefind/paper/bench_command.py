"""`surefind bench`: compare methods on a data set, a line per result."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from surefind.cli import options
from surefind.cli.console import say, spelled, stage_progress
from surefind.cli.interrupts import this_command, whole_steps
from surefind.cli.preflight import check_place
from surefind.errors import CommandInterruptedError, InputError
from surefind.paper.vocabulary import BENCHMARKS, RECIPES, best_detector

if TYPE_CHECKING:
    from surefind.paper.protocols import Problem

WORK = Path("runs/bench")
"""Where checkpoints and artifacts are stored, if no other folder is named."""
SHOWN = ("recall@1", "auroc", "nearest_distance_auroc", "novelty_auroc", "ausc", "ece")


def bench(
    source: Annotated[
        str,
        Argument(
            help="A data set with a benchmark, or your own images: a folder per class, or a CSV/Parquet "
            "list.",
            autocompletion=options.complete_benched,
        ),
    ],
    ood: Annotated[
        str | None,
        options.source_option(help="With your own images: a folder of out-of-distribution images."),
    ] = None,
    methods: Annotated[
        str,
        Option(
            help="Methods, separated by commas, or all.", autocompletion=options.complete_methods
        ),
    ] = "all",
    seeds: Annotated[int, Option(help="How many seeds: 0, 1, …")] = 1,
    ablation: Annotated[
        bool, Option("--ablation", help="Also the paper's twelve ablation variants.")
    ] = False,
    backbone: Annotated[
        Path | None, Option(help="Folder of a pretrained network, where one is needed.")
    ] = None,
    epochs: Annotated[
        int | None, Option(help="With your own images: training epochs; 20 by default.")
    ] = None,
    recipe: Annotated[
        str | None,
        Option(
            help=f"Settings other than the set's own: {', '.join(RECIPES)} (LAM and the point estimate).",
            autocompletion=options.complete_recipe,
        ),
    ] = None,
    freeze_backbone: options.FreezeBackbone = False,
    trained_stages: options.TrainedStages = 0,
    cache: options.Cache = None,
    out: Annotated[Path, Option(help="Where results are written.")] = Path("results"),
    work: Annotated[Path, Option(help="Folder of checkpoints and artifacts.")] = WORK,
    data: options.DataFolder = None,
) -> Any:
    """Compare methods on a data set; killed at any moment, the same command goes on.

    Example: `surefind bench digits --methods deterministic,laplace-posthoc`

    Example: `surefind report results`
    """
    from surefind.checks import check_int
    from surefind.paper.frozen import frozen_problem
    from surefind.paper.results import read_result, result_file
    from surefind.paper.running import run_problem, select_methods

    check_int("seeds", seeds, least=1)
    if epochs is not None:
        check_int("epochs", epochs, least=0)
    check_place(out, 0)
    check_place(work, 0, field="work")
    options.check_frozen_only(freeze_backbone, trained_stages=trained_stages, cache=cache)
    if cache is not None:
        check_place(cache, 0, field="cache")
    chosen = select_methods(methods.split(","), with_ablation=ablation)
    problem = chosen_problem(source, ood, backbone, epochs, data, recipe)
    if freeze_backbone:
        problem = frozen_problem(problem, trained_stages=trained_stages, cache=cache, epochs=epochs)
    measured = {(m, s): result_file(out, problem.name, m, s) for s in range(seeds) for m in chosen}
    files = list(measured.values())
    there = sum(file.exists() for file in files)
    say(f"{len(files)} results of {problem.name}, {there} of them there already.")
    try:
        with stage_progress(lines=False) as shown, whole_steps(shown) as report:
            run_problem(
                problem,
                chosen,
                range(seeds),
                results=out,
                work=work,
                on_result=result_lines(len(files) - there),
                say=say,
                report=report,
            )
    except KeyboardInterrupt as stop:
        raise CommandInterruptedError(
            f"finished results are kept. Go on with: {this_command()}"
        ) from stop
    say(f"Results are in {out / problem.name}.")
    say(f"Next: {spelled('report', out, work=None if work == WORK else work)}")
    return lambda: {
        "folder": out / problem.name,
        "results": [
            {"method": m, "seed": s, "file": file, "values": read_result(file).values}
            for (m, s), file in measured.items()
            if file.exists()  # a method may not suit the data
        ],
    }


def chosen_problem(
    source: str,
    ood: str | None,
    backbone: Path | None,
    epochs: int | None,
    data: Path | None,
    recipe: str | None = None,
) -> "Problem":
    """Load what is benchmarked: a set with a benchmark of its own, or the user's images.

    Args:
        source: A set's name, a folder or a list of images.
        ood: Images of another kind, for the user's own.
        backbone: Folder of a pretrained network.
        epochs: Passes over the user's images.
        data: Folder that holds the data sets.
        recipe: One of `RECIPES`, for sets that have it; None for the set's own protocol.

    Returns:
        The problem.

    Raises:
        InputError: If there is no such set and no such folder, a set of its own benchmark is to be run
            otherwise, or the images do not do, such as too few of them.
    """
    from surefind.paper.custom import custom_problem
    from surefind.paper.protocols import load_problem
    from surefind.paper.recipes import recipe_protocol

    protocol = None if recipe is None else recipe_protocol(recipe, source)
    if source not in BENCHMARKS and Path(source).exists():
        passes = 20 if epochs is None else epochs
        try:
            return custom_problem(source, ood, backbone=backbone, epochs=passes)
        except InputError as error:
            why = f"{source} cannot be benchmarked: {error.message}"
            raise InputError(why, field=error.field, hint=error.hint) from error
    if source not in BENCHMARKS:
        raise InputError(
            f"{source!r} is neither a data set with a benchmark ({', '.join(BENCHMARKS)}) nor a folder or "
            "a list of images of your own.",
            field="source",
        )
    if ood is not None or epochs is not None:
        raise InputError(
            f"--ood and --epochs are for your own images; the benchmark of {source} has its own.",
            field="epochs" if ood is None else "ood",
        )
    return load_problem(source, data, backbone=backbone, protocol=protocol)


def result_lines(left: int) -> Callable[[str, int, dict[str, float] | None], None]:
    """Return a function that prints a line per result, and how long the rest may take.

    Args:
        left: Results that are missing.

    Returns:
        What a benchmark calls before and after each measurement.
    """
    begun = started = time.monotonic()
    total = left

    def on_result(method: str, seed: int, values: dict[str, float] | None) -> None:
        nonlocal started, left
        now = time.monotonic()
        if values is None:
            started = now
            return
        left -= 1
        numbers = ", ".join(f"{k} {values[k]:.3f}" for k in SHOWN if k in values)
        rest = duration_text((now - begun) / (total - left) * left)
        more = f"; {left} left, about {rest}" if left > 0 else ""
        say(f"{method}, seed {seed}: {numbers}; took {duration_text(now - started)}{more}.")
        if best := best_detector(values):
            say(f"{method}, seed {seed}: {best}")

    return on_result


def duration_text(seconds: float) -> str:
    """Format a duration for people."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
