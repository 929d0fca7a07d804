"""`surefind evaluate`: measure a run on unseen data; results are kept with the run."""

import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import check_place, say, show_table, spelled, working
from surefind.cli.plots import NO_FIGURES, can_draw, draw_curves, draw_uncertainty
from surefind.cli.run_folder import EVALUATIONS, METRICS, RunFolder, open_run
from surefind.cli.sources import read_for, split_part
from surefind.errors import InputError
from surefind.evaluation import MEANINGS, best_detectors

if TYPE_CHECKING:
    from surefind.evaluation.evaluate import Evaluation

SPACE = 10_000_000
"""Bytes for numbers and pictures."""


def evaluate(
    run: options.RunArgument,
    source: Annotated[
        str | None,
        options.source_argument(
            help="Labelled test data; the test part of the run's own set by default. "
            f"{options.SOURCE_HELP}"
        ),
    ] = None,
    ood: Annotated[
        str | None,
        options.source_option(
            help="Out-of-distribution data, which should be detected; named like the test data."
        ),
    ] = None,
    gallery: Annotated[
        str | None,
        options.source_option(
            help="Where the test data are looked up; among themselves by default."
        ),
    ] = None,
    samples: Annotated[
        int, Option(help="Samples for the calibration error; 0 leaves it out.")
    ] = 100,
    seed: Annotated[int, Option(help="Decides samples and intervals.")] = 0,
    on_bad: options.OnBad = "refuse",
    data: options.DataFolder = None,
) -> Any:
    """Measure a run on unseen data: retrieval, and how good its uncertainty is.

    Example: `surefind evaluate runs/digits --ood digits:ood`
    """
    from surefind.checks import check_int
    from surefind.evaluation.evaluate import check_parts
    from surefind.learning.seeds import seeded

    check_int("samples", samples, least=0)
    folder = open_run(run)
    check_place(run, SPACE, field="run")
    learner = folder.learner()
    source = source or own_test(folder)
    read = partial(read_for, learner, data=data or folder.data, on_bad=on_bad)
    test = read(source, prefer="test")
    unfamiliar = None if ood is None else read(ood, prefer="test")
    searched = None if gallery is None else read(gallery, prefer="gallery")
    check_parts(test, searched)
    say(f"Evaluating on {len(test)} examples of {test.name}.")
    with working("evaluating"):
        found = sf.evaluate(
            learner,
            test,
            unfamiliar,
            gallery=searched,
            generator=seeded(seed, "evaluation"),
            ece_samples=samples,
        )
    settings = {
        "test": source,
        "ood": ood,
        "gallery": gallery,
        "seed": seed,
        "samples": samples,
        "examples": {"test": len(test), "ood": 0 if unfamiliar is None else len(unfamiliar)},
    }
    keep_evaluation(folder, found, settings)
    show_table(evaluation_table(found))
    for sentence in best_detectors(found.values, found.intervals):
        say(sentence)
    if "ausc" not in found.values:
        say(
            "This model has no uncertainty (κ = ∞), so nothing that needs it is measured. "
            f"Give it an uncertainty: {fit_command(folder)}"
        )
    if found.left_out:
        say(f"{found.left_out} queries have no other example of their class and are not counted.")
    figures = f"figures to {run / 'plots'}" if can_draw() else NO_FIGURES
    kept = len(folder.earlier_evaluations)
    more = f" The {kept} before are in {run / EVALUATIONS}." if kept else ""
    say(f"Wrote numbers to {run / METRICS}; {figures}.{more}")
    measured = {"values": found.values, "intervals": found.intervals, "left_out": found.left_out}
    return {"run": run, "file": run / METRICS, **settings, **measured}


def own_test(run: RunFolder) -> str:
    """Return the test part of what a run was trained on; refuse a run that was trained on it."""
    source = run.own_source("name the test data")
    where, part = split_part(source)
    if part == "test":
        raise InputError(
            f"{run.path} was trained on {source}; name other test data.", field="source"
        )
    return f"{where}:test"


def fit_command(run: RunFolder) -> str:
    """Return the command that fits an uncertainty to a run."""
    named = None if "source" in run.config else "TRAINING-DATA"
    return spelled("fit", run.path, out=f"{run.path}-posthoc", on=named)


def keep_evaluation(run: RunFolder, found: "Evaluation", settings: dict[str, Any]) -> None:
    """Store metrics and figures in a run, with a line in its log."""
    measured = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "values": {k: v for k, v in found.values.items() if math.isfinite(v)},
        "intervals": found.intervals,
        "left_out": found.left_out,
        "curves": found.curves,
    }
    run.set_evaluation_aside()
    run.write_json(METRICS, settings | measured)
    if can_draw():
        draw_curves(found.curves, run.path / "plots")
        draw_uncertainty(found.uncertainty, run.path / "plots")
    shown = ", ".join(f"{k} {v:.4f}" for k, v in found.values.items() if k in MEANINGS)
    run.log(f"evaluated on {settings['test']}, OOD: {settings['ood']}: {shown}")
    run.explain()


def evaluation_table(found: "Evaluation") -> Table:
    """Return the metrics of an evaluation as a table."""
    table = Table("metric", "value", "95 % interval", "meaning")
    for name, meaning in MEANINGS.items():
        if name in found.values:
            between = [f"{v:.3f}" for v in found.intervals.get(name, ())]
            table.add_row(name, f"{found.values[name]:.3f}", " … ".join(between), meaning)
    return table
