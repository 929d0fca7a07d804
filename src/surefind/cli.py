"""The command line: parse, call the library, show what happened.

Exit codes: 0 done, 1 failed, 2 wrong usage. A user's mistake is answered with a sentence, never a
traceback. What takes long shows its progress, and can be cut off at any moment and continued with
``--resume``.
"""

import json
import os
import sys
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from surefind.data.dataset import Dataset
    from surefind.models.encoder import Encoder
    from surefind.runs import Report

console = Console(highlight=False)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Retrieval that knows when it does not know.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at data sets.")
app.add_typer(data_app, name="data")

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", envvar="SUREFIND_DATA", help="Folder that holds the data sets."),
]


@data_app.command("list")
def list_sets() -> None:
    """List the data sets that are known by name.

    Example: `surefind data list`
    """
    from surefind.data.published import ENTRIES

    for name, entry in ENTRIES.items():
        console.print(f"[bold]{name:15s}[/bold] {entry.title}: {entry.get}")


@data_app.command("check")
def check_set(
    name: Annotated[str, typer.Argument(help="A set's name; see `surefind data list`.")],
    data: DataFolder = None,
) -> None:
    """Compare a data set with what its publisher announces: counts and checksums.

    Example: `surefind data check digits`
    """
    from surefind.data.catalogue import check

    report = check(name, data)
    console.print(f"[bold]{report.title}[/bold] in {report.folder or 'an installed library'}")
    for part, count in report.counts.items():
        classes = f", {report.n_classes[part]} classes" if part in report.n_classes else ""
        console.print(f"  {part}: {count} examples{classes}")
    for file, verdict in report.checksums.items():
        console.print(f"  {file}: checksum {verdict}")
    for problem in report.problems:
        console.print(f"[red]{problem}[/red]")
    if not report.ok:
        raise typer.Exit(1)
    known = "counts and checksums" if report.checksums else "counts" if report.counts else "nothing"
    console.print(f"Everything is as published, as far as that is known here: {known} compared.")


@app.command()
def train(
    source: Annotated[
        str,
        typer.Argument(
            help="A set's name, a folder with a folder per class, or a CSV/Parquet file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; everything is written there.")],
    method: Annotated[
        str, typer.Option(help="How to learn, and to say how sure.")
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
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was cut off.")
    ] = False,
) -> None:
    """Train an encoder that says how sure it is.

    Example: `surefind train digits --out runs/digits --epochs 2`
    """
    from surefind.data.images import ImageFiles
    from surefind.data.preprocessing import Preprocessing
    from surefind.learner import MetricLearner
    from surefind.methods import METHODS
    from surefind.objectives import Contrastive
    from surefind.passes import like_network
    from surefind.processes import world
    from surefind.validation import check_choice, check_positive, check_whole

    check_choice("method", method, METHODS)
    check_positive("margin", margin)
    check_positive("learning_rate", learning_rate)
    check_whole("batch_size", batch_size, least=2)
    check_whole("epochs", epochs, least=0)
    join_processes()
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
    }
    dataset, report = training_part(source, data).verify(on_bad=on_bad)
    if report is not None and report.bad:
        console.print(f"Left out {len(report.bad)} images that cannot be read:")
        for name, reason in report.bad[:10]:
            console.print(f"  {name}: {reason}")
    network, preprocessing = chosen_encoder(encoder, source, dataset, embedding_dim, seed)
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
    try_encoder(
        network, like_network(dataset.read(slice(0, 2), preprocessing=preprocessing), network)
    )
    open_run(out, settings, resume=resume)
    console.print(f"Training [bold]{method}[/bold] on {len(dataset)} examples of {dataset.name}.")
    with progress_bar() as bar:
        learner.fit(dataset, folder=out / "stages", report=bar)
    learner.save(out)
    if world()[0] == 0:
        history = {k: [vars(e) for e in v] for k, v in learner.history_.items()}
        (out / "history.json").write_text(json.dumps(history, indent=1) + "\n")
    leave_processes()
    console.print(f"Saved the model and its history in [bold]{out}[/bold].")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the page is written.")] = Path(
        "surefind-demo.html"
    ),
) -> None:
    """See on small images what κ is for; under a minute, no downloads.

    Example: `surefind demo`
    """
    from surefind.demo import tell, write_page

    with progress_bar() as bar:
        story = tell(say=lambda sentence: console.print(escape(sentence)), report=bar)
    write_page(story, out)
    console.print(
        "Next: `surefind train --help`, and docs/learning.md for your own model and images."
    )
    console.print(f"The report with pictures: {out.resolve()}", soft_wrap=True)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="fashion-mnist, cifar10 or digits.")],
    methods: Annotated[str, typer.Option(help="Methods, separated by commas, or all.")] = "all",
    seeds: Annotated[int, typer.Option(help="How many seeds: 0, 1, …")] = 1,
    ablation: Annotated[
        bool, typer.Option("--ablation", help="Also the paper's twelve rows.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where results are written.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Where training is kept.")] = Path("runs/bench"),
    data: DataFolder = None,
) -> None:
    """Compare methods on a data set; killed at any moment, the same command goes on.

    Example: `surefind bench digits --methods deterministic,laplace-posthoc`
    """
    from surefind.bench import rows_of, run_bench

    def on_cell(row: str, seed: int, values: dict[str, float] | None) -> None:
        if values is None:
            console.print(f"[bold]{row}[/bold], seed {seed} …")
        else:
            shown = ("recall@1", "auroc", "ausc", "ece")
            console.print("  " + ", ".join(f"{k} {values[k]:.3f}" for k in shown if k in values))

    rows = rows_of(methods.split(","), with_ablation=ablation)
    with progress_bar() as bar:
        run_bench(
            name, rows, range(seeds), data=data, results=out, work=work, on_cell=on_cell, report=bar
        )
    console.print(f"Results are in [bold]{out / name}[/bold].")


def join_processes() -> None:
    """Under torchrun, become one of its processes."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        import torch

        backend = "nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend)
        console.quiet = torch.distributed.get_rank() > 0


def leave_processes() -> None:
    """Wait for all processes before any of them goes: one that is still busy must not lose its peers."""
    from torch import distributed

    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


def training_part(source: str, folder: Path | None) -> "Dataset":
    """Load what a run trains on: a set by name, a folder, or a manifest."""
    from surefind.data.catalogue import load, set_names
    from surefind.data.folder import load_folder
    from surefind.data.manifest import load_manifest
    from surefind.errors import InputError

    if source in set_names():
        splits = load(source, folder)
    elif Path(source).is_dir():
        splits = load_folder(source)
    elif Path(source).is_file():
        splits = load_manifest(source)
    else:
        raise InputError(
            f"{source!r} is neither a known set ({', '.join(set_names())}) nor a folder nor a file."
        )
    return splits["train"] if "train" in splits.parts else splits[next(iter(splits))]


def chosen_encoder(
    kind: str, source: str, dataset: "Dataset", dim: int | None, seed: int
) -> "tuple[Encoder, Any]":
    """Build the network that was asked for, or that fits the set, and what it wants of images."""
    from surefind.data.preprocessing import Preprocessing
    from surefind.errors import InputError
    from surefind.models.backbones import load_backbone, with_linear_head
    from surefind.models.convnets import cifar10_net, fashion_mnist_net, small_net
    from surefind.seeds import seeded

    if kind == "auto":
        kind = {"fashion-mnist": "fashion-mnist", "cifar10": "cifar10", "digits": "small"}.get(
            source, ""
        )
    generator = seeded(seed, "encoder")
    if kind == "fashion-mnist":
        return fashion_mnist_net(dim or 3, generator=generator), None
    if kind == "cifar10":
        return cifar10_net(dim or 16, generator=generator), None
    if kind == "small":
        _, channels, side, _ = dataset.read(slice(0, 1)).shape
        return small_net(channels, side, dim or 8, generator=generator), None
    if not kind:
        raise InputError(
            "no encoder fits this set by itself; name one: --encoder FOLDER, with a backbone's "
            "config.json and safetensors weights, or fashion-mnist, cifar10, small."
        )
    tower = load_backbone(kind)
    wanted = None if tower.preprocessing is None else Preprocessing.from_dict(tower.preprocessing)
    return with_linear_head(tower, dim, generator=generator), wanted


def try_encoder(network: "Encoder", inputs: Any) -> None:
    """Embed two examples before anything is written, to see that the network takes them."""
    from surefind.errors import InputError

    training = network.training
    try:
        network.eval()(inputs)
    except RuntimeError as error:
        raise InputError(
            f"the encoder cannot take images of shape {tuple(inputs.shape[1:])}: {error}. Choose another "
            "with --encoder."
        ) from error
    network.train(training)


def open_run(folder: Path, settings: dict[str, Any], *, resume: bool) -> None:
    """Make a run's folder, or check that the one that is there belongs to the same run."""
    from surefind.errors import InputError
    from surefind.processes import world

    if world()[0] > 0:
        return  # the first process does it for all; if it fails, torchrun stops the others
    file = folder / "config.toml"
    if file.exists():
        if not resume:
            raise InputError(
                f"there is a run in {folder} already; add --resume, or give another folder."
            )
        there = tomllib.loads(file.read_text())
        changed = sorted(k for k in settings if there.get(k) != settings[k] and k != "epochs")
        if changed:
            said = ", ".join(f"{k} was {there.get(k)!r}" for k in changed)
            raise InputError(f"the run in {folder} has other settings: {said}. Give the same ones.")
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / ".config.toml.tmp"
    beside.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in settings.items()))
    beside.replace(file)


@contextmanager
def progress_bar() -> "Iterator[Report]":
    """Show a bar for each stage, with its loss and the time that is left."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.4f}"),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console) as bar:
        tasks: dict[str, Any] = {}

        def report(stage: str, at: Any) -> None:
            done, total = at.epoch * at.steps + at.step, at.epochs * at.steps
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total, loss=at.loss)
            bar.update(tasks[stage], completed=done, loss=at.loss)

        yield report


def main() -> None:
    """Run the command line, and turn errors into sentences and exit codes."""
    errors = Console(stderr=True, highlight=False)
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except typer.Abort:
        errors.print("Stopped. What was kept last is safe; the same command with --resume goes on.")
        sys.exit(1)
    except typer.Exit as end:
        sys.exit(end.exit_code)
    except Exception as error:
        from surefind.errors import SurefindError

        if hasattr(error, "exit_code"):  # typer's own: wrong usage, which it explains itself
            error.show()  # type: ignore[attr-defined]
            sys.exit(error.exit_code)
        if not isinstance(error, SurefindError | OSError):
            raise
        errors.print(f"[red]Error:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
