"""The arguments of commands, with their help and their limits.

What needs more words is in the help of the command.
"""

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from surefind.errors import InputError


def _between(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise BadParameter(f"{text} does not lie between 0 and 1, both excluded.")
    return value


def fraction(text: str) -> Any:
    """Return an option between 0 and 1, both excluded."""
    return Option(help=text, parser=_between, metavar="FRACTION")


def file(text: str) -> Any:
    """Return an option for a file that is there."""
    return Option(help=text, exists=True, dir_okay=False)


SOURCE_HELP = (
    "An image, a folder of images, a CSV or Parquet list of images, vectors (.npy, .npz, .parquet), or "
    "`digits` to try; `:PART` at its end picks a part, as in `digits:test`."
)
PLACE = "A gallery's folder, milvus-lite's NAME.db, or http://host:port."
GROUP_COLUMN = ("groups", "group")
"""What the column of a file of groups may be called."""

RunArgument = Annotated[Path, Argument(metavar="RUN", help="Folder that train or fit wrote.")]
GalleryArgument = Annotated[str, Argument(metavar="GALLERY", help=PLACE)]
SourceArgument = Annotated[str, Argument(help=SOURCE_HELP)]
SomeSource = Annotated[str | None, Argument(help=SOURCE_HELP)]
Queries = Annotated[str, Argument(help=f"What to look up. {SOURCE_HELP}")]
Ids = Annotated[list[str] | None, Argument(metavar="[ID]...", help="Ids of items.")]

Assigned = Annotated[
    list[str] | None, Option("--set", metavar="NAME=VALUE", help="Other settings.")
]
Confidence = Annotated[float | None, fraction("Probability of the guarantee; 0.95 by default.")]
Delete = Annotated[bool, Option("--delete", help="Delete the chosen items.")]
FalseAlarms = Annotated[float | None, fraction("Highest fraction of usual inputs rejected; 0.01.")]
Groups = Annotated[Path | None, file("A group per row: .npy, .npz, or a table's column `group`.")]
Label = Annotated[list[str] | None, Option(help="Only this label; may be given several times.")]
Labels = Annotated[Path | None, file("A label per row: .npy, .npz, or a table's column `label`.")]
MaxFpir = Annotated[float | None, fraction("Highest fraction of unknown queries that match.")]
MaxWrong = Annotated[float | None, fraction("Highest fraction of wrong matches; 0.01 by default.")]
Neighbours = Annotated[int, Option("-k", min=1, help="Neighbours of each query.")]
OnBad = Annotated[Literal["refuse", "skip"], Option(help="What to do with unreadable images.")]
Out = Annotated[Path, Option(help="Folder of the run; everything is written there.")]
Prefix = Annotated[str, Option(help="Prefix of ids, to tell sources with the same ids apart.")]
Relabel = Annotated[str | None, Option(metavar="LABEL|TABLE", help="The new label, or a table.")]
Resume = Annotated[bool, Option("--resume", help="Resume, or train for more epochs.")]
Reviews = Annotated[Path | None, Option(help="GALLERY.service: add what people reviewed there.")]
Run = Annotated[Path | None, Option(help="Run that embeds; by default the gallery's.")]
Seed = Annotated[int, Option(help="Random seed.")]
TableOut = Annotated[Path | None, Option(help="File to write: .csv, .json or .parquet.")]
Unknown = Annotated[str | None, Option(help="More queries, with no match in the gallery.")]
UnknownShare = Annotated[float | None, Option(min=0, max=1, help="Fraction of unknown queries.")]

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
