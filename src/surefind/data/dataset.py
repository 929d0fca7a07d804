"""A data set: inputs, and what is known about each of them.

Inputs are images or features, in memory or in files; labels are integers (class names beside them);
positions are metric coordinates, for place recognition. Everything has one row per example, is
checked once, when the value is made, and never changes.

Policy: an empty data set is a value like another; what cannot work with it refuses it there.

Axes: ``n`` examples, ``c`` channels, ``h`` height, ``w`` width, ``d`` features.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.checks import VECTOR_KINDS, complete_labels
from surefind.data.feature_views import FeatureViews
from surefind.data.images import ImageFiles, ImageReport, row_numbers, verify_images
from surefind.data.inputs import BLOCK_ROWS, AugmentSeed, InputSpec, read_inputs
from surefind.data.preprocessing import Preprocessing
from surefind.errors import InputError
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

    def verify(
        self, *, on_bad: str = "refuse", workers: int = 2
    ) -> tuple["Dataset", ImageReport | None]:
        """Decode every image file once, before it is needed.

        Args:
            on_bad: ``"refuse"`` raises an error that names the bad files; ``"skip"`` drops them.
            workers: Threads that decode.

        Returns:
            The examples that can be read, and the report; None if the inputs are no files.
        """
        if not isinstance(self.inputs, ImageFiles):
            return self, None
        report = verify_images(self.inputs, on_bad=on_bad, workers=workers)
        return (self[report.rows] if report.bad else self), report


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
