"""`surefind calibrate`, `search` and `audit`: when an answer is a match, the answers, and wrong items.

All take the run that the gallery remembers, unless another is given.

**calibrate** takes labelled queries, or leaves each of the gallery's own items out. With reviews, a random
sample of live queries is added to given ones or, without these, to those of the existing calibration.

**search** writes one row per query:

    JSON, CSV       {query, stale} with what `surefind.Answers.records` has (in CSV, lists are JSON)
    Parquet         as `surefind.Answers.to_arrow`

``probability`` is the calibrated one, that the label is right; ``label_probability`` and ``none`` are those
of the evidence alone. Inputs that the gate stops have a probability that nothing tested: files have it, for
whoever wants to look into it, the table does not.

The queries ``-`` are a stream: JSON lines come on the standard input and are answered on the standard
output. A line is an object with a ``vector`` and perhaps an ``id``, a ``group``, a ``kappa`` (null is
∞) and a ``novelty`` (null is not known). Where the gallery's run was fitted to vectors it embeds those
without a ``kappa``, and finds κ and novelty itself. An answer has the ``id``, the ``line`` (the first
is 1), and what `surefind.Answers.records` has. There is one for each line that is not blank, in their
order. A line that cannot be answered gets ``{id, line, error}``, and the stream goes on. What has come
is answered together, and nothing is waited for: a slow producer gets each answer at once, and a fast
one shares a search among many lines. The gallery is searched as it is when the stream begins.

**audit** writes one row per item whose label is probably wrong: id, label, suggested, probability.
`surefind items --relabel` takes the file.

Files are written before anything is shown.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

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
CHUNK = 1 << 20
"""Bytes of a stream that are read at once."""
Search = Callable[..., sf.Answers]
Name = Annotated[str | int | None, Field(union_mode="left_to_right")]
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
        embeddings = items.embeddings()
        with progress("searching"):
            answers = look(embeddings, groups=items.groups)
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
        say_next(spelled("serve", gallery), why="Next, in a browser")
    if out is not None:
        say(f"Wrote the answers of {len(answers)} queries to {out}.")
    return records


def answer_lines(
    search: Search, run: Path | None, out: Path | None, groups: Path | None
) -> Failure | None:
    """Answer JSON lines until they end or their reader leaves; return a failure if some are bad."""
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


class Query(BaseModel):
    """What a line asks."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    id: Name = None
    group: Name = None
    vector: Annotated[list[float], Field(min_length=2)]
    kappa: Annotated[float | None, Field(ge=0)] = None
    novelty: Annotated[float | None, Field(ge=0, le=1)] = None


def answer_stream(
    search: Search, learner: "sf.MetricLearner | None", source: int, sink: int
) -> tuple[int, int]:
    """Answer all lines, or as many as somebody wants to read.

    Args:
        search: Searches with embeddings, and the groups of queries.
        learner: A model of vectors that embeds those without a κ; None if all are embedded.
        source: The descriptor that lines are read from, to its end.
        sink: The descriptor that answers are written to.

    Returns:
        How many lines were read, and how many of them could not be answered.
    """
    count = bad = 0
    for lines in line_batches(source):
        read = {n: _read(text) for n, text in enumerate(lines, count + 1) if text.strip()}
        count += len(lines)
        found: dict[int, dict[str, Any]] = {n: q for n, q in read.items() if isinstance(q, dict)}
        queries = {n: q for n, q in read.items() if isinstance(q, Query)}
        for kind in {_kind(q) for q in queries.values()}:
            alike = [n for n, q in queries.items() if _kind(q) == kind]
            rows = [queries[n] for n in alike]
            found |= zip(alike, _each(search, learner, rows), strict=True)
        bad += sum("error" in answer for answer in found.values())
        named = ({"id": getattr(q, "id", None), "line": n} | found[n] for n, q in read.items())
        text = b"".join(to_json(answer, inf_nan_mode="null") + b"\n" for answer in named)
        try:
            while text:
                text = text[os.write(sink, text) :]
        except BrokenPipeError:
            break
    return count, bad


def line_batches(source: int) -> Iterator[list[bytes]]:
    """Read what has come, again and again, and yield its whole lines."""
    rest = b""
    while chunk := os.read(source, CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _read(text: bytes) -> Query | dict[str, Any]:
    try:
        return Query.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"][:1]))
        return {"error": f"{where or 'line'}: {first['msg']}."}


def _kind(query: Query) -> tuple[int, bool, bool]:
    """Return what queries that are answered together have in common."""
    return len(query.vector), "kappa" in query.model_fields_set, query.novelty is not None


def _each(
    search: Search, learner: "sf.MetricLearner | None", queries: list[Query]
) -> list[dict[str, Any]]:
    """Search with all; if one of them cannot be used, with each alone."""
    try:
        answers = search(_embedded(learner, queries), groups=[q.group for q in queries])
    except InputError as error:
        if len(queries) == 1:
            return [{"error": str(error)}]
        return [_each(search, learner, [query])[0] for query in queries]
    return [{"stale": answers.stale} | record for record in answers.records()]


def _embedded(learner: "sf.MetricLearner | None", queries: list[Query]) -> "sf.Embeddings":
    rows = np.array([q.vector for q in queries])
    if learner is not None and "kappa" not in queries[0].model_fields_set:
        return learner.embed(rows.astype(np.float32)).numpy()
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.all():
        raise InputError("vector is zero and has no direction.", field="vector")
    kappa = np.array([np.inf if q.kappa is None else q.kappa for q in queries])
    known = None if queries[0].novelty is None else np.array([q.novelty for q in queries])
    return sf.Embeddings((rows / lengths).astype(np.float32), kappa, known)


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
    else:
        say_next(spelled("serve", gallery), why="Next, in a browser")
    counts = {name: getattr(found, name) for name in ("items", "labels", "judged", "wrong")}
    return {"summary": found.summary, **counts, "findings": found.to_rows()}
