"""The watch on a gallery's promise (`surefind.decisions.drift`), kept with the gallery.

It is started when the user calibrates and goes on when the calibration is renewed. Every decided search
shows it its queries, unless the calibration is stale: such answers are no test of it.

    novelty        of all queries of the calibration: nothing of it was fitted to them
    probability    of those that tested the calibration; live, of those that pass the gate

Bets on a few queries at once cost little more than on one, so queries wait up to a second, or until there
are `TOGETHER` of them, before they are bet on; whoever asks for the report gets all that were seen.

A gallery is not written at every search. What the watch has seen is kept after `EVERY` queries, when an
alarm is raised, with each renewal and when the gallery is closed; a process that is killed loses what came
since, at most `EVERY` queries. A gallery that is open for reading keeps it in memory only.
"""

import copy
import time
import warnings
from datetime import datetime

import numpy as np
from jaxtyping import Float

from surefind.decisions.drift import Watch, WatchReport
from surefind.decisions.verdicts import Verdicts
from surefind.errors import InputError, StorageError
from surefind.gallery.engine import Engine

METADATA = "watch"
"""Where a gallery's metadata hold it."""

EVERY = 1000
TOGETHER, SECONDS = 64, 1.0


class KeptWatch:
    """A gallery's watch; the gallery's lock is held by whoever calls.

    Args:
        engine: The gallery's records.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unkept = 0
        self._waiting: list[tuple[np.ndarray | None, np.ndarray]] = []
        self._since = 0.0
        self._watch: Watch | None = None
        stored = engine.metadata.get(METADATA)
        try:
            self._watch = None if stored is None else Watch.from_json(stored)
        except InputError as error:
            # Whoever searches needs answers more than this; the next renewal starts another one.
            warnings.warn(f"queries are not watched: {error}", RuntimeWarning, stacklevel=6)

    @property
    def report(self) -> WatchReport | None:
        """What was found; None if there is no watch."""
        self._bet()
        return None if self._watch is None else self._watch.report

    def renewed(
        self, novelty: Float[np.ndarray, " q"] | None, probability: Float[np.ndarray, " q"]
    ) -> Watch:
        """Return a watch that goes on with a renewed calibration, or a new one if there is none."""
        self._bet()
        if self._watch is None:
            return Watch.start(novelty, probability)
        after = copy.deepcopy(self._watch)
        after.renew(probability)
        return after

    def replace(self, watch: Watch) -> None:
        """Go on with another watch, which was kept already."""
        self._watch, self._unkept, self._waiting = watch, 0, []

    def go_on(self, other: "KeptWatch") -> None:
        """Go on with what another one of the same calibration has seen."""
        self._watch, self._unkept = other._watch, other._unkept

    def see(self, verdicts: Verdicts, novelty: Float[np.ndarray, " q"] | None) -> None:
        """Take in decided queries."""
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
            if self._unkept >= EVERY:
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
        self._unkept += sum(map(len, likely))
        if after is not before:
            self.keep()

    def keep(self) -> None:
        """Keep what was seen since it was last kept, if that is allowed."""
        self._bet()
        if self._watch is None or not self._unkept or self._engine.read_only:
            return
        self._unkept = 0
        try:
            self._engine.set_metadata({**self._engine.metadata, METADATA: self._watch.to_json()})
        except StorageError as error:
            # No reason to fail a search that was answered; it is tried again later.
            warnings.warn(f"what the watch saw was not kept: {error}", RuntimeWarning, stacklevel=2)
