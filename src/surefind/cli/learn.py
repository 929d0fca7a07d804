"""`surefind train` and `surefind fit`: an encoder with uncertainty, or an uncertainty for what is there.

**train** takes a network by name, or a backbone from a folder with a new head; under ``torchrun`` it is
distributed.

**fit** is post-hoc LAM: a head in closed form on all layers of a trained network, with a Laplace posterior
(`surefind.learning.layered`). Vectors from elsewhere get what `LaplaceHead` gives them.

A network by name is trained until labels that are held out are told apart no better; a backbone from a
folder stays as it is, unless ``--train-backbone`` is given.

Rare settings are ``--set NAME=VALUE``: those of `MetricLearner`, of the method and, of a backbone that
stays as it is, of `Freezing`, by their names in Python.
"""

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    console,
    say,
    say_next,
    spelled,
    stage_progress,
    this_command,
    whole_steps,
)
from surefind.cli.runs import (
    LOSS,
    RunFolder,
    as_settings,
    check_fits,
    check_run,
    create_run,
    open_run,
    read_for,
    readable,
)
from surefind.errors import CommandInterruptedError, InputError

SIDES = {"small": 64, "fashion-mnist": 28, "cifar10": 32}
"""Networks by name, and to which size they have images in files resized; the small one has no smaller ones
enlarged."""
LEARNER = {"margin", "decay", "examples_per_class", "workers"}
FREEZING = {"trained_stages", "views", "cache", "head"}
VECTORS = {"epochs", "embedding_dim"}
"""What ``--set`` takes beside the method's own: of the learner, of a frozen backbone, of vectors."""
MAX_WRONG, MOST_ITEMS = 0.05, 10_000
"""What is tried on held-out examples: a guarantee, and a gallery of so many at most."""
HELD_OUT, DIVIDED, OF_A_CLASS = 300, 100, 10
"""Known examples from which p-values reach down to 1 %. With fewer than ten times as many, a fifth is held
out, but only of so many examples, and of so many a class."""


def train(
    source: options.SourceArgument,
    out: options.Out,
    method: Annotated[
        Literal[
            "deterministic",
            "laplace-posthoc",
            "laplace-online",
            "mc-dropout",
            "deep-ensemble",
            "pfe",
            "hib",
        ],
        Option(help="Where the uncertainty comes from."),
    ] = "laplace-online",
    encoder: Annotated[
        str,
        Option(help="Network: small, fashion-mnist, cifar10, or a pretrained backbone's folder."),
    ] = "small",
    embedding_dim: Annotated[int | None, Option(min=1, help="Embedding dimension.")] = None,
    epochs: Annotated[int, Option(min=0, help="Passes over the data, at most.")] = 20,
    batch_size: Annotated[int, Option(min=2, help="Batch size.")] = 32,
    learning_rate: Annotated[float, Option(help="Learning rate of RMSprop.")] = 1e-3,
    held_out: Annotated[
        float | None,
        Option(
            min=0,
            max=0.9,
            help="Fraction of the examples not trained on, for novelty and to know when to stop; by "
            "default 0.1, or 0.2 of fewer than 3,000.",
        ),
    ] = None,
    train_backbone: Annotated[
        bool,
        Option(
            "--train-backbone",
            help="Train all of a pretrained backbone, which is kept as it is otherwise.",
        ),
    ] = False,
    seed: options.Seed = 0,
    on_bad: options.OnBad = "refuse",
    assigned: options.Assigned = None,
    resume: options.Resume = False,
) -> Any:
    """Train an encoder with uncertainty on labelled images.

    Interrupted runs resume: type the same command with `--resume`.

    Example: `surefind train digits --out runs/digits --epochs 2`
    """
    given = locals().copy()
    import torch

    from surefind.data.images import ImageFiles
    from surefind.data.sources import read_source
    from surefind.learning.methods import METHODS
    from surefind.learning.seeds import seeded
    from surefind.pairs.losses import MARGIN, Contrastive

    own = {field.name for field in fields(METHODS[method])}  # type: ignore[arg-type]
    freezes = encoder not in SIDES and not train_backbone
    names = LEARNER | own | {"mining"} | (FREEZING if freezes else set())
    extra = options.read_assigned(assigned, names)
    frozen = sf.Freezing(**_only(extra, FREEZING))
    speaks = join_processes()
    own_settings = {k: v for k, v in given.items() if k != "assigned"}
    others = {k: v for k, v in extra.items() if k != "cache"}
    settings = as_settings(own_settings | {"set": others, "cache": frozen.cache})
    if speaks:
        check_run(out, settings, resume=resume)
    dataset = with_relation(readable(read_source(source, prefer="train"), on_bad))
    network, preprocessing = chosen_encoder(encoder, dataset, embedding_dim, seed)
    if encoder in SIDES:  # threads of such small networks would mostly wait for each other
        torch.set_num_threads(1)
    if preprocessing is None and isinstance(dataset.inputs, ImageFiles):
        preprocessing = sf.Preprocessing(resize=256, crop=224)
    if frozen.views:
        preprocessing = augmented(preprocessing, dataset)
    objective = Contrastive(extra.get("margin", MARGIN), mining=extra.get("mining"))
    learner = sf.MetricLearner(
        network,
        method=METHODS[method](**_only(extra, own)),
        epochs=epochs,
        stop_early=True,
        seed=seed,
        batch_size=batch_size,
        learning_rate=learning_rate,
        objective=objective,
        preprocessing=preprocessing,
        freeze_backbone=frozen if freezes else False,
        **_only(extra, LEARNER),
    )
    check_fits(learner, dataset)
    trained, known = without_held_out(dataset, held_out, seed)
    rest = "" if known is None else f" {len(known)} others are held out for novelty."
    say(f"Training {method} on {len(trained)} examples of {dataset.name}.{rest}")
    result = fit_and_save(
        learner, trained, out, settings, held_out=known, resume=resume, speaks=speaks
    )
    leave_processes()
    if speaks and known is not None and len(known) >= DIVIDED and not freezes:
        some = torch.randperm(len(trained), generator=seeded(seed, "tried"))[:MOST_ITEMS]
        result["decisions"] = held_out_decisions(learner, trained[some], known)
        say(
            f"A gallery of the training data, asked about what was held out:\n{result['decisions']}"
        )
    return result if speaks else None


def fit(
    model: Annotated[
        str,
        Argument(metavar="RUN|VECTORS", help="A trained run, or vectors: .npy, .npz or .parquet."),
    ],
    out: options.Out,
    on: Annotated[
        str | None,
        Option(help=f"What to fit on; a run's own training data by default. {options.SOURCE_HELP}"),
    ] = None,
    labels: options.Labels = None,
    assigned: options.Assigned = None,
    resume: options.Resume = False,
) -> Any:
    """Give a trained model, or vectors you have, an uncertainty (post-hoc LAM).

    Example: `surefind fit runs/digits --out runs/digits-posthoc`

    Example: `surefind embed runs/digits digits:train --out train.npz`

    Example: `surefind fit train.npz --out runs/vectors`
    """
    from surefind.learning.methods import LaplacePosthoc
    from surefind.pairs.losses import MARGIN
    from surefind.posterior.fit import check_posterior_options

    of_vectors = not Path(model).is_dir()
    misplaced = {"on": on is not None} if of_vectors else {"labels": labels is not None}
    for name, asked in misplaced.items():
        if asked:
            why = "vectors are fitted on themselves" if of_vectors else "a run has its own training"
            raise InputError(f"{why}; leave --{name} out.", field=name)
    own = {field.name for field in fields(LaplacePosthoc)}
    names = own | {"margin", "seed"} | (VECTORS if of_vectors else set())
    extra = options.read_assigned(assigned, names)
    method = LaplacePosthoc(**_only(extra, own))
    check_posterior_options(method.structure, method.scale, method.prior_precision)
    seed, epochs = int(extra.get("seed", 0)), int(extra.pop("epochs", 0))
    given = {"model": model, "on": on, "labels": labels, "epochs": epochs}
    settings = as_settings(given | {"method": "laplace-posthoc", "set": extra})
    check_run(out, settings, resume=resume)
    how: dict[str, Any] = {"method": method, "epochs": epochs, "seed": seed}
    known: sf.Dataset | None = None
    if of_vectors:
        dataset, trained_on, on_bad = with_relation(_vectors(model, labels)), model, "refuse"
        dataset, network = _prepared(dataset)
        how["embedding_dim"] = extra.get("embedding_dim")
        learner = sf.MetricLearner(network, margin=extra.get("margin", MARGIN), **how)
    else:
        run = open_run(Path(model))
        trained = run.learner()
        trained_on = on or run.own_source("name it with --on")
        on_bad = run.config.get("on_bad", "refuse")
        dataset = with_relation(read_for(trained, trained_on, on_bad, prefer="train"))
        if on is None and "held_out" in run.config:
            # What its training left out was not fitted to, and is left out again.
            share = run.config["held_out"]
            dataset, known = without_held_out(
                dataset, None if share == "" else share, run.config["seed"]
            )
        learner = sf.MetricLearner(
            point_estimate(trained),
            margin=extra.get("margin", trained.margin),
            preprocessing=trained.preprocessing,
            batch_size=trained.batch_size,
            freeze_backbone=_same_features(trained, run, on),
            **how,
        )
    check_fits(learner, dataset)
    found = {"source": trained_on, "on_bad": on_bad}
    say(f"Fitting a head in closed form, with its posterior, to {len(dataset)} examples.")
    return fit_and_save(learner, dataset, out, settings | found, held_out=known, resume=resume)


def _only(given: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in names}


def with_relation(dataset: "sf.Dataset") -> "sf.Dataset":
    """Return data of which some belong together; refuse those with neither labels nor positions."""
    from surefind.data.images import ImageFiles

    if dataset.labels is not None or dataset.positions is not None:
        return dataset
    if isinstance(dataset.inputs, ImageFiles):
        name = dataset.name
        raise InputError(
            f"{name} has images but no class folders. Put each class in a subfolder ({name}/cat/1.jpg), or "
            "pass a CSV file with the columns path and label.",
            field="source",
        )
    raise InputError(
        f"{dataset.name} has no labels. Give them with --labels FILE, or as `labels` in a .npz file.",
        field="labels",
    )


def chosen_encoder(
    kind: str, dataset: "sf.Dataset", dim: int | None, seed: int
) -> "tuple[sf.Encoder, sf.Preprocessing | None]":
    """Build a network.

    Args:
        kind: One of `SIDES`, or a backbone's folder.
        dataset: What it will be trained on.
        dim: Dimension of the embedding; None for the network's own choice.
        seed: Decides the weights of the head.

    Returns:
        The network, and what it wants of images.

    Raises:
        InputError: If the data are no images.
    """
    from surefind.data.images import ImageFiles
    from surefind.learning.seeds import seeded
    from surefind.models.backbones import load_backbone, with_linear_head
    from surefind.models.networks import cifar10_net, fashion_mnist_net, small_net

    side = SIDES.get(kind) if isinstance(dataset.inputs, ImageFiles) else None
    if kind == "small" and side is not None:
        side = min(side, *dataset.read(slice(1)).shape[2:])
    resized = None if side is None else sf.Preprocessing(resize=side, crop=side)
    generator = seeded(seed, "encoder")
    if kind == "fashion-mnist":
        return fashion_mnist_net(dim or 3, generator=generator), resized
    if kind == "cifar10":
        return cifar10_net(dim or 16, generator=generator), resized
    if kind == "small":
        shape = dataset.read(slice(0, 1), preprocessing=resized).shape
        if len(shape) != 4:
            raise InputError(
                f"--encoder small is for images; {dataset.name} holds vectors. Use `surefind fit`.",
                field="encoder",
            )
        return small_net(shape[1], shape[2], dim or 8, generator=generator), resized
    tower = load_backbone(kind)
    wanted = tower.preprocessing
    read = None if wanted is None else sf.Preprocessing.from_dict(wanted)
    return with_linear_head(tower, dim, generator=generator), read


def join_processes() -> bool:
    """Join the process group under torchrun; return whether this process prints and writes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return True
    import torch

    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend)
    console.quiet = torch.distributed.get_rank() > 0
    return not console.quiet


def leave_processes() -> None:
    """Leave the process group together: one that is still busy must not lose its peers."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def augmented(
    preprocessing: "sf.Preprocessing | None", dataset: "sf.Dataset"
) -> "sf.Preprocessing":
    """Let training images be cut and mirrored at random; refuse what is no image, or has no size to cut."""
    from surefind.data.inputs import IMAGENET

    if preprocessing is None or preprocessing.crop is None:
        raise InputError(
            f"views are cut from image files at random, and {dataset.name} has none that are resized. "
            "Leave --set views out.",
            field="views",
        )
    return replace(preprocessing, random_area=IMAGENET.random_area, flip=True)


def without_held_out(
    dataset: "sf.Dataset", share: float | None, seed: int
) -> "tuple[sf.Dataset, sf.Dataset | None]":
    """Divide data into what is trained on, and known examples for the p-values of novelty.

    Args:
        dataset: All of them.
        share: Of each class; None for the rule of `HELD_OUT`.
        seed: Chooses them; the same for the same run.

    Returns:
        Both parts; None instead of the second if nothing is held out.
    """
    from surefind.data.dataset import validation_split
    from surefind.learning.seeds import seeded

    if dataset.labels is None:
        return dataset, None
    if share is None:
        n, classes = len(dataset), len(dataset.labels.unique())
        few = 0.2 if n >= max(DIVIDED, OF_A_CLASS * classes) else 0.0
        share = 0.1 if n >= 10 * HELD_OUT else few
    if not share:
        return dataset, None
    parts = validation_split(dataset, seeded(seed, "held out"), share=share)
    return parts.train, parts["validation"]


def fit_and_save(
    learner: "sf.MetricLearner",
    dataset: "sf.Dataset",
    out: Path,
    settings: dict[str, Any],
    *,
    held_out: "sf.Dataset | None" = None,
    resume: bool,
    speaks: bool = True,
) -> dict[str, Any]:
    """Fit a learner in a run's folder, and save it there.

    Args:
        learner: What to fit.
        dataset: The training data.
        out: The run's folder.
        settings: For config.toml; `check_run` has allowed them.
        held_out: Known examples that are not trained on, for novelty.
        resume: Whether an existing run is resumed.
        speaks: Whether this process prints and writes the run's files.

    Returns:
        What came of it, as JSON holds it.

    Raises:
        CommandInterruptedError: If the user interrupted it; there is a checkpoint.
        NumericalError: If the training diverged.
    """
    learner.check(dataset)
    run = create_run(out, settings) if speaks else None
    before = None if run is None else run.fingerprint
    try:
        with stage_progress("fitting") as shown, whole_steps(shown) as report:
            learner.fit(dataset, held_out=held_out, folder=out / "stages", report=report)
    except KeyboardInterrupt as stop:
        if run is not None:
            run.log("interrupted by the user; there is a checkpoint")
        raise CommandInterruptedError(
            f"there is a checkpoint in {out}. Resume with: {this_command('--resume')}"
        ) from stop
    learner.save(out)
    if run is not None:
        if run.fingerprint != before:
            run.forget_evaluation()
        finish_run(run, learner)
    say(novelty_sentence(learner))
    say(f"Saved the model and its history in {out}.")
    say_next(next_command(out, settings))
    found = novelty_of(learner)
    return {
        "run": out,
        "model": None if run is None else run.fingerprint,
        "method": settings["method"],
        "examples": len(dataset),
        "embedding_dim": learner.outputs,
        "stages": {
            stage: {
                "epochs": len(epochs),
                "seconds": sum(epoch.seconds for epoch in epochs),
                "loss": epochs[-1].loss if epochs else None,
            }
            for stage, epochs in learner.history_.items()
        },
        "novelty": None
        if found is None
        else {"examples": len(found.known), "least": float(found.least)},
    }


def held_out_decisions(
    learner: "sf.MetricLearner", trained: "sf.Dataset", known: "sf.Dataset"
) -> str:
    """Decide about held-out examples by a gallery of the others; return what was found, in sentences."""
    gallery = sf.Gallery()
    gallery.add(learner.embed(trained), labels=trained.labels.tolist())
    queries = learner.embed(known)
    return gallery.calibrate(queries, known.labels.tolist(), max_wrong=MAX_WRONG).summary


def novelty_of(learner: "sf.MetricLearner") -> Any:
    """Return what a learner knows of novelty; None if it was not fitted."""
    return None if learner.layers_ is None else learner.layers_.novelty


def novelty_sentence(learner: "sf.MetricLearner") -> str:
    """Say what the p-values of novelty rest on."""
    found = novelty_of(learner)
    if found is None:
        return (
            "Novelty: none, there are too few examples; out-of-distribution inputs are not noticed."
        )
    n, least = len(found.known), found.least
    which = "held-out examples" if found.held_out else "training examples, cross-fitted"
    sure = found.held_out or not learner.learns
    doubt = "" if sure else "; new ones may be flagged more often, --held-out helps"
    return f"Novelty: p-values rest on {n:,} {which}; the smallest is {least:.2g}{doubt}."


def next_command(out: Path, settings: dict[str, Any]) -> str:
    """Return a command for a run that has just been made: evaluate it, or index a gallery with it."""
    from surefind.data.sources import part_names, split_part

    source, on_bad = settings["source"], settings["on_bad"]
    where, part = split_part(source)
    parts = part_names(where)
    if "test" in parts and part != "test":
        return spelled("evaluate", out, on_bad=on_bad)
    if part is None and "train" in parts:
        source = f"{where}:train"
    how = {"labels": settings.get("labels"), "on_bad": on_bad}
    return spelled("index", source, run=out, out=out / "gallery", **how)


def finish_run(run: RunFolder, learner: "sf.MetricLearner") -> None:
    """Write history and figure beside a saved model."""
    history = {stage: [vars(e) for e in epochs] for stage, epochs in learner.history_.items()}
    run.write_json("history.json", history)
    trained = {stage: epochs for stage, epochs in history.items() if epochs}
    if trained:
        losses = {stage: [e["loss"] for e in epochs] for stage, epochs in trained.items()}
        run.draw(LOSS, "loss_chart", losses)
    last = "; ".join(f"{stage}: loss {e[-1]['loss']:.4f}" for stage, e in trained.items())
    run.log(f"saved the model{f' ({last})' if last else ''}")


def point_estimate(learner: "sf.MetricLearner") -> "sf.Encoder":
    """Return the one network inside a fitted learner, frozen; refuse a method that has none, or several."""
    from surefind.learning.frozen import FrozenEmbedder
    from surefind.learning.methods.deterministic import PointEmbedder
    from surefind.learning.methods.laplace_posthoc import HeadEmbedder

    whole = learner.fitted
    fitted = whole.upper if isinstance(whole, FrozenEmbedder) else whole
    if not isinstance(fitted, PointEmbedder | HeadEmbedder):
        raise InputError(
            f"a posterior is fitted to one network; this run's method is {type(learner.method).__name__}. "
            "Give a run of --method deterministic.",
            field="model",
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
    there = own if on is None and own.is_dir() else None
    cache = run.config.get("cache") or there
    return sf.Freezing(trained_stages=trained.freezing.trained_stages, cache=cache)


def _prepared(dataset: "sf.Dataset") -> tuple["sf.Dataset", "sf.Encoder"]:
    """Build the encoder of vectors, and leave out those without a direction.

    Args:
        dataset: The vectors, of which some belong together.

    Returns:
        The vectors that have a direction, and the encoder.

    Raises:
        InputError: If the data are no vectors.
    """
    import numpy as np

    from surefind.models.vectors import Vectors, vector_encoder

    if dataset.read(slice(0, 1)).ndim != 2:
        raise InputError(
            f"{dataset.name} holds images; `surefind fit` takes vectors, `surefind train` images.",
            field="model",
        )
    vectors = Vectors(np.asarray(dataset.inputs))
    zero = vectors.zero_rows()
    if len(zero):
        say(f"{len(zero)} vectors are zero, the first at {zero[0]}, and are left out.")
        dataset = dataset[np.delete(np.arange(len(dataset)), zero)]
        vectors = Vectors(np.asarray(dataset.inputs))
    return dataset, vector_encoder(vectors).float()


def _vectors(source: str, labels: Path | None) -> "sf.Dataset":
    from surefind.data.sources import holds_vectors, read_source, read_vector_file

    path = Path(source)
    if path.is_file() and holds_vectors(path):
        return labelled(read_vector_file(path).dataset(path.stem, labels))
    return read_source(source, prefer="train")


def labelled(dataset: "sf.Dataset") -> "sf.Dataset":
    """Leave out the examples whose label says that they have none: empty, or -1."""
    if dataset.labels is None:
        return dataset
    names = dataset.classes or ()
    none = [code for code, name in enumerate(names) if name in ("", "-1")]
    none = none if names else [-1]
    rows = [row for row, label in enumerate(dataset.labels.tolist()) if label not in none]
    left = len(dataset) - len(rows)
    if left:
        say(f"{left} examples have no label (empty, or -1), and are left out.")
    return dataset[rows] if left else dataset
