"""A gallery's calibration, and what it was made for.

A calibration speaks about one gallery, searched in one way, with one model. So it is kept with three
fingerprints:

    model       the name that the user gave, or None
    content     `surefind.gallery.engine`: any added, removed or changed record changes it
    settings    neighbours looked at, rank, index, metric

and where one of them differs now, its decisions are stale.

The signals are computed from the calibration's own number of neighbours, whatever k a search asks
for, so k may differ freely. Distances are what the ranking minimises, within [0, π]:

    distance    sqrt(2 - 2 <μ_q, μ_g>)                 the distance of the unit vectors
    expected    sqrt(2 - 2 A(κ_q) A(κ_g) <μ_q, μ_g>)   the root of the expected squared distance
    match       π/2 - arctan(score / z)                falls as the score rises; its scale means nothing

Items without a label compete with everything.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.decisions.calibration import Calibration
from surefind.decisions.signals import KAPPA_RANGE, Signals, neighbour_signals


@dataclass(frozen=True)
class Settings:
    """How the neighbours were found.

    Attributes:
        neighbours: How many each query's signals look at.
        rank: What they are ordered by.
        index: ``"exact"`` or ``"hnsw"``.
        metric: What an engine proposes candidates by.
    """

    neighbours: int
    rank: str
    index: str
    metric: str = "cosine"


@dataclass(frozen=True, eq=False)
class Judgement:
    """A calibration with the fingerprints of what it was made for.

    Attributes:
        calibration: Turns signals into decisions.
        model: The model's name, if the user gave one.
        content: The gallery's content fingerprint.
        settings: How neighbours were found.
    """

    calibration: Calibration
    model: str | None
    content: str
    settings: Settings

    def changes(self, model: str | None, content: str, settings: Settings) -> list[str]:
        """Say what is different now.

        Args:
            model: The model's name now.
            content: The gallery's content fingerprint now.
            settings: How neighbours are found now.

        Returns:
            One phrase per difference; none if the calibration still holds.
        """
        found = []
        if model != self.model:
            found.append(f"the model was {self.model!r} and is {model!r}")
        if content != self.content:
            found.append("items were added, updated or deleted")
        before, now = asdict(self.settings), asdict(settings)
        found += [f"{n} was {before[n]!r} and is {now[n]!r}" for n in now if now[n] != before[n]]
        return found

    def to_json(self) -> dict[str, Any]:
        """Write it as what JSON can hold."""
        return {
            "calibration": self.calibration.to_json(),
            "model": self.model,
            "content": self.content,
            "settings": asdict(self.settings),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Judgement":
        """Read what `to_json` wrote."""
        return cls(
            Calibration.from_json(value["calibration"]),
            value["model"],
            value["content"],
            Settings(**value["settings"]),
        )


def signals_of(
    rank: str,
    kappa: Float[np.ndarray, " q"],
    scores: Float[np.ndarray, "q k"],
    labels: np.ndarray,
    dim: int,
) -> Signals:
    """Compute each query's signals from its neighbours.

    Args:
        rank: What the scores are.
        kappa: The queries' concentrations.
        scores: Of the neighbours, falling along a row.
        labels: Theirs (q, k), as the user gave them.
        dim: The vectors' dimension.

    Returns:
        One row a query.
    """
    if rank == "match":
        distances = np.pi / 2 - np.arctan(scores / dim)
    else:
        distances = np.sqrt(np.maximum(2 - 2 * scores, 0))
    # Rounding may not turn a falling score into a falling distance.
    ascending = np.maximum.accumulate(distances, axis=1)
    return neighbour_signals(np.maximum(kappa, KAPPA_RANGE[0]), ascending, _codes(labels))


def _codes(labels: np.ndarray) -> np.ndarray:
    """Number the labels; every None is a label of its own."""
    code: dict[Any, int] = {}
    numbers = [
        -1 - n if label is None else code.setdefault(label, len(code))
        for n, label in enumerate(labels.ravel())
    ]
    return np.array(numbers, dtype=np.int64).reshape(labels.shape)
