"""A gallery's calibration, and what it was made for: how it is fitted, when it is stale, how it decides.

A calibration speaks about one gallery, searched in one way, with one model. So it is kept with three
fingerprints:

    model       the name that the user gave, or None
    content     `surefind.gallery.engine`: any added, removed or changed record changes it
    settings    neighbours looked at, rank, index, metric

and where one of them differs now, its decisions are stale.

The signals are computed from the calibration's own number of neighbours, whatever k a search asks
for: a search looks at as many as the calibration did, and k decides nothing. Distances are what the
ranking minimises, within [0, π]:

    distance    sqrt(2 - 2 <μ_q, μ_g>)                 the distance of the unit vectors
    expected    sqrt(2 - 2 A(κ_q) A(κ_g) <μ_q, μ_g>)   the root of the expected squared distance
    match       π/2 - arctan(score / z)                falls as the score rises; its scale means nothing

Items without a label compete with everything.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.decisions.calibration import Calibration, calibrate
from surefind.decisions.signals import KAPPA_RANGE, Signals, neighbour_signals
from surefind.errors import Hint, InputError, StaleError
from surefind.gallery.engine import Engine, Label, Metadata
from surefind.gallery.ranking import Found, find

METADATA = "calibration"
"""Where a gallery's metadata hold the record."""


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
class CalibrationRecord:
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

    def changes(self, engine: Engine, model: str | None, rank: str) -> list[str]:
        """Return what is different now, a phrase each; none if the calibration still holds."""
        found = []
        if model != self.model:
            found.append(f"the model was {self.model!r} and is {model!r}")
        if engine.fingerprint() != self.content:
            found.append("items were added, updated or deleted")
        before = asdict(self.settings)
        now = asdict(Settings(self.settings.neighbours, rank, engine.index))
        return found + [
            f"{n} was {before[n]!r} and is {now[n]!r}" for n in now if now[n] != before[n]
        ]

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        settings = asdict(self.settings)
        return vars(self) | {"calibration": self.calibration.to_json(), "settings": settings}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CalibrationRecord":
        """Return what `to_json` wrote."""
        calibration, settings = Calibration.from_json(value["calibration"]), value["settings"]
        return cls(calibration, value["model"], value["content"], Settings(**settings))


def fit_record(
    engine: Engine,
    queries: Float[np.ndarray, "q z"],
    kappa: Float[np.ndarray, " q"],
    truth: Sequence[Label],
    *,
    model: str | None,
    k: int,
    rank: str,
    seed: int,
    **how: Any,
) -> CalibrationRecord:
    """Search with labelled queries, and calibrate when their top answers are right.

    Args:
        engine: It holds at least one record.
        queries: Unit vectors in float32.
        kappa: Their concentrations.
        truth: Their labels; None for a query that has no match.
        model: The name of the model that embedded them.
        k: Neighbours that the signals look at.
        rank: What neighbours are ordered by.
        seed: Splits the queries.
        **how: What else `surefind.decisions.calibrate` takes.

    Returns:
        The calibration with the fingerprints of what it was made for.

    Raises:
        InputError: If a label is not in the gallery.
    """
    missing = set(truth) - engine.labels() - {None}
    if missing:
        raise InputError(
            f"{len(missing)} of the labels are not in the gallery, such as "
            f"{min(missing, key=str)!r}; give None for a query that has no match there."
        )
    found = find(engine, queries, kappa, k, rank)
    top = found.labels[:, 0]
    calibration = calibrate(
        signals_of(rank, kappa, found.scores, found.labels, queries.shape[1]),
        np.array([t is not None and t == x for t, x in zip(truth, top, strict=True)]),
        enrolled=np.array([t is not None for t in truth]),
        rng=np.random.default_rng(seed),
        **how,
    )
    settings = Settings(k, rank, engine.index)
    return CalibrationRecord(calibration, model, engine.fingerprint(), settings)


def stored_record(metadata: Metadata) -> CalibrationRecord | None:
    """Return the record that a gallery's metadata hold, if there is one that can be used."""
    stored = metadata.get(METADATA)
    try:
        return None if stored is None else CalibrationRecord.from_json(stored)
    except InputError as error:
        # The items are worth more than their calibration, which can be made again.
        warnings.warn(f"searching without decisions: {error}", RuntimeWarning, stacklevel=5)
        return None


def is_stale(
    engine: Engine, record: CalibrationRecord, *, model: str | None, rank: str, policy: str
) -> bool:
    """Return whether a calibration was made for something else than what is there now.

    Args:
        engine: The gallery's records now.
        record: The calibration, and what it was made for.
        model: The model's name now.
        rank: What neighbours are ordered by now.
        policy: ``"refuse"`` or ``"mark"``.

    Returns:
        Whether it was; never with ``"refuse"``.

    Raises:
        StaleError: If it was, and that is refused.
    """
    changes = record.changes(engine, model, rank)
    if changes and policy == "refuse":
        raise StaleError(
            f"the calibration does not hold any more: {'; '.join(changes)}.",
            field="calibration",
            hint=Hint(
                "Calibrate again, or search with decide=False, or set on_stale='mark' to get decisions "
                "marked as stale.",
                "Calibrate again (surefind calibrate), or search with --stale ignore, or --stale mark to "
                "get decisions marked as stale.",
                "Calibrate the gallery again.",
            ),
        )
    return bool(changes)


def decided(
    found: Found,
    rank: str,
    record: CalibrationRecord,
    kappa: Float[np.ndarray, " q"],
    dim: int,
    groups: Any,
) -> dict[str, Any]:
    """Decide about the top answers.

    Args:
        found: As many neighbours as the calibration looks at, or more, if there are.
        rank: What they are ordered by.
        record: The calibration.
        kappa: The queries' concentrations.
        dim: The vectors' dimension.
        groups: The group of each query, if the calibration had groups.

    Returns:
        The probabilities, decisions and reasons, as `surefind.gallery.answers.Answers` names them.
    """
    seen = slice(record.settings.neighbours)
    signals = signals_of(rank, kappa, found.scores[:, seen], found.labels[:, seen], dim)
    return vars(record.calibration.decide(signals, groups))


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
