"""Means over seeds, which row is best, and whether the others really differ from it.

For each metric, over the rows of one table:

    mean, sd     over seeds; sd with n - 1, from two seeds on
    best         the best mean to three digits, shared by rows that read alike;  second: the next one;
                 over the seeds that all ranked rows have, so that no row wins by lucky seeds. A row that
                 shares none with the row of most seeds is not ranked; nor is that one, if none does
    ≈ best       not told apart from the best row, decided by the first of these that can be:
                 1. three or more common seeds: paired t-test over them, two-sided, p ≥ 0.05
                 2. bootstrap intervals (over queries) overlap in every common seed
                 3. otherwise nothing is claimed: untested

Seeds pair because one seed gives all rows the same data order and the same first weights. Overlap of two
95 % intervals is the blunter rule: it calls more rows alike than a test of the difference would. Three to
five seeds show large gaps only: "alike" means that the seeds at hand do not tell them apart. No correction
is made for the number of comparisons.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from surefind.data.extras import require
from surefind.report.results import Cell
from surefind.report.vocabulary import Metric

SEEDS_TO_TEST = 3
LEVEL = 0.05
DIGITS = 3
"""Means that read alike rank alike."""

Rank = Literal["best", "second", ""]
Verdict = Literal["alike", "different", "untested", ""]
Rows = Mapping[str, Sequence[Cell]]


@dataclass(frozen=True)
class Score:
    """A row's metric.

    Attributes:
        mean: Over seeds.
        sd: Standard deviation over seeds; None for one seed.
        seeds: How many have the metric.
        interval: Bootstrap interval over queries; only for one seed.
        rank: Whether it is best or second best.
        verdict: Against the best row; empty for the best itself.
        basis: What decided the verdict: "seeds", "intervals" or "".
    """

    mean: float
    sd: float | None
    seeds: int
    interval: tuple[float, float] | None = None
    rank: Rank = ""
    verdict: Verdict = ""
    basis: Literal["seeds", "intervals", ""] = ""


def compare(rows: Rows, metric: Metric, unranked: frozenset[str] = frozenset()) -> dict[str, Score]:
    """Score the rows of one table by one metric.

    Args:
        rows: The cells of each row.
        metric: The metric.
        unranked: Rows whose number is shown and takes no part: it is another row's.

    Returns:
        A score for each row that has the metric.
    """
    scores = {row: _score(cells, metric.name) for row, cells in rows.items()}
    present = {row: s for row, s in scores.items() if s is not None}
    judged = [row for row in present if row not in unranked]
    if not metric.better or not judged:
        return present
    means = _common_means({row: rows[row] for row in judged}, metric.name)
    if not means:
        return present
    sign = 1 if metric.better == "higher" else -1
    ordered = sorted(means, key=lambda row: -sign * means[row])
    best = ordered[0]
    shown = {row: round(means[row], DIGITS) for row in ordered}
    levels = list(dict.fromkeys(shown.values()))
    for row in judged:
        if shown.get(row) == levels[0]:
            present[row] = replace(present[row], rank="best")
            continue
        verdict, basis = _verdict(rows[row], rows[best], metric.name)
        rank: Rank = "second" if row in shown and shown[row] == levels[1] else ""
        present[row] = replace(present[row], rank=rank, verdict=verdict, basis=basis)
    return present


def _common_means(rows: Rows, name: str) -> dict[str, float]:
    """Average each row over the seeds that all have; rows that share none with the fullest have no mean."""
    values = {
        row: {c.seed: c.values[name] for c in cells if name in c.values}
        for row, cells in rows.items()
    }
    fullest = max(values.values(), key=len)
    shared = {row: by for row, by in values.items() if by.keys() & fullest.keys()}
    common = set.intersection(*(set(by) for by in shared.values()))
    if not common or len(shared) == 1 < len(rows):
        return {}
    return {row: float(np.mean([by[s] for s in common])) for row, by in shared.items()}


def _score(cells: Sequence[Cell], name: str) -> Score | None:
    having = [c for c in cells if name in c.values]
    if not having:
        return None
    values = np.array([c.values[name] for c in having], dtype=float)
    if len(values) == 1:
        return Score(float(values[0]), None, 1, having[0].intervals.get(name))
    return Score(float(values.mean()), float(values.std(ddof=1)), len(values))


def _verdict(
    row: Sequence[Cell], best: Sequence[Cell], name: str
) -> tuple[Verdict, Literal["seeds", "intervals", ""]]:
    ours = {c.seed: c for c in row if name in c.values}
    theirs = {c.seed: c for c in best if name in c.values}
    common = sorted(ours.keys() & theirs.keys())
    if len(common) >= SEEDS_TO_TEST:
        gaps = np.array([ours[s].values[name] - theirs[s].values[name] for s in common])
        return ("alike" if _paired_p(gaps) >= LEVEL else "different"), "seeds"
    pairs = [(ours[s].intervals.get(name), theirs[s].intervals.get(name)) for s in common]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    if not known or len(known) < len(pairs):
        return "untested", ""
    overlap = all(a[0] <= b[1] and b[0] <= a[1] for a, b in known)
    return ("alike" if overlap else "different"), "intervals"


def _paired_p(gaps: np.ndarray) -> float:
    """Give the two-sided p-value of a mean gap of zero."""
    spread = gaps.std(ddof=1)
    if spread == 0:
        return 1.0 if gaps.mean() == 0 else 0.0
    t = abs(gaps.mean()) / (spread / np.sqrt(len(gaps)))
    stats = require("scipy.stats", "test differences between methods", extra="report")
    return float(2 * stats.t.sf(t, len(gaps) - 1))
