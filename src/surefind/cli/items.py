"""The items of a source, to be indexed or looked up, and the gallery that a command names.

With ``--run`` the run embeds it. Without, it holds vectors already, perhaps with columns ``kappa`` and
``novelty`` as `surefind embed` writes them.

Ids are the names of the images, the ids in the file, or else the source's name and the row, so that two
sources without ids do not meet. Labels are texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import surefind as sf
from surefind.cli.console import working
from surefind.cli.embed import embed_in_blocks
from surefind.cli.run_folder import open_run
from surefind.cli.sources import check_fits, holds_vectors, read_source, readable
from surefind.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from surefind.decisions import Calibration


BATCH = 128
"""Inputs that are embedded at a time."""


@dataclass(frozen=True, eq=False)
class EmbeddedLater:
    """What a run embeds, when it is taken.

    Attributes:
        learner: The run's model.
        dataset: What it embeds.
    """

    learner: "sf.MetricLearner"
    dataset: "sf.Dataset"

    def __getitem__(self, rows: slice) -> "sf.Embeddings":
        return self.learner.embed(self.dataset[rows], batch_size=BATCH)


@dataclass(frozen=True, eq=False)
class Items:
    """What a source gives.

    Attributes:
        embeddings: `Embeddings`, or plain vectors (n, z), of which no κ is known; or `EmbeddedLater`.
        ids: One a row, distinct within a source of images.
        labels: A text or None each; None if the source has none at all.
        files: The images' files; None if the source is in memory or holds vectors.
        kept: Whether each row of the source is among them; None if all are.
        named: Whether the ids are the source's own, and not made of its name and the row.
    """

    embeddings: "sf.Embeddings | Any"
    ids: list[str]
    labels: list[str | None] | None
    files: "Sequence[str] | None" = None
    kept: Sequence[bool] | None = None
    named: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, path: Path, names: tuple[str, ...]) -> list[str | None]:
        """Read a text for each item from a file that has one for each row of the source."""
        if self.kept is None:
            return read_texts(path, names, len(self))
        return list(compress(read_texts(path, names, len(self.kept)), self.kept))


def read_items(
    source: str,
    run: Path | None,
    data: Path | None,
    *,
    labels: Path | None = None,
    on_bad: str = "refuse",
    later: bool = False,
) -> Items:
    """Read vectors, or embed what a source holds.

    Args:
        source: A set's name, a folder or a file, perhaps with ``:PART``.
        run: The run that embeds it; None if it holds vectors.
        data: Folder that holds the data sets.
        labels: A file with labels instead of the source's own.
        on_bad: "refuse" or "skip" images that cannot be read.
        later: Whether what a run embeds is embedded only when rows of it are taken.

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
            raise InputError(
                f"{source} holds images; give --run RUN, which embeds them.", field="run"
            )
    else:
        learner = open_run(run).learner()
        dataset = read_source(source, data, mode=learner.input_spec_.mode)
        good = readable(dataset, on_bad)
        found = _of_dataset(good, source)
        if len(good):
            check_fits(learner, good)
            lazily = EmbeddedLater(learner, good)
            embeddings = lazily if later else embed_in_blocks(learner, good, BATCH)
            found = replace(found, embeddings=embeddings, kept=_kept(dataset, found.files))
    if not len(found):
        raise InputError(f"{source} holds nothing.", field="source")
    if labels is None:
        return found
    from surefind.data.sources import LABELS

    return replace(found, labels=found.column(labels, LABELS))


def read_texts(path: Path, names: tuple[str, ...], count: int) -> list[str | None]:
    """Read a text for each row from a file; what is empty, null or -1 is None.

    Args:
        path: .npy, .npz, .csv or .parquet.
        names: What the column may be called; that of a .npy file has no name.
        count: Rows that it must have.

    Raises:
        InputError: If there is no such column, or it has another length.
    """
    from surefind.data.sources import read_column

    found = _texts(names[0], read_column(path, names))
    if len(found) != count:
        raise InputError(
            f"{path} has {len(found)} rows and the source {count}; give one each.", field=names[0]
        )
    return found


def _kept(dataset: "sf.Dataset", files: Sequence[str] | None) -> list[bool] | None:
    if files is None or len(files) == len(dataset):
        return None
    good = set(files)
    return [path in good for path in dataset.inputs.paths]


def _of_dataset(dataset: "sf.Dataset", source: str) -> Items:
    names = dataset.names or [f"{Path(source).stem}/{i}" for i in range(len(dataset))]
    labels = None
    if dataset.labels is not None:
        classes = dataset.classes
        labels = [_text(classes[x] if classes else x) for x in dataset.labels.tolist()]
    files, named = getattr(dataset.inputs, "paths", None), dataset.names is not None
    return Items(dataset.inputs, list(names), labels, files, named=named)


def _read_file(path: Path) -> Items:
    import numpy as np

    from surefind.data.sources import read_vector_file

    found = read_vector_file(path)
    vectors: Any = found.vectors.astype(np.float32)
    if vectors.ndim != 2:
        raise InputError(
            f"{path} holds an array of shape {vectors.shape}, which are no vectors (n, d). Images need "
            "--run RUN, which embeds them.",
            field="run",
        )
    rows = range(len(vectors))
    ids = [f"{path.stem}/{i}" for i in rows] if found.ids is None else _texts("ids", found.ids)
    unnamed = next((row for row, name in enumerate(ids) if name is None), None)
    if unnamed is not None:
        raise InputError(f"{path}: row {unnamed} has no id.", field="ids")
    if found.kappa is not None or found.novelty is not None:
        kappa = np.full(len(vectors), np.inf) if found.kappa is None else found.kappa
        vectors = sf.Embeddings(vectors, kappa.astype(np.float32), found.novelty)
    labels = None if found.labels is None else _texts("labels", found.labels)
    return Items(vectors, [str(i) for i in ids], labels, named=found.ids is not None)


def _texts(name: str, cells: "np.ndarray") -> list[str | None]:
    """Write labels, ids or groups of a file as texts, read as `surefind.checks` says."""
    from surefind.checks import label_values

    return [_text(cell) for cell in label_values(name, cells)]


def _text(value: Any) -> str | None:
    """Write a label as a text; None for one that says: not in the gallery."""
    text = "" if value is None else str(value).strip()
    return None if text in ("", "-1") else text


def existing_gallery(place: str, normalize: bool) -> "sf.Gallery | None":
    """Open a gallery for writing; return None if one can be made at that place.

    Raises:
        InputError: If something else is there.
    """
    from surefind.gallery.store import check_free, holds_gallery

    path = Path(place)
    if not _on_milvus(place) and path.exists() and not holds_gallery(path):
        check_free(path)
        return None
    try:
        return sf.Gallery.open(place, normalize=normalize)
    except InputError:  # there is none
        return None


def new_gallery(place: str, run: Path | None, normalize: bool) -> "sf.Gallery":
    """Make an empty gallery, whose items ``run`` embeds if it is known."""
    engine = "milvus" if _on_milvus(place) else "faiss"
    return sf.Gallery(engine, place, model=_fingerprint(run), normalize=normalize)


def check_model(gallery: "sf.Gallery", run: Path | None) -> None:
    """Require that a gallery's items were embedded by the same run, as far as both are known."""
    model = _fingerprint(run)
    if None not in (model, gallery.model) and model != gallery.model:
        raise InputError(
            f"the gallery was made with another run ({gallery.model}, this one is {model}), and vectors "
            "of two models cannot be compared. Give that run, or index everything into a new gallery.",
            field="run",
        )


def labels_like(gallery: "sf.Gallery", labels: Sequence[str | None]) -> list[Any]:
    """Convert labels to integers if those of the gallery are."""
    stored = (gallery.get(i).label for i in gallery)
    if isinstance(next((label for label in stored if label is not None), ""), str):
        return list(labels)
    return [int(x) if x is not None and x.removeprefix("-").isdecimal() else x for x in labels]


def settled(gallery: "sf.Gallery") -> "Calibration | None":
    """Do after a change what a search would have to, which may be by a process that only reads.

    Returns:
        The calibration, if it was renewed.
    """
    if not len(gallery):
        return None
    with working("fitting the posterior over labels, and renewing the calibration"):
        gallery.prepare()
        return gallery.renew()


def own_ids(gallery: "sf.Gallery", items: Items) -> dict[int, str]:
    """Return, by row, the id of each item that is in the gallery already.

    Images are the same if their files are: two folders often use the same names. Vectors are the same if
    their file gives them the same id.
    """
    if not items.named and items.files is None:
        return {}
    rows = {name: row for row, name in enumerate(items.ids)}
    there = {id_: rows[id_] for id_ in gallery if isinstance(id_, str) and id_ in rows}
    if items.files is not None:
        folder, files = Path(gallery.info.get("images", "")), items.files
        paths = {id_: (gallery.get(id_).payload or {}).get("path", "") for id_ in there}
        there = {
            id_: row
            for id_, row in there.items()
            if (folder / str(paths[id_])).resolve() == Path(files[row]).resolve()
        }
    return {row: id_ for id_, row in there.items()}


def _fingerprint(run: Path | None) -> str | None:
    return None if run is None else open_run(run).fingerprint


def _on_milvus(place: str) -> bool:
    return "://" in place or place.endswith(".db")
