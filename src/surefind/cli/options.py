"""Arguments that several commands take, with their help and completion.

What the shell completes: methods, runs, files.

The shell asks at every press of the tab key, so nothing here may wait for PyTorch.
"""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from surefind.errors import InputError
from surefind.learning import METHOD_NAMES


def complete_method(incomplete: str) -> list[str]:
    """Complete a method's name."""
    return [name for name in METHOD_NAMES if name.startswith(incomplete)]


def complete_source(incomplete: str) -> list[str]:
    """Complete a folder, a file or the digits."""
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


SOURCE_HELP = (
    "`digits`, an image, a folder of images, a CSV/Parquet list of images, or vectors (.npy, .npz, "
    ".parquet); `:PART` at its end picks a part, as in `digits:test`."
)
run_argument = partial(Argument, autocompletion=complete_run)
source_argument = partial(Argument, autocompletion=complete_source)
source_option = partial(Option, autocompletion=complete_source)

RunArgument = Annotated[
    Path,
    run_argument(
        metavar="RUN", help="A run: the folder that `surefind train` or `surefind fit` wrote."
    ),
]
GalleryArgument = Annotated[
    str,
    Argument(
        metavar="GALLERY", help="A gallery's folder, milvus-lite's NAME.db, or http://host:port."
    ),
]
SourceArgument = Annotated[str, source_argument(help=SOURCE_HELP)]
DataFolder = Annotated[
    Path | None, Option("--data", envvar="SUREFIND_DATA", help="Folder that holds the data sets.")
]
GROUP_COLUMN = ("groups", "group")
"""What the column of a file of groups may be called."""
Groups = Annotated[
    Path | None,
    Option(help="A group for each query: .npy, .npz, or a table with a column `group`."),
]
ItemGroups = Annotated[
    Path | None,
    Option(
        "--groups",
        help="What each item was taken from together with others (a video, a session), a row each: .npy, "
        ".npz, or a table with a column `group`.",
    ),
]
Labels = Annotated[
    Path | None,
    Option(
        help="Labels, a row each: .npy, .npz, or a table with a column `label`; the data's own by default."
    ),
]
Normalize = Annotated[bool, Option("--normalize", help="Rescale vectors of another length than 1.")]
OnBad = Annotated[Literal["refuse", "skip"], Option(help="What to do with unreadable images.")]
Out = Annotated[Path, Option(help="Folder of the run; everything is written there.")]
Resume = Annotated[
    bool, Option("--resume", help="Resume an interrupted run, or train for more epochs.")
]
Run = Annotated[
    Path | None,
    Option(
        help="A run that embeds the source; without it, the source holds vectors.",
        autocompletion=complete_run,
    ),
]
Seed = Annotated[int, Option(help="Decides everything random.")]
FreezeBackbone = Annotated[
    bool,
    Option(
        "--freeze-backbone",
        help="Leave the backbone as it is, and train on features that are computed once.",
    ),
]
TrainedStages = Annotated[
    int, Option(help="How many of a frozen backbone's last stages are trained after all.")
]
Cache = Annotated[
    Path | None,
    Option(help="Folder where features of a frozen backbone are kept, also for later runs."),
]


def check_frozen_only(freeze_backbone: bool, **given: object) -> None:
    """Refuse options of frozen backbones, those that are neither 0 nor None, where none is frozen."""
    if freeze_backbone:
        return
    for name, value in given.items():
        if value:
            raise InputError(
                f"--{name.replace('_', '-')} is for frozen backbones. Add --freeze-backbone, or leave it "
                "out.",
                field=name,
            )
