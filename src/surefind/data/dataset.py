"""A data set: inputs, and what is known about each of them.

Inputs are images or features, in memory or in files; labels are integers (class names beside them);
positions are metric coordinates, for place recognition. Everything has one row per example, is
checked once, when the value is made, and never changes.

Policy: an empty data set is a value like another; what cannot work with it refuses it there.

Axes: ``n`` examples, ``c`` channels, ``h`` height, ``w`` width, ``d`` features.

`Splits` names the parts of a data set, such as training and test. A validation part is cut from the
**training** data, per class (closed set), or as whole classes or places (open set); a test part never takes
its place. A class with a single image stays in training.

Map-style data sets of PyTorch are taken wherever ours are. An example is ``(input, label)``, or an input
alone: a tensor, an array or an image of Pillow. All of it is read once, in order, and held in memory;
random transforms are drawn once then. What is too large for that is read from files instead:
`surefind.data.images.ImageFiles`, or a folder or manifest.

A loader has an order and batches of its own, and an iterable data set has no length: they are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import Dataset as TorchDataset

from surefind.checks import VECTOR_KINDS, check_choice, complete_labels
from surefind.data.images import ImageFiles, row_numbers, verify_images
from surefind.data.inputs import (
    BLOCK_ROWS,
    AugmentSeed,
    FeatureViews,
    InputSpec,
    Preprocessing,
    read_inputs,
)
from surefind.errors import DegenerateError, InputError
from surefind.files import content_hashes
from surefind.pairs.relations import NEGATIVE_RADIUS, POSITIVE_RADIUS, Positions

SMALL_SIDE = 8
"""Maps smaller than this on a side may be of any network; images are larger."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """``n`` examples with labels or positions.

    Attributes:
        inputs: uint8 images (n, h, w) or (n, c, h, w), features (n, d) of any real numbers, float images
            (n, c, h, w), as a tensor or an array; `ImageFiles`; or `FeatureViews`, which a frozen network
            has computed.
        labels: A class per example (`surefind.checks`): integers, or strings, which become integers with
            `classes`.
            Kept as an int64 tensor (n), or None.
        positions: Metric coordinates (n, 2), kept as a float64 tensor, or None.
        names: A name per example, or None.
        classes: The name of each class, by label, or None.
        name: What to call the set in messages.

    Raises:
        InputError: If the parts do not fit together.
    """

    inputs: Any
    labels: Any = None
    positions: Any = field(default=None, kw_only=True)
    names: Any = field(default=None, kw_only=True)
    classes: Any = field(default=None, kw_only=True)
    name: str = field(default="data", kw_only=True)

    def __post_init__(self) -> None:
        _check_inputs(self.inputs)
        n = len(self.inputs)
        names = None if self.names is None else tuple(map(str, self.names))
        classes = None if self.classes is None else tuple(map(str, self.classes))
        labels, classes = (
            (None, classes) if self.labels is None else _coded(self.labels, n, classes)
        )
        positions = None if self.positions is None else _checked_positions(self.positions, n)
        if names is not None and len(names) != n:
            raise InputError(f"names must have one entry per example, {n}; got {len(names)}.")
        checked = {"labels": labels, "positions": positions, "names": names, "classes": classes}
        for key, value in checked.items():
            object.__setattr__(self, key, value)

    def __repr__(self) -> str:
        parts = [repr(self.name), f"n={len(self):,}"]
        if self.labels is not None:
            parts.append(f"classes={len(self.labels.unique()):,}")
        if self.positions is not None:
            parts.append("with positions")
        return f"Dataset({', '.join(parts)})"

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Any) -> "Dataset":
        rows = row_numbers(index, len(self))
        picked = torch.from_numpy(rows)
        inputs = self.inputs[picked if isinstance(self.inputs, Tensor) else rows]
        return Dataset(
            inputs,
            None if self.labels is None else self.labels[picked],
            positions=None if self.positions is None else self.positions[picked],
            names=None if self.names is None else [self.names[i] for i in rows],
            classes=self.classes,
            name=self.name,
        )

    def __iter__(self) -> Iterator["Dataset"]:
        return (self[i] for i in range(len(self)))

    def read(
        self,
        rows: Any = slice(None),
        *,
        preprocessing: Preprocessing | InputSpec | None = None,
        augment_seed: AugmentSeed = None,
    ) -> Tensor:
        """Read examples as the network takes them.

        Args:
            rows: Slice, integers or boolean mask; everything by default.
            preprocessing: How to cut, resize and normalise images; or what a fitted model takes.
            augment_seed: The seed, or (seed, epoch), of random training frames; None for
                evaluation. The result depends on it and on the rows alone.

        Returns:
            A float32 batch: images (n, c, h, w), in [0, 1] unless normalised, or features (n, d).
        """
        return read_inputs(self.inputs, row_numbers(rows, len(self)), preprocessing, augment_seed)

    def hashes(self) -> Int[np.ndarray, " n"]:
        """Return a content hash of each input: of its file, or its numbers; none of computed features."""
        inputs = self.inputs
        if isinstance(inputs, FeatureViews):
            return content_hashes(())
        if isinstance(inputs, ImageFiles):
            return content_hashes(Path(path).read_bytes() for path in inputs.paths)
        return content_hashes(np.ascontiguousarray(row).tobytes() for row in np.asarray(inputs))

    def relation(
        self,
        rows: Any = slice(None),
        *,
        positive_radius: float = POSITIVE_RADIUS,
        negative_radius: float = NEGATIVE_RADIUS,
    ) -> Tensor | Positions:
        """Return the labels if there are labels, otherwise the relation of the positions.

        Args:
            rows: Slice, integers or boolean mask; everything by default.
            positive_radius: Distance up to which two positions are a positive pair.
            negative_radius: Distance beyond which they are a negative one.

        Raises:
            InputError: If there are neither.
        """
        picked = torch.from_numpy(row_numbers(rows, len(self)))
        if self.labels is not None:
            labels: Tensor = self.labels[picked]
            return labels
        if self.positions is None:
            raise InputError(
                f"{self.name} has neither labels nor positions, so no pair is positive or "
                "negative. Give one of them to Dataset."
            )
        return Positions(self.positions[picked], positive_radius, negative_radius)

    def verify(self, *, on_bad: str = "refuse", workers: int = 2) -> tuple["Dataset", list[str]]:
        """Decode every image file once, before it is needed.

        Args:
            on_bad: ``"refuse"`` raises an error that names the bad files; ``"skip"`` drops them.
            workers: Threads that decode.

        Returns:
            The examples that can be read, and why each other one cannot.
        """
        files = isinstance(self.inputs, ImageFiles)
        bad = verify_images(self.inputs, on_bad=on_bad, workers=workers) if files else {}
        if not bad:
            return self, []
        return self[[row for row in range(len(self)) if row not in bad]], [*bad.values()]


def _check_inputs(inputs: Any) -> None:
    if isinstance(inputs, ImageFiles | FeatureViews):
        return
    if not isinstance(inputs, Tensor | np.ndarray):
        raise InputError(
            "inputs must be a tensor, a NumPy array or ImageFiles; "
            f"got {type(inputs).__name__}. Wrap paths in ImageFiles."
        )
    kind = str(inputs.dtype).removeprefix("torch.")
    floating = kind in ("float16", "bfloat16", "float32", "float64")
    images = inputs.ndim in (3, 4) if kind == "uint8" else floating and inputs.ndim == 4
    features = inputs.ndim == 2 and (floating or np.dtype(kind).kind in VECTOR_KINDS)
    if not images and not features:
        raise InputError(
            "inputs must be features (n, d) of numbers, uint8 images (n, h, w) or (n, c, h, w), or float "
            f"images (n, c, h, w); got {kind} of shape {tuple(inputs.shape)}."
        )
    _check_channels(kind, tuple(inputs.shape))
    if floating:
        _check_rows_finite("inputs", inputs)


def _check_channels(kind: str, shape: tuple[int, ...]) -> None:
    """Refuse images whose channels come last, as those of Pillow, OpenCV and TensorFlow do."""
    usual = (1, 3, 4) if kind == "uint8" else (3,)
    if len(shape) == 4 and min(shape[1:3]) >= SMALL_SIDE and shape[3] in usual:
        raise InputError(
            f"inputs {shape} look like images with their channels last, (n, h, w, c); (n, c, h, w) is "
            "expected.",
            field="inputs",
            hint="Turn them: array.transpose(0, 3, 1, 2), or tensor.permute(0, 3, 1, 2).",
        )


def _check_rows_finite(what: str, values: Tensor | np.ndarray) -> None:
    for start in range(0, len(values), BLOCK_ROWS):
        block = values[start : start + BLOCK_ROWS]
        good = torch.isfinite(block).cpu().numpy() if torch.is_tensor(block) else np.isfinite(block)
        if not good.all():
            row = start + int(np.argwhere(~good)[0, 0])
            raise InputError(
                f"{what} holds NaN or infinite values, first in row {row}. "
                "Drop or repair those examples first."
            )


def _coded(labels: Any, n: int, classes: Sequence[str] | None) -> tuple[Tensor, Any]:
    values = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if values.shape != (n,):
        raise InputError(
            f"labels must have one entry per example, shape ({n},); got {values.shape}."
        )
    if values.dtype.kind not in "iu":
        values = complete_labels("labels", values)
    if values.dtype.kind == "U" and n:
        known = tuple(np.unique(values).tolist()) if classes is None else tuple(classes)
        code = {c: i for i, c in enumerate(known)}
        if unknown := sorted(set(values.tolist()) - code.keys()):
            raise InputError(f"labels hold {unknown[0]!r}, which classes does not list.")
        return torch.tensor([code[v] for v in values.tolist()], dtype=torch.int64), known
    coded = torch.tensor(values.astype(np.int64))
    if classes is not None and n and not 0 <= int(coded.min()) <= int(coded.max()) < len(classes):
        raise InputError(
            f"labels must lie in 0 … {len(classes) - 1}, as there are {len(classes)} classes; "
            f"got {int(coded.min())} … {int(coded.max())}."
        )
    return coded, classes


def _checked_positions(positions: Any, n: int) -> Tensor:
    values = torch.as_tensor(positions).to(torch.float64)
    if values.shape != (n, 2):
        raise InputError(
            f"positions must be (n, 2) metric coordinates with n = {n}; "
            f"got shape {tuple(values.shape)}."
        )
    _check_rows_finite("positions", values)
    return values


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


def validation_split(
    train: Dataset,
    generator: torch.Generator,
    *,
    share: float = 0.1,
    by: str = "example",
) -> Splits:
    """Cut a validation part from training data.

    Args:
        train: The training data, with labels.
        generator: Chooses the part.
        share: Size of the part, of the examples or of the classes.
        by: ``"example"`` takes this share of each class, at least one image and never all, and leaves a
            class of one image in training;
            ``"class"`` takes whole classes, to validate open-set retrieval; ``"place"`` takes whole
            squares of `STRETCH` on the ground, with whatever was seen there.

    Returns:
        The parts ``"train"`` and ``"validation"``, rows in their order.

    Raises:
        InputError: If a setting cannot be used.
        DegenerateError: If no class can be cut.
    """
    check_choice("by", by, CUTS)
    if not 0 < share < 1:
        raise InputError(f"share must lie strictly between 0 and 1; got {share!r}.", field="share")
    if by != "example":
        groups = _labels(train) if by == "class" else _squares(train)
        kept, cut = _by_group(train, groups, share, generator)
        return Splits({"train": train[kept], "validation": train[cut]})
    keep, validation = [], []
    for rows in rows_by_class(_labels(train)):
        if len(rows) == 1:
            keep.append(rows)
            continue
        shuffled = rows[torch.randperm(len(rows), generator=generator)]
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        validation.append(shuffled[:count])
        keep.append(shuffled[count:])
    if not validation:
        raise DegenerateError(
            f"{train.name} has no class with two images to cut a validation part from.",
            field="by",
            hint='Cut by="class", or give more images.',
        )
    return Splits({"train": train[_sorted(keep)], "validation": train[_sorted(validation)]})


def rows_by_class(labels: Tensor) -> list[Tensor]:
    """List the rows of each class, in the order of the labels; rows stay in their order."""
    _, counts = torch.unique(labels, return_counts=True)
    return list(torch.split(torch.argsort(labels, stable=True), counts.tolist()))


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
    dataset: Dataset, groups: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    members = rows_by_class(groups)
    n = len(members)
    if n < 2:
        what = "squares of the ground" if dataset.labels is None else "classes"
        raise DegenerateError(
            f"{dataset.name} has {n} {what}; two are needed to divide them into two parts."
        )
    order = torch.randperm(n, generator=generator).tolist()
    count = min(max(round((1 - share) * n), 1), n - 1)
    first, second = order[:count], order[count:]
    return _sorted([members[c] for c in first]), _sorted([members[c] for c in second])


def _labels(dataset: Dataset) -> Tensor:
    if dataset.labels is None:
        raise InputError(f"{dataset.name} has no labels, and this split divides by class.")
    labels: Tensor = dataset.labels
    return labels


def _sorted(rows: list[Tensor]) -> Tensor:
    return torch.cat(rows).sort().values


def is_torch_data(value: Any) -> bool:
    """Return whether something is a data set or a loader of PyTorch."""
    return isinstance(value, TorchDataset | DataLoader)


def as_dataset(field: str, value: Any) -> Dataset:
    """Return a data set as it is, or one of PyTorch as ours.

    Args:
        field: What the argument is called.
        value: A `Dataset`, or a map-style data set of PyTorch.

    Returns:
        The data set; one of PyTorch is read into memory.

    Raises:
        InputError: If it is neither, or cannot be read as a whole.
    """
    if isinstance(value, Dataset):
        return value
    mapped = isinstance(value, TorchDataset) and not isinstance(value, IterableDataset)
    if not mapped or not hasattr(value, "__len__"):
        raise InputError(
            f"{field} must be a surefind.Dataset(inputs, labels) or a map-style data set of PyTorch; got "
            f"{type(value).__name__}.",
            field=field,
            hint="Give a loader's data set, loader.dataset."
            if isinstance(value, DataLoader)
            else "Collect what it gives: surefind.Dataset(torch.stack(inputs), labels).",
        )
    examples = [_example(value[row]) for row in range(len(value))]
    inputs, labels = zip(*examples, strict=True) if examples else ((), ())
    kinds = {(x.shape, x.dtype) if isinstance(x, np.ndarray) else type(x).__name__ for x in inputs}
    labelled = {label is not None for label in labels}
    if len(kinds) != 1 or not isinstance(inputs[0], np.ndarray) or len(labelled) != 1:
        raise InputError(
            f"{field} must hold (input, label) with inputs of one shape and type, arrays or images, all or "
            f"none of them labelled; got {len(inputs)} inputs of {sorted(map(str, kinds))[:3]}.",
            field=field,
            hint="Resize and crop images to one size in the data set's transform.",
        )
    try:
        return Dataset(np.stack(inputs), labels if labels[0] is not None else None, name=field)
    except InputError as error:
        raise InputError(f"{field}: {error.message}", field=field, hint=error.hint) from error


def _example(example: Any) -> tuple[Any, Any]:
    """Return an input, channels first, and a label or None."""
    whole = example if isinstance(example, tuple | list) else (example,)
    value, label = whole if len(whole) == 2 else (*whole[:1], None) if len(whole) == 1 else ((), 0)
    if isinstance(value, Tensor):
        plain = value.detach().cpu()
        value = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    elif hasattr(value, "getbands"):  # an image of Pillow, whose channels come last
        value = (
            np.moveaxis(np.asarray(value), -1, 0)
            if len(value.getbands()) > 1
            else np.asarray(value)
        )
    return value, label.tolist() if isinstance(label, Tensor | np.ndarray | np.generic) else label
