"""How each data set is benchmarked: the paper's settings where it gives them.

| set | network | out of distribution, the first of them | open set |
| --- | --- | --- | --- |
| fashion-mnist | the paper's, 3 outputs | mnist test | no |
| cifar10 | the paper's, 16 outputs | svhn test | no |
| cub200 | backbone, linear layer of its width | cars196 test | classes 101 … 200 |
| lfw | backbone, linear layer of its width | cub200 test | other people |
| msls | backbone, linear layer of its width | none | other cities, query against database |
| gardens-point | as msls | none | trained on nordland and sped |
| gardens-point-left | as msls | none | the same |
| st-lucia | as msls | none | the same |
| berlin-halensee | as msls | none | the same |
| berlin-kudamm | as msls | none | the same |
| berlin-a100 | as msls | none | the same |
| omniglot | FashionMNIST's, 64 outputs | fashion-mnist test | other alphabets |
| digits | a small one, 4 outputs | patches of photographs | no |

More out-of-distribution sets (`surefind.paper.ood_sets`): FashionMNIST is also asked about
Omniglot, CIFAR10 and LFW, in grey, and noise; CIFAR10 about MNIST, FashionMNIST, Omniglot, LFW and noise,
and, near, CIFAR100; the digits about noise.

The paper's backbone is a ResNet-50 with GeM pooling; results name the one that was given. LFW's batches
hold two images of each person, MSLS's two of each place, or there would hardly be a positive pair in them.
Omniglot is shrunk to 28 × 28 by area, bright ink on dark ground like FashionMNIST, so that the ground does
not give OOD inputs away.

Where FashionMNIST leaves the paper, on validation data: the mean over negative pairs inside the margin
(`surefind.pairs.losses`) took recall@1 of the point estimate from 0.75 to 0.83 after four epochs; batches
of 64 instead of 256, to 0.85, so all methods have them; and with both, 6 epochs do what 20 did not. On
CIFAR10 the mean over all negative pairs left recall@1 at 0.32 after 20 epochs, that inside the margin at
0.58; batches of 64 and channels of mean 0 and variance 1, to 0.66, while it was 0.81 on training data, so
images are mirrored at random. All methods have the same number of epochs. Online LAM forgets a thousandth
of its curvature a step on every set; so it does in the paper on these two, on the others from 1e-5 to 5e-3.

A tenth of the training data is left out of training, for choices that need data the model has not seen:
of the examples of each class in closed sets, of the classes in open ones, of squares of 2.5 km where there
are positions only, if there are several. The methods' defaults need none of it.

A problem is a protocol together with its data and its network. Everything that can be refused is refused
when it is made, before hours of training: data sets that are not there, training data of one class or
without a positive pair, test data too few to search, an empty out-of-distribution set.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from surefind.checks import check_choice, check_positive
from surefind.data.dataset import Dataset, validation_split
from surefind.data.images import ImageFiles
from surefind.data.inputs import IMAGENET, FeatureViews, Preprocessing
from surefind.errors import DegenerateError, InputError
from surefind.evaluation.evaluate import check_parts
from surefind.learning.frozen import Freezing, HeadStart
from surefind.learning.seeds import seeded
from surefind.models.backbones import load_backbone, with_linear_head
from surefind.models.encoder import Encoder
from surefind.models.networks import cifar10_net, fashion_mnist_net, small_net
from surefind.pairs.losses import MARGIN, Contrastive, ContrastiveLoss
from surefind.pairs.relations import Relation
from surefind.paper.catalogue import load
from surefind.paper.ood_sets import OodSet, load_ood_sets, shrunk_ink
from surefind.paper.vocabulary import NOISE, OodKind

Build = Callable[[torch.Generator], Encoder]
"""Makes the encoder from a source of weights."""


@dataclass(frozen=True)
class UnsquaredContrastive:
    """The contrastive loss that the paper's numbers were trained on: of distances that are not squared.

        L = ½ mean_pos |u_i - u_j|  +  ½ mean_neg inside max(0, m - |u_i - u_j|)

    Its margin m compares the distance itself, so that the same pairs are inside the margin m² of the
    squared loss. Its pull on a positive pair does not weaken as the pair gets close. Where two embeddings
    coincide it has no gradient; zero is taken. Curvature is always that of the squared loss.

    Attributes:
        margin: Distance, not squared, up to which negative pairs repel.

    Raises:
        InputError: If the margin is not positive.
    """

    margin: float = MARGIN

    def __post_init__(self) -> None:
        check_positive("margin", self.margin)

    @property
    def squared_margin(self) -> float:
        """The margin as curvature takes it: the same pairs are inside."""
        return self.margin**2

    def __call__(
        self, embeddings: Tensor, relation: Relation, generator: torch.Generator
    ) -> Tensor:
        """Compute the loss of a batch; nothing in it is random."""
        everything = slice(0, len(relation))
        positive, negative = relation.block(everything, everything)
        # Differences, not products: 1 - cosine has no digits left for the root of a small distance.
        mode = "donot_use_mm_for_euclid_dist"
        distance = torch.cdist(embeddings, embeddings, compute_mode=mode)
        pull = torch.where(positive, distance, 0).sum() / positive.sum().clamp(min=1)
        push = torch.where(negative, self.margin - distance, 0).clamp(min=0)
        return (pull + push.sum() / (push > 0).sum().clamp(min=1)) / 2


@dataclass(frozen=True)
class Protocol:
    """How a data set is benchmarked.

    Attributes:
        build: Makes the encoder; None puts a linear layer on the backbone that the user gives.
        ood: The out-of-distribution sets, the paper's first; empty if there are none.
        margin: Squared distance up to which negative pairs repel.
        epochs: Passes over the data.
        online_epochs: The same for online LAM.
        batch_size: Examples a step.
        online_batch_size: The same for online LAM.
        learning_rate: Of RMSprop.
        decay: Factor of the learning rate from epoch to epoch.
        queries: The part that is asked about.
        gallery: The part where it is looked up; None for the queries themselves.
        validation: What the part that is left out of training is cut by: "example", "class", "place", or
            "none" for no such part.
        examples_per_class: K, for batches of K examples of each class or place; None for batches at random.
        augment: Whether training images are mirrored at random, and, for a backbone, cut.
        ece_samples: Joint samples for calibration and agreement.
        backbone: What to call the backbone; None without one.
        channels: Mean and standard deviation of each channel, to normalise by; None leaves [0, 1], or
            what the backbone wants.
        prepare: What is done to the set's inputs once, after loading.
        recipe: The name of a recipe (`surefind.paper.recipes`), which its results are under.
        squared: Whether the loss is that of squared distances; if not, the margin is a distance.
        kappa_samples: From how many joint samples κ of LAM is estimated; None for the closed form.
        novelty: Whether novelty is fitted.
        options: Options of methods by their names; without an entry, the defaults.
        frozen: Whether the backbone stays as it is (`surefind.paper.frozen`).
        trained_stages: How many of its last stages learn then.
        head: What the head of a frozen backbone starts as.
        metres: Whether positions are metres, so that recall within 50 m is measured too.
    """

    build: Build | None
    ood: tuple[OodSet, ...]
    margin: float
    epochs: int
    online_epochs: int
    batch_size: int
    online_batch_size: int
    learning_rate: float
    decay: float = math.exp(-0.1)
    queries: str = "test"
    gallery: str | None = None
    validation: str = "example"
    examples_per_class: int | None = None
    augment: bool = False
    ece_samples: int = 100
    backbone: str | None = None
    channels: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    prepare: Callable[[Dataset], Dataset] | None = None
    recipe: str | None = None
    squared: bool = True
    kappa_samples: int | None = None
    novelty: bool = True
    options: Mapping[str, Mapping[str, Any]] | None = None
    frozen: bool = False
    trained_stages: int = 0
    head: HeadStart = "given"
    metres: bool = False

    @property
    def objective(self) -> ContrastiveLoss:
        """The loss that is trained on."""
        return (Contrastive if self.squared else UnsquaredContrastive)(self.margin)

    def settings(self) -> dict[str, Any]:
        """Return what a result records of its protocol, as JSON holds it; without defaults.

        Options of methods are recorded with the method. Of the out-of-distribution sets it is the first: a
        result that was measured on fewer of the others has the same protocol, and lists its sets itself.
        """
        options = [f for f in fields(self) if f.name not in ("build", "ood", "prepare", "options")]
        changed = {f.name: v for f in options if (v := getattr(self, f.name)) != f.default}
        recorded = {"ood": self.ood[0][:2] if self.ood else None, **changed}
        return {**json.loads(json.dumps(recorded)), "loss": repr(self.objective)}


def _far(*names: str) -> tuple[OodSet, ...]:
    """Return the test parts of sets of another kind."""
    return tuple(OodSet(name, "all" if name == NOISE else "test") for name in names)


PROTOCOLS = {
    "fashion-mnist": Protocol(
        lambda g: fashion_mnist_net(3, generator=g),
        _far("mnist", "omniglot", "cifar10", "lfw", NOISE),
        *(MARGIN, 6, 6, 64, 64, 1e-3),
        decay=0.68,
    ),
    "cifar10": Protocol(
        lambda g: cifar10_net(16, generator=g),
        (
            *_far("svhn", "mnist", "fashion-mnist", "omniglot", "lfw", NOISE),
            OodSet("cifar100", "test", "near"),
        ),
        *(MARGIN, 20, 20, 64, 64, 1e-3),
        augment=True,
        channels=((0.491, 0.482, 0.447), (0.247, 0.243, 0.262)),
    ),
    "digits": Protocol(
        lambda g: small_net(1, 8, 4, generator=g),
        (OodSet("digits", "ood"), *_far(NOISE)),
        *(MARGIN, 10, 10, 64, 64, 1e-3),
    ),
    "cub200": Protocol(
        *(None, _far("cars196"), 1.0, 20, 20, 64, 64, 1e-7), validation="class", augment=True
    ),
    "lfw": Protocol(
        *(None, _far("cub200"), 1.0, 200, 200, 64, 64, 1e-7),
        validation="class",
        augment=True,
        examples_per_class=2,
    ),
    "msls": Protocol(
        *(None, (), 0.1, 30, 20, 64, 64, 1e-7),
        queries="query",
        gallery="database",
        validation="place",
        examples_per_class=2,
    ),
    "omniglot": Protocol(
        lambda g: fashion_mnist_net(64, generator=g),
        *(_far("fashion-mnist"), MARGIN, 10, 10, 256, 256, 1e-3),
        validation="class",
        examples_per_class=4,
        prepare=shrunk_ink,
    ),
}
"""Every protocol by the name of its data set, as in `BENCHMARKS`."""
PROTOCOLS |= {
    name: replace(PROTOCOLS["msls"], metres=name == "berlin-halensee")
    for name in (
        *("gardens-point", "gardens-point-left", "st-lucia"),
        *("berlin-halensee", "berlin-kudamm", "berlin-a100"),
    )
}
PROTOCOLS["msls"] = replace(PROTOCOLS["msls"], metres=True)


@dataclass(frozen=True, eq=False)
class Problem:
    """What methods are compared on.

    Attributes:
        name: The folder of its results.
        protocol: How it is benchmarked.
        build: Makes the encoder from a source of weights.
        train: The training data, without what is left out for validation.
        test: The queries.
        gallery: Where they are looked up; None for the test data themselves.
        ood: Out-of-distribution data, of the protocol's first set; None if there are none.
        preprocessing: How images are cut, resized and normalised.
        notes: What the user should know of the data, in sentences.
        validation: What is left out of training; None if nothing is.
        more_ood: The protocol's other out-of-distribution sets that are there, by name.
        freezing: How the backbone is frozen; None if it is not.
        pictures: The images themselves, by part, where the parts hold features of them.

    Raises:
        InputError: If the data cannot be benchmarked.
    """

    name: str
    protocol: Protocol
    build: Build
    train: Dataset
    test: Dataset
    gallery: Dataset | None = None
    ood: Dataset | None = None
    preprocessing: Preprocessing | None = None
    notes: tuple[str, ...] = ()
    validation: Dataset | None = None
    more_ood: Mapping[str, Dataset] = field(default_factory=dict)
    freezing: Freezing | None = None
    pictures: Mapping[str, Dataset] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_trainable(self.train)
        check_parts(self.test, self.gallery)
        for ood in self.ood_parts.values():
            if not len(ood):
                raise InputError(
                    f"{ood.name} is empty; out-of-distribution data need one example.", field="ood"
                )
            if _same_inputs(self.test, ood):
                raise InputError(
                    f"{ood.name} holds the test data themselves, so there is nothing to detect. "
                    "Give the folder in which each set has a folder of its own name.",
                    field="ood",
                )

    @property
    def ood_parts(self) -> dict[str, Dataset]:
        """The out-of-distribution sets that are there, by name, the protocol's first one first."""
        named = [s.name for s in self.protocol.ood[:1]]
        first = {} if self.ood is None else {(named or [self.ood.name])[0]: self.ood}
        return first | dict(self.more_ood)

    def ood_kind(self, name: str) -> OodKind:
        """Return whether an out-of-distribution set is near or far; far if the protocol does not say."""
        return next((s.kind for s in self.protocol.ood if s.name == name), "far")

    @property
    def parts(self) -> dict[str, Dataset]:
        """The parts that there are, by name."""
        parts = {"train": self.train, "test": self.test, "gallery": self.gallery, "ood": self.ood}
        return {name: part for name, part in parts.items() if part is not None}

    def data(self, part: str) -> Dataset:
        """Return a part of the evaluation, "id" or "ood", with inputs that can be shown."""
        return (self.parts | dict(self.pictures))["test" if part == "id" else part]

    @property
    def examples(self) -> dict[str, int]:
        """Sizes of the parts."""
        return {name: len(part) for name, part in self.parts.items()}

    @property
    def files(self) -> dict[str, str]:
        """Fingerprints of the parts that are image files."""
        inputs = {n: part.inputs for n, part in (self.parts | dict(self.pictures)).items()}
        return {n: x.fingerprint() for n, x in inputs.items() if isinstance(x, ImageFiles)}

    @property
    def images(self) -> bool:
        """Whether the inputs are images, to be shown and corrupted."""
        inputs = self.data("id").inputs
        return isinstance(inputs, ImageFiles) or str(inputs.dtype).endswith("uint8")

    @property
    def shown(self) -> Preprocessing | None:
        """How images are cut and resized to be shown: without normalisation."""
        wanted = self.preprocessing
        return None if wanted is None else replace(wanted, mean=None, std=None)


def load_problem(
    name: str,
    data: str | Path | None = None,
    *,
    backbone: str | Path | None = None,
    protocol: Protocol | None = None,
) -> Problem:
    """Load a set with its protocol.

    Args:
        name: One of `PROTOCOLS`.
        data: Folder that holds the data sets.
        backbone: Folder of a pretrained network, for the sets whose protocol has no network of its own.
        protocol: Another than the set's own, such as a recipe's.

    Returns:
        The problem.

    Raises:
        InputError: If the backbone is missing, or there for a set that has a network of its own.
    """
    check_choice("data set", name, PROTOCOLS)
    protocol = protocol or PROTOCOLS[name]
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
    train, validation = training_parts(prepare(splits.train), protocol.validation)
    make: Build
    preprocessing: Preprocessing | None = None
    if build is not None:
        make = build
        if protocol.channels is not None:
            mean, std = protocol.channels
            preprocessing = Preprocessing(mean=mean, std=std, flip=protocol.augment)
    elif backbone is not None:
        make, preprocessing = on_backbone(backbone, augment=protocol.augment)
        protocol = replace(protocol, backbone=Path(backbone).name.removesuffix(".onnx"))
    gallery = None if protocol.gallery is None else prepare(splits[protocol.gallery])
    test = prepare(splits[protocol.queries])
    ood = load_ood_sets(protocol.ood, test, data)
    return Problem(
        f"{name}-{protocol.recipe}" if protocol.recipe else name,
        *(protocol, make, train, test, gallery, ood.first, preprocessing, ood.notes),
        validation=validation,
        more_ood=ood.more,
    )


def on_backbone(folder: str | Path, *, augment: bool) -> tuple[Build, Preprocessing]:
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


def training_parts(train: Dataset, validation: str) -> tuple[Dataset, Dataset | None]:
    """Leave the validation part out of training data.

    Args:
        train: The training data.
        validation: What to cut by: "example", "class", "place", or "none".

    Returns:
        What is trained on, and what is left out, if anything; the same for every seed.

    Raises:
        DegenerateError: If there are not two classes to divide; places that cannot be are all trained on.
    """
    if validation == "none":
        return train, None
    try:
        cut = validation_split(train, seeded(0, "validation"), by=validation)
    except DegenerateError:
        if validation == "place":  # all of them in one
            return train, None
        raise
    return cut.train, cut["validation"]


def check_trainable(train: Dataset) -> None:
    """Refuse training data that hold no positive or no negative pair.

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
    """Return whether two parts hold the same arrays, or files of the same names and sizes."""
    ours, theirs = one.inputs, other.inputs
    kept = ImageFiles | FeatureViews
    if isinstance(ours, kept) or isinstance(theirs, kept):
        same = type(ours) is type(theirs)
        return same and bool(ours.fingerprint() == theirs.fingerprint())
    a, b = torch.as_tensor(ours), torch.as_tensor(theirs)
    return a.shape == b.shape and torch.equal(a, b)
