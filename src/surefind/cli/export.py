"""`surefind export`: write a run's model for other programs, as one ONNX graph.

The graph gives direction, κ and novelty, and is compared with PyTorch before it is written
(`surefind.estimators.onnx_export`): on data that are named, or that the run was trained on, or, where those
are not to be found, on inputs that are made up.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Option

import surefind as sf
from surefind.cli.console import check_file, say
from surefind.cli.options import DataFolder, OnBad, RunArgument, complete_source
from surefind.cli.run_folder import RunFolder, open_run
from surefind.cli.sources import read_for
from surefind.errors import InputError

COMPARED = 256
"""Inputs that are compared, at most."""


def export(
    run: RunArgument,
    onnx: Annotated[Path, Option(help="File to write: .onnx.")],
    check: Annotated[
        str | None,
        Option(
            help="Data to compare ONNX and PyTorch with; those of the training by default.",
            autocompletion=complete_source,
        ),
    ] = None,
    tolerance: Annotated[
        float, Option(help="Largest difference of directions, and relative one of κ.")
    ] = 1e-5,
    on_bad: OnBad = "refuse",
    data: DataFolder = None,
) -> Any:
    """Write a run's model as one ONNX graph: inputs to direction, κ and novelty.

    Example: `surefind export runs/digits --onnx digits.onnx`
    """
    check_file(onnx, (".onnx",))
    folder = open_run(run)
    learner = folder.learner()
    inputs = compared_inputs(folder, learner, check, data, on_bad)
    onnx.parent.mkdir(parents=True, exist_ok=True)
    made = sf.export_onnx(learner, onnx, inputs=inputs, tolerance=tolerance)
    what = "inputs that were made up" if inputs is None else f"inputs of {inputs.name}"
    say(
        f"PyTorch and onnxruntime agree on {made.checked} {what}: directions to "
        f"{made.direction_error:.1g}, κ to a share of {made.kappa_error:.1g}."
    )
    say(f"It takes {made.expects}")
    say(f"Wrote {', '.join(made.outputs)} as one graph to {onnx}.")
    return asdict(made)


def compared_inputs(
    run: RunFolder,
    learner: "sf.MetricLearner",
    source: str | None,
    data: Path | None,
    on_bad: str,
) -> "sf.Dataset | None":
    """Read what both are compared on; None if nothing is named and the training data are not there."""
    if source is not None:
        return read_for(learner, source, data, on_bad)[:COMPARED]
    try:
        own = run.own_source("name data with --check")
        return read_for(learner, own, data or run.data, on_bad, prefer="train")[:COMPARED]
    except InputError:
        return None
