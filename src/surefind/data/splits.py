"""Parts of a data set: training and test, query and gallery, and how to cut them.

Three cuts, each from a generator:

- *open-set*: classes are divided, so that no class of the test part was seen in training;
- *query and gallery*: each class keeps some images as queries and the rest to be found;
- *validation*: a part of the **training** data, per class (closed set) or whole classes (open set).
  A test part never takes its place.

A class with a single image cannot stand on both sides. A named policy says where it goes.

A fine-grained set is divided by its publisher's lists, or by class. Image retrieval on CUB-200-2011 and
Cars196 trains on the first half of the classes and tests on the second (``"zero-shot"``); classification
divides the images of every class (``"published"``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from surefind.checks import check_choice, check_int
from surefind.data.batches import rows_by_class
from surefind.data.dataset import Dataset
from surefind.errors import DegenerateError, InputError

QUERY_SINGLES = ("gallery", "query", "drop", "refuse")
VALIDATION_SINGLES = ("train", "drop", "refuse")
CUTS = ("example", "class", "place")
STRETCH = 2500.0
"""Side of the squares, in metres, that are cut by place: far more than the radius of a pair."""


@dataclass(frozen=True, eq=False, repr=False)
class Splits:
    """The named parts of a data set.

    Attributes:
        parts: Each part by its name, for example ``"train"`` and ``"test"``.
    """

    parts: Mapping[str, Dataset]

    def __repr__(self) -> str:
        return f"Splits({', '.join(f'{name}={part!r}' for name, part in self.parts.items())})"

    def __getitem__(self, name: str) -> Dataset:
        if name not in self.parts:
            raise InputError(
                f"there is no part {name!r} here; there is {', '.join(map(repr, self.parts))}."
            )
        return self.parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def train(self) -> Dataset:
        """The part to learn from."""
        return self["train"]

    @property
    def test(self) -> Dataset:
        """The part to judge by."""
        return self["test"]


def open_set_split(
    dataset: Dataset, *, train_share: float = 0.5, generator: torch.Generator | None = None
) -> Splits:
    """Divide the classes, so that the test classes are new.

    Args:
        dataset: A data set with labels.
        train_share: Share of the classes that goes to training.
        generator: Chooses the classes; None takes them in the order of their labels, as the
            zero-shot protocol of CUB-200-2011 and Cars196 does.

    Returns:
        The parts ``"train"`` and ``"test"``; each keeps all class names.
    """
    train, test = _by_group(
        dataset, _labels(dataset), 1 - _open_share("train_share", train_share), generator
    )
    return Splits({"train": dataset[train], "test": dataset[test]})


def query_gallery_split(
    dataset: Dataset,
    generator: torch.Generator,
    *,
    queries_per_class: int = 1,
    singles: str = "gallery",
) -> Splits:
    """Take queries from each class and leave the rest to be found.

    Args:
        dataset: A data set with labels.
        generator: Chooses the queries.
        queries_per_class: Queries to take; a smaller class keeps at least one image in the gallery.
        singles: Where a class of one image goes: ``"gallery"`` (a distractor), ``"query"`` (a query
            without a match), ``"drop"``, or ``"refuse"``.

    Returns:
        The parts ``"query"`` and ``"gallery"``, rows in their order.

    Raises:
        DegenerateError: If a part would be empty.
    """
    check_int("queries_per_class", queries_per_class, least=1)
    check_choice("singles", singles, QUERY_SINGLES)
    query, gallery, alone = _by_example(dataset, lambda n: queries_per_class, generator, singles)
    query += alone if singles == "query" else []
    gallery += alone if singles == "gallery" else []
    if not query or not gallery:
        raise DegenerateError(
            f"{dataset.name} cannot be split: {len(query)} classes give queries and "
            f"{len(gallery)} a gallery. At least one class needs two images."
        )
    return Splits({"query": dataset[_sorted(query)], "gallery": dataset[_sorted(gallery)]})


def validation_split(
    train: Dataset,
    generator: torch.Generator,
    *,
    share: float = 0.1,
    by: str = "example",
    singles: str = "train",
) -> Splits:
    """Cut a validation part from training data.

    Args:
        train: The training data, with labels.
        generator: Chooses the part.
        share: Size of the part, of the examples or of the classes.
        by: ``"example"`` takes this share of each class, at least one image and never all;
            ``"class"`` takes whole classes, to validate open-set retrieval; ``"place"`` takes whole
            squares of `STRETCH` on the ground, with whatever was seen there.
        singles: Where a class of one image goes when cutting by example: ``"train"``, ``"drop"``,
            or ``"refuse"``.

    Returns:
        The parts ``"train"`` and ``"validation"``, rows in their order.

    Raises:
        DegenerateError: If no class can be cut.
    """
    check_choice("by", by, CUTS)
    check_choice("singles", singles, VALIDATION_SINGLES)
    share = _open_share("share", share)
    if by != "example":
        groups = _labels(train) if by == "class" else _squares(train)
        kept, cut = _by_group(train, groups, share, generator)
        return Splits({"train": train[kept], "validation": train[cut]})
    validation, keep, alone = _by_example(train, lambda n: round(share * n), generator, singles)
    keep += alone if singles == "train" else []
    if not validation:
        raise DegenerateError(
            f"{train.name} has no class with two images to cut a validation part from.",
            field="by",
            hint="Cut by class, or give more images.",
        )
    return Splits({"train": train[_sorted(keep)], "validation": train[_sorted(validation)]})


def _by_example(
    dataset: Dataset, wanted: Callable[[int], int], generator: torch.Generator, singles: str
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Take from each class of n images ``wanted(n)``, at least one and never all.

    Returns:
        The rows taken and those left, of each class; and those of the classes of a single image.
    """
    taken, left, alone = [], [], []
    for rows in rows_by_class(_labels(dataset)):
        if len(rows) == 1:
            _refuse_single(dataset, rows, singles)
            alone.append(rows)
            continue
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        count = min(max(wanted(len(rows)), 1), len(rows) - 1)
        taken.append(shuffled[:count])
        left.append(shuffled[count:])
    return taken, left, alone


def _squares(dataset: Dataset) -> Tensor:
    """Number the squares of the ground that examples lie in."""
    if dataset.positions is None:
        raise InputError(
            f"{dataset.name} has no positions to cut by place. Give them, or cut by class.",
            field="by",
        )
    numbered: Tensor = (dataset.positions / STRETCH).floor().unique(dim=0, return_inverse=True)[1]
    return numbered


def _by_group(
    dataset: Dataset, groups: Tensor, share: float, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    members = rows_by_class(groups)
    n = len(members)
    if n < 2:
        what = "squares of the ground" if dataset.labels is None else "classes"
        raise DegenerateError(
            f"{dataset.name} has {n} {what}; two are needed to divide them into two parts."
        )
    order = list(range(n)) if generator is None else torch.randperm(n, generator=generator).tolist()
    count = min(max(round((1 - share) * n), 1), n - 1)
    first, second = order[:count], order[count:]
    return _sorted([members[c] for c in first]), _sorted([members[c] for c in second])


def _labels(dataset: Dataset) -> Tensor:
    if dataset.labels is None:
        raise InputError(f"{dataset.name} has no labels, and this split divides by class.")
    labels: Tensor = dataset.labels
    return labels


def _open_share(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise InputError(f"{name} must lie strictly between 0 and 1; got {value!r}.")
    return value


def _refuse_single(dataset: Dataset, row: Tensor, singles: str) -> None:
    if singles == "refuse":
        label = int(_labels(dataset)[row])
        called = label if dataset.classes is None else repr(dataset.classes[label])
        raise DegenerateError(
            f"class {called} of {dataset.name} has a single image. Add one, or choose another "
            "policy for singles."
        )


def _sorted(rows: list[Tensor]) -> Tensor:
    return torch.cat(rows).sort().values


PROTOCOLS = ("zero-shot", "published")


def split_by_protocol(dataset: Dataset, in_train: np.ndarray, protocol: str) -> Splits:
    """Divide a set into training and test.

    Args:
        dataset: All of it, with labels in the publisher's order of classes.
        in_train: Whether the publisher lists each example for training (n), boolean.
        protocol: ``"zero-shot"`` or ``"published"``.

    Returns:
        The parts ``"train"`` and ``"test"``.
    """
    check_choice("protocol", protocol, PROTOCOLS)
    if protocol == "zero-shot":
        return open_set_split(dataset)
    return Splits({"train": dataset[in_train], "test": dataset[~in_train]})
