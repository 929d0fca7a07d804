"""`surefind train`: learn an encoder and its uncertainty, kept as it goes on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from surefind.cli.advice import spelled
from surefind.cli.completion import complete_method
from surefind.cli.console import say
from surefind.cli.encoders import chosen_encoder
from surefind.cli.estimate import passing_estimate, training_estimate
from surefind.cli.options import DataFolder, OnBad, Out, Resume, SourceArgument
from surefind.cli.places import check_place
from surefind.cli.plots import NO_PICTURES, can_draw, draw_history
from surefind.cli.progress import stage_progress
from surefind.cli.run_folder import RunFolder, check_run, create_run
from surefind.cli.sources import check_fits, part_names, read_source, readable, split_part
from surefind.cli.stopping import StoppedError, this_command, whole_steps
from surefind.cli.torchrun import join_processes, leave_processes
from surefind.errors import NumericalError

if TYPE_CHECKING:
    from surefind.data.dataset import Dataset
    from surefind.learner import MetricLearner

COPIES = 6
"""How often a model's size is written: weights, optimiser, result, and each once more beside its place."""


def train(
    source: SourceArgument,
    out: Out,
    method: Annotated[
        str,
        typer.Option(help="How to learn, and to say how sure.", autocompletion=complete_method),
    ] = "laplace-online",
    encoder: Annotated[
        str,
        typer.Option(help="fashion-mnist, cifar10, small, or a backbone's folder; auto chooses."),
    ] = "auto",
    embedding_dim: Annotated[int | None, typer.Option(help="Dimension of the embedding.")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 20,
    batch_size: Annotated[int, typer.Option(help="Examples a step.")] = 64,
    margin: Annotated[float, typer.Option(help="Squared distance up to which others repel.")] = 0.7,
    learning_rate: Annotated[float, typer.Option(help="Of RMSprop.")] = 1e-3,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    examples_per_class: Annotated[
        int | None,
        typer.Option(help="K of batches with K examples of each class or place; random otherwise."),
    ] = None,
    mining: Annotated[
        Literal["none", "all", "hard", "semi-hard"],
        typer.Option(help="Which pairs of a batch to take."),
    ] = "none",
    on_bad: OnBad = "refuse",
    data: DataFolder = None,
    resume: Resume = False,
) -> None:
    """Train an encoder that says how sure it is.

    Says first how long it will take. Ctrl-C stops it and loses nothing: the same command with `--resume`
    goes on.

    Example: `surefind train digits --out runs/digits --epochs 2`
    """
    from surefind.data.images import ImageFiles
    from surefind.data.preprocessing import Preprocessing
    from surefind.learner import MetricLearner
    from surefind.methods import METHODS
    from surefind.objectives import Contrastive
    from surefind.validation import check_choice, check_positive, check_whole

    check_choice("method", method, METHODS)
    check_positive("margin", margin)
    check_positive("learning_rate", learning_rate)
    check_whole("batch_size", batch_size, least=2)
    check_whole("epochs", epochs, least=0)
    speaks = join_processes()
    settings = {
        "source": source,
        "method": method,
        "encoder": encoder,
        "embedding_dim": embedding_dim or 0,
        "epochs": epochs,
        "batch_size": batch_size,
        "margin": margin,
        "learning_rate": learning_rate,
        "seed": seed,
        "examples_per_class": examples_per_class or 0,
        "mining": mining,
        "on_bad": on_bad,
        "data": "" if data is None else str(data),
    }
    if speaks:
        check_run(out, settings, resume=resume)
    dataset = readable(read_source(source, data, prefer="train"), on_bad)
    network, preprocessing = chosen_encoder(
        encoder, split_part(source)[0], dataset, embedding_dim, seed
    )
    if preprocessing is None and isinstance(dataset.inputs, ImageFiles):
        preprocessing = Preprocessing(resize=256, crop=224)
    learner = MetricLearner(
        network,
        method=method,
        epochs=epochs,
        seed=seed,
        batch_size=batch_size,
        margin=margin,
        learning_rate=learning_rate,
        examples_per_class=examples_per_class,
        objective=Contrastive(margin, mining=None if mining == "none" else mining),
        preprocessing=preprocessing,
    )
    found = {"inputs": list(check_fits(learner, dataset))}
    say(f"Training {method} on {len(dataset)} examples of {dataset.name}.")
    fit_and_save(learner, dataset, out, settings | found, resume=resume, speaks=speaks)
    leave_processes()


def fit_and_save(
    learner: "MetricLearner",
    dataset: "Dataset",
    out: Path,
    settings: dict[str, Any],
    *,
    resume: bool,
    speaks: bool = True,
) -> None:
    """Fit a learner in a run's folder, and leave everything there.

    Args:
        learner: What to fit.
        dataset: The training data.
        out: The run's folder.
        settings: What was asked for, and found out, for config.toml; `check_run` has allowed it.
        resume: Whether a run that is there is gone on with.
        speaks: Whether this process writes the run's files.

    Raises:
        StoppedError: If the user stopped it; what was learnt is kept.
        NumericalError: If the training diverged.
    """
    weights = sum(p.numel() * p.element_size() for p in learner.encoder.parameters())
    if speaks:
        check_place(out, COPIES * weights)
    say_how_long(learner, dataset, resume=resume)
    run = create_run(out, settings) if speaks else None
    before = None if run is None else run.fingerprint
    try:
        with stage_progress() as shown, whole_steps(shown) as report:
            learner.fit(dataset, folder=out / "stages", report=report)
    except KeyboardInterrupt as stop:
        if run is not None:
            run.note("stopped by the user; training is kept up to here")
        raise StoppedError(
            f"training is kept in {out}. Go on with: {this_command('--resume')}"
        ) from stop
    except NumericalError as error:
        raise NumericalError(f"{error} Start again in another folder than {out}.") from error
    learner.save(out)
    if run is not None:
        if run.fingerprint != before:
            run.forget_evaluation()
        finish_run(run, learner)
    say(f"Saved the model and its history in {out}.")
    say(f"Next: {next_command(out, settings)}")


def say_how_long(learner: "MetricLearner", dataset: "Dataset", *, resume: bool) -> None:
    """Say how long a fit takes, as far as that can be measured, and what is not in it."""
    kept = " What is kept is not done again." if resume else ""
    steps = training_estimate(learner, dataset)
    if steps is not None:
        say(
            f"The training steps take {steps}; reading, saving and what the method does after them come on "
            f"top.{kept}"
        )
        return
    passes = passing_estimate(learner, dataset)
    if passes is not None:
        say(f"This takes {passes}; choosing the posterior's width comes on top.{kept}")


def next_command(out: Path, settings: dict[str, Any]) -> str:
    """Spell a command that works on a run that has just been made: measure it, or make a gallery with it.

    Args:
        out: The run.
        settings: Its settings: what it was trained on, where that and its labels are, and what was
            done with bad images.

    Returns:
        The command.
    """
    source, data, on_bad = (settings[name] for name in ("source", "data", "on_bad"))
    where, part = split_part(source)
    parts = part_names(where, Path(data) if data else None)
    if "test" in parts and part != "test":
        return spelled("evaluate", out, on_bad=on_bad)
    if part is None and "train" in parts:
        source = f"{where}:train"
    how = {"labels": settings.get("labels"), "on_bad": on_bad, "data": data}
    return spelled("index", source, run=out, out=out / "gallery", **how)


def finish_run(run: RunFolder, learner: "MetricLearner") -> None:
    """Leave history, picture and explanation beside a saved model."""
    history = {stage: [vars(e) for e in epochs] for stage, epochs in learner.history_.items()}
    run.write_json("history.json", history)
    trained = {stage: epochs for stage, epochs in history.items() if epochs}
    if not can_draw():
        run.note(NO_PICTURES)
    elif trained:
        draw_history(trained, run.path / "plots")
    last = "; ".join(f"{stage}: loss {e[-1]['loss']:.4f}" for stage, e in trained.items())
    run.note(f"saved the model{f' ({last})' if last else ''}")
    run.explain()
