"""The README.md of a run: how it was made, what each of its files is, and what to do with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

EXPLAINED = {
    "config.toml": ("what was asked for", "`surefind train … --resume` compares it"),
    "model.safetensors": (
        "the fitted model: weights, uncertainty, preprocessing",
        "`embed`, `evaluate`, `fit`",
    ),
    "history.json": ("loss and seconds of each epoch, by stage", "`report`"),
    "metrics.json": ("numbers and curves of the last evaluation", "`report`"),
    "log.txt": ("what was done when", "you"),
    "plots": ("loss, uncertainty, ROC and other curves", "`report`"),
    "stages": ("training as it was kept; delete it when the run is finished", "`train … --resume`"),
    "gallery": ("items that can be searched", "`search`, `calibrate`, `serve`"),
    "gallery.service": ("reviews and small pictures", "`serve`"),
    "report.html": ("all of this on one page", "a browser"),
}
"""What each file is, and what uses it."""
AFTER = """\
What to do with it, from within this folder; capitals stand for data of yours:

    surefind evaluate . LABELLED
    surefind embed . IMAGES --out embeddings.npz
    surefind index IMAGES --run . --out gallery
    surefind report .
"""


def readme_text(folder: Path, config: Mapping[str, Any]) -> str:
    """Explain a run.

    Args:
        folder: The run; what is there is listed.
        config: Its settings; the command that made it is among them, if it is known.

    Returns:
        Markdown.
    """
    head = [f"# {folder.resolve().name}", ""]
    if made := config.get("command", ""):
        version = config.get("surefind", "")
        head += [f"A run of surefind {version}, made by:", "", f"    {made}", ""]
    rows = [
        f"| {name} | {what} | {users} |"
        for name, (what, users) in EXPLAINED.items()
        if (folder / name).exists()
    ]
    table = ["| file | what it is | used by |", "| --- | --- | --- |", *rows, ""]
    return "\n".join([*head, *table, AFTER])
