"""`surefind calibrate` and `surefind search`: when an answer is a match, and the answers.

**calibrate** takes labelled queries, or leaves each of the gallery's own items out. With reviews, a random
sample of live queries is added to given ones or, without these, to those of the existing calibration.

**search** writes one row per query:

    JSON       a list of {query, stale} with what `surefind.gallery.answers.answer_records` has
    Parquet    as `surefind.Answers.to_arrow`
    CSV        the same columns; lists and objects are JSON

``probability`` is the calibrated one, that the label is right. ``label_probability``, ``none`` and the
candidates' are those of the neighbourhood alone, which no calibration has tested. Where ``gate`` is
"unlike", none of these means anything: they were tested, if at all, on queries that pass. The table has a
dash in their place, and "untested" in that of the calibrated one where ``gate`` is "unusual"; files have
them, for whoever wants to look into it. Without a calibration there is no decision.

Files are written before answers are shown. The queries ``-`` are a stream (`surefind.cli.stream`).
"""

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    TABLES,
    Failure,
    check_file,
    complain,
    say,
    show_table,
    spelled,
    working,
    write_table,
)
from surefind.cli.galleries import check_model, labels_like, own_ids, read_items
from surefind.cli.runs import open_run
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.decisions import Calibration, Contributions, Identification

SHOWN, NEIGHBOURS = 20, 2
"""Queries, and neighbours of each, in the table; files have all of them."""
DECISIONS = ("match", "review", "no_match")
FACTS = (
    *("reached", "threshold", "floor", "max_wrong", "max_fpir", "confidence", "max_missed"),
    *("queries", "unknown", "right", "fitted", "more_queries", "notes", "summary"),
)
"""What JSON has of a calibration by its own names."""


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
            "distribution, if novelty was fitted; 0.01 by default, below 0.1.",
        ),
    ] = None,
    unknown_share: Annotated[
        float | None,
        Option(
            min=0,
            max=1,
            help="Fraction of unknown queries to expect: queries are left out at random until it is so. "
            "0.5 by default where items are the queries.",
        ),
    ] = None,
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Choose the match threshold so that at most --max-wrong of the matches are wrong.

    The queries should look like those to come, with unknown ones in the same proportion. One that is an
    item of the gallery (the same vector, file or id) is answered without that item. They are kept with the
    gallery, which recalibrates when items are added or deleted.

    Example: `surefind calibrate gallery digits:test --run runs/digits --unknown digits:ood --max-wrong 0.1`
    """
    from surefind.service.review_store import read_reviews

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
    reviews = None if with_reviews is None else read_reviews(with_reviews)
    with sf.Gallery.open(gallery) as opened:
        check_model(opened, run)
        asked: dict[str, Any] = {"reviews": reviews}
        if queries is not None:
            known = read_items(queries, run, labels=labels, on_bad=on_bad)
            others = None if unknown is None else read_items(unknown, run, on_bad=on_bad)
            asked |= as_queries(opened, queries, known, others)
            if groups is not None:
                asked["groups"] = known.column(groups, options.GROUP_COLUMN)
        said = "" if reviews is None else f"{reviews.counts.summary} "
        if queries is not None:
            truth = asked["labels"]
            more = "" if reviews is None else f", and {len(reviews)} reviewed ones"
            said += (
                f"Calibrating on {len(truth)} queries, {truth.count(None)} of them unknown{more}."
            )
        elif reviews is not None:
            said += "Calibrating on these and the queries of the existing calibration, if any."
        else:
            share = 0.5 if unknown_share is None else unknown_share
            said += f"Leave-one-out calibration on the items of {gallery}, {share:.0%} of them as unknown."
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
    show_calibration(found)
    say(f"Stored with {gallery}; it recalibrates when items are added or deleted.")
    again = spelled("search", gallery, queries or "QUERIES", run=run, on_bad=on_bad)
    say(f"{'Next, or with other queries than these' if queries else 'Search'}: {again}")
    return {"gallery": gallery, **calibration_record(found)}


def calibration_record(found: "Calibration") -> dict[str, Any]:
    """Return what a calibration found as JSON holds it."""
    signals = () if found.contributions is None else found.contributions.signals
    groups = [
        {"name": g.name, "status": g.status, "threshold": g.threshold, "queries": g.queries}
        for g in found.groups
    ]
    return {
        **{name: getattr(found, name) for name in FACTS},
        "groups": groups,
        "signals": {signal.name: vars(signal) for signal in signals},
        "operating_points": [vars(p) for p in found.identification.operating_points],
    }


def show_calibration(found: "Calibration") -> None:
    """Print what was found: sentences, what signals add, groups, and FNIR at some FPIR."""
    say(found.summary)
    if found.contributions is not None:
        show_contributions(found.contributions)
    for group in found.groups:
        say(f"Group {group.name}: {group.status} threshold, {group.queries} queries tested it.")
    if found.identification.unknown:
        show_operating_points(found.identification)


def as_queries(gallery: "sf.Gallery", name: str, known: Any, others: Any) -> dict[str, Any]:
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
        "embeddings": sf.Embeddings.concatenate(embedded) if embedded else np.concatenate(rows),
        "labels": truth,
        "ids": [same.get(row, f"query {row}, not an item") for row in range(len(truth))],
    }


def show_operating_points(found: "Identification") -> None:
    """Print a table of FNIR at the FPIR levels that are usual in biometrics."""
    rows = []
    for point in found.operating_points:
        if point.threshold is not None:
            cells = [f"{point.threshold:.4f}", f"{point.fnir:.2%}", f"{point.fnir_bound:.2%}"]
        elif found.unknown < point.unknown_needed:
            needed = f"needs {point.unknown_needed:,} unknown queries to test it"
            cells = [f"{needed}; there are {found.unknown:,}", "", ""]
        else:
            cells = ["none keeps it", "", ""]
        rows.append([f"{point.max_fpir:.1%}", *cells])
    caption = (
        f"FPIR: unknown queries that are a match; FNIR: enrolled ones that are missed; bounds "
        f"at {found.confidence:.0%} confidence"
    )
    show_table(("FPIR at most", "threshold", "FNIR", "FNIR at most"), rows, caption=caption)


def show_contributions(found: "Contributions") -> None:
    """Print a table of how well each signal separates right from wrong answers."""
    rows = []
    for signal in found.signals:
        scores = (signal.alone_auroc, signal.without_auroc, found.auroc)
        adds = "yes" if signal.adds else "no"
        rows.append((signal.name, *(f"{score:.3f}" for score in scores), adds))
    columns = ("signal", "alone", "rest without it", "all together", "adds")
    show_table(columns, rows, caption="AUROC of right answers against wrong ones; 0.5 is chance")


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

    Example: `surefind search gallery digits:test --run runs/digits -k 5 --out answers.csv`
    """
    check_file(out, TABLES)
    with sf.Gallery.open(gallery, mode="r") as opened:
        opened.renew()  # for this search, if items have changed
        check_model(opened, run)
        if queries == "-":
            return answer_lines(opened, run, k, out=out, groups=groups)
        items = read_items(queries, run, on_bad=on_bad)
        members = None if groups is None else items.column(groups, options.GROUP_COLUMN)
        answers = opened.search(items.embeddings, k, groups=members)
    records = answer_rows(items.ids, answers)
    if out is not None:
        write_table(out, records, lambda: answers.to_arrow(items.ids))
    show_answers(records[:SHOWN])
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
    count, bad = answer_stream(gallery, learner, k, sys.stdin.fileno(), sys.stdout.fileno())
    if not bad:
        return None
    complain(f"{bad} of {count} lines could not be answered; their answers say why.")
    return Failure(None)


def answer_rows(ids: Sequence[str], answers: "sf.Answers") -> list[dict[str, Any]]:
    """Return answers as JSON can hold them, an object for each query."""
    from surefind.gallery.answers import answer_records

    return [
        {"query": name, "stale": answers.stale} | record
        for name, record in zip(ids, answer_records(answers), strict=True)
    ]


def show_answers(rows: list[dict[str, Any]]) -> None:
    """Print answers: what decides or, without a calibration, what is near."""
    decided = any(row["decision"] is not None for row in rows)
    whence = "as calibrated" if decided else "by the neighbourhood alone"
    notes = [f"In brackets after a label its probability: {whence}"]
    gates = {row["gate"] for row in rows}
    if "unlike" in gates:
        notes.append("A dash: out of distribution, so whatever is nearest means nothing")
    if "unusual" in gates:
        notes.append("Untested: on inputs as unusual as these no probability was tested")
    columns = ("query", "label", *(("decision", "reasons") if decided else ("none", "nearest")))
    show_table(columns, [answer_cells(row) for row in rows], caption=". ".join(notes))


def answer_cells(row: dict[str, Any]) -> tuple[str | None, ...]:
    """Return what the table says of a query; a number that was never tested would be believed."""
    unlike, decided = row["gate"] == "unlike", row["decision"] is not None
    label = None
    if not unlike and row["label_probability"]:
        first = row["label_probability"][0]
        chance = row["probability"] if decided else first["probability"]
        known = chance is not None and row["gate"] != "unusual"
        label = f"{first['label']} ({f'{chance:.2f}' if known else 'untested'})"
    if decided:
        return row["query"], label, row["decision"], ", ".join(row["reasons"])
    none = None if unlike else f"{row['none']:.2f}"
    return row["query"], label, none, "; ".join(map(_item_text, row["neighbours"][:NEIGHBOURS]))


def _item_text(near: dict[str, Any]) -> str:
    label = "" if near["label"] is None else f"{near['label']}, "
    return f"{near['id']} ({label}{near['score']:.3f})"
