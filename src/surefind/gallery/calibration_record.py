"""A gallery's calibration, and what it was made for: how it is fitted, when it is stale, how it decides.

A calibration speaks about one gallery, searched in one way, with one model. So it is kept with three
fingerprints:

    model       the name that the user gave, or None
    content     `surefind.gallery.engine`: any added, removed or changed record changes it
    settings    neighbours looked at, index, metric

and where one of them differs now, its decisions are stale. It also keeps the posterior over labels that its
signals came from, so that a later fit of that (`surefind.gallery.label_fit`) does not change their meaning.

The signals look at the nearest items by the distance of the unit vectors, sqrt(2 - 2 <μ_q, μ_g>), whatever
k and rank a search asks for: these decide which items are shown, and nothing else.

**No answer from oneself.** A calibration query that is an item of the gallery, by its id or because its
vector is the same, is answered without that item; if no other item has its label, it counts as unknown.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.decisions.calibration import Calibration, calibrate
from surefind.decisions.label_posterior import LabelModel, LabelPosterior, Votes, label_posterior
from surefind.decisions.signals import KAPPA_RANGE, Signals, neighbour_signals
from surefind.errors import Hint, InputError, StaleError
from surefind.gallery.engine import Engine, Id, Label, Metadata
from surefind.gallery.label_fit import VOTERS, votes_of
from surefind.gallery.ranking import Found, find

METADATA = "calibration"
"""Where a gallery's metadata hold the record."""

SAME = 1e-12
"""1 - cosine of vectors that are one and the same: float32 tells others from them."""

COPIES = 20
"""Items searched beyond the voters, in case that a query is among them, several times perhaps."""


@dataclass(frozen=True)
class Settings:
    """How the neighbours were found.

    Attributes:
        neighbours: How many each query's signals look at.
        index: ``"exact"`` or ``"hnsw"``.
        metric: What an engine proposes candidates by.
    """

    neighbours: int
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
        labels: The posterior over labels that the signals came from.
    """

    calibration: Calibration
    model: str | None
    content: str
    settings: Settings
    labels: LabelModel

    def changes(self, engine: Engine, model: str | None) -> list[str]:
        """Return what is different now, a phrase each; none if the calibration still holds."""
        found = []
        if model != self.model:
            found.append(f"the model was {self.model!r} and is {model!r}")
        if engine.fingerprint() != self.content:
            found.append("items were added, updated or deleted")
        before = asdict(self.settings)
        now = asdict(Settings(VOTERS, engine.index))
        return found + [
            f"{n} was {before[n]!r} and is {now[n]!r}" for n in now if now[n] != before[n]
        ]

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        plain = {"settings": asdict(self.settings), "labels": asdict(self.labels)}
        return vars(self) | plain | {"calibration": self.calibration.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CalibrationRecord":
        """Return what `to_json` wrote."""
        calibration = Calibration.from_json(value["calibration"])
        settings, labels = Settings(**value["settings"]), LabelModel(**value["labels"])
        return cls(calibration, value["model"], value["content"], settings, labels)


def fit_record(
    engine: Engine,
    queries: Float[np.ndarray, "q z"],
    kappa: Float[np.ndarray, " q"],
    truth: Sequence[Label],
    *,
    ids: Sequence[Id] | None,
    model: str | None,
    labels: LabelModel,
    seed: int,
    **how: Any,
) -> CalibrationRecord:
    """Search with labelled queries, and calibrate when the labels they are answered with are right.

    Args:
        engine: It holds at least one record.
        queries: Unit vectors in float32.
        kappa: Their concentrations.
        truth: Their labels; None for a query that has no match.
        ids: Theirs, if they may be items of the gallery.
        model: The name of the model that embedded them.
        labels: The posterior over labels.
        seed: Splits the queries.
        **how: What else `surefind.decisions.calibrate` takes.

    Returns:
        The calibration with the fingerprints of what it was made for.

    Raises:
        InputError: If a label is not in the gallery.
    """
    missing = set(truth) - set(engine.label_counts()) - {None}
    if missing:
        raise InputError(
            f"{len(missing)} of the labels are not in the gallery, such as "
            f"{min(missing, key=str)!r}; give None for a query that has no match there."
        )
    found = find(engine, queries, kappa, 1, "distance", voters=VOTERS + COPIES)
    own = found.gaps <= SAME
    if ids is not None:
        own |= found.ids == np.array([*ids, None], dtype=object)[:-1, None]
    asked, left = _without_own(found, own)
    votes, names = votes_of(asked, kappa, queries.shape[1], labels, engine)
    votes = replace(votes, sizes=_sizes_without(votes, names, found.labels, own))
    posterior = label_posterior(votes, labels)
    answer = answered_labels(posterior, asked.labels)[:, 0]
    known = [
        label is not None
        and engine.label_counts()[label] > int((gone & (own_labels == label)).sum())
        for label, gone, own_labels in zip(truth, own, found.labels, strict=True)
    ]
    right = [k and t == a for k, t, a in zip(known, truth, answer, strict=True)]
    calibration = calibrate(
        signals_of(asked, kappa, votes, posterior),
        np.array(right),
        enrolled=np.array(known),
        rng=np.random.default_rng(seed),
        **how,
    )
    if left:
        note = (
            f"{left:,} of the queries are items of the gallery, and were answered without themselves. "
            "Queries that are not in the gallery say more about those to come."
        )
        calibration = replace(calibration, notes=(*calibration.notes, note))
    settings = Settings(VOTERS, engine.index)
    return CalibrationRecord(calibration, model, engine.fingerprint(), settings, labels)


def stored_record(metadata: Metadata) -> CalibrationRecord | None:
    """Return the record that a gallery's metadata hold, if there is one that can be used."""
    stored = metadata.get(METADATA)
    try:
        return None if stored is None else CalibrationRecord.from_json(stored)
    except InputError as error:
        # The items are worth more than their calibration, which can be made again.
        warnings.warn(f"searching without decisions: {error}", RuntimeWarning, stacklevel=5)
        return None


def is_stale(engine: Engine, record: CalibrationRecord, *, model: str | None, policy: str) -> bool:
    """Return whether a calibration was made for something else than what is there now.

    Args:
        engine: The gallery's records now.
        record: The calibration, and what it was made for.
        model: The model's name now.
        policy: ``"refuse"`` or ``"mark"``.

    Returns:
        Whether it was; never with ``"refuse"``.

    Raises:
        StaleError: If it was, and that is refused.
    """
    changes = record.changes(engine, model)
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


def answered(
    engine: Engine,
    found: Found,
    kappa: Float[np.ndarray, " q"],
    novelty: Float[np.ndarray, " q"] | None,
    dim: int,
    model: LabelModel,
    calibration: Calibration | None,
    groups: Any,
) -> dict[str, Any]:
    """Say which labels the queries have and, with a calibration, decide about them.

    Args:
        engine: The gallery's records.
        found: As many neighbours as vote, or all there are.
        kappa: The queries' concentrations.
        novelty: Their p-values, if they have some; needed if the calibration has a gate.
        dim: The vectors' dimension.
        model: The posterior over labels.
        calibration: When an answer is a match; None to decide nothing.
        groups: The group of each query, if the calibration had groups.

    Returns:
        What `surefind.gallery.answers.Answers` has beside the neighbours.
    """
    votes, _ = votes_of(found, kappa, dim, model, engine)
    posterior = label_posterior(votes, model)
    names = answered_labels(posterior, found.labels)
    known = {
        "label": names[:, 0],
        "candidates": names,
        "label_probability": posterior.probability,
        "none": posterior.none,
    }
    if calibration is None:
        return known
    signals = signals_of(found, kappa, votes, posterior)
    # Among the labels: how many are enrolled is another question than which of them it is.
    among = posterior.probability / np.maximum(1 - posterior.none, 1e-300)[:, None]
    rivals = [
        ", ".join(f"{p:.2f} {name}" for p, name in list(zip(chances, some, strict=True))[:2] if p)
        for chances, some in zip(among.tolist(), names, strict=True)
    ]
    return known | vars(calibration.decide(signals, groups, novelty=novelty, rivals=rivals))


def answered_labels(posterior: LabelPosterior, labels: np.ndarray) -> np.ndarray:
    """Return the candidates' labels (q, c) as the user gave them; None where there are fewer."""
    there = posterior.candidates >= 0
    names = np.take_along_axis(labels, np.maximum(posterior.candidates, 0), axis=1)
    names[~there] = None
    return names


def signals_of(
    found: Found, kappa: Float[np.ndarray, " q"], votes: Votes, posterior: LabelPosterior
) -> Signals:
    """Compute each query's signals from its neighbours."""
    distances = np.sqrt(2 * found.gaps[:, : votes.scores.shape[1]])
    there = np.isfinite(votes.scores)
    distances = np.where(there, distances, np.inf)
    return neighbour_signals(np.maximum(kappa, KAPPA_RANGE[0]), distances, votes.labels, posterior)


def _without_own(found: Found, own: Bool[np.ndarray, "q c"]) -> tuple[Found, int]:
    """Drop the items that a query is; return how many queries are some."""
    if not own.any():
        return found, 0
    order = np.argsort(own, axis=1, kind="stable")
    columns = {
        name: np.take_along_axis(getattr(found, name), order, axis=1)
        for name in ("ids", "labels", "gaps", "kappa", "payload")
    }
    gone = np.take_along_axis(own, order, axis=1)
    # What is dropped stands at the end, infinitely far, where all others are seen already.
    columns["gaps"] = np.where(gone, np.inf, columns["gaps"])
    columns["labels"][gone] = None
    return replace(found, **columns), int(own.any(axis=1).sum())


def _sizes_without(
    votes: Votes, names: Sequence[Label], labels: np.ndarray, own: Bool[np.ndarray, "q c"]
) -> np.ndarray:
    """Return n_l of the votes, less the items that were dropped."""
    sizes = votes.sizes.copy()
    code = {name: number for number, name in enumerate(names)}
    for q, c in zip(*np.nonzero(own), strict=True):
        sizes[q, votes.labels[q] == code.get(labels[q, c], -1)] -= 1
    return np.asarray(np.maximum(sizes, 1))
