"""`surefind report`: a page to look at, of a benchmark's results or of one run."""

import base64
import html
from pathlib import Path
from typing import Annotated, Any

import typer

from surefind.cli.completion import complete_run, is_run
from surefind.cli.console import say
from surefind.cli.evaluating import MEANINGS
from surefind.cli.run_folder import RunFolder, open_run, write_whole

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }}
img {{ max-width: 100%; background: #fff; }} table {{ border-collapse: collapse; }}
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
        typer.Argument(
            metavar="RUN|RESULTS",
            help="A run, or the folder of results that `surefind bench` wrote.",
            autocompletion=complete_run,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page; report.html in the folder by default.")
    ] = None,
    work: Annotated[
        Path, typer.Option(help="Where `surefind bench` kept its pictures, if it did.")
    ] = Path("runs/bench"),
) -> None:
    """Write a page to look at: of a benchmark's results, or of one run.

    Example: `surefind report runs/digits`
    """
    page = out or folder / "report.html"
    if is_run(folder):
        run = open_run(folder)
        page.parent.mkdir(parents=True, exist_ok=True)
        write_whole(page, run_page(run))
        run.explain()
    else:
        from surefind.report import PAPER, read_results, write_report

        pictures = work if work.is_dir() else None
        write_report(
            read_results(folder), page, page.with_suffix(".md"), pictures=pictures, published=PAPER
        )
        say(f"The tables as Markdown: {page.with_suffix('.md').resolve()}")
    say(f"The report: {page.resolve()}")


def run_page(run: RunFolder) -> str:
    """Compose the page of a run: settings, numbers, pictures; nothing from outside.

    Args:
        run: The run; whatever of it is there is shown.

    Returns:
        HTML.
    """
    measured = run.read_json("metrics.json")
    parts = []
    if measured is None:
        again = html.escape(f"surefind evaluate {run.path}")
        parts.append(f"<p>Not evaluated yet: <code>{again}</code></p>")
    else:
        parts += ["<h2>Numbers</h2>", _numbers(measured)]
    pictures = sorted((run.path / "plots").glob("*.svg"))
    if pictures:
        parts += ["<h2>Pictures</h2>", *map(_picture, pictures)]
    history = run.read_json("history.json") or {}
    if any(history.values()):
        stages = [
            (
                stage,
                f"{len(e)} epochs, {sum(x['seconds'] for x in e):.0f} s, loss {e[-1]['loss']:.4f}",
            )
            for stage, e in history.items()
            if e
        ]
        parts += ["<h2>Training</h2>", _table(stages)]
    parts += ["<h2>Settings</h2>", _table(run.config.items())]
    return PAGE.format(title=html.escape(f"Run {run.path.name}"), body="\n".join(parts))


def _numbers(measured: dict[str, Any]) -> str:
    on = f"On {measured['test']}" + (f", strange: {measured['ood']}" if measured["ood"] else "")
    values = measured["values"]
    rows = [(f"{k}: {MEANINGS[k]}", f"{values[k]:.3f}") for k in MEANINGS if k in values]
    return f"<p>{html.escape(on)}, {html.escape(measured['when'])}.</p>\n{_table(rows)}"


def _table(rows: Any) -> str:
    cells = (
        f"<tr><th>{html.escape(str(k))}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows
    )
    return f"<table>{''.join(cells)}</table>"


def _picture(file: Path) -> str:
    coded = base64.b64encode(file.read_bytes()).decode()
    return f'<img src="data:image/svg+xml;base64,{coded}" alt="{html.escape(file.stem)}">'
