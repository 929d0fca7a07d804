"""A problem of the benchmark: a protocol together with its data and its network.

Everything that can be refused is refused here, before hours of training: sets that are not there, training
data of one class or without a single pair, test data too few to search, an empty out-of-distribution set.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from surefind.bench.protocols import PROTOCOLS, Protocol
from surefind.data.catalogue import load
from surefind.data.dataset import Dataset
from surefind.data.images import ImageFiles
from surefind.data.preprocessing import IMAGENET, Preprocessing
from surefind.data.splits import Splits, validation_split
from surefind.errors import DegenerateError, InputError
from surefind.evaluation import check_parts
from surefind.models.backbones import load_backbone, with_linear_head
from surefind.models.encoder import Encoder
from surefind.seeds import seeded
from surefind.validation import check_choice


@dataclass(frozen=True, eq=False)
class Problem:
    """What rows are compared on.

    Attributes:
        name: What its cells are kept under.
        protocol: How it is benchmarked.
        build: Makes the encoder from a source of weights.
        train: The training data, without what is left out for validation.
        test: The queries.
        gallery: Where they are looked up; None for the test data themselves.
        ood: Out-of-distribution data; None if there are none.
        preprocessing: How images are cut, resized and normalised.
        notes: What the user should know of the data, in sentences.

    Raises:
        InputError: If the data cannot be benchmarked.
    """

    name: str
    protocol: Protocol
    build: Callable[[torch.Generator], Encoder]
    train: Dataset
    test: Dataset
    gallery: Dataset | None = None
    ood: Dataset | None = None
    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_trainable(self.train)
        check_parts(self.test, self.gallery)
        if self.ood is not None and not len(self.ood):
            raise InputError(
                f"{self.ood.name} is empty; out-of-distribution data need one example."
            )
        if self.ood is not None and _same_inputs(self.test, self.ood):
            raise InputError(
                f"{self.ood.name} holds the test data themselves, so there is nothing strange to tell. "
                "Give the folder in which each set has a folder of its own name."
            )

    @property
    def parts(self) -> dict[str, Dataset]:
        """The parts that there are, by name."""
        parts = {"train": self.train, "test": self.test, "gallery": self.gallery, "ood": self.ood}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def examples(self) -> dict[str, int]:
        """Sizes of the parts."""
        return {name: len(part) for name, part in self.parts.items()}

    @property
    def files(self) -> dict[str, str]:
        """What tells the parts' image files from others, for the parts that are files."""
        return {
            name: part.inputs.fingerprint()
            for name, part in self.parts.items()
            if isinstance(part.inputs, ImageFiles)
        }

    @property
    def images(self) -> bool:
        """Whether the inputs are images, to be shown and made worse."""
        inputs = self.test.inputs
        return isinstance(inputs, ImageFiles) or str(inputs.dtype).endswith("uint8")

    @property
    def shown(self) -> Preprocessing | None:
        """How images are cut and resized to be shown: without normalisation."""
        wanted = self.preprocessing
        return None if wanted is None else replace(wanted, mean=None, std=None)


def load_problem(
    name: str, data: str | Path | None = None, *, backbone: str | Path | None = None
) -> Problem:
    """Load a set with its protocol.

    Args:
        name: One of `PROTOCOLS`.
        data: Folder that holds the data sets.
        backbone: Folder of a pretrained network, for the sets whose protocol has no network of its own.

    Returns:
        The problem.

    Raises:
        InputError: If the backbone is missing, or there for a set that has a network of its own.
    """
    check_choice("data set", name, PROTOCOLS)
    protocol = PROTOCOLS[name]
    build = protocol.build
    if build is None and backbone is None:
        raise InputError(
            f"{name} needs a pretrained network: give a folder with config.json and *.safetensors as the "
            "backbone (the paper's is a ResNet-50, 'microsoft/resnet-50' on the Hugging Face hub)."
        )
    if build is not None and backbone is not None:
        raise InputError(f"{name} has a network of its own; leave the backbone out.")
    splits = load(name, data)
    prepare = protocol.prepare or (lambda part: part)
    train = training_part(prepare(splits.train), protocol.validation)
    make: Callable[[torch.Generator], Encoder]
    preprocessing: Preprocessing | None = None
    if backbone is not None:
        make, preprocessing = on_backbone(backbone, augment=protocol.augment)
        protocol = replace(protocol, backbone=Path(backbone).name)
    elif build is not None:
        make = partial(build, train)
        if protocol.channels is not None:
            mean, std = protocol.channels
            preprocessing = Preprocessing(mean=mean, std=std, flip=protocol.augment)
    return Problem(
        name,
        protocol,
        make,
        train,
        prepare(splits[protocol.queries]),
        None if protocol.gallery is None else prepare(splits[protocol.gallery]),
        _strange(name, protocol, splits, data),
        preprocessing,
    )


def on_backbone(
    folder: str | Path, *, augment: bool
) -> tuple[Callable[[torch.Generator], Encoder], Preprocessing]:
    """Read a pretrained network, to put linear layers of its width on it.

    Args:
        folder: Its files.
        augment: Whether training images are cut and mirrored at random.

    Returns:
        What makes encoders, which share the network until they are trained; and what it wants of images.
    """
    tower = load_backbone(folder)
    wanted = replace(IMAGENET, random_area=None, flip=False)
    if tower.preprocessing is not None:
        wanted = Preprocessing.from_dict(tower.preprocessing)
    if augment:
        wanted = replace(wanted, random_area=IMAGENET.random_area, flip=True)
    return lambda generator: with_linear_head(tower, generator=generator), wanted


def training_part(train: Dataset, validation: str) -> Dataset:
    """Leave the validation part out of training data.

    Args:
        train: The training data.
        validation: What to cut by: "example", "class", or "none".

    Returns:
        What is trained on; the same for every seed.
    """
    if validation == "none":
        return train
    return validation_split(train, seeded(0, "validation"), by=validation).train


def check_trainable(train: Dataset) -> None:
    """Refuse training data that hold no same or no different pair.

    Args:
        train: The training data.

    Raises:
        DegenerateError: If there is one class only, or one image in each.
    """
    if train.labels is None:
        return
    _, counts = train.labels.unique(return_counts=True)
    if len(counts) < 2:
        raise DegenerateError(
            f"{train.name} has {len(counts)} class to train on; two are needed, to tell them apart."
        )
    if int(counts.max()) < 2:
        raise DegenerateError(
            f"each of the {len(counts)} classes of {train.name} has a single image to train on, so no "
            "two images belong together. Add images to the classes."
        )


def _same_inputs(one: Dataset, other: Dataset) -> bool:
    """Say whether two parts hold the same inputs: the same arrays, or files of the same names and sizes."""
    ours, theirs = one.inputs, other.inputs
    if isinstance(ours, ImageFiles) and isinstance(theirs, ImageFiles):
        return ours.fingerprint() == theirs.fingerprint()
    if isinstance(ours, ImageFiles) or isinstance(theirs, ImageFiles):
        return False
    a, b = torch.as_tensor(ours), torch.as_tensor(theirs)
    return a.shape == b.shape and torch.equal(a, b)


def _strange(
    name: str, protocol: Protocol, splits: Splits, data: str | Path | None
) -> Dataset | None:
    if protocol.ood is None:
        return None
    other, part = protocol.ood
    return (splits if other == name else load(other, data))[part]
