"""`surefind index`: put images or vectors into a gallery, or bring those up to date that are there.

What all commands about galleries share is here too: which vectors a source gives. With ``--run`` the
run embeds it. Without, it holds vectors already, and a column ``kappa`` beside them says how sure they are,
as in what `surefind embed` writes.

Nothing is written before everything was found good: a gallery that is not there is made last.

The gallery remembers the run, and the folder of images in files; each image's path is kept as its payload
``{"path": …}``, relative to that folder. So `surefind serve` finds its model and shows the pictures.

Ids are the names of the images, the ids in the file, or else the source's name and the row, so that two
sources without ids do not meet. Labels are texts; an existing gallery of whole numbers gets whole numbers.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefind.cli.advice import spelled
from surefind.cli.completion import complete_run
from surefind.cli.console import errors, say
from surefind.cli.embedding import embed_in_blocks
from surefind.cli.options import DataFolder, SourceArgument
from surefind.cli.progress import count_progress
from surefind.cli.run_folder import open_run
from surefind.cli.sources import check_fits, image_mode, read_source
from surefind.cli.vector_files import IDS, LABELS, VECTORS, holds_vectors
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.data.dataset import Dataset
    from surefind.embeddings import Embeddings
    from surefind.gallery.gallery import Gallery

BLOCK = 10_000
"""Items between two steps of the bar; each block is on the disk before the next."""
BATCH = 128

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


@dataclass(frozen=True, eq=False)
class Items:
    """What a source gives.

    Attributes:
        embeddings: `Embeddings`, or plain vectors (n, z), of which no κ is known.
        ids: One a row, distinct within a source of images.
        labels: A text or None each; None if the source has none at all.
        files: The images' files; None if the source is in memory or holds vectors.
    """

    embeddings: "Embeddings | Any"
    ids: list[str]
    labels: list[str | None] | None
    files: "Sequence[str] | None" = None

    def __len__(self) -> int:
        return len(self.ids)


def index(
    source: SourceArgument,
    out: Annotated[
        str,
        typer.Option(
            help="The gallery: a folder, milvus-lite's NAME.db, or http://host:port. Made if need be."
        ),
    ],
    run: RunOption = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="Labels, a row each: .npy, .npz, or a table with a column `label`."),
    ] = None,
    prefix: Annotated[
        str, typer.Option(help="Goes before every id, to keep sources apart that name alike.")
    ] = "",
    normalize: Normalize = False,
    data: DataFolder = None,
) -> None:
    """Put images or vectors into a gallery; what is there under the same id is replaced.

    Example: `surefind index digits:train --run runs/digits --out gallery`
    """
    with ExitStack() as closing:
        gallery = existing_gallery(out, normalize)
        if gallery is not None:
            closing.enter_context(gallery)
            check_model(gallery, run)
        items = read_items(source, run, data, labels=labels)
        ids = [prefix + i for i in items.ids]
        check_items(items, ids, normalize, None if gallery is None else gallery.dim)
        if gallery is None:
            gallery = closing.enter_context(_new_gallery(out, run, normalize))
        own = None if items.labels is None else labels_like(gallery, items.labels)
        payload = remember(gallery, run, items.files)
        there = set(gallery)
        updated = sum(i in there for i in ids)
        with count_progress("indexing", len(ids)) as done:
            for at in range(0, len(ids), BLOCK):
                rows = range(at, min(at + BLOCK, len(ids)))
                for known in (False, True):
                    some = [r for r in rows if (ids[r] in there) == known]
                    if some:
                        put = gallery.update if known else gallery.add
                        put(
                            items.embeddings[some],
                            ids=[ids[r] for r in some],
                            labels=None if own is None else [own[r] for r in some],
                            payload=None if payload is None else [payload[r] for r in some],
                        )
                done(rows.stop)
        say(
            f"Added {len(ids) - updated} items and updated {updated}; {out} holds {len(gallery)} of "
            f"{gallery.dim} dimensions."
        )
        how = {"run": run, "normalize": normalize, "data": data}
        if gallery.calibration is not None:
            again = spelled("calibrate", out, "HELD-OUT", **how)
            say(f"Its calibration is out of date; make it again with labelled queries: {again}")
        else:
            say(f"Next, or with other queries than these: {spelled('search', out, source, **how)}")
    if run is not None and run.resolve() in Path(out).resolve().parents:
        open_run(run).explain()


def existing_gallery(place: str, normalize: bool) -> "Gallery | None":
    """Open a gallery for writing, if it is there.

    Args:
        place: A folder, milvus-lite's NAME.db, or http://host:port.
        normalize: Whether it rescales vectors.

    Returns:
        The gallery; None if one can be made there.

    Raises:
        InputError: If something else is there.
    """
    from surefind.gallery.gallery import Gallery
    from surefind.gallery.generation import OURS

    path = Path(place)
    if not _on_milvus(place) and path.exists() and not (path / "gallery.json").is_file():
        if not path.is_dir() or not all(OURS.fullmatch(p.name) for p in path.iterdir()):
            raise InputError(f"{place} is in use by something else; give a new or an empty folder.")
        return None
    try:
        return Gallery.open(place, normalize=normalize)
    except InputError:  # there is none
        return None


def _new_gallery(place: str, run: Path | None, normalize: bool) -> "Gallery":
    from surefind.gallery.gallery import Gallery

    engine = "milvus" if _on_milvus(place) else "faiss"
    model = None if run is None else open_run(run).fingerprint
    return Gallery(engine, place, model=model, normalize=normalize)


def remember(
    gallery: "Gallery", run: Path | None, files: Sequence[str] | None
) -> list[dict[str, str]] | None:
    """Keep with a gallery where its model and its images are.

    Args:
        gallery: Its first folder of images stays; files elsewhere get their full path.
        run: What embeds the items.
        files: Of the items; None if they have none.

    Returns:
        The payload of each item; None if there are no files.
    """
    if run is not None:
        gallery.describe(run=str(run.resolve()))
    if files is None:
        return None
    paths = [Path(file).resolve() for file in files]
    folder = Path(gallery.about.get("images") or os.path.commonpath([p.parent for p in paths]))
    if folder != Path(folder.anchor):  # or else every file of the machine would be shown
        gallery.describe(images=str(folder))
    inside = [p.relative_to(folder) if p.is_relative_to(folder) else p for p in paths]
    return [{"path": p.as_posix()} for p in inside]


def _on_milvus(place: str) -> bool:
    return "://" in place or place.endswith(".db")


def check_items(items: Items, ids: list[str], normalize: bool, dim: int | None) -> None:
    """Require items that a gallery takes, all of them, before it is made or changed.

    Args:
        items: Their vectors.
        ids: What they will be called.
        normalize: Whether vectors of another length than 1 are rescaled.
        dim: The gallery's dimension; None if it has none yet.
    """
    from surefind.gallery.items import read_ids, read_vectors

    read_ids(ids)
    for at in range(0, len(ids), BLOCK):
        read_vectors(items.embeddings[at : at + BLOCK], normalize=normalize, dim=dim)


def check_model(gallery: "Gallery", run: Path | None) -> None:
    """Require that a gallery's items were embedded by the same run.

    Args:
        gallery: It remembers the model of the run that it was made with.
        run: What embeds the vectors at hand; None if that is not known.

    Raises:
        InputError: If they differ.
    """
    model = None if run is None else open_run(run).fingerprint
    if None not in (model, gallery.model) and model != gallery.model:
        raise InputError(
            f"the gallery was made with another run ({gallery.model}, this one is {model}), and vectors "
            "of two models cannot be compared. Give that run, or index everything into a new gallery."
        )


def labels_like(gallery: "Gallery", labels: Sequence[str | None]) -> list[Any]:
    """Turn labels into whole numbers if those of the gallery are.

    Args:
        gallery: One that may have been made with other labels than texts.
        labels: Texts or None.

    Returns:
        The labels, of the gallery's kind.
    """
    first = next(
        (label for label in (gallery.get(i).label for i in gallery) if label is not None), ""
    )
    if isinstance(first, str):
        return list(labels)
    return [int(x) if x is not None and x.removeprefix("-").isdecimal() else x for x in labels]


def read_items(
    source: str,
    run: Path | None,
    data: Path | None,
    *,
    labels: Path | None = None,
    announce: Callable[[str], None] = say,
) -> Items:
    """Read vectors, or embed what a source holds.

    Args:
        source: A set's name, a folder or a file, perhaps with ``:PART``.
        run: The run that embeds it; None if it holds vectors.
        data: Folder that holds the data sets.
        labels: A file with labels instead of the source's own.
        announce: Called with how long embedding takes.

    Returns:
        The items, at least one.

    Raises:
        InputError: If there is nothing, or nothing that embeds it.
    """
    if run is None and Path(source).is_file() and holds_vectors(Path(source)):
        found = _read_file(Path(source))
    elif run is None:
        found = _of_dataset(read_source(source, data), source)
        if getattr(found.embeddings, "ndim", 0) != 2:
            raise InputError(f"{source} holds images; give --run RUN, which embeds them.")
    else:
        folder = open_run(run)
        learner = folder.learner()
        dataset = read_source(source, data, mode=image_mode(learner.encoder))
        if len(dataset):
            check_fits(learner, dataset, folder.config.get("inputs"))
            embeddings = embed_in_blocks(learner, dataset, BATCH, announce=announce)
            found = _of_dataset(dataset, source, embeddings)
        else:
            found = _of_dataset(dataset, source)
    if not len(found):
        raise InputError(f"{source} holds nothing.")
    if labels is None:
        return found
    given = read_column(labels, LABELS, len(found))
    return replace(found, labels=given)


def read_column(path: Path, names: tuple[str, ...], count: int) -> list[str | None]:
    """Read a text for each row from a file; what is empty, null or -1 is None.

    Args:
        path: .npy, .npz, .csv or .parquet.
        names: What the column may be called; that of a .npy file has no name.
        count: Rows that it must have.

    Returns:
        The texts.

    Raises:
        InputError: If there is no such column, or it has another length.
    """
    from surefind.data.arrays import read_arrays
    from surefind.data.table import read_table

    arrays = path.suffix.lower() in (".npy", ".npz")
    columns: Any = read_arrays(path) if arrays else read_table(path).columns
    found = _texts(columns, (*names, "array"))
    if found is None:
        raise InputError(
            f"{path} holds {', '.join(map(repr, columns))}; name the column {names[-1]!r}."
        )
    if len(found) != count:
        raise InputError(f"{path} has {len(found)} rows and the source {count}; give one each.")
    return found


def _of_dataset(dataset: "Dataset", source: str, embeddings: Any = None) -> Items:
    names = dataset.names or [f"{Path(source).stem}/{i}" for i in range(len(dataset))]
    labels = None if dataset.labels is None else dataset.labels.tolist()
    if labels is not None and dataset.classes is not None:
        labels = [dataset.classes[x] for x in labels]
    return Items(
        dataset.inputs if embeddings is None else embeddings,
        list(names),
        None if labels is None else [text_or_none(x) for x in labels],
        getattr(dataset.inputs, "paths", None),
    )


def _read_file(path: Path) -> Items:
    import numpy as np

    from surefind.data.arrays import read_arrays
    from surefind.embeddings import Embeddings

    parquet = path.suffix.lower() not in (".npy", ".npz")
    columns: Any = _parquet(path) if parquet else read_arrays(path)
    name = next((n for n in VECTORS if n in columns), None)
    if name is None:
        raise InputError(
            f"{path} holds {', '.join(map(repr, columns))} and none is called 'features'. Name the "
            "vectors so, and their labels 'labels'."
        )
    try:
        vectors: Any = np.asarray(columns[name], dtype=np.float32)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: {name!r} is no table of numbers: {error}.") from error
    if vectors.ndim != 2:
        raise InputError(
            f"{path} holds {name!r} of shape {vectors.shape}, which are no vectors (n, d). Images need "
            "--run RUN, which embeds them."
        )
    ids = _texts(columns, IDS) or [f"{path.stem}/{i}" for i in range(len(vectors))]
    if None in ids:
        raise InputError(f"{path}: row {ids.index(None)} has no id.")
    if "kappa" in columns:
        vectors = Embeddings(vectors, np.asarray(columns["kappa"], dtype=np.float32))
    return Items(vectors, [str(i) for i in ids], _texts(columns, LABELS))


def _parquet(path: Path) -> dict[str, list[Any]]:
    from surefind.data.extras import require

    table = require("pyarrow.parquet", "read Parquet files").read_table(path)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _texts(columns: Any, names: tuple[str, ...]) -> list[str | None] | None:
    found = next((columns[n] for n in names if n in columns), None)
    if found is None:
        return None
    return [text_or_none(x) for x in getattr(found, "tolist", lambda: found)()]


def text_or_none(value: Any) -> str | None:
    """Write a label as a text; None for one that says: not in the gallery."""
    return None if value is None or str(value).strip() in ("", "-1") else str(value).strip()


def to_stderr(sentence: str) -> None:
    """Say something beside what a program reads from the standard output."""
    errors.print(sentence, soft_wrap=True, markup=False)
