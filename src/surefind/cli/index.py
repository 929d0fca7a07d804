"""`surefind index`: add images or vectors to a gallery, or update those that are there.

Everything is checked before anything is written; a gallery that does not exist is made last.

**Resuming.** What a run embeds is embedded and added block by block, and each block is on the disk before
the next. After each the gallery remembers how far this source has come (`MARK`), so that the same command,
after it was killed at any moment, continues there. Another source, model, prefix or label starts from the
beginning: items that are there are replaced.

The gallery stores the run and the folder of the images; each image's path is its payload ``{"path": …}``,
relative to that folder. So `surefind serve` finds the model and shows the images.
"""

import hashlib
import json
import os
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

from typer import Option

import surefind as sf
from surefind.cli.console import count_progress, say, spelled, this_command
from surefind.cli.items import (
    EmbeddedLater,
    Items,
    check_model,
    existing_gallery,
    labels_like,
    new_gallery,
    read_items,
    settled,
)
from surefind.cli.options import (
    GROUP_COLUMN,
    DataFolder,
    ItemGroups,
    Labels,
    Normalize,
    OnBad,
    Run,
    SourceArgument,
)
from surefind.cli.run_folder import open_run
from surefind.errors import CommandInterruptedError

BLOCK, EMBEDDED = 10_000, 1024
"""Items that are written at a time: of vectors, and of what a run embeds."""
MARK = "indexing"
"""What the gallery remembers of a source until all of it is indexed: its key, and how many are."""


def index(
    source: SourceArgument,
    out: Annotated[
        str,
        Option(
            help="The gallery: a folder, milvus-lite's NAME.db, or http://host:port. Made if need be."
        ),
    ],
    run: Run = None,
    labels: Labels = None,
    groups: ItemGroups = None,
    prefix: Annotated[
        str, Option(help="Prefix of every id, to tell sources with the same ids apart.")
    ] = "",
    normalize: Normalize = False,
    on_bad: OnBad = "refuse",
    data: DataFolder = None,
) -> Any:
    """Add images or vectors to a gallery; items with the same id are replaced.

    Killed at any moment, the same command continues where it was.

    Example: `surefind index digits:train --run runs/digits --out gallery`
    """
    with ExitStack() as closing:
        gallery = existing_gallery(out, normalize)
        if gallery is not None:
            closing.enter_context(gallery)
            check_model(gallery, run)
        items = read_items(source, run, data, labels=labels, on_bad=on_bad, later=True)
        together = None if groups is None else items.column(groups, GROUP_COLUMN)
        ids = [prefix + i for i in items.ids]
        check_items(items, ids, normalize, None if gallery is None else gallery.info["dim"])
        if gallery is None:
            gallery = closing.enter_context(new_gallery(out, run, normalize))
        own = None if items.labels is None else labels_like(gallery, items.labels)
        payload = remember(gallery, run, items.files)
        key = source_key(items, ids, own, together, open_run(run).fingerprint if run else None)
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
                    block = items.embeddings[rows.start : rows.stop]
                    write_rows(gallery, block, rows, ids, there, columns)
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
        if renewed is not None:
            say(f"Its calibration was renewed. {renewed.summary}")
        how = {"run": run, "normalize": normalize, "on_bad": on_bad, "data": data}
        say(f"Next, or with other queries than these: {spelled('search', out, source, **how)}")
        result = {
            "gallery": out,
            "added": added,
            "updated": updated,
            "continued": begun,
            "items": len(gallery),
            "dim": gallery.info["dim"],
            "renewed": renewed is not None,
        }
    if run is not None and run.resolve() in Path(out).resolve().parents:
        open_run(run).explain()
    return result


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


def check_items(items: Items, ids: list[str], normalize: bool, dim: int | None) -> None:
    """Require items that a gallery of this dimension takes, before it is made or changed."""
    from surefind.checks import id_values
    from surefind.gallery.engine import read_vectors

    id_values("ids", ids)
    later = isinstance(items.embeddings, EmbeddedLater)  # of which one shows what all are like
    for at in range(0, 1 if later else len(ids), BLOCK):
        some = items.embeddings[at : 1 if later else at + BLOCK]
        read_vectors(some, normalize=normalize, dim=dim)
