"""What each signal adds to the probability, on queries that the fit did not see.

Five folds; every query is scored by a fit to the other four. For each signal three things are measured:
how well it does alone, and how much worse the rest does without it.

    AUROC     P(right answer scores above a wrong one) + ½ P(equal)            ½: says nothing
    log loss  mean of -log p(what happened)                                    smaller is better
    gain      log loss without the signal - log loss with all

A signal *adds something* if its gain is above 1.645 of its standard errors (paired, one-sided 5 %) and
above 0.0001, because fits that differ by rounding only can differ all the same way.
At most 2,000 queries, drawn at random, are used: the figures are for a report and decide nothing.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from surefind.decisions.probability import BEYOND_CHANCE, cross_fitted, log_losses
from surefind.decisions.signals import Signals
from surefind.metrics import auroc

FOLDS = 5
LEAST_GAIN = 1e-4
MOST_QUERIES = 2000


@dataclass(frozen=True)
class Contribution:
    """What one signal adds.

    Attributes:
        name: The signal.
        alone_auroc: AUROC of the signal itself, better values ranked higher; nothing is fitted.
        alone_log_loss: Log loss of a probability from this signal only.
        without_auroc: AUROC of the probability from the other signals.
        without_log_loss: Its log loss.
        gain: How much the log loss rises without the signal.
        gain_error: Standard error of the gain.
    """

    name: str
    alone_auroc: float
    alone_log_loss: float
    without_auroc: float
    without_log_loss: float
    gain: float
    gain_error: float

    @property
    def adds(self) -> bool:
        """Whether the gain is more than chance would give."""
        return self.gain > max(BEYOND_CHANCE * self.gain_error, LEAST_GAIN)


@dataclass(frozen=True)
class Contributions:
    """What all signals give together, and each one of them.

    Attributes:
        auroc: AUROC of the probability from all signals.
        log_loss: Its log loss.
        signals: One entry a signal.
    """

    auroc: float
    log_loss: float
    signals: tuple[Contribution, ...]

    @property
    def sentence(self) -> str:
        """Say what adds something and what does not."""
        text = f"All signals together reach an AUROC of {self.auroc:.3f}"
        best = max(self.signals, key=lambda signal: signal.alone_auroc)
        text += f"; the best alone is {best.name} with {best.alone_auroc:.3f}."
        useful = [signal.name for signal in self.signals if signal.adds]
        if useful:
            text += f" Beside the others, {', '.join(useful)} {'add' if useful[1:] else 'adds'}."
        if "log_kappa" not in useful:
            text += " κ adds nothing beside the other signals on these queries."
        return text


def measure_contributions(
    signals: Signals,
    right: Bool[np.ndarray, " q"],
    *,
    strength: float = 1.0,
    rng: np.random.Generator,
) -> Contributions:
    """Measure what each signal adds.

    Args:
        signals: Signals of the queries.
        right: Whether each top answer is right; both occur.
        strength: Of the penalties, see `probability`.
        rng: Draws the queries and the folds.

    Returns:
        The figures.
    """
    chosen = rng.permutation(len(right))[:MOST_QUERIES]
    if right[chosen].all() or not right[chosen].any():
        chosen = np.arange(len(right))
    signals, right = signals[chosen], right[chosen]
    folds = np.arange(len(right)) % FOLDS
    chance = cross_fitted(signals, right, folds, strength=strength)
    loss = log_losses(chance, right)
    found = []
    for name, raw in zip(signals.names, signals.oriented().T, strict=True):
        others = [s for s in signals.names if s != name]
        alone = cross_fitted(signals, right, folds, use=[name], strength=strength)
        rest = cross_fitted(signals, right, folds, use=others, strength=strength)
        rise = log_losses(rest, right) - loss
        found.append(
            Contribution(
                name=name,
                alone_auroc=auroc(-raw[right], -raw[~right]),
                alone_log_loss=float(log_losses(alone, right).mean()),
                without_auroc=auroc(-rest[right], -rest[~right]),
                without_log_loss=float(log_losses(rest, right).mean()),
                gain=float(rise.mean()),
                gain_error=float(rise.std() / np.sqrt(len(rise))),
            )
        )
    return Contributions(auroc(-chance[right], -chance[~right]), float(loss.mean()), tuple(found))
