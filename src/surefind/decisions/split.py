"""Calibration queries in two parts: one to fit and plan, one to test.

A third, drawn at random, fits the probability and plans the thresholds (`risk`); nothing is fitted to the
other two thirds, so what they say of a threshold is independent of how it was planned. Of the fitting part
each query also has a probability by a fit that did not see it, from `FOLDS` folds.

Axes: ``q`` queries of both parts.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from surefind.decisions.contributions import FOLDS
from surefind.decisions.probability import MatchProbability, choose_strength, fit_probability
from surefind.decisions.risk import RiskCurve, plan_thresholds, walk_thresholds
from surefind.decisions.signals import Signals

FIT_SHARE = 1 / 3
"""A small fit ranks nearly as well as a large one, while each tested query tightens the bound: with a half
instead of a third, the accepted share was smaller in every simulated world."""


@dataclass(frozen=True, eq=False)
class Split:
    """A fitted probability, and what it says of both parts.

    Attributes:
        model: Fitted to the fitting part.
        strength: Of its penalties, see `choose_strength`.
        fit: Rows of the fitting part.
        held: Rows of the testing part.
        chance: Probability of each query (q).
        unseen: The same by fits that did not see the query (q); of the fitting part only.
        right: Which answers are right (q).
    """

    model: MatchProbability
    strength: float
    fit: np.ndarray
    held: np.ndarray
    chance: np.ndarray
    unseen: np.ndarray
    right: np.ndarray

    def curve(
        self, members: Bool[np.ndarray, " q"], *, max_wrong: float, confidence: float
    ) -> RiskCurve:
        """Plan thresholds on the fitting part and test them on the other.

        Args:
            members: Which queries count.
            max_wrong: Highest wrong-match rate allowed.
            confidence: With what probability.

        Returns:
            The curve with the chosen threshold.
        """
        target = {"max_wrong": max_wrong, "confidence": confidence}
        own, test = self.fit[members[self.fit]], self.held[members[self.held]]
        plan = plan_thresholds(
            self.chance[own], self.unseen[own], self.right[own], trials=len(test), **target
        )
        return walk_thresholds(plan, self.chance[test], self.right[test], **target)


def fit_split(
    signals: Signals, right: Bool[np.ndarray, " q"], *, rng: np.random.Generator
) -> Split:
    """Draw the parts and fit the probability.

    Args:
        signals: Signals of the calibration queries.
        right: Which answers are right.
        rng: Draws the parts.

    Returns:
        The split.
    """
    fit, held = np.array_split(rng.permutation(len(signals)), [int(FIT_SHARE * len(signals))])
    unseen = np.full(len(signals), np.nan)
    strength, unseen[fit] = choose_strength(signals[fit], right[fit], np.arange(len(fit)) % FOLDS)
    model = fit_probability(signals[fit], right[fit], strength=strength)
    return Split(model, strength, fit, held, model(signals), unseen, right)
