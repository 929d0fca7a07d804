"""What a path means: a folder, an image, a list of images, vectors, or the digits of scikit-learn.

`NAME:PART` picks a part. Without it each caller says which part it prefers; one that prefers none takes the
only part there is. What `surefind embed` writes can be read again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import surefind as sf
from surefind.cli.console import say
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.data.splits import Splits

DIGITS = "digits"
"""The set that is there without a file."""
NO_LABEL = -1
"""The label of what has none in a file of numbers; in one of texts it is empty."""


def holds_vectors(path: Path) -> bool:
    """Return whether a file holds vectors: NumPy's do, a Parquet file does if it lists no paths."""
    from surefind.data.formats import NUMPY, parquet_names

    suffix = path.suffix.lower()
    return suffix in NUMPY or (suffix in (".parquet", ".pq") and "path" not in parquet_names(path))


def read_vectors(path: Path, labels: Path | None = None) -> "sf.Dataset":
    """Read vectors as a data set.

    Args:
        path: As `surefind.data.formats.read_vector_file` takes it.
        labels: A file with their labels, if these are not beside them.

    Raises:
        InputError: If the file holds no vectors, or labels cannot be used.
    """
    from surefind.checks import label_values
    from surefind.data.formats import LABELS, read_column, read_vector_file

    found = read_vector_file(path)
    column = found.labels if labels is None else read_column(labels, LABELS)
    known = None if column is None else label_values("labels", column)
    if known is not None:
        missing: str | int = "" if any(isinstance(label, str) for label in known) else NO_LABEL
        known = [missing if label is None else label for label in known]
    return sf.Dataset(found.vectors, known, names=found.ids, name=path.stem)


def labelled(dataset: "sf.Dataset") -> "sf.Dataset":
    """Leave out the examples whose label says that they have none: empty, or -1."""
    if dataset.labels is None:
        return dataset
    names = dataset.classes or ()
    none = [code for code, name in enumerate(names) if name in ("", str(NO_LABEL))]
    none = none if names else [NO_LABEL]
    rows = [row for row, label in enumerate(dataset.labels.tolist()) if label not in none]
    left = len(dataset) - len(rows)
    if left:
        say(f"{left} examples have no label (empty, or -1), and are left out.")
    return dataset[rows] if left else dataset


def read_source(source: str, *, prefer: str | None = None, mode: str | None = None) -> "sf.Dataset":
    """Read one part of what a user named.

    Args:
        source: "digits", a folder or a file, perhaps with ``:PART``.
        prefer: The part to take if none is named.
        mode: How images in files are read: "L" (grey) or "RGB", which is the default.

    Returns:
        The data.

    Raises:
        InputError: If there is no such thing, or it is not clear which part is meant.
    """
    where, part = split_part(source)
    parts = _parts(where, mode or "RGB")
    if part is None and prefer in parts.parts:
        part = prefer
    if part is None and len(parts) == 1:
        part = next(iter(parts))
    if part is None or part not in parts.parts:
        why = "has several parts" if part is None else f"has no part {part!r}"
        named = ", ".join(f"{where}:{p}" for p in parts)
        raise InputError(f"{where} {why}; name one of {named}.", field="source")
    return parts[part]


def split_part(source: str) -> tuple[str, str | None]:
    """Split ``NAME:PART`` into the name and the part, or None; refuse a name that is not there."""
    where, colon, part = source.rpartition(":")
    for name, found in ((source, None), *([(where, part)] if colon else [])):
        if name == DIGITS or Path(name).exists():
            return name, found
    raise InputError(
        f"{source} does not exist. Give a folder of images, a list of images (.csv, .parquet) or vectors "
        f"(.npy, .npz, .parquet); {DIGITS!r} is there to try.",
        field="source",
    )


def part_names(where: str) -> tuple[str, ...]:
    """List the parts of the digits, a folder or a file."""
    if Path(where).is_file() and holds_vectors(Path(where)):
        return ("all",)
    return tuple(_parts(where, "RGB"))


def _parts(where: str, mode: str) -> "Splits":
    from surefind.data.digits import load_digits
    from surefind.data.folder import EXTENSIONS, image_paths, load_folder
    from surefind.data.splits import Splits
    from surefind.data.tables import load_manifest

    path = Path(where)
    if where == DIGITS:
        return load_digits()
    if path.is_dir():
        nested = any(p.is_dir() and not p.name.startswith(".") for p in path.iterdir())
        if nested or not (images := image_paths(path)):
            return load_folder(path, mode=mode)
        return Splits({"all": _unlabelled(images, mode, path.name)})
    if path.suffix.lower() in EXTENSIONS:
        return Splits({"all": _unlabelled([path], mode, path.name)})
    if holds_vectors(path):
        return Splits({"all": read_vectors(path)})
    return load_manifest(path, mode=mode)


def _unlabelled(images: Sequence[Path], mode: str, name: str) -> "sf.Dataset":
    """Return images that no class folder or list gives a label."""
    from surefind.data.images import ImageFiles

    return sf.Dataset(ImageFiles(images, mode), names=[p.name for p in images], name=name)
