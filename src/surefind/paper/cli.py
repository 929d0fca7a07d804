"""`surefind bench`, `surefind report` and `surefind data`, the commands of the extra ``paper``.

They are found by the command line as entry points of the group ``surefind.commands``.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from surefind.cli.console import (
    Failure,
    check_place,
    say,
    spelled,
    stage_progress,
    this_command,
    warn,
    whole_steps,
)
from surefind.errors import CommandInterruptedError, InputError
from surefind.evaluation import best_detector
from surefind.paper.vocabulary import BASELINES, BENCHMARKS, DATASETS, METHODS, RECIPES

if TYPE_CHECKING:
    from surefind.paper.results import Results

WORK = Path("runs/bench")
"""Where checkpoints and artifacts are stored, if no other folder is named."""
SHOWN = ("recall@1", "auroc", "nearest_distance_auroc", "novelty_auroc", "ausc", "ece")


def completing(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function that completes one of several names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def complete_methods(incomplete: str) -> list[str]:
    """Complete the last of several methods, separated by commas."""
    *before, last = incomplete.split(",")
    done = "".join(f"{name}," for name in before)
    names = [name for name in ("all", *METHODS, *BASELINES) if name not in before]
    return [done + name for name in names if name.startswith(last)]


DataFolder = Annotated[
    Path | None, Option("--data", envvar="SUREFIND_DATA", help="Folder that holds the data sets.")
]


def bench(
    source: Annotated[
        str,
        Argument(help="A data set with a benchmark.", autocompletion=completing(BENCHMARKS)),
    ],
    methods: Annotated[
        str,
        Option(help="Methods, separated by commas, or all.", autocompletion=complete_methods),
    ] = "all",
    seeds: Annotated[int, Option(min=1, help="How many seeds: 0, 1, …")] = 1,
    ablation: Annotated[
        bool, Option("--ablation", help="Also the paper's twelve ablation variants.")
    ] = False,
    backbone: Annotated[
        Path | None, Option(help="Folder of a pretrained network, where one is needed.")
    ] = None,
    recipe: Annotated[
        str | None,
        Option(
            help=f"Settings other than the set's own: {', '.join(RECIPES)} (LAM and the point estimate).",
            autocompletion=completing(RECIPES),
        ),
    ] = None,
    freeze_backbone: Annotated[
        bool,
        Option("--freeze-backbone", help="Train on features that are computed once."),
    ] = False,
    trained_stages: Annotated[
        int,
        Option(min=0, help="How many of a frozen backbone's last stages are trained after all."),
    ] = 0,
    cache: Annotated[
        Path | None, Option(help="Folder where features of a frozen backbone are kept.")
    ] = None,
    out: Annotated[Path, Option(help="Where results are written.")] = Path("results"),
    work: Annotated[Path, Option(help="Folder of checkpoints and artifacts.")] = WORK,
    data: DataFolder = None,
) -> Any:
    """Compare methods on a data set; killed at any moment, the same command goes on.

    Example: `surefind bench digits --methods deterministic,laplace-posthoc`

    Example: `surefind report results`
    """
    from surefind.checks import check_choice
    from surefind.paper.frozen import frozen_problem
    from surefind.paper.protocols import load_problem
    from surefind.paper.recipes import recipe_protocol
    from surefind.paper.results import read_result, result_file
    from surefind.paper.running import run_problem, select_methods

    check_choice("source", source, BENCHMARKS)
    check_place(out)
    check_place(work, field="work")
    if not freeze_backbone and (trained_stages or cache):
        raise InputError(
            "--trained-stages and --cache are for frozen backbones; add --freeze-backbone.",
            field="freeze_backbone",
        )
    if cache is not None:
        check_place(cache, field="cache")
    chosen = select_methods(methods.split(","), with_ablation=ablation)
    protocol = None if recipe is None else recipe_protocol(recipe, source)
    problem = load_problem(source, data, backbone=backbone, protocol=protocol)
    if freeze_backbone:
        problem = frozen_problem(problem, trained_stages=trained_stages, cache=cache)
    measured = {(m, s): result_file(out, problem.name, m, s) for s in range(seeds) for m in chosen}
    files = list(measured.values())
    there = sum(file.exists() for file in files)
    say(f"{len(files)} results of {problem.name}, {there} of them there already.")
    try:
        with stage_progress("bench") as shown, whole_steps(shown) as reported:
            run_problem(
                problem,
                chosen,
                range(seeds),
                results=out,
                work=work,
                on_result=result_lines(),
                say=say,
                report=reported,
            )
    except KeyboardInterrupt as stop:
        raise CommandInterruptedError(
            f"finished results are kept. Go on with: {this_command()}"
        ) from stop
    say(f"Results are in {out / problem.name}.")
    say(f"Next: {spelled('report', out, work=None if work == WORK else work)}")
    return {
        "folder": out / problem.name,
        "results": [
            {"method": m, "seed": s, "file": file, "values": read_result(file).values}
            for (m, s), file in measured.items()
            if file.exists()  # a method may not suit the data
        ],
    }


def result_lines() -> Callable[[str, int, dict[str, float] | None], None]:
    """Return what a benchmark calls before and after each measurement: it prints a line per result."""
    started = time.monotonic()

    def on_result(method: str, seed: int, values: dict[str, float] | None) -> None:
        nonlocal started
        if values is None:
            started = time.monotonic()
            return
        numbers = ", ".join(f"{k} {values[k]:.3f}" for k in SHOWN if k in values)
        say(f"{method}, seed {seed}: {numbers}; took {time.monotonic() - started:.0f} s.")
        if best := best_detector(values):
            say(f"{method}, seed {seed}: {best}")

    return on_result


def report(
    folder: Annotated[
        Path,
        Argument(
            metavar="RESULTS",
            exists=True,
            file_okay=False,
            help="The folder of results that `surefind bench` wrote.",
        ),
    ],
    out: Annotated[
        Path | None, Option(help="The page; report.html in the folder by default.")
    ] = None,
    work: Annotated[
        Path, Option(help="Where `surefind bench` stored its artifacts, if it did.")
    ] = WORK,
) -> Any:
    """Write a page to look at, and tables, of a benchmark's results.

    Example: `surefind report results`
    """
    from surefind.paper.page import MARKS, write_report
    from surefind.paper.published import PAPER
    from surefind.paper.results import read_results

    page = out or folder / "report.html"
    if page.suffix != ".html":
        raise InputError(f"--out must end in .html; got {page}.", field="out")
    results = read_results(folder, on_bad=warn)
    for sentence in missing_results(results):
        warn(sentence)
    tables = page.with_suffix(".md")
    if tables.exists() and not tables.read_text("utf-8", "replace").startswith(MARKS):
        raise InputError(
            f"{tables} is there and was not written by surefind report: the tables would overwrite it. "
            "Give the page another name with --out.",
            field="out",
        )
    artifacts = work if work.is_dir() else None
    write_report(results, page, tables, artifacts=artifacts, published=PAPER)
    say(f"The tables as Markdown: {tables.resolve()}")
    say(f"The report: {page.resolve()}")
    return {"page": page.resolve(), "tables": tables.resolve()}


def missing_results(results: "Results") -> list[str]:
    """Name the methods that lack a seed that others of the same table have, a sentence per data set."""
    sentences = []
    for part in results.sets:
        lacking = []
        for methods in (part.by_method("method", "baseline"), part.by_method("ablation")):
            seeds = {m: {result.seed for result in found} for m, found in methods.items()}
            every = sorted(set().union(*seeds.values()))
            lacking += [f"{m}-seed{s}" for m in seeds for s in every if s not in seeds[m]]
        if lacking:
            missing = ", ".join(lacking)
            sentences.append(f"{part.name} has no {missing}; other methods have these seeds.")
    return sentences


def data(
    name: Annotated[
        str | None,
        Argument(
            help="A set to check; all sets are listed without it.",
            autocompletion=completing(DATASETS),
        ),
    ] = None,
    folder: DataFolder = None,
    decode: Annotated[bool, Option(help="Decode every image file once.")] = True,
) -> Any:
    """List the published data sets, or compare one with what its publisher announces.

    Example: `surefind data digits`
    """
    from surefind.paper.catalogue import ENTRIES, check, find

    if name is None:
        listed = []
        for known, entry in ENTRIES.items():
            try:
                place: str | None = str(find(known, folder) or "comes with scikit-learn")
            except InputError:
                place = None
            say(f"{known:18s} {entry.title}: {place or 'get ' + entry.get}")
            listed.append({"name": known, "title": entry.title, "place": place, "get": entry.get})
        return listed
    found = check(name, folder, decode=decode)
    place = f"{found.folder}, found by {found.found_by}" if found.folder else "a library"
    say(f"{found.title} in {place}", style="bold")
    published = found.published
    for part, count in found.counts.items():
        told = [_of(count, "examples", published.counts.get(part))]
        if part in found.n_classes:
            told.append(_of(found.n_classes[part], "classes", published.n_classes.get(part)))
        say(f"  {part}: {', '.join(told)}")
    for file, verdict in found.checksums.items():
        say(f"  {file}: checksum {verdict}")
    if found.decoded:
        say(f"  {found.decoded} image files decoded")
    for problem in found.problems:
        say(problem, style="red")
    result = {
        "name": name,
        "ok": found.ok,
        "folder": found.folder,
        "counts": dict(found.counts),
        "checksums": dict(found.checksums),
        "decoded": found.decoded,
        "problems": list(found.problems),
    }
    if not found.ok:
        return Failure(result)
    compared = " and ".join(found.compared) or "nothing"
    say(f"Everything is as published, as far as that is known here: {compared} compared.")
    return result


def _of(count: int, what: str, published: int | None) -> str:
    return f"{count} {what}" + ("" if published is None else f" of {published} published")
