"""`surefind index` and `surefind items`: fill a gallery, look at what it holds, and change it.

**Items.** A run embeds a source: that of ``--run``, or else the one that the gallery remembers. Vectors
with a column ``kappa``, as `surefind embed` writes them, are embedded already, and so are all without a
run; those of another length than 1 are rescaled. Ids are the names of the images, the ids in the file, or
else the source's name and the row, so that two sources without ids do not meet. Labels are texts.

**index** checks everything before anything is written; a gallery that does not exist is made last. What a
run embeds is embedded and added block by block, and each block is on the disk before the next. After each
the gallery remembers how far this source has come (`MARK`), so that the same command, after it was killed
at any moment, continues there. Another source, model, prefix or label starts from the beginning: items that
are there are replaced. The gallery stores the run and the folder of the images; each image's path is its
payload ``{"path": …}``, relative to that folder. So `surefind serve` finds the model and shows the images.

Images without a run train one, in GALLERY.run. A model says too much of images that it was trained on, so
one of five of each label is kept apart: it is not indexed, and calibrates the gallery (`OWN` lists them).
A gallery without a calibration gets one: by these, or else by its own items, each left out. Guarantees are
tested from the loosest of `TARGETS` on until one fails, so that all that were reached hold together with
the confidence of one (fixed-sequence testing).

**items** chooses by ids, by a label, or both. An id or a label is given as a text. It means the item of
that text or, if there is none, of that number. A change is durable when the command ends, and the gallery
is recalibrated with it.
"""

import hashlib
import json
import os
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

import surefind as sf
from surefind.checks import UNIT_TOLERANCE
from surefind.cli import options
from surefind.cli.console import (
    TABLES,
    cell_text,
    check_file,
    progress,
    say,
    say_next,
    show_table,
    spelled,
    this_command,
    write_table,
)
from surefind.cli.runs import MODEL, open_run, readable, usable
from surefind.errors import CommandInterruptedError, DegenerateError, InputError

if TYPE_CHECKING:
    from surefind.data.sources import VectorFile
    from surefind.gallery.records import Id, Label

BATCH, EMBEDDED, BLOCK = 128, 1024, 10_000
"""Inputs that are embedded at a time; items that are written at a time, of a run and of vectors."""
MARK = "indexing"
"""What the gallery remembers of a source until all of it is indexed: its key, and how many are."""
OWN, APART = "images.csv", 0.2
"""The list of images in a run that `index` trained; the share of them that calibrates the gallery."""
TARGETS = (0.1, 0.05, 0.02, 0.01)
"""Fractions of wrong matches that `index` tries to guarantee."""
SHOWN, NAMED = 20, 5
"""Items in the table, and labels that a message names; files and JSON have all of them."""
COLUMNS = {"id": str, "label": str, "group": str, "kappa": float, "novelty": float, "payload": str}


@dataclass(frozen=True, eq=False)
class Items:
    """What a source gives: rows that are embedded, or that a run embeds when they are taken.

    Attributes:
        dataset: Names and files, and what a run embeds.
        ids: One a row, distinct within a source of images.
        labels: A text or None each; None if the source has none at all.
        groups: The same of groups.
        embedded: The embeddings, if no run makes them.
        learner: The run's model, if one does.
    """

    dataset: "sf.Dataset"
    ids: list[str]
    labels: list[str | None] | None
    groups: list[str | None] | None = None
    embedded: "sf.Embeddings | None" = None
    learner: "sf.MetricLearner | None" = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: slice) -> "sf.Embeddings":
        if self.learner is None:
            return self.embedded[rows]  # type: ignore[index]
        return self.learner.embed(self.dataset[rows], batch_size=BATCH).numpy()

    def embeddings(self) -> "sf.Embeddings":
        """Return all embeddings."""
        blocks = []
        with progress("embedding", len(self)) as done:
            for at in range(0, len(self), EMBEDDED):
                blocks.append(self[at : at + EMBEDDED])
                done(at + len(blocks[-1]))
        return sf.Embeddings.concatenate(blocks)

    def trained(self, ids: list[str]) -> list[str]:
        """Return those of the ids whose items the model was fitted to."""
        if self.learner is None:
            return []
        return [x for x, own in zip(ids, self.learner.trained_on(self.dataset), strict=True) if own]

    @property
    def files(self) -> Sequence[str] | None:
        """The images' files; None if the source is in memory or holds vectors."""
        return getattr(self.dataset.inputs, "paths", None)

    def without(self, files: Container[str]) -> "Items":
        """Return the items of other files."""
        rows = [r for r, f in enumerate(self.files or ()) if str(Path(f).resolve()) not in files]
        if not files or len(rows) == len(self):
            return self
        columns: Any = {
            name: None if (cells := getattr(self, name)) is None else [cells[row] for row in rows]
            for name in ("ids", "labels", "groups")
        }
        return replace(self, dataset=self.dataset[rows], **columns)


def index(
    source: options.SourceArgument,
    out: Annotated[str, Option(help=f"{options.PLACE} Made if need be.")] = "gallery",
    run: options.Run = None,
    labels: options.Labels = None,
    groups: options.Groups = None,
    prefix: options.Prefix = "",
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Make a gallery of images or vectors, or add to one; items with the same id are replaced.

    What is missing is made: a model, if images come without --run, and a calibration. Items of one group
    were taken together (a video, a session). Interrupted at any moment, the same command continues where it
    was.

    Example: `surefind index digits:train --run runs/digits --out gallery`
    """
    from surefind.checks import id_values
    from surefind.gallery.records import read_vectors

    with ExitStack() as closing:
        gallery = existing_gallery(out)
        if gallery is not None:
            closing.enter_context(gallery)
            check_model(gallery, run)
            run = run or remembered_run(gallery)
        held = None
        if run is None and not _holds_vectors(source):
            if groups is not None:
                raise InputError("--groups needs --run: train a model first.", field="groups")
            run, source, held = own_run(source, out, labels, on_bad)
            labels = None
        items = read_items(source, run, labels=labels, groups=groups, on_bad=on_bad)
        items = items.without(kept_apart(run))
        ids = [prefix + i for i in items.ids]
        id_values("ids", ids)
        dim = None if gallery is None else gallery.info["dim"]
        read_vectors(items[0:1], normalize=False, dim=dim)
        if gallery is None:
            engine = "milvus" if _on_milvus(out) else "faiss"
            gallery = closing.enter_context(sf.Gallery(out, engine, model=_fingerprint(run)))
        own = labels_like(gallery, items.labels)
        payload = remember(gallery, run, items.files)
        key = source_key(source, items, prefix, own, _fingerprint(run))
        there = set(gallery)
        begun = done_before(gallery, key)
        begun = begun if there.issuperset(ids[:begun]) else 0  # some were deleted since
        if begun:
            say(f"Continuing: {begun:,} of {len(ids):,} items were indexed before it was cut off.")
        columns = {"ids": ids, "labels": own, "payload": payload, "groups": items.groups}
        updated = sum(i in there for i in ids[begun:])
        try:
            with progress("indexing", len(ids)) as done:
                size = BLOCK if items.learner is None else EMBEDDED
                for at in range(begun, len(ids), size):
                    rows = range(at, min(at + size, len(ids)))
                    block = items[rows.start : rows.stop]
                    write_rows(gallery, block, rows, there, columns)
                    last = rows.stop == len(ids)
                    mark = None if last else json.dumps({"key": key, "done": rows.stop})
                    gallery.info |= {MARK: mark}
                    done(rows.stop)
        except KeyboardInterrupt as stop:
            written = done_before(gallery, key)
            raise CommandInterruptedError(
                f"{written:,} of {len(ids):,} items are in {out}. Continue with: {this_command()}"
            ) from stop
        added = len(ids) - begun - updated
        say(
            f"Added {added:,} items and updated {updated:,}; {out} holds {len(gallery):,} of "
            f"{gallery.info['dim']} dimensions."
        )
        renewed = settled(gallery)
        if gallery.calibration is None:
            first_calibration(gallery, out, run, items.trained(ids), held, on_bad)
        made = gallery.calibration
        if made is not None:
            say_next(spelled("search", out, held or source, on_bad=on_bad))
        return {
            "gallery": out,
            "run": run,
            "added": added,
            "updated": updated,
            "continued": begun,
            "items": len(gallery),
            "dim": gallery.info["dim"],
            "renewed": renewed,
            "max_wrong": made.target.max_wrong if made is not None and made.reached else None,
        }


def own_run(source: str, place: str, labels: Path | None, on_bad: Any) -> tuple[Path, str, str]:
    """Train a model of images, or resume what was begun of it.

    Args:
        source: Labelled images.
        place: The gallery's.
        labels: Their labels, if these are in a file of their own.
        on_bad: "refuse" or "skip" images that cannot be read.

    Returns:
        The run, the part of the images to index, and the one that calibrates.
    """
    from surefind.cli.learn import train, with_relation
    from surefind.data.dataset import validation_split
    from surefind.data.sources import LABELS, part_names, read_source, read_table, split_part
    from surefind.learning.seeds import seeded

    run = Path(f"{'surefind' if '://' in place else place}.run")
    (where, part), listed = split_part(source), run / OWN
    if part in (None, "train") and {"train", "test"} <= {*part_names(where)} and labels is None:
        listed = Path(where)  # which is divided
    else:
        whole = read_source(source)
        if labels is not None:
            texts = read_texts(labels, LABELS, len(whole))
            whole = replace(whole, labels=[text or "" for text in texts], classes=None)
        paths = getattr(with_relation(whole).inputs, "paths", None)
        if paths is None or whole.classes is None:
            why = f"no model can be trained on {source}, which are no files with labels"
            raise InputError(f"{why}: give --run RUN.", field="run")
        if not listed.is_file():
            good = readable(whole, on_bad)
            cut = validation_split(good, seeded(0, "calibration"), share=APART)
            apart = {*cut["validation"].inputs.paths}
            rows = [
                {
                    "path": str(Path(path).resolve()),
                    "label": whole.classes[label],
                    "split": "test" if path in apart else "train",
                    "name": name,
                }
                for path, label, name in zip(
                    good.inputs.paths, good.labels.tolist(), good.names, strict=True
                )
            ]
            write_table(listed, rows, dict.fromkeys(rows[0], str))
        elif not {*read_table(listed)["path"]} <= {str(Path(path).resolve()) for path in paths}:
            raise InputError(
                f"{run} was made for other images than {source}: give --run, or delete it.",
                field="run",
            )
    if not (run / MODEL).is_file():
        say(f"There is no model for {source} yet. Training one in {run}, on four images of five:")
        try:
            resume = (run / "config.toml").is_file()
            train(f"{listed}:train", run, on_bad=on_bad, resume=resume)
        except CommandInterruptedError as stop:
            again = f"there is a checkpoint in {run}. Continue with: {this_command()}"
            raise CommandInterruptedError(again) from stop
    return run, f"{listed}:train", f"{listed}:test"


def kept_apart(run: Path | None) -> set[str]:
    """Return the files that `index` keeps apart to calibrate with, if it trained the run."""
    from surefind.data.sources import read_source

    listed = None if run is None else run / OWN
    if listed is None or not listed.is_file():
        return set()
    return set(read_source(f"{listed}:test").inputs.paths)


def first_calibration(
    gallery: "sf.Gallery",
    place: str,
    run: Path | None,
    trained: list[str],
    held: str | None,
    on_bad: str,
) -> None:
    """Calibrate a gallery that decides nothing yet, if something can tell how good its answers are.

    Args:
        gallery: What it holds has just been indexed.
        place: Where it is, as it was typed.
        run: What embedded it, or None.
        trained: Ids of items that the model was fitted to.
        held: Labelled images that were kept apart, or None.
        on_bad: "refuse" or "skip" images that cannot be read.
    """
    asked: dict[str, Any] = {}
    what = f"the items of {place}, each left out"
    if held is not None:
        queries = read_items(held, run, on_bad=on_bad)
        asked = as_queries(gallery, held, queries, None)
        what = f"the {len(queries):,} images that the model has not seen"
    elif trained:
        say(f"The model has seen {len(trained):,} of these items: they play no queries.")
        asked = {"trained": trained}
    reached = None
    try:
        with progress(f"calibrating with {what}"):
            for target in TARGETS:
                if not gallery.calibrate(**asked, max_wrong=target).reached:
                    break
                reached = target
            if reached not in (None, TARGETS[-1]):
                gallery.calibrate(**asked, max_wrong=reached)
    except DegenerateError as few:
        say(f"Nothing is decided yet: {few.message}")
        hint_to_calibrate(place)
        return
    result = f"no guarantee was reached, not even that at most {100 * TARGETS[0]:g} % are wrong."
    if reached is not None:
        share = f"at most {100 * reached:g} % of matches are wrong"
        result = f"{share} (95 % confidence), for queries like these."
    say(f"Calibrated with {what}: {result}")


def hint_to_calibrate(place: str) -> None:
    """Hint at what a gallery needs that decides nothing."""
    say_next(spelled("calibrate", place, "QUERIES"), why="With labelled queries of your own")


def items(
    gallery: options.GalleryArgument,
    ids: options.Ids = None,
    label: options.Label = None,
    relabel: options.Relabel = None,
    delete: options.Delete = False,
    out: options.TableOut = None,
) -> Any:
    """List a gallery's items; or relabel or delete those that are chosen by id or label.

    All of them are changed, or none if an id or a label is wrong. --relabel LABEL gives the chosen items
    this label, empty or -1 for none. --relabel TABLE (.csv, .json, .parquet) takes what `surefind audit`
    wrote, or columns `id` and `label`.

    Example: `surefind items gallery --label 3 --out threes.csv`

    Example: `surefind items gallery digits:train/10 --relabel 4`

    Example: `surefind items gallery --relabel threes.csv`

    Example: `surefind items gallery digits:train/9 digits:train/12 --delete`
    """
    check_file(out)
    table = relabel is not None and Path(relabel).suffix.lower() in TABLES
    if (delete, relabel is not None, out is not None).count(True) > 1:
        raise InputError(
            "do one thing at a time: --relabel or --delete the chosen items, or list them, perhaps to a "
            "file with --out.",
            field="relabel",
        )
    if table and (ids or label):
        raise InputError(
            f"{relabel} chooses the items; leave ids and --label out.", field="relabel"
        )
    changes = delete or relabel is not None
    with sf.Gallery.open(gallery, mode="w" if changes else "r") as opened:
        if not changes:
            return list_items(opened, gallery, select(opened, ids, label, everything=True), out)
        corrections = read_corrections(Path(relabel or "")) if table else None
        chosen = [] if corrections == {} else select(opened, [*(corrections or ids or ())], label)
        if delete:
            opened.delete(chosen)
            result: dict[str, Any] = {"deleted": chosen}
            say(f"Deleted {len(chosen):,} items; {gallery} holds {len(opened):,}.")
        else:
            texts = (
                [_text(relabel)] * len(chosen) if corrections is None else [*corrections.values()]
            )
            moved = relabel_items(opened, chosen, texts)
            result = {"relabelled": moved}
            same = len(chosen) - len(moved)
            more = f" {same:,} had that label already." if same else ""
            say(f"Relabelled {len(moved):,} items of {gallery}.{more}")
        renewed = settled(opened)
        say_next(spelled("items" if delete else "audit", gallery))
        return {"gallery": gallery, **result, "items": len(opened), "renewed": renewed}


def list_items(gallery: "sf.Gallery", place: str, chosen: "list[Id]", out: Path | None) -> Any:
    """Show the first of the chosen items, and write all of them to a file if that is asked for."""
    from surefind.embeddings import kappa_to_json

    found = [gallery.get(id_) for id_ in chosen]
    records = [
        {name: getattr(item, name) for name in COLUMNS} | {"kappa": kappa_to_json(item.kappa)}
        for item in found
    ]
    if out is not None:
        write_table(out, records, COLUMNS)
    show_table([*COLUMNS], ([_shown(*cell) for cell in row.items()] for row in records[:SHOWN]))
    if len(found) > SHOWN:
        say(f"The first {SHOWN} of {len(found):,} items; --out FILE or --json gives all of them.")
    say(f"{place} holds {len(gallery):,} items of {len(gallery.labels()):,} labels.")
    if out is not None:
        say(f"Wrote {len(found):,} items to {out}.")
    say_next(spelled("audit", place, out="audit.csv"))
    return records


def _shown(name: str, value: Any) -> Any:
    if name == "kappa":
        return "∞" if value is None else f"{value:.3g}"
    return f"{value:.2g}" if isinstance(value, float) else cell_text(value)


def relabel_items(
    gallery: "sf.Gallery", chosen: "list[Id]", texts: Sequence[str | None]
) -> list[dict[str, Any]]:
    """Give items other labels; return which were changed, from what to what."""
    new = labels_like(gallery, texts) or []
    old = [gallery.get(id_).label for id_ in chosen]
    changed = [row for row in range(len(chosen)) if old[row] != new[row]]
    if changed:
        gallery.update(ids=[chosen[r] for r in changed], labels=[new[r] for r in changed])
    return [{"id": chosen[r], "from": old[r], "to": new[r]} for r in changed]


def read_corrections(file: Path) -> dict[str, str | None]:
    """Read the new label of each item from a table; refuse one that names an item twice.

    Of what an audit found only wrong labels can be corrected, and only where a label is suggested; other
    rows count for nothing.
    """
    from surefind.data.sources import read_table

    found = read_table(file)
    suggested = "suggested" in found
    kinds = found["kind"] if "kind" in found else ["mislabelled"] * len(found)
    labels = found["suggested" if suggested else "label"]
    rows = [r for r, x in enumerate(labels) if kinds[r] == "mislabelled" and (x or not suggested)]
    ids = [found["id"][row] for row in rows]
    if twice := {id_ for id_ in ids if ids.count(id_) > 1}:
        raise InputError(f"{file} has the id {min(twice)!r} twice.", field="relabel")
    if len(rows) < len(found):
        say(f"{len(found) - len(rows):,} rows of {file} suggest no label, and change nothing.")
    return {id_: _text(labels[row]) for id_, row in zip(ids, rows, strict=True)}


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
    wanted = labels_meant(gallery, labels)
    if ids:
        listing = "without ids, `surefind items` lists them"
        found = (_meant(gallery, "ids", text, gallery, listing) for text in ids)
        chosen: list[Any] = list(dict.fromkeys(found))
    else:
        chosen = sorted(gallery, key=lambda id_: (isinstance(id_, str), id_))
    if wanted is not None:
        chosen = [id_ for id_ in chosen if gallery.get(id_).label in wanted]
    if not everything and (not chosen or not (ids or labels)):
        raise InputError(
            "no item is chosen, and nothing was changed: give ids, or --label LABEL.", field="ids"
        )
    return chosen


def labels_meant(gallery: "sf.Gallery", texts: Sequence[str] | None) -> "list[Label] | None":
    """Return the labels that are meant by texts, which some items must have; None if none is given."""
    counts = gallery.labels()
    there = ", ".join(map(str, list(counts)[:NAMED])) + (" …" if len(counts) > NAMED else "")
    listing = f"there are {there or 'none'}"
    return [_meant(gallery, "label", text, counts, listing) for text in texts or ()] or None


def _meant(
    gallery: "sf.Gallery", field: str, text: str, there: "Container[Label]", otherwise: str
) -> Any:
    """Return the id or label that a text means; refuse one that is not there, or could be two."""
    number = text.removeprefix("-")
    whole = number.isascii() and number.isdecimal()
    meant: list[Any] = [read for read in (text, *([int(text)] if whole else [])) if read in there]
    if len(meant) == 1:
        return meant[0]
    what = "the label" if field == "label" else "an item"
    why = f"has {what} {text!r} and {what} {text}; choose it in Python"
    if not meant:
        why = f"does not have {what} {text!r}; {otherwise}"
    raise InputError(f"{gallery.info['place']} {why}.", field=field)


def write_rows(
    gallery: "sf.Gallery", block: Any, rows: range, there: Container[Any], columns: dict[str, Any]
) -> None:
    """Add a block of rows, or replace those whose ids are there; what is None stays as it is."""
    for put, known in ((gallery.add, False), (gallery.update, True)):
        some = [row for row in rows if (columns["ids"][row] in there) == known]
        if some:
            cells = {name: cells and [cells[r] for r in some] for name, cells in columns.items()}
            put(block[[row - rows.start for row in some]], **cells)


def source_key(source: str, items: Items, *more: Any) -> str:
    """Return a digest of everything that is to be indexed, which a resumed command must share."""
    files = items.files or ([source] if Path(source).is_file() else [])
    seen = [(file, os.stat(file)) for file in files]
    stamps = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in seen]
    key = json.dumps([items.ids, items.groups, stamps, *more])
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def done_before(gallery: "sf.Gallery", key: str) -> int:
    """Return how many rows of a source a command that was cut off had indexed."""
    mark = json.loads(gallery.info.get(MARK, "{}"))
    return int(mark["done"]) if mark.get("key") == key else 0


def remember(
    gallery: "sf.Gallery", run: Path | None, files: Sequence[str] | None
) -> list[dict[str, str]] | None:
    """Store with a gallery where its model and its images are, and return the payload of each item.

    The gallery's first folder of images stays; files elsewhere get their full path.
    """
    if run is not None:
        gallery.info |= {"run": str(run.resolve())}
    if files is None:
        return None
    paths = [Path(file).resolve() for file in files]
    folder = Path(gallery.info.get("images") or os.path.commonpath([p.parent for p in paths]))
    if folder != Path(folder.anchor):  # or else every file of the machine would be shown
        gallery.info |= {"images": str(folder)}
    inside = [p.relative_to(folder) if p.is_relative_to(folder) else p for p in paths]
    return [{"path": p.as_posix()} for p in inside]


def read_items(
    source: str,
    run: Path | None,
    *,
    labels: Path | None = None,
    groups: Path | None = None,
    on_bad: str = "refuse",
) -> Items:
    """Read vectors, or what a run embeds.

    Args:
        source: A folder, a file or the digits, perhaps with ``:PART``.
        run: The run that embeds it, unless it holds vectors with κ; None if it holds vectors.
        labels: A file with labels instead of the source's own.
        groups: A file with groups.
        on_bad: "refuse" or "skip" images that cannot be read.

    Returns:
        The items, at least one.

    Raises:
        InputError: If there is nothing, or nothing that embeds it.
    """
    from surefind.data.sources import LABELS, read_source, read_vector_file

    file = read_vector_file(source) if _holds_vectors(source) else None
    learner = embedded = None
    if file is not None and (run is None or file.kappa is not None):
        embedded = as_embeddings(file, source)
        good = whole = file.dataset(Path(source).stem)
    elif run is None:
        raise InputError(f"{source} holds images; give --run RUN, which embeds them.", field="run")
    else:
        learner = open_run(run).learner()
        whole = read_source(source, mode=learner.input_spec_.mode)
        good = usable(learner, whole, on_bad)
    rows = [*range(len(whole))]
    if len(good) < len(whole):
        kept = {*good.inputs.paths}
        rows = [row for row in rows if whole.inputs.paths[row] in kept]
    columns: list[Any] = []
    for path, names in ((labels, LABELS), (groups, options.GROUP_COLUMN)):
        cells = None if path is None else read_texts(path, names, len(whole))
        columns.append(cells and [cells[row] for row in rows])
    own = good.labels
    if columns[0] is None and own is not None:
        columns[0] = [_text(good.classes[x] if good.classes else x) for x in own.tolist()]
    ids: list[Any] = [f"{Path(source).stem}/{row}" for row in rows]
    if good.names is not None:
        ids = list(good.names)
    return Items(good, ids, columns[0], columns[1], embedded, learner)


def as_embeddings(file: "VectorFile", source: str) -> "sf.Embeddings":
    """Return the embeddings that a file holds; vectors of other lengths than 1 are rescaled."""
    import numpy as np

    from surefind.checks import as_directions

    if file.vectors.ndim != 2:
        raise InputError(
            f"{source} holds an array of shape {file.vectors.shape}, which are no vectors (n, d). Images "
            "need --run RUN, which embeds them.",
            field="run",
        )
    kappa = np.full(len(file.vectors), np.inf) if file.kappa is None else file.kappa
    directions = as_directions(source, file.vectors, normalize=file.kappa is None)
    off = abs(np.linalg.norm(file.vectors.astype(np.float64), axis=1) - 1) > UNIT_TOLERANCE
    if off.any():
        say(f"{off.sum():,} of {len(off):,} vectors did not have length 1, and were rescaled.")
    directions = np.where(off[:, None], directions, file.vectors).astype(np.float32)
    return sf.Embeddings(directions, kappa.astype(np.float32), file.novelty)


def _holds_vectors(source: str) -> bool:
    from surefind.data.sources import holds_vectors, split_part

    split_part(source)
    return Path(source).is_file() and holds_vectors(Path(source))


def read_texts(file: Path, names: tuple[str, ...], count: int) -> list[str | None]:
    """Read a label or a group for each row of a source from a file."""
    from surefind.checks import label_values
    from surefind.data.sources import read_column

    found = [_text(cell) for cell in label_values(names[0], read_column(file, names))]
    if len(found) != count:
        raise InputError(
            f"{file} has {len(found)} rows and the source {count}; give one each.", field=names[0]
        )
    return found


def _text(value: Any) -> str | None:
    """Write a label as a text; None for one that says: not in the gallery."""
    text = "" if value is None else str(value).strip()
    return None if text in ("", "-1") else text


def as_queries(
    gallery: "sf.Gallery", name: str, known: Items, others: Items | None
) -> dict[str, Any]:
    """Return queries as `surefind.Gallery.calibrate` takes them.

    Args:
        gallery: What they are for.
        name: What the user calls them.
        known: Items with labels.
        others: Items without a match in the gallery, or None.

    Returns:
        Their embeddings, labels, groups, and ids where they are items of the gallery.

    Raises:
        InputError: If there are no labels, or both were not embedded alike.
    """
    from numpy import isfinite

    if known.labels is None:
        raise InputError(f"{name} has no labels; give them with --labels FILE.", field="labels")
    parts = [items.embeddings() for items in (known, others) if items is not None]
    kinds = {(p.mean.shape[1], p.novelty is None, bool(isfinite(p.kappa).any())) for p in parts}
    if len(kinds) > 1:
        raise InputError(
            "the queries and the unknown ones differ in dimension, or only one of both has a κ or a "
            "novelty; embed both with one model.",
            field="unknown",
        )
    own = own_ids(gallery, known)
    rest = 0 if others is None else len(others)
    ids = [own.get(row, f"query {row}, not an item") for row in range(len(known) + rest)]
    truth = [*(labels_like(gallery, known.labels) or ()), *[None] * rest]
    queries = sf.Embeddings.concatenate(parts)
    return {"queries": queries, "truth": truth, "ids": ids, "groups": known.groups}


def own_ids(gallery: "sf.Gallery", items: Items) -> dict[int, str]:
    """Return, by row, the id of each item that is in the gallery already.

    Images are the same if their files are: two folders often use the same names. Vectors are the same if
    their file gives them the same id.
    """
    folder, there = Path(gallery.info.get("images", "")), set(gallery)

    def same(row: int, id_: str) -> bool:
        if items.files is None:
            return items.dataset.names is not None
        path = (gallery.get(id_).payload or {}).get("path", "")
        return (folder / str(path)).resolve() == Path(items.files[row]).resolve()

    return {row: id_ for row, id_ in enumerate(items.ids) if id_ in there and same(row, id_)}


def existing_gallery(place: str) -> "sf.Gallery | None":
    """Open a gallery for writing; return None if one can be made at that place.

    Raises:
        InputError: If something else is there.
    """
    from surefind.gallery.store import check_free, holds_gallery

    if holds_gallery(Path(place)):
        return sf.Gallery.open(place)
    if _on_milvus(place):
        with suppress(InputError):  # which has none yet
            return sf.Gallery.open(place)
    else:
        check_free(Path(place))
    return None


@contextmanager
def open_gallery(
    place: str, run: Path | None, mode: str = "r"
) -> "Iterator[tuple[sf.Gallery, Path | None]]":
    """Open a gallery; yield it, and the run that embeds for it: the given one, or the one it remembers."""
    with sf.Gallery.open(place, mode=mode) as gallery:
        check_model(gallery, run)
        yield gallery, run or remembered_run(gallery)


def remembered_run(gallery: "sf.Gallery") -> Path | None:
    """Return the run that embedded the items, if it is there and unchanged."""
    run = Path(gallery.info.get("run", ""))
    there = (run / MODEL).is_file() and open_run(run).fingerprint == gallery.model
    return run if there else None


def check_model(gallery: "sf.Gallery", run: Path | None) -> None:
    """Require that a gallery's items were embedded by the same run, as far as both are known."""
    model = _fingerprint(run)
    if None not in (model, gallery.model) and model != gallery.model:
        raise InputError(
            f"the gallery was made with another run ({gallery.model}, this one is {model}), and vectors "
            "of two models cannot be compared. Give that run, or index everything into a new gallery.",
            field="run",
        )


def labels_like(gallery: "sf.Gallery", labels: Sequence[str | None] | None) -> list[Any] | None:
    """Convert labels to integers if those of the gallery are; None stays None."""
    if labels is None or not any(isinstance(label, int) for label in gallery.labels()):
        return None if labels is None else list(labels)
    return [int(x) if x is not None and x.removeprefix("-").isdecimal() else x for x in labels]


def settled(gallery: "sf.Gallery") -> bool:
    """Do after a change what a search would have to; return whether the gallery was recalibrated."""
    if not len(gallery):
        return False
    before = gallery.calibration
    with progress("fitting the label model, and recalibrating"):
        renewed = gallery.renew()
    renewed = renewed if before is not None and before.stale else None
    if renewed is not None:
        reached = "" if renewed.reached else "; the target is not reached any more"
        say(f"Recalibrated for the changed items{reached}.")
    return renewed is not None


def _fingerprint(run: Path | None) -> str | None:
    return None if run is None else open_run(run).fingerprint


def _on_milvus(place: str) -> bool:
    return "://" in place or place.endswith(".db")
