"""`surefind search`: the label of each query, a decision about it, and the nearest items.

    JSON    a list of {query, stale, label, label_probability, none, decision, probability, reasons, kappa,
            novelty, neighbours, evidence}, as `surefind.gallery.answers.answer_records` without payloads
    CSV     a line for each neighbour: the columns of `ANSWERED`, then those of `NEIGHBOUR`

``probability`` is the calibrated one, that the label is right. ``label_probability``, ``none`` and the
runner-up's are those of the neighbourhood alone, which no calibration has tested. Without a calibration
there is no decision: null in JSON, empty in CSV. κ = ∞ and a novelty that is not known are so too.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

import surefind as sf
from surefind.apps.cli import options
from surefind.apps.cli.console import console, say, spelled, to_stderr
from surefind.apps.cli.items import check_model, read_items
from surefind.apps.cli.preflight import check_file
from surefind.files import write_atomically

SHOWN, NEIGHBOURS = 20, 2
"""Queries, and neighbours of each, in the table; files have all of them."""
SUFFIXES = (".json", ".csv")
DECIDED = ("decision", "probability", "reasons")
ANSWERED = (
    "query",
    "label",
    "label_probability",
    "runner_up",
    "runner_up_probability",
    "none",
    *DECIDED,
    "kappa",
    "novelty",
)
NEIGHBOUR = ("rank", "id", "item_label", "score", "item_kappa")
"""Columns of a CSV file."""
KEPT = {"neighbours": ("id", "label", "score", "kappa"), "items": ("id", "cosine")}
"""What JSON has of an item."""
STYLES = {"match": "green", "review": "yellow", "no_match": "red"}


def search(
    gallery: options.GalleryArgument,
    queries: Annotated[
        str, options.source_argument(help=f"What to look up. {options.SOURCE_HELP}")
    ],
    run: options.Run = None,
    k: Annotated[int, Option("-k", help="Neighbours of each query.")] = 10,
    rank: Annotated[
        Literal["distance", "expected", "match"],
        Option(help="What neighbours are ordered by; the last two use κ. It decides nothing."),
    ] = "distance",
    stale: Annotated[
        Literal["refuse", "mark", "ignore"],
        Option(help="If the calibration is out of date: no answer, marked, or no decisions."),
    ] = "refuse",
    groups: options.Groups = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON and nothing else.")] = False,
    out: Annotated[Path | None, Option(help="File to write: .json or .csv.")] = None,
    normalize: options.Normalize = False,
    on_bad: options.OnBad = "refuse",
    data: options.DataFolder = None,
) -> None:
    """Look up images or vectors in a gallery: the most probable label, match, review or no match, why.

    Example: `surefind search gallery digits:test --run runs/digits -k 5 --out answers.csv`
    """
    from surefind.validation import check_int

    check_int("k", k, least=1)
    if out is not None:
        check_file(out, SUFFIXES)
    aside = to_stderr if as_json else say
    policy = "mark" if stale == "mark" else "refuse"
    with sf.Gallery.open(gallery, mode="r", normalize=normalize, on_stale=policy) as opened:
        check_model(opened, run)
        items = read_items(queries, run, data, on_bad=on_bad, announce=aside)
        members = None if groups is None else items.column(groups, options.GROUP_COLUMN)
        answers = opened.search(
            items.embeddings, k, rank=rank, decide=stale != "ignore", groups=members
        )
    if as_json:
        typer.echo(json_text(items.ids, answers), nl=False)
    else:
        how = {"run": run, "normalize": normalize, "on_bad": on_bad, "data": data}
        show(items.ids, answers, spelled("calibrate", gallery, "HELD-OUT", **how))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        text = csv_text if out.suffix.lower() == ".csv" else json_text
        write_atomically(out, text(items.ids, answers))
        aside(f"Wrote the answers of {len(answers)} queries to {out}.")


def show(ids: Sequence[str], answers: "sf.Answers", calibrating: str) -> None:
    """Print a table of the first answers, and a count of the decisions, or how to calibrate."""
    console.print(answer_table(ids, answers))
    if len(answers) > SHOWN:
        say(f"The first {SHOWN} of {len(answers)} queries; --out FILE or --json gives all of them.")
    if answers.decision is None:
        say(f"No decisions without a calibration; make one with labelled queries: {calibrating}")
        return
    counts = Counter(answers.decision.tolist())
    counted = ", ".join(f"{counts[d]} {d}" for d in STYLES)
    old = (
        "They are stale: the gallery has changed since it was calibrated." if answers.stale else ""
    )
    say(f"Decisions: {counted}. {old}".rstrip())


def answer_table(ids: Sequence[str], answers: "sf.Answers") -> Table:
    """Return the first answers as a table, with κ and novelty where that is known."""
    from surefind.decisions.gate import p_text

    decided = answers.decision is not None
    why = ("decision", "reasons") if decided else ()
    measured = () if answers.novelty is None else ("κ", "novelty")
    table = Table("query", "label", *why, "runner-up", "none", *measured, "nearest")
    own = "of the label as calibrated, others" if decided else "all"
    table.caption = f"In brackets after a label its probability: {own} by the neighbourhood alone"
    for row in plain_answers(ids[:SHOWN], answers):
        (label, chance), second = _first_two(row)
        cells = [
            Text(row["query"]),
            Text(_labelled(label, row["probability"] if decided else chance)),
        ]
        if decided:
            verdict = row["decision"]
            cells += [Text(verdict, style=STYLES[verdict]), Text(", ".join(row["reasons"]))]
        cells += [Text(_labelled(*second)), Text(f"{row['none']:.2f}")]
        if measured:
            sure = "∞" if row["kappa"] is None else f"{row['kappa']:.3g}"
            cells += [Text(sure), Text(p_text(row["novelty"]))]
        table.add_row(*cells, Text("; ".join(map(_item_text, row["neighbours"][:NEIGHBOURS]))))
    return table


def plain_answers(ids: Sequence[str], answers: "sf.Answers") -> list[dict[str, Any]]:
    """Return answers as JSON can hold them, an object for each query; ``ids`` name the first, or all."""
    from surefind.gallery.answers import answer_records

    return [
        {"query": name, "stale": answers.stale}
        | record
        | {
            "neighbours": _only(KEPT["neighbours"], record["neighbours"]),
            "evidence": [
                e | {"items": _only(KEPT["items"], e["items"])} for e in record["evidence"]
            ],
        }
        for name, record in zip(ids, answer_records(answers), strict=False)
    ]


def json_text(ids: Sequence[str], answers: "sf.Answers") -> str:
    """Write answers as JSON."""
    return json.dumps(plain_answers(ids, answers), ensure_ascii=False, allow_nan=False) + "\n"


def csv_text(ids: Sequence[str], answers: "sf.Answers") -> str:
    """Write answers as CSV, a line for each neighbour."""
    stream = io.StringIO()
    write = csv.writer(stream, lineterminator="\n").writerow
    write((*ANSWERED, *NEIGHBOUR))
    for row in plain_answers(ids, answers):
        first, second = _first_two(row)
        why = row["decision"], row["probability"], ", ".join(row["reasons"])
        front = row["query"], *first, *second, row["none"], *why, row["kappa"], row["novelty"]
        for place, near in enumerate(row["neighbours"], start=1):
            write([*front, place, *near.values()])
    return stream.getvalue()


def _first_two(row: dict[str, Any]) -> list[tuple[Any, float | None]]:
    """Return the two most probable labels with their probabilities; None where there are fewer."""
    listed = [(found["label"], found["probability"]) for found in row["label_probability"][:2]]
    return [*listed, (None, None), (None, None)][:2]


def _only(names: Sequence[str], items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: item[name] for name in names} for item in items]


def _labelled(label: Any, chance: float | None) -> str:
    return "–" if label is None else f"{label} ({chance:.2f})"


def _item_text(near: dict[str, Any]) -> str:
    label = "" if near["label"] is None else f"{near['label']}, "
    return f"{near['id']} ({label}{near['score']:.3f})"
