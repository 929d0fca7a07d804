"""`surefind embed`: embed inputs with a run, each with its concentration κ.

What is written, a row for each input in the order of the inputs:

    .npz        ids, mean (n, z), kappa (n), uncertainty (n), and novelty (n) and labels if they are known
    .parquet    id, mean (a list), kappa, uncertainty, novelty and label

Both can be given to `surefind fit`. A model without uncertainty gives κ = ∞.
"""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import surefind as sf
from surefind.cli.console import check_file, check_place, count_progress, say
from surefind.cli.options import DataFolder, OnBad, RunArgument, SourceArgument
from surefind.cli.run_folder import open_run
from surefind.cli.sources import read_for
from surefind.files import write_atomically

BLOCK = 1024
"""Inputs between two steps of the bar."""
SUFFIXES = (".npz", ".parquet")


def embed(
    run: RunArgument,
    source: SourceArgument,
    out: Annotated[Path, Option(help="File to write: .npz or .parquet.")],
    batch_size: Annotated[int, Option(help="Inputs at a time.")] = 128,
    on_bad: OnBad = "refuse",
    data: DataFolder = None,
) -> Any:
    """Embed images or vectors with a run, each with its uncertainty.

    Example: `surefind embed runs/digits digits:test --out test.npz`
    """
    from surefind.checks import check_int

    check_int("batch_size", batch_size, least=1)
    check_file(out, SUFFIXES)
    learner = open_run(run).learner()
    dataset = read_for(learner, source, data, on_bad)
    check_place(out.parent, 2 * len(dataset) * (4 * learner.encoder.embedding_dim + 64))
    found = embed_in_blocks(learner, dataset, batch_size)
    write_embeddings(out, found, dataset)
    sure = float(found.kappa.median())
    say(
        f"Wrote {len(found)} embeddings of {found.mean.shape[1]} dimensions, median κ {sure:.4g}, to {out}."
    )
    return {"file": out, "count": len(found), "dim": found.mean.shape[1], "median_kappa": sure}


def embed_in_blocks(
    learner: "sf.MetricLearner", dataset: "sf.Dataset", batch_size: int
) -> "sf.Embeddings":
    """Embed a data set with a progress bar."""
    n = len(dataset)
    parts = []
    with count_progress("embedding", n) as done:
        for at in range(0, n, BLOCK):
            parts.append(learner.embed(dataset[at : at + BLOCK], batch_size=batch_size))
            done(min(at + BLOCK, n))
    return sf.Embeddings.concatenate(parts)


def write_embeddings(file: Path, embeddings: "sf.Embeddings", dataset: "sf.Dataset") -> None:
    """Write embeddings with the names and labels of their examples to a .npz or .parquet file."""
    import numpy as np

    arrays = embeddings.numpy()
    names = dataset.names or [str(i) for i in range(len(dataset))]
    columns: dict[str, Any] = {
        "ids": np.array(names),
        "mean": arrays.mean,
        "kappa": arrays.kappa,
        "uncertainty": arrays.uncertainty,
    }
    if arrays.novelty is not None:
        columns["novelty"] = arrays.novelty
    if dataset.labels is not None:
        labels = dataset.labels.numpy()
        columns["labels"] = labels if dataset.classes is None else np.array(dataset.classes)[labels]
    file.parent.mkdir(parents=True, exist_ok=True)
    write = _write_npz if file.suffix.lower() == ".npz" else _write_parquet
    write_atomically(file, lambda beside: write(beside, columns))


def _write_npz(file: Path, columns: dict[str, Any]) -> None:
    import numpy as np

    with file.open("wb") as stream:  # or else NumPy adds a suffix to the file's name
        np.savez(stream, **columns)


def _write_parquet(file: Path, columns: dict[str, Any]) -> None:
    from surefind.checks import require

    arrow = require("pyarrow", "write Parquet files")
    singular = {"ids": "id", "labels": "label"}
    table = arrow.table({
        singular.get(name, name): list(values) if values.ndim == 2 else values
        for name, values in columns.items()
    })
    require("pyarrow.parquet", "write Parquet files").write_table(table, file)
