"""A gallery's calibration, and what it was made for: how it is fitted, when it is stale, how it decides.

A calibration speaks about one gallery, searched in one way, with one model. So it is kept with three
fingerprints:

    model       the name that the user gave, or None
    content     `surefind.gallery.engine`: any added, removed or changed record changes it
    settings    neighbours looked at, index, metric

and where one of them differs now, its decisions are stale. Where content or settings differ it can be
*renewed*: its queries, which are kept with the gallery, are answered by the gallery as it is, those whose
label has just been enrolled or removed change sides, and the same target is tested on the same split. It
also keeps the posterior over labels that its signals came from, so that a later fit of that
(`surefind.gallery.label_fit`) does not change their meaning.

The signals look at the nearest items by the distance of the unit vectors, sqrt(2 - 2 <μ_q, μ_g>), whatever
k and rank a search asks for: these decide which items are shown, and nothing else.

**No answer from oneself.** A calibration query that is an item of the gallery is answered without it
(`surefind.gallery.calibration_queries`); if no other item has its label, it counts as unknown.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.decisions.calibration import Calibration, calibrate, held_out_probability
from surefind.decisions.label_posterior import LabelModel, label_posterior
from surefind.decisions.probability import Contributions
from surefind.decisions.signals import Signals
from surefind.decisions.verdicts import Verdicts, candidate_labels, judge, signals_of
from surefind.errors import Hint, InputError, StaleError
from surefind.gallery.calibration_queries import CalibrationQueries, given
from surefind.gallery.engine import Engine, Id, Label, Metadata, objects
from surefind.gallery.label_fit import VOTERS, LabelFit, votes_of
from surefind.gallery.neighbourhoods import Neighbourhoods
from surefind.gallery.ranking import Found
from surefind.gallery.seal import sealed, unsealed

METADATA = "calibration"
"""Where a gallery's metadata hold the record."""


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


@dataclass(frozen=True)
class Target:
    """What a calibration promises, and how it is made; a renewal repeats it.

    Attributes:
        max_wrong: Highest fraction of wrong answers among matches.
        max_fpir: Highest share of unknown queries that may be a match, or None.
        confidence: With what probability both are kept.
        max_false_alarms: α of the gate.
        seed: Splits the queries.
    """

    max_wrong: float = 0.01
    max_fpir: float | None = None
    confidence: float = 0.95
    max_false_alarms: float = 0.01
    seed: int = 0

    def changed(self, **parts: float | int | None) -> "Target":
        """Return it with other parts; None leaves one as it is."""
        return replace(self, **{name: x for name, x in parts.items() if x is not None})  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class CalibrationRecord:
    """A calibration with the fingerprints of what it was made for.

    Attributes:
        calibration: Turns signals into decisions.
        model: The model's name, if the user gave one.
        content: The gallery's content fingerprint.
        settings: How neighbours were found.
        labels: The posterior over labels that the signals came from.
        target: What was asked for.
        renewals: How often it was renewed since the user calibrated.
        when: When it was made or last renewed, in ISO format.
    """

    calibration: Calibration
    model: str | None
    content: str
    settings: Settings
    labels: LabelFit
    target: Target
    renewals: int
    when: str

    def changes(self, engine: Engine, model: str | None) -> list[str]:
        """Return what is different now, a phrase each; none if the calibration still holds."""
        return [*self._other_model(model), *self.renewable(engine)]

    def renewable(self, engine: Engine) -> list[str]:
        """Return what is different now and can be made good by a renewal, a phrase each."""
        found = []
        if engine.fingerprint() != self.content:
            found.append("items were added, updated or deleted")
        now = Settings(VOTERS, engine.index)
        if now == self.settings:
            return found
        before, after = asdict(self.settings), asdict(now)
        return found + [
            f"{n} was {before[n]!r} and is {after[n]!r}" for n in after if after[n] != before[n]
        ]

    def _other_model(self, model: str | None) -> list[str]:
        return [] if model == self.model else [f"the model was {self.model!r} and is {model!r}"]

    def held_out_probability(
        self, queries: CalibrationQueries, asked: "Asked"
    ) -> Float[np.ndarray, " q"]:
        """Return the probability of the queries that tested it, NaN for the others (q)."""
        return held_out_probability(
            self.calibration,
            asked.signals,
            novelty=queries.novelty,
            rng=np.random.default_rng(self.target.seed),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        plain = {name: asdict(getattr(self, name)) for name in ("settings", "labels", "target")}
        return sealed(vars(self) | plain | {"calibration": self.calibration.to_json()})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CalibrationRecord":
        """Return what `to_json` wrote; refuse what was edited since."""
        value = unsealed(value, "the stored calibration")
        try:
            made = {
                "calibration": Calibration.from_json(value["calibration"]),
                "settings": Settings(**value["settings"]),
                "labels": LabelFit.from_json(value["labels"]),
                "target": Target(**value["target"]),
            }
            return cls(**{**value, **made})
        except (KeyError, TypeError) as error:
            raise InputError(
                f"a stored calibration is damaged or of another version; calibrate again. {error}",
                field="stored",
            ) from error


def fit_record(
    queries: CalibrationQueries,
    asked: "Asked",
    *,
    model: str | None,
    labels: LabelFit,
    target: Target,
    contributions: bool | Contributions | None,
    renewals: int = 0,
) -> CalibrationRecord:
    """Calibrate when the labels that queries are answered with are right.

    Args:
        queries: With their labels.
        asked: How they were answered.
        model: The name of the model that embedded them.
        labels: The posterior over labels.
        target: What to promise.
        contributions: Whether to measure what each signal adds; or what was measured before.
        renewals: How often this was done since the user calibrated.

    Returns:
        The calibration with the fingerprints of what it was made for.
    """
    how = asdict(target)
    calibration = calibrate(
        asked.signals,
        asked.right,
        enrolled=asked.enrolled,
        novelty=queries.novelty,
        groups=None if queries.items else queries.groups,
        contributions=contributions is True,
        rng=np.random.default_rng(how.pop("seed")),
        **how,
    )
    if not isinstance(contributions, bool):
        calibration = replace(calibration, contributions=contributions)
    notes = (*calibration.notes, *_notes(queries, asked))
    return CalibrationRecord(
        replace(calibration, notes=notes),
        model,
        asked.content,
        asked.settings,
        labels,
        target,
        renewals,
        datetime.now(UTC).isoformat(timespec="seconds"),
    )


@dataclass(frozen=True, eq=False)
class Asked:
    """How calibration queries were answered.

    Attributes:
        signals: Theirs.
        answer: The most probable label of each (q).
        right: Whether it is the query's (q).
        enrolled: Whether the query's label is in the gallery (q).
        met: Queries that are items of the gallery.
        absent: Queries whose label the gallery does not have.
        content: The gallery's content fingerprint then.
        settings: How neighbours were found.
    """

    signals: Signals
    answer: np.ndarray
    right: np.ndarray
    enrolled: np.ndarray
    met: int
    absent: int
    content: str
    settings: Settings


def ask(
    engine: Engine, queries: CalibrationQueries, hoods: Neighbourhoods, model: LabelModel
) -> Asked:
    """Answer calibration queries by what they find."""
    found, hidden = hoods.found(queries)
    own = np.asarray(hoods.ids == objects(queries.ids, (len(queries), 1)), dtype=bool)
    copies = hidden & ~own & (hoods.gaps <= queries.copies)
    votes, names = votes_of(found, queries.kappa, queries.vectors.shape[1], model, engine)
    code = {name: number for number, name in enumerate(names)}
    left = [*zip(np.nonzero(copies)[0].tolist(), hoods.labels[copies], strict=True)]
    gone = Counter(
        (q, code[label]) for q, label in [*left, *_own_labels(engine, queries)] if label in code
    )
    sizes = votes.sizes.copy()
    for (q, number), times in gone.items():
        sizes[q, votes.labels[q] == number] -= times
    posterior = label_posterior(replace(votes, sizes=np.maximum(sizes, 1)), model)
    answer = candidate_labels(posterior, votes, names)[:, 0]
    truth, counts = objects(queries.labels, (len(queries),)), engine.label_counts()
    enrolled = are_enrolled(engine, queries, hoods)
    absent = given(queries.labels) & ~np.array([label in counts for label in queries.labels])
    return Asked(
        signals_of(votes, found.gaps[:, : votes.scores.shape[1]], queries.kappa, posterior),
        answer,
        enrolled & np.asarray(answer == truth, dtype=bool),
        enrolled,
        met=int((hidden & np.isfinite(hoods.gaps)).any(axis=1).sum()),
        absent=int(absent.sum()),
        content=engine.fingerprint(),
        settings=Settings(VOTERS, engine.index),
    )


def _own_labels(engine: Engine, queries: CalibrationQueries) -> Iterator[tuple[int, Label]]:
    """Return the labels of the items that queries are, with the queries' rows."""
    known = engine.known([id_ for id_ in queries.ids if id_ is not None])
    rows = [row for row, id_ in enumerate(queries.ids) if id_ in known]
    own: list[Id] = [id_ for id_ in queries.ids if id_ is not None and id_ in known]
    labels = engine.fetch(own).labels if own else ()
    return zip(rows, labels, strict=True)


def are_enrolled(
    engine: Engine, queries: CalibrationQueries, hoods: Neighbourhoods
) -> Bool[np.ndarray, " q"]:
    """Return which queries have a label that an item has which may answer them."""
    truth, counts = objects(queries.labels, (len(queries), 1)), engine.label_counts()
    listed = np.asarray(hoods.labels == truth, dtype=bool) & np.isfinite(hoods.gaps)
    beyond = np.array([counts.get(label, 0) for label in queries.labels]) - listed.sum(axis=1)
    # What is not in the list may be left out with the query as well; nobody can be found there anyway.
    beyond = np.where(queries.stranger | (given(queries.groups) & queries.items), 0, beyond)
    seen = (listed & ~hoods.hidden(queries)).sum(axis=1)
    return np.asarray(given(queries.labels) & (seen + beyond > 0))


def _notes(queries: CalibrationQueries, asked: Asked) -> list[str]:
    """Return what to keep in mind about the queries, a sentence each."""
    if queries.items:
        return [
            "The gallery's own items played the queries, each left out of the search for it, so the "
            "promise is about queries that are like the items; held-out queries are better."
        ]
    notes = []
    if asked.met:
        notes.append(
            f"{asked.met:,} of the queries are items of the gallery, and were answered without themselves. "
            "Queries that are not in the gallery say more about those to come."
        )
    if live := int(queries.live.sum()):
        others = len(queries) - live
        notes.append(
            f"{live:,} of the queries are a random share of live ones that people reviewed"
            + (
                f"; the other {others:,} were held out, and the promise is about live queries if those are "
                "like them."
                if others
                else "."
            )
        )
    if asked.absent:
        notes.append(
            f"{asked.absent:,} of the queries have labels that the gallery does not have: they count as "
            "unknown until they are enrolled."
        )
    return notes


def stored_record(metadata: Metadata) -> CalibrationRecord | None:
    """Return the record that a gallery's metadata hold, if there is one that can be used."""
    stored = metadata.get(METADATA)
    try:
        return None if stored is None else CalibrationRecord.from_json(stored)
    except InputError as error:
        # The items are worth more than their calibration, which can be made again.
        warnings.warn(f"searching without decisions: {error}", RuntimeWarning, stacklevel=5)
        return None


def stale_error(changes: list[str]) -> StaleError:
    """Return the refusal of a calibration that was made for something else than what is there now."""
    return StaleError(
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


def answered(
    engine: Engine,
    found: Found,
    kappa: Float[np.ndarray, " q"],
    novelty: Float[np.ndarray, " q"] | None,
    dim: int,
    model: LabelModel,
    calibration: Calibration | None,
    groups: Any,
) -> Verdicts:
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
        One verdict a query.
    """
    if calibration is not None:
        _check_kappa(calibration, kappa)
    votes, names = votes_of(found, kappa, dim, model, engine)
    gaps = found.gaps[:, : votes.scores.shape[1]]
    return judge(votes, gaps, names, kappa, model, calibration, novelty=novelty, groups=groups)


def _check_kappa(calibration: Calibration, kappa: Float[np.ndarray, " q"]) -> None:
    """Refuse to decide about queries of no known uncertainty by what was learnt from others that had one.

    An infinite κ means that nothing is known, and would count as surer than any query before.

    Raises:
        InputError: If some query has an infinite κ, and every one of the calibration had a finite one.
    """
    unknown = ~np.isfinite(kappa)
    if calibration.knows_kappa and unknown.any():
        raise InputError(
            f"the calibration's queries had a concentration kappa, and {int(unknown.sum())} of these "
            f"{len(kappa)} have none (it is infinite), so nothing can be decided about them.",
            field="embeddings",
            hint=Hint(
                "Search with surefind.Embeddings of the model that embedded the calibration's queries; or "
                "with decide=False.",
                "Search with --run RUN, or with vectors that have a column kappa; or with --stale ignore.",
                "Send kappa, one number for each vector.",
            ),
        )
