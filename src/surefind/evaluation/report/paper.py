"""The numbers of the LAM paper, to stand beside ours.

| the paper's table | sets |
| --- | --- |
| Closed-set results (`tab:ooddetection`) | fashion-mnist, cifar10 |
| Open-set results (`tab:cub200`) | cub200, lfw |
| Results on MSLS (`tab:msls`) | msls (its validation set), msls-challenge |
| Ablation on Hessian approximation (`tab:ablation_ood`) | rows of lfw |

Its names and ours: mAP@1 and R@1 are recall@1 (the two are the same), R@k is recall@k, mAP@k and M@k are
map@k, AUROC, AUPRC, AUSC and ECE are auroc, auprc, ausc and ece. Numbers are means over five runs, ± one
standard deviation where the paper gives it. They do not measure quite what ours do: its ECE leaves out
queries of confidence 1, its AUSC adds the neighbour's uncertainty and cannot pass 0.99, its uncertainty is
a sum of standard deviations and not 1/κ, on LFW a query without a match counts as recall 0 and precision 1,
and the checkpoint was chosen on the test set.

Published numbers beside ours, as values: tables, what to know before comparing, where rows differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from surefind.evaluation.report.tables import Table, gaps, published_set, published_table
from surefind.evaluation.report.vocabulary import row_title, set_title
from surefind.evaluation.results import ResultSet

Number = tuple[float, float | None]
"""Mean, and standard deviation if it was given."""


@dataclass(frozen=True, eq=False)
class Published:
    """Numbers that somebody else published.

    Attributes:
        source: What to call them in a heading.
        values: Number by metric by row by set, under our names.
        ablation_set: The set on which the ablation was run.
        caveat: What must be known before the numbers are compared.
        strange: How many strange inputs there were, by set: AUPRC depends on their share.
    """

    source: str
    values: Mapping[str, Mapping[str, Mapping[str, Number]]]
    ablation_set: str = ""
    caveat: str = ""
    strange: Mapping[str, int] = field(default_factory=dict)


_CLOSED = "recall@1 map@5 map@10 auroc auprc ausc ece"
_OPEN = "recall@1 map@5 map@10 auroc auprc ausc"
_PLACES = "recall@1 recall@5 recall@10 map@5 map@10 ausc"
_ABLATION = "map@5 auroc ausc"

_TABLES = {
    ("fashion-mnist", _CLOSED): """
        deterministic    0.78±0.01 0.73±0.01 0.72±0.01 - - - -
        deep-ensemble    0.69 0.62 0.59 0.41 0.46 0.61 0.04
        pfe              0.78±0.00 0.74±0.00 0.72±0.00 0.53±0.03 0.46±0.01 0.65±0.01 0.26±0.02
        hib              0.69±0.08 0.63±0.09 0.61±0.09 0.60±0.12 0.60±0.11 0.65±0.08 0.54±0.08
        mc-dropout       0.76±0.03 0.71±0.03 0.70±0.03 0.93±0.03 0.93±0.03 0.84±0.06 0.03±0.04
        laplace-posthoc  0.78±0.00 0.74±0.00 0.72±0.00 0.96±0.02 0.96±0.02 0.86±0.01 0.03±0.00
        laplace-online   0.81±0.00 0.77±0.01 0.76±0.01 0.98±0.01 0.98±0.01 0.89±0.01 0.02±0.00
    """,
    ("cifar10", _CLOSED): """
        deterministic    0.66±0.00 0.59±0.00 0.58±0.00 - - - -
        deep-ensemble    0.66 0.61 0.59 0.42 0.67 0.72 0.02
        mc-dropout       0.46±0.01 0.37±0.01 0.34±0.01 0.60±0.03 0.76±0.02 0.61±0.01 0.05±0.00
        hib              0.11±0.01 0.07±0.00 0.05±0.00 0.44±0.17 0.70±0.1 0.29±0.03 0.04±0.02
        pfe              0.66±0.00 0.60±0.00 0.58±0.00 0.21±0.02 0.56±0.01 0.56±0.01 0.11±0.01
        laplace-posthoc  0.66±0.00 0.60±0.00 0.58±0.00 0.50±0.11 0.69±0.07 0.81±0.01 0.23±0.01
        laplace-online   0.66±0.01 0.60±0.00 0.57±0.01 0.78±0.04 0.85±0.03 0.83±0.01 0.01±0.00
    """,
    ("cub200", _OPEN): """
        deterministic    0.62±0.01 0.48±0.01 0.42±0.01 - - -
        deep-ensemble    0.21 0.11 0.07 0.47 0.55 0.21
        pfe              0.62±0.01 0.5±0.01 0.43±0.01 0.44±0.16 0.5±0.08 0.61±0.02
        hib              0.33±0.04 0.19±0.02 0.14±0.02 0.54±0.12 0.61±0.1 0.31±0.07
        mc-dropout       0.61±0.00 0.48±0.00 0.42±0.00 0.73±0.08 0.68±0.07 0.63±0.01
        laplace-posthoc  0.65±0.01 0.52±0.01 0.45±0.01 0.56±0.16 0.61±0.11 0.66±0.03
        laplace-online   0.61±0.00 0.48±0.00 0.42±0.00 0.80±0.03 0.75±0.03 0.63±0.01
    """,
    ("lfw", _OPEN): """
        deterministic    0.44±0.00 0.68±0.00 0.65±0.00 - - -
        deep-ensemble    0.36 0.57 0.54 0.52 0.64 0.33
        pfe              0.44±0.00 0.68±0.00 0.65±0.00 0.03±0.02 0.41±0.0 0.49±0.01
        mc-dropout       0.42±0.00 0.65±0.01 0.63±0.01 0.03±0.01 0.41±0.0 0.46±0.01
        laplace-posthoc  0.44±0.01 0.68±0.01 0.65±0.00 0.65±0.14 0.72±0.11 0.45±0.03
        laplace-online   0.46±0.00 0.71±0.00 0.69±0.00 0.71±0.22 0.78±0.17 0.50±0.02
    """,
    ("msls", _PLACES): """
        deterministic    0.77 0.88 0.90 0.61 0.56 -
        mc-dropout       0.75 0.87 0.87 0.59 0.54 0.77
        pfe              0.77 0.88 0.90 0.61 0.56 0.73
        laplace-posthoc  0.76 0.86 0.89 0.60 0.55 0.74
        laplace-online   0.76 0.87 0.90 0.60 0.56 0.77
    """,
    ("msls-challenge", _PLACES): """
        deterministic    0.58 0.74 0.78 0.45 0.43 -
        mc-dropout       0.55 0.71 0.76 0.43 0.41 0.57
        pfe              0.58 0.74 0.78 0.45 0.44 0.57
        laplace-posthoc  0.58 0.74 0.78 0.45 0.44 0.59
        laplace-online   0.57 0.74 0.78 0.45 0.43 0.63
    """,
    ("lfw", _ABLATION): """
        laplace-posthoc-euclidean-fixed     0.70±0.0 0.57±0.25 0.44±0.01
        laplace-posthoc-euclidean-positive  0.70±0.0 0.58±0.23 0.45±0.01
        laplace-posthoc-euclidean-full      0.70±0.0 0.56±0.26 0.44±0.01
        laplace-posthoc-arccos-fixed        0.69±0.0 0.53±0.20 0.46±0.02
        laplace-posthoc-arccos-positive     0.70±0.0 0.29±0.11 0.48±0.01
        laplace-posthoc-arccos-full         0.69±0.0 0.55±0.18 0.45±0.01
        laplace-online-euclidean-fixed      0.63±0.01 0.77±0.04 0.31±0.02
        laplace-online-euclidean-positive   0.70±0.0 0.38±0.10 0.47±0.01
        laplace-online-euclidean-full       0.67±0.01 0.59±0.04 0.42±0.01
        laplace-online-arccos-fixed         0.71±0.0 0.78±0.18 0.50±0.03
        laplace-online-arccos-positive      0.70±0.0 0.23±0.03 0.46±0.00
        laplace-online-arccos-full          0.71±0.0 0.70±0.12 0.51±0.01
    """,
}


def _number(text: str) -> Number:
    mean, _, sd = text.partition("±")
    return float(mean), float(sd) if sd else None


def _parsed() -> dict[str, Mapping[str, Mapping[str, Number]]]:
    sets: dict[str, dict[str, Mapping[str, Number]]] = {}
    for (name, header), body in _TABLES.items():
        for line in body.strip().splitlines():
            row, *numbers = line.split()
            named = zip(header.split(), numbers, strict=True)
            found = {metric: _number(text) for metric, text in named if text != "-"}
            sets.setdefault(name, {})[row] = MappingProxyType(found)
    return {name: MappingProxyType(rows) for name, rows in sets.items()}


PAPER = Published(
    source="the paper",
    values=MappingProxyType(_parsed()),
    ablation_set="lfw",
    caveat=(
        "The paper's definitions differ from ours in places: its uncertainty is a sum of standard "
        "deviations and not 1/κ, its ECE leaves out queries of confidence 1, its AUSC adds the "
        "neighbour's uncertainty and cannot pass 0.99, and its checkpoints were chosen on the test set. "
        "AUPRC depends on the share of strange inputs, and compares only where that is the same."
    ),
    strange=MappingProxyType({"fashion-mnist": 10_000, "cifar10": 26_032}),
)
"""The numbers of the paper's four tables."""


@dataclass(frozen=True)
class Beside:
    """One comparison with what was published.

    Attributes:
        title: Its heading.
        table: Our numbers, each with the published one beside it.
        caveat: What must be known before they are compared; may be empty.
        said: A sentence or more for each row that differs.
    """

    title: str
    table: Table
    caveat: str
    said: tuple[str, ...] = ()


def beside_published(
    results: ResultSet, published: Published, remarks: Mapping[str, str]
) -> list[Beside]:
    """Compare methods, and the rows of the ablation, with published ones.

    Args:
        results: All cells of a data set.
        published: The numbers.
        remarks: Why a row differs, by "set/row", in whole sentences.

    Returns:
        The comparisons that there are numbers for.
    """
    found = []
    methods = published_table(results, published, "method")
    if methods is not None:
        said = tuple(
            f"{row_title(row)}: {phrase}. {remarks.get(f'{results.name}/{row}', '')}".rstrip()
            for row, phrase in gaps(results, published).items()
        )
        found.append(Beside(f"Beside {published.source}", methods, published.caveat, said))
    ablation = published_table(results, published, "ablation")
    if ablation is not None:
        where, caveat = published_set(results, published, "ablation"), ""
        if where != results.name:
            caveat = (
                f"Ours is on {set_title(results.name)}, {published.source}'s on {set_title(where)}: "
                "compare the order of the rows, not the levels."
            )
        found.append(Beside(f"The ablation beside {published.source}", ablation, caveat))
    return found
