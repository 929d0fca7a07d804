"""How many queries a gallery can still answer when it has grown: a forecast from parts of itself.

The more labels, the more of them look alike, and the fewer queries can be answered at the same risk. How
fast that goes is read off the gallery: of nested random parts of its labels (an eighth, a quarter, a half,
all; several times over) each is taken for a gallery of its own, its items play the queries
(`surefind.gallery.calibration_queries`), and the coverage is measured,

    c = largest share of queries that can be a match with at most ``max_wrong`` of them wrong

by a probability that was fitted to a third of the queries, on the others. A straight line

    log(c / (1 - c)) = a + b log(labels)

is fitted by least squares and followed to the larger gallery. Its interval is the usual one of a line
(95 %, Student's t), so it tells how well the parts agree on a line, not whether the world will follow it:
labels to come may be more alike than those that are there.

Parts hold at most `MOST` items, so that a large gallery is forecast from smaller parts.

Axes: ``p`` parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from surefind.decisions.calibration import fit_split
from surefind.errors import DegenerateError
from surefind.gallery.calibrating import answer, queries_of_items
from surefind.gallery.engine import Engine
from surefind.gallery.label_fit import fit_labels, read_table
from surefind.gallery.memory import FaissEngine
from surefind.metrics.uncertainty import risk_coverage_curve

SHARES = (0.125, 0.25, 0.5, 1.0)
TIMES = 3
"""Random orders of the labels."""

MOST = 20_000
FEWEST = 20
"""Labels of the smallest part."""


@dataclass(frozen=True)
class Forecast:
    """What share of queries can be answered, now and later.

    Attributes:
        labels: Labels of each part (p), rising.
        coverage: Share of queries that can be a match in each part (p), the mean over the orders.
        growth: How many times the labels of now.
        now: Coverage with the labels of now, by the line.
        later: Coverage with ``growth`` times as many, by the line.
        interval: 95 % of the line there.
        max_wrong: Highest fraction of wrong answers among matches.
        unknown_share: Share of the queries that is unknown.
    """

    labels: tuple[int, ...]
    coverage: tuple[float, ...]
    growth: float
    now: float
    later: float
    interval: tuple[float, float]
    max_wrong: float
    unknown_share: float

    @property
    def summary(self) -> str:
        """The forecast in a sentence."""
        low, high = self.interval
        return (
            f"At {self.growth:g} times the labels, {self.later:.2f} of queries instead of {self.now:.2f} "
            f"can be answered with {self.max_wrong:.2%} wrong matches ({low:.2f} to {high:.2f}), if new "
            f"labels are like those that are there and {self.unknown_share:.0%} of the queries are unknown."
        )


def forecast(
    engine: Engine, growth: float, *, max_wrong: float, unknown_share: float, seed: int
) -> Forecast:
    """Measure coverage in parts of a gallery, and follow it to a larger one.

    Args:
        engine: The gallery's records.
        growth: How many times the labels of now.
        max_wrong: Highest fraction of wrong answers among matches.
        unknown_share: Share of the queries that is unknown.
        seed: Draws labels and items.

    Returns:
        The forecast.

    Raises:
        DegenerateError: If there are too few labels to make parts of.
    """
    table = read_table(engine)
    held = table.labels[table.labels >= 0]
    sizes = np.bincount(held) if len(held) else np.zeros(0, dtype=int)
    usual = min(1.0, MOST / max(len(held), 1)) * len(sizes)
    counts = [round(share * usual) for share in SHARES if round(share * usual) >= FEWEST]
    if len(counts) < 2:
        raise DegenerateError(
            f"a forecast needs {2 * FEWEST} labels to make parts of; the gallery has {len(sizes)}.",
            field="growth",
            hint="Add more labels, or wait until there are some.",
        )
    measured = []
    for time in range(TIMES):
        order = np.random.default_rng([seed, time]).permutation(len(sizes))
        for count in counts:
            rows = np.flatnonzero(np.isin(table.labels, order[:count]))
            part = FaissEngine("exact")
            part.put(engine.fetch([table.ids[row] for row in rows.tolist()]))
            measured.append((count, _coverage(part, max_wrong, unknown_share, seed + time)))
    return _followed(measured, len(sizes), growth, max_wrong, unknown_share)


def _coverage(part: Engine, max_wrong: float, unknown_share: float, seed: int) -> float:
    """Return the share of queries that can be a match in a part."""
    queries, hoods = queries_of_items(part, unknown_share, seed)
    asked = answer(part, queries, hoods, fit_labels(part)).answers
    every = np.ones(len(queries), dtype=bool)
    rng = np.random.default_rng(seed)
    split = fit_split(asked.signals, asked.right, asked.enrolled, every, rng=rng)
    curve = risk_coverage_curve(asked.right[split.held], -split.chance[split.held])
    return float(curve.coverage[curve.risk <= max_wrong].max(initial=0.0))


def _followed(
    measured: Sequence[tuple[int, float]],
    labels: int,
    growth: float,
    max_wrong: float,
    unknown_share: float,
) -> Forecast:
    """Fit a line to log-odds over log labels, and follow it."""
    from scipy.stats import t as student  # type: ignore[import-untyped]

    counts, coverage = (np.array(x, dtype=float) for x in zip(*measured, strict=True))
    x = np.log(counts)
    y = np.log(np.clip(coverage, 0.001, 0.999) / np.clip(1 - coverage, 0.001, 0.999))
    centre, spread = x.mean(), ((x - x.mean()) ** 2).sum()
    slope = ((x - centre) * y).sum() / spread
    level = y.mean()
    freedom = len(x) - 2
    error = np.sqrt(((y - level - slope * (x - centre)) ** 2).sum() / freedom)

    def line(at: float | int, deviations: float = 0.0) -> float:
        away = np.log(at) - centre
        width = error * np.sqrt(1 / len(x) + away**2 / spread)
        return float(1 / (1 + np.exp(-(level + slope * away + deviations * width))))

    wide = float(student.ppf(0.975, freedom))
    later = growth * labels
    parts = sorted(set(counts.astype(int).tolist()))
    return Forecast(
        labels=tuple(parts),
        coverage=tuple(float(coverage[counts == part].mean()) for part in parts),
        growth=growth,
        now=line(labels),
        later=line(later),
        interval=(line(later, -wide), line(later, wide)),
        max_wrong=max_wrong,
        unknown_share=unknown_share,
    )
