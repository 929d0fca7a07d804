"""Vectors in, decisions out: a label model with its calibration.

`Learned` is what a `Decider` and a gallery know: an immutable value that is replaced whole, so that a
thread that decides while another one adds items sees the old value or the new one. Both ask it the same,
and answer equally.

**Items play the queries** where there are no others. Every item is answered by a model that was fitted
without it, its group and its copies, and plays one role: half of them, drawn at random, play unknown
queries, answered by a model without any item of their label, the others play queries of their label. All
items that did not play unknown are also answered without their label, and the summary counts how many of
these would be a match. Items of a label that has no other are only counted so. The guarantee is about
queries like the items, and about unknown ones like labels left out; labelled queries from where decisions
will be made are better.

**Labelled queries** were held out from the items. One that is an item after all, by its id or because its
vector is the same, is left out, and more than half of such queries are refused: what was enrolled says
nothing about inputs to come. Unknown queries are always tested by items whose label is left out too, beside
what the queries say.

**A label that comes later** was tested by no query: its answers are a review at most. A renewal asks the
same queries again and tests it with those of its label, and with items of it that were left out: as many as
an average label of the queries has. It counts as tested from `LEAST` on.

κ and novelty: with those of the queries' own the calibration counts, if items have them too; the label
model has a novelty for whoever has none.

Axes: ``q`` queries, ``d`` features, ``r`` left-out items.
"""

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Int
from pydantic import Field, PlainSerializer, PlainValidator

from surefind.checks import as_scores, as_vectors, label_values
from surefind.decisions.answers import Answers, Columns
from surefind.decisions.calibration import (
    LEAST_QUERIES,
    UNKNOWN,
    Calibration,
    Evidence,
    Target,
    calibrate,
)
from surefind.decisions.decision import read_novelty
from surefind.errors import DegenerateError, InputError
from surefind.files import Array, content_hashes, from_stored, to_stored, write_atomically
from surefind.labels.audit import LabelAudit, audit_labels
from surefind.labels.left_out import LeftOut
from surefind.labels.model import LabelModel

LEAST = 5
"""Queries that test a label."""

FROM_ITEMS = (
    "Items played the queries, each left out, half of them with their label: the guarantee is about such "
    "queries. Calibrate with labelled queries where unknown ones may look more like what is enrolled."
)

Model = Annotated[
    LabelModel,
    PlainValidator(lambda x: x if isinstance(x, LabelModel) else LabelModel.from_stored(x)),
    PlainSerializer(lambda model: model.to_stored(), return_type=dict),
]


@dataclass(frozen=True, eq=False)
class Queries(Columns):
    """Labelled queries.

    Attributes:
        vectors: Their vectors (q, d).
        truth: Their labels (q), None for a query of which only is known that it was not enrolled.
        groups: For thresholds of their own (q), or None.
        ids: Of the items that they would be (q), or None.
        live: Which are reviewed live queries, a random share of all (q).
        kappa: Concentrations (q); None if there are none.
        novelty: p-values (q); None if there are none.
    """

    vectors: Array
    truth: Array
    groups: Array
    ids: Array
    live: Array
    kappa: Array | None
    novelty: Array | None

    @classmethod
    def read(
        cls,
        vectors: np.ndarray,
        truth: Any,
        enrolled: Collection[Any],
        *,
        groups: Any = None,
        ids: Any = None,
        live: bool = False,
        kappa: np.ndarray | None = None,
        novelty: np.ndarray | None = None,
    ) -> "Queries":
        """Read what the caller says of queries; vectors, κ and novelty were read.

        Args:
            vectors: As the attribute.
            truth: As the attribute; -1 is None.
            enrolled: Labels that items have, and the truth of at least one query, if any has one.
            groups: As the attribute.
            ids: As the attribute.
            live: Whether all are reviewed live ones.
            kappa: As the attribute.
            novelty: As the attribute.

        Returns:
            The queries.

        Raises:
            InputError: If none of the labels is enrolled.
        """
        count, given = len(vectors), {"truth": truth, "groups": groups, "ids": ids}
        names, *others = (
            label_values(name, [None] * count if x is None else x, count=count)
            for name, x in given.items()
        )
        names = [None if x in UNKNOWN else x for x in names]
        named = {*names} - {None}
        if named and not named & {*enrolled}:
            raise InputError(
                f"none of the {len(named)} labels is enrolled, such as {min(named, key=str)!r}.",
                field="truth",
                hint="Give labels as the items have them (1 and '1' differ), None for unknown queries.",
            )
        truth, groups, ids = (np.array([*x, None], dtype=object)[:-1] for x in (names, *others))
        return cls(vectors, truth, groups, ids, np.full(count, live), kappa, novelty)

    def without(self, items: Int[np.ndarray, " n"], ids: Collection[Any]) -> "Queries":
        """Leave out those that are items, by the hash of the vector or the id; most may not be."""
        own = (id_ is not None and id_ in ids for id_ in self.ids)
        met = np.isin(hashes(self.vectors), items) | np.fromiter(own, bool, len(self))
        if 2 * met.sum() > len(met):
            raise InputError(
                f"{met.sum():,} of the {len(met):,} queries are items: to find oneself teaches nothing.",
                field="queries",
                hint="Give queries that are not enrolled; or none, and items are asked without themselves.",
            )
        return self[~met]


@dataclass(frozen=True, eq=False)
class Learned:
    """A label model and its calibration; what changes one returns another value.

    Attributes:
        model: Of the items.
        calibration: None before the first.
        own_novelty: Whether queries must have a novelty of their own; the model's is used otherwise.
        fresh: Whether no item has come or gone since the model was fitted.
        left_out: What the model said then of the items, each left out; None if it was stored.
        kappa: Concentrations of these (r); None if they have none.
        novelty: Their own p-values (r); None if not all have one.
    """

    model: Model
    calibration: Calibration | None = None
    own_novelty: bool = False
    fresh: Annotated[bool, Field(exclude=True)] = False
    left_out: Annotated[Any, Field(exclude=True)] = None
    kappa: Annotated[Any, Field(exclude=True)] = None
    novelty: Annotated[Any, Field(exclude=True)] = None

    @classmethod
    def fit(
        cls,
        vectors: Any,
        labels: Any,
        *,
        groups: Any = None,
        background: Any = None,
        kappa: Any = None,
        novelty: Any = None,
        seed: int = 0,
    ) -> "Learned":
        """Fit the label model to items; those without a label are left aside."""
        model = LabelModel(seed=seed).fit(vectors, labels, groups=groups, background=background)
        left = model.left_out()
        own = None if novelty is None else novelty[left.rows]
        return cls(
            model,
            fresh=True,
            left_out=left,
            kappa=None if kappa is None else kappa[left.rows],
            novelty=None if own is None or np.isnan(own).any() else own,
        )

    def changed(self, change: Literal["add", "remove"], vectors: Any, labels: Any) -> "Learned":
        """Add items, or remove them as they were added; the calibration is stale then."""
        model = getattr(copy.copy(self.model), change)(vectors, labels)
        made = self.calibration and replace(self.calibration, stale=True)
        return replace(self, model=model, calibration=made, fresh=False)

    def calibrated(
        self,
        queries: Queries | None,
        target: Target,
        items: Any = (),
        ids: Collection[Any] = (),
        *,
        before: Calibration | None = None,
        trained: Any = None,
    ) -> "Learned":
        """Calibrate.

        Args:
            queries: Held-out ones; None: the items play them.
            target: What to guarantee.
            items: Hashes of the items' vectors.
            ids: Those of the items.
            before: The calibration that is renewed.
            trained: Which items the network that embeds was trained on; they play no queries.

        Returns:
            The same model with the calibration.

        Raises:
            DegenerateError: If there are too few queries or items.
        """
        new = None if before is None else {*self.model.labels}.difference(before.labels or ())
        if queries is None:
            given = self._items(target.seed, trained)
        else:
            given = self._asked(queries, queries.without(items, ids), new or set())
        made = calibrate(**given, **asdict(target))
        labels = self.model.labels
        if before is not None and new is not None:
            asked = Counter(given["truth"])
            labels = tuple(x for x in labels if x not in new or asked[x] >= LEAST)
            made = replace(made, renewals=before.renewals + 1)
        own = self.novelty if queries is None else queries.novelty
        return replace(self, calibration=replace(made, labels=labels), own_novelty=own is not None)

    def decide(
        self,
        vectors: Any,
        *,
        labels: Any = None,
        novelty: Any = None,
        kappa: Any = None,
        groups: Any = None,
    ) -> Answers:
        """Answer queries, and decide if there is a calibration."""
        posterior, made = self.model.posterior(vectors, labels=labels), self.calibration
        if made is not None and self.own_novelty:
            novelty = read_novelty(novelty, len(posterior))
        if novelty is None or (made is not None and not self.own_novelty):
            novelty = self.model.novelty(vectors)
        if made is None:
            return Answers.of(posterior, novelty=novelty, kappa=kappa)
        return made.decide(posterior, novelty=novelty, kappa=kappa, groups=groups)

    def _left_out(self, left: LeftOut, own: bool) -> tuple[Evidence, Evidence | None]:
        """Return what is known of items without themselves, and without their label; by own novelty?"""
        p, strange = (self.novelty, self.novelty) if own else (left.novelty, left.unknown_novelty)
        unknown = None if left.unknown is None else Evidence(left.unknown, strange, self.kappa)
        return Evidence(left.known, p, self.kappa), unknown

    def _items(self, seed: int, trained: Any = None) -> dict[str, Any]:
        """Return what `calibrate` is given where left-out items play the queries."""
        left = self.left_out if self.fresh else self.model.left_out()
        seen = np.zeros(len(left), dtype=bool) if trained is None else trained[left.rows]
        order = np.flatnonzero(left.enrolled & ~seen)
        order = np.random.default_rng(seed).permutation(order)
        met = ""
        if seen.any():
            met = f"{seen.sum():,} items that the network was trained on played no queries."
        if len(order) < LEAST_QUERIES:
            raise DegenerateError(
                f"only {len(order)} items have a label that others have too, and it takes {LEAST_QUERIES}. "
                f"{met}".strip(),
                field="labels",
                hint="Give more items a label, or calibrate with labelled queries.",
            )
        usual, strange = self._left_out(left, self.novelty is not None)
        truth, enrolled = left.truth[order].tolist(), np.ones(len(order), dtype=bool)
        asked, others = usual[order], None
        if strange is not None:
            count = len(order) // 2
            asked = Evidence.concatenate([strange[order[:count]], asked[count:]])
            truth[:count] = [None] * count
            enrolled[:count] = False
            others = strange[np.setdiff1d(np.flatnonzero(~seen), order[:count])]
        notes = (FROM_ITEMS, met) if met else (FROM_ITEMS,)
        known = {"enrolled": enrolled, "left_out": others, "notes": notes}
        return {**vars(asked), "truth": truth, **known}

    def _asked(self, given: Queries, queries: Queries, new: set[Any]) -> dict[str, Any]:
        """Return what `calibrate` is given of held-out queries, and of items that test new labels."""
        model, left, own = self.model, self.left_out, queries.novelty
        novelty = model.novelty(queries.vectors) if own is None else own
        asked = Evidence(model.posterior(queries.vectors), novelty, queries.kappa)
        truth, groups, others, rows = queries.truth, queries.groups, None, []
        if left is not None and (own is None or self.novelty is not None):
            usual, others = self._left_out(left, own is not None)
            rows = _testing(left, truth, new)
        if rows:
            asked = Evidence.concatenate([asked, usual[rows]])
            truth = np.append(truth, left.truth[rows])
            groups = np.append(groups, [None] * len(rows))
        counted = model.counts
        enrolled = np.array([label in counted for label in truth])
        live = int(queries.live.sum())
        met, rest = len(given) - len(queries), len(queries) - live
        absent = sum(label is not None and label not in counted for label in queries.truth)
        others_too = (
            f"; the other {rest:,} were held out, and the guarantee is about live queries if those are "
            "like them"
        )
        said = {
            f"{met:,} of the queries are items, and were left out.": met,
            f"{live:,} of the queries are a random share of live ones that people reviewed"
            f"{others_too * bool(rest)}.": live,
            f"{absent:,} of the queries have labels that are not enrolled, and count as unknown.": absent,
            f"{len(rows):,} items of labels that are new since the calibration played queries too, each "
            "answered without itself.": rows,
        }
        return {
            **vars(asked),
            "truth": truth.tolist(),
            "groups": None if all(name is None for name in groups) else groups,
            "enrolled": enrolled,
            "left_out": others,
            "notes": [sentence for sentence, holds in said.items() if holds],
        }


def _testing(left: LeftOut, truth: np.ndarray, new: set[Any]) -> list[int]:
    """Return which left-out items test new labels: of each as many as other labels have queries."""
    named = [label for label in truth if label is not None and label not in new]
    most = max(LEAST, round(len(named) / max(len({*named}), 1)))
    of_label: dict[Any, list[int]] = defaultdict(list)
    for row in np.flatnonzero(left.enrolled).tolist() if new else ():
        if left.truth[row] in new:
            of_label[left.truth[row]].append(row)
    return [row for rows in of_label.values() if len(rows) >= LEAST for row in rows[:most]]


@dataclass(frozen=True, eq=False)
class State:
    """All that a decider has learned, as it is saved.

    Attributes:
        learned: The label model and its calibration.
        items: Content hashes of the items, sorted.
        missing: Why there is no calibration.
        queries: Those of the calibration; None if the items played them.
    """

    learned: Learned
    items: Array
    missing: str = ""
    queries: Queries | None = None


class Decider:
    """Match, review or no match for vectors of any model.

    Args:
        max_wrong: Highest fraction of wrong answers among matches.
        max_fpir: Highest share of unknown queries that may be a match; None to guarantee nothing about it.
        confidence: With what probability both are kept.
        max_false_alarms: Highest fraction of inputs like the items that the novelty gate stops.
        seed: Random seed.

    Examples:
        >>> import surefind as sf
        >>> decider = sf.Decider(max_wrong=0.05).fit(vectors, labels)  # doctest: +SKIP
        >>> answers = decider.decide(queries)  # doctest: +SKIP
    """

    def __init__(
        self,
        max_wrong: float = 0.01,
        *,
        max_fpir: float | None = None,
        confidence: float = 0.95,
        max_false_alarms: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.target = Target(max_wrong, max_fpir, confidence, max_false_alarms, seed=seed)
        self._state: State | None = None

    def __repr__(self) -> str:
        items = "not fitted" if self._state is None else f"{len(self._state.items):,} items"
        return f"Decider(max_wrong={self.target.max_wrong:g}; {items})"

    @property
    def model(self) -> LabelModel:
        """The label model."""
        return self._now.learned.model

    @property
    def calibration(self) -> Calibration:
        """What was found; ``print(decider.calibration.summary)``."""
        return self._calibrated.learned.calibration  # type: ignore[return-value]

    def fit(
        self,
        vectors: Any,
        labels: Any,
        *,
        groups: Any = None,
        background: Any = None,
        kappa: Any = None,
    ) -> "Decider":
        """Fit the label model, and calibrate on the items themselves, each left out.

        Args:
            vectors: Of the items (n, d).
            labels: Theirs (n): strings or integers, None for an item without one, which is ignored.
            groups: What items were taken from together with others (n); these are left out together.
            background: A pair of vectors and labels that are not enrolled, but vary as these do.
            kappa: Concentration of each item (n), if it is known.

        Returns:
            Itself.
        """
        given = as_vectors("vectors", vectors)
        beside = {"groups": groups, "background": background, "seed": self.target.seed}
        known = None if kappa is None else as_scores("kappa", kappa, length=len(given))
        learned, missing = Learned.fit(given, labels, kappa=known, **beside), ""
        try:
            learned = learned.calibrated(None, replace(self.target, unknown_share=None))
        except DegenerateError as error:
            missing = error.message
        self._state = State(learned, np.unique(hashes(given)), missing)
        return self

    def calibrate(
        self,
        queries: Any,
        truth: Any,
        *,
        unknown_share: float | None = None,
        groups: Any = None,
        kappa: Any = None,
    ) -> "Decider":
        """Calibrate the match threshold on labelled queries.

        Args:
            queries: Vectors that are no items (q, d); those that are items are left out.
            truth: The label of each; None or -1 where nothing enrolled is right.
            unknown_share: The share of unknown queries to expect, where it is another one than among these.
            groups: The group of each query, for thresholds of their own.
            kappa: Concentration of each query, if it is known; it counts if the items have one too.

        Returns:
            Itself.

        Raises:
            InputError: If most queries are items of the decider.
        """
        state, given = self._now, as_vectors("queries", queries)
        known = None if kappa is None else as_scores("kappa", kappa, length=len(given))
        asked = Queries.read(given, truth, self.model.labels, kappa=known, groups=groups)
        target = replace(self.target, unknown_share=unknown_share)
        learned = state.learned.calibrated(asked, target, state.items)
        self.target, self._state = target, replace(state, learned=learned, queries=asked)
        return self

    def renew(self) -> "Decider":
        """Make the same guarantee for the items as they are now, with the queries of `calibrate`.

        Returns:
            Itself.

        Raises:
            InputError: If the items played the queries: vectors are not kept.
        """
        state = self._now
        if state.queries is None:
            raise InputError(
                "This Decider calibrated itself on its items, and vectors are not kept.",
                field="queries",
                hint="Call fit() again with all items, or calibrate() with labelled queries.",
            )
        asked, before = state.queries, self.calibration
        learned = state.learned.calibrated(asked, self.target, state.items, before=before)
        self._state = replace(state, learned=learned)
        return self

    def decide(
        self, queries: Any, *, labels: Any = None, groups: Any = None, kappa: Any = None
    ) -> Answers:
        """Say which label each query has, how probable that is, and whether it is a match.

        Args:
            queries: Vectors (q, d).
            labels: Names of the only labels that are possible; None for all.
            groups: The group of each query.
            kappa: Concentration of each query, if those of `calibrate` had one.

        Returns:
            The answers.
        """
        learned = self._calibrated.learned
        return learned.decide(queries, labels=labels, kappa=kappa, groups=groups)

    def add(self, vectors: Any, labels: Any) -> "Decider":
        """Enrol items; answers with a new label are a review until queries of it were calibrated with."""
        return self._changed("add", vectors, labels)

    def remove(self, vectors: Any, labels: Any) -> "Decider":
        """Remove items, given as they were enrolled."""
        return self._changed("remove", vectors, labels)

    def audit(self, vectors: Any, labels: Any, *, groups: Any = None) -> LabelAudit:
        """Find items whose label is probably wrong (`surefind.labels.audit`)."""
        return audit_labels(vectors, labels, groups=groups, seed=self.target.seed)

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` reads; vectors of items are not in it."""
        stored = {"target": asdict(self.target), "state": to_stored(State, self._now)}
        write_atomically(path, json.dumps(stored) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> "Decider":
        """Read what `save` wrote.

        Args:
            path: The file.

        Returns:
            A decider that answers equally.

        Raises:
            InputError: If it is no such file, or was changed.
        """
        try:
            stored = json.loads(Path(path).read_text(encoding="utf-8"))
            made, state = cls(), stored["state"]
            made.target = Target(**stored["target"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} cannot be read: {error}.", field="path") from error
        made._state = from_stored(State, state, f"the decider in {path}")
        return made

    @property
    def _now(self) -> State:
        if self._state is None:
            raise InputError("This Decider is not fitted. Call fit() with vectors and labels.")
        return self._state

    @property
    def _calibrated(self) -> State:
        state = self._now
        if state.learned.calibration is None:
            raise InputError(
                f"This Decider is not calibrated: {state.missing}",
                field="calibration",
                hint="Call calibrate() with labelled queries.",
            )
        return state

    def _changed(self, change: Literal["add", "remove"], vectors: Any, labels: Any) -> "Decider":
        state, given = self._now, as_vectors("vectors", vectors)
        items = (np.union1d if change == "add" else np.setdiff1d)(state.items, hashes(given))
        learned = state.learned.changed(change, given, labels)
        self._state = replace(state, learned=learned, items=items)
        return self


def hashes(vectors: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return a hash of each vector's direction to three decimals: rescaling rounds otherwise each time."""
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    return content_hashes(x.tobytes() for x in np.rint(1000 * (vectors / lengths)).astype(np.int16))
