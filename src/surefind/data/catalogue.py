"""The sets that can be asked for by name: load one, or check that it is whole.

Nothing is downloaded. A set that is not there is answered by one sentence: what to get, and where to
put it. `check` compares what is there with what the publisher announces: examples and classes of each
part, and SHA-256 sums of those files whose bytes are fixed and were seen by the authors.

`ENTRIES` is the one list of the sets' names; it needs no PyTorch until a set is loaded. Counts are those of
the publishers' files under the retrieval protocol of the loader; a checksum that is missing is not known.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from surefind.errors import Hint, InputError

if TYPE_CHECKING:
    from surefind.data.splits import Splits

CUB_FILE, CARS_FILE = "cub200_effnetlite0.npz", "cars196_test_effnetlite0.npz"
"""Frozen features of the two sets, see `surefind.data.photographs`."""


@dataclass(frozen=True, eq=False)
class Entry:
    """One set of the catalogue.

    Attributes:
        title: Its name as its publisher writes it.
        short: Its name in tables and figures.
        loader: The function that loads it from a folder, below `surefind.data`.
        markers: Patterns of files of which one must be there.
        get: What to get, to complete "get …".
        counts: Examples of each part as published.
        n_classes: Classes of each part as published, where that is fixed.
        checksums: SHA-256 of files, by name.
        system: Folders where a package manager puts it.
    """

    title: str
    short: str
    loader: str
    markers: tuple[str, ...]
    get: str
    counts: Mapping[str, int]
    n_classes: Mapping[str, int] = field(default_factory=dict)
    checksums: Mapping[str, str] = field(default_factory=dict)
    system: tuple[str, ...] = ()


ENTRIES: Mapping[str, Entry] = {
    "fashion-mnist": Entry(
        "FashionMNIST",
        "FashionMNIST",
        "small_images.load_fashion_mnist",
        ("*-images-idx3-ubyte*",),
        "the four idx .gz files (Debian: apt-get install dataset-fashion-mnist; otherwise "
        "github.com/zalandoresearch/fashion-mnist)",
        {"train": 60000, "test": 10000},
        {"train": 10, "test": 10},
        {
            "train-images-idx3-ubyte.gz": "b0564c3eedabfbf835052cff8503ea42"
            "2014ce006caf5b757f851416ee8300c7",
            "train-labels-idx1-ubyte.gz": "0ae29f65d86684f32d1b9c85147786c5"
            "47b9c6aebcaf235f0400a0cce308b056",
            "t10k-images-idx3-ubyte.gz": "cc1d090a38ace84dfa1aa66e3ada7c33"
            "6ef481a96936906477e6dd344da56eaa",
            "t10k-labels-idx1-ubyte.gz": "8d3605d196f4be44669e46906da9733c"
            "8131fef761fdbfec72c424d5222f1a05",
        },
        ("/usr/share/datasets/fashion-mnist",),
    ),
    "mnist": Entry(
        "MNIST",
        "MNIST",
        "small_images.load_mnist",
        ("*-images-idx3-ubyte*",),
        "the four idx .gz files of yann.lecun.com/exdb/mnist",
        {"train": 60000, "test": 10000},
        {"train": 10, "test": 10},
        {
            "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e3"
            "3eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd"
            "2371eca3ffa0defaefb259924204aec6",
        },
    ),
    "cifar10": Entry(
        "CIFAR-10",
        "CIFAR10",
        "small_images.load_cifar10",
        ("cifar-10-batches-py", "test_batch", "labels.npz"),
        "cifar-10-python.tar.gz of www.cs.toronto.edu/~kriz/cifar.html, unpack it",
        {"train": 50000, "test": 10000},
        {"train": 10, "test": 10},
    ),
    "svhn": Entry(
        "SVHN",
        "SVHN",
        "small_images.load_svhn",
        ("*_32x32.mat", "svhn_test*.webp"),
        "train_32x32.mat and test_32x32.mat of ufldl.stanford.edu/housenumbers",
        {"train": 73257, "test": 26032},
        {"train": 10, "test": 10},
    ),
    "cub200": Entry(
        "CUB-200-2011",
        "CUB200",
        "photographs.load_cub",
        ("images.txt", "CUB_200_2011/images.txt"),
        "CUB_200_2011.tgz of www.vision.caltech.edu/datasets/cub_200_2011, unpack it",
        {"train": 5864, "test": 5924},
        {"train": 100, "test": 100},
    ),
    "cars196": Entry(
        "Cars196",
        "Cars196",
        "photographs.load_cars",
        ("cars_annos.mat", "devkit/cars_train_annos.mat"),
        "the Stanford Cars images with cars_annos.mat (or the devkit and "
        "cars_test_annos_withlabels.mat)",
        {"train": 8054, "test": 8131},
        {"train": 98, "test": 98},
    ),
    "lfw": Entry(
        "LFW",
        "LFW",
        "photographs.load_lfw",
        ("lfw*", "labels.csv", "people*.txt"),
        "lfw.tgz with peopleDevTrain.txt and peopleDevTest.txt of vis-www.cs.umass.edu/lfw, "
        "unpack it",
        {"train": 9525, "test": 3708},
        {"train": 4038, "test": 1711},
    ),
    "msls": Entry(
        "MSLS",
        "MSLS",
        "photographs.load_msls",
        ("train_val", "*/database/postprocessed.csv"),
        "Mapillary Street-level Sequences of www.mapillary.com/dataset/places, unpack it",
        {},
    ),
    "omniglot": Entry(
        "Omniglot",
        "Omniglot",
        "small_images.load_omniglot",
        ("omniglot.npz", "images_background", "images_evaluation"),
        "images_background.zip and images_evaluation.zip of github.com/brendenlake/omniglot, "
        "unpack them",
        {"train": 19280, "test": 13180},
        {"train": 964, "test": 659},
    ),
    "cub200-features": Entry(
        "CUB-200-2011 features",
        "CUB200, frozen features",
        "photographs.load_cub_features",
        (CUB_FILE, f"embeddings/{CUB_FILE}"),
        f"features of all images from a network of your choice, written as surefind.data.photographs says "
        f"to {CUB_FILE},",
        {"train": 5864, "test": 5924},
        {"train": 100, "test": 100},
    ),
    "cars196-features": Entry(
        "Cars196 features",
        "Cars196, frozen features",
        "photographs.load_cars_features",
        (CARS_FILE, f"embeddings/{CARS_FILE}"),
        f"features of the test images from the same network, written as surefind.data.photographs says "
        f"to {CARS_FILE},",
        {},
        {"test": 98},
    ),
    "digits": Entry(
        "digits",
        "Digits",
        "small_images.load_digits",
        (),
        "scikit-learn",
        {"train": 1198, "test": 599, "ood": 500},
        {"train": 10, "test": 10},
    ),
}
"""Every set by the name that `load` takes."""


@dataclass(frozen=True, eq=False)
class CheckReport:
    """What `check` found.

    Attributes:
        title: The set.
        folder: Where it was found; None if it comes with a library.
        counts: Examples of each part that is there.
        n_classes: Classes that occur in each part that has labels.
        checksums: ``"ok"`` or ``"differs"`` for each file with a known sum that is there.
        problems: What is not as published, in sentences; empty if all is well.
    """

    title: str
    folder: Path | None
    counts: Mapping[str, int]
    n_classes: Mapping[str, int]
    checksums: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether everything is as published."""
        return not self.problems


def set_names() -> tuple[str, ...]:
    """List the sets that can be asked for."""
    return tuple(ENTRIES)


def load(name: str, folder: str | Path | None = None) -> "Splits":
    """Load a set by its name.

    Args:
        name: One of `set_names`.
        folder: The set's folder, or the folder that holds it under its name. None looks only where
            a package manager may have put it.

    Returns:
        The parts.
    """
    return _load(_entry(name), find(name, folder))


def check(name: str, folder: str | Path | None = None) -> CheckReport:
    """Compare a set with what its publisher announces.

    Args:
        name: One of `set_names`.
        folder: As for `load`.

    Returns:
        Counts, checksums, and what is wrong with them. A part that is not there is a problem too.
    """
    entry, place = _entry(name), find(name, folder)
    # Sums first: they say of a damaged file that it is damaged, also when it cannot be loaded.
    sums, problems = _checked_sums(entry, place)
    counts: dict[str, int] = {}
    n_classes: dict[str, int] = {}
    try:
        parts = _load(entry, place)
    except InputError as error:
        problems.append(str(error))
        return CheckReport(entry.title, place, counts, n_classes, sums, tuple(problems))
    for part in parts:
        counts[part] = len(parts[part])
        if parts[part].labels is not None:
            n_classes[part] = len(parts[part].labels.unique())
    for what, expected, found in (
        ("examples", entry.counts, counts),
        ("classes", entry.n_classes, n_classes),
    ):
        problems += [
            f"part {part!r} has {found[part]} {what} where {n} are published."
            for part, n in expected.items()
            if part in found and found[part] != n
        ]
    problems += [
        f"part {p!r} is not there ({n} examples)."
        for p, n in entry.counts.items()
        if p not in counts
    ]
    return CheckReport(entry.title, place, counts, n_classes, sums, tuple(problems))


def find(name: str, folder: str | Path | None = None) -> Path | None:
    """Return the folder of a set, found as `load` finds it; None for a set that comes with a library."""
    entry = _entry(name)
    if not entry.markers:
        return None
    given = [] if folder is None else [Path(folder) / name, Path(folder)]
    for place in (*given, *map(Path, entry.system)):
        if any(next(place.glob(pattern), None) for pattern in entry.markers):
            return place
    target = "a folder of your choice, and give that folder" if folder is None else str(given[0])
    where = "is not there: no folder was given" if folder is None else f"is not in {folder}"
    raise InputError(
        f"{entry.title} {where}; get {entry.get} and put it in {target}.",
        field="folder",
        hint=Hint(cli="The folder is given with --data." if folder is None else ""),
    )


def _entry(name: str) -> Entry:
    from surefind.validation import check_choice

    check_choice("name", name, ENTRIES)
    return ENTRIES[name]


def _load(entry: Entry, place: Path | None) -> "Splits":
    module, _, name = entry.loader.rpartition(".")
    loader = getattr(import_module(f"surefind.data.{module}"), name)
    loaded: Splits = loader() if place is None else loader(place)
    return loaded


def _checked_sums(entry: Entry, place: Path | None) -> tuple[dict[str, str], list[str]]:
    sums, problems = {}, []
    for file, expected in entry.checksums.items():
        if place is None or not (place / file).is_file():
            continue
        with (place / file).open("rb") as stream:
            same = hashlib.file_digest(stream, "sha256").hexdigest() == expected
        sums[file] = "ok" if same else "differs"
        if not same:
            problems.append(f"{place / file} is not the published file: its SHA-256 differs.")
    return sums, problems
