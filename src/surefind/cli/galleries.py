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

**items** chooses by ids, by a label, or both. An id or a label is given as a text. It means the item of
that text or, if there is none, of that number. A change is durable when the command ends, and the gallery
is recalibrated with it.
"""

import hashlib
import json
import os
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import (
    TABLES,
    arrow_table,
    check_file,
    count_progress,
    json_text,
    say,
    show_table,
    spelled,
    this_command,
    working,
    write_table,
)
from surefind.cli.measure import embed_in_blocks
from surefind.cli.runs import MODEL, open_run, read_for
from surefind.errors import CommandInterruptedError, InputError

if TYPE_CHECKING:
    import numpy as np

    from surefind.decisions.calibration import Calibration
    from surefind.gallery.engine import Id, Label

BATCH, EMBEDDED, BLOCK = 128, 1024, 10_000
"""Inputs that are embedded at a time; items that are written at a time, of a run and of vectors."""
MARK = "indexing"
"""What the gallery remembers of a source until all of it is indexed: its key, and how many are."""
SHOWN, NAMED = 20, 5
"""Items in the table, and labels that a message names; files and JSON have all of them."""
COLUMNS = ("id", "label", "group", "kappa", "novelty", "payload")


@dataclass(frozen=True, eq=False)
class EmbeddedLater:
    """What a run embeds, when it is taken."""

    learner: "sf.MetricLearner"
    dataset: "sf.Dataset"

    def __getitem__(self, rows: slice) -> "sf.Embeddings":
        return self.learner.embed(self.dataset[rows], batch_size=BATCH)


@dataclass(frozen=True, eq=False)
class Items:
    """What a source gives.

    Attributes:
        embeddings: `Embeddings`, or plain vectors (n, z), of which no κ is known; or `EmbeddedLater`.
        ids: One a row, distinct within a source of images.
        labels: A text or None each; None if the source has none at all.
        files: The images' files; None if the source is in memory or holds vectors.
        kept: Whether each row of the source is among them; None if all are.
        named: Whether the ids are the source's own, and not made of its name and the row.
    """

    embeddings: "sf.Embeddings | Any"
    ids: list[str]
    labels: list[str | None] | None
    files: "Sequence[str] | None" = None
    kept: Sequence[bool] | None = None
    named: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def column(self, path: Path, names: tuple[str, ...]) -> list[str | None]:
        """Read a text for each item from a file that has one for each row of the source."""
        from surefind.data.sources import read_column

        found = _texts(names[0], read_column(path, names))
        count = len(self) if self.kept is None else len(self.kept)
        if len(found) != count:
            raise InputError(
                f"{path} has {len(found)} rows and the source {count}; give one each.",
                field=names[0],
            )
        return found if self.kept is None else list(compress(found, self.kept))


def index(
    source: options.SourceArgument,
    out: Annotated[
        str,
        Option(
            help="The gallery: a folder, milvus-lite's NAME.db, or http://host:port. Made if need be."
        ),
    ],
    run: options.Run = None,
    labels: options.Labels = None,
    groups: Annotated[
        Path | None,
        options.file_option(
            help="What each item was taken from together with others (a video, a session), one per row: "
            ".npy, .npz, or a table with a column `group`.",
        ),
    ] = None,
    prefix: Annotated[
        str, Option(help="Prefix of every id, to tell sources with the same ids apart.")
    ] = "",
    on_bad: options.OnBad = "refuse",
) -> Any:
    """Add images or vectors to a gallery; items with the same id are replaced.

    Interrupted at any moment, the same command continues where it was.

    Example: `surefind index digits:train --run runs/digits --out gallery`
    """
    with ExitStack() as closing:
        gallery = existing_gallery(out)
        if gallery is not None:
            closing.enter_context(gallery)
            check_model(gallery, run)
            run = run or remembered_run(gallery)
        items = read_items(source, run, labels=labels, on_bad=on_bad, later=True)
        together = None if groups is None else items.column(groups, options.GROUP_COLUMN)
        ids = [prefix + i for i in items.ids]
        check_items(items, ids, None if gallery is None else gallery.info["dim"])
        if gallery is None:
            engine = "milvus" if _on_milvus(out) else "faiss"
            gallery = closing.enter_context(sf.Gallery(out, engine, model=_fingerprint(run)))
        own = None if items.labels is None else labels_like(gallery, items.labels)
        payload = remember(gallery, run, items.files)
        key = source_key(items, ids, own, together, _fingerprint(run))
        there, later = set(gallery), isinstance(items.embeddings, EmbeddedLater)
        begun = done_before(gallery, key)
        begun = begun if there.issuperset(ids[:begun]) else 0  # some were deleted since
        if begun:
            say(f"Continuing: {begun:,} of {len(ids):,} items were indexed before it was cut off.")
        columns = {"labels": own, "payload": payload, "groups": together}
        updated = sum(i in there for i in ids[begun:])
        try:
            with count_progress("indexing", len(ids)) as done:
                size = EMBEDDED if later else BLOCK
                for at in range(begun, len(ids), size):
                    rows = range(at, min(at + size, len(ids)))
                    write_rows(
                        gallery, items.embeddings[rows.start : rows.stop], rows, ids, there, columns
                    )
                    last = rows.stop == len(ids)
                    mark = None if last else json.dumps({"key": key, "done": rows.stop})
                    gallery.describe(**{MARK: mark})
                    done(rows.stop)
        except KeyboardInterrupt as stop:
            written = done_before(gallery, key)
            raise CommandInterruptedError(
                f"{written:,} of {len(ids):,} items are in {out}. Continue with: {this_command()}"
            ) from stop
        renewed = settled(gallery)
        added = len(ids) - begun - updated
        say(
            f"Added {added} items and updated {updated}; {out} holds {len(gallery)} of "
            f"{gallery.info['dim']} dimensions."
        )
        if gallery.calibration is None:
            say("It decides nothing yet.")
        if gallery.calibration is None and enough_items(gallery):
            say(f"Next: {spelled('calibrate', out)}")
        else:
            again = spelled("search", out, source, on_bad=on_bad)
            say(f"Next, or with other queries than these: {again}")
        return {
            "gallery": out,
            "added": added,
            "updated": updated,
            "continued": begun,
            "items": len(gallery),
            "dim": gallery.info["dim"],
            "renewed": renewed is not None,
        }


def items(
    gallery: options.GalleryArgument,
    ids: Annotated[list[str] | None, Argument(metavar="[ID]...", help="Ids of items.")] = None,
    label: Annotated[
        list[str] | None, Option("--label", help="Items of this label; may be given several times.")
    ] = None,
    relabel: Annotated[
        str | None,
        Option(
            metavar="LABEL|TABLE",
            help="Give the chosen items this label, empty or -1 for none; or each the one that a .csv or "
            ".parquet has for it: columns `id`, and `suggested` or `label`.",
        ),
    ] = None,
    delete: Annotated[bool, Option("--delete", help="Delete the chosen items.")] = False,
    out: options.TableOut = None,
) -> Any:
    """List a gallery's items; or relabel or delete those that are chosen by id or label.

    All of them are changed, or none if an id or a label is wrong.

    Example: `surefind items gallery --label 3 --out threes.csv`

    Example: `surefind items gallery digits:train/10 --relabel 4`

    Example: `surefind items gallery --relabel threes.csv`

    Example: `surefind items gallery digits:train/9 digits:train/12 --delete`
    """
    check_file(out, TABLES)
    table = None if relabel is None or not _is_table(relabel) else Path(relabel)
    if (delete, relabel is not None, out is not None).count(True) > 1:
        raise InputError(
            "do one thing at a time: --relabel or --delete the chosen items, or list them, perhaps to a "
            "file with --out.",
            field="relabel",
        )
    if table is not None and (ids or label):
        raise InputError(f"{table} chooses the items; leave ids and --label out.", field="relabel")
    changes = delete or relabel is not None
    with sf.Gallery.open(gallery, mode="w" if changes else "r") as opened:
        if not changes:
            return list_items(opened, gallery, select(opened, ids, label, everything=True), out)
        texts: list[str | None] = []
        if table is not None:
            ids, texts = read_corrections(table)
        chosen = select(opened, ids, label)
        if delete:
            opened.delete(chosen)
            result: dict[str, Any] = {"deleted": chosen}
            say(f"Deleted {len(chosen):,} items; {gallery} holds {len(opened):,}.")
        else:
            moved = relabel_items(opened, chosen, texts or [_text(relabel)] * len(chosen))
            result = {"relabelled": moved}
            same = len(chosen) - len(moved)
            more = f" {same:,} had that label already." if same else ""
            say(f"Relabelled {len(moved):,} items of {gallery}.{more}")
        renewed = settled(opened) is not None
        return {"gallery": gallery, **result, "items": len(opened), "renewed": renewed}


def _is_table(text: str) -> bool:
    return Path(text).suffix.lower() in (".csv", ".parquet")


def list_items(gallery: "sf.Gallery", place: str, chosen: "list[Id]", out: Path | None) -> Any:
    """Show the first of the chosen items, and write all of them to a file if that is asked for."""
    from surefind.embeddings import kappa_to_json

    found = [gallery.get(id_) for id_ in chosen]
    records = [
        {name: getattr(item, name) for name in COLUMNS} | {"kappa": kappa_to_json(item.kappa)}
        for item in found
    ]
    if out is not None:
        write_table(out, records, lambda: arrow_table(records, COLUMNS, ("kappa", "novelty")))
    show_table(COLUMNS, ([_shown(*cell) for cell in row.items()] for row in records[:SHOWN]))
    if len(found) > SHOWN:
        say(f"The first {SHOWN} of {len(found):,} items; --out FILE or --json gives all of them.")
    say(f"{place} holds {len(gallery):,} items of {len(gallery.labels()):,} labels.")
    if out is not None:
        say(f"Wrote {len(found):,} items to {out}.")
    return records


def _shown(name: str, value: Any) -> Any:
    if name == "kappa":
        return "∞" if value is None else f"{value:.3g}"
    if isinstance(value, float):
        return f"{value:.2g}"
    return json_text(value).rstrip() if isinstance(value, dict) else value


def relabel_items(
    gallery: "sf.Gallery", chosen: "list[Id]", texts: Sequence[str | None]
) -> list[dict[str, Any]]:
    """Give items other labels; return which were changed, from what to what."""
    new = labels_like(gallery, texts)
    old = [gallery.get(id_).label for id_ in chosen]
    changed = [row for row in range(len(chosen)) if old[row] != new[row]]
    if changed:
        gallery.update(ids=[chosen[r] for r in changed], labels=[new[r] for r in changed])
    return [{"id": chosen[r], "from": old[r], "to": new[r]} for r in changed]


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
    counts = gallery.labels()
    there = ", ".join(map(str, list(counts)[:NAMED])) + (" …" if len(counts) > NAMED else "")
    wanted = {
        _meant(gallery, "label", text, counts, f"there are {there or 'none'}")
        for text in labels or ()
    }
    if ids:
        listing = "without ids, `surefind items` lists them"
        found = (_meant(gallery, "ids", text, gallery, listing) for text in ids)
        chosen: list[Any] = list(dict.fromkeys(found))
    else:
        chosen = sorted(gallery, key=lambda id_: (isinstance(id_, str), id_))
    if wanted:
        chosen = [id_ for id_ in chosen if gallery.get(id_).label in wanted]
    if not everything and (not chosen or not (ids or labels)):
        raise InputError(
            "no item is chosen, and nothing was changed: give ids, or --label LABEL.", field="ids"
        )
    return chosen


def _meant(
    gallery: "sf.Gallery", field: str, text: str, there: "Container[Label]", otherwise: str
) -> "Id":
    """Return the id or label that a text means; refuse one that is not there, or could be two."""
    number = text.removeprefix("-")
    whole = number.isascii() and number.isdecimal()
    meant: list[Any] = [read for read in (text, *([int(text)] if whole else [])) if read in there]
    if len(meant) == 1:
        found: Id = meant[0]
        return found
    what = "the label" if field == "label" else "an item"
    why = f"has {what} {text!r} and {what} {text}; choose it in Python"
    if not meant:
        why = f"does not have {what} {text!r}; {otherwise}"
    raise InputError(f"{gallery.info['place']} {why}. Nothing was changed.", field=field)


def read_corrections(file: Path) -> tuple[list[str], list[str | None]]:
    """Read ids and labels from a table; refuse one that is empty or names an item twice."""
    from surefind.data.sources import read_table

    found = read_table(file)
    ids = found.filled("id")
    twice = next((id_ for row, id_ in enumerate(ids) if id_ in ids[:row]), None)
    if twice is not None or not ids:
        why = "holds nothing" if twice is None else f"has the id {twice!r} twice"
        raise InputError(f"{file} {why}.", field="relabel")
    return ids, [_text(text) for text in found["suggested" if "suggested" in found else "label"]]


def enough_items(gallery: "sf.Gallery") -> bool:
    """Return whether the items can play the queries of a calibration."""
    from surefind.decisions.calibration import LEAST_QUERIES

    return sum(n for n in gallery.labels().values() if n > 1) >= LEAST_QUERIES


def write_rows(
    gallery: "sf.Gallery",
    block: Any,
    rows: range,
    ids: list[str],
    there: Container[Any],
    columns: Mapping[str, Sequence[Any] | None],
) -> None:
    """Add a block of rows, or replace those whose ids are there; what is None stays as it is."""
    for known in (False, True):
        some = [r for r in rows if (ids[r] in there) == known]
        if some:
            put = gallery.update if known else gallery.add
            put(
                block[[r - rows.start for r in some]],
                ids=[ids[r] for r in some],
                **{n: None if c is None else [c[r] for r in some] for n, c in columns.items()},
            )


def source_key(items: Items, ids: list[str], labels: Any, groups: Any, model: str | None) -> str:
    """Return a digest of everything that is to be indexed, which a resumed command must share."""
    import numpy as np

    from surefind.data.images import ImageFiles

    total = hashlib.sha256(json.dumps([ids, labels, groups, model]).encode())
    source: Any = items.embeddings
    parts = [source]
    if isinstance(source, EmbeddedLater):
        parts = [source.dataset.inputs]
    elif isinstance(source, sf.Embeddings):
        parts = [source.mean, source.kappa, *([] if source.novelty is None else [source.novelty])]
    for part in parts:
        if isinstance(part, ImageFiles):
            seen = [(path, os.stat(path)) for path in part.paths]
            listed = [[path, stat.st_size, stat.st_mtime_ns] for path, stat in seen]
            total.update(json.dumps(listed).encode())
        else:
            total.update(np.ascontiguousarray(part).tobytes())
    return total.hexdigest()[:32]


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
        gallery.describe(run=str(run.resolve()))
    if files is None:
        return None
    paths = [Path(file).resolve() for file in files]
    folder = Path(gallery.info.get("images") or os.path.commonpath([p.parent for p in paths]))
    if folder != Path(folder.anchor):  # or else every file of the machine would be shown
        gallery.describe(images=str(folder))
    inside = [p.relative_to(folder) if p.is_relative_to(folder) else p for p in paths]
    return [{"path": p.as_posix()} for p in inside]


def check_items(items: Items, ids: list[str], dim: int | None) -> None:
    """Require items that a gallery of this dimension takes, before it is made or changed."""
    from surefind.checks import id_values
    from surefind.gallery.engine import read_vectors

    id_values("ids", ids)
    later = isinstance(items.embeddings, EmbeddedLater)  # of which one shows what all are like
    for at in range(0, 1 if later else len(ids), BLOCK):
        some = items.embeddings[at : 1 if later else at + BLOCK]
        read_vectors(some, normalize=False, dim=dim)


def read_items(
    source: str,
    run: Path | None,
    *,
    labels: Path | None = None,
    on_bad: str = "refuse",
    later: bool = False,
) -> Items:
    """Read vectors, or embed what a source holds.

    Args:
        source: A folder, a file or the digits, perhaps with ``:PART``.
        run: The run that embeds it, unless it holds vectors with κ; None if it holds vectors.
        labels: A file with labels instead of the source's own.
        on_bad: "refuse" or "skip" images that cannot be read.
        later: Whether what a run embeds is embedded only when rows of it are taken.

    Returns:
        The items, at least one.

    Raises:
        InputError: If there is nothing, or nothing that embeds it.
    """
    from surefind.data.sources import LABELS, holds_vectors, read_source, split_part

    split_part(source)
    found = None
    if Path(source).is_file() and holds_vectors(Path(source)):
        found = _of_vectors(Path(source), embedded=run is None)
    if found is None:
        if run is None:
            raise InputError(
                f"{source} holds images; give --run RUN, which embeds them.", field="run"
            )
        learner = open_run(run).learner()
        good = read_for(learner, source, on_bad)
        found = _of_dataset(good, source)
        lazily = EmbeddedLater(learner, good)
        embeddings = lazily if later else embed_in_blocks(learner, good, BATCH)
        kept = None
        if found.files is not None and on_bad == "skip":
            kept = [path in set(found.files) for path in read_source(source).inputs.paths]
        found = replace(found, embeddings=embeddings, kept=kept)
    return found if labels is None else replace(found, labels=found.column(labels, LABELS))


def _of_dataset(dataset: "sf.Dataset", source: str) -> Items:
    names = dataset.names or [f"{Path(source).stem}/{i}" for i in range(len(dataset))]
    labels = None
    if dataset.labels is not None:
        classes = dataset.classes
        labels = [_text(classes[x] if classes else x) for x in dataset.labels.tolist()]
    files, named = getattr(dataset.inputs, "paths", None), dataset.names is not None
    return Items(dataset.inputs, list(names), labels, files, named=named)


def _of_vectors(path: Path, *, embedded: bool) -> Items | None:
    """Read vectors that are embedded, as all are or those with κ; None if they are yet to be."""
    import numpy as np

    from surefind.data.sources import read_vector_file

    found = read_vector_file(path)
    if found.kappa is None and not embedded:
        return None
    vectors: Any = found.vectors.astype(np.float32)
    if vectors.ndim != 2 or not len(vectors):
        raise InputError(
            f"{path} holds an array of shape {vectors.shape}, which are no vectors (n, d). Images need "
            "--run RUN, which embeds them.",
            field="run",
        )
    ids: list[Any] = [f"{path.stem}/{row}" for row in range(len(vectors))]
    if found.ids is not None:
        ids = _texts("ids", found.ids)
    if None in ids:
        raise InputError(f"{path}: row {ids.index(None)} has no id.", field="ids")
    if found.kappa is not None or found.novelty is not None:
        kappa = np.full(len(vectors), np.inf) if found.kappa is None else found.kappa
        vectors = sf.Embeddings(vectors, kappa.astype(np.float32), found.novelty)
    else:
        vectors = unit_rows(vectors)
    labels = None if found.labels is None else _texts("labels", found.labels)
    return Items(vectors, ids, labels, named=found.ids is not None)


def unit_rows(vectors: "np.ndarray") -> "np.ndarray":
    """Rescale vectors to length 1 and say so; what has no direction stays, for the gallery to refuse."""
    import numpy as np

    rows = vectors.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    others = (abs(lengths - 1) > 1e-3) & (lengths > 0) & np.isfinite(lengths)
    if not others.any():
        return vectors
    say(f"{others.sum():,} of {len(rows):,} vectors did not have length 1, and were rescaled.")
    rows[others] /= lengths[others, None]
    return rows.astype(np.float32)


def _texts(name: str, cells: "np.ndarray") -> list[str | None]:
    """Write labels, ids or groups of a file as texts, read as `surefind.checks` says."""
    from surefind.checks import label_values

    return [_text(cell) for cell in label_values(name, cells)]


def _text(value: Any) -> str | None:
    """Write a label as a text; None for one that says: not in the gallery."""
    text = "" if value is None else str(value).strip()
    return None if text in ("", "-1") else text


def existing_gallery(place: str) -> "sf.Gallery | None":
    """Open a gallery for writing; return None if one can be made at that place.

    Raises:
        InputError: If something else is there.
    """
    from surefind.gallery.store import check_free, holds_gallery

    path = Path(place)
    if not _on_milvus(place) and path.exists() and not holds_gallery(path):
        check_free(path)
        return None
    try:
        return sf.Gallery.open(place)
    except InputError:  # there is none
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


def labels_like(gallery: "sf.Gallery", labels: Sequence[str | None]) -> list[Any]:
    """Convert labels to integers if those of the gallery are."""
    if not any(isinstance(label, int) for label in gallery.labels()):
        return list(labels)
    return [int(x) if x is not None and x.removeprefix("-").isdecimal() else x for x in labels]


def settled(gallery: "sf.Gallery") -> "Calibration | None":
    """Do after a change what a search would have to, which may be by a process that only reads.

    Returns:
        The calibration, if it was renewed.
    """
    if not len(gallery):
        return None
    before = gallery.calibration
    with working("fitting the label model, and recalibrating"):
        gallery.prepare()
        renewed = gallery.renew() if before is not None and before.stale else None
    if renewed is not None:
        reached = "" if renewed.reached else "; the target is not reached any more"
        say(f"Recalibrated for the changed items{reached}.")
    return renewed


def own_ids(gallery: "sf.Gallery", items: Items) -> dict[int, str]:
    """Return, by row, the id of each item that is in the gallery already.

    Images are the same if their files are: two folders often use the same names. Vectors are the same if
    their file gives them the same id.
    """
    if not items.named and items.files is None:
        return {}
    rows = {name: row for row, name in enumerate(items.ids)}
    there = {id_: rows[id_] for id_ in gallery if isinstance(id_, str) and id_ in rows}
    if items.files is not None:
        folder, files = Path(gallery.info.get("images", "")), items.files
        paths = {id_: (gallery.get(id_).payload or {}).get("path", "") for id_ in there}
        there = {
            id_: row
            for id_, row in there.items()
            if (folder / str(paths[id_])).resolve() == Path(files[row]).resolve()
        }
    return {row: id_ for id_, row in there.items()}


def _fingerprint(run: Path | None) -> str | None:
    return None if run is None else open_run(run).fingerprint


def _on_milvus(place: str) -> bool:
    return "://" in place or place.endswith(".db")
