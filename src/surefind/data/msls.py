"""Mapillary Street-level Sequences: queries and a database per city, with UTM positions.

    train_val/<city>/{query,database}/images/<key>.jpg
    train_val/<city>/{query,database}/postprocessed.csv    key, easting, northing, …
    train_val/<city>/{query,database}/raw.csv              key, pano, …

Copenhagen and San Francisco validate; the other cities train. Panoramas are left out, as in the
publisher's protocol. UTM zones use the same numbers again, so the cities are moved apart: each lies
`CITY_STEP` metres further east than the one before it by name. Distances within a city stay.
"""

from collections.abc import Sequence
from pathlib import Path

from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles, check_exist
from surefind.data.splits import Splits
from surefind.data.tables import read_table
from surefind.errors import InputError

VALIDATION_CITIES = ("cph", "sf")
SIDES = ("query", "database")
CITY_STEP = 1e7


def load_msls(
    folder: str | Path, *, validation_cities: Sequence[str] = VALIDATION_CITIES
) -> Splits:
    """Load MSLS.

    Args:
        folder: Where the cities are; ``train_val`` inside it is found too.
        validation_cities: Cities whose queries are looked up in their databases.

    Returns:
        Of ``"train"`` (both sides of the other cities), ``"query"`` and ``"database"`` (of the
        validation cities) those for which there are cities.

    Raises:
        InputError: If there are no cities, or images do not fit their lists.
    """
    root = Path(folder)
    if (root / "train_val").is_dir():
        root /= "train_val"
    cities = sorted(p.name for p in root.glob("*") if (p / "database").is_dir())
    if not cities:
        raise InputError(
            f"{root} holds no MSLS cities; expected folders with query/ and database/ inside."
        )
    rows: dict[str, list[tuple[str, float, float]]] = {"train": [], "query": [], "database": []}
    for number, city in enumerate(cities):
        for side in SIDES:
            part = side if city in validation_cities else "train"
            rows[part] += [
                (path, east + CITY_STEP * number, north)
                for path, east, north in _read_side(root / city / side)
            ]
    return Splits({part: _dataset(root, found) for part, found in rows.items() if found})


def _dataset(root: Path, rows: list[tuple[str, float, float]]) -> Dataset:
    paths, east, north = zip(*rows, strict=True)
    return Dataset(
        ImageFiles(paths),
        positions=list(zip(east, north, strict=True)),
        names=[Path(p).relative_to(root).as_posix() for p in paths],
        name="MSLS",
    )


def _read_side(folder: Path) -> list[tuple[str, float, float]]:
    table = read_table(folder / "postprocessed.csv")
    keys = table.filled("key")
    panoramas = _panoramas(folder, keys)
    paths = [str(folder / "images" / f"{key}.jpg") for key in keys]
    rows = zip(keys, paths, table.numbers("easting"), table.numbers("northing"), strict=True)
    kept = [(path, east, north) for key, path, east, north in rows if key not in panoramas]
    check_exist([path for path, _, _ in kept], table.path)
    return kept


def _panoramas(folder: Path, keys: list[str]) -> set[str]:
    path = folder / "raw.csv"
    if not path.is_file():
        return set()
    raw = read_table(path)
    if set(raw.filled("key")) != set(keys):
        raise InputError(
            f"{path} and postprocessed.csv do not list the same images ({len(raw)} and "
            f"{len(keys)}). Copy them again."
        )
    return {k for k, pano in zip(raw["key"], raw["pano"], strict=True) if pano.lower() == "true"}
