"""The tables of a report as values, before they are HTML or Markdown.

One table compares methods, with the free baselines in a block of their own; one compares the rows of the
ablation, when × distance × approximation; one sets published numbers beside ours.

A free baseline is an uncertainty only: it retrieves with the deterministic row's embeddings. Its retrieval
numbers are shown and take no rank.

Means over seeds, which row is best, and whether the others really differ from it.

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

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from surefind.dependencies import require
from surefind.evaluation.report.paper import Number, Published
from surefind.evaluation.report.vocabulary import (
    RETRIEVAL,
    Kind,
    Metric,
    ablation_parts,
    kind_of,
    row_title,
)
from surefind.evaluation.results import Cell, ResultSet

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


LEAST_GAP = 0.01
"""Gaps to published numbers up to this are rounding: they come with two digits."""


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Attributes:
        mean: Over seeds.
        sd: The standard deviation over seeds, with its ±; empty for one seed.
        interval: The bootstrap interval, if it stands for the seeds that are missing.
        rank: Whether it is best or second best.
        alike: Whether it cannot be told from the best.
        untested: Whether nothing could be said about that, while something could for other rows.
        beside: The published number, if the table has any.
    """

    mean: str
    sd: str = ""
    interval: str = ""
    rank: Rank = ""
    alike: bool = False
    untested: bool = False
    beside: str = ""


@dataclass(frozen=True)
class Line:
    """One row of a table.

    Attributes:
        row: Its name in the benchmark.
        heads: What stands left of the numbers.
        seeds: How many seeds, and which if they are not the usual ones.
        entries: One for each metric; None where the row has none.
        kind: The block it belongs to.
    """

    row: str
    heads: tuple[str, ...]
    seeds: str
    entries: tuple[Entry | None, ...]
    kind: Kind


@dataclass(frozen=True)
class Table:
    """Rows × metrics.

    Attributes:
        heads: Headings of the columns left of the numbers.
        metrics: The columns.
        lines: The rows.
        untested: Metrics of which no row could be tested against the best.
        bases: What decided "≈ best" somewhere in the table: "seeds", "intervals".
    """

    heads: tuple[str, ...]
    metrics: tuple[Metric, ...]
    lines: tuple[Line, ...]
    untested: frozenset[str] = frozenset()
    bases: frozenset[str] = frozenset()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Give the headings over the metrics, and how many columns each spans."""
        return [(name, len(list(ms))) for name, ms in groupby(self.metrics, lambda m: m.group)]


def methods_table(results: ResultSet) -> Table | None:
    """Compare methods and free baselines.

    Args:
        results: All cells of a data set.

    Returns:
        The table, or None if there is no such row.
    """
    return _table(results, ("method", "free"), ("Method",), lambda row: (row_title(row),))


def ablation_table(results: ResultSet) -> Table | None:
    """Compare the rows of the ablation.

    Args:
        results: All cells of a data set.

    Returns:
        The table, or None if there is no such row.
    """
    return _table(results, ("ablation",), ("When", "Distance", "Approximation"), ablation_parts)


def published_table(results: ResultSet, published: Published, *kinds: Kind) -> Table | None:
    """Set published numbers beside ours.

    Args:
        results: All cells of a data set.
        published: The numbers.
        kinds: Which rows.

    Returns:
        The rows and metrics that both have, or None if there are none.
    """
    values = published.values.get(published_set(results, published, *kinds), {})
    rows = {row: cells for row, cells in results.rows(*kinds).items() if row in values}
    metrics = [m for m in results.metrics(*kinds) if any(m.name in values[row] for row in rows)]
    if not rows or not metrics:
        return None
    scores = {m.name: compare(rows, m) for m in metrics}
    lines = []
    for row in rows:
        entries = []
        for m in metrics:
            score, theirs = scores[m.name].get(row), values[row].get(m.name)
            known = score is not None or theirs is not None
            ours = _number(score.mean, score.sd) if score else ("–", "")
            beside = " ".join(_number(*theirs, digits=2)).strip() if theirs else "–"
            entries.append(Entry(*ours, beside=beside) if known else None)
        title = row_title(row) if kind_of(row) != "ablation" else ", ".join(ablation_parts(row))
        lines.append(Line(row, (title,), _seeds(rows, row), tuple(entries), kind_of(row)))
    return Table(("Method",), tuple(metrics), tuple(lines))


def published_set(results: ResultSet, published: Published, *kinds: Kind) -> str:
    """Say which set's published numbers stand beside ours: the ablation has one set only."""
    return published.ablation_set if kinds == ("ablation",) else results.name


def gaps(results: ResultSet, published: Published) -> dict[str, str]:
    """Say where a row differs from what was published.

    A number differs if the gap is over 0.01 and over two standard deviations of both together. AUPRC is
    left out where another number of strange inputs was taken: it depends on their share.

    Args:
        results: All cells of a data set.
        published: The numbers.

    Returns:
        A phrase for each method that differs, by row.
    """
    values, rows = published.values.get(results.name, {}), results.rows("method")
    found: dict[str, list[str]] = {}
    share_differs = _strange_differs(results, published)
    for metric in results.metrics("method"):
        if metric.name == "auprc" and share_differs:
            continue
        for row, score in compare(rows, metric).items():
            theirs = values.get(row, {}).get(metric.name)
            if theirs is not None and _differs(score, theirs):
                higher = score.mean > theirs[0]
                better = higher == (metric.better == "higher")
                found.setdefault(row, []).append(
                    f"{metric.title} {score.mean:.3f} against {theirs[0]:.2f} "
                    f"({'better' if better else 'worse'})"
                )
    return {row: ", ".join(found[row]) for row in rows if row in found}


def free_wins(table: Table) -> list[str]:
    """Name the metrics at which a free baseline is best."""
    return [
        f"{metric.title} ({line.heads[0]})"
        for i, metric in enumerate(table.metrics)
        for line in table.lines
        if line.kind == "free" and (entry := line.entries[i]) is not None and entry.rank == "best"
    ]


def _table(
    results: ResultSet,
    kinds: tuple[Kind, ...],
    heads: tuple[str, ...],
    titles: Callable[[str], tuple[str, ...]],
) -> Table | None:
    rows, metrics = results.rows(*kinds), results.metrics(*kinds)
    if not rows:
        return None
    borrowed = frozenset(row for row in rows if kind_of(row) == "free")
    scores = {
        m.name: compare(rows, m, borrowed if m.group == RETRIEVAL else frozenset()) for m in metrics
    }
    judged = {name: [s for s in by.values() if s.verdict] for name, by in scores.items()}
    untested = frozenset(
        name for name, js in judged.items() if js and all(s.verdict == "untested" for s in js)
    )
    lines = tuple(
        Line(
            row,
            titles(row),
            _seeds(rows, row),
            tuple(_entry(scores[m.name].get(row), m.name in untested) for m in metrics),
            kind_of(row),
        )
        for row in rows
    )
    bases = frozenset(s.basis for js in judged.values() for s in js if s.basis)
    return Table(heads, tuple(metrics), lines, untested, bases)


def _entry(score: Score | None, column_untested: bool) -> Entry | None:
    if score is None:
        return None
    low_high = score.interval
    return Entry(
        *_number(score.mean, score.sd),
        f"{low_high[0]:.3f}–{low_high[1]:.3f}" if low_high else "",
        score.rank,
        score.verdict == "alike",
        score.verdict == "untested" and not column_untested,
    )


def _number(mean: float, sd: float | None, digits: int = DIGITS) -> tuple[str, str]:
    return f"{mean:.{digits}f}", "" if sd is None else f"± {sd:.{digits}f}"


def _seeds(rows: Rows, row: str) -> str:
    """Count the seeds of a row, and name them where they are not 0, 1, … n - 1."""
    seeds = [c.seed for c in rows[row]]
    usual = seeds == list(range(len(seeds)))
    return str(len(seeds)) if usual else f"{len(seeds)} ({', '.join(map(str, seeds))})"


def _strange_differs(results: ResultSet, published: Published) -> bool:
    here, there = results.cells[0].examples.get("ood"), published.strange.get(results.name)
    return there is not None and here != there


def _differs(score: Score, theirs: Number) -> bool:
    spread = math.hypot(score.sd or 0, theirs[1] or 0)
    return abs(score.mean - theirs[0]) > max(LEAST_GAP, 2 * spread)
