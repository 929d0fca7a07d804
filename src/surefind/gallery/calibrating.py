"""A gallery's calibration: what it was made for, how its queries are answered, renewed and watched.

A calibration speaks about one gallery, searched in one way, with one model. So it is stored with what it
was made for,

    content    the fingerprint of `surefind.gallery.engine`: any added, removed or changed record changes it
    index      "exact" or "hnsw"
    model      the name that the user gave, or None

and with its queries. If content or index differ now, it is *stale*: searches still decide by it, and say
so, until it is renewed. If the model differs, nothing is decided.

**A renewal** answers the same queries by the gallery as it is: those whose label has just been enrolled or
removed change sides, and the same target is tested on the same split. The queries stay independent of what
was added or removed, as long as nobody chooses items by how these queries are answered. Each renewal by
itself is then a calibration for the gallery as it is. Renewals are not independent: they test the same
queries on the same split, so over a gallery's life a broken guarantee is far more often the same bad luck
than a new one (measured in docs/benchmarks.md). The posterior over labels stays as it was until the gallery
has doubled or halved; it is then fitted to the items again, and learns from the queries again how often
labels are asked for.

**Beside searches.** A calibration or a renewal copies the records while it holds the gallery's lock,
computes without it, and is put in its place whole. What was changed meanwhile makes it stale, as any change
does. A gallery in Milvus cannot be copied, and is calibrated where it is.

**No answer from oneself.** A calibration query that is an item of the gallery is answered without it
(`surefind.gallery.calibration_queries`); if no other item has its label, it counts as unknown.

**Drift** (`surefind.decisions.drift`) is watched from each calibration on, renewals included. Every decided
search shows its queries, unless the calibration is stale: such answers are no test of it.

    novelty        of all queries of the calibration: nothing of it was fitted to them
    probability    of those that tested the calibration; live, of those that pass the gate

Bets on a few queries at once cost little more than on one, so queries wait up to a second, or until there
are `TOGETHER` of them. What was seen is stored after `EVERY` queries, when an alarm is raised, with each
renewal and when the gallery is closed; a process that is killed loses what came since. A gallery that is
open for reading keeps it in memory only.
"""

import copy
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from surefind.decisions.calibration import Calibration, Target, least_queries
from surefind.decisions.decider import Rule, learn_prior
from surefind.decisions.drift import Watch, WatchReport
from surefind.decisions.label_posterior import LabelModel
from surefind.decisions.verdicts import Checked, CheckedAnswers, Verdicts, answer_checked
from surefind.errors import DegenerateError, InputError, StorageError
from surefind.files import from_stored, to_stored
from surefind.gallery.calibration_queries import CalibrationQueries, draw_items, given
from surefind.gallery.engine import Engine, Id, Label, objects
from surefind.gallery.label_fit import METADATA as LABELS
from surefind.gallery.label_fit import LabelFit, fit_labels, neighbours_of
from surefind.gallery.neighbourhoods import Neighbourhoods

CALIBRATION, QUERIES, WATCH = "calibration", "queries", "watch"
"""Where a gallery's metadata hold them."""

DOUBLED = 2.0
"""How many times larger or smaller a gallery may become before its posterior over labels is fitted anew."""

EVERY = 1000
TOGETHER, SECONDS = 64, 1.0


@dataclass(frozen=True)
class CalibrationRecord:
    """What decides, and what it was made for.

    Attributes:
        rule: Turns neighbours into decisions.
        model: The model's name, if the user gave one.
        content: The gallery's content fingerprint.
        index: How neighbours were found.
        items: Items that the posterior over labels was fitted to.
    """

    rule: Rule
    model: str | None
    content: str
    index: str
    items: int

    @property
    def labels(self) -> LabelFit:
        """The posterior over labels that the signals come from."""
        return LabelFit(self.rule.labels, self.items)

    def stale(self, engine: Engine) -> bool:
        """Return whether it was made for other items, or another way of searching."""
        return (engine.fingerprint(), engine.index) != (self.content, self.index)

    def check_model(self, model: str | None) -> None:
        """Refuse to decide about what another model has embedded."""
        if model != self.model:
            raise InputError(
                f"the calibration was made with the model {self.model!r}, and now it is {model!r}.",
                field="calibration",
                hint="Calibrate again, or search without decisions.",
            )

    def check_kappa(self, kappa: Float[np.ndarray, " q"]) -> None:
        """Refuse to decide about queries of no known κ by what was learnt from others that had one."""
        unknown = ~np.isfinite(kappa)
        if self.rule.calibration.knows_kappa and unknown.any():
            raise InputError(
                f"the calibration's queries had a concentration kappa, and {int(unknown.sum())} of these "
                f"{len(kappa)} have none (it is infinite), so nothing can be decided about them.",
                field="embeddings",
                hint="Embed them with the model that embedded the calibration's queries, or search without "
                "decisions.",
            )


class GalleryCalibration:
    """A gallery's calibration with its queries and the drift that was seen.

    Args:
        engine: The gallery's records.
        lock: The gallery's.
    """

    def __init__(self, engine: Engine, lock: threading.RLock) -> None:
        self._engine, self._lock = engine, lock
        self.record: CalibrationRecord | None = _usable(
            CalibrationRecord, engine, CALIBRATION, "searching without decisions"
        )
        self._queries: CalibrationQueries | None = None
        self._watch: Watch | None = _usable(Watch, engine, WATCH, "drift is not watched")
        self._unstored = 0
        self._waiting: list[tuple[np.ndarray | None, np.ndarray]] = []
        self._since = 0.0

    @property
    def calibration(self) -> Calibration | None:
        """What was found, and whether it is stale."""
        if self.record is None:
            return None
        return replace(self.record.rule.calibration, stale=self.record.stale(self._engine))

    @property
    def target(self) -> Target:
        """What is guaranteed; the default without a calibration."""
        return Target() if self.record is None else self.record.rule.target

    @property
    def queries(self) -> CalibrationQueries | None:
        """Those of the calibration; None if there is none."""
        if self._queries is None and self.record is not None:
            stored = self._engine.metadata[QUERIES]
            self._queries = from_stored(CalibrationQueries, stored, "the calibration's queries")
        return self._queries

    @property
    def reviews_needed(self) -> int:
        """Reviewed queries that a calibration needs at least, beside its others, to reach its target."""
        queries, target = self.queries, self.target
        others = 0 if queries is None or queries.items else int((~queries.live).sum())
        return max(1, least_queries(target.max_wrong, target.confidence) - others)

    def install(
        self, record: CalibrationRecord, queries: CalibrationQueries, answers: CheckedAnswers
    ) -> None:
        """Store a new calibration in place of what there is; the lock is held."""
        watch = Watch.start(answers.novelty, record.rule.held_out_probability(answers))
        self._store({
            CALIBRATION: to_stored(CalibrationRecord, record),
            LABELS: to_stored(LabelFit, record.labels),
            QUERIES: to_stored(CalibrationQueries, queries),
            WATCH: to_stored(Watch, watch),
        })
        self.record, self._queries = record, queries
        self._watch, self._unstored, self._waiting = watch, 0, []

    def renew(self) -> Calibration | None:
        """Make the calibration again for the gallery as it is, if it is stale.

        Returns:
            The calibration, None if there is none.
        """
        with self._lock:
            record, queries = self.record, self.queries
            if record is None or queries is None or not record.stale(self._engine):
                return self.calibration
            engine = self._engine.copied()
        labels, target = record.labels, None
        if not 1 / DOUBLED <= len(engine) / max(labels.items, 1) <= DOUBLED:
            labels, target = fit_labels(engine), record.rule.target
        answered = answer(engine, queries, Neighbourhoods.search(engine, queries), labels, target)
        rule = record.rule.renewed(answered.answers, answered.model, notes=answered.notes)
        renewed = answered.record(rule, record.model)
        with self._lock:
            if self.record is record:
                self._install_renewed(renewed, answered.answers)
            return self.calibration

    def _install_renewed(self, record: CalibrationRecord, answers: CheckedAnswers) -> None:
        self._bet()
        probability = record.rule.held_out_probability(answers)
        if self._watch is None:
            watch = Watch.start(answers.novelty, probability)
        else:
            watch = copy.deepcopy(self._watch)
            watch.renew(probability)
        stored = {CALIBRATION: to_stored(CalibrationRecord, record), WATCH: to_stored(Watch, watch)}
        self._store(stored)
        self.record, self._watch, self._unstored = record, watch, 0

    def _store(self, values: dict[str, Any]) -> None:
        if not self._engine.read_only:
            self._engine.set_metadata({**self._engine.metadata, **values})

    @property
    def drift(self) -> WatchReport | None:
        """What was found about the queries; None without a calibration."""
        self._bet()
        if self.record is None or self._watch is None:
            return None
        return self._watch.report

    def go_on(self, other: "GalleryCalibration") -> None:
        """Go on with the drift that another one has seen, if it is of the same calibration."""
        if self.record is not None and other.record == self.record:
            self._watch, self._unstored = other._watch, other._unstored

    def see(self, verdicts: Verdicts, novelty: Float[np.ndarray, " q"] | None) -> None:
        """Take in decided queries; the lock is held."""
        probability = verdicts.probability
        if self._watch is None or probability is None:
            return
        if verdicts.gate is not None:
            probability = np.where(verdicts.gate == "pass", probability, np.nan)
        now = time.monotonic()
        if not self._waiting:
            self._since = now
        self._waiting.append((novelty, probability))
        together = sum(len(some) for _, some in self._waiting)
        if together >= TOGETHER or now - self._since >= SECONDS:
            self._bet()
            if self._unstored >= EVERY:
                self.keep()

    def _bet(self) -> None:
        """Bet on the queries that wait."""
        waiting, self._waiting = self._waiting, []
        if self._watch is None or not waiting:
            return
        unusual, likely = zip(*waiting, strict=True)
        novelty = None if any(some is None for some in unusual) else np.concatenate(unusual)
        before = self._watch.report.alarm
        now = datetime.now().astimezone()
        after = self._watch.see(novelty, np.concatenate(likely), now).alarm
        self._unstored += sum(map(len, likely))
        if after is not before:
            self.keep()

    def keep(self) -> None:
        """Store the drift that was seen since it was last stored, if that is allowed."""
        self._bet()
        if self._watch is None or not self._unstored:
            return
        self._unstored = 0
        try:
            self._store({WATCH: to_stored(Watch, self._watch)})
        except StorageError as error:
            # No reason to fail a search that was answered; it is tried again later.
            warnings.warn(f"the drift that was seen is not stored: {error}", RuntimeWarning, 2)


def _usable(kind: Any, engine: Engine, name: str, otherwise: str) -> Any:
    """Return a value that a gallery's metadata hold, if there is one that can be used."""
    stored = engine.metadata.get(name)
    try:
        return None if stored is None else from_stored(kind, stored, f"the stored {name}")
    except InputError as error:
        # The items are worth more than their calibration, which can be made again.
        warnings.warn(f"{otherwise}: {error}", RuntimeWarning, stacklevel=5)
        return None


def calibrate_gallery(
    engine: Engine,
    queries: CalibrationQueries | float,
    target: Target,
    *,
    model: str | None,
    contributions: bool,
) -> tuple[CalibrationRecord, CalibrationQueries, CheckedAnswers]:
    """Calibrate, without storing it.

    Args:
        engine: The gallery's records.
        queries: To calibrate with; or the share of unknown ones where its own items play the queries.
        target: What to guarantee.
        model: The name of the model that embedded them.
        contributions: Whether to measure what each signal adds.

    Returns:
        The calibration, its queries, and how these were answered.
    """
    if isinstance(queries, CalibrationQueries):
        hoods = Neighbourhoods.search(engine, queries)
    else:
        queries, hoods = queries_of_items(engine, queries, target.seed)
    answered = answer(engine, queries, hoods, fit_labels(engine), target)
    rule = Rule.learn(
        target,
        answered.answers,
        answered.model,
        contributions=contributions,
        notes=answered.notes,
    )
    return answered.record(rule, model), queries, answered.answers


@dataclass(frozen=True, eq=False)
class Answered:
    """How calibration queries were answered, and by which gallery.

    Attributes:
        model: The posterior over labels.
        answers: What a rule is learned from.
        notes: What to keep in mind about the queries, a sentence each.
        content: The gallery's content fingerprint then.
        index: How neighbours were found.
        items: Items that the posterior was fitted to.
    """

    model: LabelModel
    answers: CheckedAnswers
    notes: tuple[str, ...]
    content: str
    index: str
    items: int

    def record(self, rule: Rule, model: str | None) -> CalibrationRecord:
        """Return what was learned from it, with what that was made for."""
        return CalibrationRecord(rule, model, self.content, self.index, self.items)


def answer(
    engine: Engine,
    queries: CalibrationQueries,
    hoods: Neighbourhoods,
    labels: LabelFit,
    target: Target | None = None,
) -> Answered:
    """Answer calibration queries by what they find.

    Args:
        engine: The gallery's records.
        queries: To answer.
        hoods: What they find.
        labels: The posterior over labels.
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
    model = labels.model
    if target is not None and not queries.items:
        model = learn_prior(model, near, checked, target)
    counts = engine.label_counts()
    absent = given(queries.labels) & ~np.array([label in counts for label in queries.labels])
    met = int((hidden & np.isfinite(hoods.gaps)).any(axis=1).sum())
    return Answered(
        model,
        answer_checked(near, checked, model),
        _notes(queries, met=met, absent=int(absent.sum())),
        content=engine.fingerprint(),
        index=engine.index,
        items=labels.items,
    )


def queries_of_items(
    engine: Engine, unknown_share: float, seed: int
) -> tuple[CalibrationQueries, Neighbourhoods]:
    """Draw items of a gallery to play queries, without those that have no companion.

    Args:
        engine: The gallery's records.
        unknown_share: Share of the queries that are unknown.
        seed: Draws the items.

    Returns:
        Queries of which about that share is unknown, and what they find.

    Raises:
        DegenerateError: If no item has a companion that is not its copy.
    """
    rng = np.random.default_rng([seed, 1])
    queries = draw_items(engine, unknown_share, rng)
    hoods = Neighbourhoods.search(engine, queries)
    queries = replace(queries, copies=hoods.copies(queries))
    known = np.flatnonzero(~queries.stranger & are_enrolled(engine, queries, hoods))
    if not len(known) and unknown_share < 1:
        raise DegenerateError(
            "the gallery's own items cannot play queries: every label has one item only, or copies of it "
            "(and items of one group count as one).",
            field="embeddings",
            hint="Add other items of some labels, or calibrate with held-out queries.",
        )
    wanted = round(len(known) * unknown_share / (1 - unknown_share))
    rows = np.concatenate([known, np.flatnonzero(queries.stranger)[:wanted]])
    return queries.some(rows), hoods.some(rows)


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
            "guarantee is about queries that are like the items; held-out queries are better.",
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
                f"; the other {others:,} were held out, and the guarantee is about live queries if those "
                "are like them."
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
