"""What a gallery keeps of its calibration: what it was made for, its queries, and the drift that was seen.

A calibration speaks about one content, answered by one label model, for vectors of one network. It is
stored with what it was made for (`Record`), and with its queries. If the content differs now, it is
*stale*: searches still decide by it, and say so, until it is renewed. If the network's name differs,
nothing is decided. How queries and items calibrate: `surefind.decisions.decider`.

**A renewal** answers the same queries by the label model of now: those whose label has just been enrolled
or removed change sides, and the same target is tested. The queries stay independent of what was added or
removed, as long as nobody chooses items by how these queries are answered. Each renewal by itself is then a
calibration for the gallery as it is. Renewals are not independent: they test the same queries, so over a
gallery's life a broken guarantee is far more often the same bad luck than a new one. That of a label
model's novelty is on another scale after each fit; the watch compares only novelty that queries have of
their own.

**Drift** (`surefind.decisions.drift`) is watched from each calibration on, renewals included. Every decided
search shows its queries, unless the calibration is stale: such answers are no test of it. Novelty is
compared with that of all queries of the calibration, since nothing was fitted to it; the probability with
that of those that tested it, live, of those that pass the gate.

Bets on a few queries at once cost little more than on one, so queries wait up to a second, or until there
are `TOGETHER` of them. What was seen is stored after `EVERY` queries, when an alarm is raised, with each
renewal and when the gallery is closed; a process that is killed loses what came since. A gallery that is
open for reading keeps it in memory only.

Axes: ``q`` queries.
"""

import copy
import time
import warnings
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np

from surefind.decisions.answers import Answers
from surefind.decisions.calibration import Calibration
from surefind.decisions.decider import Learned
from surefind.decisions.drift import Watch, WatchReport
from surefind.errors import DegenerateError, InputError
from surefind.files import Array, from_stored
from surefind.gallery.engine import Engine
from surefind.gallery.records import Records

MODEL, CALIBRATION, QUERIES, WATCH = "label model", "calibration", "queries", "watch"
"""Where a gallery's metadata hold them."""

GROWN = 0.1
"""The fraction of items that may come or go before the label model is fitted anew."""

EVERY = 1000
TOGETHER, SECONDS = 64, 1.0


@dataclass(frozen=True)
class Record:
    """A calibration, and what it was made for.

    Attributes:
        calibration: It decides.
        own_novelty: As of `Learned`.
        model: The name of the network that embeds, if the user gave one.
        content: The gallery's content fingerprint; empty if items came or went meanwhile.
        trained: Hashes of the ids of items that play no queries, as the network was trained on them.
    """

    calibration: Calibration
    own_novelty: bool
    model: str | None
    content: str
    trained: Array = field(compare=False)

    def check_model(self, model: str | None) -> None:
        """Refuse to decide about what another model has embedded."""
        if model != self.model:
            raise InputError(
                f"the calibration was made with the model {self.model!r}, and now it is {model!r}.",
                field="calibration",
                hint="Calibrate again, or search without decisions.",
            )


def fitted(records: Records, known: Learned | None = None, seed: int = 0) -> Learned:
    """Fit a label model to records, or take the one that was fitted to them.

    Args:
        records: The gallery's.
        known: What is known of them.
        seed: Of the fit.

    Returns:
        A model that knows its items left out.

    Raises:
        DegenerateError: If no record has a label.
    """
    if known is not None and known.fresh and known.model.seed == seed:
        return known
    if all(label is None for label in records.labels):
        raise DegenerateError(
            "no item of the gallery has a label, so there is nothing to decide.",
            field="queries",
            hint="Give labels to items with update.",
        )
    return Learned.fit(
        records.vectors,
        [*records.labels],
        groups=[*records.groups],
        kappa=records.kappa,
        novelty=records.novelty,
        seed=seed,
    )


def outdated(learned: Learned, labelled: int) -> bool:
    """Return whether so many labelled items are more or fewer than those of the fit by a tenth."""
    items = learned.model.settings.items
    return abs(labelled - items) > GROWN * items


class KeptWatch:
    """A watch, and the queries that it has not seen yet; the gallery's lock is held whenever it is used.

    Args:
        watch: What was kept, if anything.
    """

    def __init__(self, watch: Watch | None) -> None:
        self._watch = watch
        self._unstored = 0
        self._waiting: list[tuple[np.ndarray | None, np.ndarray]] = []
        self._since = 0.0

    def next(self, made: Calibration, own_novelty: bool) -> Watch:
        """Return a watch that begins with a calibration, or goes on if that is a renewal."""
        self.bet()
        if not made.renewals or self._watch is None:
            return Watch.start(made.novelty if own_novelty else None, made.tested_probability)
        watch = copy.deepcopy(self._watch)
        watch.renew(made.tested_probability)
        return watch

    @property
    def report(self) -> WatchReport | None:
        """What was found about the queries; None without a watch."""
        return None if self._watch is None else self._watch.report

    def see(self, made: Calibration, answers: Answers) -> bool:
        """Take in decided queries; return whether what was seen is to be stored."""
        probability, novelty = answers.probability, answers.novelty
        if self._watch is None or probability is None:
            return False
        if made.gate is not None and novelty is not None:
            probability = np.where(made.gate.outcome(novelty) == "pass", probability, np.nan)
        now = time.monotonic()
        self._since = self._since if self._waiting else now
        self._waiting.append((novelty, probability))
        together = sum(len(some) for _, some in self._waiting)
        soon = together >= TOGETHER or now - self._since >= SECONDS
        return soon and (self.bet() or self._unstored >= EVERY)

    @property
    def due(self) -> bool:
        """Whether what was seen is to be stored soon."""
        return self._unstored + TOGETHER >= EVERY

    def bet(self) -> bool:
        """Bet on the queries that wait; return whether an alarm was raised."""
        waiting, self._waiting = self._waiting, []
        if self._watch is None or not waiting:
            return False
        unusual, likely = zip(*waiting, strict=True)
        novelty = None if any(some is None for some in unusual) else np.concatenate(unusual)
        before, now = self._watch.report.alarm, datetime.now().astimezone()
        self._unstored += sum(map(len, likely))
        return self._watch.see(novelty, np.concatenate(likely), now).alarm is not before

    def unstored(self) -> Watch | None:
        """Return the watch to be stored, if it has seen anything since this was last asked."""
        some, self._unstored = self._unstored, 0
        return self._watch if some else None


def store(engine: Engine, values: dict[str, Any]) -> None:
    """Store values beside the items, where that is allowed; None removes one."""
    if not engine.read_only:
        kept = {**engine.metadata, **values}
        engine.set_metadata({name: value for name, value in kept.items() if value is not None})


def usable(kind: Any, engine: Engine, name: str, otherwise: str) -> Any:
    """Return a value that a gallery's metadata hold, if there is one that can be used."""
    stored = engine.metadata.get(name)
    try:
        return None if stored is None else from_stored(kind, stored, f"the stored {name}")
    except InputError as error:
        # The items are worth more than their calibration, which can be made again.
        warnings.warn(f"{otherwise}: {error}", RuntimeWarning, stacklevel=5)
        return None
