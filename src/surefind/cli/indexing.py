"""`surefind index`: put images or vectors into a gallery, or bring those up to date that are there.

What all commands about galleries share is here too: which vectors a source gives. With ``--run`` the
run embeds it. Without, it holds vectors already, and a column ``kappa`` beside them says how sure they are,
as in what `surefind embed` writes.

Ids are the names of the images, the ids in the file, or else the source's name and the row, so that two
sources without ids do not meet. Labels are texts; an existing gallery of whole numbers gets whole numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from surefind.cli.completion import complete_run
from surefind.cli.console import errors, say
from surefind.cli.embedding import embed_in_blocks
from surefind.cli.options import DataFolder, SourceArgument
from surefind.cli.progress import count_progress
from surefind.cli.run_folder import MODEL, open_run
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
        model: What tells the embedding model from others; None for vectors from elsewhere.
    """

    embeddings: "Embeddings | Any"
    ids: list[str]
    labels: list[str | None] | None
    model: str | None

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
    items = read_items(source, run, data, labels=labels)
    ids = [prefix + i for i in items.ids]
    with _opened(out, items.model, normalize) as gallery:
        check_model(gallery, items.model)
        own = None if items.labels is None else labels_like(gallery, items.labels)
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
                        )
                done(rows.stop)
        say(
            f"Added {len(ids) - updated} items and updated {updated}; {out} holds {len(gallery)} of "
            f"{gallery.dim} dimensions."
        )
        if gallery.calibration is not None:
            say(f"Its calibration is out of date. Next: surefind calibrate {out} QUERIES")
        else:
            say(f"Next: surefind search {out} QUERIES")


def _opened(place: str, model: str | None, normalize: bool) -> "Gallery":
    from surefind.gallery.gallery import Gallery

    milvus = "://" in place or place.endswith(".db")
    try:
        return Gallery.open(place, normalize=normalize)
    except InputError:  # there is none; if there is something else, making one says so
        engine = "milvus" if milvus else "faiss"
        return Gallery(engine, place, model=model, normalize=normalize)


def check_model(gallery: "Gallery", model: str | None) -> None:
    """Require that a gallery's items were embedded by the same run.

    Args:
        gallery: It remembers the model of the run that it was made with.
        model: That of the vectors at hand; None if it is not known.

    Raises:
        InputError: If they differ.
    """
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
            check_fits(learner, dataset)
            embeddings = embed_in_blocks(learner, dataset, BATCH, announce=announce)
            found = _of_dataset(dataset, source, embeddings, fingerprint_of(run))
        else:
            found = _of_dataset(dataset, source)
    if not len(found):
        raise InputError(f"{source} holds nothing.")
    if labels is None:
        return found
    given = read_column(labels, LABELS, len(found))
    return Items(found.embeddings, found.ids, given, found.model)


def fingerprint_of(run: Path) -> str:
    """Tell a run's model from others: by its content, wherever its folder is."""
    import hashlib

    with (run / MODEL).open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


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


def _of_dataset(
    dataset: "Dataset", source: str, embeddings: Any = None, model: str | None = None
) -> Items:
    names = dataset.names or [f"{Path(source).stem}/{i}" for i in range(len(dataset))]
    labels = None if dataset.labels is None else dataset.labels.tolist()
    if labels is not None and dataset.classes is not None:
        labels = [dataset.classes[x] for x in labels]
    return Items(
        dataset.inputs if embeddings is None else embeddings,
        list(names),
        None if labels is None else [text_or_none(x) for x in labels],
        model,
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
    return Items(vectors, [str(i) for i in ids], _texts(columns, LABELS), None)


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
