"""`surefind search`: the label of each query, a decision about it, and the nearest items.

    JSON       a list of {query, stale} with what `surefind.gallery.answers.answer_records` has
    CSV        a line for each neighbour: the columns of `ANSWERED`, then those of `NEIGHBOUR`
    Parquet    a row for each query, as `surefind.Answers.to_arrow`

``probability`` is the calibrated one, that the label is right. ``label_probability``, ``none``, the
runner-up's and the candidates' are those of the neighbourhood alone, which no calibration has tested. Where
``gate`` is "unlike", none of these means anything: they were tested, if at all, on queries that pass. The
table has a dash in their place, and "untested" in that of the calibrated one where ``gate`` is "unusual";
files have them, for whoever wants to look into it.
Without a calibration there is no decision: null in JSON and Parquet, empty in CSV. So is a gate or a
novelty that is not known, and κ = ∞ except in Parquet, which has infinity. In CSV reasons are separated by
semicolons, and candidates and payload are JSON.

Files are written before answers are shown. The queries ``-`` are a stream (`surefind.cli.stream`).
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    DEFAULTS,
    check_out,
    complain,
    console,
    csv_lines,
    json_text,
    say,
    show_table,
    spelled,
    to_stderr,
    write_out,
)
from surefind.cli.items import check_model, read_items
from surefind.cli.run_folder import open_run
from surefind.errors import InputError

STREAM = "-"
SHOWN, NEIGHBOURS = 20, 2
"""Queries, and neighbours of each, in the table; files have all of them."""
WIDE = 120
"""Characters in a line that all columns of the table need."""
NARROW = {
    True: ("query", "label", "decision", "reasons"),
    False: ("query", "label", "none", "nearest"),
}
"""Columns where there are fewer, with decisions and without."""
ALONE = "all by the neighbourhood alone"
WHENCE = {
    (True, True): "of the label as calibrated, others by the neighbourhood alone",
    (True, False): "as calibrated",
    (False, True): ALONE,
    (False, False): ALONE,
}
"""Where probabilities come from, with decisions or without, in a wide table or a narrow one."""
SUFFIXES = (".json", ".csv", ".parquet")
ANSWERED = (
    "query",
    "label",
    "label_probability",
    "runner_up",
    "runner_up_probability",
    "none",
    "candidates",
    "decision",
    "probability",
    "reasons",
    "gate",
    "kappa",
    "novelty",
    "stale",
)
NEIGHBOUR = ("place", "id", "item_label", "score", "item_kappa", "payload")
"""Columns of a CSV file."""
STYLES = {"match": "green", "review": "yellow", "no_match": "red"}


def search(
    gallery: options.GalleryArgument,
    queries: Annotated[
        str,
        options.source_argument(
            help=f"What to look up. {options.SOURCE_HELP} `-` reads JSON lines from the standard input."
        ),
    ],
    run: options.Run = None,
    k: Annotated[int, Option("-k", help="Neighbours of each query.")] = 10,
    groups: options.Groups = None,
    out: Annotated[Path | None, Option(help="File to write: .csv, .json or .parquet.")] = None,
    normalize: options.Normalize = False,
    on_bad: options.OnBad = "refuse",
    data: options.DataFolder = None,
) -> Any:
    """Look up images or vectors in a gallery: the most probable label, match, review or no match, why.

    Example: `surefind search gallery digits:test --run runs/digits -k 5 --out answers.csv`
    """
    from surefind.checks import check_int

    check_int("k", k, least=1)
    check_out(out, SUFFIXES)
    streamed = queries == STREAM
    if streamed:
        check_streamed(out=out, groups=groups, on_bad=on_bad)
    with sf.Gallery.open(gallery, mode="r", normalize=normalize) as opened:
        check_model(opened, run)
        opened.renew()  # for this search, if items have changed
        if streamed:
            stream(opened, run, k=k)
            return None
        items = read_items(queries, run, data, on_bad=on_bad)
        members = None if groups is None else items.column(groups, options.GROUP_COLUMN)
        answers = opened.search(items.embeddings, k, groups=members)
    if out is not None:
        write_answers(out, items.ids, answers)
    how = {"run": run, "normalize": normalize, "on_bad": on_bad, "data": data}
    show(items.ids, answers, spelled("calibrate", gallery, "HELD-OUT", **how))
    if out is not None:
        say(f"Wrote the answers of {len(answers)} queries to {out}.")
    return lambda: plain_answers(items.ids, answers)


def check_streamed(**given: object) -> None:
    """Refuse options that a stream has no use for, and a standard input that is closed."""
    if sys.stdin is None:
        raise InputError("the standard input is closed; pipe JSON lines into it.", field="queries")
    instead = {
        "out": "Redirect the standard output.",
        "groups": 'Give each line its own "group".',
        "on_bad": "A stream answers what it cannot read with an error, and goes on.",
    }
    for name, value in given.items():
        if value not in (None, DEFAULTS.get(name)):
            typed = f"--{name.replace('_', '-')}"
            raise InputError(f"{typed} is not for a stream. {instead[name]}", field=name)


def stream(gallery: "sf.Gallery", run: Path | None, **how: Any) -> None:
    """Answer JSON lines until they end, their reader leaves, or Ctrl-C.

    Raises:
        Exit: If some could not be answered, or with Ctrl-C.
    """
    from surefind.cli.stream import Answerer, answer_stream

    answerer = Answerer(gallery, None if run is None else open_run(run).learner(), **how)
    answerer.check()
    if sys.stdin.isatty():
        to_stderr("Type a JSON object a line; Ctrl-D ends.")
    try:
        count, bad = answer_stream(answerer, sys.stdin.fileno(), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise typer.Exit(1) from None
    if bad:
        complain(f"{bad} of {count} lines could not be answered; their answers say why.")
        raise typer.Exit(1)


def write_answers(file: Path, ids: Sequence[str], answers: "sf.Answers") -> None:
    """Write all answers to a file, in the format that its suffix says."""
    formats = {
        ".csv": lambda: csv_text(ids, answers),
        ".json": lambda: json_text(plain_answers(ids, answers)),
        ".parquet": lambda: answers.to_arrow(ids),
    }
    write_out(file, formats)


def show(ids: Sequence[str], answers: "sf.Answers", calibrating: str) -> None:
    """Print a table of the first answers, and a count of the decisions, or how to calibrate."""
    show_table(answer_table(ids, answers, width=console.width))
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


def answer_table(ids: Sequence[str], answers: "sf.Answers", *, width: int = WIDE) -> Table:
    """Return the first answers as a table, with κ and novelty where that is known.

    Args:
        ids: Names of the queries.
        answers: Theirs.
        width: Characters in a line; where they are fewer than `WIDE`, what decides nothing is left out.

    Returns:
        The table.
    """
    decided, wide = answers.decision is not None, width >= WIDE
    rows = [_cells(row, decided) for row in plain_answers(ids[:SHOWN], answers)]
    names = [name for name in rows[0] if wide or name in NARROW[decided]] if rows else []
    if answers.novelty is None:
        names = [name for name in names if name not in ("κ", "novelty")]
    notes = [f"In brackets after a label its probability: {WHENCE[decided, wide]}"]
    if not wide:
        notes.append("A wider terminal shows more")
    if answers.gate is not None and "unlike" in answers.gate[:SHOWN]:
        notes.append("A dash: unlike anything seen, so whatever is nearest means nothing")
    if answers.gate is not None and "unusual" in answers.gate[:SHOWN]:
        notes.append("Untested: on inputs as unusual as these no probability was tested")
    table = Table(caption=". ".join(notes))
    for name in names:
        table.add_column(name, overflow="fold")
    for cells in rows:
        table.add_row(*(cells[name] for name in names))
    return table


def _cells(row: dict[str, Any], decided: bool) -> dict[str, Text]:
    """Return what the table may say of a query, by column."""
    from surefind.decisions.decision import p_text

    unlike = row["gate"] == "unlike"
    (label, chance), second = [(None, None)] * 2 if unlike else _first_two(row)
    if decided:
        # A number that was never tested would be believed all the same.
        chance = None if row["gate"] == "unusual" else row["probability"]
    cells = {
        "query": row["query"],
        "label": _labelled(label, chance),
        "decision": row["decision"] or "",
        "reasons": ", ".join(row["reasons"]),
        "runner-up": _labelled(*second),
        "none": "–" if unlike else f"{row['none']:.2f}",
        "κ": "∞" if row["kappa"] is None else f"{row['kappa']:.3g}",
        "novelty": "" if row["novelty"] is None else p_text(row["novelty"]),
        "nearest": "; ".join(map(_item_text, row["neighbours"][:NEIGHBOURS])),
    }
    if not decided:
        del cells["decision"], cells["reasons"]
    styles = {"decision": STYLES.get(row["decision"], "")}
    return {name: Text(text, style=styles.get(name, "")) for name, text in cells.items()}


def plain_answers(ids: Sequence[str], answers: "sf.Answers") -> list[dict[str, Any]]:
    """Return answers as JSON can hold them, an object for each query; ``ids`` name the first, or all."""
    from surefind.gallery.answers import answer_records

    return [
        {"query": name, "stale": answers.stale} | record
        for name, record in zip(ids, answer_records(answers), strict=False)
    ]


def csv_text(ids: Sequence[str], answers: "sf.Answers") -> str:
    """Write answers as CSV, a line for each neighbour."""
    lines: list[list[Any]] = []
    for row in plain_answers(ids, answers):
        first, second = _first_two(row)
        own = {
            **row,
            "label_probability": first[1],
            "runner_up": second[0],
            "runner_up_probability": second[1],
            "candidates": _json(row["label_probability"]),
            "reasons": "; ".join(row["reasons"]),
            "stale": _json(row["stale"]),
        }
        front = [own[name] for name in ANSWERED]
        for place, near in enumerate(row["neighbours"], start=1):
            payload = None if near["payload"] is None else _json(near["payload"])
            lines.append([*front, place, *(near | {"payload": payload}).values()])
    return csv_lines((*ANSWERED, *NEIGHBOUR), lines)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _first_two(row: dict[str, Any]) -> list[tuple[Any, float | None]]:
    """Return the two most probable labels with their probabilities; None where there are fewer."""
    listed = [(found["label"], found["probability"]) for found in row["label_probability"][:2]]
    return [*listed, (None, None), (None, None)][:2]


def _labelled(label: Any, chance: float | None) -> str:
    return (
        "–" if label is None else f"{label} ({'untested' if chance is None else f'{chance:.2f}'})"
    )


def _item_text(near: dict[str, Any]) -> str:
    label = "" if near["label"] is None else f"{near['label']}, "
    return f"{near['id']} ({label}{near['score']:.3f})"
