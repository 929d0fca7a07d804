"""The tables of a report as values, before they are HTML or Markdown.

One table compares methods, with the free baselines in a block of their own; one compares the rows of the
ablation, when × distance × approximation; one sets published numbers beside ours.

A free baseline is an uncertainty only: it retrieves with the deterministic row's embeddings. Its retrieval
numbers are shown and take no rank.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from surefind.report.comparison import DIGITS, Rank, Rows, Score, compare
from surefind.report.published import Number, Published
from surefind.report.results import ResultSet
from surefind.report.vocabulary import (
    RETRIEVAL,
    Kind,
    Metric,
    ablation_parts,
    kind_of,
    row_title,
)

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
