"""What a path holds: a folder of classes, a manifest, vectors with their labels; and the digits.

A folder has a folder per class, or a folder per part and in each a folder per class:

    pets/cat/1.jpg  pets/dog/2.jpg                      one part, "all"
    pets/train/cat/1.jpg  pets/test/dog/2.jpg           the parts "train" and "test"

Files are found by their extension, at any depth below the class; hidden ones are left alone. Classes
are numbered by sorted name, over all parts together.

A manifest, CSV or Parquet, has a row per image:

    path        the file, relative to the manifest's folder or absolute
    label       its class; or, for place recognition:
    easting     metric coordinates, for example UTM,
    northing    in the same zone for all rows
    split       optional: the part it belongs to
    name        optional: what to call it; the path by default

Other columns are left alone. Cells are texts; one that is empty or null is the empty text. In the order of
classes, whole numbers come first, as numbers. Messages name the line, counted as an editor counts them (the
header is line 1); for Parquet the row of that number.

Vectors are in NumPy's or Parquet files, see `read_vector_file`. Nothing is unpickled.
"""

import csv
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from surefind.checks import VECTOR_KINDS, check_int, label_values, require
from surefind.data.dataset import Dataset, Splits
from surefind.data.images import MAX_PIXELS, ImageFiles, check_exist
from surefind.errors import DegenerateError, InputError

NAMED = 8
"""Columns that a message names; of more, it says how many."""
WIDE = 16
"""Columns of a table beyond which it is probably one of vectors."""


def shortened(names: Collection[str]) -> str:
    """Write names for a message: the first few, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - NAMED:,} more" if len(listed) > NAMED else ""
    return ", ".join(map(repr, listed[:NAMED])) + more


def one_of(names: Sequence[str]) -> str:
    """Write the names that something may have, for a message."""
    *first, last = map(repr, names)
    return f"{', '.join(first)} or {last}" if first else last


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length.

    Attributes:
        path: The file they came from.
        columns: The cells of each column, by its name.
    """

    path: Path
    columns: dict[str, list[str]]

    def __len__(self) -> int:
        return max((len(c) for c in self.columns.values()), default=0)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> list[str]:
        if name not in self.columns:
            raise InputError(
                f"{self.path} has no column {name!r}; it has {shortened(self.columns)}.",
                field="path",
                hint=self.hint,
            )
        return self.columns[name]

    @property
    def hint(self) -> str:
        """What to do about a missing column: vectors are not read from text."""
        if len(self.columns) <= WIDE:
            return ""
        return (
            f"{len(self.columns):,} columns look like vectors, which are read from .npy, .npz or .parquet: "
            "numpy.savez('vectors.npz', features=…, labels=…), or one column of lists."
        )

    def filled(self, name: str) -> list[str]:
        """Return a column in which no cell may be empty."""
        cells = self[name]
        if "" in cells:
            raise InputError(f"{self.path} line {cells.index('') + 2}: {name} is empty. Fill it.")
        return cells

    def numbers(self, name: str) -> list[float]:
        """Return a column as finite numbers."""
        values = []
        for i, cell in enumerate(self[name]):
            try:
                values.append(float(cell))
            except ValueError:
                values.append(math.nan)
            if not math.isfinite(values[-1]):
                raise InputError(
                    f"{self.path} line {i + 2}: {name} must be a finite number; got {cell!r}."
                )
        return values


def read_table(path: Path) -> Table:
    """Read a CSV, JSON or Parquet file.

    Args:
        path: The file; ``.parquet`` or ``.pq`` is read as Parquet, ``.json`` as a list of objects,
            everything else as CSV in UTF-8 with a header.

    Returns:
        Its columns as strings.

    Raises:
        InputError: If it is missing or broken.
    """
    suffix = path.suffix.lower()
    if suffix not in (*PARQUET, ".json"):
        return Table(path, _csv_columns(path))
    columns = _json_columns(path) if suffix == ".json" else _parquet(path)
    return Table(path, {name: list(map(_cell_text, cells)) for name, cells in columns.items()})


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"{path} cannot be read as a CSV file in UTF-8: {error}. Export it again.", field="path"
        ) from error
    if not header or len(set(header)) < len(header):
        raise InputError(
            f"the first line of {path} must name each column once; it has {shortened(header)}.",
            field="path",
        )
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{path} line {line} has {len(row)} cells where the header has {len(header)}. "
                "Quote cells that hold a comma; a half-copied file ends like this too.",
                field="path",
            )
    return {name: [row[i].strip() for _, row in rows] for i, name in enumerate(header)}


def _json_columns(path: Path) -> dict[str, list[Any]]:
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name) for row in rows] for name in names}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"{path} cannot be read as a list of objects in JSON: {error}. Write it again.",
            field="path",
        ) from error


def _parquet(path: Path, *, names: bool = False) -> dict[str, list[Any]]:
    """Read the columns of a Parquet file, or only their names."""
    arrow = require("pyarrow", "read Parquet files")
    parquet = require("pyarrow.parquet", "read Parquet files")
    try:
        if names:
            return {name: [] for name in parquet.read_schema(path).names}
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path} cannot be read as a Parquet file: {error}. Write it again.", field="path"
        ) from error
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns


def _cell_text(cell: Any) -> str:
    """Write a cell; a whole float is the number that it stands for, and NaN is an empty cell."""
    if isinstance(cell, float):
        return "" if math.isnan(cell) else str(int(cell) if cell.is_integer() else cell)
    return "" if cell is None else str(cell)


def load_manifest(
    path: str | Path, *, mode: str = "RGB", max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Splits:
    """Load the images that a manifest lists.

    Args:
        path: The manifest, ``.csv`` or ``.parquet``.
        mode: ``"RGB"`` or ``"L"`` (grey).
        max_pixels: Width times height above which a file is refused.
        name: What to call the set; the manifest's name by default.

    Returns:
        The parts that the column ``split`` names, or the single part ``"all"``.

    Raises:
        InputError: If a column is missing or a cell cannot be used.
        DegenerateError: If it lists nothing.
    """
    path = Path(path)
    table = read_table(path)
    files = [str(path.parent / p) for p in table.filled("path")]
    if not files:
        raise DegenerateError(f"{path} lists no images.")
    placed = "easting" in table and "northing" in table
    if "label" not in table and not placed:
        raise InputError(
            f"{path} needs a column 'label', or 'easting' and 'northing'; it has "
            f"{shortened(table.columns)}.",
            field="path",
            hint=table.hint,
        )
    check_exist(files, path)
    labels = table.filled("label") if "label" in table else None
    splits = table.filled("split") if "split" in table else ["all"] * len(files)
    axes = [table.numbers(axis) for axis in ("easting", "northing")] if placed else None
    dataset = Dataset(
        ImageFiles(files, mode, max_pixels),
        labels,
        positions=axes and list(zip(*axes, strict=True)),
        names=table["name" if "name" in table else "path"],
        classes=labels and sorted(set(labels), key=_class_order),
        name=name or path.stem,
    )
    return Splits({
        part: dataset[[i for i, s in enumerate(splits) if s == part]]
        for part in dict.fromkeys(splits)
    })


def _class_order(label: str) -> tuple[bool, int, str]:
    whole = label.isdecimal()
    return (not whole, int(label) if whole else 0, label)


_FORMATS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm", "pgm", "jfif")
EXTENSIONS = frozenset(f".{name}" for name in _FORMATS)
PARTS = ("train", "val", "valid", "validation", "test", "query", "gallery", "database")


def load_folder(
    folder: str | Path, *, mode: str = "RGB", max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Splits:
    """Load a folder per class.

    Args:
        folder: The folder that holds the classes, or the parts.
        mode: ``"RGB"`` or ``"L"`` (grey).
        max_pixels: Width times height above which a file is refused.
        name: What to call the set; the folder's name by default.

    Returns:
        The parts by name, or the single part ``"all"``.

    Raises:
        InputError: If there is no folder, no class, or a class without images.
    """
    root = Path(folder)
    inner = _subfolders(root)
    split = bool(inner) and all(p.name.lower() in PARTS for p in inner)
    trees = {p.name.lower(): p for p in inner} if split else {"all": root}
    found = {part: images_by_class(tree) for part, tree in trees.items()}
    classes = sorted({c for by_class in found.values() for c in by_class})
    parts = {}
    for part, by_class in found.items():
        paths = [path for c in sorted(by_class) for path in by_class[c]]
        labels = [c for c in sorted(by_class) for _ in by_class[c]]
        parts[part] = Dataset(
            ImageFiles(paths, mode, max_pixels),
            labels,
            names=[p.relative_to(root).as_posix() for p in paths],
            classes=classes,
            name=name or root.name,
        )
    return Splits(parts)


def image_paths(folder: Path) -> list[Path]:
    """List the image files below a folder, sorted; hidden ones are left out."""
    return sorted(
        p
        for p in folder.rglob("*")
        if p.suffix.lower() in EXTENSIONS and not p.name.startswith(".") and p.is_file()
    )


def images_by_class(root: Path) -> dict[str, list[Path]]:
    """List the image files of each class folder, by its name; refuse one without any."""
    by_class = {p.name: image_paths(p) for p in _subfolders(root)}
    if not by_class:
        what = "has images but no class folders" if image_paths(root) else "has no class folders"
        raise InputError(
            f"{root} {what}. Put each class in a subfolder ({root.name}/cat/1.jpg), or pass a CSV file "
            "with the columns path and label.",
            field="path",
        )
    if empty := [c for c, paths in sorted(by_class.items()) if not paths]:
        raise InputError(
            f"{len(empty)} class folders of {root} hold no image, the first is {empty[0]!r}; "
            f"expected files ending in {', '.join(sorted(EXTENSIONS))}. Fill or remove them.",
            field="path",
        )
    return by_class


def _subfolders(root: Path) -> list[Path]:
    if not root.is_dir():
        raise InputError(f"there is no folder {root}; check the path.", field="path")
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))


NUMPY, PARQUET = (".npy", ".npz"), (".parquet", ".pq")


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read a .npz or .npy file.

    Args:
        path: The file.

    Returns:
        The arrays by name; that of a .npy file is called ``"array"``.

    Raises:
        InputError: If it is missing, broken, or holds Python objects.
    """
    try:
        # Opened here, because NumPy leaves the file of a broken archive open.
        with Path(path).open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            return {"array": stored} if isinstance(stored, np.ndarray) else dict(stored)
    except Exception as error:  # the readers of zip and header raise whatever they trip over
        objects = str(error).startswith("Object arrays")
        reason = (
            "holds Python objects (NumPy's dtype object, as pandas gives texts), which are not unpickled, "
            "because that could run anything"
            if objects
            else f"does not exist or is no whole file that NumPy saved ({error})"
        )
        raise InputError(
            f"{path} {reason}.",
            field="path",
            hint="Save them as texts or numbers: labels.astype(str), or labels.astype(int)."
            if objects
            else "Check the path; or write the file again with numpy.save.",
        ) from error


VECTORS = (
    "features",
    "vectors",
    "vector",
    "mean",
    "embeddings",
    "embedding",
    "inputs",
    "X",
    "array",
)
LABELS, IDS = ("labels", "label", "y"), ("ids", "id", "name")
BESIDE = {*LABELS, *IDS, "kappa", "uncertainty", "novelty"}
"""What columns may be called: of vectors, the first of these that is there; of what stands beside them."""


@dataclass(frozen=True, eq=False)
class VectorFile:
    """Vectors from a file, with what is known of each row.

    Attributes:
        vectors: Numbers (n, d), or images as `Dataset` takes them.
        labels: One a row, as they stand in the file; None if it has none. So are ids, kappa and novelty.
    """

    vectors: np.ndarray
    labels: np.ndarray | None
    ids: np.ndarray | None
    kappa: np.ndarray | None
    novelty: np.ndarray | None

    def dataset(self, name: str, labels: Path | None = None) -> Dataset:
        """Return the vectors as a data set; a label that is missing is empty, or -1 among numbers.

        Args:
            name: What to call it.
            labels: A file with their labels, if these are not beside them.

        Raises:
            InputError: If labels or ids cannot be used.
        """
        column = self.labels if labels is None else read_column(labels, LABELS)
        known = None if column is None else label_values("labels", column)
        if known is not None:
            missing: str | int = "" if any(isinstance(label, str) for label in known) else NO_LABEL
            known = [missing if label is None else label for label in known]
        ids = None if self.ids is None else label_values("ids", self.ids)
        if ids and (empty := [row for row, id_ in enumerate(ids) if id_ in (None, "")]):
            raise InputError(f"{name}: row {empty[0]} has no id.", field="ids")
        return Dataset(self.vectors, known, names=ids, name=name)


def read_vector_file(path: str | Path) -> VectorFile:
    """Read vectors, and the labels, ids, κ and novelty beside them.

    Args:
        path: The file:

        .npy        the vectors alone
        .npz        an array called as `VECTORS` says, or the only one that is nothing else;
                    "labels", "ids", "kappa" and "novelty" beside it
        .parquet    the same as columns, the vectors as lists

    Returns:
        Its columns.

    Raises:
        InputError: If the file cannot be read, or it is not clear which of its columns holds the vectors.
    """
    columns = _columns(Path(path))
    unknown = [name for name in columns if name not in BESIDE]
    name = next((n for n in VECTORS if n in columns), unknown[0] if len(unknown) == 1 else None)
    if name is None:
        raise InputError(
            f"{path} holds {shortened(columns)}, and it is not clear which of them are the vectors.",
            field="path",
            hint=f"Call them {one_of(VECTORS)}, and their labels {one_of(LABELS)}.",
        )
    if columns[name].dtype.kind not in VECTOR_KINDS:
        raise InputError(f"{path}: {name!r} is no table of numbers.", field="path")
    beside = _named(columns, LABELS), _named(columns, IDS)
    return VectorFile(columns[name], *beside, columns.get("kappa"), columns.get("novelty"))


def read_column(path: str | Path, names: tuple[str, ...]) -> np.ndarray:
    """Read one column of a .npy, .npz, .csv or .parquet file; cells of the last two are texts.

    Args:
        path: The file.
        names: What the column may be called; that of a .npy file needs no name.

    Returns:
        Its cells (n); an empty cell of a table is the empty text.

    Raises:
        InputError: If the file cannot be read or has no such column.
    """
    arrays = Path(path).suffix.lower() in NUMPY
    columns: Any = read_arrays(path) if arrays else read_table(Path(path)).columns
    found = _named(columns, (*names, "array"))
    if found is None:
        raise InputError(
            f"{path} holds {shortened(columns)}, and none of them is called {one_of(names)}.",
            field="path",
            hint="Name it so.",
        )
    return np.asarray(found)


def _columns(path: Path) -> dict[str, np.ndarray]:
    if path.suffix.lower() in NUMPY:
        return read_arrays(path)
    try:
        arrays = {name: np.array(cells) for name, cells in _parquet(path).items()}
    except ValueError as error:
        raise InputError(f"{path}: lists of one column differ in length.", field="path") from error
    return {
        name: array.astype(np.float32) if array.ndim == 2 and array.dtype.kind == "f" else array
        for name, array in arrays.items()
    }


def _named(columns: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((columns[n] for n in names if n in columns), None)


DIGITS = tuple("0123456789")
PATCH_SIDE = 8
"""The photographs' patches are as large as the digits."""
GREY_LEVELS = 16
"""The digits' grey levels run from 0 to this."""


def load_digits(*, n_ood: int = 500, seed: int = 0) -> Splits:
    """Load the digits.

    Args:
        n_ood: Number of patches of photographs.
        seed: Chooses the patches.

    Returns:
        The parts ``"train"``, ``"test"`` and ``"ood"``; the last has no labels.
    """
    check_int("n_ood", n_ood, least=1)
    datasets = require("sklearn.datasets", "load the digits")
    stored = datasets.load_digits()
    images = np.round(stored.images * (255 / GREY_LEVELS)).astype(np.uint8)
    cut = len(images) * 2 // 3
    digits = Dataset(images, stored.target, classes=DIGITS, name="digits")
    photographs = [p.mean(axis=2).astype(np.uint8) for p in datasets.load_sample_images().images]
    return Splits({
        "train": digits[:cut],
        "test": digits[cut:],
        "ood": Dataset(_patches(photographs, n_ood, seed), name="photographs"),
    })


def _patches(photographs: list[np.ndarray], n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    patches = np.zeros((n, PATCH_SIDE, PATCH_SIDE), dtype=np.uint8)
    for i in range(n):
        photograph = photographs[i % len(photographs)]
        y, x = rng.integers(0, np.array(photograph.shape) - PATCH_SIDE + 1)
        patches[i] = photograph[y : y + PATCH_SIDE, x : x + PATCH_SIDE]
    return patches


NAME_OF_DIGITS = "digits"
"""The set that is there without a file."""
NO_LABEL = -1
"""The label of what has none in a file of numbers; in one of texts it is empty."""


def holds_vectors(path: Path) -> bool:
    """Return whether a file holds vectors: NumPy's do, a Parquet file does if it lists no paths."""
    suffix = path.suffix.lower()
    return suffix in NUMPY or (suffix in PARQUET and "path" not in _parquet(path, names=True))


def read_source(source: str, *, prefer: str | None = None, mode: str | None = None) -> Dataset:
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
        if name == NAME_OF_DIGITS or Path(name).exists():
            return name, found
    raise InputError(
        f"{source} does not exist. Give a folder of images, a list of images (.csv, .parquet) or vectors "
        f"(.npy, .npz, .parquet); {NAME_OF_DIGITS!r} is there to try.",
        field="source",
    )


def part_names(where: str) -> tuple[str, ...]:
    """List the parts of the digits, a folder or a file."""
    if Path(where).is_file() and holds_vectors(Path(where)):
        return ("all",)
    return tuple(_parts(where, "RGB"))


def _parts(where: str, mode: str) -> Splits:
    path = Path(where)
    if where == NAME_OF_DIGITS:
        return load_digits()
    if path.is_dir():
        nested = any(p.is_dir() and not p.name.startswith(".") for p in path.iterdir())
        if nested or not (images := image_paths(path)):
            return load_folder(path, mode=mode)
        return Splits({"all": _unlabelled(images, mode, path.name)})
    if path.suffix.lower() in EXTENSIONS:
        return Splits({"all": _unlabelled([path], mode, path.name)})
    if holds_vectors(path):
        return Splits({"all": read_vector_file(path).dataset(path.stem)})
    return load_manifest(path, mode=mode)


def _unlabelled(images: Sequence[Path], mode: str, name: str) -> Dataset:
    """Return images that no class folder or list gives a label."""
    return Dataset(ImageFiles(images, mode), names=[p.name for p in images], name=name)
