"""The benchmark on custom images, with a custom out-of-distribution folder.

Images come from a folder per class or a manifest. Parts that are there are used: "train" with "test" (or
else a validation part), or with "query" and "gallery" (or "database"). Where there is no such division it
is made, the same each time: from `OPEN_CLASSES` classes on half of the classes are kept for the test, so
that it asks about classes never seen in training; with fewer, a third of the images of each class.

A tenth is left out for validation where that leaves enough: of the classes if the test classes are new
ones, else of the images if there are `ROOMY` a class.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from surefind.checks import check_int
from surefind.data.dataset import Dataset
from surefind.data.folder import EXTENSIONS, image_paths, load_folder
from surefind.data.images import ImageFiles
from surefind.data.preprocessing import Preprocessing
from surefind.data.splits import Splits, open_set_split, validation_split
from surefind.data.tables import load_manifest
from surefind.errors import InputError
from surefind.learning.seeds import seeded
from surefind.models.convnets import small_net
from surefind.models.encoder import Encoder
from surefind.pairs.losses import MARGIN
from surefind.paper.ood_sets import OodSet
from surefind.paper.protocols import (
    PROTOCOLS,
    Problem,
    Protocol,
    check_trainable,
    on_backbone,
    training_parts,
)

OPEN_CLASSES = 10
ROOMY = 10
OUTPUTS = 16
"""Embedding dimension of the small network."""
TEST_PARTS = ("test", "val", "valid", "validation")
GALLERIES = ("gallery", "database")


def custom_problem(
    source: str | Path,
    ood: str | Path | None = None,
    *,
    name: str | None = None,
    backbone: str | Path | None = None,
    side: int = 64,
    epochs: int = 20,
    batch_size: int = 64,
    margin: float = MARGIN,
    learning_rate: float | None = None,
) -> Problem:
    """Load custom images as a problem of the benchmark.

    Args:
        source: A folder with a folder per class, or a manifest.
        ood: A folder of images, or a manifest, of another kind; None leaves OOD detection out.
        name: The folder of its results; the source's name by default.
        backbone: Folder of a pretrained network; None trains a small one of convolutions.
        side: To which the small network's images are resized.
        epochs: Passes over the data.
        batch_size: Examples a step.
        margin: Squared distance up to which negative pairs repel.
        learning_rate: Of RMSprop; by default 1e-3, and 1e-5 for a backbone, which must not forget.

    Returns:
        The problem.
    """
    check_int("side", side, least=4)
    source = Path(source)
    train, test, gallery = _parts(_load(source), source)
    check_trainable(train)
    cut = _validation(train, test)
    kept, validation = training_parts(train, cut)
    many = train.labels is not None and len(train.labels.unique()) > batch_size // 4
    build: Callable[[torch.Generator], Encoder]
    if backbone is None:
        build = partial(_small_net, side)
        preprocessing, default_rate = Preprocessing(resize=side, crop=side), 1e-3
    else:
        (build, preprocessing), default_rate = on_backbone(backbone, augment=False), 1e-5
    protocol = Protocol(
        None,
        () if ood is None else (OodSet(Path(ood).stem, "all"),),
        *(margin, epochs, epochs, batch_size, batch_size),
        default_rate if learning_rate is None else learning_rate,
        validation=cut,
        # Many classes would hardly meet themselves in batches at random.
        examples_per_class=4 if many else None,
        side=side if backbone is None else None,
        backbone=None if backbone is None else Path(backbone).name,
    )
    name = name or source.stem
    return Problem(
        # Results of custom data are kept apart from those of a published data set of the same name.
        f"{name}-custom" if name in PROTOCOLS else name,
        protocol,
        build,
        kept,
        test,
        gallery,
        None if ood is None else _ood(Path(ood)),
        preprocessing,
        _notes(test if gallery is None else gallery),
        validation,
    )


def _small_net(side: int, generator: torch.Generator) -> Encoder:
    return small_net(3, side, OUTPUTS, generator=generator)


def _load(source: Path) -> Splits:
    if not source.exists():
        raise InputError(
            f"{source} does not exist; give a folder with a folder per class, or a manifest."
        )
    splits = load_folder(source) if source.is_dir() else load_manifest(source)
    for part in splits:
        splits[part].verify()
    return splits


def _parts(splits: Splits, source: Path) -> tuple[Dataset, Dataset, Dataset | None]:
    gallery = next((p for p in GALLERIES if p in splits), None)
    test = next((p for p in TEST_PARTS if p in splits), None)
    if "train" in splits and "query" in splits and gallery is not None:
        return splits.train, splits["query"], splits[gallery]
    if "train" in splits and test is not None:
        return splits.train, splits[test], None
    if not set(splits) <= {"all", "train"}:
        raise InputError(
            f"{source} has the parts {', '.join(map(repr, splits))}; a benchmark needs 'train' with "
            "'test', or 'train' with 'query' and 'gallery', or no parts at all."
        )
    everything = splits[next(iter(splits))]
    if everything.labels is None:
        raise InputError(
            f"{source} has positions and no classes, so it is not clear what belongs to the test. Name "
            "the parts 'train', 'query' and 'gallery'."
        )
    check_trainable(everything)
    if len(everything.labels.unique()) >= OPEN_CLASSES:
        cut = open_set_split(everything, generator=seeded(0, "test"))
        return cut.train, cut.test, None
    cut = validation_split(everything, seeded(0, "test"), share=1 / 3)
    return cut.train, cut["validation"], None


def _validation(train: Dataset, test: Dataset) -> str:
    if train.labels is None or test.labels is None:
        return "none"
    classes = set(train.labels.tolist())
    if classes & set(test.labels.tolist()):
        return "example" if len(train) >= ROOMY * len(classes) else "none"
    return "class" if len(classes) >= OPEN_CLASSES else "none"


def _ood(source: Path) -> Dataset:
    if source.is_dir():
        paths = [str(p) for p in image_paths(source)]
    elif source.is_file():
        parts = load_manifest(source)
        paths = [p for part in parts for p in parts[part].inputs.paths]
    else:
        raise InputError(
            f"{source} does not exist; give a folder of out-of-distribution images, or a manifest."
        )
    if not paths:
        raise InputError(
            f"{source} holds no image; out-of-distribution data are files ending in "
            f"{', '.join(sorted(EXTENSIONS))}, at any depth. Fill the folder, or leave it out."
        )
    data = Dataset(ImageFiles(paths), name=source.name)
    data.verify()
    return data


def _notes(gallery: Dataset) -> tuple[str, ...]:
    counts = [] if gallery.labels is None else gallery.labels.unique(return_counts=True)[1].tolist()
    singles = counts.count(1)
    if not singles:
        return ()
    return (
        f"{singles} of {len(counts)} test classes have a single image: it can be found by others but has "
        "nothing to find, so it is left out as a query.",
    )
