"""`surefind embed` and `surefind evaluate`: what a run makes of data, and how good it is at it.

What **embed** writes, one row per input in the order of the inputs:

    .npz        ids, mean (n, z), kappa (n), uncertainty (n), and novelty (n) and labels if they are known
    .parquet    id, mean (a list), kappa, uncertainty, novelty and label
    .onnx       the model itself, as one graph from inputs to direction, κ and novelty

The first two can be given to `surefind fit`, `index`, `calibrate` and `search`. A model without uncertainty
gives κ = ∞. The graph is compared with PyTorch before it is written (`surefind.estimators.onnx_export`): on
the data that are named, or that the run was trained on or, where those are not to be found, on synthetic
inputs.

**evaluate** keeps its numbers and figures with the run; the next evaluation replaces them.
"""

import math
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import surefind as sf
from surefind.checks import require
from surefind.cli import options
from surefind.cli.console import (
    check_file,
    check_place,
    progress,
    say,
    say_next,
    show_table,
    spelled,
)
from surefind.cli.galleries import Items
from surefind.cli.runs import (
    METRICS,
    RunFolder,
    open_run,
    read_for,
)
from surefind.errors import InputError
from surefind.evaluation import MEANINGS, PARTS, best_detectors
from surefind.files import write_atomically

if TYPE_CHECKING:
    from surefind.evaluation.evaluate import Evaluation

SAMPLES = 100
"""Samples for the calibration error."""
COMPARED = 256
"""Inputs that ONNX and PyTorch are compared on, at most."""


def embed(
    run: options.RunArgument,
    source: options.SomeSource = None,
    out: Annotated[Path, Option(help="A .npz, .parquet or .onnx file.")] = Path("embeddings.npz"),
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Embed images or vectors with a run, each with its uncertainty; or export the model to ONNX.

    Example: `surefind embed runs/digits digits:test --out test.npz`

    Example: `surefind embed runs/digits --out digits.onnx`
    """
    import numpy as np

    check_file(out, (".npz", ".parquet", ".onnx"))
    folder = open_run(run)
    learner = folder.learner()
    if out.suffix.lower() == ".onnx":
        return export(folder, learner, source, out, on_bad)
    if source is None:
        raise InputError("name what to embed: a folder, a list or vectors.", field="source")
    dataset = read_for(learner, source, on_bad)
    names = dataset.names or [str(row) for row in range(len(dataset))]
    found = Items(dataset, [*names], None, learner=learner).embeddings()
    write_embeddings(out, found, dataset)
    count, dim = found.mean.shape
    sure = float(np.median(found.kappa))
    say(f"Wrote {count} embeddings of {dim} dimensions, median κ {sure:.4g}, to {out}.")
    say_next(spelled("index", out))
    return {"file": out, "count": count, "dim": dim, "median_kappa": sure}


def write_embeddings(file: Path, embeddings: "sf.Embeddings", dataset: "sf.Dataset") -> None:
    """Write embeddings with the names and labels of their examples to a .npz or .parquet file."""
    import numpy as np

    arrays = embeddings.numpy()
    columns: dict[str, Any] = {
        "ids": np.array(dataset.names or [str(row) for row in range(len(dataset))]),
        "mean": arrays.mean,
        "kappa": arrays.kappa,
        "uncertainty": arrays.uncertainty,
        "novelty": arrays.novelty,
        "labels": None if dataset.labels is None else dataset.labels.numpy(),
    }
    if dataset.labels is not None and dataset.classes is not None:
        columns["labels"] = np.array(dataset.classes)[columns["labels"]]
    columns = {name: values for name, values in columns.items() if values is not None}

    def write(beside: Path) -> None:
        if file.suffix.lower() == ".npz":
            with beside.open("wb") as stream:  # or else NumPy adds a suffix to the file's name
                np.savez(stream, **columns)
            return
        arrow, singular = (
            require("pyarrow", "write Parquet files"),
            {"ids": "id", "labels": "label"},
        )
        table = arrow.table({
            singular.get(name, name): list(values) if values.ndim == 2 else values
            for name, values in columns.items()
        })
        require("pyarrow.parquet", "write Parquet files").write_table(table, beside)

    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, write)


def export(
    run: RunFolder, learner: "sf.MetricLearner", source: str | None, out: Path, on_bad: str
) -> dict[str, Any]:
    """Write a run's model as one ONNX graph, compared with PyTorch."""
    inputs = None
    try:
        named = source or run.own_source("")
        inputs = read_for(learner, named, on_bad, prefer="train")[:COMPARED]
    except InputError:
        if source is not None:
            raise
    out.parent.mkdir(parents=True, exist_ok=True)
    with progress("exporting"):
        made = sf.export_onnx(learner, out, inputs=inputs)
    what = "synthetic inputs" if inputs is None else f"inputs of {inputs.name}"
    say(
        f"PyTorch and onnxruntime agree on {made.checked} {what}: directions to "
        f"{made.direction_error:.1g}, κ to a fraction of {made.kappa_error:.1g}."
    )
    say(f"It takes {made.expects}")
    say(f"Wrote {', '.join(made.outputs)} as one graph to {out}.")
    return asdict(made)


def evaluate(
    run: options.RunArgument,
    source: options.SomeSource = None,
    ood: Annotated[str | None, Option(help="Out-of-distribution data to detect.")] = None,
    gallery: Annotated[str | None, Option(help="Data to search in; else the test data.")] = None,
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Measure a run on unseen data: retrieval, and how good its uncertainty is.

    The source is labelled test data, by default the test part of what the run was trained on.

    Example: `surefind evaluate runs/digits --ood digits:ood`
    """
    from surefind.evaluation.evaluate import check_parts
    from surefind.learning.seeds import seeded

    folder = open_run(run)
    check_place(run, field="run")
    learner = folder.learner()
    source = source or own_test(folder)
    read = partial(read_for, learner, on_bad=on_bad)
    test = read(source, prefer="test")
    unfamiliar = None if ood is None else read(ood, prefer="test")
    searched = None if gallery is None else read(gallery, prefer="gallery")
    check_parts(test, searched)
    say(f"Evaluating on {len(test)} examples of {test.name}.")
    with progress("evaluating"):
        found = sf.evaluate(
            learner,
            test,
            unfamiliar,
            gallery=searched,
            generator=seeded(0, "evaluation"),
            ece_samples=SAMPLES,
        )
    measured = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "test": source,
        "ood": ood,
        "gallery": gallery,
        "examples": {"test": len(test), "ood": 0 if unfamiliar is None else len(unfamiliar)},
        "values": {k: v for k, v in found.values.items() if math.isfinite(v)},
        "intervals": found.intervals,
        "left_out": found.left_out,
    }
    keep_evaluation(folder, found, measured)
    between = {name: " … ".join(f"{v:.3f}" for v in ends) for name, ends in found.intervals.items()}
    rows = [
        (name, f"{found.values[name]:.3f}", between.get(name), meaning)
        for name, meaning in MEANINGS.items()
        if name in found.values
    ]
    show_table(("metric", "value", "95 % interval", "meaning"), rows)
    for sentence in best_detectors(found.values, found.intervals):
        say(sentence)
    if found.left_out:
        say(f"{found.left_out} queries have no other example of their class and are not counted.")
    if "ausc" not in found.values:
        say("This model has no uncertainty (κ = ∞), so nothing that needs it is measured.")
        named = None if "source" in folder.config else "TRAINING-DATA"
        fitting = spelled("fit", run, out=f"{run}-posthoc", on=named)
        say_next(fitting, why="Next" if named is None else "To give it an uncertainty")
    else:
        say_next(spelled("index", "SOURCE", run=run), why="With items of your own")
    say(f"Wrote numbers to {run / METRICS}; figures to {run / 'plots'}.")
    return {"run": run, "file": run / METRICS, **measured}


def own_test(run: RunFolder) -> str:
    """Return the test part of what a run was trained on; refuse a run that was trained on it."""
    from surefind.data.sources import split_part

    source = run.own_source("name the test data")
    where, part = split_part(source)
    if part == "test":
        raise InputError(
            f"{run.path} was trained on {source}; name other test data.", field="source"
        )
    return f"{where}:test"


def keep_evaluation(run: RunFolder, found: "Evaluation", measured: dict[str, Any]) -> None:
    """Store metrics and figures in a run, with a line in its log."""
    import numpy as np

    from surefind.evaluation.evaluate import kappa_histogram

    run.forget_evaluation()
    run.write_json(METRICS, measured | {"curves": found.curves})
    for name, points in found.curves.items():
        run.draw(f"{name}.svg", "curve_chart", name, points["x"], points["y"])
    parts = {PARTS[p]: v[(v > 0) & np.isfinite(v)] for p, v in found.uncertainty.items()}
    if finite := {part: values for part, values in parts.items() if len(values)}:
        run.draw("uncertainty.svg", "kappa_chart", *kappa_histogram(finite), "Distribution of κ")
    shown = ", ".join(f"{k} {v:.4f}" for k, v in found.values.items() if k in MEANINGS)
    run.log(f"evaluated on {measured['test']}, OOD: {measured['ood']}: {shown}")
