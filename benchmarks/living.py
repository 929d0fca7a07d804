"""Day two: a gallery that calibrates itself, and one that grows tenfold while it is used.

Run ``python benchmarks/living.py --data FOLDER`` (or set SUREFIND_DATA); finished parts are kept in
results/living.json, ``--again`` measures all of them anew. Vectors are made once, in ``--work`` (`frozen`).

*Self*: the same gallery calibrated with half of the held-out queries, and with its own items, which were
told the share of unknown queries to expect. Both are then asked the other half: ``coverage`` is the share
of queries that is answered "match", ``wrong_rate`` how many of those are wrong. The ``oracle`` knows all
outcomes of that half and accepts, by the held-out calibration's probability, as many as the rate allows.
``coverage_at_its_risk`` is what the held-out calibration covers if it may be wrong as often as the other
was: a comparison of coverage at the same realised risk. CLINC150's test part has more unknown queries than
the part before it, which breaks any promise made there; *told* gives the items the share to come.

*Growth*: people are enrolled step by step until there are ten times as many, with `calibrate` repeated
after each step, as a renewal does, on the same queries and the same split; those whose label has been
enrolled meanwhile have changed sides. Queries are drawn with replacement from a population, which therefore
*is* the distribution, so the true rate after each step is a count. A life is ``broken`` if of all matches
over all steps more are wrong than was promised; ``broken_at_a_step`` is the mean share of steps with too
high a rate, ``broken_ever`` the share of lives in which some step had one. Without renewal the first
calibration decides to the end.

*Forecast*: `Gallery.forecast` by galleries of a random part of the labels, against what is measured in the
whole gallery in the same way; ``inside`` counts how often that lies in the interval.

*Cost*: a renewal of 3,000 queries in 100,000 items of 128 dimensions after one item was added, and the
search of all queries that it saves.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from decisions import coverage_at, open_set
from frozen import Columns, frozen
from measure import environment

from surefind import Gallery
from surefind.decisions import calibrate
from surefind.gallery.calibrating import answer
from surefind.gallery.calibration_queries import CalibrationQueries
from surefind.gallery.label_fit import fit_labels
from surefind.gallery.neighbourhoods import Neighbourhoods

RESULTS = Path(__file__).parent / "results" / "living.json"
SPLITS, SEED, CONFIDENCE = 5, 0, 0.95
STEPS, GROWTH = 11, 10.0
PATHS, LIVES, QUERIES, POPULATION = 10, 100, 1500, 6000
"""Orders in which people are enrolled, galleries that live through each, and their calibration queries."""


def clinc_split(columns: Columns, seed: int) -> tuple[Columns, Columns, Columns]:
    """Take the published parts; the seed has nothing to draw."""
    names = (["train"], ["val", "oos_val"], ["test", "oos_test"])
    some = [np.isin(columns["parts"], part) for part in names]
    gallery, first, rest = ({k: columns[k][s] for k in ("vectors", "labels")} for s in some)
    return gallery, first, rest


def open_split(columns: Columns, seed: int) -> tuple[Columns, Columns, Columns]:
    """Hold a third of the classes out as unknown, others in either half of the queries."""
    gallery, queries, enrolled = open_set(columns, 1 / 3, seed)
    rng = np.random.default_rng([SEED, seed, 1])
    strangers = rng.permutation(np.unique(queries["labels"][~enrolled]))
    first_half = np.isin(queries["labels"], strangers[: len(strangers) // 2])
    first = np.where(enrolled, rng.random(len(enrolled)) < 0.5, first_half)
    halves = [{k: v[some] for k, v in queries.items()} for some in (first, ~first)]
    return gallery, halves[0], halves[1]


def self_calibration(
    split: Callable[[Columns, int], tuple[Columns, Columns, Columns]],
    columns: Columns,
    max_wrong: float,
    splits: int = SPLITS,
    *,
    told: bool = False,
) -> dict[str, Any]:
    rows = []
    for seed in range(splits):
        items, first, rest = split(columns, seed)
        known = np.unique(items["labels"])
        gallery = Gallery(normalize=True)
        gallery.add(items["vectors"], labels=items["labels"].tolist())
        unknown = float(1 - np.isin((rest if told else first)["labels"], known).mean())
        target = {"max_wrong": max_wrong, "confidence": CONFIDENCE, "contributions": False}
        truth = rest["labels"].astype(object)
        row: dict[str, Any] = {"items": len(items["labels"]), "unknown": unknown}
        for name, made in (
            ("held_out", (first["vectors"], first["labels"].tolist())),
            ("self", ()),
        ):
            found = gallery.calibrate(*made, unknown_share=unknown, **target)
            answers = gallery.search(rest["vectors"], k=1)
            right = np.asarray(answers.label == truth, dtype=bool)
            match = answers.decision == "match"
            row[name] = {
                "queries": found.queries,
                "threshold": found.threshold,
                "coverage": float(match.mean()),
                "wrong_rate": float((~right)[match].mean()) if match.any() else 0.0,
            }
            if name == "held_out":
                score = answers.probability
                row["oracle"] = coverage_at(right, score, max_wrong)
            elif match.any():
                row["coverage_at_its_risk"] = coverage_at(right, score, row[name]["wrong_rate"])
        rows.append(row)
        print(row, flush=True)
    mean = {
        name: {
            key: float(np.mean([r[name][key] for r in rows])) for key in ("coverage", "wrong_rate")
        }
        | {"reached": float(np.mean([r[name]["threshold"] is not None for r in rows]))}
        for name in ("held_out", "self")
    }
    difference = [r["self"]["coverage"] - r.get("coverage_at_its_risk", 0.0) for r in rows]
    return {
        "max_wrong": max_wrong,
        **mean,
        "oracle": float(np.mean([r["oracle"] for r in rows])),
        "coverage_less_held_out_at_the_same_risk": float(np.mean(difference)),
        "splits": rows,
    }


def simulated_people(seed: int) -> tuple[Columns, Columns]:
    """Draw 900 people with three items each, and queries of 1,200 people."""
    rng = np.random.default_rng([SEED, seed, 2])
    centres = rng.normal(size=(1200, 24))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    width = 0.1 * np.exp(0.35 * rng.normal(size=1200))  # some faces vary more than others

    def faces(who: np.ndarray) -> Columns:
        x = centres[who] + width[who, None] * rng.normal(size=(len(who), 24))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        return {"vectors": x.astype(np.float32), "labels": who}

    return faces(np.repeat(np.arange(900), 3)), faces(rng.integers(1200, size=POPULATION))


def lfw_people(columns: Columns, seed: int) -> tuple[Columns, Columns]:
    items, queries, _ = open_set(columns, 1 / 4, seed)
    return items, queries


def growth(
    people: Callable[[int], tuple[Columns, Columns]], max_wrong: float, paths: int
) -> dict[str, Any]:
    lives = []
    for path in range(paths):
        items, queries = people(path)
        stages = list(grown(items, queries, path))
        for life in range(LIVES):
            lives.append(one_life(stages, np.random.default_rng([SEED, path, life]), max_wrong))
        print(path, np.mean([x["renewed"]["broken"] for x in lives]), flush=True)
    return {
        "max_wrong": max_wrong,
        "lives": len(lives),
        "labels": [stage[3] for stage in stages],
        **{
            name: {
                key: float(np.mean([life[name][key] for life in lives])) for key in lives[0][name]
            }
            for name in lives[0]
        },
    }


def grown(items: Columns, queries: Columns, seed: int) -> Any:
    """Enrol label by label, and yield signals, outcomes and sides of all queries after each step."""
    rng = np.random.default_rng([SEED, seed, 3])
    order = rng.permutation(np.unique(items["labels"]))
    sizes = np.geomspace(len(order) / GROWTH, len(order), STEPS).round().astype(int)
    gallery = Gallery(normalize=True)
    vectors, truth = queries["vectors"], queries["labels"].tolist()
    asked = CalibrationQueries.held_out(
        np.asarray(vectors, dtype=np.float32), np.full(len(truth), np.inf), None, truth, None, None
    )
    labels, before = None, 0
    for size in sizes.tolist():
        new = np.isin(items["labels"], order[before:size])
        gallery.add(items["vectors"][new], labels=items["labels"][new].tolist())
        before = size
        engine = gallery._engine
        if labels is None or len(gallery) > 2 * labels.items:
            labels = fit_labels(engine)
        hoods = Neighbourhoods.search(engine, asked)
        found = answer(engine, asked, hoods, labels).answers
        yield found.signals, found.right, found.enrolled, size


def one_life(stages: list[Any], rng: np.random.Generator, max_wrong: float) -> dict[str, Any]:
    drawn = rng.integers(len(stages[0][1]), size=QUERIES)
    seed = int(rng.integers(2**31))
    counts: dict[str, list[tuple[int, int]]] = {"renewed": [], "never_renewed": []}
    first = None
    for signals, right, enrolled, _ in stages:
        found = calibrate(
            signals[drawn],
            right[drawn],
            enrolled=enrolled[drawn],
            max_wrong=max_wrong,
            confidence=CONFIDENCE,
            contributions=False,
            rng=np.random.default_rng(seed),
        )
        first = first or found
        for name, made in (("renewed", found), ("never_renewed", first)):
            threshold = np.inf if made.threshold is None else made.threshold
            match = made.probability(signals) >= threshold
            counts[name].append((int(match.sum()), int((match & ~right).sum())))
    return {name: judged(np.array(c), len(stages[0][1]), max_wrong) for name, c in counts.items()}


def judged(counts: np.ndarray, population: int, max_wrong: float) -> dict[str, float]:
    matches, wrong = counts.T
    rate = wrong / np.maximum(matches, 1)
    total = wrong.sum() / max(matches.sum(), 1)
    return {
        "broken": float(total > max_wrong),
        "broken_at_a_step": float((rate > max_wrong).mean()),
        "broken_ever": float((rate > max_wrong).any()),
        "wrong_rate": float(total),
        "reached": float((matches > 0).mean()),
        "coverage": float(matches.mean() / population),
    }


def forecasts(columns: Columns, labels: int, max_wrong: float) -> dict[str, Any]:
    """Forecast the whole set from a part of its labels."""
    every, rows = np.unique(columns["labels"]), []
    target = {"max_wrong": max_wrong, "unknown_share": 1 / 3}
    for seed in range(SPLITS):
        some = np.random.default_rng([SEED, seed, 4]).permutation(every)[:labels]
        growth = len(every) / labels
        small, whole = (
            filled(columns, np.isin(columns["labels"], part)).forecast(growth, seed=seed, **target)
            for part in (some, every)
        )
        actual, (low, high) = whole.coverage[-1], small.interval
        rows.append({"now": small.now, "later": small.later, "low": low, "high": high})
        rows[-1] |= {"actual": actual, "inside": float(low <= actual <= high)}
        print(rows[-1], flush=True)
    mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    error = float(np.mean([abs(row["later"] - row["actual"]) for row in rows]))
    return {"labels": [labels, len(every)], "max_wrong": max_wrong, **mean, "error": error}


def filled(columns: Columns, which: np.ndarray) -> Gallery:
    gallery = Gallery(normalize=True)
    gallery.add(columns["vectors"][which], labels=columns["labels"][which].tolist())
    return gallery


def cost() -> dict[str, float]:
    rng = np.random.default_rng(SEED)
    labels, dim = 10_000, 128
    centres = rng.normal(size=(labels, dim))

    def items(who: np.ndarray) -> np.ndarray:
        x = centres[who] + 0.8 * rng.normal(size=(len(who), dim))
        return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)

    who = np.repeat(np.arange(labels), 10)
    gallery = Gallery()
    gallery.add(items(who), labels=who)
    asked = rng.integers(labels, size=2000)
    strangers = rng.normal(size=(1000, dim))
    strangers /= np.linalg.norm(strangers, axis=1, keepdims=True)
    queries = np.concatenate([items(asked), strangers.astype(np.float32)])
    gallery.calibrate(queries, [*asked.tolist(), *[None] * 1000], contributions=False)
    changes: dict[str, Callable[[int], object]] = {
        "one_added": lambda n: gallery.add(items(np.array([n])), labels=[n]),
        "hundred_added": lambda n: gallery.add(items(np.arange(100)), labels=np.arange(100)),
        "one_deleted": gallery.delete,
    }
    times: dict[str, list[float]] = {name: [] for name in changes}
    for n in range(5):
        for name, change in changes.items():
            change(n)
            start = time.perf_counter()
            gallery.renew()
            times[name].append(time.perf_counter() - start)
    start = time.perf_counter()
    Neighbourhoods.search(gallery._engine, gallery._state.queries)
    whole = time.perf_counter() - start
    return {name: min(seconds) for name, seconds in times.items()} | {"search_of_all": whole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SUREFIND_DATA"))
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "surefind-frozen"
    )
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--only", help="parts whose name contains this")
    given = parser.parse_args()

    def vectors(name: str) -> Columns:
        if given.data is None:
            raise SystemExit("this part needs --data FOLDER, or SUREFIND_DATA")
        return frozen(name, Path(given.data), given.work)

    parts: dict[str, Callable[[], Any]] = {
        "cost": cost,
        "growth, simulated": lambda: growth(simulated_people, 0.05, PATHS),
        "self, LFW": lambda: self_calibration(open_split, vectors("lfw"), 0.01),
        "self, CLINC150": lambda: self_calibration(clinc_split, vectors("clinc150"), 0.05, 1),
        "self, CLINC150, told": lambda: self_calibration(
            clinc_split, vectors("clinc150"), 0.05, 1, told=True
        ),
        "self, CUB200": lambda: self_calibration(open_split, vectors("cub200"), 0.1),
        "self, CUB200 at 20 %": lambda: self_calibration(open_split, vectors("cub200"), 0.2),
        "forecast, LFW": lambda: forecasts(vectors("lfw"), 90, 0.01),
        "forecast, CUB200": lambda: forecasts(vectors("cub200"), 40, 0.2),
        "growth, LFW": lambda: growth(lambda seed: lfw_people(vectors("lfw"), seed), 0.02, 3),
    }
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() and not given.again else {}
    table["environment"] = environment()
    for name, measure in parts.items():
        if name in table or (given.only and given.only not in name):
            continue
        print(f"{name} …", flush=True)
        table[name] = measure()
        RESULTS.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
