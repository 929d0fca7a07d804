"""Vectors in, decisions out: a label model with its calibration.

`Decider.fit` calibrates itself. Every item is answered by a model that was fitted without it, and plays one
role: half of them, drawn at random, play queries of their label, the others play unknown ones, answered
by a model without any item of their label. All items that did not play unknown are also answered without
their label, and the summary counts how many of these would be a match. Items of a label that has no other
are only counted so. The guarantee is about queries like the items, and about unknown ones like labels left
out; labelled queries from where the decider will be used are better (`Decider.calibrate`).

A label that comes later was tested by no query: its answers are a review at most until the next calibration
with queries of it.

What a decider knows is one immutable value that is replaced whole, so that a thread that decides while
another one adds items sees the old value or the new one.
"""

import copy
import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Int
from pydantic import PlainSerializer, PlainValidator

from surefind.checks import as_scores, as_vectors, label_values
from surefind.decisions.answers import Answers
from surefind.decisions.calibration import LEAST_QUERIES, UNKNOWN, Calibration, Target, calibrate
from surefind.errors import DegenerateError, InputError
from surefind.files import Array, from_stored, to_stored, write_atomically
from surefind.labels.audit import LabelAudit, audit_labels
from surefind.labels.left_out import LeftOut, joined
from surefind.labels.model import LabelModel

FROM_ITEMS = (
    "Items played the queries, each left out, a quarter with its label: the guarantee is about queries "
    "like them. Calibrate with labelled queries where unknown ones may look more like what is enrolled."
)

Model = Annotated[
    LabelModel,
    PlainValidator(lambda x: x if isinstance(x, LabelModel) else LabelModel.from_stored(x)),
    PlainSerializer(lambda model: model.to_stored(), return_type=dict),
]


@dataclass(frozen=True, eq=False)
class Queries:
    """Labelled queries that a calibration was made with."""

    vectors: Array
    truth: tuple[str | int | None, ...]
    groups: tuple[str | int | None, ...] | None
    kappa: Array | None


@dataclass(frozen=True, eq=False)
class State:
    """All that a decider has learned, as it is saved.

    Attributes:
        model: Of the items.
        calibration: None if there were too few items for one.
        missing: Why there is none.
        untested: Labels that came since.
        items: Content hashes of the items, sorted.
        queries: Those of the calibration; None if the items played them.
    """

    model: Model
    calibration: Calibration | None
    missing: str
    untested: tuple[str | int, ...]
    items: Array
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
        self._left_out: LeftOut | None = None

    def __repr__(self) -> str:
        items = "not fitted" if self._state is None else f"{len(self._state.items):,} items"
        return f"Decider(max_wrong={self.target.max_wrong:g}; {items})"

    @property
    def model(self) -> LabelModel:
        """The label model."""
        return self._learned.model

    @property
    def calibration(self) -> Calibration:
        """What was found; ``print(decider.calibration.summary)``."""
        state = self._learned
        if state.calibration is None:
            raise InputError(
                f"This Decider is not calibrated: {state.missing}",
                field="calibration",
                hint="Call calibrate() with labelled queries.",
            )
        return state.calibration

    def fit(
        self, vectors: Any, labels: Any, *, groups: Any = None, background: Any = None
    ) -> "Decider":
        """Fit the label model, and calibrate on the items themselves, each left out.

        Args:
            vectors: Of the items (n, d).
            labels: Theirs (n): strings or integers, None for an item without one, which is ignored.
            groups: What items were taken from together with others (n); these are left out together.
            background: A pair of vectors and labels that are not enrolled, but vary as these do.

        Returns:
            Itself.
        """
        given = as_vectors("vectors", vectors)
        model = LabelModel(seed=self.target.seed).fit(
            given, labels, groups=groups, background=background
        )
        left, calibration, missing = model.left_out(), None, ""
        try:
            calibration = calibrate_items(left, replace(self.target, unknown_share=None))
        except DegenerateError as error:
            missing = error.message
        self._state = State(model, calibration, missing, (), np.unique(hashes(given)))
        self._left_out = left
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
            queries: Vectors that are no items (q, d).
            truth: The label of each; None or -1 where nothing enrolled is right.
            unknown_share: The share of unknown queries to expect, where it is another one than among these.
            groups: The group of each query, for thresholds of their own.
            kappa: Concentration of each query, if it is known.

        Returns:
            Itself.

        Raises:
            InputError: If most queries are items of the decider.
        """
        state, given = self._learned, as_vectors("queries", queries)
        met = int(np.isin(hashes(given), state.items).sum())
        if 2 * met > len(given):
            raise InputError(
                f"{met:,} of the {len(given):,} queries are items of this decider: to find oneself teaches "
                "nothing.",
                field="queries",
                hint="Give queries that were not fitted; fit() has calibrated on the items already.",
            )
        names = [
            None if x in UNKNOWN else x for x in label_values("truth", truth, count=len(given))
        ]
        asked = Queries(
            given,
            tuple(names),
            None if groups is None else tuple(label_values("groups", groups, count=len(given))),
            None if kappa is None else as_scores("kappa", kappa, length=len(given)),
        )
        self.target = replace(self.target, unknown_share=unknown_share)
        made = self._calibrated(state, asked)
        if met:
            note = f"{met:,} of the queries are items of this decider, which find themselves."
            made = replace(made, notes=(*made.notes, note))
        self._state = replace(state, calibration=made, untested=(), queries=asked)
        return self

    def renew(self) -> "Decider":
        """Make the same guarantee for the items as they are now, with the queries of `calibrate`.

        Returns:
            Itself.

        Raises:
            InputError: If the items played the queries: vectors are not kept.
        """
        state, asked = self._learned, self._learned.queries
        if asked is None:
            raise InputError(
                "This Decider calibrated itself on its items, and vectors are not kept.",
                field="queries",
                hint="Call fit() again with all items, or calibrate() with labelled queries.",
            )
        made = self._calibrated(state, asked)
        made = replace(made, renewals=self.calibration.renewals + 1)
        untested = tuple(label for label in state.untested if label not in asked.truth)
        self._state = replace(state, calibration=made, untested=untested)
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
        calibration, state = self.calibration, self._learned
        return calibration.decide(
            state.model.posterior(queries, labels=labels),
            novelty=state.model.novelty(queries),
            kappa=kappa,
            groups=groups,
            untested=state.untested,
        )

    def add(self, vectors: Any, labels: Any) -> "Decider":
        """Enrol items; answers with a new label are a review until queries of it were calibrated with."""
        state, given = self._learned, as_vectors("vectors", vectors)
        model = copy.copy(state.model).add(given, labels)
        return self._changed(model, np.union1d(state.items, hashes(given)))

    def remove(self, vectors: Any, labels: Any) -> "Decider":
        """Remove items, given as they were enrolled."""
        state, given = self._learned, as_vectors("vectors", vectors)
        model = copy.copy(state.model).remove(given, labels)
        return self._changed(model, np.setdiff1d(state.items, hashes(given)))

    def audit(self, vectors: Any, labels: Any, *, groups: Any = None) -> LabelAudit:
        """Find items whose label is probably wrong (`surefind.labels.audit`)."""
        return audit_labels(vectors, labels, groups=groups, seed=self.target.seed)

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` reads; vectors of items are not in it."""
        stored = {"target": asdict(self.target), "state": to_stored(State, self._learned)}
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
    def _learned(self) -> State:
        if self._state is None:
            raise InputError("This Decider is not fitted. Call fit() with vectors and labels.")
        return self._state

    def _calibrated(self, state: State, asked: Queries) -> Calibration:
        left = None if asked.kappa is not None else self._left_out
        return calibrate(
            state.model.posterior(asked.vectors),
            asked.truth,
            enrolled=np.array([name in state.model.counts for name in asked.truth]),
            novelty=state.model.novelty(asked.vectors),
            kappa=asked.kappa,
            groups=asked.groups,
            left_out=None if left is None else left.unknown,
            left_out_novelty=None if left is None else left.unknown_novelty,
            **asdict(self.target),
        )

    def _changed(self, model: LabelModel, items: np.ndarray) -> "Decider":
        state, calibration = self._learned, self._learned.calibration
        new = {*model.counts} - {*state.model.counts} | {*state.untested}
        self._state = replace(
            state,
            model=model,
            items=items,
            untested=tuple(label for label in model.counts if label in new),
            calibration=None if calibration is None else replace(calibration, stale=True),
        )
        self._left_out = None
        return self


def hashes(vectors: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return a content hash of each vector, in float32."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    digests = b"".join(hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
    return np.frombuffer(digests, dtype=np.int64)


def calibrate_items(
    left: LeftOut, target: Target, *, novelty: Any = None, kappa: Any = None
) -> Calibration:
    """Calibrate on the items of a label model, each left out and in one role.

    Args:
        left: What the model says of its items.
        target: What to guarantee.
        novelty: p-values that left-out items have of their own (r), in place of the model's.
        kappa: Their concentrations (r), if they have some.

    Returns:
        The calibration.

    Raises:
        DegenerateError: If there are too few items.
    """
    order = np.random.default_rng(target.seed).permutation(np.flatnonzero(left.enrolled))
    if len(order) < LEAST_QUERIES:
        raise DegenerateError(
            f"only {len(order)} items have a label that others have too, and it takes {LEAST_QUERIES}.",
            field="labels",
            hint="Give more items a label, or calibrate with labelled queries.",
        )
    p_known, p_unknown = (left.novelty, left.unknown_novelty) if novelty is None else [novelty] * 2
    own: dict[str, Any] = {
        "enrolled": np.ones(len(order), dtype=bool),
        "novelty": p_known[order],
        "kappa": None if kappa is None else kappa[order],
    }
    posterior, truth = left.known[order], left.truth[order].tolist()
    if left.unknown is not None:
        count = len(order) // 2
        unknown, known = order[:count], order[count:]
        others = np.setdiff1d(np.arange(len(left.rows)), unknown)
        posterior = joined([left.unknown[unknown], left.known[known]])
        truth[:count] = [None] * count
        own["enrolled"][:count] = False
        own["novelty"][:count] = p_unknown[unknown]
        own |= {"left_out": left.unknown[others], "left_out_novelty": p_unknown[others]}
        own["left_out_kappa"] = None if kappa is None else kappa[others]
    return calibrate(posterior, truth, notes=(FROM_ITEMS,), **own, **asdict(target))
