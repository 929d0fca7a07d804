"""CUB-200-2011, as published: lists of images, labels and the split beside a folder of images.

images.txt               <id> <path below images/>
image_class_labels.txt   <id> <class, from 1>
train_test_split.txt     <id> <1 for training>
classes.txt              <class> <name>

Cars196 (Stanford Cars), in either of its published forms.

    cars_annos.mat, car_ims/                                       all images in one list
    devkit/cars_train_annos.mat, cars_train/,
    devkit/cars_test_annos_withlabels.mat (or beside), cars_test/  training and test apart
    devkit/cars_meta.mat                                           class names

The test annotations of the devkit itself have no classes: the file ``…_withlabels.mat`` has.
"""

from pathlib import Path
from typing import Any

import numpy as np

from surefind.data.dataset import Dataset
from surefind.data.formats import read_mat
from surefind.data.images import ImageFiles, check_exist
from surefind.data.splits import Splits, split_by_protocol
from surefind.errors import InputError


def load_cub(folder: str | Path, *, protocol: str = "zero-shot") -> Splits:
    """Load CUB-200-2011.

    Args:
        folder: Where ``images.txt`` is; ``CUB_200_2011`` inside it is found too.
        protocol: ``"zero-shot"`` (train on the first half of the classes, test on the second) or
            ``"published"`` (the split of the publisher).

    Returns:
        The parts ``"train"`` and ``"test"``.

    Raises:
        InputError: If a list or an image is missing, or the lists do not fit together.
    """
    folder = Path(folder)
    if (folder / "CUB_200_2011").is_dir():
        folder /= "CUB_200_2011"
    paths = _read_list(folder / "images.txt")
    labels = _read_list(folder / "image_class_labels.txt")
    in_train = _read_list(folder / "train_test_split.txt")
    classes = _read_list(folder / "classes.txt")
    if not paths.keys() == labels.keys() == in_train.keys():
        raise InputError(
            f"the lists in {folder} do not name the same images: images.txt has {len(paths)}, "
            f"image_class_labels.txt {len(labels)}, train_test_split.txt {len(in_train)}. "
            "Copy them again."
        )
    files = [str(folder / "images" / p) for p in paths.values()]
    check_exist(files, folder / "images.txt")
    if unknown := sorted(set(labels.values()) - classes.keys()):
        raise InputError(f"{folder / 'classes.txt'} does not name class {unknown[0]}.")
    dataset = Dataset(
        ImageFiles(files),
        [classes[labels[i]] for i in paths],
        names=list(paths.values()),
        classes=list(classes.values()),
        name="CUB-200-2011",
    )
    return split_by_protocol(dataset, np.array([in_train[i] == "1" for i in paths]), protocol)


def _read_list(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise InputError(f"{path} does not exist; CUB-200-2011 comes with it.")
    entries = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        key, _, value = line.strip().partition(" ")
        if not value:
            raise InputError(f"{path} line {number}: expected a number and a value; got {line!r}.")
        entries[key] = value.strip()
    return entries


TEST_LISTS = ("cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat")


def load_cars(folder: str | Path, *, protocol: str = "zero-shot") -> Splits:
    """Load Cars196.

    Args:
        folder: Where ``cars_annos.mat`` or ``devkit`` is.
        protocol: ``"zero-shot"`` (train on the first half of the classes, test on the second) or
            ``"published"`` (the split of the publisher).

    Returns:
        The parts ``"train"`` and ``"test"``.

    Raises:
        InputError: If a list or an image is missing, or a class has no name.
    """
    folder = Path(folder)
    if (folder / "cars_annos.mat").is_file():
        names, labels, in_train, classes = _one_list(folder)
    else:
        names, labels, in_train, classes = _two_lists(folder)
    files = [str(folder / n) for n in names]
    check_exist(files, "the annotations")
    if labels.min() < 1 or labels.max() > len(classes):
        raise InputError(
            f"the annotations in {folder} have classes {labels.min()} … {labels.max()}, but "
            f"{len(classes)} class names; copy the .mat files again."
        )
    dataset = Dataset(ImageFiles(files), labels - 1, names=names, classes=classes, name="Cars196")
    return split_by_protocol(dataset, in_train, protocol)


def _one_list(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray, list[str]]:
    path = folder / "cars_annos.mat"
    notes = read_mat(path, "annotations").reshape(-1)
    names = _texts(_field(path, notes, "relative_im_path"))
    in_train = _whole(_field(path, notes, "test")) == 0
    classes = _texts(read_mat(path, "class_names").reshape(-1))
    return names, _whole(_field(path, notes, "class")), in_train, classes


def _two_lists(folder: Path) -> tuple[list[str], np.ndarray, np.ndarray, list[str]]:
    test = next((folder / t for t in TEST_LISTS if (folder / t).is_file()), folder / TEST_LISTS[0])
    lists = ((folder / "devkit" / "cars_train_annos.mat", "cars_train"), (test, "cars_test"))
    names: list[str] = []
    labels, in_train = [], []
    for path, images in lists:
        notes = read_mat(path, "annotations").reshape(-1)
        names += [f"{images}/{n}" for n in _texts(_field(path, notes, "fname"))]
        labels.append(_whole(_field(path, notes, "class")))
        in_train.append(np.full(len(notes), images == "cars_train"))
    classes = _texts(read_mat(folder / "devkit" / "cars_meta.mat", "class_names").reshape(-1))
    return names, np.concatenate(labels), np.concatenate(in_train), classes


def _field(path: Path, notes: Any, name: str) -> Any:
    if notes.dtype.names is None or name not in notes.dtype.names:
        raise InputError(
            f"the annotations in {path} have no field {name!r}; they have "
            f"{', '.join(notes.dtype.names or ())}. Is it the published file?"
        )
    return notes[name]


def _texts(cells: Any) -> list[str]:
    # MATLAB wraps each text in an array of its own.
    return [str(np.asarray(c).reshape(-1)[0]) for c in cells]


def _whole(cells: Any) -> np.ndarray:
    return np.array([int(np.asarray(c).reshape(-1)[0]) for c in cells], dtype=np.int64)
