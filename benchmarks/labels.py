"""The label model beside what anybody would write in ten minutes, on vectors that others made.

    python benchmarks/labels.py --data FOLDER      measure (or set SUREFIND_DATA), then write the page
    python benchmarks/labels.py                    write docs/results/labels.md from what was measured

A case that has a result in results/labels.json is not measured again; ``--again`` does, and ``--only``
takes the cases whose names begin so. Vectors are made once, in ``--work`` (`frozen`). Partly blind: 768
coordinates, the rule for the level of none and the share of items that play unknown queries were fixed
after results on these queries had been seen; the correction's shape, its ridges and how many queries fit a
calibration were chosen on CUB200's classes 1 to 100, the validation parts of CLINC150 and other divisions
of the digits, before these figures were made.

*Compared*: items of the labels that are known, and queries of known and of unknown labels. An answer is
*right* if the query is known and the label its own. `right` is the share of the known answered right;
`auroc_right` how well a score tells right answers from all others; `auroc_known` how well it tells known
queries from unknown ones; `answerable` the largest share of the queries that can be answered with so many
wrong, by the threshold that is best in hindsight; `ece` the calibration error of what a method calls a
probability (ten bins), before anything was calibrated. Scores of rivals are their largest probability, the
summed similarity of the items among the 20 nearest that have the label, and the similarity of the nearest.

*Decided*: thresholds that never saw the test queries. `sf.calibrate` gets evidence of the label model or of
logistic regression; *by hand* is the lowest probability of logistic regression that had at most so many
wrong among the calibration queries. All are told the share of unknown queries of the test part. *Its own
items* is a decider that saw no query.

*Cost*: CPU and wall seconds of one thread, and peak memory beyond the vectors.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from frozen import frozen, unit
from measure import environment, measure
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

import surefind as sf
from surefind import metrics

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "labels.json"
PAGE = ROOT / "docs" / "results" / "labels.md"
OURS, LEVEL = "label model", 0.01
NEIGHBOURS = 20
REGRESSION = partial(LogisticRegression, C=10, max_iter=300)
DISCRIMINANT = partial(LinearDiscriminantAnalysis, solver="lsqr", shrinkage="auto")


@dataclass(frozen=True, eq=False)
class Part:
    """Items, and queries with their labels, -1 for those of labels that are not among the items."""

    items: np.ndarray
    labels: np.ndarray
    queries: np.ndarray
    truth: np.ndarray

    def of(self, rows: np.ndarray) -> "Part":
        """Return the part with some of the queries."""
        return Part(self.items, self.labels, self.queries[rows], self.truth[rows])


def open_set(
    x: np.ndarray, y: np.ndarray, known: Any, unknown: Any, items: int, seed: Any, *, even: bool
) -> Part:
    """Take so many items of each known label; all else asks, of unknown labels perhaps as many as known."""
    rng = np.random.default_rng(seed)
    inside, asked = [], []
    for label in known:
        rows = rng.permutation(np.flatnonzero(y == label))
        some = min(items, len(rows) - 1)
        inside, asked = [*inside, *rows[:some]], [*asked, *rows[some:]]
    others = rng.permutation(np.flatnonzero(np.isin(y, unknown)))
    others = others[: len(asked)] if even else others
    truth = np.concatenate([y[asked], np.full(len(others), -1)])
    return Part(x[inside], y[inside], x[np.concatenate([asked, others])], truth)


def cub200(vectors: Callable[[str], Any], seed: int) -> Part:
    found = vectors("cub200")
    y = found["labels"].astype(int)
    return open_set(found["vectors"], y, range(101, 151), range(151, 201), 30, seed, even=True)


def cars196(vectors: Callable[[str], Any], seed: int) -> Part:
    found = vectors("cars196")
    y = found["labels"].astype(int)
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.unique(y))
    known, unknown = np.split(labels, [len(labels) // 2])
    return open_set(found["vectors"], y, known, unknown, 20, rng, even=True)


def lfw(vectors: Callable[[str], Any], items: int) -> Part:
    found = vectors("lfw")
    y = np.unique(found["labels"], return_inverse=True)[1]
    rng = np.random.default_rng(0)
    people = rng.permutation(int(y.max()) + 1)
    known, unknown = np.split(people, [len(people) // 2])
    return open_set(found["vectors"], y, known, unknown, items, rng, even=False)


def digits(vectors: Callable[[str], Any], seed: int) -> Part:
    x, y = load_digits(return_X_y=True)
    return open_set(unit(x), y, range(8), [8, 9], 60, seed, even=False)


def clinc150(vectors: Callable[[str], Any], name: str, asked: tuple[str, ...]) -> Part:
    found = vectors(name)
    x, parts = found["vectors"], found["parts"]
    names = np.unique(found["labels"][parts == "train"])
    place = np.minimum(np.searchsorted(names, found["labels"]), len(names) - 1)
    y = np.where(names[place] == found["labels"], place, -1)
    inside, queries = parts == "train", np.isin(parts, asked)
    return Part(x[inside], y[inside], x[queries], y[queries])


TEST, BEFORE = ("test", "oos_test"), ("val", "oos_val", "oos_train")
SETS: dict[str, tuple[list[Callable[[Any], Part]], tuple[float, ...]]] = {
    "digits, pixels": ([partial(digits, seed=s) for s in range(5)], (0.1, 0.05)),
    "LFW, 1 item a person": ([partial(lfw, items=1)], (0.1,)),
    "LFW, 3 items a person": ([partial(lfw, items=3)], (0.1,)),
    "CUB200, frozen": ([partial(cub200, seed=s) for s in range(5)], (0.1,)),
    "Cars196, frozen": ([partial(cars196, seed=s) for s in range(5)], (0.1,)),
    "CLINC150, TF-IDF": ([partial(clinc150, name="tfidf", asked=TEST)], (0.1,)),
    "CLINC150, MiniLM": ([partial(clinc150, name="clinc150", asked=TEST)], (0.1,)),
}
"""Parts by seeds, and the wrong rates at which a share is answerable; other features are another line."""

Answered = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Label of each query, score of its being right, score of its being known."""


def label_model(part: Part) -> Callable[[np.ndarray], Answered]:
    model = sf.LabelModel().fit(part.items, part.labels.tolist())

    def answer(queries: np.ndarray) -> Answered:
        found = model.posterior(queries)
        label = np.where(found.label == None, -2, found.label)  # noqa: E711
        return label.astype(int), found.label_probability[:, 0], found.known

    return answer


def classifier(part: Part, kind: Callable[[], Any]) -> Callable[[np.ndarray], Answered]:
    model = kind().fit(part.items, part.labels)

    def answer(queries: np.ndarray) -> Answered:
        found = model.predict_proba(queries)
        return model.classes_[found.argmax(axis=1)], found.max(axis=1), found.max(axis=1)

    return answer


def vote(part: Part, k: int) -> Callable[[np.ndarray], Answered]:
    """Sum similarities of the k nearest, label by label."""

    def answer(queries: np.ndarray) -> Answered:
        found = []
        for block in np.array_split(queries, -(-len(queries) // 500)):
            cosines = block @ part.items.T
            near = np.argsort(-cosines, axis=1)[:, :k]
            labels = part.labels[near]
            weights = np.maximum(np.take_along_axis(cosines, near, axis=1), 0) / k
            mass = (weights[:, None, :] * (labels[:, :, None] == labels[:, None, :])).sum(axis=2)
            first = mass.argmax(axis=1)[:, None]
            found += [np.take_along_axis(x, first, axis=1)[:, 0] for x in (labels, mass)]
        score = np.concatenate(found[1::2])
        return np.concatenate(found[::2]), score, score

    return answer


METHODS: dict[str, Callable[[Part], Callable[[np.ndarray], Answered]]] = {
    OURS: label_model,
    "logistic regression": partial(classifier, kind=REGRESSION),
    "LDA": partial(classifier, kind=DISCRIMINANT),
    f"vote of {NEIGHBOURS}": partial(vote, k=NEIGHBOURS),
    "nearest": partial(vote, k=1),
}
PROBABLE = tuple(METHODS)[:3]


def compared(part: Part, rates: tuple[float, ...]) -> dict[str, Any]:
    known, methods = part.truth >= 0, {}
    for name, fit in METHODS.items():
        before = time.process_time()
        try:
            answer = fit(part)
        except ValueError:  # LDA needs more items than labels
            continue
        seconds = time.process_time() - before
        label, score, sure = answer(part.queries)
        right = label == part.truth
        curve = metrics.risk_coverage_curve(right, -score)
        methods[name] = {
            "right": float(right[known].mean()),
            "auroc_right": metrics.auroc(-score[right], -score[~right]),
            "auroc_known": metrics.auroc(-sure[known], -sure[~known]),
            **{
                f"answerable_{r:g}": float(curve.coverage[curve.risk <= r].max(initial=0))
                for r in rates
            },
            "ece": metrics.ece(score, right) if name in PROBABLE else None,
            "cpu_seconds": seconds,
        }
    return {"items": len(part.items), "queries": len(known), "unknown": float((~known).mean())} | {
        "methods": methods
    }


def decided(before: Part, test: Part, max_wrong: float) -> dict[str, Any]:
    """Choose thresholds by calibration queries, and count what they do to the test queries."""
    share = float((test.truth < 0).mean())
    truth = [None if t < 0 else int(t) for t in before.truth]
    enrolled = before.truth >= 0
    told: dict[str, Any] = {"max_wrong": max_wrong, "unknown_share": share, "enrolled": enrolled}
    decider = sf.Decider(max_wrong).fit(before.items, before.labels.tolist())
    own, model = decider.decide(test.queries), decider.model
    asked, later = model.posterior(before.queries), model.posterior(test.queries)
    seen, fresh = model.novelty(before.queries), model.novelty(test.queries)
    regression = REGRESSION().fit(before.items, before.labels)
    tables = [regression.predict_proba(x) for x in (before.queries, test.queries)]
    names = regression.classes_.tolist()
    first, second = (sf.LabelPosterior(names, table) for table in tables)
    ours = sf.calibrate(asked, truth, **told).decide(later)
    gated = sf.calibrate(asked, truth, novelty=seen, **told).decide(later, novelty=fresh)
    theirs = sf.calibrate(first, truth, **told).decide(second)
    score = tables[0].max(axis=1)
    right = regression.classes_[tables[0].argmax(axis=1)] == before.truth
    weight = np.where(enrolled, (1 - share) / enrolled.mean(), share / (~enrolled).mean())
    order = np.argsort(-score)
    wrong = np.cumsum((weight * ~right)[order]) / np.cumsum(weight[order])
    good = np.flatnonzero(wrong <= max_wrong)
    by_hand = tables[1].max(axis=1) >= (score[order][good[-1]] if len(good) else np.inf)
    rules = {
        OURS: (ours.label, ours.decision == "match"),
        f"{OURS}, with a gate": (gated.label, gated.decision == "match"),
        "logistic regression": (theirs.label, theirs.decision == "match"),
        "logistic regression, by hand": (regression.classes_[tables[1].argmax(axis=1)], by_hand),
        f"{OURS}, its own items": (own.label, own.decision == "match"),
    }
    methods = {
        name: {
            "answered": float(match.mean()),
            "wrong": float((match & (label != test.truth)).sum() / max(match.sum(), 1)),
        }
        for name, (label, match) in rules.items()
    }
    sizes = {"calibration": len(truth), "queries": len(test.truth), "unknown": share}
    return sizes | {"methods": methods}


def halved(vectors: Callable[[str], Any], seed: int) -> tuple[Part, Part]:
    part = cub200(vectors, seed)
    rows = np.random.default_rng([seed, 2]).permutation(len(part.truth))
    first, second = np.array_split(rows, 2)
    return part.of(first), part.of(second)


def clinc_parts(vectors: Callable[[str], Any], name: str) -> tuple[Part, Part]:
    return clinc150(vectors, name, BEFORE), clinc150(vectors, name, TEST)


DECIDED: dict[str, tuple[list[Callable[[Any], tuple[Part, Part]]], float]] = {
    "CLINC150, TF-IDF": ([partial(clinc_parts, name="tfidf")], 0.05),
    "CLINC150, MiniLM": ([partial(clinc_parts, name="clinc150")], 0.05),
    "CUB200, frozen": ([partial(halved, seed=s) for s in range(5)], 0.1),
}

SIZES = {
    "100,000 x 512, 1,000 labels": (100_000, 512, 1000),
    "1,000,000 x 128, 10,000 labels": (1_000_000, 128, 10_000),
}


def made(n: int, dim: int, labels: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    falling = (1 / np.sqrt(1 + np.arange(dim) / 20)).astype(np.float32)
    own = np.repeat(np.arange(labels), n // labels)
    x = (rng.normal(size=(labels, dim)).astype(np.float32) * falling)[own]
    x += rng.standard_normal(x.shape, dtype=np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, own


def cost(size: tuple[int, int, int]) -> dict[str, Any]:
    x, own = made(*size)
    labels, model = own.tolist(), sf.LabelModel()
    found = measure(lambda: lambda: model.fit(x, labels), seconds=0)
    single = measure(lambda: lambda: [model.posterior(x[i : i + 1]) for i in range(100)])
    many = measure(lambda: lambda: model.posterior(x[:100]))
    return found | {
        "one_query_ms": 10 * single["cpu_seconds"],
        "query_of_100_ms": 10 * many["cpu_seconds"],
    }


def cases(vectors: Callable[[str], Any]) -> dict[str, Callable[[], dict[str, Any]]]:
    """Name everything that is measured."""
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        f"cost, {name}": partial(cost, size) for name, size in SIZES.items()
    }
    for name, (seeds, rates) in SETS.items():
        for seed, read in enumerate(seeds):
            parts[f"compared, {name}, {seed}"] = lambda r=read, at=rates: compared(r(vectors), at)
    for name, (splits, target) in DECIDED.items():
        for seed, split in enumerate(splits):
            parts[f"decided, {name}, {seed}"] = lambda s=split, t=target: decided(*s(vectors), t)
    return parts


def mean(found: dict[str, Any], part: str) -> dict[str, dict[str, float]]:
    """Return each method's figures, averaged over the seeds of a set."""
    rows = [x["methods"] for name, x in found["cases"].items() if name.startswith(f"{part}, ")]
    return {
        method: {
            key: float(np.mean([row[method][key] for row in rows]))
            for key, value in row.items()
            if value is not None
        }
        for method, row in (rows[0] if rows else {}).items()
    }


def page(found: dict[str, Any]) -> str:
    """Return the page: what was compared, where a rival wins, what was decided, what it costs."""
    lines, won, below = [], [], []
    for name, (_, rates) in SETS.items():
        rows = mean(found, f"compared, {name}")
        if not rows:
            continue
        keys = ("right", "auroc_right", "auroc_known", f"answerable_{rates[-1]:g}")
        cells = [
            " / ".join(f"{rows[m][key]:.3f}" for key in keys) if m in rows else "–" for m in METHODS
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {rows[OURS]['ece']:.3f} |")
        for key, what in zip(keys, WORDS, strict=True):
            best = max((m for m in rows if m != OURS), key=lambda m, k=key, r=rows: r[m][k])
            behind = rows[best][key] - rows[OURS][key]
            if behind > LEVEL:
                won.append(
                    f"{name}: {what} {rows[best][key]:.3f} by {best}, {rows[OURS][key]:.3f} by ours."
                )
            if key in keys[:2]:
                below.append(behind)
    decided_lines = []
    for name, (_, target) in DECIDED.items():
        rows = mean(found, f"decided, {name}")
        cells = [f"{row['answered']:.1%}, {row['wrong']:.1%}" for row in rows.values()]
        decided_lines += [f"| {name}, {target:.0%} | {' | '.join(cells)} |"] if rows else []
        more = rows["logistic regression"]["answered"] - rows[OURS]["answered"] if rows else 0
        if more > LEVEL:
            won.append(
                f"{name}: calibrated logistic regression answers {more:.1%} more of the queries."
            )
    costs = [
        f"| {name} | {row['cpu_seconds']:.0f} | {row['seconds']:.0f} | {row['peak_mb']:,.0f} | "
        f"{row['one_query_ms']:.2f} | {row['query_of_100_ms']:.3f} |"
        for name in SIZES
        if (row := found["cases"].get(f"cost, {name}"))
    ]
    verdict = (
        f"In no set is the best rival more than {LEVEL} ahead in the share of known queries that are "
        "answered right, or in AUROC of right answers."
        if max(below) <= LEVEL
        else f"The best rival is up to {max(below):.3f} ahead in right answers or in their AUROC."
    )
    return TEXT.format(
        methods=" | ".join(METHODS),
        bars=" | ".join(["---"] * len(METHODS)),
        compared="\n".join(lines),
        verdict=verdict,
        won="\n".join(f"- {x}" for x in won) or "- Nowhere by more than 0.01.",
        decided="\n".join(decided_lines),
        costs="\n".join(costs),
    )


WORDS = (
    "right answers to known queries",
    "AUROC of right answers",
    "AUROC of known queries",
    "answerable",
)
TEXT = """# Label model and ten-minute rivals

You could train a logistic regression on your vectors and take its largest probability for a score. This
page puts that, linear discriminant analysis, a vote of the 20 nearest items and the nearest item beside the
label model. Made by `python benchmarks/labels.py`, on vectors that nothing here was trained on.
Some settings (768 coordinates, the level of none, how many items play unknown queries) were fixed after
results on these queries had been seen; the others were chosen on validation data.

Each cell: share of known queries answered right / AUROC of right answers / AUROC of known queries against
unknown ones / largest share answerable with 10 % wrong (digits: 5 %). An answer to an unknown query is
never right. ECE is the calibration error of the label model's probabilities before any query calibrated
them. LDA needs more items than labels.

| vectors | {methods} | ECE |
| --- | {bars} | --- |
{compared}

{verdict}

Where a rival is ahead by more than 0.01:

{won}

## With a guarantee

Share answered, and wrong among these, with thresholds chosen on other queries. All were told the share of
unknown queries. A gate also sends inputs that are far from everything to a person, known ones among them,
and none of these queries is of another kind. A threshold by hand, of logistic regression, has no guarantee.
The last column is a decider that saw no query at all.

| vectors, at most | label model | with a gate | logistic regression | by hand | its own items |
| --- | --- | --- | --- | --- | --- |
{decided}

## Cost

One thread on a machine with other work.

| vectors | fit, CPU s | wall s | peak MB | one query, ms | of a hundred, ms each |
| --- | --- | --- | --- | --- | --- |
{costs}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SUREFIND_DATA"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "surefind-frozen"))
    parser.add_argument("--only", default="", help="how the names of cases begin")
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    if options.data is not None:
        vectors = partial(frozen, data=Path(options.data), work=options.work)
        for name, case in cases(vectors).items():
            if name.startswith(options.only) and (options.again or name not in results()["cases"]):
                found = case() | {"load": os.getloadavg()[0]}
                print(name, json.dumps(found), flush=True)
                table = results()  # read again: another process may measure other cases
                table["cases"][name] = found
                RESULTS.write_text(json.dumps(table, indent=1) + "\n")
    PAGE.write_text(page(results()))


def results() -> dict[str, Any]:
    """Return what was measured before, with the environment of now."""
    table = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": {}}
    used = {name: version(name) for name in ("scikit-learn", "scipy")}
    return {"environment": environment() | used, "cases": table["cases"]}


if __name__ == "__main__":
    main()
