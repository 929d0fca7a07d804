"""Published sets of photographs, as their publishers ship them: birds, cars, faces and street views.

CUB-200-2011: lists of images, labels and the split beside a folder of images.

    images.txt               <id> <path below images/>
    image_class_labels.txt   <id> <class, from 1>
    train_test_split.txt     <id> <1 for training>
    classes.txt              <class> <name>

or, as github.com/cyizhuo/CUB-200-2011-dataset has it, a folder per part of the published split and class:

    train/001.Black_footed_Albatross/….jpg, test/001.Black_footed_Albatross/….jpg

The number in the folder's name is the class.

Cars196 (Stanford Cars), as github.com/cyizhuo/Stanford_Cars_dataset has it: a folder per part of the
published split and class.

    train/AM General Hummer SUV 2000/000001.jpg, test/AM General Hummer SUV 2000/000046.jpg

The names of the folders have no numbers, and the publisher's list is alphabetical by maker only. Its order
is recovered from the files: they keep the numbers of ``car_ims``, which run through the classes in the
order of the list. So classes are ordered by their least number. (All classes have consecutive numbers but
119, GMC Savana Van 2012, which has 70 of its 136 behind class 122; its least still comes before class
120's.) The first 98 classes then have the 8,054 images that are published for the zero-shot protocol.

Labeled Faces in the Wild: a folder per person, and the publisher's lists of people. Training and test
people differ in each of these lists, so the split is open-set. ``labels.csv`` may hold fewer people than
the lists do; those it does not hold are left out. Without it, each person must have as many images as the
list says.

    peopleDevTrain.txt, peopleDevTest.txt   a count, then "<name> <images>" per person
    people.txt                              the number of folds; per fold a count and its people
    labels.csv                              instead of counting: columns file, label

Mapillary Street-level Sequences (MSLS): queries and a database per city, with UTM positions. Copenhagen and
San Francisco validate; the other cities train. Panoramas are left out, as in the publisher's protocol. UTM
zones use the same numbers again, so the cities are moved apart: each lies `CITY_STEP` metres further east
than the one before it by name. Distances within a city stay.

    train_val/<city>/{query,database}/images/<key>.jpg
    train_val/<city>/{query,database}/postprocessed.csv    key, easting, northing, …
    train_val/<city>/{query,database}/raw.csv              key, pano, …
"""

from collections.abc import Callable
from pathlib import Path

from surefind.data.dataset import Dataset, Splits
from surefind.data.images import ImageFiles, check_exist
from surefind.data.sources import image_paths, images_by_class, read_table
from surefind.errors import InputError


def load_cub(folder: str | Path) -> Splits:
    """Load CUB-200-2011: the first half of the classes to train on, the second to test.

    Args:
        folder: Where ``images.txt``, or ``train`` and ``test`` are; ``CUB_200_2011`` in it is found too.

    Returns:
        The parts ``"train"`` and ``"test"``.
    """
    folder = Path(folder)
    if (folder / "CUB_200_2011").is_dir():
        folder /= "CUB_200_2011"
    if not (folder / "images.txt").is_file():
        return _from_folders(folder, _by_own_number, "CUB-200-2011")
    paths, labels, classes = (
        _read_list(folder / f"{name}.txt") for name in ("images", "image_class_labels", "classes")
    )
    files = [str(folder / "images" / p) for p in paths.values()]
    check_exist(files, folder / "images.txt")
    dataset = Dataset(
        ImageFiles(files),
        [classes[labels[i]] for i in paths],
        names=list(paths.values()),
        classes=list(classes.values()),
        name="CUB-200-2011",
    )
    return zero_shot(dataset)


def _read_list(path: Path) -> dict[str, str]:
    lines = path.read_text(encoding="utf-8").strip().splitlines()
    keys, values = zip(*(line.strip().split(" ", 1) for line in lines), strict=True)
    return dict(zip(keys, values, strict=True))


ClassOrder = Callable[[dict[str, list[Path]], Path], list[str]]
"""Puts the names of class folders, with their images, into the publisher's order."""


def _from_folders(folder: Path, order: ClassOrder, name: str) -> Splits:
    """Load a folder per part of the published split, and in each a folder per class."""
    images = {part: images_by_class(folder / part) for part in ("train", "test")}
    every = sorted(images["train"].keys() | images["test"].keys())
    classes = order({c: images["train"][c] + images["test"][c] for c in every}, folder)
    paths, labels = zip(
        *((p, c) for c in classes for part in images.values() for p in part[c]), strict=True
    )
    names = [p.relative_to(folder).as_posix() for p in paths]
    return zero_shot(Dataset(ImageFiles(paths), labels, names=names, classes=classes, name=name))


def _by_own_number(images: dict[str, list[Path]], folder: Path) -> list[str]:
    """Order classes by the number that their names begin with; none may be missing."""
    classes = sorted(images)
    for number, name in enumerate(classes, start=1):
        if not name.startswith(f"{number:03}."):
            raise InputError(
                f"the class folders of {folder} do not count from 001. up without a gap: class {number} is "
                f"{name!r}. Copy the missing ones, or rename them as published."
            )
    return classes


def _by_least_file(images: dict[str, list[Path]], folder: Path) -> list[str]:
    """Order classes by the least number among the names of their files, which are the publisher's."""
    return sorted(images, key=lambda name: min(int(p.stem) for p in images[name]))


def load_cars(folder: str | Path) -> Splits:
    """Load Cars196: the first half of the classes to train on, the second to test.

    Args:
        folder: Where ``train`` and ``test`` are.

    Returns:
        The parts ``"train"`` and ``"test"``.
    """
    return _from_folders(Path(folder), _by_least_file, "Cars196")


def zero_shot(dataset: Dataset) -> Splits:
    """Train on the first half of the classes, in the order of their labels, and test on the second."""
    classes = dataset.labels.unique()
    train = dataset.labels < classes[max(round(len(classes) / 2), 1)]
    return Splits({"train": dataset[train], "test": dataset[~train]})


IMAGE_FOLDERS = ("lfw", "lfw_funneled", "lfw-deepfunneled", "lfw-funneled", "images")
TEST_FOLDS = (9, 10)
DEV_LISTS = {"train": "peopleDevTrain.txt", "test": "peopleDevTest.txt"}


def load_lfw(folder: str | Path) -> Splits:
    """Load LFW.

    Args:
        folder: Where the lists are and the folder of images (``lfw`` or ``images``) is.

    Returns:
        The parts ``"train"`` and ``"test"``; without any list of people, the part ``"all"``.

    Raises:
        InputError: If the images do not fit the lists.
    """
    root = Path(folder)
    images = next((root / n for n in IMAGE_FOLDERS if (root / n).is_dir()), root)
    lists = _people(root)
    found = _images_of(root, images)
    wrong = [
        f"{name} has {len(found.get(name, []))} of {count}"
        for people in lists.values()
        for name, count in people.items()
        if len(found.get(name, [])) != count and not (root / "labels.csv").is_file()
    ]
    if wrong:
        raise InputError(
            f"{len(wrong)} people in {images} do not have the images that the list announces: "
            f"{'; '.join(wrong[:5])}. Copy them again, or write a labels.csv of what is there."
        )
    classes = sorted(found)
    parts = {}
    for part, people in (lists or {"all": dict.fromkeys(classes, 0)}).items():
        chosen = [p for p in sorted(people) if p in found]
        paths = [p for person in chosen for p in found[person]]
        parts[part] = Dataset(
            ImageFiles(paths),
            [person for person in chosen for _ in found[person]],
            names=[p.relative_to(images).as_posix() for p in paths],
            classes=classes,
            name="LFW",
        )
    return Splits(parts)


def _images_of(root: Path, images: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    listed = root / "labels.csv"
    if listed.is_file():
        table = read_table(listed)
        paths = [images / f for f in table.filled("file")]
        check_exist(paths, listed)
        for path, person in zip(paths, table.filled("label"), strict=True):
            found.setdefault(person, []).append(path)
    elif images.is_dir():
        for path in image_paths(images):
            found.setdefault(path.parent.name, []).append(path)
    return found


def _people(root: Path) -> dict[str, dict[str, int]]:
    """Return how many images each person has, by part; folds 9 and 10 are the test without such lists."""
    if all((root / f).is_file() for f in DEV_LISTS.values()):
        return {part: _read_folds(root / f, folds=1)[0] for part, f in DEV_LISTS.items()}
    if not (root / "people.txt").is_file():
        return {}
    parts: dict[str, dict[str, int]] = {"train": {}, "test": {}}
    for number, fold in enumerate(_read_folds(root / "people.txt"), start=1):
        parts["test" if number in TEST_FOLDS else "train"].update(fold)
    return parts


def _read_folds(path: Path, folds: int | None = None) -> list[dict[str, int]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    found, at = [], 0 if folds else 1
    for _ in range(folds or int(lines[0])):
        people = [line.split() for line in lines[at + 1 : at + 1 + int(lines[at])]]
        found.append({name: int(count) for name, count in people})
        at += 1 + int(lines[at])
    return found


VALIDATION_CITIES = ("cph", "sf")
MSLS_SIDES = ("query", "database")
CITY_STEP = 1e7


def load_msls(folder: str | Path) -> Splits:
    """Load MSLS.

    Args:
        folder: Where the cities are; ``train_val`` inside it is found too.

    Returns:
        Of ``"train"`` (both sides of the other cities, each by itself as ``"train-query"`` and
        ``"train-database"``), ``"query"`` and ``"database"`` (of the validation cities) those for which
        there are cities.
    """
    root = Path(folder)
    if (root / "train_val").is_dir():
        root /= "train_val"
    cities = sorted(p.name for p in root.glob("*") if (p / "database").is_dir())
    names = ("train", *(f"train-{side}" for side in MSLS_SIDES), *MSLS_SIDES)
    rows: dict[str, list[tuple[str, float, float]]] = {name: [] for name in names}
    for number, city in enumerate(cities):
        for side in MSLS_SIDES:
            found = [
                (path, east + CITY_STEP * number, north)
                for path, east, north in _read_side(root / city / side)
            ]
            for part in (side,) if city in VALIDATION_CITIES else ("train", f"train-{side}"):
                rows[part] += found
    return Splits({part: _located(root, found) for part, found in rows.items() if found})


def _located(root: Path, rows: list[tuple[str, float, float]]) -> Dataset:
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
    panorama = dict.fromkeys(keys, "false")
    if (folder / "raw.csv").is_file():
        raw = read_table(folder / "raw.csv")
        panorama = dict(zip(raw["key"], raw["pano"], strict=True))
    paths = [str(folder / "images" / f"{key}.jpg") for key in keys]
    rows = zip(keys, paths, table.numbers("easting"), table.numbers("northing"), strict=True)
    kept = [
        (path, east, north) for key, path, east, north in rows if panorama[key].lower() != "true"
    ]
    check_exist([path for path, _, _ in kept], table.path)
    return kept
