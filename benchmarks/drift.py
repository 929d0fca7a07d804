"""How seldom a watch raises a false alarm, how soon a true one, and what it costs.

Run ``python benchmarks/drift.py``; it needs no data. Finished parts are kept in results/drift.json,
``--again`` measures all of them anew.

*Simulated queries*: novelty is uniform; the log-odds of the probability are normal around 4 for four
fifths, around -2 for the others, with deviation 1.5. Queries that do not pass a gate at 1 % (p <= 0.1) have
no probability, in the calibration and live, as `surefind.decisions.drift` wants it.

*Stable*: nothing changes. ``alarms`` of ``runs`` watches, each with calibration queries of its own, and the
95 % upper bound (Clopper-Pearson) of the share; at most 0.01 is guaranteed, ever. *Fitted* does the same
with probabilities that were really fitted to a third of 1,000 queries; ``all`` starts the watch from these
too, which breaks the premise.

*Drift* after so many stable queries, of a kind; the weights of the starts (of three) and the bets (of four
sets) were chosen by simulations of the same kinds:

    far           a share of queries has a novelty p-value of 1e-4 to 1e-2 (nine of ten of them)
    near          a share has the cube of a uniform novelty, and low probabilities
    unknown       a share is like the fifth with low probabilities: labels that are not enrolled
    blurred       the log-odds of all probabilities fall by 1; novelty stays
    far, slowly   as far, with a share that grows from 0 over 1,000 queries

``delay`` is the median number of queries until the alarm, over all runs without one before the change;
``since_error`` the median distance of the alarm's ``since_query`` from the first query after the change.

*Digits*: those of scikit-learn, as vectors of pixels. 0 to 7 are enrolled, 8s are unknown queries. Half of
1,117 queries calibrate, the others are live, divided at random again and again; after 358 of them, a share
is replaced by photographs or by 9s. A probability is fitted to a third of the calibration queries.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from decisions import world
from measure import environment
from scipy.stats import beta

import surefind as sf
from surefind.data.sources import load_digits
from surefind.decisions.decision import Gate
from surefind.decisions.drift import Watch
from surefind.files import to_stored

RESULTS = Path(__file__).parent / "results" / "drift.json"
SEED = 0
GATE = Gate(0.01)
STABLE, LONG, DRIFTS, DIVISIONS, FITTED = 10_000, 2_000, 500, 400, 300
AFTER, SOON = 1000, 200
MILLION = 1_000_000

Values = tuple[np.ndarray, np.ndarray]


def stable(n: int, rng: np.random.Generator) -> Values:
    novelty = rng.random(n)
    return novelty, probability(np.where(rng.random(n) < 0.8, 4, -2), 1.5, rng)


def probability(mean: np.ndarray | float, deviation: float, rng: np.random.Generator) -> np.ndarray:
    return 1 / (1 + np.exp(-rng.normal(mean, deviation)))


def far(n: int, share: float | np.ndarray, rng: np.random.Generator) -> Values:
    novelty, likely = stable(n, rng)
    found = rng.random(n) < 0.9 * share
    return np.where(found, 10 ** rng.uniform(-4, -2, size=n), novelty), likely


def near(n: int, share: float, rng: np.random.Generator) -> Values:
    (novelty, likely), moved = stable(n, rng), rng.random(n) < share
    low = probability(np.full(n, -1.0), 2, rng)
    return np.where(moved, novelty**3, novelty), np.where(moved, low, likely)


def unknown(n: int, share: float, rng: np.random.Generator) -> Values:
    novelty, likely = stable(n, rng)
    low = probability(np.full(n, -2.0), 1.5, rng)
    return novelty, np.where(rng.random(n) < share, low, likely)


def blurred(n: int, share: float, rng: np.random.Generator) -> Values:
    novelty, likely = stable(n, rng)
    lower = likely / (likely + np.e * (1 - likely))
    return novelty, np.where(rng.random(n) < share, lower, likely)


def slowly(n: int, share: float, rng: np.random.Generator) -> Values:
    return far(n, share * np.arange(n) / n, rng)


Kind = Callable[[int, float, np.random.Generator], Values]
KINDS: dict[str, tuple[Kind, tuple[float, ...]]] = {
    "far": (far, (0.05, 0.1, 0.2)),
    "near": (near, (0.2,)),
    "unknown": (unknown, (0.2,)),
    "blurred": (blurred, (1.0,)),
    "far, slowly": (slowly, (0.2,)),
}


def gated(values: Values) -> Values:
    """Leave queries that do not pass the gate out of the stream of probabilities."""
    novelty, likely = values
    return novelty, np.where(GATE.outcome(novelty) == "pass", likely, np.nan)


def false_alarms(runs: int, calibration: int, live: int) -> dict[str, Any]:
    """Watch stable queries, and count."""
    alarms = 0
    for run in range(runs):
        rng = np.random.default_rng([SEED, calibration, live, run])
        watch = Watch.start(*gated(stable(calibration, rng)), seed=run)
        alarms += watch.see(*gated(stable(live, rng))).alarm is not None
    return {"calibration": calibration, "live": live} | counted(alarms, runs)


def counted(alarms: int, runs: int) -> dict[str, Any]:
    upper = float(beta.ppf(0.95, alarms + 1, runs - alarms)) if alarms < runs else 1.0
    return {"runs": runs, "alarms": alarms, "upper_bound": upper}


def delays(kind: str, share: float, calibration: int, before: int) -> dict[str, Any]:
    """Watch stable queries, then others, and say how soon that is noticed."""

    def streams() -> Iterator[tuple[Watch, Values]]:
        for run in range(DRIFTS):
            rng = np.random.default_rng([SEED, calibration, before, run])
            watch = Watch.start(*gated(stable(calibration, rng)), seed=run)
            watch.see(*gated(stable(before, rng)))
            yield watch, gated(KINDS[kind][0](AFTER, share, rng))

    about = {"kind": kind, "share": share, "calibration": calibration, "before": before}
    return about | noticed(streams(), before)


def noticed(streams: Iterator[tuple[Watch, Values]], before: int) -> dict[str, Any]:
    """Show each watch, which has seen queries before, what comes then."""
    waited, errors, names, early = [], [], [], 0
    for watch, values in streams:
        if watch.report.alarm is not None:
            early += 1
            continue
        alarm = watch.see(*values).alarm
        waited.append(np.inf if alarm is None else alarm.query - before)
        if alarm is not None:
            errors.append(abs(alarm.since_query - before - 1))
            names.append(alarm.stream)
    delay, slow = (float(np.quantile(waited, q, method="higher")) for q in (0.5, 0.9))
    return {
        "runs": len(waited) + early,
        "alarms_before": early,
        "noticed": len(errors) / len(waited),
        "noticed_within_200": float(np.mean(np.array(waited) <= SOON)),
        "delay": None if np.isinf(delay) else delay,
        "delay_90_percent": None if np.isinf(slow) else slow,
        "since_error": float(np.median(errors)) if errors else None,
        "by_novelty": names.count("novelty") / len(names) if names else None,
    }


@dataclass(frozen=True, eq=False)
class DigitQueries:
    """Digits and photographs, as a label model of some digits sees them.

    Attributes:
        posterior: Evidence about each.
        truth: Their labels, None for those that are not enrolled.
        novelty: p-values.
        groups: Rows of the queries to divide, of 9s and of photographs.
    """

    posterior: sf.LabelPosterior
    truth: np.ndarray
    novelty: np.ndarray
    groups: dict[str, np.ndarray]


def fitted(calibration: int, live: int, *, seen: bool) -> dict[str, Any]:
    """Count false alarms with real fits of the probability, with and without the queries of the fit."""
    alarms = 0
    for run in range(FITTED):
        rng = np.random.default_rng([SEED, calibration, run])
        (asked, truth), (later, _) = (
            world(n, rng, unknown=0.2, clear=1.6) for n in (calibration, live)
        )
        known = [None if t < 0 else t for t in truth.tolist()]
        found = sf.calibrate(asked, known, enrolled=truth >= 0, max_wrong=0.05, seed=run)
        likely = found.model(asked) if seen else found.tested_probability
        watch = Watch.start(None, likely, seed=run)
        alarms += watch.see(None, found.model(later)).alarm is not None
    return {"calibration": calibration, "live": live} | counted(alarms, FITTED)


@cache
def digit_queries() -> DigitQueries:
    """Enrol 500 digits and search the others."""
    parts = load_digits(n_ood=500)
    vectors, photographs = (
        np.concatenate([
            np.asarray(parts[name].inputs).reshape(len(parts[name]), -1) for name in names
        ])
        for names in (("train", "test"), ("ood",))
    )
    labels = np.concatenate([np.asarray(parts[name].labels) for name in ("train", "test")])
    rng = np.random.default_rng(SEED)
    items, rest = np.split(rng.permutation(np.flatnonzero(labels < 8)), [500])
    groups = {"digits": np.concatenate([rest, np.flatnonzero(labels == 8)])}
    groups["9s"] = np.flatnonzero(labels == 9)
    groups["photographs"] = len(vectors) + np.arange(len(photographs))
    every = np.concatenate([vectors, photographs]).astype(np.float32)
    truth = np.concatenate([labels, np.full(len(photographs), -1)])
    named = np.where(np.isin(truth, range(8)), truth.astype(object), None)
    model = sf.LabelModel().fit(every[items], labels[items].tolist())
    return DigitQueries(model.posterior(every), named, model.novelty(every), groups)


def digits(strange: str | None, share: float) -> dict[str, Any]:
    """Divide the digits again and again into calibration and live queries."""
    queries = digit_queries()
    passing = GATE.outcome(queries.novelty) == "pass"
    half = len(queries.groups["digits"]) // 2
    before = half if strange is None else half - SOON

    def streams() -> Iterator[tuple[Watch, Values]]:
        for run in range(DIVISIONS):
            rng = np.random.default_rng([SEED, run])
            cal, live = np.split(rng.permutation(queries.groups["digits"])[: 2 * half], 2)
            if strange is not None:
                rows = np.flatnonzero((np.arange(half) >= before) & (rng.random(half) < share))
                live[rows] = rng.choice(queries.groups[strange], size=len(rows), replace=False)
            found = sf.calibrate(
                queries.posterior[cal],
                queries.truth[cal].tolist(),
                enrolled=queries.truth[cal] != None,  # noqa: E711
                max_wrong=0.05,
                novelty=queries.novelty[cal],
                seed=run,
            )
            likely = np.where(passing, found.model(queries.posterior), np.nan)
            likely[cal] = found.tested_probability
            watch = Watch.start(queries.novelty[cal], likely[cal], seed=run)
            watch.see(queries.novelty[live[:before]], likely[live[:before]])
            yield watch, (queries.novelty[live[before:]], likely[live[before:]])

    if strange is None:
        alarms = sum(watch.report.alarm is not None for watch, _ in streams())
        return {"calibration": half, "live": half} | counted(alarms, DIVISIONS)
    about = {"kind": strange, "share": share, "calibration": half, "before": before}
    return about | noticed(streams(), before)


def cost() -> dict[str, Any]:
    """Measure CPU time of a query, in batches and alone, and a stream of a million."""
    rng = np.random.default_rng(SEED)
    watch = Watch.start(*stable(3000, rng))
    values = stable(MILLION, rng)
    began = time.process_time()
    for first in range(0, MILLION, 1000):
        watch.see(*(column[first : first + 1000] for column in values))
    batched = (time.process_time() - began) / MILLION
    report, size = watch.report, len(json.dumps(to_stored(Watch, watch)))
    began = time.process_time()
    for row in range(2000):
        watch.see(*(column[row : row + 1] for column in values))
    return {
        "batch_of_1000_us": 1e6 * batched,
        "one_at_a_time_us": 1e6 * (time.process_time() - began) / 2000,
        "json_bytes": size,
        "queries": report.queries,
        "alarm": report.alarm is not None,
    }


def cases() -> dict[str, Callable[[], dict[str, Any]]]:
    """Name everything that is measured."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {"cost": cost}
    for runs, live in ((STABLE, 2000), (LONG, 10_000)):
        for n in (1000, 3000):
            parts[f"stable, {n} calibration queries, {live} live ones"] = partial(
                false_alarms, runs, n, live
            )
    for kind, (_, shares) in KINDS.items():
        for share, n, before in product(shares, (1000, 3000), (0, 1000)):
            parts[f"drift, {kind}, {share:g}, {n} calibration queries, after {before}"] = partial(
                delays, kind, share, n, before
            )
    parts["fitted, fresh"] = partial(fitted, 1000, 5000, seen=False)
    parts["fitted, all"] = partial(fitted, 1000, 5000, seen=True)
    parts["digits, stable"] = partial(digits, None, 0.0)
    for strange, share in (("photographs", 0.2), ("9s", 0.2), ("9s", 0.5)):
        parts[f"digits, {strange}, {share:g}"] = partial(digits, strange, share)
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="how the names of parts begin")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    for name, measure in cases().items():
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
