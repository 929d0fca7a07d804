"""The names of a benchmark: methods, data sets and metrics, with their titles for readers.

| metric | definition |
| --- | --- |
| recall@k | fraction of queries with a relevant item among the k nearest |
| recall@k_50m | the same where anything within 50 m is relevant, of positions in metres |
| map@k | mean average precision of the first k, divided by min(k, relevant items) |
| auroc, auprc, fpr95 | detection of out-of-distribution inputs by uncertainty |
| ausc, aurc, r_auroc | detection of wrong retrievals by uncertainty |
| nearest_distance_auroc, nearest_distance_r_auroc | auroc and r_auroc by the distance to the nearest |
| novelty_auroc, novelty_r_auroc | auroc and r_auroc by novelty |
| agreement_ausc, agreement_r_auroc | the same by the disagreement of sampled neighbours |
| ece | expected calibration error |

What a benchmark compares is called a method. It is of one of three kinds: a method of
`surefind.learning`, a distance baseline (an uncertainty computed from the point estimate's embeddings and
features at no further training), or a variant of the ablation, named posthoc/online × distance ×
approximation. Nothing here imports PyTorch, so that shell completion can read it.
"""

import re
from dataclasses import dataclass
from typing import Literal

from surefind.learning import METHOD_TITLES

Kind = Literal["method", "baseline", "ablation"]
OodKind = Literal["near", "far"]


@dataclass(frozen=True)
class Metric:
    """A metric of a result.

    Attributes:
        name: Its key in a result.
        title: Its column heading.
        group: The task it measures; columns of one group share a heading.
        better: "higher", "lower", or "" if unknown.
    """

    name: str
    title: str
    group: str
    better: Literal["higher", "lower", ""]

    @property
    def arrow(self) -> str:
        """The better direction as a sign."""
        return {"higher": "↑", "lower": "↓", "": ""}[self.better]


RETRIEVAL, _OOD, _ERRORS = "Retrieval", "OOD detection", "Error detection"

METRICS = (
    *(Metric(f"recall@{k}", f"recall@{k}", RETRIEVAL, "higher") for k in (1, 5, 10)),
    *(Metric(f"recall@{k}_50m", f"recall@{k}, 50 m", RETRIEVAL, "higher") for k in (1, 5, 10)),
    Metric("map@5", "mAP@5", RETRIEVAL, "higher"),
    Metric("map@10", "mAP@10", RETRIEVAL, "higher"),
    Metric("auroc", "AUROC", _OOD, "higher"),
    Metric("nearest_distance_auroc", "AUROC by distance", _OOD, "higher"),
    Metric("novelty_auroc", "AUROC by novelty", _OOD, "higher"),
    *(Metric(f"false_alarms_{a}", f"flagged at {a} %", _OOD, "lower") for a in (1, 5)),
    Metric("auprc", "AUPRC", _OOD, "higher"),
    Metric("fpr95", "FPR@95", _OOD, "lower"),
    Metric("ausc", "AUSC", _ERRORS, "higher"),
    Metric("aurc", "AURC", _ERRORS, "lower"),
    Metric("r_auroc", "R-AUROC", _ERRORS, "higher"),
    Metric("nearest_distance_r_auroc", "R-AUROC by distance", _ERRORS, "higher"),
    Metric("novelty_r_auroc", "R-AUROC by novelty", _ERRORS, "higher"),
    Metric("agreement_ausc", "AUSC*", _ERRORS, "higher"),
    Metric("agreement_r_auroc", "R-AUROC*", _ERRORS, "higher"),
    Metric("ece", "ECE", "Calibration", "lower"),
)
"""In the order of the columns. mAP@1 equals recall@1 and has no column."""
DEFINITIONS = {
    "recall@1": "Fraction of queries with a relevant item (same class) among the k nearest; recall@1 is "
    "the accuracy of the nearest neighbour.",
    "map@5": "Mean average precision: like recall, but relevant items count more the earlier they are "
    "ranked.",
    "auroc": "Probability that an out-of-distribution input is more uncertain than an in-distribution one; "
    "0.5 is chance.",
    "nearest_distance_auroc": "With the distance to the nearest training embedding in place of 1/κ; for "
    "R-AUROC, to the nearest item that is searched.",
    "novelty_auroc": "With the novelty of the input in place of 1/κ: a p-value, small for an input unlike "
    "the training data.",
    "false_alarms_1": "Fraction of known test inputs with a p-value of novelty of at most 1 % or 5 %; the "
    "promise is at most that fraction.",
    "auprc": "Area under the precision-recall curve of the same task; chance is the fraction of OOD "
    "inputs.",
    "fpr95": "Fraction of in-distribution inputs rejected when 95 % of the OOD inputs are detected.",
    "ausc": "Area under the sparsification curve: mean accuracy as the most uncertain 0 % to 99 % of the "
    "queries are dropped.",
    "aurc": "Area under the risk-coverage curve: mean error rate as coverage grows from the most certain "
    "query to all.",
    "r_auroc": "Probability that a wrong retrieval is more uncertain than a correct one.",
    "agreement_ausc": "* with disagreement in place of 1/κ: the fraction of sampled embeddings whose "
    "nearest neighbour is not of the majority class.",
    "ece": "Expected calibration error: mean absolute difference between confidence and accuracy.",
}
"""A sentence for the glossary; a metric without one is covered by another's."""

METHODS = dict(METHOD_TITLES)
DISTANCE_BASELINES = {
    "nearest-distance": "Nearest distance",
    "margin": "Top-1/top-2 margin",
    "knn-density": "k-NN density",
    "knn-vote": "k-NN vote",
    "mahalanobis": "Mahalanobis",
    "norm": "Norm of z",
    "novelty": "Novelty",
}
ABLATION = tuple(
    f"laplace-{stage}-{distance}-{approximation}"
    for stage in ("posthoc", "online")
    for distance in ("euclidean", "arccos")
    for approximation in ("fixed", "positive", "full")
)
DATASETS = {
    "fashion-mnist": "FashionMNIST",
    "mnist": "MNIST",
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "svhn": "SVHN",
    "cub200": "CUB200",
    "cars196": "Cars196",
    "lfw": "LFW",
    "msls": "MSLS",
    "gardens-point": "Gardens Point",
    "gardens-point-left": "Gardens Point, left",
    "st-lucia": "St Lucia",
    "berlin-halensee": "Berlin Halensee",
    "berlin-kudamm": "Berlin Kudamm",
    "berlin-a100": "Berlin A100",
    "nordland": "Nordland",
    "sped": "SPED",
    "omniglot": "Omniglot",
    "cub200-features": "CUB200, frozen features",
    "cars196-features": "Cars196, frozen features",
    "digits": "Digits",
}
BENCHMARKS = (
    "fashion-mnist",
    "cifar10",
    "digits",
    "cub200",
    "lfw",
    "msls",
    "omniglot",
    "cub200-features",
    "gardens-point",
    "gardens-point-left",
    "st-lucia",
    "berlin-halensee",
    "berlin-kudamm",
    "berlin-a100",
)
"""The data sets that have a protocol."""
RECIPES = {
    "paper": "the paper's recipe",
    "released": "the recipe with its code's learning rate",
}
"""Other protocols of some of them, under `{set}-{recipe}`."""
_BACKBONE = re.compile(r"(?:frozen|last(?P<stages>[1-9][0-9]*))-(?P<backbone>.+)")
NOISE = "noise"
"""The OOD set that is generated."""


def kind_of(method: str) -> Kind:
    """Return a method's kind; a name that is not known is a method of the user's."""
    if method in DISTANCE_BASELINES:
        return "baseline"
    return "ablation" if method in ABLATION else "method"


def method_title(method: str) -> str:
    """Return a method's name for readers."""
    return METHODS.get(method) or DISTANCE_BASELINES.get(method) or method


def base_set(name: str) -> str:
    """Return the data set that results are of, whatever protocol they were made by."""
    return _variant(name)[0]


def dataset_title(name: str) -> str:
    """Return a data set's name for readers, with the protocol where it is not the set's own."""
    base, how = _variant(name)
    title = "Noise" if base == NOISE else DATASETS.get(base, base)
    return f"{title}, {how}" if how else title


def _variant(name: str) -> tuple[str, str]:
    """Return the set that results are of and their protocol as a phrase, from the name that they are under.

    It is `{set}-{recipe}`, `{set}-frozen-{backbone}` or `{set}-last{k}-{backbone}`.

    A known set is none of these, whatever its name, and neither is a variant of an unknown one.
    """
    for base in () if name in DATASETS else sorted(DATASETS, key=len, reverse=True):
        how = name.removeprefix(f"{base}-")
        if how == name:
            continue
        if how in RECIPES:
            return base, RECIPES[how]
        if found := _BACKBONE.fullmatch(how):
            stages, backbone = found["stages"], found["backbone"]
            if stages is None:
                return base, f"frozen {backbone}"
            last = "last stage" if stages == "1" else f"last {stages} stages"
            return base, f"{last} of {backbone} trained"
    return name, ""


def ablation_parts(method: str) -> tuple[str, str, str]:
    """Return stage, distance and approximation of a variant of the ablation."""
    _, stage, distance, approximation = method.split("-")
    return stage.replace("posthoc", "post-hoc"), distance, approximation


def method_order(method: str) -> tuple[int, int, str]:
    """Return a key that sorts methods, then distance baselines, then the ablation, each in its order."""
    known = [*METHODS, *DISTANCE_BASELINES, *ABLATION]
    place = known.index(method) if method in known else len(METHODS)
    return ("method", "baseline", "ablation").index(kind_of(method)), place, method


def metric_of(name: str) -> Metric:
    """Return a metric by its key; one that is not known has no title but its name."""
    return next((m for m in METRICS if m.name == name), Metric(name, name, "Other", ""))
