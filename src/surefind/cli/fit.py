"""`surefind fit`: give a trained model, or vectors that are there, an uncertainty.

Post-hoc LAM: a Laplace posterior of the last linear layer. Vectors from elsewhere are prepared, and their
layer starts, as in `LaplaceHead` (`surefind.models.vectors`): the identity, so that they stay what they are
and gain a κ, a whitening within classes (`surefind.whitening`), or a principal projection; it is
learnt first if epochs are asked for.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import say
from surefind.cli.run_folder import RunFolder, as_settings, check_run, open_run
from surefind.cli.sources import (
    check_fits,
    holds_vectors,
    labelled,
    read_for,
    read_source,
    read_vectors,
)
from surefind.cli.train import fit_and_save, without_held_out
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.whitening import MetricName


def fit(
    model: Annotated[
        str,
        options.run_argument(
            metavar="RUN|VECTORS",
            help="A run of a trained model, or vectors: .npy, .npz, .parquet, or a set of features.",
        ),
    ],
    out: options.Out,
    on: Annotated[
        str | None,
        options.source_option(
            help=f"What to fit on; a run's own training data by default. {options.SOURCE_HELP}"
        ),
    ] = None,
    labels: options.Labels = None,
    distance: Annotated[
        Literal["arccos", "euclidean"], Option(help="Distance of the curvature.")
    ] = "arccos",
    approximation: Annotated[
        Literal["fixed", "positive", "full"], Option(help="Which pairs curve the loss.")
    ] = "fixed",
    structure: Annotated[
        Literal["diagonal", "kronecker", "dense"],
        Option(help="Which weights the posterior lets vary together."),
    ] = "diagonal",
    prior_precision: Annotated[
        str | None,
        Option(
            help="δ: a number, or `evidence` for the largest evidence; tuned on training data otherwise."
        ),
    ] = None,
    scale: Annotated[
        float | None,
        Option(help="Observations that the loss stands for; tuned on training data otherwise."),
    ] = None,
    metric: Annotated[
        Literal["identity", "whitened", "auto"],
        Option(
            help="Vectors as they are, or whitened within classes; `auto`: if classes left out gain by it."
        ),
    ] = "identity",
    epochs: Annotated[
        int, Option(help="Passes to learn a layer on vectors; 0 leaves them as they are.")
    ] = 0,
    embedding_dim: Annotated[
        int | None,
        Option(help="Outputs of that layer, at first a principal projection; all by default."),
    ] = None,
    margin: Annotated[
        float | None, Option(help="Squared distance up to which others repel.")
    ] = None,
    seed: options.Seed = 0,
    data: options.DataFolder = None,
    resume: options.Resume = False,
) -> Any:
    """Give a trained model, or vectors you have, an uncertainty (post-hoc LAM).

    Example: `surefind fit runs/digits --out runs/digits-posthoc`

    Example: `surefind embed runs/digits digits:train --out train.npz`

    Example: `surefind fit train.npz --out runs/vectors`
    """
    given = locals().copy()
    from surefind.checks import check_int, check_positive
    from surefind.learning.methods import LaplacePosthoc
    from surefind.pairs.losses import MARGIN
    from surefind.posterior.fit import check_posterior_options

    check_int("epochs", epochs, least=0)
    prior = _prior(prior_precision)
    check_posterior_options(structure, scale, prior)
    if margin is not None:
        check_positive("margin", margin)
    settings = as_settings(given | {"method": "laplace-posthoc", "prior_precision": prior})
    check_run(out, settings, resume=resume)
    method = LaplacePosthoc(distance, approximation, scale, prior, structure)
    how: dict[str, Any] = {"method": method, "epochs": epochs, "seed": seed}
    known: sf.Dataset | None = None
    if not Path(model).is_dir():
        if on is not None:
            raise InputError("vectors are fitted on themselves; leave --on out.", field="on")
        dataset, trained_on = _vectors(model, labels, data), model
        dataset, network = _prepared(dataset, embedding_dim, metric, seed)
        on_bad = "refuse"
        learner = sf.MetricLearner(network, margin=margin or MARGIN, **how)
    else:
        if labels is not None or epochs or embedding_dim is not None or metric != "identity":
            raise InputError(
                "--labels, --metric, --epochs and --embedding-dim are for vectors; a run has its own "
                "training."
            )
        run = open_run(Path(model))
        trained = run.learner()
        trained_on = on or run.own_source("name it with --on")
        place = data or run.data  # kept, so that the new run finds its data too
        settings |= as_settings({"data": place})
        on_bad = run.config.get("on_bad", "refuse")
        dataset = read_for(trained, trained_on, place, on_bad, prefer="train")
        if on is None and "held_out" in run.config:
            # What its training left out was not fitted to, and is left out again.
            share = run.config["held_out"]
            dataset, known = without_held_out(
                dataset, None if share == "" else share, run.config["seed"]
            )
        learner = sf.MetricLearner(
            point_estimate(trained),
            margin=margin or trained.margin,
            preprocessing=trained.preprocessing,
            batch_size=trained.batch_size,
            freeze_backbone=_same_features(trained, run, on),
            **how,
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
    return fit_and_save(learner, dataset, out, settings | found, held_out=known, resume=resume)


def point_estimate(learner: "sf.MetricLearner") -> "sf.Encoder":
    """Return the one network inside a fitted learner.

    Args:
        learner: Of a run.

    Returns:
        Its encoder, frozen.

    Raises:
        InputError: If its method has none, or several.
    """
    from surefind.learning.frozen import FrozenEmbedder
    from surefind.learning.methods.deterministic import PointEmbedder
    from surefind.learning.methods.laplace_posthoc import HeadEmbedder

    whole = learner.fitted
    fitted = whole.upper if isinstance(whole, FrozenEmbedder) else whole
    if not isinstance(fitted, PointEmbedder | HeadEmbedder):
        raise InputError(
            f"a posterior is fitted to one network; this run's method is {type(learner.method).__name__}. "
            "Give a run of --method deterministic."
        )
    return whole.whole_encoder() if isinstance(whole, FrozenEmbedder) else fitted.encoder


def _same_features(
    trained: "sf.MetricLearner", run: RunFolder, on: str | None
) -> "sf.Freezing | bool":
    """Return how a run's backbone is frozen, and where its features are, if they are still there."""
    from surefind.estimators.learner import FEATURES

    if trained.freezing is None:
        return False
    own = run.path / "stages" / FEATURES
    cache = run.config.get("cache") or (own if on is None and own.is_dir() else None)
    return sf.Freezing(trained_stages=trained.freezing.trained_stages, cache=cache)


def _prepared(
    dataset: "sf.Dataset", dim: int | None, metric: "MetricName", seed: int
) -> tuple["sf.Dataset", "sf.Encoder"]:
    """Build the encoder of vectors, and leave out those without a direction.

    Args:
        dataset: The vectors.
        dim: Outputs; None for as many as the vectors have.
        metric: What the encoder's layer is before a projection or training.
        seed: Of the run.

    Returns:
        The vectors that have a direction, and the encoder.

    Raises:
        InputError: If the data are no vectors.
    """
    import numpy as np

    from surefind.learning.seeds import seeded
    from surefind.models.vectors import Vectors, vector_encoder
    from surefind.pairs.relations import as_relation
    from surefind.whitening import choose_metric

    if dataset.read(slice(0, 1)).ndim != 2:
        raise InputError(
            f"{dataset.name} holds images; `surefind fit` takes vectors, `surefind train` images."
        )
    vectors = Vectors(np.asarray(dataset.inputs))
    zero = vectors.zero_rows()
    if len(zero):
        say(f"{len(zero)} vectors are zero, the first at {zero[0]}, and are left out.")
        dataset = dataset[np.delete(np.arange(len(dataset)), zero)]
        vectors = Vectors(np.asarray(dataset.inputs))
    weights = None
    if metric != "identity" and (dataset.labels is not None or dataset.positions is not None):
        relation = as_relation(dataset.relation())
        generator = seeded(seed, "classes left out")
        chosen = choose_metric(vectors, relation, metric, generator=generator)
        weights = chosen.weights
        say(f"The metric is {chosen.name}: {chosen.reason}")
    return dataset, vector_encoder(vectors, dim, weights).float()


def _prior(text: str | None) -> Any:
    if text is None or text == "evidence":
        return text
    try:
        return float(text)
    except ValueError:
        raise InputError(
            f"prior_precision must be a finite number above 0, or `evidence`; got {text!r}.",
            field="prior_precision",
        ) from None


def _vectors(source: str, labels: Path | None, data: Path | None) -> "sf.Dataset":
    path = Path(source)
    if path.is_file() and holds_vectors(path):
        return labelled(read_vectors(path, labels))
    if labels is not None:
        raise InputError(
            "--labels goes with vectors in a .npy, .npz or .parquet file.", field="labels"
        )
    return read_source(source, data, prefer="train")
