"""What items a source gives, to be indexed or looked up.

With ``--run`` the run embeds it. Without, it holds vectors already, and a column ``kappa`` beside them says
how sure they are, as in what `surefind embed` writes.

Ids are the names of the images, the ids in the file, or else the source's name and the row, so that two
sources without ids do not meet. Labels are texts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surefind.apps.cli.console import say
from surefind.apps.cli.embed import embed_in_blocks
from surefind.apps.cli.run_folder import open_run
from surefind.apps.cli.sources import (
    IDS,
    LABELS,
    VECTORS,
    check_fits,
    holds_vectors,
    read_source,
    readable,
)
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.data.dataset import Dataset
    from surefind.embeddings import Embeddings

BATCH = 128
"""Inputs that are embedded at a time."""


@dataclass(frozen=True, eq=False)
class Items:
    """What a source gives.

    Attributes:
        embeddings: `Embeddings`, or plain vectors (n, z), of which no κ is known.
        ids: One a row, distinct within a source of images.
        labels: A text or None each; None if the source has none at all.
        files: The images' files; None if the source is in memory or holds vectors.
        kept: Whether each row of the source is among them; None if all are.
    """

    embeddings: "Embeddings | Any"
    ids: list[str]
    labels: list[str | None] | None
    files: "Sequence[str] | None" = None
    kept: Sequence[bool] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, path: Path, names: tuple[str, ...]) -> list[str | None]:
        """Read a text for each item from a file that has one for each row of the source.

        Args:
            path: .npy, .npz, .csv or .parquet.
            names: What the column may be called.

        Returns:
            The texts.
        """
        if self.kept is None:
            return read_column(path, names, len(self))
        return list(compress(read_column(path, names, len(self.kept)), self.kept))


def read_items(
    source: str,
    run: Path | None,
    data: Path | None,
    *,
    labels: Path | None = None,
    on_bad: str = "refuse",
    announce: Callable[[str], None] = say,
) -> Items:
    """Read vectors, or embed what a source holds.

    Args:
        source: A set's name, a folder or a file, perhaps with ``:PART``.
        run: The run that embeds it; None if it holds vectors.
        data: Folder that holds the data sets.
        labels: A file with labels instead of the source's own.
        on_bad: "refuse" or "skip" images that cannot be read.
        announce: Called with how long embedding takes, and what is left out.

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
        dataset = read_source(source, data, mode=learner.input_spec_.mode)
        good = readable(dataset, on_bad, announce=announce)
        found = _of_dataset(good, source)
        if len(good):
            check_fits(learner, good)
            embeddings = embed_in_blocks(learner, good, BATCH, announce=announce)
            found = replace(found, embeddings=embeddings, kept=_kept(dataset, found.files))
    if not len(found):
        raise InputError(f"{source} holds nothing.")
    if labels is None:
        return found
    return replace(found, labels=found.column(labels, LABELS))


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
    from surefind.data.formats import read_arrays
    from surefind.data.tables import read_table

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


def _kept(dataset: "Dataset", files: Sequence[str] | None) -> list[bool] | None:
    if files is None or len(files) == len(dataset):
        return None
    good = set(files)
    return [path in good for path in dataset.inputs.paths]


def _of_dataset(dataset: "Dataset", source: str) -> Items:
    names = dataset.names or [f"{Path(source).stem}/{i}" for i in range(len(dataset))]
    labels = None if dataset.labels is None else dataset.labels.tolist()
    if labels is not None and dataset.classes is not None:
        labels = [dataset.classes[x] for x in labels]
    return Items(
        dataset.inputs,
        list(names),
        None if labels is None else [_text_or_none(x) for x in labels],
        getattr(dataset.inputs, "paths", None),
    )


def _read_file(path: Path) -> Items:
    import numpy as np

    from surefind.data.formats import read_arrays
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
    from surefind.dependencies import require

    table = require("pyarrow.parquet", "read Parquet files").read_table(path)
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _texts(columns: Any, names: tuple[str, ...]) -> list[str | None] | None:
    found = next((columns[n] for n in names if n in columns), None)
    if found is None:
        return None
    return [_text_or_none(x) for x in getattr(found, "tolist", lambda: found)()]


def _text_or_none(value: Any) -> str | None:
    """Write a label as a text; None for one that says: not in the gallery."""
    return None if value is None or str(value).strip() in ("", "-1") else str(value).strip()
