"""What the rows, metrics and data sets of a report are called, and which way is better.

| metric | what it says |
| --- | --- |
| recall@k | share of queries with a relevant item among the k nearest |
| map@k | mean average precision of the first k, divided by min(k, relevant items) |
| auroc, auprc, fpr95 | how well uncertainty tells out-of-distribution inputs |
| ausc, aurc, r_auroc | how well uncertainty tells wrong retrievals |
| agreement_ausc, agreement_r_auroc | the same by the disagreement of sampled neighbours |
| ece | how far the stated confidence is from the share of right answers |

A row is a method, a free baseline (an uncertainty that costs nothing beyond the point estimate), or a row
of the ablation, whose name spells when × distance × approximation.
"""

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["method", "free", "ablation"]


@dataclass(frozen=True)
class Metric:
    """One column of a table.

    Attributes:
        name: Its key in a cell.
        title: What stands over the column.
        group: What it is about; neighbours of one group share a heading.
        better: "higher", "lower", or "" if that is not known.
        meaning: One sentence for a reader who has not met it.
    """

    name: str
    title: str
    group: str
    better: Literal["higher", "lower", ""]
    meaning: str = ""

    @property
    def arrow(self) -> str:
        """Say the better direction by a sign."""
        return {"higher": "↑", "lower": "↓", "": ""}[self.better]


RETRIEVAL, STRANGE, WRONG, CALIBRATION = (
    "Retrieval",
    "Telling strange inputs",
    "Telling wrong answers",
    "Calibration",
)

METRICS = (
    Metric(
        "recall@1",
        "recall@1",
        RETRIEVAL,
        "higher",
        "Share of queries that find an item of their class among the first k; at k = 1, the share of "
        "nearest neighbours that are right.",
    ),
    Metric("recall@5", "recall@5", RETRIEVAL, "higher"),
    Metric("recall@10", "recall@10", RETRIEVAL, "higher"),
    Metric(
        "map@5",
        "mAP@5",
        RETRIEVAL,
        "higher",
        "Mean average precision: like recall, but relevant items count more the nearer they come.",
    ),
    Metric("map@10", "mAP@10", RETRIEVAL, "higher"),
    Metric(
        "auroc",
        "AUROC",
        STRANGE,
        "higher",
        "Chance that a strange (out-of-distribution) input is less sure than a known one: 1 is perfect, "
        "0.5 is a coin.",
    ),
    Metric(
        "auprc",
        "AUPRC",
        STRANGE,
        "higher",
        "Area under the precision-recall curve of the same task. Its coin is the share of strange inputs.",
    ),
    Metric(
        "fpr95",
        "FPR@95",
        STRANGE,
        "lower",
        "Share of known inputs that are turned away when 95 % of the strange ones are.",
    ),
    Metric(
        "ausc",
        "AUSC",
        WRONG,
        "higher",
        "Area under the sparsification curve: mean accuracy as the least sure 0 % to 99 % of the queries "
        "are dropped.",
    ),
    Metric(
        "aurc",
        "AURC",
        WRONG,
        "lower",
        "Area under the risk-coverage curve: mean error as more and more queries are answered, the surest "
        "first.",
    ),
    Metric(
        "r_auroc",
        "R-AUROC",
        WRONG,
        "higher",
        "Chance that a wrong retrieval is less sure than a right one.",
    ),
    Metric(
        "agreement_ausc",
        "AUSC*",
        WRONG,
        "higher",
        "* by disagreement instead of 1/κ: the share of sampled embeddings whose nearest neighbour is of "
        "another class than most.",
    ),
    Metric("agreement_r_auroc", "R-AUROC*", WRONG, "higher"),
    Metric(
        "ece",
        "ECE",
        CALIBRATION,
        "lower",
        "Expected calibration error: how far, on average, the stated confidence is from the share of right "
        "answers.",
    ),
)
"""In the order of the columns. mAP@1 is recall@1 and has no column."""

PARTS = {"id": "Known", "ood": "Strange"}
METHODS = {
    "deterministic": "Deterministic",
    "laplace-posthoc": "LAM (post-hoc)",
    "laplace-online": "LAM (online)",
    "mc-dropout": "MC dropout",
    "deep-ensemble": "Deep ensemble",
    "pfe": "PFE",
    "hib": "HIB",
}
FREE = {
    "nearest-distance": "Nearest distance",
    "margin": "Top-1/top-2 margin",
    "knn-density": "k-NN density",
    "mahalanobis": "Mahalanobis",
    "norm": "Norm of z",
}
SETS = {
    "fashion-mnist": "FashionMNIST",
    "mnist": "MNIST",
    "cifar10": "CIFAR10",
    "svhn": "SVHN",
    "cub200": "CUB200",
    "cars196": "Cars196",
    "lfw": "LFW",
    "msls": "MSLS",
    "omniglot": "Omniglot",
    "digits": "Digits",
    "cub200-features": "CUB200, frozen features",
    "cars196-features": "Cars196, frozen features",
}
_ABLATION = re.compile(r"laplace-(posthoc|online)-(euclidean|arccos)-(fixed|positive|full)")
_WHEN = {"posthoc": "post-hoc", "online": "online"}


def kind_of(row: str) -> Kind:
    """Say in which block or table a row belongs.

    Args:
        row: Its name in the benchmark.

    Returns:
        The kind; a name that is not known is a method of the user's own.
    """
    if row in FREE:
        return "free"
    return "ablation" if _ABLATION.fullmatch(row) else "method"


def row_title(row: str) -> str:
    """Name a row for readers."""
    return METHODS.get(row) or FREE.get(row) or row


def set_title(name: str) -> str:
    """Name a data set for readers."""
    return SETS.get(name, name)


def ablation_parts(row: str) -> tuple[str, str, str]:
    """Take the name of an ablation's row apart.

    Args:
        row: A row of kind "ablation".

    Returns:
        When, distance, approximation.
    """
    _, when, distance, approximation = row.split("-")
    return _WHEN[when], distance, approximation


def row_order(row: str) -> tuple[int, int, str]:
    """Sort rows: methods, free baselines, ablation, each in the order of the benchmark.

    Args:
        row: Its name.

    Returns:
        A key to sort by.
    """
    kind = kind_of(row)
    if kind == "ablation":
        when, distance, approximation = ablation_parts(row)
        place = (
            6 * (when == "online")
            + 3 * (distance == "arccos")
            + ("fixed", "positive", "full").index(approximation)
        )
        return 2, place, row
    known = list(FREE if kind == "free" else METHODS)
    return int(kind == "free"), known.index(row) if row in known else len(known), row


def metric_of(name: str) -> Metric:
    """Look a metric up.

    Args:
        name: Its key in a cell.

    Returns:
        What is known of it; of a metric that is not known, the name alone.
    """
    known = {m.name: m for m in METRICS}
    return known.get(name, Metric(name, name, "Other", ""))
