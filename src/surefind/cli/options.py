"""Arguments that several commands take, with their help, their limits and what the shell completes.

The shell asks at every press of the tab key, so nothing here may wait for PyTorch.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from surefind.errors import InputError


def complete_source(incomplete: str) -> list[str]:
    """Complete the digits, a folder or a file."""
    digits = ["digits"] if "digits".startswith(incomplete) else []
    return [*digits, *map(_shown, _paths(incomplete))]


def complete_run(incomplete: str) -> list[str]:
    """Complete a run's folder: runs that begin like this, and folders in which there may be some."""
    folders = [p for p in _paths(incomplete) if p.is_dir()]
    if folders and not incomplete:
        inner = [q for p in folders for q in sorted(p.iterdir()) if is_run(q)]
        return [str(p) for p in (*filter(is_run, folders), *inner)]
    return [str(p) if is_run(p) else _shown(p) for p in folders]


def is_run(folder: Path) -> bool:
    """Return whether a folder looks like a run."""
    return (folder / "config.toml").is_file() or (folder / "model.safetensors").is_file()


def _paths(incomplete: str) -> list[Path]:
    head, _, tail = incomplete.rpartition("/")
    place = Path(f"{head}/") if "/" in incomplete else Path()
    try:
        found = sorted(p for p in place.iterdir() if p.name.startswith(tail))
    except OSError:
        return []
    return [p for p in found if tail.startswith(".") or not p.name.startswith(".")]


def _shown(path: Path) -> str:
    return f"{path}/" if path.is_dir() else str(path)


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise BadParameter(f"{text} does not lie between 0 and 1, both excluded.")
    return value


SOURCE_HELP = (
    "An image, a folder of images, a CSV or Parquet list of images, vectors (.npy, .npz, .parquet), or "
    "`digits` to try; `:PART` at its end picks a part, as in `digits:test`."
)
run_argument = partial(Argument, autocompletion=complete_run)
run_option = partial(Option, autocompletion=complete_run)
source_argument = partial(Argument, autocompletion=complete_source)
source_option = partial(Option, autocompletion=complete_source)
file_option = partial(Option, exists=True, dir_okay=False)
fraction_option = partial(Option, parser=_fraction, metavar="FRACTION")

RunArgument = Annotated[
    Path,
    run_argument(metavar="RUN", help="Folder that `surefind train` or `surefind fit` wrote."),
]
GalleryArgument = Annotated[
    str,
    Argument(
        metavar="GALLERY", help="A gallery's folder, milvus-lite's NAME.db, or http://host:port."
    ),
]
SourceArgument = Annotated[str, source_argument(help=SOURCE_HELP)]
GROUP_COLUMN = ("groups", "group")
"""What the column of a file of groups may be called."""
Groups = Annotated[
    Path | None,
    file_option(help="One group per query: .npy, .npz, or a table with a column `group`."),
]
Labels = Annotated[
    Path | None,
    file_option(
        help="One label per row: .npy, .npz, or a table with a column `label`; the data's own by default."
    ),
]
OnBad = Annotated[Literal["refuse", "skip"], Option(help="What to do with unreadable images.")]
Out = Annotated[Path, Option(help="Folder of the run; everything is written there.")]
TableOut = Annotated[Path | None, Option(help="File to write: .csv, .json or .parquet.")]
Resume = Annotated[
    bool, Option("--resume", help="Resume an interrupted run, or train for more epochs.")
]
Run = Annotated[Path | None, run_option(help="Run that embeds; by default the gallery's.")]
Seed = Annotated[int, Option(help="Random seed.")]
Assigned = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="Any other setting; a wrong name lists them."),
]


def read_assigned(given: list[str] | None, names: set[str]) -> dict[str, Any]:
    """Read settings that were given as NAME=VALUE; numbers become numbers.

    Args:
        given: As typed.
        names: What can be set.

    Returns:
        Values by name.

    Raises:
        InputError: If there is no such setting.
    """
    found: dict[str, Any] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in names:
            raise InputError(
                f"--set {text} sets nothing; write NAME=VALUE with one of {', '.join(sorted(names))}.",
                field="assigned",
            )
        found[name] = _number(value.strip(), int if name in WHOLE else float)
    return found


WHOLE = {
    "examples_per_class",
    "workers",
    "trained_stages",
    "views",
    "epochs",
    "embedding_dim",
    "seed",
}
WHOLE |= {"members", "n_samples"}
"""Settings that are whole numbers; other numbers are real."""


def _number(text: str, kind: type[int] | type[float]) -> float | int | str:
    try:
        return kind(text)
    except ValueError:
        return text
