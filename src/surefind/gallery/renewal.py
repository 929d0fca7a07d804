"""A gallery's calibration while the gallery lives: kept, found stale, renewed.

After items were added, updated or deleted the calibration that was made before speaks about another
gallery. What a search then does is the user's choice:

    renew     its queries are answered by the gallery as it is, and it is made again (`renew`)
    mark      decide by the old one, and say so
    refuse    do not decide

**What a renewal promises.** The queries are those of the calibration, and stay independent of what was
added or removed, as long as nobody chooses items by how these queries are answered. Each renewal by itself
is then a calibration for the gallery as it is: its promise is broken with a probability of at most
1 - confidence. Renewals are not independent: they test the same queries on the same split, so over a
gallery's life a broken promise is far more often the same bad luck than a new one (measured in
docs/benchmarks.md).

**Cost.** `surefind.gallery.neighbourhoods` keeps what the queries find up to date, so a renewal costs one
comparison of the queries with what changed, and the fit. The posterior over labels stays as it was until
the gallery has doubled or halved; it is then fitted to the items again, and learns from the queries again
how often labels are asked for. What each signal adds is measured when the user calibrates, not here.

**Without stopping searches.** `renew` holds the gallery's lock while it takes in what changed, not while it
fits; the new calibration is put in place only if the gallery is still what it was made for. A search uses
one calibration for all of its queries. Where all queries must search again, as they must where a graph is
walked, they do so a few at a time, and others have their turn in between.

**Watched.** A calibration has a watch on its premise (`surefind.gallery.kept_watch`), which a renewal takes
along.
"""

import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, replace

import numpy as np

from surefind.decisions.calibration import Calibration
from surefind.decisions.decider import Decider, Target
from surefind.decisions.drift import Watch
from surefind.errors import DegenerateError
from surefind.gallery.calibration_queries import METADATA as QUERIES
from surefind.gallery.calibration_queries import CalibrationQueries, draw_items
from surefind.gallery.calibration_record import (
    METADATA,
    Asked,
    CalibrationRecord,
    are_enrolled,
    ask,
    stale_error,
    stored_record,
)
from surefind.gallery.engine import Engine, Id
from surefind.gallery.kept_watch import METADATA as WATCH
from surefind.gallery.kept_watch import KeptWatch
from surefind.gallery.label_fit import METADATA as LABELS
from surefind.gallery.label_fit import fit_labels
from surefind.gallery.neighbourhoods import Neighbourhoods

POLICIES = ("renew", "mark", "refuse")
DOUBLED = 2.0
"""How many times larger or smaller a gallery may become before its posterior over labels is fitted anew."""

ATTEMPTS = 5
"""Renewals that may be overtaken by further changes: the last one holds the lock throughout, which takes
some ten milliseconds, or is made on a copy if all queries must search again."""

TURN, TURN_OF_ITEMS = 16, 256
"""Queries that search while the lock is held, for some ten milliseconds. Each turn of items reads all."""

PAUSE = 0.001
"""Seconds between two turns; whoever waits for the lock would not get it if it was taken again at once."""


class KeptCalibration:
    """A gallery's calibration with its queries and what these find.

    Args:
        engine: The gallery's records.
        lock: The gallery's.
    """

    def __init__(self, engine: Engine, lock: threading.RLock) -> None:
        self._engine, self._lock = engine, lock
        self.record: CalibrationRecord | None = stored_record(engine.metadata)
        self.watch: KeptWatch = KeptWatch(engine)
        self._queries: CalibrationQueries | None = None
        self._hoods: Neighbourhoods | None = None
        self._changed: set[Id] = set()
        self._since_copy: set[Id] | None = None

    @property
    def queries(self) -> CalibrationQueries | None:
        """Those of the calibration; None if there is none."""
        if self._queries is None and self.record is not None:
            self._queries = CalibrationQueries.from_json(self._engine.metadata[QUERIES])
        return self._queries

    def changed(self, ids: Iterable[Id]) -> None:
        """Remember which items were added, updated or deleted."""
        if self._hoods is not None:
            self._changed.update(ids)
        if self._since_copy is not None:
            self._since_copy.update(ids)

    def copied(self) -> None:
        """Take note that the gallery was copied, to be calibrated elsewhere; the lock is held."""
        self._since_copy = set()

    def take_over(self, other: "KeptCalibration") -> None:
        """Keep what was calibrated on the copy in place of what there is; the lock is held.

        If items have changed since, the calibration is stale, and can be renewed like any other.
        """
        metadata = other._engine.metadata
        kept = {name: metadata[name] for name in (METADATA, LABELS, QUERIES, WATCH)}
        self._engine.set_metadata({**self._engine.metadata, **kept})
        self.record, self._queries = other.record, other._queries
        self.watch.replace(Watch.from_json(kept[WATCH]))
        self._hoods, self._changed = other._hoods, self._since_copy or set()
        self._since_copy = None

    def fit(
        self,
        queries: CalibrationQueries,
        hoods: Neighbourhoods,
        target: Target,
        *,
        model: str | None,
        contributions: bool,
    ) -> CalibrationRecord:
        """Calibrate, and keep the calibration and its queries with the gallery; the lock is held.

        Args:
            queries: To calibrate with.
            hoods: What they find now.
            target: What to promise.
            model: The name of the model that embedded them.
            contributions: Whether to measure what each signal adds.

        Returns:
            What was kept.
        """
        engine = self._engine
        labels = fit_labels(engine)
        asked = ask(engine, queries, hoods, labels.model, target)
        decider = Decider(**asdict(target)).learned(
            asked.answers, asked.model, contributions=contributions, notes=asked.notes
        )
        record = CalibrationRecord.of(decider, asked, model=model, items=labels.items)
        watch = Watch.start(queries.novelty, decider.held_out_probability(asked.answers))
        kept = {
            METADATA: record.to_json(),
            LABELS: record.labels.to_json(),
            QUERIES: queries.to_json(),
            WATCH: watch.to_json(),
        }
        engine.set_metadata({**engine.metadata, **kept})
        self.record, self._queries = record, queries
        self.watch.replace(watch)
        self._hoods, self._changed = (hoods if self._follows else None), set()
        return record

    def current(self, *, model: str | None, policy: str) -> tuple[CalibrationRecord | None, bool]:
        """Return the calibration to decide by, and whether it is stale; the lock is held.

        Args:
            model: The name of the model that embeds now.
            policy: One of `POLICIES`.

        Returns:
            The record, None if there is none, and whether it was made for something else.

        Raises:
            stale_error: If it was, and the policy is to refuse, or a renewal cannot make it good.
        """
        record = self.record
        changes = [] if record is None else record.changes(self._engine, model)
        if record is None or not changes:
            return record, False
        if policy == "mark":
            return record, True
        if policy == "refuse" or changes != record.renewable(self._engine):
            raise stale_error(changes)
        self.renew()
        return self.record, False

    def renew(self) -> Calibration | None:
        """Make the calibration again for the gallery as it is, if it is stale.

        Returns:
            The calibration, None if there is none.
        """
        for attempt in range(ATTEMPTS):
            with self._lock:
                record, queries = self.record, self.queries
                if record is None or queries is None or not record.renewable(self._engine):
                    break
                content, hoods = self._engine.fingerprint(), self._followed(queries)
                if hoods is not None and attempt == ATTEMPTS - 1:
                    asked, items = _asked_again(self._engine, record, queries, hoods)
                    self._install(_again(record, asked, items), asked)
                    break
            if hoods is None:
                hoods = self._searched(queries, content)
            with self._lock:
                if hoods is None or self.record is not record:
                    continue
                if content != self._engine.fingerprint():
                    continue
                asked, items = _asked_again(self._engine, record, queries, hoods)
            renewed = _again(record, asked, items)
            with self._lock:
                if self.record is record and not renewed.renewable(self._engine):
                    self._install(renewed, asked)
                    break
        else:
            self._renew_beside()
        return None if self.record is None else self.record.calibration

    def _renew_beside(self) -> None:
        """Renew for the gallery as it is now, on a copy; what changes meanwhile makes it stale again."""
        with self._lock:
            record, queries, make = self.record, self.queries, self._engine.copied()
            if record is None or queries is None:
                return
            if make is None:
                hoods = Neighbourhoods.search(self._engine, queries)
                asked, items = _asked_again(self._engine, record, queries, hoods)
                self._install(_again(record, asked, items), asked)
                return
        engine = make()
        hoods = Neighbourhoods.search(engine, queries)
        asked, items = _asked_again(engine, record, queries, hoods)
        renewed = _again(record, asked, items)
        with self._lock:
            if self.record is record:
                self._install(renewed, asked)

    def _install(self, record: CalibrationRecord, asked: Asked) -> None:
        engine, answers = self._engine, asked.answers
        watch = self.watch.renewed(answers.novelty, record.decider.held_out_probability(answers))
        if not engine.read_only:
            kept = {METADATA: record.to_json(), WATCH: watch.to_json()}
            engine.set_metadata({**engine.metadata, **kept})
        self.record = record
        self.watch.replace(watch)

    @property
    def _follows(self) -> bool:
        return self._engine.exclusive and self._engine.index == "exact"

    def _followed(self, queries: CalibrationQueries) -> Neighbourhoods | None:
        """Return what the queries find now; None if that is not followed, and they must search again."""
        if self._hoods is None or not self._follows:
            return None
        self._hoods = self._hoods.updated(self._engine, queries, self._changed)
        self._changed = set()
        return self._hoods

    def _searched(self, queries: CalibrationQueries, content: str) -> Neighbourhoods | None:
        """Search all queries, some at a time; None if the gallery changes before they are through."""
        size = TURN_OF_ITEMS if queries.items else TURN
        parts = []
        for start in range(0, len(queries), size):
            with self._lock:
                if content != self._engine.fingerprint():
                    return None
                rows = np.arange(start, min(start + size, len(queries)))
                parts.append(Neighbourhoods.search(self._engine, queries.some(rows)))
            time.sleep(PAUSE)
        with self._lock:
            if content != self._engine.fingerprint():
                return None
            hoods = Neighbourhoods.joined(parts)
            self._hoods, self._changed = (hoods if self._follows else None), set()
        return hoods


def _asked_again(
    engine: Engine, record: CalibrationRecord, queries: CalibrationQueries, hoods: Neighbourhoods
) -> tuple[Asked, int]:
    """Answer calibration queries again, by another posterior over labels if the gallery is twice as large.

    Returns:
        The answers, and to how many items the posterior was fitted.
    """
    labels, target = record.labels, None
    if not 1 / DOUBLED <= len(engine) / max(labels.items, 1) <= DOUBLED:
        labels, target = fit_labels(engine), record.decider.target
    return ask(engine, queries, hoods, labels.model, target), labels.items


def _again(record: CalibrationRecord, asked: Asked, items: int) -> CalibrationRecord:
    decider = record.decider.renewed(asked.answers, asked.model, notes=asked.notes)
    return CalibrationRecord.of(decider, asked, model=record.model, items=items)


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
