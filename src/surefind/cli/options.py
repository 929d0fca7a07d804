"""Arguments that several commands take, with their help and their limits."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from surefind.errors import InputError


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise BadParameter(f"{text} does not lie between 0 and 1, both excluded.")
    return value


SOURCE_HELP = (
    "An image, a folder of images, a CSV or Parquet list of images, vectors (.npy, .npz, .parquet), or "
    "`digits` to try; `:PART` at its end picks a part, as in `digits:test`."
)
file_option = partial(Option, exists=True, dir_okay=False)
fraction_option = partial(Option, parser=_fraction, metavar="FRACTION")

RunArgument = Annotated[
    Path,
    Argument(metavar="RUN", help="Folder that `surefind train` or `surefind fit` wrote."),
]
GalleryArgument = Annotated[
    str,
    Argument(
        metavar="GALLERY", help="A gallery's folder, milvus-lite's NAME.db, or http://host:port."
    ),
]
SourceArgument = Annotated[str, Argument(help=SOURCE_HELP)]
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
Run = Annotated[Path | None, Option(help="Run that embeds; by default the gallery's.")]
Seed = Annotated[int, Option(help="Random seed.")]
Assigned = Annotated[
    list[str] | None,
    Option("--set", metavar="NAME=VALUE", help="Any other setting; a wrong name lists them."),
]


WHOLE = {"examples_per_class", "workers", "trained_stages", "views", "epochs", "embedding_dim"}
WHOLE |= {"seed", "members", "n_samples"}
"""Settings that are whole numbers; other numbers are real."""


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
        found[name] = value.strip()
        with suppress(ValueError):
            found[name] = int(value) if name in WHOLE else float(value)
    return found
