"""Tables of text, CSV and Parquet files as columns of strings; and manifests, which list images.

A cell that is empty or null is the empty string. Messages name the file and the line, counted as an
editor counts them (the header is line 1); for Parquet the row of that number.

A manifest has a row per image:

    path        the file, relative to the manifest's folder or absolute
    label       its class; or, for place recognition:
    easting     metric coordinates, for example UTM,
    northing    in the same zone for all rows
    split       optional: the part it belongs to
    name        optional: what to call it; the path by default

Other columns are left alone. Labels are text; in the order of classes, whole numbers come
first, as numbers.
"""

import csv
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surefind.checks import require
from surefind.data.dataset import Dataset
from surefind.data.images import MAX_PIXELS, ImageFiles, check_exist
from surefind.data.splits import Splits
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
    """Read a CSV or Parquet file.

    Args:
        path: The file; ``.parquet`` or ``.pq`` is read as Parquet, everything else as CSV in UTF-8
            with a header.

    Returns:
        Its columns as strings.

    Raises:
        InputError: If it is missing or broken.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist.")
    if path.suffix.lower() in (".parquet", ".pq"):
        return Table(path, _parquet_columns(path))
    return Table(path, _csv_columns(path))


def _csv_columns(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = next(reader, None)
            rows = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8: {error}. Export it again.") from error
    if header is None:
        raise InputError(f"{path} is empty; its first line must name the columns.")
    header = [name.strip() for name in header]
    if len(set(header)) < len(header):
        twice = [name for name, times in Counter(header).items() if times > 1]
        raise InputError(f"{path} names a column twice: {shortened(twice)}.")
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{path} line {line} has {len(row)} cells where the header has {len(header)}. "
                "Quote cells that hold a comma; a half-copied file ends like this too."
            )
    return {name: [row[i].strip() for _, row in rows] for i, name in enumerate(header)}


def _parquet_columns(path: Path) -> dict[str, list[str]]:
    parquet = require("pyarrow.parquet", "read Parquet files")
    arrow = require("pyarrow", "read Parquet files")
    try:
        table = parquet.read_table(path)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file: {error}. Write it again.") from error
    return {
        name: [_cell_text(cell) for cell in table.column(name).to_pylist()]
        for name in table.column_names
    }


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
