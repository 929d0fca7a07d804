"""`surefind train`: learn an encoder and its uncertainty, kept as it goes on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from surefind.cli.completion import complete_method
from surefind.cli.console import say
from surefind.cli.encoders import chosen_encoder
from surefind.cli.estimate import passing_estimate, training_estimate
from surefind.cli.options import DataFolder, Out, Resume, SourceArgument
from surefind.cli.plots import NO_PICTURES, can_draw, draw_history
from surefind.cli.progress import stage_progress
from surefind.cli.run_folder import RunFolder, check_place, check_run, create_run
from surefind.cli.sources import check_fits, read_source, split_part
from surefind.cli.stopping import StoppedError, this_command, whole_steps
from surefind.cli.torchrun import join_processes, leave_processes

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
        typer.Option(help="K of batches with K examples of each class; random otherwise."),
    ] = None,
    mining: Annotated[
        Literal["none", "all", "hard", "semi-hard"],
        typer.Option(help="Which pairs of a batch to take."),
    ] = "none",
    on_bad: Annotated[
        Literal["refuse", "skip"], typer.Option(help="What to do with unreadable images.")
    ] = "refuse",
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
    check_fits(learner, dataset)
    say(f"Training {method} on {len(dataset)} examples of {dataset.name}.")
    fit_and_save(learner, dataset, out, settings, resume=resume, speaks=speaks)
    leave_processes()


def readable(dataset: "Dataset", on_bad: str) -> "Dataset":
    """Decode every image once, before hours of training; say which ones are left out."""
    good, report = dataset.verify(on_bad=on_bad)
    if report is not None and report.bad:
        say(f"Left out {len(report.bad)} images that cannot be read:")
        for name, reason in report.bad[:10]:
            say(f"  {name}: {reason}")
    return good


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
        settings: What was asked for, for config.toml.
        resume: Whether a run that is there is gone on with.
        speaks: Whether this process writes the run's files.

    Raises:
        StoppedError: If the user stopped it; what was learnt is kept.
    """
    weights = sum(p.numel() * p.element_size() for p in learner.encoder.parameters())
    if speaks:
        check_run(out, settings, resume=resume)
        check_place(out, COPIES * weights)
    estimate = training_estimate(learner, dataset) or passing_estimate(learner, dataset)
    if estimate is not None:
        kept = " What is kept is not done again." if resume else ""
        say(f"This takes {estimate}.{kept}")
    run = create_run(out, settings) if speaks else None
    try:
        with stage_progress() as shown, whole_steps(shown) as report:
            learner.fit(dataset, folder=out / "stages", report=report)
    except KeyboardInterrupt as stop:
        if run is not None:
            run.note("stopped by the user; training is kept up to here")
        raise StoppedError(
            f"training is kept in {out}. Go on with: {this_command('--resume')}"
        ) from stop
    learner.save(out)
    if run is not None:
        finish_run(run, learner)
    say(f"Saved the model and its history in {out}.")
    say(f"Next: surefind evaluate {out}")


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
