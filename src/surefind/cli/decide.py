"""`surefind calibrate`, `search` and `audit`: when an answer is a match, the answers, and wrong items.

**calibrate** takes labelled queries, or leaves each of the gallery's own items out. With reviews, a random
sample of live queries is added to given ones or, without these, to those of the existing calibration.

**search** writes one row per query:

    JSON            a list of {query, stale} with what `surefind.Answers.records` has
    Parquet, CSV    as `surefind.Answers.to_arrow`; in CSV, lists and objects are JSON

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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    TABLES,
    Failure,
    arrow_table,
    check_file,
    complain,
    say,
    show_table,
    spelled,
    working,
    write_table,
)
from surefind.cli.galleries import labels_like, open_gallery, own_ids, read_items
from surefind.cli.runs import open_run
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.cli.galleries import Items

SHOWN, LISTED = 20, 10
"""Queries in the table, and findings of each kind; files and JSON have all of them."""
DECISIONS = ("match", "review", "no_match")
FACTS = (
    *("reached", "threshold", "floor", "queries", "unknown", "right"),
    *("left_out_queries", "left_out_matched", "more_queries", "notes", "summary"),
)
"""What JSON has of a calibration, beside its target, groups and operating points."""
WRONG, COLUMNS = "mislabelled", ("id", "label", "suggested", "probability")
"""The findings of an audit that its file has, and what of them."""


def calibrate(
    gallery: options.GalleryArgument,
    queries: Annotated[
        str | None,
        options.source_argument(
            help="Labelled queries that neither the model nor the gallery has seen; one whose label is -1, "
            "empty or not enrolled is unknown. Left out: leave-one-out calibration on the gallery's items. "
            f"{options.SOURCE_HELP}"
        ),
    ] = None,
    run: options.Run = None,
    labels: options.Labels = None,
    unknown: Annotated[
        str | None,
        options.source_option(help="More queries, none of which has a match in the gallery."),
    ] = None,
    groups: options.Groups = None,
    with_reviews: Annotated[
        Path | None,
        Option(
            help="Folder of a service (GALLERY.service): adds the sampled queries that people reviewed "
            "there. Without QUERIES, they are added to those of the existing calibration, whose target "
            "stays unless it is given."
        ),
    ] = None,
    max_wrong: Annotated[
        float | None,
        options.fraction_option(
            help="Highest fraction of wrong answers among matches; 0.01 by default."
        ),
    ] = None,
    max_fpir: Annotated[
        float | None,
        options.fraction_option(
            help="Highest fraction of unknown queries that may be a match, guaranteed as well."
        ),
    ] = None,
    confidence: Annotated[
        float | None,
        options.fraction_option(help="Probability with which that holds; 0.95 by default."),
    ] = None,
    max_false_alarms: Annotated[
        float | None,
        options.fraction_option(
            help="Highest fraction of inputs like the training data that are rejected as out of "
            "distribution; 0.01 by default, below 0.1.",
        ),
    ] = None,
    unknown_share: Annotated[
        float | None,
        Option(
            min=0,
            max=1,
            help="Fraction of unknown queries to expect, where it is another one than among the queries.",
        ),
    ] = None,
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Choose the match threshold so that at most --max-wrong of the matches are wrong.

    The queries should look like those to come, with unknown ones in the same proportion. One that is an
    item of the gallery (the same vector, file or id) is left out. They are kept with the gallery, which
    recalibrates when items are added or deleted.

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
            known = read_items(queries, model, labels=labels, on_bad=on_bad)
            others = None if unknown is None else read_items(unknown, model, on_bad=on_bad)
            asked |= as_queries(opened, queries, known, others)
            if groups is not None:
                asked["groups"] = known.column(groups, options.GROUP_COLUMN)
            truth, reviews = asked["truth"], asked.get("reviews", ())
            more = f", and {len(reviews)} reviewed ones" if reviews else ""
            unlabelled = truth.count(None)
            said = f"Calibrating on {len(truth)} queries, {unlabelled} of them unknown{more}."
        say(said)
        with working("calibrating"):
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
    say(f"{'Next, or with other queries than these' if queries else 'Search'}: {again}")
    points = [asdict(point) for point in found.identification.operating_points]
    return {
        "gallery": gallery,
        **asdict(found.target),
        **{name: getattr(found, name) for name in FACTS},
        "groups": [asdict(group) for group in found.groups],
        "operating_points": points,
    }


def as_queries(
    gallery: "sf.Gallery", name: str, known: "Items", others: "Items | None"
) -> dict[str, Any]:
    """Return queries as `surefind.Gallery.calibrate` takes them.

    Args:
        gallery: What they are for.
        name: What the user calls them.
        known: Items with labels.
        others: Items without a match in the gallery, or None.

    Returns:
        Their embeddings, labels, and ids where they are items of the gallery.

    Raises:
        InputError: If there are no labels, or one of both has a κ or a novelty and the other has not.
    """
    import numpy as np

    if known.labels is None:
        raise InputError(f"{name} has no labels; give them with --labels FILE.", field="labels")
    parts, truth = [known.embeddings], labels_like(gallery, [*known.labels])
    same = own_ids(gallery, known)
    if others is not None:
        parts.append(others.embeddings)
        truth += [None] * len(others)
    embedded = [p.numpy() for p in parts if isinstance(p, sf.Embeddings)]
    rows = [e.mean for e in embedded] or [np.asarray(p) for p in parts]
    kinds = {(isinstance(p, sf.Embeddings), getattr(p, "novelty", None) is not None) for p in parts}
    if len(kinds) > 1 or len({r.shape[1] for r in rows}) > 1:
        raise InputError(
            "the queries and the unknown ones differ in dimension, or only one of both has a κ or a "
            "novelty; embed both with one model.",
            field="unknown",
        )
    return {
        "queries": sf.Embeddings.concatenate(embedded) if embedded else np.concatenate(rows),
        "truth": truth,
        "ids": [same.get(row, f"query {row}, not an item") for row in range(len(truth))],
    }


def search(
    gallery: options.GalleryArgument,
    queries: Annotated[
        str,
        options.source_argument(
            help=f"What to look up. {options.SOURCE_HELP} `-` reads JSON lines with a vector each from the "
            "standard input."
        ),
    ],
    run: options.Run = None,
    k: Annotated[int, Option("-k", min=1, help="Neighbours of each query.")] = 10,
    groups: options.Groups = None,
    out: options.TableOut = None,
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Look up images or vectors in a gallery: the label, and whether it is a match, and why.

    Example: `surefind search gallery digits:test -k 5 --out answers.csv`
    """
    check_file(out, TABLES)
    with open_gallery(gallery, run) as (opened, model):
        opened.renew()  # for this search, if items have changed
        if queries == "-":
            return answer_lines(opened, model, k, out=out, groups=groups)
        items = read_items(queries, model, on_bad=on_bad)
        members = None if groups is None else items.column(groups, options.GROUP_COLUMN)
        answers = opened.search(items.embeddings, k, groups=members)
    records = [
        {"query": name, "stale": answers.stale} | record
        for name, record in zip(items.ids, answers.records(), strict=True)
    ]
    if out is not None:
        write_table(out, records, lambda: answers.to_arrow(items.ids))
    columns = ("query", "label", "probability", "decision", "reason")
    show_table(columns, map(answer_cells, records[:SHOWN]))
    if len(answers) > SHOWN:
        say(f"The first {SHOWN} of {len(answers)} queries; --out FILE or --json gives all of them.")
    if answers.decision is None:
        say(f"No decisions without a calibration. Make one: {spelled('calibrate', gallery)}")
    else:
        counts = Counter(answers.decision.tolist())
        say(f"Decisions: {', '.join(f'{counts[d]} {d}' for d in DECISIONS)}.")
    if out is not None:
        say(f"Wrote the answers of {len(answers)} queries to {out}.")
    return records


def answer_lines(
    gallery: "sf.Gallery", run: Path | None, k: int, **others: object
) -> Failure | None:
    """Answer JSON lines until they end, their reader leaves, or Ctrl-C.

    Returns:
        A failure, if some could not be answered.

    Raises:
        InputError: If an option is given that a stream has no use for, or there is no standard input.
    """
    from surefind.cli.stream import answer_stream

    if sys.stdin is None or any(value is not None for value in others.values()):
        raise InputError(
            "a stream reads JSON lines from the standard input and writes answers to the standard output: "
            'pipe them, and give each line its own "group" instead of --groups or --out.',
            field="queries",
        )
    learner = None if run is None else open_run(run).learner()
    if learner is not None and learner.input_spec_.kind == "image":
        learner = None  # whose embeddings the lines hold
    count, bad = answer_stream(gallery, learner, k, sys.stdin.fileno(), sys.stdout.fileno())
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


def audit(
    gallery: options.GalleryArgument,
    out: options.TableOut = None,
    items: Annotated[
        int | None,
        Option(min=1, help="Judge only so many items, drawn at random, which is faster."),
    ] = None,
    duplicate: Annotated[
        float | None,
        Option(help="Cosine from which two items are near-duplicates; found from the gallery."),
    ] = None,
) -> Any:
    """Find wrong labels, near-duplicates, confused labels, unusable items and impostors in a gallery.

    Every item is left out and judged by the rest; nothing is changed. Look at the file, delete the rows
    that are right after all, and `surefind items GALLERY --relabel FILE` corrects the others.

    Example: `surefind audit gallery --out audit.csv`
    """
    check_file(out, TABLES)
    with sf.Gallery.open(gallery, mode="r") as opened, working("auditing"):
        found = opened.audit(items=items, duplicate=duplicate)
    rows = [
        {"id": item.id, "label": item.label, "suggested": item.suggested, "probability": item.score}
        for item in found.of(WRONG)
    ]
    if out is not None:
        write_table(out, rows, lambda: arrow_table(rows, COLUMNS, ("probability",)))
    for kind in dict.fromkeys(finding.kind for finding in found.findings):
        some = [[one.id, one.label, one.sentence] for one in found.of(kind)[:LISTED]]
        show_table(("item", "label", "finding"), some, title=kind.capitalize())
    say("\n".join(found.sentences))
    if out is not None:
        say(
            f"Wrote the {len(rows):,} {WRONG} items to {out}. Delete the rows whose label is right."
        )
        say(f"Next: {spelled('items', gallery, relabel=out)}")
    else:
        say(f"Next: {spelled('audit', gallery, out='audit.csv')}")
    counts = {name: getattr(found, name) for name in ("items", "labels", "judged", "wrong")}
    return {"summary": found.summary, **counts, "findings": found.to_rows()}
