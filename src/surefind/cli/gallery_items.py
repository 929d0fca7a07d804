"""`surefind items`: list, delete and relabel what a gallery holds.

All three choose items alike: by their ids, by a label, or both; `surefind items list` shows what the other
two would change. An id or a label is given as a text. It means the item of that text or, if there is none,
of that number.

    CSV        the columns of `COLUMNS`, the payload as JSON, κ = ∞ empty
    JSON       a list of objects with the same
    Parquet    the same columns; ids, labels and groups as texts

A change is durable when the command ends, and the calibration is renewed with it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

import surefind as sf
from surefind.checks import require
from surefind.cli import options
from surefind.cli.console import (
    check_out,
    csv_lines,
    errors,
    json_text,
    say,
    show_table,
    write_out,
)
from surefind.cli.items import labels_like, settled
from surefind.errors import CommandInterruptedError, InputError

if TYPE_CHECKING:
    from surefind.gallery.answers import Item
    from surefind.gallery.engine import Id, Label

SHOWN = 20
"""Items in the table; files and JSON have all of them."""
NAMED = 5
"""Labels that a message names."""
COLUMNS = ("id", "label", "group", "kappa", "novelty", "payload")
SUFFIXES = (".csv", ".json", ".parquet")

Ids = Annotated[list[str] | None, Argument(metavar="[ID]...", help="Ids of items.")]
Chosen = Annotated[
    list[str] | None, Option("--label", help="Items of this label; may be given several times.")
]


def list_items(
    gallery: options.GalleryArgument,
    ids: Ids = None,
    label: Chosen = None,
    out: Annotated[Path | None, Option(help="File to write: .csv, .json or .parquet.")] = None,
) -> Any:
    """List a gallery's items: all of them, or those of some ids or labels.

    Example: `surefind items list gallery --label 3 --out threes.csv`
    """
    check_out(out, SUFFIXES)
    with sf.Gallery.open(gallery, mode="r") as opened:
        chosen = select(opened, ids, label, everything=True)
        found = [opened.get(id_) for id_ in chosen]
        total, labels = len(opened), len(opened.labels())
    if out is not None:
        formats = {
            ".csv": lambda: csv_lines(COLUMNS, csv_rows(found)),
            ".json": lambda: json_text(records(found)),
            ".parquet": lambda: arrow_table(found),
        }
        write_out(out, formats)
    show_table(item_table(found[:SHOWN]))
    if len(found) > SHOWN:
        say(f"The first {SHOWN} of {len(found):,} items; --out FILE or --json gives all of them.")
    say(f"{gallery} holds {total:,} items of {labels:,} labels.")
    if out is not None:
        say(f"Wrote {len(found):,} items to {out}.")
    return lambda: records(found)


def delete_items(
    gallery: options.GalleryArgument,
    ids: Ids = None,
    label: Chosen = None,
    yes: Annotated[
        bool, Option("--yes", help="Do not ask before all items of a label are deleted.")
    ] = False,
) -> Any:
    """Delete items from a gallery, by their ids or all of a label; all of them, or none if an id is wrong.

    Example: `surefind items delete gallery digits:train/9 digits:train/12`
    """
    with sf.Gallery.open(gallery) as opened:
        chosen = select(opened, ids, label)
        if label:
            confirm(f"Delete {len(chosen):,} of {len(opened):,} items of {gallery}?", yes)
        opened.delete(chosen)
        renewed = settled(opened)
        left = len(opened)
    say(f"Deleted {len(chosen):,} items; {gallery} holds {left:,}.")
    if renewed is not None:
        say(f"Its calibration was renewed. {renewed.summary}")
    return {"gallery": gallery, "deleted": chosen, "items": left, "renewed": renewed is not None}


def relabel_items(
    gallery: options.GalleryArgument,
    ids: Ids = None,
    label: Chosen = None,
    to: Annotated[
        str | None, Option(help="The new label of the chosen items; empty or -1 for none.")
    ] = None,
    table: Annotated[
        Path | None,
        Option(help="Instead: a table with the columns `id` and `label`, a row for each item."),
    ] = None,
) -> Any:
    """Give items of a gallery another label: some ids, all of a label (which renames it), or from a table.

    Example: `surefind items relabel gallery digits:train/10 --to 4`
    """
    with sf.Gallery.open(gallery) as opened:
        if (table is None) == (to is None):
            raise InputError(
                "give the new label with --to, or a table of ids and labels with --table; one of them.",
                field="to",
            )
        if table is not None:
            if ids or label:
                raise InputError(
                    "a table names its items itself; leave the others out.", field="table"
                )
            named, texts = read_corrections(table)
            chosen = select(opened, named, None)
        else:
            chosen = select(opened, ids, label)
            texts = [None if to in ("", "-1") else to] * len(chosen)
        new = labels_like(opened, texts)
        old = [opened.get(id_).label for id_ in chosen]
        changed = [row for row in range(len(chosen)) if old[row] != new[row]]
        if changed:
            opened.update(ids=[chosen[r] for r in changed], labels=[new[r] for r in changed])
        renewed = settled(opened) if changed else None
        labels = len(opened.labels())
    same = len(chosen) - len(changed)
    more = f" {same:,} had that label already." if same else ""
    say(f"Relabelled {len(changed):,} items; {gallery} has {labels:,} labels.{more}")
    if renewed is not None:
        say(f"Its calibration was renewed. {renewed.summary}")
    moved = [{"id": chosen[r], "from": old[r], "to": new[r]} for r in changed]
    return {"gallery": gallery, "relabelled": moved, "renewed": renewed is not None}


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; elsewhere ``--yes`` must be given.

    Raises:
        InputError: If nobody can be asked.
        CommandInterruptedError: If the answer is no.
    """
    if yes:
        return
    if not errors.is_terminal:
        raise InputError(
            f"{question} Nobody can be asked here, and nothing was changed.",
            field="yes",
            hint="Add --yes; `surefind items list` with the same --label shows which they are.",
        )
    if not typer.confirm(question, err=True):
        raise CommandInterruptedError("nothing was changed.")


def select(
    gallery: "sf.Gallery",
    ids: Sequence[str] | None,
    labels: Sequence[str] | None,
    *,
    everything: bool = False,
) -> "list[Id]":
    """Return the ids of the chosen items: those of given ids, or else in order, integers first.

    Args:
        gallery: Whose items.
        ids: As typed; none of them may be missing.
        labels: As typed; of ids, only those that have one of them.
        everything: Whether all are chosen if nothing is given.

    Returns:
        Ids, each once.

    Raises:
        InputError: If there is no such id or label, or nothing is chosen.
    """
    if not ids and not labels and not everything:
        raise InputError("choose items: give their ids, or --label LABEL.", field="ids")
    wanted = None if not labels else {found_label(gallery, text) for text in labels}
    if ids:
        chosen = list(dict.fromkeys(found_id(gallery, text) for text in ids))
    else:
        chosen = sorted(gallery, key=lambda id_: (isinstance(id_, str), id_))
    if wanted is not None:
        chosen = [id_ for id_ in chosen if gallery.get(id_).label in wanted]
    if not chosen and not everything:
        raise InputError("none of these ids has that label; nothing was changed.", field="label")
    return chosen


def found_id(gallery: "sf.Gallery", text: str) -> "Id":
    """Return the id that a text means; refuse one that is not there, or could be two."""
    meant = [id_ for id_ in _read_as(text) if id_ in gallery]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise InputError(
            f"{gallery.info['place']} has an item {text!r} and an item {meant[1]}; choose it in Python.",
            field="ids",
        )
    raise InputError(
        f"{gallery.info['place']} has no item {text!r}; nothing was changed.",
        field="ids",
        hint="`surefind items list` shows them.",
    )


def found_label(gallery: "sf.Gallery", text: str) -> "Label":
    """Return the label that a text means; refuse one that no item has, or that could be two."""
    counts = gallery.labels()
    meant = [label for label in _read_as(text) if label in counts]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise InputError(
            f"{gallery.info['place']} has a label {text!r} and a label {meant[1]}; choose it in Python.",
            field="label",
        )
    there = ", ".join(map(str, list(counts)[:NAMED])) + (" …" if len(counts) > NAMED else "")
    raise InputError(
        f"no item of {gallery.info['place']} has the label {text!r}; there are {there or 'none'}.",
        field="label",
    )


def _read_as(text: str) -> "list[Id]":
    number = text.removeprefix("-")
    return [text, *([int(text)] if number.isascii() and number.isdecimal() else [])]


def read_corrections(file: Path) -> tuple[list[str], list[str | None]]:
    """Read ids and labels from a table; refuse one that names an item twice."""
    from surefind.data.sources import read_table

    found = read_table(file)
    ids = found.filled("id")
    if len(set(ids)) < len(ids):
        twice = next(id_ for row, id_ in enumerate(ids) if id_ in ids[:row])
        raise InputError(f"{file} has the id {twice!r} twice.", field="table")
    if not ids:
        raise InputError(f"{file} holds nothing.", field="table")
    return ids, [None if text in ("", "-1") else text for text in found["label"]]


def records(found: "Sequence[Item]") -> list[dict[str, Any]]:
    """Return items as JSON holds them: κ = ∞, and what is not known, as null."""
    from surefind.embeddings import kappa_to_json

    return [
        {name: getattr(item, name) for name in COLUMNS} | {"kappa": kappa_to_json(item.kappa)}
        for item in found
    ]


def csv_rows(found: "Sequence[Item]") -> list[list[Any]]:
    """Return items as lines of a CSV file."""
    return [
        [_payload_text(value) if name == "payload" else value for name, value in record.items()]
        for record in records(found)
    ]


def arrow_table(found: "Sequence[Item]") -> Any:
    """Return items as a table of Arrow, in types that do not depend on the values."""
    arrow = require("pyarrow", "write Parquet files")
    rows = [{name: getattr(item, name) for name in COLUMNS} for item in found]
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in COLUMNS}
    for name in ("id", "label", "group"):
        columns[name] = [None if value is None else str(value) for value in columns[name]]
    columns["payload"] = [_payload_text(value) for value in columns["payload"]]
    numbers = ("kappa", "novelty")
    types = {n: arrow.float64() if n in numbers else arrow.string() for n in COLUMNS}
    return arrow.table({n: arrow.array(columns[n], types[n]) for n in COLUMNS})


def item_table(found: "Sequence[Item]") -> Table:
    """Return items as a table for people."""
    table = Table("id", "label", "group", "κ", "novelty", "payload")
    for item in found:
        sure = "∞" if item.kappa == float("inf") else f"{item.kappa:.3g}"
        novelty = "–" if item.novelty is None else f"{item.novelty:.2g}"
        texts = [str(item.id), _or_dash(item.label), _or_dash(item.group), sure, novelty]
        table.add_row(*map(Text, texts), Text(_payload_text(item.payload) or "–"))
    return table


def _or_dash(value: Any) -> str:
    return "–" if value is None else str(value)


def _payload_text(payload: Any) -> str | None:
    return None if payload is None else json_text(payload).rstrip()
