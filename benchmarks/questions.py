"""Questions that nobody can answer: measure CLINC150, and write the tutorial's table and figures.

    python benchmarks/questions.py --data FOLDER      measure, then write
    python benchmarks/questions.py                    write what was measured

Items are CLINC150's training part (150 intents), embedded by all-MiniLM-L6-v2. Calibration sees the
validation part and the out-of-scope questions of the training and validation parts; everything else is
measured on the test part, which nothing was chosen on. ``--rehearse`` takes half of the validation part and
the out-of-scope questions of the training part for a test part, and writes nothing.

A question is answered *right* if it is in scope and the label is its intent; each answer to a question
that is out of scope is wrong. A score's *coverage* at a wrong rate is the largest share of the test
questions that it can answer with so many wrong, with the threshold that is best in hindsight: what it is
worth as a ranking. The rules below it are what a user gets, with thresholds that never saw the test part.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from frozen import Columns, frozen
from measure import environment

import surefind as sf
from surefind import metrics

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "questions.json"
PAGE = ROOT / "docs" / "tutorials" / "questions.md"
FIGURES = ROOT / "docs" / "images"
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->\n"
TARGETS = 0.01, 0.05
CURVE = 101
EVERY = 5
"""One item in so many fits novelty, which would take most of the time otherwise."""

Part = tuple[np.ndarray, np.ndarray]


def divided(columns: Columns, *, rehearse: bool) -> dict[str, Part]:
    """Return items, the questions before (few out of scope, or all of these), and those to come."""
    labels = columns["labels"].astype(object)
    labels[labels == "oos"] = None
    rows = {name: np.flatnonzero(columns["parts"] == name) for name in np.unique(columns["parts"])}
    first, second = np.split(np.random.default_rng(0).permutation(rows["val"]), 2)
    if rehearse:
        named = {"before": [first, rows["oos_val"]], "test": [second, rows["oos_train"]]}
        named["before, all"] = named["before"]
    else:
        named = {
            "before": [rows["val"], rows["oos_val"]],
            "before, all": [rows["val"], rows["oos_val"], rows["oos_train"]],
            "test": [rows["test"], rows["oos_test"]],
        }
    parts = {"items": rows["train"]} | {name: np.concatenate(x) for name, x in named.items()}
    return {name: (columns["vectors"][x], labels[x]) for name, x in parts.items()}


def measured(parts: dict[str, Part]) -> dict[str, Any]:
    items, test = parts["items"], parts["test"]
    gallery = sf.Gallery()
    gallery.add(items[0], labels=items[1].tolist())
    some = slice(None, None, EVERY)
    codes = np.unique(items[1].astype(str), return_inverse=True)[1]
    head = sf.LaplaceHead().fit(items[0][some], codes[some])
    novelty = {name: head.embed(parts[name][0]).novelty for name in parts if name != "items"}
    share = float((test[1] == None).mean())  # noqa: E711
    cases: dict[str, Any] = {}
    for target in TARGETS:
        how: dict[str, Any] = {"max_wrong": target, "contributions": False}
        gallery.calibrate(*given(parts["before"]), **how)
        rules = {"validation part as it is": ruled(gallery, test)}
        if target == TARGETS[0]:
            scores = scored(gallery.search(test[0], k=10), novelty["test"])
        gallery.calibrate(*given(parts["before, all"]), **how, unknown_share=share)
        rules["told the share, questions"] = ruled(gallery, test)
        gallery.calibrate(unknown_share=share, **how)
        rules["told the share, the gallery's own items"] = ruled(gallery, test)
        if target == TARGETS[0]:
            gallery.calibrate(*given(parts["before, all"]), **how, max_fpir=0.05)
            rules["at most 5 % of the strangers as well"] = ruled(gallery, test)
            queries = (with_novelty(parts[name][0], novelty[name]) for name in ("before", "test"))
            asked, late = queries
            gallery.calibrate(asked, parts["before"][1].tolist(), **how)
            rules["validation part as it is, with novelty's gate"] = ruled(gallery, (late, test[1]))
        rules["similarity above a threshold that kept it before"] = by_similarity(
            items, parts["before"], test, target
        )
        cases[f"{target:g}"] = rules
    truth = test[1]
    strange = truth == None  # noqa: E711
    ranked = {}
    for name, (label, score) in scores.items():
        right = (label == truth) & ~strange
        curve = metrics.risk_coverage_curve(right, -score)
        at = np.linspace(0, len(right) - 1, CURVE).astype(int)
        ranked[name] = {
            "right in scope": float(right[~strange].mean()),
            "auroc, out of scope": metrics.auroc(-score[~strange], -score[strange]),
            "auroc, wrong": metrics.auroc(-score[right], -score[~right]),
            "coverage": {
                f"{w:g}": float(curve.coverage[curve.risk <= w].max(initial=0.0)) for w in TARGETS
            },
            "curve": [curve.coverage[at].round(4).tolist(), curve.risk[at].round(5).tolist()],
        }
    sizes = {name: [len(y), int((y == None).sum())] for name, (_, y) in parts.items()}  # noqa: E711
    return {"questions, out of scope": sizes, "share": share, "scores": ranked, "rules": cases}


def with_novelty(vectors: np.ndarray, novelty: np.ndarray) -> sf.Embeddings:
    return sf.Embeddings(vectors, np.full(len(vectors), np.inf), novelty)


def given(part: Part) -> tuple[np.ndarray, list[Any]]:
    return part[0], part[1].tolist()


def scored(answers: Any, novelty: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return what each score answers, and how sure it is."""
    near = np.array(answers.labels)[:, 0]
    cosines = np.array(answers.scores)
    sure = -answers.none
    return {
        "nearest similarity": (near, cosines[:, 0]),
        "mean similarity of the ten nearest": (answers.label, cosines.mean(axis=1)),
        "posterior: 1 - P(none)": (answers.label, sure),
        "posterior: P(label)": (answers.label, answers.label_probability[:, 0]),
        "calibrated probability": (answers.label, answers.probability),
        "novelty": (answers.label, novelty),
    }


def ruled(gallery: sf.Gallery, test: Part) -> dict[str, Any]:
    """Decide about the test part by the calibration there is."""
    found, answers = gallery.calibration, gallery.search(test[0], k=1)
    assert found is not None
    return {"queries": found.queries, "unknown": found.unknown, "reached": found.reached} | counted(
        answers.label, answers.decision == "match", test[1]
    )


def counted(label: np.ndarray, match: np.ndarray, truth: np.ndarray) -> dict[str, Any]:
    strange = truth == None  # noqa: E711
    right = (label == truth) & ~strange
    return {
        "answered": float(match.mean()),
        "matches": int(match.sum()),
        "wrong": int((match & ~right).sum()),
        "strangers answered": int((match & strange).sum()),
        "answered right in scope": float((match & right)[~strange].mean()),
    }


def by_similarity(items: Part, before: Part, test: Part, target: float) -> dict[str, Any]:
    """Answer with the nearest item's label above the lowest similarity that was good enough before."""
    (cosine, label), (later, answer) = (nearest(items, part[0]) for part in (before, test))
    right = label == before[1]
    order = np.argsort(-cosine)
    wrong = np.cumsum(~right[order]) / np.arange(1, len(order) + 1)
    good = np.flatnonzero(wrong <= target)
    threshold = float(cosine[order][good[-1]]) if len(good) else np.inf
    unknown = int((before[1] == None).sum())  # noqa: E711
    told = {"queries": len(order), "unknown": unknown, "reached": bool(len(good))}
    return told | {"threshold": threshold} | counted(answer, later >= threshold, test[1])


def nearest(items: Part, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    blocks = [queries[i : i + 500] @ items[0].T for i in range(0, len(queries), 500)]
    rows = np.concatenate([block.argmax(1) for block in blocks])
    return np.concatenate([block.max(1) for block in blocks]), items[1][rows]


def lines(result: dict[str, Any]) -> list[str]:
    """Return the tutorial's tables."""
    sizes = result["questions, out of scope"]
    test, before, every = (sizes[name] for name in ("test", "before", "before, all"))
    made = [
        f"Made by `python benchmarks/questions.py --data FOLDER`: {sizes['items'][0]:,} items of 150 "
        f"intents; before, {before[0]:,} questions, {before[1]:,} of them out of scope "
        f"({before[1] / before[0]:.1%}), or {every[0]:,} and {every[1]:,} where the share is told; test, "
        f"{test[0]:,} and {test[1]:,} ({result['share']:.1%}), looked at once.",
        "",
        "| score | right in scope | AUROC, out of scope | AUROC, wrong answers | can answer at 1 % wrong "
        "| at 5 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in result["scores"].items():
        covers = " | ".join(f"{share:.1%}" for share in row["coverage"].values())
        made.append(
            f"| {name} | {row['right in scope']:.3f} | {row['auroc, out of scope']:.3f} | "
            f"{row['auroc, wrong']:.3f} | {covers} |"
        )
    for target, rules in result["rules"].items():
        made += [
            "",
            f"Allowed: {float(target):.0%} wrong.",
            "",
            "| threshold from | questions, out of scope | answered | **wrong among answered** | "
            "out of scope answered | in scope answered right |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for name, row in rules.items():
            wrong = (
                f"**{row['wrong'] / row['matches']:.2%}** ({row['wrong']})"
                if row["matches"]
                else "–"
            )
            made.append(
                f"| {name} | {row['queries']:,}, {row['unknown'] / row['queries']:.1%} | "
                f"{row['answered']:.1%} | {wrong} | {row['strangers answered'] / test[1]:.1%} | "
                f"{row['answered right in scope']:.1%} |"
            )
    return [*made, ""]


def page(result: dict[str, Any]) -> str:
    """Return the tutorial with its tables as they were measured."""
    head, rest = PAGE.read_text().split(BEGIN)
    return head + BEGIN + "\n".join(["", *lines(result)]) + "\n" + END + rest.split(END)[1]


def plot(result: dict[str, Any]) -> None:
    mpl.rcParams["svg.hashsalt"] = "surefind"  # the same picture gives the same file
    figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for name, row in result["scores"].items():
        coverage, risk = row["curve"]
        axis.plot(coverage, 100 * np.array(risk), label=name, lw=1.4)
    axis.set_xlabel("share of the questions that are answered, the surest first")
    axis.set_ylabel("% wrong of those answered")
    axis.legend(frameon=False, fontsize=8)
    axis.grid(alpha=0.3)
    axis.set_ylim(0, 25)
    figure.savefig(FIGURES / "questions-scores.svg", metadata={"Date": None})
    figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), layout="constrained", sharey=True)
    names = [*next(iter(result["rules"].values()))][::-1]
    axes[0].set_yticks(range(len(names)), names)
    for axis, (target, rules) in zip(axes, result["rules"].items(), strict=True):
        rows = [y for y, name in enumerate(names) if name in rules]
        drawn = [rules[names[y]] for y in rows]
        wrong = [100 * rule["wrong"] / max(rule["matches"], 1) for rule in drawn]
        kept = ["#0072b2" if w <= 100 * float(target) else "#d55e00" for w in wrong]
        axis.barh(rows, wrong, color=kept)
        for y, x, rule in zip(rows, wrong, drawn, strict=True):
            axis.text(x, y, f" {rule['answered']:.0%} answered", va="center", fontsize=7)
        axis.axvline(100 * float(target), color="#000000", lw=1, ls=":")
        axis.set_xlabel(f"% wrong of those answered; allowed {float(target):.0%}", fontsize=8)
        axis.set_xlim(0, 1.6 * max(*wrong, 100 * float(target)))
        axis.tick_params(labelsize=7)
    figure.savefig(FIGURES / "questions-rules.svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("SUREFIND_DATA"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir(), "surefind-frozen"))
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if options.data is not None:
        columns = frozen("clinc150", options.data, options.work)
        result = measured(divided(columns, rehearse=options.rehearse))
        if options.rehearse:
            print("\n".join(lines(result)))
            return
        result = {"environment": environment()} | result
        RESULT.write_text(json.dumps(result, indent=1) + "\n")
    result = json.loads(RESULT.read_text())
    PAGE.write_text(page(result))
    plot(result)


if __name__ == "__main__":
    main()
