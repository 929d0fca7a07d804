"""A gallery's label model and calibration: what they were made for, and how they are renewed and watched.

A calibration speaks about one content, answered by one label model, for vectors of one network. It is
stored with what it was made for,

    content    the fingerprint of `surefind.gallery.engine`: any added, removed or changed record changes it
    model      the name of the network that the user gave, or None
    labels     those that its queries tested

and with its queries. If the content differs now, it is *stale*: searches still decide by it, and say so,
until it is renewed. If the model differs, nothing is decided. Labels enrolled since were not tested, and
are a review at most.

**Queries** were held out from the gallery. One that is an item after all, by its id or because its vector
is the same, is left out, and more than half of such queries are refused: what was enrolled says nothing
about inputs to come. Without queries the items play them, each answered without itself, its group and its
copies (`surefind.decisions.decider`). How unknown queries fare is
always tested: by items whose whole label is left out, beside what the queries say.

**A renewal** answers the same queries by the label model of now: those whose label has just been enrolled
or removed change sides, and the same target is tested. Queries say nothing of labels enrolled since, so
left-out items of these are asked too: as many as an average label of the queries has, and at least `LEAST`;
a label with fewer stays untested. The queries stay independent of what was added or removed, as long as
nobody chooses items by how these queries are answered. Each renewal by itself is then a calibration for the
gallery as it is. Renewals are not independent: they test the same queries, so over a gallery's life a
broken guarantee is far more often the same bad luck than a new one. That of a label model's novelty is on
another scale after each fit; the watch compares only novelty that queries have of their own.

**Drift** (`surefind.decisions.drift`) is watched from each calibration on, renewals included. Every decided
search shows its queries, unless the calibration is stale: such answers are no test of it. Novelty is
compared with that of all queries of the calibration, since nothing was fitted to it; the probability with
that of those that tested it, live, of those that pass the gate.

Bets on a few queries at once cost little more than on one, so queries wait up to a second, or until there
are `TOGETHER` of them. What was seen is stored after `EVERY` queries, when an alarm is raised, with each
renewal and when the gallery is closed; a process that is killed loses what came since. A gallery that is
open for reading keeps it in memory only.

Axes: ``q`` queries, ``z`` embedding, ``r`` left-out items.
"""

import copy
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from jaxtyping import Int

from surefind.decisions.answers import Answers
from surefind.decisions.calibration import Calibration, Target, calibrate
from surefind.decisions.decider import calibrate_items
from surefind.decisions.drift import Watch, WatchReport
from surefind.errors import InputError, StorageError
from surefind.files import Array, from_stored, to_stored
from surefind.gallery.engine import Engine, Id, Label, Records
from surefind.labels.left_out import LeftOut, joined
from surefind.labels.model import LabelModel

MODEL, CALIBRATION, QUERIES, WATCH = "label model", "calibration", "queries", "watch"
"""Where a gallery's metadata hold them."""

GROWN = 0.1
"""The fraction of items that may come or go before the label model is fitted anew."""

LEAST = 5
"""Left-out items of a new label that test it."""

EVERY = 1000
TOGETHER, SECONDS = 64, 1.0


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries of a calibration with what is known of them.

    Attributes:
        vectors: Unit vectors (q, z), float32.
        kappa: Concentrations (q), float64.
        novelty: p-values (q), or None if they came without.
        truth: Their labels; None for a query of which only is known that it was not enrolled.
        ids: Of the items that they would be, None where they are none.
        groups: For thresholds of their own.
        live: Which are reviewed live queries, a random share of all (q).
    """

    vectors: Array
    kappa: Array
    novelty: Array | None
    truth: Sequence[Label]
    ids: Sequence[Id | None]
    groups: Sequence[Any]
    live: Array

    def __len__(self) -> int:
        return len(self.vectors)

    def some(self, rows: Int[np.ndarray, " r"]) -> "Queries":
        """Return some of them, by row numbers."""
        columns: dict[str, Any] = {
            name: [value[row] for row in rows.tolist()]
            if isinstance(value, Sequence)
            else value[rows]
            for name, value in vars(self).items()
            if value is not None
        }
        return replace(self, **columns)

    def joined(self, live: "Queries") -> "Queries":
        """Add reviewed live queries in place of earlier ones; novelty stays if both have it."""
        rest = self.some(np.flatnonzero(~self.live))
        columns: dict[str, Any] = {}
        for name, own in vars(rest).items():
            other = getattr(live, name)
            if own is None or other is None:
                columns[name] = None
            else:
                columns[name] = (
                    [*own, *other] if isinstance(own, Sequence) else np.concatenate([own, other])
                )
        return Queries(**columns)

    def without(self, records: Records) -> tuple["Queries", str | None]:
        """Leave out those that are items; return the rest, and a sentence about the others."""
        there = set(records.ids)
        vectors = {row.tobytes() for row in np.ascontiguousarray(records.vectors, dtype="<f4")}
        own = np.ascontiguousarray(self.vectors, dtype="<f4")
        met = np.array([
            (id_ is not None and id_ in there) or row.tobytes() in vectors
            for id_, row in zip(self.ids, own, strict=True)
        ])
        count = int(met.sum())
        if not count:
            return self, None
        if 2 * count > len(self):
            raise InputError(
                f"{count:,} of the {len(self):,} queries are items of the gallery.",
                field="queries",
                hint="Give queries that are not in it; or none, and each item is answered without itself.",
            )
        sentence = f"{count:,} of the queries are items of the gallery, and were left out."
        return self.some(np.flatnonzero(~met)), sentence


@dataclass(frozen=True, eq=False)
class Fit:
    """A label model, and how the items that it was fitted to are answered without themselves.

    Attributes:
        model: It follows the items that come and go.
        left_out: Of the fit; None for a model that was stored.
        rows: Which records these were (r).
        kappa: Concentrations of the left-out items (r).
        novelty: Their own p-values (r); None if not all have one.
        fresh: Whether no item has come or gone since.
    """

    model: LabelModel
    left_out: LeftOut | None = None
    rows: Any = None
    kappa: Any = None
    novelty: Any = None
    fresh: bool = False

    @classmethod
    def of(cls, records: Records, seed: int = 0, known: "Fit | None" = None) -> "Fit | None":
        """Fit a model to records, or take the one that is known; None if no record has a label."""
        if known is not None and known.fresh and known.model.seed == seed:
            return known
        named = np.flatnonzero([label is not None for label in records.labels])
        if not len(named):
            return None
        labels, groups = (
            [column[row] for row in named.tolist()] for column in (records.labels, records.groups)
        )
        grouped = None if not any(group is not None for group in groups) else groups
        model = LabelModel(seed=seed).fit(records.vectors[named], labels, groups=grouped)
        left_out = model.left_out()
        rows = named[left_out.rows]
        novelty = records.novelty[rows]
        own = None if np.isnan(novelty).any() else novelty
        return cls(model, left_out, rows, records.kappa[rows], own, fresh=True)

    def outdated(self, labelled: int) -> bool:
        """Return whether so many labelled items are more or fewer than those of the fit by a tenth."""
        fitted = self.model.settings.items
        return abs(labelled - fitted) > GROWN * fitted

    def copied(self) -> "Fit":
        """Return one that does not follow the items any more."""
        return replace(self, model=copy.copy(self.model))


@dataclass(frozen=True)
class Record:
    """A calibration, and what it was made for.

    Attributes:
        calibration: It decides.
        model: The name of the network that embeds, if the user gave one.
        content: The gallery's content fingerprint; empty if items came or went meanwhile.
        labels: Those that were tested.
        own_novelty: Whether queries must have a novelty of their own; the label model's is used otherwise.
    """

    calibration: Calibration
    model: str | None
    content: str
    labels: tuple[Label, ...]
    own_novelty: bool

    def check_model(self, model: str | None) -> None:
        """Refuse to decide about what another model has embedded."""
        if model != self.model:
            raise InputError(
                f"the calibration was made with the model {self.model!r}, and now it is {model!r}.",
                field="calibration",
                hint="Calibrate again, or search without decisions.",
            )


def learn(
    fit: Fit,
    queries: Queries | None,
    records: Records,
    target: Target,
    *,
    model: str | None,
    before: Record | None = None,
) -> tuple[Record, np.ndarray | None]:
    """Calibrate.

    Args:
        fit: The label model of the records; right after the fit if items play the queries.
        queries: Held-out ones; None: the items play them.
        records: The gallery's.
        target: What to guarantee.
        model: The name of the network that embeds.
        before: The calibration that is renewed.

    Returns:
        The calibration, without the content that it is for; and the p-values of its queries, if these had
        some of their own.
    """
    novelty, enrolled = None, fit.model.labels
    if queries is not None:
        given = _evidence(fit, queries, records, () if before is None else before.labels)
        made, asked = calibrate(**given, **asdict(target)), Counter(given["truth"])
        novelty = None if queries.novelty is None else given["novelty"]
    else:
        left = fit.model.left_out() if fit.left_out is None else fit.left_out
        made = calibrate_items(left, target, novelty=fit.novelty, kappa=fit.kappa)
        asked = Counter(left.truth[left.enrolled].tolist())
        novelty = None if fit.novelty is None else fit.novelty[left.enrolled]
    tested = enrolled
    if before is not None:
        tested = tuple(x for x in enrolled if x in before.labels or asked[x] >= LEAST)
        made = replace(made, renewals=before.calibration.renewals + 1)
    return Record(made, model, "", tested, novelty is not None), novelty


def _evidence(
    fit: Fit, queries: Queries, records: Records, tested: Sequence[Label]
) -> dict[str, Any]:
    """Return what `calibrate` is given of held-out queries, and of items of labels that are not tested."""
    queries, sentence = queries.without(records)
    model, left, own = fit.model, fit.left_out, queries.novelty
    given: dict[str, Any] = {
        "posterior": model.posterior(queries.vectors),
        "truth": [*queries.truth],
        "novelty": model.novelty(queries.vectors) if own is None else own,
        "kappa": queries.kappa,
        "groups": [*queries.groups],
    }
    notes = [*([] if sentence is None else [sentence]), *_notes(queries, model)]
    if left is not None and (own is None or fit.novelty is not None):
        usual, unusual = (left.novelty, left.unknown_novelty) if own is None else [fit.novelty] * 2
        rows = _new_rows(left, given["truth"], tested)
        if len(rows):
            given["posterior"] = joined([given["posterior"], left.known[rows]])
            given["truth"] += left.truth[rows].tolist()
            given["novelty"] = np.concatenate([given["novelty"], usual[rows]])
            given["kappa"] = np.concatenate([given["kappa"], fit.kappa[rows]])
            given["groups"] += [None] * len(rows)
            notes.append(
                f"{len(rows):,} items of labels that are new since the calibration played queries too, "
                "each answered without itself."
            )
        given |= {"left_out": left.unknown, "left_out_novelty": unusual}
        given["left_out_kappa"] = fit.kappa
    counted = model.counts
    if all(group is None for group in given["groups"]):
        given["groups"] = None
    enrolled = np.array([label in counted for label in given["truth"]])
    return {**given, "enrolled": enrolled, "notes": tuple(notes)}


def _new_rows(left: LeftOut, truth: Sequence[Label], tested: Sequence[Label]) -> np.ndarray:
    """Return which left-out items test new labels: of each as many as other labels have queries."""
    known = set(tested)
    if not known:
        return np.empty(0, dtype=np.int64)
    named = [label for label in truth if label in known]
    most = max(LEAST, round(len(named) / max(len(set(named)), 1)))
    seen: Counter[Label] = Counter()
    rows = []
    for row in np.flatnonzero(left.enrolled):
        label = left.truth[row]
        if label not in known and seen[label] < most:
            seen[label] += 1
            rows.append(row)
    return np.array([row for row in rows if seen[left.truth[row]] >= LEAST], dtype=np.int64)


def _notes(queries: Queries, model: LabelModel) -> list[str]:
    """Return what to keep in mind about the queries, a sentence each."""
    notes = []
    if live := int(queries.live.sum()):
        others = len(queries) - live
        rest = (
            f"; the other {others:,} were held out, and the guarantee is about live queries if those are "
            "like them."
        )
        notes.append(
            f"{live:,} of the queries are a random share of live ones that people reviewed"
            f"{rest if others else '.'}"
        )
    counted = model.counts
    if absent := sum(label is not None and label not in counted for label in queries.truth):
        notes.append(
            f"{absent:,} of the queries have labels that the gallery does not have: they count as "
            "unknown until they are enrolled."
        )
    return notes


class Kept:
    """What a gallery decides by: its calibration with the queries and the drift that was seen.

    The gallery's lock is held whenever it is used.

    Args:
        engine: The gallery's records.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.record: Record | None = usable(
            Record, engine, CALIBRATION, "searching without decisions"
        )
        self._queries: Queries | None = None
        self._watch: Watch | None = usable(Watch, engine, WATCH, "drift is not watched")
        self._unstored = 0
        self._waiting: list[tuple[np.ndarray | None, np.ndarray]] = []
        self._since = 0.0

    @property
    def stale(self) -> bool:
        """Whether the calibration was made for other items."""
        return self.record is not None and self._engine.fingerprint() != self.record.content

    @property
    def calibration(self) -> Calibration | None:
        """What was found, and whether it is stale."""
        if self.record is None:
            return None
        return replace(self.record.calibration, stale=self.stale)

    @property
    def target(self) -> Target:
        """What is guaranteed; the default without a calibration."""
        return Target() if self.record is None else self.record.calibration.target

    @property
    def queries(self) -> Queries | None:
        """Those of the calibration; None if there is none, or if items played them."""
        stored = self._engine.metadata.get(QUERIES)
        if self._queries is None and stored is not None:
            self._queries = from_stored(Queries, stored, "the calibration's queries")
        return self._queries

    @property
    def reviews_needed(self) -> int:
        """Reviewed queries that a calibration needs at least, beside its others, to reach its target."""
        queries, target = self.queries, self.target
        others = 0 if queries is None else int((~queries.live).sum())
        return max(1, target.least_queries - others)

    def install(
        self,
        record: Record,
        novelty: np.ndarray | None,
        queries: Queries | None,
        others: dict[str, Any],
    ) -> None:
        """Store a calibration in place of what there is, and other values with it."""
        renewed, tested = record.calibration.renewals > 0, record.calibration.tested_probability
        self._bet()
        if renewed and self._watch is not None:
            watch = copy.deepcopy(self._watch)
            watch.renew(tested)
        else:
            watch = Watch.start(novelty, tested)
        stored: dict[str, Any] = {
            CALIBRATION: to_stored(Record, record),
            WATCH: to_stored(Watch, watch),
            **others,
        }
        if not renewed:
            stored[QUERIES] = None if queries is None else to_stored(Queries, queries)
            self._queries = queries
        store(self._engine, stored)
        self.record, self._watch, self._unstored = record, watch, 0
        self._waiting = []

    @property
    def drift(self) -> WatchReport | None:
        """What was found about the queries; None without a calibration."""
        self._bet()
        if self.record is None or self._watch is None:
            return None
        return self._watch.report

    def go_on(self, other: "Kept") -> None:
        """Go on with the drift that another one has seen, if it is of the same calibration."""
        if self.record is not None and other.record == self.record:
            self._watch, self._unstored = other._watch, other._unstored

    def see(self, answers: Answers) -> None:
        """Take in decided queries."""
        probability, novelty = answers.probability, answers.novelty
        if self._watch is None or self.record is None or probability is None:
            return
        gate = self.record.calibration.gate
        if gate is not None and novelty is not None:
            probability = np.where(gate.outcome(novelty) == "pass", probability, np.nan)
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
            store(self._engine, {WATCH: to_stored(Watch, self._watch)})
        except StorageError as error:
            # No reason to fail a search that was answered; it is tried again later.
            warnings.warn(f"the drift that was seen is not stored: {error}", RuntimeWarning, 2)


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
