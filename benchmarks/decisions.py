"""Whether calibrations keep what they guarantee, counted.

Run ``python benchmarks/decisions.py --data FOLDER`` (or set SUREFIND_DATA); finished parts are kept in
results/decisions.json, ``--again`` measures all of them anew. The simulated part needs no data; `frozen`
says what the others need. What decisions are worth beside simple rivals: `labels`.

Calibrations are repeated on queries drawn with replacement from one population, simulated or real. The
population is then the distribution, so the true wrong-match rate of each calibration is a count, and
``exceeded`` is the fraction of calibrations in which it is above ``max_wrong``: at most 0.05 is guaranteed.
``reached`` is the fraction that found a threshold: with few queries whose answers are all right, to find
none is bad luck or a bad plan. ``best_coverage`` is what a threshold chosen with knowledge of all outcomes
could accept, by the evidence as it comes. With ``told``, as many queries are drawn from the known as from
the unknown ones, the calibration is told the population's share, and the rate is that of the population.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from frozen import Columns, frozen
from measure import environment

import surefind as sf
from surefind.metrics import risk_coverage_curve

RESULTS = Path(__file__).parent / "results" / "decisions.json"
SEED = 0
RUNS, QUERIES, POPULATION, LABELS = 1000, 1500, 10_000, 8
FEW = 650
"""Enough for 1 % if all answers are right: two thirds are 434 queries, of which 299 must be accepted."""
GALLERIES, REAL_RUNS = 4, 100

Asked = tuple[sf.LabelPosterior, np.ndarray]
"""Evidence about queries, and the number of each query's label, -1 for an unknown one."""


def world(n: int, rng: np.random.Generator, *, unknown: float, clear: float) -> Asked:
    """Draw evidence: the clearer, the fewer answers are wrong; odds of the known are noisy, too."""
    truth, strange = rng.integers(LABELS, size=n), rng.random(n) < unknown
    logits = 1.5 * rng.normal(size=(n, LABELS))
    logits[np.arange(n), truth] += np.where(strange, 0, rng.gamma(4, clear, size=n))
    known = 1 / (1 + np.exp(3.5 - logits.max(axis=1) - rng.normal(size=n)))
    share = np.exp(logits - logits.max(axis=1, keepdims=True))
    share *= known[:, None] / share.sum(axis=1, keepdims=True)
    return sf.LabelPosterior([*range(LABELS)], share, 1 - known), np.where(strange, -1, truth)


def promise(
    asked: Asked, runs: int, queries: int, max_wrong: float, *, told: bool
) -> dict[str, Any]:
    """Calibrate again and again on queries drawn from a population, and count what became of it."""
    posterior, truth = asked
    right, known = posterior.label == truth, truth >= 0
    coverage, rate = np.zeros(runs), np.zeros(runs)
    kinds = [np.flatnonzero(known), np.flatnonzero(~known)]
    share = float((~known).mean())
    for run in range(runs):
        rng = np.random.default_rng([SEED, run])
        drawn = (
            np.concatenate([rng.choice(kind, size=queries // 2) for kind in kinds])
            if told
            else rng.choice(len(truth), size=queries)
        )
        found = sf.calibrate(
            posterior[drawn],
            [None if t < 0 else t for t in truth[drawn].tolist()],
            enrolled=known[drawn],
            max_wrong=max_wrong,
            unknown_share=share if told else None,
            seed=run,
        )
        match = found.model(posterior) >= (np.inf if found.threshold is None else found.threshold)
        coverage[run] = match.mean()
        rate[run] = (~right)[match].mean() if match.any() else 0
    reached = coverage > 0
    score = posterior.label_probability[:, 0]
    curve = risk_coverage_curve(right, -score)
    return {
        "max_wrong": max_wrong,
        "runs": runs,
        "queries": queries,
        "population": len(right),
        "unknown": share,
        "exceeded": float((rate > max_wrong).mean()),
        "reached": float(reached.mean()),
        "coverage": float(coverage[reached].mean()) if reached.any() else 0.0,
        "wrong_rate": float(rate[reached].mean()) if reached.any() else 0.0,
        "best_coverage": float(curve.coverage[curve.risk <= max_wrong].max(initial=0)),
        "right": float(right.mean()),
    }


def simulated(
    queries: int, max_wrong: float, *, told: bool = False, **how: float
) -> dict[str, Any]:
    rng = np.random.default_rng(SEED)
    return promise(world(POPULATION, rng, **how), RUNS, queries, max_wrong, told=told)


def real(columns: Columns, unknown_fraction: float, max_wrong: float) -> dict[str, Any]:
    """Repeat calibrations on real queries, a quarter of the times with other classes enrolled."""
    parts = []
    for seed in range(GALLERIES):
        rng = np.random.default_rng([SEED, seed])
        labels = np.unique(columns["labels"], return_inverse=True)[1]
        classes = rng.permutation(int(labels.max()) + 1)
        inside = np.zeros(len(labels), dtype=bool)
        for label in classes[int(unknown_fraction * len(classes)) :]:
            own = rng.permutation(np.flatnonzero(labels == label))
            inside[own[: max(1, len(own) // 2)]] = True
        known, truth = np.unique(labels[inside]), labels[~inside]
        model = sf.LabelModel().fit(columns["vectors"][inside], labels[inside].tolist())
        posterior = model.posterior(columns["vectors"][~inside])
        truth = np.where(np.isin(truth, known), truth, -1)
        parts.append(promise((posterior, truth), REAL_RUNS, len(truth) // 2, max_wrong, told=False))
    means = {key: float(np.mean([p[key] for p in parts])) for key in parts[0]}
    return means | {"max_wrong": max_wrong, "runs": GALLERIES * REAL_RUNS, "galleries": parts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SUREFIND_DATA"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "surefind-frozen"))
    parser.add_argument("--only", default="", help="how the names of parts begin")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    clear: dict[str, Any] = {"unknown": 0.25, "clear": 1.6}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "promise, simulated": partial(simulated, QUERIES, 0.05, **clear),
        "promise, simulated, often confused": partial(
            simulated, QUERIES, 0.05, unknown=0.1, clear=0.7
        ),
        "promise, simulated, told the share": partial(simulated, QUERIES, 0.05, told=True, **clear),
        f"promise, simulated, {FEW} queries, all right": partial(
            simulated, FEW, 0.01, unknown=0.0, clear=20.0
        ),
    }
    if options.data is not None:
        for name, stored, unknown, target in (
            ("promise, LFW", "lfw", 1 / 3, 0.01),
            ("promise, CUB200", "cub200", 1 / 4, 0.1),
        ):
            parts[name] = lambda s=stored, u=unknown, t=target: real(
                frozen(s, Path(options.data), options.work), u, t
            )
    for name, measure in parts.items():
        if name.startswith(options.only) and (options.again or name not in results()["parts"]):
            found = measure()
            print(name, json.dumps(found), flush=True)
            table = results()  # read again: another process may measure other parts
            table["parts"][name] = found
            RESULTS.write_text(json.dumps(table, indent=1) + "\n")


def results() -> dict[str, Any]:
    """Return what was measured before, with the environment of now."""
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"parts": {}}
    used = {name: version(name) for name in ("scikit-learn", "scipy")}
    return {"environment": environment() | used, "seed": SEED, "parts": table["parts"]}


if __name__ == "__main__":
    main()
