"""Sets of place recognition: the same route twice, once as queries and once as a database.

All of them as github.com/Harbourr/VisualPlaceRecognitionDatasets has them, in its folder ``VPR_datasets``:

| set | queries | database | the same place |
| --- | --- | --- | --- |
| Gardens Point | 200, night, right of the path | 200, day, right (or day, left) | ± 2 frames |
| St Lucia | 1,316, 14:10 | 1,261, 8:45 | ± 10 frames of the frame that the ground truth names |
| Berlin Halensee | 67 | 157 | 25 m by GPS |
| Berlin Kudamm | 222 | 201 | ± 2 frames of the frame that the ground truth names |
| Berlin A100 | 81 | 85 | ± 2 frames of the frame that the ground truth names |
| Nordland | 1,622, winter | 1,622, summer | ± 2 frames |
| SPED | 607 | 607 | the same camera |

Positions are metres where there are metres: longitude and latitude on a sphere, projected to the plane that
touches it at the database's first image. Where there are frame numbers only, the database's frame f with a
tolerance of t frames lies at (25 f / t, 0), and a query where the frame lies that it belongs to. The usual
radius of 25 m then means t frames, and that of 50 m, beyond which two images are a negative pair, 2 t. With
t = 0 frames lie 100 m apart. 25 / t has no rounding error for the tolerances here, or the t-th frame might
fall out of the radius.

Where tolerances come from. Gardens Point and Nordland: one frame belongs to one frame, and the literature
takes from ± 1 to ± 10 around it; ± 2 is strict. Kudamm: the header of its ground truth says ± 2. A100: its
ground truth lists five frames for each query. St Lucia: ± 10 is our choice; frames follow each other about
a metre apart in driving, so it is stricter than 25 m. SPED: still cameras, each a place of its own.
Halensee: 25 m is usual for GPS; its ground truth lists the five nearest, however far. 7 of its 67 queries
have nothing within 25 m.

Files such as ``113_resized.jpg``, ``1599_square.jpg`` and ``….jpg_300.jpg`` are second copies and left out.
Sets in one part are moved apart as the cities of MSLS are.

    GardensPointWalking/{day_left,day_right,night_right}/Image000.jpg
    Chen_RAL_2018_Attention_dataset/stlucia/{0845_ref,1410_query}/….jpg, stlucia_groundtruth.csv
    Chen_RAL_2018_Attention_dataset/nordland_noviewpointvariation/{summer,winter}_renamed/0.jpg
    Chen_RAL_2018_Attention_dataset/SPEDTEST/{refer_single_middle,query_renamed}/0.jpg
    Berlin_datasets/ber_hass/berlin_halenseestrasse_{1_test,2_ref}/….jpg, ….jpg.json with lat and lon
    Berlin_datasets/ber_kud/berlin_kudamm_{2_test,1_ref}_renamed/0.jpg, berlin_kudamm_2_test/groundTruth.csv
    Berlin_datasets/ber_a100/berlin_A100_{1_test,2_ref}_renamed/0.jpg, groundTruth.csv beside the queries

Each loader takes the folder where ``VPR_datasets`` is, or that folder itself, and gives the parts "query"
and "database". Those that are tested on have Nordland and SPED to train on, where both are there: the two
sides together as "train", and each by itself as "train-query" and "train-database".
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from surefind.data.dataset import Dataset, Splits
from surefind.data.images import ImageFiles
from surefind.data.sources import EXTENSIONS
from surefind.errors import InputError
from surefind.pairs.relations import NEGATIVE_RADIUS, POSITIVE_RADIUS
from surefind.paper.photographs import CITY_STEP

FOLDER = "VPR_datasets"
CHEN, BERLIN = "Chen_RAL_2018_Attention_dataset", "Berlin_datasets"
EARTH_RADIUS = 6_371_009.0
"""Metres, the mean of the ellipsoid's."""


@dataclass(frozen=True, eq=False)
class Side:
    """Images of one traverse.

    Attributes:
        paths: Their files.
        positions: Where they were taken, in metres.
    """

    paths: list[Path]
    positions: Float[np.ndarray, "n 2"]


Sides = tuple[Side, Side]
"""Queries and database."""


def load_gardens_point(folder: str | Path) -> Splits:
    """Load Gardens Point Walking: by night against by day, both on the right of the path."""
    return _with_training(folder, "Gardens Point", _gardens_point)


def load_gardens_point_left(folder: str | Path) -> Splits:
    """Load Gardens Point Walking: by night on the right against by day on the left."""
    return _with_training(folder, "Gardens Point, left", lambda r: _gardens_point(r, "day_left"))


def load_st_lucia(folder: str | Path) -> Splits:
    """Load St Lucia: 14:10 against 8:45."""
    return _with_training(folder, "St Lucia", _st_lucia)


def load_berlin_halensee(folder: str | Path) -> Splits:
    """Load Berlin Halenseestraße, with GPS positions."""
    return _with_training(folder, "Berlin Halensee", _halensee)


def load_berlin_kudamm(folder: str | Path) -> Splits:
    """Load Berlin Kurfürstendamm."""
    return _with_training(folder, "Berlin Kudamm", _kudamm)


def load_berlin_a100(folder: str | Path) -> Splits:
    """Load Berlin A100, a motorway."""
    return _with_training(folder, "Berlin A100", _a100)


def load_nordland(folder: str | Path) -> Splits:
    """Load Nordland: winter against summer."""
    return _named(_root(folder), "Nordland", _nordland(_root(folder)))


def load_sped(folder: str | Path) -> Splits:
    """Load the test part of SPED, the Specific Places Dataset."""
    return _named(_root(folder), "SPED", _sped(_root(folder)))


def _gardens_point(root: Path, database: str = "day_right") -> Sides:
    walks = root / "GardensPointWalking"
    return _same_frames(walks / "night_right", walks / database, 2)


def _nordland(root: Path) -> Sides:
    route = root / CHEN / "nordland_noviewpointvariation"
    return _same_frames(route / "winter_renamed", route / "summer_renamed", 2)


def _sped(root: Path) -> Sides:
    cameras = root / CHEN / "SPEDTEST"
    return _same_frames(cameras / "query_renamed", cameras / "refer_single_middle", 0)


def _st_lucia(root: Path) -> Sides:
    suburb = root / CHEN / "stlucia"
    listed = suburb / "stlucia_groundtruth.csv"
    # The list counts the database's frames from 1, whatever their files are called.
    named = _read_matches(listed, column=2, header=True) - 1
    return _matched_frames(suburb / "1410_query", suburb / "0845_ref", 10, named, listed)


def _kudamm(root: Path) -> Sides:
    street = root / BERLIN / "ber_kud"
    listed = street / "berlin_kudamm_2_test" / "groundTruth.csv"
    sides = street / "berlin_kudamm_2_test_renamed", street / "berlin_kudamm_1_ref_renamed"
    return _matched_frames(*sides, 2, _read_matches(listed, column=2, header=True), listed)


def _a100(root: Path) -> Sides:
    queries = root / BERLIN / "ber_a100" / "berlin_A100_1_test_renamed"
    listed = queries / "groundTruth.csv"
    named = _read_matches(listed, column=2, header=False)
    return _matched_frames(queries, queries.parent / "berlin_A100_2_ref_renamed", 2, named, listed)


def _halensee(root: Path) -> Sides:
    street = root / BERLIN / "ber_hass"
    folders = street / "berlin_halenseestrasse_1_test", street / "berlin_halenseestrasse_2_ref"
    query, database = (_images(folder) for folder in folders)
    origin = _latitude_longitude(database[0])
    return _on_plane(query, origin), _on_plane(database, origin)


def _same_frames(query: Path, database: Path, tolerance: int) -> Sides:
    """Read two traverses in which frames of the same number belong together."""
    sides = _images(query), _images(database)
    asked, found = ([_number(p) for p in side] for side in sides)
    if asked != found:
        raise InputError(
            f"{query} and {database} do not hold frames of the same numbers ({len(asked)} and "
            f"{len(found)} images). Copy them again."
        )
    along = _along(asked, tolerance)
    return Side(sides[0], along), Side(sides[1], along)


def _matched_frames(
    query: Path, database: Path, tolerance: int, matches: np.ndarray, listed: Path
) -> Sides:
    """Read two traverses in which a list names the database's frame, from 0, of each query."""
    asked, found = _images(query), _images(database)
    if len(matches) != len(asked) or matches.min() < 0 or matches.max() >= len(found):
        raise InputError(
            f"{listed} does not fit the images: it names frames {matches.min()} … {matches.max()} for "
            f"{len(matches)} queries, and there are {len(found)} frames and {len(asked)} queries. Copy "
            "them again."
        )
    frames = _along(range(len(found)), tolerance)
    return Side(asked, frames[matches]), Side(found, frames)


def _along(frames: Sequence[int], tolerance: int) -> Float[np.ndarray, "n 2"]:
    """Put frames on a line, so that the usual radius means the tolerance."""
    step = POSITIVE_RADIUS / tolerance if tolerance else 2 * NEGATIVE_RADIUS
    return np.stack([np.asarray(frames) * step, np.zeros(len(frames))], axis=1)


def _read_matches(path: Path, *, column: int, header: bool) -> np.ndarray:
    """Read a column of whole numbers; the lines come in the order of the queries."""
    table = np.loadtxt(path, delimiter=",", skiprows=int(header), dtype=np.int64, ndmin=2)
    if (np.diff(table[:, 0]) != 1).any():
        raise InputError(f"{path} does not count its lines without a gap. Copy it again.")
    return np.asarray(table[:, column])


def _latitude_longitude(image: Path) -> tuple[float, float]:
    path = image.with_name(f"{image.name}.json")
    found = json.loads(path.read_text(encoding="utf-8"))
    return float(found["lat"]), float(found["lon"])


def _on_plane(images: list[Path], origin: tuple[float, float]) -> Side:
    degrees = np.array([_latitude_longitude(p) for p in images])
    north, east = np.radians(degrees - origin).T * EARTH_RADIUS
    return Side(images, np.stack([east * np.cos(np.radians(origin[0])), north], axis=1))


def _images(folder: Path) -> list[Path]:
    """List the images of a folder in the order of their numbers, without second copies."""
    found = [p for p in folder.glob("*") if p.suffix.lower() in EXTENSIONS and _number(p) >= 0]
    if not found:
        raise InputError(f"{folder} holds no numbered images. Copy it again.")
    return sorted(found, key=_number)


def _number(image: Path) -> int:
    """Return the number that a file's name ends in; -1 if there is none, as in a second copy's."""
    found = re.fullmatch(r"(?:[^.]*\D)?(\d+)", image.stem)
    return int(found[1]) if found else -1


def _with_training(folder: str | Path, title: str, read: Callable[[Path], Sides]) -> Splits:
    root = _root(folder)
    test = _named(root, title, read(root))
    if not all((root / CHEN / name).is_dir() for name in TRAINING):
        return test
    # Positions of their own, although the parts never meet: a place has one position in the whole set.
    others = [
        [_moved(side, CITY_STEP * number) for side in read_sides(root)]
        for number, read_sides in enumerate(TRAINING.values(), start=1)
    ]
    query, database = map(list, zip(*others, strict=True))
    parts = {"train": query + database, "train-query": query, "train-database": database}
    train = {name: _dataset(root, "Nordland and SPED", sides) for name, sides in parts.items()}
    return Splits(train | dict(test.parts))


TRAINING = {"nordland_noviewpointvariation": _nordland, "SPEDTEST": _sped}
"""What is trained on, by its folder."""


def _moved(side: Side, east: float) -> Side:
    return Side(side.paths, side.positions + np.array([east, 0.0]))


def _named(root: Path, title: str, sides: Sides) -> Splits:
    names = ("query", "database")
    return Splits({
        name: _dataset(root, title, [side]) for name, side in zip(names, sides, strict=True)
    })


def _dataset(root: Path, title: str, sides: list[Side]) -> Dataset:
    paths = [p for side in sides for p in side.paths]
    return Dataset(
        ImageFiles(paths),
        positions=np.concatenate([side.positions for side in sides]),
        names=[p.relative_to(root).as_posix() for p in paths],
        name=title,
    )


def _root(folder: str | Path) -> Path:
    inner = Path(folder) / FOLDER
    return inner if inner.is_dir() else Path(folder)
