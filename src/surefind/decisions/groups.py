"""Calibration queries in two parts, and thresholds for groups of queries.

**Split.** A third of the queries, drawn at random, fits the probability and plans the thresholds (`risk`);
nothing is fitted to the other two thirds, so what they say of a threshold is independent of how it was
planned. Each query of the fitting part also has a probability by a fit that did not see it, from `FOLDS`
folds. Folds that take turns (cross-fitting) would test every query, but the model of one fold depends on
queries that another one tests, so their pooled counts are not binomial; we know no exact bound for them.
Of queries that a gate stopped, a third is set aside too: nothing is fitted to them, and the others count
among those that are tested, with a probability below every threshold.

**Groups.** A group whose own queries pass the fixed-sequence test gets its own threshold, with the same
guarantee for that group. A group whose wrong-match rate at the common threshold is significantly above
max_wrong (exact lower bound at ``confidence``) is *refused*: nothing in it is a match. All others use the
common threshold, whose guarantee holds on average over all queries and not for each group. Each guarantee
holds by itself with probability ``confidence``, not all of them together.

Groups are distinguished by their text, str(group). None is no group.

Axes: ``q`` queries of both parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.decisions.probability import FOLDS, MatchProbability, choose_strength, fit_probability
from surefind.decisions.risk import (
    RiskCurve,
    Strangers,
    least_accepted,
    lower_bound,
    plan_thresholds,
    walk_thresholds,
)
from surefind.decisions.signals import Signals
from surefind.errors import DegenerateError, InputError

FIT_FRACTION = 1 / 3
"""A small fit ranks nearly as well as a large one, while each tested query tightens the bound: with a half
instead of a third, the accepted fraction was smaller in every simulated world. Less than a third is better
where answers are wrong often, and worse where the few wrong ones must be learned from: in a simulated world
with 1 % promised of 1,300 queries, a third, a quarter and a fifth refused 17, 22 and 31 % of 200 runs."""


@dataclass(frozen=True, eq=False)
class Split:
    """A fitted probability and its values on both parts.

    Attributes:
        model: Fitted to the fitting part.
        strength: Of its penalties, see `choose_strength`.
        fit: Rows of the fitting part.
        held: Rows of the testing part.
        through: Which queries passed the gate (q).
        chance: Probability of each query (q), -∞ if a gate stopped it.
        unseen: The same by fits that did not see the query (q); of the fitting part only.
        right: Which answers are right (q).
        enrolled: Which queries have a label that is in the gallery (q).
    """

    model: MatchProbability
    strength: float
    fit: np.ndarray
    held: np.ndarray
    through: np.ndarray
    chance: np.ndarray
    unseen: np.ndarray
    right: np.ndarray
    enrolled: np.ndarray

    def curve(
        self,
        members: Bool[np.ndarray, " q"],
        *,
        max_wrong: float,
        confidence: float,
        max_fpir: float | None = None,
    ) -> RiskCurve:
        """Plan thresholds on the fitting part and test them on the other, of the members only."""
        own, test = self.fit[members[self.fit]], self.held[members[self.held]]
        target: dict[str, Any] = {"max_wrong": max_wrong, "confidence": confidence}
        if max_fpir is not None:
            fitted, tested = (rows[~self.enrolled[rows]] for rows in (own, test))
            target["strangers"] = Strangers(self.unseen[fitted], self.chance[tested], max_fpir)
        some = own[self.through[own]]
        trials = int(self.through[test].sum())
        plan = plan_thresholds(
            self.chance[some], self.unseen[some], self.right[some], trials=trials, **target
        )
        return walk_thresholds(plan, self.chance[test], self.right[test], **target)


def fit_split(
    signals: Signals,
    right: Bool[np.ndarray, " q"],
    enrolled: Bool[np.ndarray, " q"],
    through: Bool[np.ndarray, " q"],
    *,
    rng: np.random.Generator,
) -> Split:
    """Draw the parts and fit the probability to those of the fitting part that passed the gate."""
    (some, tested), (aside, stopped) = draw_parts(through, rng)
    fit, held = np.concatenate([some, aside]), np.concatenate([tested, stopped])
    unseen = np.full(len(signals), -np.inf)
    strength, unseen[some] = choose_strength(
        signals[some], right[some], np.arange(len(some)) % FOLDS
    )
    model = fit_probability(signals[some], right[some], strength=strength)
    chance = np.where(through, model(signals), -np.inf)
    return Split(model, strength, fit, held, through, chance, unseen, right, enrolled)


def draw_share(
    unknown: Bool[np.ndarray, " q"], share: float, rng: np.random.Generator
) -> Int[np.ndarray, " r"]:
    """Draw as many queries as can be had of which a given share is unknown.

    Dropping queries at random, with probabilities that depend on whether they are unknown and on nothing
    else, leaves independent draws from the mixture that is expected: what is then promised is promised for
    that mixture, exactly, if the unknown queries to come are like these.

    Args:
        unknown: Which queries are.
        share: The share to expect, from 0 to below 1.
        rng: Draws them.

    Returns:
        Their rows, rising.

    Raises:
        InputError: If the share is none.
        DegenerateError: If there are no queries of one kind that is expected.
    """
    if not 0 <= share < 1:
        raise InputError(
            f"unknown_share must lie from 0 to below 1; got {share!r}.", field="unknown_share"
        )
    strange, known = np.flatnonzero(unknown), np.flatnonzero(~unknown)
    if (share and not len(strange)) or not len(known):
        raise DegenerateError(
            f"a share of {share:.0%} unknown queries cannot be drawn from {len(strange)} unknown and "
            f"{len(known)} enrolled ones.",
            field="unknown_share",
            hint="Give queries of both kinds.",
        )
    total = min(len(known) / (1 - share), len(strange) / share if share else np.inf)
    drawn = (
        rng.permutation(rows)[: round(part * total)]
        for rows, part in ((strange, share), (known, 1 - share))
    )
    return np.sort(np.concatenate([*drawn]))


def draw_parts(
    through: Bool[np.ndarray, " q"], rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Draw rows to fit and rows to test with: of queries that passed the gate, and of the others."""
    passed, stopped = (
        np.array_split(rows, [int(FIT_FRACTION * len(rows))])
        for rows in (rng.permutation(np.flatnonzero(kind)) for kind in (through, ~through))
    )
    return passed, stopped


@dataclass(frozen=True)
class GroupThreshold:
    """The threshold of one group of queries.

    Attributes:
        name: The group.
        status: "own" (its own test passed), "common" (it uses the common threshold), or "refused".
        threshold: Least probability of a match; None: nothing is.
        queries: Queries of the group in the testing part that passed the gate.
        accepted: Those at or above the threshold that was looked at: its own, else the common one.
        wrong: Wrong answers among them.
    """

    name: str
    status: str
    threshold: float | None
    queries: int
    accepted: int
    wrong: int


def group_thresholds(
    names: np.ndarray,
    split: Split,
    common: float | None,
    *,
    max_wrong: float,
    confidence: float,
    max_fpir: float | None = None,
) -> list[GroupThreshold]:
    """Return the threshold of every group, sorted by name; ``names`` are those of `group_names`."""
    target = {"max_wrong": max_wrong, "confidence": confidence}
    thresholds = []
    for name in sorted({name for name in names if name is not None}):
        members = names == name
        test = split.held[(members & split.through)[split.held]]
        enough = (
            len(test) >= least_accepted(**target) and (members & split.through)[split.fit].any()
        )
        own = split.curve(members, max_fpir=max_fpir, **target) if enough else None
        thresholds.append(
            _group_threshold(name, own, common, split.chance[test], split.right[test], **target)
        )
    return thresholds


def _group_threshold(
    name: str,
    own: RiskCurve | None,
    common: float | None,
    chance: Float[np.ndarray, " n"],
    right: Bool[np.ndarray, " n"],
    *,
    max_wrong: float,
    confidence: float,
) -> GroupThreshold:
    """Choose between a group's own threshold, the common one and none; ``own`` None: too few queries."""
    if own is not None and own.chosen is not None:
        i = own.chosen
        return GroupThreshold(
            name, "own", own.thresholds[i], len(right), own.accepted[i], own.wrong[i]
        )
    taken = chance >= as_number(common)
    accepted, wrong = int(taken.sum()), int((taken & ~right).sum())
    refused = float(lower_bound(wrong, accepted, confidence)) > max_wrong
    status, threshold = ("refused", None) if refused else ("common", common)
    return GroupThreshold(name, status, threshold, len(right), accepted, wrong)


def group_names(groups: Sequence[Any] | None, length: int) -> np.ndarray:
    """Return the group of each query as text, None staying None; ``groups`` None: no query has one."""
    if groups is None:
        return np.full(length, None, dtype=object)
    if len(groups) != length:
        raise InputError(
            f"groups has {len(groups)} entries for {length} queries; give one each, or None.",
            field="groups",
        )
    return np.array([None if g is None else str(g) for g in groups] + [None], dtype=object)[:-1]


def as_number(threshold: float | None) -> float:
    """Return a threshold as a number: infinity where nothing is a match."""
    return float("inf") if threshold is None else threshold
