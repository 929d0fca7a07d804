"""Labeled Faces in the Wild: a folder per person, and the publisher's lists of people.

    peopleDevTrain.txt, peopleDevTest.txt   a count, then "<name> <images>" per person
    people.txt                              the number of folds; per fold a count and its people
    labels.csv                              instead of counting: columns file, label

Training and test people differ in each of these lists, so the split is open-set. ``labels.csv`` may
hold fewer people than the lists do; those it does not hold are left out. Without it, each person
must have as many images as the list says.
"""

from collections.abc import Sequence
from pathlib import Path

from surefind.data.dataset import Dataset
from surefind.data.folder import image_paths
from surefind.data.images import ImageFiles, check_exist
from surefind.data.splits import Splits
from surefind.data.tables import read_table
from surefind.errors import InputError

IMAGE_FOLDERS = ("lfw", "lfw_funneled", "lfw-deepfunneled", "lfw-funneled", "images")
DEV_LISTS = {"train": "peopleDevTrain.txt", "test": "peopleDevTest.txt"}


def load_lfw(folder: str | Path, *, test_folds: Sequence[int] = (9, 10)) -> Splits:
    """Load LFW.

    Args:
        folder: Where the lists are and the folder of images (``lfw`` or ``images``) is.
        test_folds: Folds of ``people.txt``, from 1, that make the test part; used when there are no
            ``peopleDev…`` lists.

    Returns:
        The parts ``"train"`` and ``"test"``; without any list of people, the part ``"all"``.

    Raises:
        InputError: If there are no images, or they do not fit the lists.
    """
    root = Path(folder)
    images = next((root / n for n in IMAGE_FOLDERS if (root / n).is_dir()), root)
    lists = _people(root, test_folds)
    found = _images_of(root, images)
    if not (root / "labels.csv").is_file():
        _check_counts(lists, found, images)
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
    if not found:
        raise InputError(f"{root} holds no LFW images; expected a folder per person in lfw/.")
    return found


def _people(root: Path, test_folds: Sequence[int]) -> dict[str, dict[str, int]]:
    if all((root / f).is_file() for f in DEV_LISTS.values()):
        return {part: _read_folds(root / f, folds=1)[0] for part, f in DEV_LISTS.items()}
    path = root / "people.txt"
    if not path.is_file():
        return {}
    folds = _read_folds(path)
    if not set(test_folds) < set(range(1, len(folds) + 1)) or not test_folds:
        raise InputError(
            f"test_folds must name some of the folds 1 … {len(folds)} of {path}, not all; "
            f"got {tuple(test_folds)}."
        )
    parts: dict[str, dict[str, int]] = {"train": {}, "test": {}}
    for number, fold in enumerate(folds, start=1):
        parts["test" if number in test_folds else "train"].update(fold)
    return parts


def _read_folds(path: Path, folds: int | None = None) -> list[dict[str, int]]:
    lines = iter(path.read_text(encoding="utf-8").splitlines())
    result = []
    try:
        for _ in range(int(next(lines)) if folds is None else folds):
            people = (next(lines).split() for _ in range(int(next(lines))))
            result.append({name: int(count) for name, count in people})
    except (StopIteration, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path} is not a whole list of people: fewer lines than it announces, or one that is "
            "not a name and a number. Copy it again."
        ) from error
    return result


def _check_counts(
    lists: dict[str, dict[str, int]], found: dict[str, list[Path]], images: Path
) -> None:
    wrong = [
        f"{name} has {len(found.get(name, []))} of {count}"
        for people in lists.values()
        for name, count in people.items()
        if len(found.get(name, [])) != count
    ]
    if wrong:
        raise InputError(
            f"{len(wrong)} people in {images} do not have the images that the list announces: "
            f"{'; '.join(wrong[:5])}. Copy them again, or write a labels.csv of what is there."
        )
