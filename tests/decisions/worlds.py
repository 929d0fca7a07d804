"""Queries from known distributions, and calibrations of them in bulk."""

from dataclasses import dataclass

import numpy as np

from surefind.decisions import Signals, calibrate

SIGNS = np.array([1, -1, 1, -1])


def of_four(log_kappa, distance, margin, density):
    """Signals of queries whose neighbourhood says nothing beyond distances: no consensus, no evidence."""
    nothing = np.zeros(len(log_kappa))
    return Signals(nothing, nothing, log_kappa, distance, margin, density)


def shifted(n, rng, shifts):
    """Right answers (80 %) are better by `shifts` standard deviations in the four signals."""
    right = rng.random(n) < 0.8
    columns = rng.normal(size=(n, 4)) + right[:, None] * SIGNS * np.array(shifts)
    return of_four(*columns.T), right


def everything_useful(n, rng):
    return shifted(n, rng, (0.7, 1.5, 1.0, 0.8))


def kappa_useless(n, rng):
    return shifted(n, rng, (0, 1.5, 1.0, 0.8))


def only_kappa(n, rng):
    return shifted(n, rng, (1.5, 0, 0, 0))


def misleading_kappa(n, rng):
    """κ is *higher* where the answer is wrong, and density repeats distance."""
    right = rng.random(n) < 0.7
    distance = rng.normal(size=n) - 2 * right
    density = distance + 0.5 * rng.normal(size=n)
    return of_four(rng.normal(size=n) - 0.5 * right, distance, rng.normal(size=n), density), right


def step(n, rng):
    """Up to a distance nearly all is right, beyond it nearly nothing."""
    distance = rng.exponential(size=n)
    right = rng.random(n) < np.where(distance < 1.2, 0.99, 0.05)
    other = rng.normal(size=(3, n))
    return of_four(other[0], distance, other[1], other[2]), right


def two_ways_to_be_wrong(n, rng):
    """Unknown queries are far from everything, confused ones have a small margin."""
    signals, right, _ = faces(n, rng)
    return signals, right


def faces(n, rng):
    kind = rng.choice(3, size=n, p=[0.75, 0.15, 0.1])  # right, unknown, confused
    distance = np.array([0.4, 0.9, 0.45])[kind] + 0.12 * rng.normal(size=n)
    margin = np.abs(np.array([0.35, 0.08, 0.06])[kind] + 0.12 * rng.normal(size=n))
    log_kappa = 5 + 0.5 * rng.normal(size=n) + 0.3 * (kind == 0)
    density = distance + 0.1 * np.abs(rng.normal(size=n))
    consensus = 20 * margin + rng.normal(size=n)
    evidence = 10 * (0.65 - distance) + rng.normal(size=n)
    signals = Signals(consensus, evidence, log_kappa, distance, margin, density)
    return signals, kind == 0, kind != 1


WORLDS = [
    everything_useful,
    kappa_useless,
    only_kappa,
    misleading_kappa,
    step,
    two_ways_to_be_wrong,
]


@dataclass(frozen=True)
class Simulated:
    """How calibrations kept their promise: shares of all, and means over those that reached the target."""

    exceeded: float
    reached: float
    coverage: float
    wrong_rate: float


def simulate_calibrations(world, *, runs, queries, max_wrong, confidence=0.95, population=5000):
    """Calibrate again and again on independent draws from one finite population.

    The population *is* the distribution, so the true wrong-match rate is a count, not an estimate.
    """
    everyone, right = world(population, np.random.default_rng(0))
    outcomes = []
    for seed in range(runs):
        rng = np.random.default_rng([1, seed])
        drawn = rng.integers(population, size=queries)
        calibration = calibrate(
            everyone[drawn],
            right[drawn],
            enrolled=np.ones(queries, dtype=bool),
            max_wrong=max_wrong,
            confidence=confidence,
            contributions=False,
            rng=rng,
        )
        threshold = np.inf if calibration.threshold is None else calibration.threshold
        match = calibration.probability(everyone) >= threshold
        outcomes.append((match.mean(), (~right[match]).mean() if match.any() else 0.0))
    coverage, rate = np.array(outcomes).T
    reached = coverage > 0
    return Simulated(
        exceeded=float((rate > max_wrong).mean()),
        reached=float(reached.mean()),
        coverage=float(coverage[reached].mean()),
        wrong_rate=float(rate[reached].mean()),
    )
