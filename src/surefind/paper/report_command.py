"""`surefind report`: a page to look at, of a benchmark's results or of one run."""

import base64
import html
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from surefind.cli.console import say, spelled, warn
from surefind.cli.evaluate import MEANINGS
from surefind.cli.options import is_run, run_argument
from surefind.cli.run_folder import METRICS, RunFolder, open_run
from surefind.errors import InputError
from surefind.files import write_atomically
from surefind.paper.bench_command import WORK
from surefind.paper.vocabulary import best_detectors

if TYPE_CHECKING:
    from surefind.paper.results import Results

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }}
img {{ max-width: 100%; }} table {{ border-collapse: collapse; }}
th, td {{ padding: .2rem .8rem; border-bottom: 1px solid #999; text-align: left; }}
@media (prefers-color-scheme: dark) {{ body {{ color: #eee; background: #181818; }} }}
</style>
<h1>{title}</h1>
{body}
</html>
"""


def report(
    folder: Annotated[
        Path,
        run_argument(
            metavar="RUN|RESULTS",
            help="A run, or the folder of results that `surefind bench` wrote.",
        ),
    ],
    out: Annotated[
        Path | None, Option(help="The page; report.html in the folder by default.")
    ] = None,
    work: Annotated[
        Path, Option(help="Where `surefind bench` stored its artifacts, if it did.")
    ] = WORK,
) -> Any:
    """Write a page to look at: of a benchmark's results, or of one run.

    Example: `surefind report runs/digits`
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            f"{folder} {what}; give a run, or the folder of results that `surefind bench` wrote.",
            field="folder",
        )
    page = out or folder / "report.html"
    tables: Path | None = None
    if page.suffix != ".html":
        raise InputError(f"--out must end in .html; got {page}.", field="out")
    if is_run(folder):
        run = open_run(folder)
        if not run.trained:
            warn(run.unfinished)
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, run_page(run))
        run.explain()
    else:
        from surefind.paper.markdown import MARKS
        from surefind.paper.page import write_report
        from surefind.paper.published import PAPER
        from surefind.paper.results import read_results

        artifacts = work if work.is_dir() else None
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
        write_report(results, page, tables, artifacts=artifacts, published=PAPER)
        say(f"The tables as Markdown: {tables.resolve()}")
    say(f"The report: {page.resolve()}")
    return {"page": page.resolve(), "tables": None if tables is None else tables.resolve()}


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


def run_page(run: RunFolder) -> str:
    """Compose the page of a run: settings, numbers, figures; nothing from outside.

    Args:
        run: The run; whatever of it is there is shown.

    Returns:
        HTML.
    """
    measured = run.read_json(METRICS)
    parts = []
    if not run.trained:
        parts.append(f"<p>{html.escape(run.unfinished)}</p>")
    elif measured is None:
        again = html.escape(spelled("evaluate", run.path))
        parts.append(f"<p>Not evaluated yet: <code>{again}</code></p>")
    else:
        parts += ["<h2>Numbers</h2>", _numbers(measured)]
    figures = sorted((run.path / "plots").glob("*.svg"))
    if figures:
        parts += ["<h2>Figures</h2>", *map(_figure, figures)]
    earlier = [run.read_json(file) for file in run.earlier_evaluations]
    if earlier:
        parts += ["<h2>Earlier evaluations</h2>", *map(_numbers, earlier)]
    history = run.read_json("history.json") or {}
    stages = {
        stage: f"{len(e)} epochs, {sum(x['seconds'] for x in e):.0f} s, loss {e[-1]['loss']:.4f}"
        for stage, e in history.items()
        if e
    }
    if stages:
        parts += ["<h2>Training</h2>", _table(stages)]
    parts += ["<h2>Settings</h2>", _table(run.config)]
    return PAGE.format(title=html.escape(f"Run {run.path.resolve().name}"), body="\n".join(parts))


def _numbers(measured: dict[str, Any]) -> str:
    on = f"On {measured['test']}" + (f", OOD: {measured['ood']}" if measured["ood"] else "")
    values = measured["values"]
    rows = {f"{k}: {what}": f"{values[k]:.3f}" for k, what in MEANINGS.items() if k in values}
    sentences = best_detectors(values, measured.get("intervals"))
    best = "".join(f"\n<p>{html.escape(sentence)}</p>" for sentence in sentences)
    return f"<p>{html.escape(on)}, {html.escape(measured['when'])}.</p>\n{_table(rows)}{best}"


def _table(rows: Mapping[str, Any]) -> str:
    shown = [(html.escape(k), html.escape(str(v))) for k, v in rows.items()]
    return f"<table>{''.join(f'<tr><th>{k}</th><td>{v}</td></tr>' for k, v in shown)}</table>"


def _figure(file: Path) -> str:
    coded = base64.b64encode(file.read_bytes()).decode()
    return f'<img src="data:image/svg+xml;base64,{coded}" alt="{html.escape(file.stem)}">'
