"""Arguments that several commands take, with their help and completion."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from surefind.cli.completion import complete_run, complete_source

SOURCE_HELP = (
    "A set's name, a folder of images, a CSV/Parquet list of images, or vectors (.npy, .npz, .parquet); "
    "`:PART` at its end picks a part, as in `digits:test`."
)

DataFolder = Annotated[
    Path | None,
    typer.Option("--data", envvar="SUREFIND_DATA", help="Folder that holds the data sets."),
]
RunArgument = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A run: the folder that `surefind train` or `surefind fit` wrote.",
        autocompletion=complete_run,
    ),
]
SourceArgument = Annotated[str, typer.Argument(help=SOURCE_HELP, autocompletion=complete_source)]
Out = Annotated[Path, typer.Option(help="Folder of the run; everything is written there.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with a run that was cut off, or with more epochs.")
]
OnBad = Annotated[
    Literal["refuse", "skip"], typer.Option(help="What to do with unreadable images.")
]
RunOption = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="A run that embeds the source; without it, the source holds vectors.",
        autocompletion=complete_run,
    ),
]
GalleryArgument = Annotated[
    str,
    typer.Argument(
        metavar="GALLERY", help="A gallery's folder, milvus-lite's NAME.db, or http://host:port."
    ),
]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="Rescale vectors of another length than 1.")
]
