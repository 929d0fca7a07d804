"""A manifest: a CSV or Parquet file with a row per image.

    path        the file, relative to the manifest's folder or absolute
    label       its class; or, for places:
    easting     metric coordinates, for example UTM,
    northing    in the same zone for all rows
    split       optional: the part it belongs to
    name        optional: what to call it; the path by default

Other columns are left alone. Labels are text; in the order of classes, whole numbers come
first, as numbers.
"""

from pathlib import Path

from surefind.data.dataset import Dataset
from surefind.data.images import MAX_PIXELS, ImageFiles, check_exist
from surefind.data.splits import Splits
from surefind.data.table import Table, read_table
from surefind.errors import DegenerateError, InputError


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
    if "label" not in table and not ("easting" in table and "northing" in table):
        raise InputError(
            f"{path} needs a column 'label', or 'easting' and 'northing'; "
            f"it has {', '.join(map(repr, table.columns))}."
        )
    check_exist(files, path)
    classes = sorted(set(table.filled("label")), key=_class_order) if "label" in table else None
    splits = table.filled("split") if "split" in table else ["all"] * len(files)
    parts = {}
    for part in dict.fromkeys(splits):
        rows = [i for i, s in enumerate(splits) if s == part]
        images = ImageFiles([files[i] for i in rows], mode, max_pixels)
        parts[part] = _dataset(table.pick(rows), images, classes, name or path.stem)
    return Splits(parts)


def _dataset(table: Table, images: ImageFiles, classes: list[str] | None, name: str) -> Dataset:
    placed = "easting" in table and "northing" in table
    return Dataset(
        images,
        None if classes is None else table["label"],
        positions=list(zip(table.numbers("easting"), table.numbers("northing"), strict=True))
        if placed
        else None,
        names=table["name"] if "name" in table else table["path"],
        classes=classes,
        name=name,
    )


def _class_order(label: str) -> tuple[bool, int, str]:
    whole = label.isdecimal()
    return (not whole, int(label) if whole else 0, label)
