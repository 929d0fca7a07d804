"""`surefind train`: train an encoder with uncertainty, with checkpoints; under ``torchrun``, distributed.

The network is one by name, or a backbone from a folder with a new head.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    check_place,
    console,
    say,
    spelled,
    stage_progress,
    this_command,
    whole_steps,
)
from surefind.cli.plots import NO_FIGURES, can_draw, draw_history
from surefind.cli.run_folder import RunFolder, as_settings, check_run, create_run
from surefind.cli.sources import check_fits, part_names, read_source, readable, split_part
from surefind.errors import CommandInterruptedError, InputError, NumericalError

FITTING = {"fashion-mnist": "fashion-mnist", "cifar10": "cifar10", "digits": "small"}
"""The network that "auto" takes for a set; for images in files, the small one."""
SIDES = {"fashion-mnist": 28, "cifar10": 32, "small": 64}
"""To which the networks by name have images in files resized."""


def chosen_encoder(
    kind: str, source: str, dataset: "sf.Dataset", dim: int | None, seed: int
) -> "tuple[sf.Encoder, sf.Preprocessing | None]":
    """Build the network that was asked for, or that fits the set.

    Args:
        kind: "auto", "fashion-mnist", "cifar10", "small", or a backbone's folder.
        source: The set's name, or a path.
        dataset: What it will be trained on.
        dim: Dimension of the embedding; None for the network's own choice.
        seed: Decides the weights of the head.

    Returns:
        The network, and what it wants of images.

    Raises:
        InputError: If "auto" knows no network for the set.
    """
    from surefind.data.images import ImageFiles
    from surefind.learning.seeds import seeded
    from surefind.models.backbones import load_backbone, with_linear_head
    from surefind.models.networks import cifar10_net, fashion_mnist_net, small_net

    files = isinstance(dataset.inputs, ImageFiles)
    if kind == "auto":
        kind = FITTING.get(source, "small" if files else "")
    generator = seeded(seed, "encoder")
    side = SIDES.get(kind) if files else None
    resized = None if side is None else sf.Preprocessing(resize=side, crop=side)
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
    if not kind:
        raise InputError(
            "no encoder fits this set by itself; name one: --encoder FOLDER, with a backbone's "
            "config.json and safetensors weights, or fashion-mnist, cifar10, small.",
            field="encoder",
        )
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


LEARNER = ("method", "epochs", "seed", "batch_size", "learning_rate", "examples_per_class")
"""Options that the learner takes by the same name."""
HELD_OUT = 300
"""Known examples from which p-values reach down to 1 %."""
COPIES = 6
"""How often a model's size is written: weights, optimiser, result, and each once more beside its place."""


def train(
    source: options.SourceArgument,
    out: options.Out,
    method: Annotated[
        str,
        Option(help="The method, with its uncertainty.", autocompletion=options.complete_method),
    ] = "laplace-online",
    encoder: Annotated[
        str, Option(help="fashion-mnist, cifar10, small, or a backbone's folder; auto chooses.")
    ] = "auto",
    embedding_dim: Annotated[int | None, Option(help="Dimension of the embedding.")] = None,
    epochs: Annotated[int, Option(help="Passes over the data.")] = 20,
    batch_size: Annotated[int, Option(help="Examples a step.")] = 64,
    margin: Annotated[
        float | None,
        Option(help="Squared distance up to which negative pairs repel; the learner's default."),
    ] = None,
    learning_rate: Annotated[float, Option(help="Of RMSprop.")] = 1e-3,
    seed: options.Seed = 0,
    examples_per_class: Annotated[
        int | None, Option(help="K for batches of K examples per class or place; random otherwise.")
    ] = None,
    mining: Annotated[
        Literal["none", "all", "hard", "semi-hard"], Option(help="Which pairs of a batch to take.")
    ] = "none",
    held_out: Annotated[
        float | None,
        Option(
            help="Share of the examples not trained on, for novelty; a tenth if that is 300 or more."
        ),
    ] = None,
    freeze_backbone: options.FreezeBackbone = False,
    trained_stages: options.TrainedStages = 0,
    views: Annotated[
        int, Option(help="Augmented views of each image to compute features of; none by default.")
    ] = 0,
    head: Annotated[
        Literal["given", "identity", "whitened", "whitened-within"] | None,
        Option(
            help="What the head on a frozen backbone starts as; at random by default. `whitened-within`: "
            "what members of a class, or images of a place, differ in counts less."
        ),
    ] = None,
    cache: options.Cache = None,
    on_bad: options.OnBad = "refuse",
    data: options.DataFolder = None,
    resume: options.Resume = False,
) -> Any:
    """Train an encoder with uncertainty.

    Ctrl-C interrupts it and loses nothing: the same command with `--resume` resumes it.

    Example: `surefind train digits --out runs/digits --epochs 2`
    """
    given = locals().copy()
    from surefind.checks import check_choice, check_int, check_positive
    from surefind.data.images import ImageFiles
    from surefind.learning.frozen import Freezing
    from surefind.learning.methods import METHODS
    from surefind.pairs.losses import MARGIN, Contrastive

    margin = MARGIN if margin is None else margin
    check_choice("method", method, METHODS)
    check_positive("margin", margin)
    check_positive("learning_rate", learning_rate)
    check_int("batch_size", batch_size, least=2)
    check_int("epochs", epochs, least=0)
    if held_out is not None and not 0 <= held_out < 1:
        raise InputError(
            f"held_out must be a share from 0 up, below 1; got {held_out}.", field="held_out"
        )
    options.check_frozen_only(
        freeze_backbone, trained_stages=trained_stages, views=views, head=head, cache=cache
    )
    freezing = Freezing(trained_stages, views, cache, head or "given")
    if freeze_backbone and encoder in ("auto", *SIDES):
        raise InputError(
            "networks by name start with random weights, and there is nothing in them to freeze. Give a "
            "pretrained backbone: --encoder FOLDER.",
            field="freeze_backbone",
        )
    if cache is not None:
        check_place(cache, 0, field="cache")
    speaks = join_processes()
    settings = as_settings(given | {"margin": margin})
    if speaks:
        check_run(out, settings, resume=resume)
    dataset = readable(read_source(source, data, prefer="train"), on_bad)
    network, preprocessing = chosen_encoder(
        encoder, split_part(source)[0], dataset, embedding_dim, seed
    )
    if preprocessing is None and isinstance(dataset.inputs, ImageFiles):
        preprocessing = sf.Preprocessing(resize=256, crop=224)
    if views:
        preprocessing = augmented(preprocessing, dataset)
    learner = sf.MetricLearner(
        network,
        **{name: given[name] for name in LEARNER},
        margin=margin,
        objective=Contrastive(margin, mining=None if mining == "none" else mining),
        preprocessing=preprocessing,
        freeze_backbone=freezing if freeze_backbone else False,
    )
    check_fits(learner, dataset)
    trained, known = without_held_out(dataset, held_out, seed)
    rest = "" if known is None else f" {len(known)} others are held out for novelty."
    say(f"Training {method} on {len(trained)} examples of {dataset.name}.{rest}")
    result = fit_and_save(
        learner, trained, out, settings, held_out=known, resume=resume, speaks=speaks
    )
    leave_processes()
    return result if speaks else None


def augmented(
    preprocessing: "sf.Preprocessing | None", dataset: "sf.Dataset"
) -> "sf.Preprocessing":
    """Let training images be cut and mirrored at random; refuse what is no image, or has no size to cut."""
    from surefind.data.inputs import IMAGENET

    if preprocessing is None or preprocessing.crop is None:
        raise InputError(
            f"views are cut from image files at random, and {dataset.name} has none that are resized. "
            "Leave --views out.",
            field="views",
        )
    return replace(preprocessing, random_area=IMAGENET.random_area, flip=True)


def without_held_out(
    dataset: "sf.Dataset", share: float | None, seed: int
) -> "tuple[sf.Dataset, sf.Dataset | None]":
    """Divide data into what is trained on, and known examples for the p-values of novelty.

    Args:
        dataset: All of them.
        share: Of each class; None for a tenth, or nothing where that is fewer than `HELD_OUT` examples.
        seed: Chooses them; the same for the same run.

    Returns:
        Both parts; None instead of the second if nothing is held out.
    """
    from surefind.data.dataset import validation_split
    from surefind.learning.seeds import seeded

    if share is None:
        share = 0.1 if len(dataset) >= 10 * HELD_OUT else 0.0
    if not share or dataset.labels is None:
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
    weights = sum(p.numel() * p.element_size() for p in learner.encoder.parameters())
    if speaks:
        check_place(out, COPIES * weights)
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
    except NumericalError as error:
        again = f"{error.message} Start again in another folder than {out}."
        raise NumericalError(again, field=error.field, hint=error.hint) from error
    learner.save(out)
    if run is not None:
        if run.fingerprint != before:
            run.forget_evaluation()
        finish_run(run, learner)
    say(novelty_sentence(learner))
    say(f"Saved the model and its history in {out}.")
    say(f"Next: {next_command(out, settings)}")
    guard = learner.novelty_
    return {
        "run": out,
        "model": None if run is None else run.fingerprint,
        "method": settings["method"],
        "examples": len(dataset),
        "embedding_dim": learner.encoder.embedding_dim,
        "stages": {
            stage: {
                "epochs": len(epochs),
                "seconds": sum(epoch.seconds for epoch in epochs),
                "loss": epochs[-1].loss if epochs else None,
            }
            for stage, epochs in learner.history_.items()
        },
        "novelty": None
        if guard is None
        else {"examples": len(guard.model.known), "least": float(guard.model.least)},
    }


def novelty_sentence(learner: "sf.MetricLearner") -> str:
    """Say what the p-values of novelty rest on."""
    guard = learner.novelty_
    if guard is None:
        return "There are too few examples for novelty: inputs unlike all of them are not noticed."
    n, least = len(guard.model.known), guard.model.least
    if guard.model.held_out:
        return f"Novelty: p-values rest on {n:,} held-out examples; the smallest is {least:.2g}."
    frozen = not guard.stages
    doubt = "" if frozen else " New inputs may be flagged more often than p says; --held-out helps."
    return (
        f"Novelty: p-values rest on {n:,} training examples, cross-fitted; the smallest is {least:.2g}."
        f"{doubt}"
    )


def next_command(out: Path, settings: dict[str, Any]) -> str:
    """Return a command for a run that has just been made: evaluate it, or index a gallery with it."""
    source, data, on_bad = (settings[name] for name in ("source", "data", "on_bad"))
    where, part = split_part(source)
    parts = part_names(where, Path(data) if data else None)
    if "test" in parts and part != "test":
        return spelled("evaluate", out, on_bad=on_bad)
    if part is None and "train" in parts:
        source = f"{where}:train"
    how = {"labels": settings.get("labels"), "on_bad": on_bad, "data": data}
    return spelled("index", source, run=out, out=out / "gallery", **how)


def finish_run(run: RunFolder, learner: "sf.MetricLearner") -> None:
    """Write history, figure and README beside a saved model."""
    history = {stage: [vars(e) for e in epochs] for stage, epochs in learner.history_.items()}
    run.write_json("history.json", history)
    trained = {stage: epochs for stage, epochs in history.items() if epochs}
    if not can_draw():
        run.log(NO_FIGURES)
    elif trained:
        draw_history(trained, run.path / "plots")
    last = "; ".join(f"{stage}: loss {e[-1]['loss']:.4f}" for stage, e in trained.items())
    run.log(f"saved the model{f' ({last})' if last else ''}")
    run.explain()
