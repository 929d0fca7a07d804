"""`surefind fit`: give a trained model, or vectors that are there, an uncertainty.

Post-hoc LAM: a Laplace posterior of the last linear layer. Of vectors from elsewhere that layer is the
identity, so that they stay what they are and gain a κ; or it is learnt first, if epochs are asked for.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from surefind.apps.cli.console import say
from surefind.apps.cli.options import (
    SOURCE_HELP,
    DataFolder,
    Out,
    Resume,
    complete_run,
    complete_source,
)
from surefind.apps.cli.run_folder import check_run, open_run
from surefind.apps.cli.sources import (
    check_fits,
    holds_vectors,
    read_source,
    read_vectors,
    readable,
)
from surefind.apps.cli.train import fit_and_save
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.data.dataset import Dataset
    from surefind.estimators.learner import MetricLearner
    from surefind.models.encoder import Encoder


def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN|VECTORS",
            help="A run of a trained model, or vectors: .npy, .npz, .parquet, or a set of features.",
            autocompletion=complete_run,
        ),
    ],
    out: Out,
    on: Annotated[
        str | None,
        typer.Option(
            help=f"What to fit on; a run's own training data by default. {SOURCE_HELP}",
            autocompletion=complete_source,
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels of vectors: .npy, .npz, or a table with a column `label`."),
    ] = None,
    distance: Annotated[
        Literal["arccos", "euclidean"], typer.Option(help="Distance of the curvature.")
    ] = "arccos",
    approximation: Annotated[
        Literal["fixed", "positive", "full"], typer.Option(help="Which pairs curve the loss.")
    ] = "fixed",
    prior_precision: Annotated[
        float | None, typer.Option(help="δ; chosen on training data if it is not given.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            help="Observations that the loss stands for; chosen on training data otherwise."
        ),
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Passes to learn a layer on vectors; 0 leaves them as they are.")
    ] = 0,
    embedding_dim: Annotated[
        int | None, typer.Option(help="Dimension of that layer; the vectors' own otherwise.")
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Squared distance up to which others repel.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    data: DataFolder = None,
    resume: Resume = False,
) -> None:
    """Give a trained model, or vectors you have, an uncertainty (post-hoc LAM).

    Example: `surefind fit runs/digits --out runs/digits-posthoc`

    Example: `surefind embed runs/digits digits:train --out train.npz`

    Example: `surefind fit train.npz --out runs/vectors`
    """
    from surefind.estimators.learner import MetricLearner
    from surefind.learning.methods import LaplacePosthoc
    from surefind.validation import check_int, check_positive

    check_int("epochs", epochs, least=0)
    for name, value in (("prior_precision", prior_precision), ("scale", scale), ("margin", margin)):
        if value is not None:
            check_positive(name, value)
    settings = {
        "model": model,
        "on": on or "",
        "labels": "" if labels is None else str(labels),
        "method": "laplace-posthoc",
        "distance": distance,
        "approximation": approximation,
        "scale": scale or 0.0,
        "prior_precision": prior_precision or 0.0,
        "epochs": epochs,
        "embedding_dim": embedding_dim or 0,
        "margin": margin or 0.0,
        "seed": seed,
        "data": "" if data is None else str(data),
    }
    check_run(out, settings, resume=resume)
    method = LaplacePosthoc(distance, approximation, scale, prior_precision)
    options: dict[str, Any] = {"method": method, "epochs": epochs, "seed": seed}
    if not Path(model).is_dir():
        if on is not None:
            raise InputError("vectors are fitted on themselves; leave --on out.")
        dataset, trained_on = _vectors(model, labels, data), model
        network = vector_encoder(dataset, embedding_dim, epochs=epochs, seed=seed)
        on_bad = "refuse"
        learner = MetricLearner(network, margin=margin or 0.7, **options)
    else:
        if labels is not None or epochs or embedding_dim is not None:
            raise InputError(
                "--labels, --epochs and --embedding-dim are for vectors; a run has its own training."
            )
        run = open_run(Path(model))
        trained = run.learner()
        trained_on = on or run.own_source("name it with --on")
        place = data or run.data  # kept, so that the new run finds its data too
        settings["data"] = "" if place is None else str(place)
        mode, on_bad = trained.input_spec_.mode, run.config.get("on_bad", "refuse")
        dataset = readable(read_source(trained_on, place, prefer="train", mode=mode), on_bad)
        check_fits(trained, dataset)
        learner = MetricLearner(
            point_estimate(trained),
            margin=margin or trained.margin,
            preprocessing=trained.preprocessing,
            batch_size=trained.batch_size,
            **options,
        )
    if dataset.labels is None and dataset.positions is None:
        raise InputError(
            f"{dataset.name} has no labels, and the curvature is one of pairs that belong together or "
            "not. Give --labels."
        )
    check_fits(learner, dataset)
    found = {"source": trained_on, "on_bad": on_bad}
    say(
        f"Fitting a posterior of {learner.encoder.embedding_dim} outputs to {len(dataset)} examples."
    )
    fit_and_save(learner, dataset, out, settings | found, resume=resume)


def point_estimate(learner: "MetricLearner") -> "Encoder":
    """Give the one network inside a fitted learner.

    Args:
        learner: Of a run.

    Returns:
        Its encoder, frozen.

    Raises:
        InputError: If its method has none, or several.
    """
    from surefind.learning.methods.deterministic import PointEmbedder
    from surefind.learning.methods.head_embedder import HeadEmbedder

    fitted = learner.fitted
    if not isinstance(fitted, PointEmbedder | HeadEmbedder):
        raise InputError(
            f"a posterior is fitted to one network; this run's method is {type(learner.method).__name__}. "
            "Give a run of --method deterministic."
        )
    return fitted.encoder


def vector_encoder(dataset: "Dataset", dim: int | None, *, epochs: int, seed: int) -> "Encoder":
    """Build the linear layer that vectors pass through.

    Args:
        dataset: The vectors.
        dim: Outputs; None for as many as the vectors have.
        epochs: How long it will be trained.
        seed: Decides its weights, if it is not the identity.

    Returns:
        The layer as an encoder.

    Raises:
        InputError: If the data are no vectors, or a layer of another size would stay random.
    """
    import torch

    from surefind.learning.seeds import seeded
    from surefind.models.encoder import Encoder, empty_head

    rows = dataset.read(slice(0, 1))
    if rows.ndim != 2:
        raise InputError(
            f"{dataset.name} holds images; `surefind fit` takes vectors, `surefind train` images."
        )
    d = rows.shape[1]
    z = dim or d
    if z != d and epochs == 0:
        raise InputError(
            f"a layer from {d} to {z} dimensions must be learnt: add --epochs 20, or leave "
            "--embedding-dim out to keep the vectors as they are."
        )
    head = empty_head(d, z, bias=False)
    with torch.no_grad():
        if z == d:
            head.weight.copy_(torch.eye(d))
        else:
            head.weight.normal_(0, d**-0.5, generator=seeded(seed, "encoder"))
    return Encoder(torch.nn.Identity(), head)


def _vectors(source: str, labels: Path | None, data: Path | None) -> "Dataset":
    path = Path(source)
    if path.is_file() and holds_vectors(path):
        return read_vectors(path, labels)
    if labels is not None:
        raise InputError("--labels goes with vectors in a .npy, .npz or .parquet file.")
    return read_source(source, data, prefer="train")
