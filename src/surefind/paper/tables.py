"""The tables of a report as values, before they are HTML or Markdown, and the notes under them.

One table compares methods, with the distance baselines in a block of their own; one shows how well each
out-of-distribution set is detected, by κ, by distance and by novelty; one compares the variants of the
ablation, stage × distance × approximation.

A distance baseline is an uncertainty only: it retrieves with the embeddings of the deterministic method.
Its retrieval metrics are shown and not ranked.

For each metric, over the methods of one table:

    mean, sd     over seeds; sd with n - 1, from two seeds on
    best         the best mean to three digits, shared by methods that read alike;  second: the next one;
                 over the seeds that all ranked methods have, so that none wins by lucky seeds. A method
                 that shares none with the method of most seeds is not ranked; nor is that one, if none does
    ≈ best       not significantly different from the best, decided by the first of these that applies:
                 1. three or more common seeds: paired t-test over them, two-sided, p ≥ 0.05
                 2. bootstrap intervals (over queries) overlap in every common seed
                 3. otherwise nothing is claimed: untested

Seeds pair because one seed gives all methods the same data order and the same initial weights. Overlap of
two 95 % intervals is the less powerful rule: it calls more methods alike than a test of the difference
would. Three to five seeds show large gaps only: "alike" means that the seeds at hand do not separate them.
There is no correction for multiple comparisons.

The mean over near or over far out-of-distribution sets is that of a result that was measured on all sets of
this kind that the table has; others have none, since means over different sets do not compare.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np

from surefind.checks import require
from surefind.evaluation import DETECTORS, best_detectors
from surefind.paper.results import Result, ResultSet
from surefind.paper.vocabulary import (
    RETRIEVAL,
    Kind,
    Metric,
    OodKind,
    ablation_parts,
    base_set,
    dataset_title,
    kind_of,
    method_title,
)

SEEDS_TO_TEST = 3
LEVEL = 0.05
DIGITS = 3
"""Means that read alike rank alike."""
INTERVAL = (
    "the small range is the 95 % bootstrap interval over queries, which does not cover the variation "
    "between training runs."
)

OOD_SETS = (
    "AUROC of each out-of-distribution set: near if its inputs are of the kind that the model was trained "
    "on, only of other classes, far if they are of another kind. Other tables are of the first set. "
    "By 1/κ, by the distance to the nearest training embedding or by novelty, all of the same model; a "
    "distance baseline has its own score. – stands for sets that a result was not measured on."
)

Rank = Literal["best", "second", ""]
Verdict = Literal["alike", "different", "untested", ""]
ByMethod = Mapping[str, Sequence[Result]]


@dataclass(frozen=True)
class Score:
    """A method's mean of a metric.

    Attributes:
        mean: Over seeds.
        sd: Standard deviation over seeds; None for one seed.
        seeds: How many have the metric.
        interval: Bootstrap interval over queries; only for one seed.
        rank: Whether it is best or second best.
        verdict: Against the best method; empty for the best itself.
        basis: What decided the verdict: "seeds", "intervals" or "".
    """

    mean: float
    sd: float | None
    seeds: int
    interval: tuple[float, float] | None = None
    rank: Rank = ""
    verdict: Verdict = ""
    basis: Literal["seeds", "intervals", ""] = ""


def compare(
    methods: ByMethod, metric: Metric, unranked: frozenset[str] = frozenset()
) -> dict[str, Score]:
    """Score the methods of one table by one metric.

    Args:
        methods: The results of each method.
        metric: The metric.
        unranked: Methods whose number is shown and not ranked, since it is another method's.

    Returns:
        A score for each method that has the metric.
    """
    scored = ((method, _score(results, metric.name)) for method, results in methods.items())
    scores = {method: score for method, score in scored if score is not None}
    judged = {method: methods[method] for method in scores if method not in unranked}
    means = _common_means(judged, metric.name) if metric.better and judged else {}
    if not means:
        return scores
    shown = {method: round(mean, DIGITS) for method, mean in means.items()}
    higher = metric.better == "higher"
    best = (max if higher else min)(means, key=means.__getitem__)
    levels = sorted(set(shown.values()), reverse=higher)
    for method, results in judged.items():
        if shown.get(method) == levels[0]:
            scores[method] = replace(scores[method], rank="best")
            continue
        verdict, basis = _verdict(results, methods[best], metric.name)
        rank: Rank = "second" if shown.get(method) in levels[1:2] else ""
        scores[method] = replace(scores[method], rank=rank, verdict=verdict, basis=basis)
    return scores


def _common_means(methods: ByMethod, name: str) -> dict[str, float]:
    """Average over the seeds that all have; a method that shares none with the fullest has no mean."""
    values = {
        method: {r.seed: r.values[name] for r in results if name in r.values}
        for method, results in methods.items()
    }
    fullest = max(values.values(), key=len)
    shared = {method: by for method, by in values.items() if by.keys() & fullest.keys()}
    common = set.intersection(*(set(by) for by in shared.values()))
    if not common or len(shared) == 1 < len(methods):
        return {}
    return {method: float(np.mean([by[s] for s in common])) for method, by in shared.items()}


def _score(results: Sequence[Result], name: str) -> Score | None:
    having = [r for r in results if name in r.values]
    if not having:
        return None
    values = np.array([r.values[name] for r in having], dtype=float)
    if len(values) == 1:
        return Score(float(values[0]), None, 1, having[0].intervals.get(name))
    return Score(float(values.mean()), float(values.std(ddof=1)), len(values))


def _verdict(
    method: Sequence[Result], best: Sequence[Result], name: str
) -> tuple[Verdict, Literal["seeds", "intervals", ""]]:
    ours = {r.seed: r for r in method if name in r.values}
    theirs = {r.seed: r for r in best if name in r.values}
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
    """Return the two-sided p-value of a mean gap of zero."""
    spread = gaps.std(ddof=1)
    if spread == 0:
        return 1.0 if gaps.mean() == 0 else 0.0
    t = abs(gaps.mean()) / (spread / np.sqrt(len(gaps)))
    stats = require("scipy.stats", "test differences between methods", extra="cli")
    return float(2 * stats.t.sf(t, len(gaps) - 1))


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Attributes:
        mean: Over seeds.
        sd: The standard deviation over seeds, with its ±; empty for one seed.
        interval: The bootstrap interval, shown where there is one seed only.
        rank: Whether it is best or second best.
        alike: Whether it does not differ significantly from the best.
        untested: Whether that could not be tested, while it could for other methods.
        published: The published number, if the table has any.
    """

    mean: str
    sd: str = ""
    interval: str = ""
    rank: Rank = ""
    alike: bool = False
    untested: bool = False
    published: str = ""


@dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
        heads: What stands left of the numbers.
        seeds: How many seeds, and which if they are not the usual ones.
        entries: One for each metric; None where the method has none.
        kind: The block it belongs to.
    """

    heads: tuple[str, ...]
    seeds: str
    entries: tuple[Entry | None, ...]
    kind: Kind


@dataclass(frozen=True)
class Table:
    """Methods × metrics.

    Attributes:
        heads: Headings of the columns left of the numbers.
        metrics: The columns.
        lines: The methods.
        untested: Metrics of which no method could be tested against the best.
        bases: What decided "≈ best" somewhere in the table: "seeds", "intervals".
    """

    heads: tuple[str, ...]
    metrics: tuple[Metric, ...]
    lines: tuple[Line, ...]
    untested: frozenset[str] = frozenset()
    bases: frozenset[str] = frozenset()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings over the metrics, and how many columns each spans."""
        return [(name, len(list(ms))) for name, ms in groupby(self.metrics, lambda m: m.group)]


def methods_table(results: ResultSet) -> Table | None:
    """Compare methods and distance baselines; None if there are none."""
    kinds: tuple[Kind, ...] = ("method", "baseline")
    metrics = results.metrics(*kinds)
    return _table(results, kinds, metrics, ("Method",), lambda m: (method_title(m),))


def ablation_table(results: ResultSet) -> Table | None:
    """Compare the variants of the ablation; None if there are none."""
    # What needs no posterior does not depend on how it was made.
    free = (*filter(None, DETECTORS), "false_alarms_")
    metrics = [m for m in results.metrics("ablation") if not m.name.startswith(free)]
    heads = ("Stage", "Distance", "Approximation")
    return _table(results, ("ablation",), metrics, heads, ablation_parts)


def ood_table(results: ResultSet) -> Table | None:
    """Compare what detects each out-of-distribution set; None if there is only the first one's AUROC."""
    kinds: tuple[Kind, ...] = ("method", "baseline")
    methods = results.by_method(*kinds)
    sets: dict[str, OodKind] = {}
    for found in methods.values():
        for result in found:
            sets |= {name: ood.kind for name, ood in result.ood.items()}
    if not sets:
        return None
    columns = [
        Metric(name, title, f"{kind.capitalize()} OOD", "higher")
        for kind in ("far", "near")
        for name, title in (
            *((f"ood:{name}", _ood_title(name, results)) for name, k in sets.items() if k == kind),
            (f"mean:{kind}", f"{kind} mean"),
        )
        if kind in sets.values()
    ]
    rows: dict[str, tuple[tuple[str, str], Kind, list[Result]]] = {}
    for method, found in methods.items():
        for prefix, title in DETECTORS.items():
            shown = [_by_set(r, sets, f"{prefix}auroc") for r in found]
            if any(r.values for r in shown):
                by = "own score" if kind_of(method) == "baseline" else title
                rows[f"{method}/{prefix}"] = (method_title(method), by), kind_of(method), shown
    scores = {
        m.name: compare({row: shown for row, (*_, shown) in rows.items()}, m) for m in columns
    }
    untested, bases = _tested(scores)
    lines = [
        Line(
            heads,
            seeds_text(shown),
            tuple(_entry(scores[m.name].get(row), m.name in untested) for m in columns),
            kind,
        )
        for row, (heads, kind, shown) in rows.items()
    ]
    return Table(("Method", "By"), tuple(columns), tuple(lines), untested, bases)


def _ood_title(name: str, results: ResultSet) -> str:
    """Return the title of an OOD set; one that is a part of the data set itself is called so."""
    return f"{dataset_title(name)}{', OOD part' if name == base_set(results.name) else ''}"


def _by_set(result: Result, sets: Mapping[str, OodKind], name: str) -> Result:
    """Return a result whose values are one detector's AUROC of each set, and their means."""
    measured = {other: ood.values for other, ood in result.ood.items()}
    first = result.protocol.get("ood")
    if first and not measured:  # of the time when there was one set
        measured = {first[0]: result.values}
    found = {other: values[name] for other, values in measured.items() if name in values}
    values = {f"ood:{other}": value for other, value in found.items()}
    for kind in set(sets.values()):
        names = [other for other, k in sets.items() if k == kind]
        if all(other in found for other in names):
            values[f"mean:{kind}"] = float(np.mean([found[other] for other in names]))
    return result.model_copy(update={"values": values, "intervals": {}})


def detectors_note(results: ResultSet) -> str:
    """Say for each method what detects OOD inputs and wrong retrievals best; empty if nothing competes."""
    sentences = []
    for method, found in results.by_method("method").items():
        means = {
            name: float(np.mean([r.values[name] for r in found]))
            for name in found[0].values
            if all(name in r.values for r in found)
        }
        # Over seeds the intervals of one of them say nothing.
        if said := best_detectors(means, found[0].intervals if len(found) == 1 else None):
            sentences.append(f"{method_title(method)}. {' '.join(said)}")
    if not sentences:
        return ""
    return f"What detects best, by AUROC and R-AUROC: {' '.join(sentences)}"


def _table(
    results: ResultSet,
    kinds: tuple[Kind, ...],
    metrics: Sequence[Metric],
    heads: tuple[str, ...],
    titles: Callable[[str], tuple[str, ...]],
) -> Table | None:
    methods = results.by_method(*kinds)
    if not methods:
        return None
    borrowed = {RETRIEVAL: frozenset(m for m in methods if kind_of(m) == "baseline")}
    scores = {m.name: compare(methods, m, borrowed.get(m.group, frozenset())) for m in metrics}
    untested, bases = _tested(scores)
    lines = []
    for method, found in methods.items():
        entries = (_entry(scores[m.name].get(method), m.name in untested) for m in metrics)
        lines.append(Line(titles(method), seeds_text(found), tuple(entries), kind_of(method)))
    return Table(heads, tuple(metrics), tuple(lines), untested, bases)


def _tested(scores: Mapping[str, Mapping[str, Score]]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the metrics that nothing could be tested in, and what decided the others."""
    judged = {name: [s for s in by.values() if s.verdict] for name, by in scores.items()}
    untested = frozenset(
        name for name, js in judged.items() if js and all(s.verdict == "untested" for s in js)
    )
    return untested, frozenset(s.basis for js in judged.values() for s in js if s.basis)


def _entry(score: Score | None, column_untested: bool) -> Entry | None:
    if score is None:
        return None
    return Entry(
        *number_text(score.mean, score.sd),
        "{:.3f}–{:.3f}".format(*score.interval) if score.interval else "",
        score.rank,
        score.verdict == "alike",
        score.verdict == "untested" and not column_untested,
    )


def number_text(mean: float, sd: float | None, digits: int = DIGITS) -> tuple[str, str]:
    """Return mean and ± standard deviation as text."""
    return f"{mean:.{digits}f}", "" if sd is None else f"± {sd:.{digits}f}"


def seeds_text(results: Sequence[Result]) -> str:
    """Count the seeds of a method, and name them where they are not 0, 1, … n - 1."""
    seeds = [r.seed for r in results]
    usual = seeds == list(range(len(seeds)))
    return str(len(seeds)) if usual else f"{len(seeds)} ({', '.join(map(str, seeds))})"


def data_note(results: ResultSet) -> str:
    """Name the sizes of the parts and the OOD data set."""
    first = results.results[0]
    count = {part: f"{n:,}" for part, n in first.examples.items()}
    text = f"Trained on {count.get('train', '?')} and tested on {count.get('test', '?')} examples."
    if (ood := first.protocol.get("ood")) and "ood" in count:
        name, part = ood
        text += f" OOD inputs: {count['ood']} of {dataset_title(name)} (part {part})."
        sizes = {n: o.examples for r in results.results for n, o in r.ood.items() if n != name}
        if sizes:
            more = ", ".join(f"{n:,} of {dataset_title(other)}" for other, n in sizes.items())
            text += f" More OOD sets: {more}."
    if left_out := max(r.left_out for r in results.results):
        text += f" {left_out:,} queries without a relevant item are left out of retrieval."
    return text


def version_warning(results: ResultSet) -> str:
    """Warn of results by different versions; empty if there is one version only."""
    versions: dict[str, list[str]] = {}
    for result in results.results:
        versions.setdefault(result.version, []).append(f"{result.name}.json")
    if len(versions) < 2:
        return ""
    parts = (
        f"{version} measured {len(files)} ({', '.join(files[:3])}{', …' if len(files) > 3 else ''})"
        for version, files in sorted(versions.items())
    )
    return (
        f"These numbers come from different versions of surefind and may not compare: "
        f"{'; '.join(parts)}. Delete the older results and run the benchmark again to be sure."
    )


def table_notes(table: Table) -> list[str]:
    """Explain the marks of a table, and what they rest on, in sentences."""
    counts = {line.seeds for line in table.lines}
    entries = [
        (metric, line, entry)
        for i, metric in enumerate(table.metrics)
        for line in table.lines
        if (entry := line.entries[i])
    ]
    baselines = [(m, line, e) for m, line, e in entries if line.kind == "baseline"]
    wins = [f"{m.title} ({line.heads[0]})" for m, line, e in baselines if e.rank == "best"]
    untested = [m.title for m in table.metrics if m.name in table.untested]
    rules = {
        "seeds": f"a paired t-test over the common seeds ({SEEDS_TO_TEST} or more) gives p ≥ {LEVEL} "
        "(few seeds show large gaps only)",
        "intervals": f"with fewer than {SEEDS_TO_TEST} common seeds, the 95 % bootstrap intervals overlap",
    }
    said = "; or, ".join(rule for basis, rule in rules.items() if basis in table.bases)
    notes = {
        f"Each method has one seed, so there is no ±; {INTERVAL}": counts == {"1"}
        and any(e.interval for *_, e in entries),
        "Mean ± standard deviation over seeds.": counts != {"1"},
        "Methods have different seeds (see that column), so their means are less comparable; best and "
        "second best go by the seeds that all ranked methods have.": len(counts) > 1,
        f"Where a method has one seed, {INTERVAL}": len(counts) > 1 and "1" in counts,
        f"≈ means not significantly different from the best: {said}. "
        "There is no correction for multiple comparisons.": table.bases,
        f"Not tested against the best, for want of seeds and intervals: {', '.join(untested)}. "
        "A small gap there may be chance.": untested,
        "? — this method could not be tested against the best.": any(
            e.untested for *_, e in entries
        ),
        f"A distance baseline is best at: {', '.join(wins)}.": wins,
        "Distance baselines retrieve with the embeddings of the deterministic method, so their "
        "retrieval metrics are not ranked.": any(
            line.kind == "baseline" and m.group == RETRIEVAL for m, line, _ in entries
        ),
    }
    return [note for note, holds in notes.items() if holds]
