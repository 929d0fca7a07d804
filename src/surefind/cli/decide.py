"""`surefind calibrate`, `search` and `audit`: when an answer is a match, the answers, and wrong items.

All take the run that the gallery remembers, unless another is given.

**calibrate** takes labelled queries, or leaves each of the gallery's own items out. With reviews, a random
sample of live queries is added to given ones or, without these, to those of the existing calibration.

**search** writes one row per query:

    JSON, CSV       {query, stale} with what `surefind.Answers.records` has (in CSV, lists are JSON)
    Parquet         as `surefind.Answers.to_arrow`

``probability`` is the calibrated one, that the label is right; ``label_probability`` and ``none`` are those
of the evidence alone. Inputs that the gate stops have a probability that nothing tested: files have it, for
whoever wants to look into it, the table does not. The queries ``-`` are a stream (`surefind.cli.stream`).

**audit** writes one row per item whose label is probably wrong: id, label, suggested, probability.
`surefind items --relabel` takes the file.

Files are written before anything is shown.
"""

import sys
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    Failure,
    check_file,
    complain,
    progress,
    say,
    say_next,
    show_table,
    spelled,
    write_table,
)
from surefind.cli.galleries import (
    as_queries,
    hint_to_calibrate,
    labels_meant,
    open_gallery,
    read_items,
)
from surefind.cli.runs import open_run
from surefind.errors import InputError

SHOWN, LISTED = 20, 10
"""Queries in the table, and findings of each kind; files and JSON have all of them."""
DECISIONS = ("match", "review", "no_match")
ANSWER = {"query": str, "stale": str, "label": str, "label_probability": str, "none": float}
ANSWER |= {"decision": str, "probability": float, "reasons": str, "kappa": float}
ANSWER |= {"novelty": float, "neighbours": str}
FACTS = (
    *("reached", "threshold", "floor", "queries", "unknown", "right"),
    *("left_out_queries", "left_out_matched", "more_queries", "notes", "summary"),
)
"""What JSON has of a calibration, beside its target, groups and operating points."""
WRONG = "mislabelled"
COLUMNS = {"id": str, "label": str, "suggested": str, "probability": float}
"""The findings of an audit that its file has, and what of them."""


def calibrate(
    gallery: options.GalleryArgument,
    queries: options.SomeSource = None,
    run: options.Run = None,
    labels: options.Labels = None,
    unknown: options.Unknown = None,
    groups: options.Groups = None,
    with_reviews: options.Reviews = None,
    max_wrong: options.MaxWrong = None,
    max_fpir: options.MaxFpir = None,
    confidence: options.Confidence = None,
    max_false_alarms: options.FalseAlarms = None,
    unknown_share: options.UnknownShare = None,
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Choose the match threshold so that at most --max-wrong of the matches are wrong.

    QUERIES are labelled, like those to come, and seen by neither the model nor the gallery. One whose label
    is empty, -1 or not enrolled is unknown. Without them each item of the gallery is searched with itself
    left out (leave-one-out). They are kept with the gallery, which recalibrates when items are added or
    deleted.

    With --max-fpir the fraction of unknown queries that are a match is guaranteed as well. --unknown-share
    is the fraction of unknown queries to expect, where it is another one than among QUERIES. Without
    QUERIES, --with-reviews adds to those of the existing calibration, whose target stays.

    Example: `surefind calibrate gallery digits:test --unknown digits:ood --max-wrong 0.1`
    """
    if queries is None and (labels, unknown, groups) != (None, None, None):
        raise InputError(
            "--labels, --unknown and --groups belong to queries, and there are none: give QUERIES, or "
            "leave them out (items have the groups that they were indexed with).",
            field="queries",
        )
    if groups is not None and unknown is not None:
        raise InputError(
            "--groups needs a group for every query: put the unknown ones among the queries, with an "
            "empty label, instead of --unknown.",
            field="groups",
        )
    asked: dict[str, Any] = {}
    said = f"Leave-one-out calibration on the items of {gallery}."
    if with_reviews is not None:
        from surefind.service.review_store import read_reviews

        asked["reviews"] = read_reviews(with_reviews)
        said = asked["reviews"].counts.summary
    with open_gallery(gallery, run, mode="w") as (opened, model):
        if queries is not None:
            known = read_items(queries, model, labels=labels, groups=groups, on_bad=on_bad)
            others = None if unknown is None else read_items(unknown, model, on_bad=on_bad)
            asked |= as_queries(opened, queries, known, others)
            truth, reviews = asked["truth"], asked.get("reviews", ())
            more = f", and {len(reviews)} reviewed ones" if reviews else ""
            unlabelled = truth.count(None)
            said = f"Calibrating on {len(truth)} queries, {unlabelled} of them unknown{more}."
        say(said)
        with progress("calibrating"):
            found = opened.calibrate(
                **asked,
                unknown_share=unknown_share,
                max_wrong=max_wrong,
                max_fpir=max_fpir,
                confidence=confidence,
                max_false_alarms=max_false_alarms,
            )
    say(found.summary)
    say(f"Stored with {gallery}; it recalibrates when items are added or deleted.")
    again = spelled("search", gallery, queries or "QUERIES", on_bad=on_bad)
    say_next(again, why="Next" if queries else "With queries of your own")
    points = [asdict(point) for point in found.risk_curve.operating_points]
    return {
        "gallery": gallery,
        **asdict(found.target),
        **{name: getattr(found, name) for name in FACTS},
        "groups": [asdict(group) for group in found.groups],
        "operating_points": points,
    }


def search(
    gallery: options.GalleryArgument,
    queries: options.Queries,
    run: options.Run = None,
    k: options.Neighbours = 10,
    label: options.Label = None,
    groups: options.Groups = None,
    out: options.TableOut = None,
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Look up images or vectors in a gallery: the label, and whether it is a match, and why.

    With --label only these labels are possible. The queries `-` are JSON lines with a vector each, from the
    standard input.

    Example: `surefind search gallery digits:test -k 5 --out answers.csv`

    Example: `surefind search gallery digits:test --label 3 --label 5`
    """
    check_file(out)
    with open_gallery(gallery, run) as (opened, model):
        look = partial(opened.search, k=k, labels=labels_meant(opened, label))
        with progress("preparing the gallery"):
            opened.renew()  # for this search, if items have changed
        if queries == "-":
            return answer_lines(look, model, out, groups)
        items = read_items(queries, model, groups=groups, on_bad=on_bad)
        with progress("searching"):
            answers = look(items.embeddings(), groups=items.groups)
    records = [
        {"query": name, "stale": answers.stale} | record
        for name, record in zip(items.ids, answers.records(), strict=True)
    ]
    if out is not None:
        write_table(out, records, ANSWER, lambda: answers.to_arrow(items.ids))
    columns = ("query", "label", "probability", "decision", "reason")
    show_table(columns, map(answer_cells, records[:SHOWN]))
    if len(answers) > SHOWN:
        say(f"The first {SHOWN} of {len(answers)} queries; --out FILE or --json gives all of them.")
    if answers.decision is None:
        say("There are no decisions without a calibration.")
        hint_to_calibrate(gallery)
    else:
        counts = Counter(answers.decision.tolist())
        say(f"Decisions: {', '.join(f'{counts[d]} {d}' for d in DECISIONS)}.")
    if out is not None:
        say(f"Wrote the answers of {len(answers)} queries to {out}.")
    return records


def answer_lines(
    search: Any, run: Path | None, out: Path | None, groups: Path | None
) -> Failure | None:
    """Answer JSON lines until they end or their reader leaves; return a failure if some are bad."""
    from surefind.cli.stream import answer_stream

    if sys.stdin is None or (out, groups) != (None, None):
        raise InputError(
            "a stream reads JSON lines from the standard input and writes answers to the standard output: "
            'pipe them, and give each line its own "group" instead of --groups or --out.',
            field="queries",
        )
    learner = None if run is None else open_run(run).learner()
    if learner is not None and learner.input_spec_.kind == "image":
        learner = None  # whose embeddings the lines hold
    count, bad = answer_stream(search, learner, sys.stdin.fileno(), sys.stdout.fileno())
    if not bad:
        return None
    complain(f"{bad} of {count} lines could not be answered; their answers say why.")
    return Failure(None)


def answer_cells(record: dict[str, Any]) -> tuple[str | None, ...]:
    """Return what the table says of a query; a number that was never tested would be believed."""
    from surefind.decisions.decision import UNLIKE, UNUSUAL

    chance, why = record["probability"], "; ".join(record["reasons"])
    tested = chance is not None and not why.startswith((UNLIKE, UNUSUAL))
    shown = f"{chance:.3f}" if tested else None
    return record["query"], record["label"], shown, record["decision"], why


def audit(gallery: options.GalleryArgument, out: options.TableOut = None) -> Any:
    """Find wrong labels, near-duplicates, confused labels, unusable items and impostors in a gallery.

    Every item is left out and judged by the rest; nothing is changed. Look at the file, delete the rows
    that are right after all, and `surefind items GALLERY --relabel FILE` corrects the others.

    Example: `surefind audit gallery --out audit.csv`
    """
    check_file(out)
    with sf.Gallery.open(gallery, mode="r") as opened, progress("auditing"):
        found = opened.audit()
    rows = [
        {"id": item.id, "label": item.label, "suggested": item.suggested, "probability": item.score}
        for item in found.of(WRONG)
    ]
    if out is not None:
        write_table(out, rows, COLUMNS)
    for kind in dict.fromkeys(finding.kind for finding in found.findings):
        some = [[one.id, one.label, one.sentence] for one in found.of(kind)[:LISTED]]
        show_table(("item", "label", "finding"), some, title=kind.capitalize())
    say("\n".join(found.sentences))
    if out is not None:
        say(f"Wrote the {len(rows):,} {WRONG} items to {out}.")
    if rows and out is None:
        say_next(spelled("audit", gallery, out="audit.csv"))
    elif rows:
        why = "Next, when you have deleted the rows whose label is right"
        say_next(spelled("items", gallery, relabel=out), why=why)
    counts = {name: getattr(found, name) for name in ("items", "labels", "judged", "wrong")}
    return {"summary": found.summary, **counts, "findings": found.to_rows()}
