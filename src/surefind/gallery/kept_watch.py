"""The watch on a gallery's promise (`surefind.decisions.drift`), kept with the gallery.

It is started when the user calibrates and goes on when the calibration is renewed. Every decided search
shows it its queries, unless the calibration is stale: such answers are no test of it.

    novelty        of all queries of the calibration: nothing of it was fitted to them
    probability    of those that tested the calibration; live, of those that pass the gate

A gallery is not written at every search. What the watch has seen is kept after `EVERY` queries, when an
alarm is raised, with each renewal and when the gallery is closed; a process that is killed loses what came
since, at most `EVERY` queries. A gallery that is open for reading keeps it in memory only.
"""

import copy
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


class KeptWatch:
    """A gallery's watch; the gallery's lock is held by whoever calls.

    Args:
        engine: The gallery's records.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unkept = 0
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
        return None if self._watch is None else self._watch.report

    def renewed(
        self, novelty: Float[np.ndarray, " q"] | None, probability: Float[np.ndarray, " q"]
    ) -> Watch:
        """Return a watch that goes on with a renewed calibration, or a new one if there is none."""
        if self._watch is None:
            return Watch.start(novelty, probability)
        after = copy.deepcopy(self._watch)
        after.renew(probability)
        return after

    def replace(self, watch: Watch) -> None:
        """Go on with another watch, which was kept already."""
        self._watch, self._unkept = watch, 0

    def see(self, verdicts: Verdicts, novelty: Float[np.ndarray, " q"] | None) -> None:
        """Take in decided queries."""
        probability = verdicts.probability
        if self._watch is None or probability is None:
            return
        if verdicts.gate is not None:
            probability = np.where(verdicts.gate == "pass", probability, np.nan)
        before = self._watch.report.alarm
        after = self._watch.see(novelty, probability, datetime.now().astimezone()).alarm
        self._unkept += len(probability)
        if self._unkept >= EVERY or after is not before:
            self.keep()

    def keep(self) -> None:
        """Keep what was seen since it was last kept, if that is allowed."""
        if self._watch is None or not self._unkept or self._engine.read_only:
            return
        self._unkept = 0
        try:
            self._engine.set_metadata({**self._engine.metadata, METADATA: self._watch.to_json()})
        except StorageError as error:
            # No reason to fail a search that was answered; it is tried again later.
            warnings.warn(f"what the watch saw was not kept: {error}", RuntimeWarning, stacklevel=2)
