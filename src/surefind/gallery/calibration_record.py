"""What a gallery decides by, and what that was made for: when it is stale, how its queries are answered.

A gallery decides by a `surefind.decisions.decider.Decider`, which it tells what its items' neighbours are.
Its calibration speaks about one gallery, searched in one way, with one model. So it is kept with three
fingerprints:

    model       the name that the user gave, or None
    content     `surefind.gallery.engine`: any added, removed or changed record changes it
    settings    neighbours looked at, index, metric

and where one of them differs now, its decisions are stale. Where content or settings differ it can be
*renewed*: its queries, which are kept with the gallery, are answered by the gallery as it is, those whose
label has just been enrolled or removed change sides, and the same target is tested on the same split. It
also keeps the posterior over labels that its signals came from, so that a later fit of that
(`surefind.gallery.label_fit`) does not change their meaning. Promise, gate, posterior and renewal are the
decider's; the gallery adds the fingerprints, and where neighbours come from.

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

from surefind.decisions.calibration import Calibration
from surefind.decisions.decider import Decider, Target, learn_prior
from surefind.decisions.label_posterior import LabelModel
from surefind.decisions.seal import sealed, unsealed
from surefind.decisions.verdicts import Checked, CheckedAnswers, answer_checked
from surefind.errors import InputError, StaleError
from surefind.gallery.calibration_queries import CalibrationQueries, given
from surefind.gallery.engine import Engine, Id, Label, Metadata, objects
from surefind.gallery.label_fit import VOTERS, LabelFit, neighbours_of
from surefind.gallery.neighbourhoods import Neighbourhoods

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


@dataclass(frozen=True, eq=False)
class CalibrationRecord:
    """What decides, with the fingerprints of what it was made for.

    Attributes:
        decider: Turns neighbours into decisions.
        model: The model's name, if the user gave one.
        content: The gallery's content fingerprint.
        settings: How neighbours were found.
        items: Items that the decider's posterior over labels was fitted to.
        when: When it was made or last renewed, in ISO format.
    """

    decider: Decider
    model: str | None
    content: str
    settings: Settings
    items: int
    when: str

    @classmethod
    def of(
        cls, decider: Decider, asked: "Asked", *, model: str | None, items: int
    ) -> "CalibrationRecord":
        """Return a decider that has just learned, with what it was made for.

        Args:
            decider: What it learned from is how queries were answered.
            asked: That, and by which gallery.
            model: The name of the model that embedded them.
            items: Items that its posterior over labels was fitted to.

        Returns:
            The record.
        """
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(decider, model, asked.content, asked.settings, items, when)

    @property
    def calibration(self) -> Calibration:
        """Turns signals into decisions."""
        return self.decider.calibration

    @property
    def labels(self) -> LabelFit:
        """The posterior over labels that the signals come from."""
        return LabelFit(self.decider.label_model, self.items)

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

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        plain = {"settings": asdict(self.settings), "decider": self.decider.to_json()}
        return sealed(vars(self) | plain)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "CalibrationRecord":
        """Return what `to_json` wrote; refuse what was edited since."""
        value = unsealed(value, "the stored calibration")
        try:
            made = {
                "decider": Decider.from_json(value["decider"]),
                "settings": Settings(**value["settings"]),
            }
            return cls(**{**value, **made})
        except (KeyError, TypeError) as error:
            raise InputError(
                f"a stored calibration is damaged or of another version; calibrate again. {error}",
                field="stored",
            ) from error


@dataclass(frozen=True, eq=False)
class Asked:
    """How calibration queries were answered, and by which gallery.

    Attributes:
        model: The posterior over labels.
        answers: What a decider learns from.
        notes: What to keep in mind about the queries, a sentence each.
        content: The gallery's content fingerprint then.
        settings: How neighbours were found.
    """

    model: LabelModel
    answers: CheckedAnswers
    notes: tuple[str, ...]
    content: str
    settings: Settings


def ask(
    engine: Engine,
    queries: CalibrationQueries,
    hoods: Neighbourhoods,
    model: LabelModel,
    target: Target | None = None,
) -> Asked:
    """Answer calibration queries by what they find.

    Args:
        engine: The gallery's records.
        queries: To answer.
        hoods: What they find.
        model: The posterior over labels.
        target: Of a calibration that learns from them how often labels are asked for, if they are no items
            of the gallery; None to take the posterior as it is.

    Returns:
        The answers, and the posterior that they are by.
    """
    found, hidden = hoods.found(queries)
    own = np.asarray(hoods.ids == objects(queries.ids, (len(queries), 1)), dtype=bool)
    copies = hidden & ~own & (hoods.gaps <= queries.copies)
    near = neighbours_of(found, engine)
    code = {name: number for number, name in enumerate(near.names)}
    left = [*zip(np.nonzero(copies)[0].tolist(), hoods.labels[copies], strict=True)]
    gone = Counter(
        (q, code[label]) for q, label in [*left, *_own_labels(engine, queries)] if label in code
    )
    sizes = near.votes.sizes.copy()
    for (q, number), times in gone.items():
        sizes[q, near.votes.labels[q] == number] -= times
    near = replace(near, votes=replace(near.votes, sizes=np.maximum(sizes, 1)))
    checked = Checked(
        queries.labels,
        are_enrolled(engine, queries, hoods),
        queries.kappa,
        queries.novelty,
        None if queries.items else queries.groups,
    )
    if target is not None and not queries.items:
        model = learn_prior(model, near, checked, target)
    counts = engine.label_counts()
    absent = given(queries.labels) & ~np.array([label in counts for label in queries.labels])
    met = int((hidden & np.isfinite(hoods.gaps)).any(axis=1).sum())
    return Asked(
        model,
        answer_checked(near, checked, model),
        _notes(queries, met=met, absent=int(absent.sum())),
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


def _notes(queries: CalibrationQueries, *, met: int, absent: int) -> tuple[str, ...]:
    """Return what to keep in mind about the queries, a sentence each.

    Args:
        queries: To calibrate with.
        met: How many are items of the gallery.
        absent: How many have a label that the gallery does not have.

    Returns:
        The sentences.
    """
    if queries.items:
        return (
            "The gallery's own items played the queries, each left out of the search for it, so the "
            "promise is about queries that are like the items; held-out queries are better.",
        )
    notes = []
    if met:
        notes.append(
            f"{met:,} of the queries are items of the gallery, and were answered without themselves. "
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
    if absent:
        notes.append(
            f"{absent:,} of the queries have labels that the gallery does not have: they count as "
            "unknown until they are enrolled."
        )
    return tuple(notes)


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
        hint="Calibrate the gallery again.",
    )


def check_kappa(calibration: Calibration, kappa: Float[np.ndarray, " q"]) -> None:
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
            hint="Give kappa, one number for each vector: embed the queries with the model that embedded "
            "the calibration's.",
        )
