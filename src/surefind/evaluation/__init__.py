"""Measuring a learner on data it has not seen, and what its numbers mean in words.

What stands here needs no PyTorch.
"""

import math
from collections.abc import Mapping, Sequence

PARTS = {"id": "In-distribution", "ood": "Out-of-distribution"}
MEANINGS = {
    "recall@1": "the nearest neighbour is relevant",
    "recall@5": "a relevant item among the five nearest",
    "recall@10": "a relevant item among the ten nearest",
    "map@5": "mean average precision of the five nearest",
    "map@10": "mean average precision of the ten nearest",
    "auroc": "OOD detection by uncertainty; 0.5 is chance",
    "nearest_distance_auroc": "OOD detection by the distance to the nearest; 0.5 is chance",
    "novelty_auroc": "OOD detection by novelty; 0.5 is chance",
    "false_alarms_1": "known inputs that novelty flags at p <= 1 %; promised: at most 1 %",
    "false_alarms_5": "known inputs that novelty flags at p <= 5 %; promised: at most 5 %",
    "auprc": "area under the precision-recall curve of the same task",
    "fpr95": "false positives at 95 % of OOD inputs detected; lower is better",
    "ausc": "accuracy as uncertain queries are dropped",
    "aurc": "risk as uncertain queries are dropped; lower is better",
    "r_auroc": "detection of wrong retrievals by uncertainty; 0.5 is chance",
    "nearest_distance_r_auroc": "as r_auroc, by the distance to the nearest",
    "novelty_r_auroc": "as r_auroc, by novelty",
    "agreement_ausc": "as ausc, by disagreement of samples",
    "agreement_r_auroc": "as r_auroc, by disagreement of samples",
    "ece": "expected calibration error; lower is better",
}
"""What each metric means, in the order in which they are shown."""
DETECTORS = {"": "κ", "nearest_distance_": "nearest distance", "novelty_": "novelty"}
"""What an input of one model can be doubted by, by the prefix of its metrics."""
DETECTED = {"auroc": "OOD inputs", "r_auroc": "Wrong retrievals"}
"""What they detect, by metric."""
Intervals = Mapping[str, Sequence[float]]


def best_detector(
    values: Mapping[str, float], metric: str = "auroc", intervals: Intervals | None = None
) -> str:
    """Say which detector of one model is best, and what the others reach.

    Args:
        values: Metrics by name.
        metric: One of `DETECTED`.
        intervals: Their intervals, to say where a lead may be chance; None if they are not known.

    Returns:
        A sentence or two; empty if there are not two to compare.
    """
    names = {title: f"{prefix}{metric}" for prefix, title in DETECTORS.items()}
    found = {title: values[name] for title, name in names.items() if name in values}
    if len(found) < 2:
        return ""
    shown = {title: f"{v:.3f}" for title, v in sorted(found.items(), key=lambda f: -f[1])}
    top = max(shown.values())
    best = [title for title, text in shown.items() if text == top]
    rest = [f"{title} {text}" for title, text in shown.items() if text != top]
    said = f"{' and '.join(best)} {'detect' if best[1:] else 'detects'} them best ({top})"
    if float(top) <= 0.5:
        said, rest = (
            "nothing detects them better than chance",
            [f"{title} {text}" for title, text in shown.items()],
        )
    said = f"{DETECTED[metric]}: {said}{'; ' if rest else ''}{', '.join(rest)}."
    low = (intervals or {}).get(names[best[0]], (math.inf, 0))[0]
    near = [
        title
        for title, text in shown.items()
        if text != top and low <= (intervals or {}).get(names[title], (0, -math.inf))[1]
    ]
    return (
        f"{said} The 95 % intervals of {' and '.join([best[0], *near])} overlap." if near else said
    )


def best_detectors(values: Mapping[str, float], intervals: Intervals | None = None) -> list[str]:
    """Say which detector is best at each task, for each task that there is something to say of."""
    return [said for metric in DETECTED if (said := best_detector(values, metric, intervals))]
