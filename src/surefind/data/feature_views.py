"""Features that a frozen network has computed once: an input kind of data sets, beside images and vectors.

Of each example there is the *plain* view, of the image as evaluation sees it, and any number of augmented
ones. Training takes one of the augmented views at random, a fresh one for each epoch and occurrence;
whatever reads without an augmentation seed gets the plain one. Without augmented views both are the same.

Beside the features lie the statistics of the network's stages (`surefind.novelty.statistics`), so that
novelty needs no second pass, and what inputs the network takes. Arrays may be mapped from files: rows are
read when they are asked for, and a selection of rows copies nothing.

Axes: ``v`` views, the plain one first, ``n`` examples, ``m`` statistics of a stage; a feature may be a
vector (d) or a map (c, h, w).
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surefind.data.images import row_numbers
from surefind.data.preprocessing import example_rng


@dataclass(frozen=True, eq=False)
class FeatureViews:
    """Features of ``n`` examples under several views.

    Attributes:
        values: All views of all examples that were computed (v, n, …), in any floating-point dtype.
        key: What they were computed from; other features have another one.
        network: What they were computed with; another network has another one.
        spec: What inputs the network takes: a `surefind.data.inputs.InputSpec`.
        stages: The stages that novelty looks at, of the frozen network and of what is above it.
        statistics: Of the plain view (n, m), by the name of the stage, where that is frozen.
        rows: Which of the examples these are.
    """

    values: np.ndarray = field(repr=False)
    key: str
    network: str
    spec: Any
    stages: tuple[str, ...] = ()
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    rows: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return self.values.shape[1] if self.rows is None else len(self.rows)

    def __getitem__(self, index: Any) -> "FeatureViews":
        return replace(self, rows=self._stored_rows(row_numbers(index, len(self))))

    def __iter__(self) -> Iterator["FeatureViews"]:
        return (self[i] for i in range(len(self)))

    def read(self, rows: np.ndarray, augment_key: tuple[int, ...] | None = None) -> Tensor:
        """Read features of some rows, float32: the plain view, or with a key, augmented ones."""
        stored = self._stored_rows(rows)
        views = np.zeros(len(rows), np.int64)
        if augment_key is not None and len(self.values) > 1:
            seen: Counter[int] = Counter()
            for i, row in enumerate(rows.tolist()):
                rng = example_rng(augment_key, row, seen[row])
                views[i] = 1 + rng.integers(len(self.values) - 1)
                seen[row] += 1
        return torch.from_numpy(np.ascontiguousarray(self.values[views, stored])).float()

    def stage(self, name: str, rows: np.ndarray) -> Tensor:
        """Return the statistics (rows, m) of a stage."""
        found = np.ascontiguousarray(self.statistics[name][self._stored_rows(rows)])
        return torch.from_numpy(found)

    def fingerprint(self) -> str:
        """Return what the features, and which of them these are, are recognised by."""
        if self.rows is None:
            return self.key
        return hashlib.sha256(self.key.encode() + self.rows.tobytes()).hexdigest()[:16]

    def _stored_rows(self, rows: np.ndarray) -> np.ndarray:
        return rows if self.rows is None else self.rows[rows]
