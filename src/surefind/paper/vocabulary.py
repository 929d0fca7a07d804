"""The names of a benchmark: methods, data sets and metrics, with their titles for readers.

| metric | definition |
| --- | --- |
| recall@k | fraction of queries with a relevant item among the k nearest |
| recall@k_50m | the same where anything within 50 m is relevant, of positions in metres |
| right | fraction of queries that a classifier gives their label |
| map@k | mean average precision of the first k, divided by min(k, relevant items) |
| auroc, auprc, fpr95 | detection of out-of-distribution inputs by uncertainty |
| ausc, aurc, r_auroc | detection of wrong retrievals by uncertainty |
| nearest_distance_auroc, nearest_distance_r_auroc | auroc and r_auroc by the distance to the nearest |
| novelty_auroc, novelty_r_auroc | auroc and r_auroc by novelty |
| agreement_ausc, agreement_r_auroc | the same by the disagreement of sampled neighbours |
| ece | expected calibration error |

What a benchmark compares is called a method. It is of one of three kinds: a method of
`surefind.learning`, or the head in closed form on all layers of the point estimate; a distance baseline (an
uncertainty computed from the point estimate's embeddings and features at no further training); or a variant
of the ablation, named posthoc/online × distance × approximation. Nothing here imports PyTorch, so that
shell completion can read it.
"""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from surefind.learning import METHOD_TITLES
from surefind.paper.catalogue import ENTRIES

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
        definition: A sentence for the glossary; empty where another metric's covers it.
    """

    name: str
    title: str
    group: str
    better: Literal["higher", "lower", ""]
    definition: str = ""

    @property
    def arrow(self) -> str:
        """The better direction as a sign."""
        return {"higher": "↑", "lower": "↓", "": ""}[self.better]


RETRIEVAL = "Retrieval"
VOCABULARY = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS = tuple(Metric(**fields) for fields in VOCABULARY["metrics"])
"""In the order of the columns."""

LAYERS = "layers"
METHODS = {**METHOD_TITLES, LAYERS: "Head of all layers"}
DISTANCE_BASELINES: dict[str, str] = VOCABULARY["distance_baselines"]
BASELINES = tuple(name for name in DISTANCE_BASELINES if name != "knn-vote")
"""Those that are measured: of a vote with fitted temperatures there are earlier results alone."""
ABLATION = tuple(
    f"laplace-{stage}-{distance}-{approximation}"
    for stage in ("posthoc", "online")
    for distance in ("euclidean", "arccos")
    for approximation in ("fixed", "positive", "full")
)
DATASETS = {name: entry.short for name, entry in ENTRIES.items()}
OTHERS = {"mnist", "cifar100", "svhn", "cars196", "nordland", "sped"}
BENCHMARKS = tuple(name for name in DATASETS if name not in OTHERS)
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
