"""The numbers of the LAM paper, and the comparison of ours with published ones.

| the paper's table | sets |
| --- | --- |
| Closed-set results (`tab:ooddetection`) | fashion-mnist, cifar10 |
| Open-set results (`tab:cub200`) | cub200, lfw |
| Results on MSLS (`tab:msls`) | msls (its validation set), msls-challenge |
| Ablation on Hessian approximation (`tab:ablation_ood`) | variants on lfw |

Results of a set by another protocol, on a frozen backbone for instance, are compared with the numbers of
the set (`base_set`), with a sentence that says so.

Its names and ours: mAP@1 and R@1 are recall@1 (the two are the same), R@k is recall@k, mAP@k and M@k are
map@k, AUROC, AUPRC, AUSC and ECE are auroc, auprc, ausc and ece. Numbers are means over five runs, ± one
standard deviation where the paper gives it. They do not measure quite what ours do: its ECE leaves out
queries of confidence 1, its AUSC adds the neighbour's uncertainty and cannot pass 0.99, its uncertainty is
a sum of standard deviations and not 1/κ, on LFW a query without a match counts as recall 0 and precision 1,
and the checkpoint was chosen on the test set.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from surefind.paper.results import ResultSet
from surefind.paper.tables import Entry, Line, Table, compare, number_text, seeds_text
from surefind.paper.vocabulary import (
    Kind,
    ablation_parts,
    base_set,
    dataset_title,
    method_title,
)

LEAST_GAP = 0.01
"""Gaps to published numbers up to this are rounding: they come with two digits. Larger ones count from two
standard deviations of both together on."""
Number = tuple[float, float | None]
"""Mean, and standard deviation if it was given."""


@dataclass(frozen=True, eq=False)
class Published:
    """Numbers that somebody else published.

    Attributes:
        source: What to call them in a heading.
        values: Number by metric by method by data set, under our names.
        ablation_dataset: The data set of the ablation.
        caveat: What must be known before the numbers are compared.
        ood_examples: How many OOD inputs there were, by data set: AUPRC depends on their fraction.
    """

    source: str
    values: Mapping[str, Mapping[str, Mapping[str, Number]]]
    ablation_dataset: str = ""
    caveat: str = ""
    ood_examples: Mapping[str, int] = field(default_factory=dict)


STORED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _parsed() -> dict[str, dict[str, dict[str, Number]]]:
    sets: dict[str, dict[str, dict[str, Number]]] = {}
    for table in STORED["table"]:
        for line in table["values"].splitlines():
            method, *numbers = line.split()
            parted = [number.partition("±") for number in numbers]
            sets.setdefault(table["dataset"], {})[method] = {
                metric: (float(mean), float(sd) if sd else None)
                for metric, (mean, _, sd) in zip(table["metrics"].split(), parted, strict=True)
                if mean != "-"
            }
    return sets


PAPER = Published("the paper", _parsed(), "lfw", STORED["caveat"], STORED["ood_examples"])
"""The numbers of the paper's four tables."""


@dataclass(frozen=True)
class PaperComparison:
    """One comparison with what was published.

    Attributes:
        source: What to call what was published.
        title: Its heading.
        table: Our numbers, each with the published one.
        caveat: What must be known before they are compared; may be empty.
        gaps: A sentence or more for each method that differs.
    """

    source: str
    title: str
    table: Table
    caveat: str
    gaps: tuple[str, ...] = ()


def compare_published(
    results: ResultSet, published: Published | None, remarks: Mapping[str, str] | None = None
) -> list[PaperComparison]:
    """Compare methods, and the variants of the ablation, with published numbers.

    Args:
        results: All results of a data set.
        published: The numbers, if there are any.
        remarks: Why a method differs, by "dataset/method", in whole sentences.

    Returns:
        The comparisons that there are numbers for.
    """
    if published is None:
        return []
    source, where = published.source, published.ablation_dataset
    base, found = base_set(results.name), []
    if table := _table(results, published, base, "method"):
        remarks = remarks or {}
        gaps = tuple(
            f"{method_title(method)}: {phrase}. {remarks.get(f'{results.name}/{method}', '')}".rstrip()
            for method, phrase in _gaps(results, published).items()
        )
        title = f"Comparison with {source}"
        caveat = " ".join(filter(None, [_protocol_note(results, source), published.caveat]))
        found.append(PaperComparison(source, title, table, caveat, gaps))
    if table := _table(results, published, where, "ablation"):
        caveat = (
            f"Ours is on {dataset_title(results.name)}, {source}'s on {dataset_title(where)}: compare the "
            "order of the variants, not the levels."
        )
        title = f"Comparison of the ablation with {source}"
        found.append(PaperComparison(source, title, table, "" if where == base else caveat))
    return found


def _protocol_note(results: ResultSet, source: str) -> str:
    """Say what was trained where it was not the whole network; empty where it was."""
    if not results.results[0].protocol.get("frozen"):
        return ""
    return f"Ours is {dataset_title(results.name)}; {source}'s networks were trained whole."


def _table(results: ResultSet, published: Published, dataset: str, kind: Kind) -> Table | None:
    """Return the methods and metrics that both have, or None if there are none."""
    values = published.values.get(dataset, {})
    methods = {m: found for m, found in results.by_method(kind).items() if m in values}
    metrics = [x for x in results.metrics(kind) if any(x.name in values[m] for m in methods)]
    if not methods or not metrics:
        return None
    scores = {x.name: compare(methods, x) for x in metrics}
    lines = []
    for method, found in methods.items():
        entries = []
        for x in metrics:
            score, theirs = scores[x.name].get(method), values[method].get(x.name)
            ours = number_text(score.mean, score.sd) if score else ("–", "")
            text = " ".join(number_text(*theirs, digits=2)).strip() if theirs else "–"
            entries.append(Entry(*ours, published=text) if score or theirs else None)
        title = ", ".join(ablation_parts(method)) if kind == "ablation" else method_title(method)
        lines.append(Line((title,), seeds_text(found), tuple(entries), kind))
    return Table(("Method",), tuple(metrics), tuple(lines))


def _gaps(results: ResultSet, published: Published) -> dict[str, str]:
    """Describe by method where it differs from what was published."""
    base, methods = base_set(results.name), results.by_method("method")
    values, theirs_ood = published.values.get(base, {}), published.ood_examples.get(base)
    ood_differs = theirs_ood not in (None, results.results[0].examples.get("ood"))
    found: dict[str, list[str]] = {}
    for metric in results.metrics("method"):
        if metric.name == "auprc" and ood_differs:  # it depends on the fraction of OOD inputs
            continue
        for method, score in compare(methods, metric).items():
            if theirs := values.get(method, {}).get(metric.name):
                gap, spread = score.mean - theirs[0], math.hypot(score.sd or 0, theirs[1] or 0)
                if abs(gap) > max(LEAST_GAP, 2 * spread):
                    verdict = "better" if (gap > 0) == (metric.better == "higher") else "worse"
                    found.setdefault(method, []).append(
                        f"{metric.title} {score.mean:.3f} against {theirs[0]:.2f} ({verdict})"
                    )
    return {method: ", ".join(found[method]) for method in methods if method in found}
