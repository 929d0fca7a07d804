"""CUB-200-2011, as published: lists of images, labels and the split beside a folder of images.

images.txt               <id> <path below images/>
image_class_labels.txt   <id> <class, from 1>
train_test_split.txt     <id> <1 for training>
classes.txt              <class> <name>
"""

from pathlib import Path

import numpy as np

from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles, check_exist
from surefind.data.splits import Splits
from surefind.data.zero_shot import split_by_protocol
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
