"""Planted wrong labels: how many of them an audit finds, and cleanlab.

Run ``python benchmarks/audit.py --data FOLDER`` (or set SUREFIND_DATA); finished seeds are kept in
results/audit.json, ``--again`` measures them anew, and ``--ours`` this library alone, beside what cleanlab
found among the same planted labels before, which takes far longer. Needs cleanlab
(``pip install 'surefind[bench]'``).

2 % of the labels are replaced by another one at random, five times, in vectors of frozen models (`frozen`):
LFW (faces of 901 people), and CUB200's classes 101 to 200. Not blind: the audit's correction, its weight
of neighbours and its bound were fixed after results of three of CUB200's seeds had been seen.

*average precision* of the items in the order of suspicion; *at the number planted*: of so many first, the
fraction that was planted, which is precision and recall alike. *named*: those that each calls wrong by its
own cut, with their precision and recall. Labels that were wrong before anything was planted count as false
alarms, for both.

cleanlab scores out-of-sample probabilities of five-fold cross-validation: of logistic regression, C = 1, 10
and 100, of k nearest neighbours, weighted by distance, k = 10 and 30, and of its own `Datalab` on the
vectors (k = 10), which trains its neighbours with the item among them. Each has three scores, and they all
together an ensemble; the table shows the variant with the highest mean average precision on each set,
which nobody could choose without knowing the answer. Its cut is `find_label_issues`, the best by F1 of four
filters of the best probabilities, likewise.
"""

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from frozen import Columns, frozen
from measure import environment
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier

from surefind.labels.audit import audit_labels

RESULTS = Path(__file__).parent / "results" / "audit.json"
SEEDS, SHARE, FOLDS, TINY = 5, 0.02, 5, 1e-12
SCORES = ("self_confidence", "normalized_margin", "confidence_weighted_entropy")
FILTERS = ("prune_by_noise_rate", "prune_by_class", "both", "confident_learning")


def lfw(columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    return columns["vectors"], np.unique(columns["labels"], return_inverse=True)[1]


def cub200(columns: Columns) -> tuple[np.ndarray, np.ndarray]:
    held_out = columns["labels"] > 100
    return columns["vectors"][held_out], columns["labels"][held_out].astype(np.int64) - 101


SETS = {"LFW": ("lfw", lfw), "CUB200": ("cub200", cub200)}


def plant(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Replace a share of the labels by others at random; return them, and which were replaced."""
    rng = np.random.default_rng(seed)
    count, n = int(labels.max()) + 1, len(labels)
    wrong = np.zeros(n, dtype=bool)
    wrong[rng.choice(n, round(SHARE * n), replace=False)] = True
    other = (labels + rng.integers(1, count, size=n)) % count
    return np.where(wrong, other, labels), wrong


def ours(vectors: np.ndarray, labels: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    start = time.process_time()
    found = audit_labels(vectors, labels.tolist())
    seconds = time.process_time() - start
    suspicion = np.full(len(labels), -len(labels))  # labels of one item are not judged
    suspicion[found.rows] = -np.arange(len(found))
    named = np.zeros(len(labels), dtype=bool)
    named[found.rows[found.wrong >= 0.5]] = True
    return {
        **order_figures(wrong, suspicion),
        **cut_figures(wrong, named),
        "estimated_share": found.share,
        "cpu_seconds": seconds,
    }


def order_figures(wrong: np.ndarray, suspicion: np.ndarray) -> dict[str, float]:
    first = np.argsort(-suspicion, kind="stable")[: wrong.sum()]
    return {
        "average_precision": float(average_precision_score(wrong, suspicion)),
        "at_planted": float(wrong[first].mean()),
    }


def cut_figures(wrong: np.ndarray, named: np.ndarray) -> dict[str, float]:
    return {
        "named": int(named.sum()),
        "precision": float(wrong[named].mean()) if named.any() else 0.0,
        "recall": float(named[wrong].mean()),
    }


def classifiers() -> Iterator[tuple[str, Any]]:
    for c in (1, 10, 100):
        yield f"logistic regression, C = {c}", LogisticRegression(C=c, max_iter=200)
    for k in (10, 30):
        yield (
            f"{k} nearest neighbours",
            KNeighborsClassifier(k, weights="distance", metric="cosine"),
        )


def probabilities(model: Any, vectors: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Predict each item by a model that was fitted to other folds."""
    found = np.full((len(labels), int(labels.max()) + 1), TINY)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", UserWarning)  # classes of fewer members than folds
        for train, test in folds.split(vectors, labels):
            model.fit(vectors[train], labels[train])
            found[np.ix_(test, model.classes_)] = model.predict_proba(vectors[test])
    found = np.maximum(found, TINY)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def cleanlab(vectors: np.ndarray, labels: np.ndarray, wrong: np.ndarray) -> dict[str, Any]:
    """Measure every variant: figures of the order by name, and of the cut by probabilities and filter."""
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_ensemble_scores, get_label_quality_scores

    scores: dict[str, Any] = {}
    cuts: dict[str, Any] = {}
    every = []
    for name, model in classifiers():
        start = time.perf_counter()
        found = probabilities(model, vectors, labels)
        seconds = time.perf_counter() - start
        every.append(found)
        for score in SCORES:
            quality = get_label_quality_scores(labels, found, method=score)
            figures = order_figures(wrong, -quality)
            scores[f"{name}, {score}"] = {**figures, "seconds": seconds}
        for by in FILTERS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                named = find_label_issues(labels, found, filter_by=by, n_jobs=1)
            cuts[f"{name}, {by}"] = cut_figures(wrong, named)
    for score in SCORES:
        quality = get_label_quality_ensemble_scores(labels, every, method=score, verbose=False)
        scores[f"ensemble, {score}"] = order_figures(wrong, -quality)
    start = time.perf_counter()
    quality, named = datalab(vectors, labels)
    seconds = time.perf_counter() - start
    scores["Datalab"] = {**order_figures(wrong, -quality), "seconds": seconds}
    cuts["Datalab"] = cut_figures(wrong, named)
    return {"order": scores, "cut": cuts}


def datalab(vectors: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    from cleanlab import Datalab

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lab = Datalab({"label": labels}, label_name="label", verbosity=0)
        lab.find_issues(features=vectors, issue_types={"label": {}})
    table = lab.get_issues("label")
    return table["label_score"].to_numpy(), table["is_label_issue"].to_numpy(dtype=bool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SUREFIND_DATA"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "surefind-frozen"))
    parser.add_argument("--only", default="", help="how the names of sets begin")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--ours", action="store_true", help="keep cleanlab's figures of a seed")
    options = parser.parse_args()
    if options.data is None:
        raise SystemExit("give --data FOLDER, or set SUREFIND_DATA")
    for seed in range(SEEDS):
        for name, (stored, read) in SETS.items():
            kept = results()["sets"].get(name, {}).get(str(seed))
            if not name.startswith(options.only) or (kept and not (options.again or options.ours)):
                continue
            vectors, truth = read(frozen(stored, Path(options.data), options.work))
            labels, wrong = plant(truth, seed)
            found = {
                "items": len(labels),
                "labels": int(truth.max()) + 1,
                "planted": int(wrong.sum()),
                "surefind": ours(vectors, labels, wrong),
                "cleanlab": (
                    kept["cleanlab"] if kept and options.ours else cleanlab(vectors, labels, wrong)
                ),
            }
            best = max(f["average_precision"] for f in found["cleanlab"]["order"].values())
            print(name, seed, json.dumps(found["surefind"]), f"cleanlab {best:.4f}", flush=True)
            table = results()
            table["sets"].setdefault(name, {})[str(seed)] = found
            RESULTS.write_text(json.dumps(table, indent=1) + "\n")


def results() -> dict[str, Any]:
    """Return what was measured before, with the environment of now."""
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"sets": {}}
    used = {name: version(name) for name in ("scikit-learn", "scipy")}
    with suppress(PackageNotFoundError):  # not needed for this library alone
        used["cleanlab"] = version("cleanlab")
    return {
        "environment": table.get("environment", {}) | environment() | used,
        "share": SHARE,
        "sets": table["sets"],
    }


if __name__ == "__main__":
    main()
