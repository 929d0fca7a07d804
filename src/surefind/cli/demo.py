"""`surefind demo`: see on small images what κ and novelty are for."""

import shutil
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from surefind.cli.console import check_place, say, spelled, stage_progress
from surefind.errors import InputError

MARK = ".surefind-demo"
"""Says that what is in a folder was written by the demo, which may write it anew."""
PARTS = ("gallery", "gallery.service", "images", "run")
SPACE = 10_000_000
"""Bytes for the page, the run and the gallery."""


def demo(
    out: Annotated[Path, Option(help="Folder for the page, the run and the gallery.")] = Path(
        "surefind-demo"
    ),
) -> Any:
    """See on small images what κ and novelty are for; under three minutes, no downloads.

    Example: `surefind demo`
    """
    from surefind.demo import run_demo, write_page

    check_place(out, SPACE)
    clear_place(out)
    with stage_progress(lines=False) as report:
        findings = run_demo(out, say=say, report=report)
    page = out / "report.html"
    write_page(findings, page)
    say("Next, with your own images: surefind train --help")
    say("Next, with vectors that you have: surefind fit --help")
    asking = spelled("serve", out / "gallery", model=out / "run", images=out / "images")
    say(f"Next, to ask it yourself in a browser: {asking}")
    say(f"The report with figures: {page.resolve()}")
    return {"page": page.resolve(), "run": out / "run", "gallery": out / "gallery"}


def clear_place(folder: Path) -> None:
    """Make the demo's folder, or empty it of what an earlier demo left; nothing else is touched.

    Args:
        folder: Where.

    Raises:
        InputError: If something in the way is not the demo's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = [folder / name for name in PARTS if (folder / name).exists()]
    if there and not (folder / MARK).exists():
        raise InputError(
            f"{there[0]} is there and not of a demo; give another folder with --out.", field="out"
        )
    for part in there:
        shutil.rmtree(part)
    (folder / MARK).touch()
