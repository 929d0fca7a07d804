"""`surefind index`: add images or vectors to a gallery, or update those that are there.

Everything is checked before anything is written; a gallery that does not exist is made last.

The gallery stores the run and the folder of the images; each image's path is its payload ``{"path": …}``,
relative to that folder. So `surefind serve` finds the model and shows the images.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from typer import Option

import surefind as sf
from surefind.apps.cli.console import count_progress, say, spelled
from surefind.apps.cli.items import (
    Items,
    check_model,
    existing_gallery,
    labels_like,
    new_gallery,
    read_items,
)
from surefind.apps.cli.options import (
    GROUP_COLUMN,
    DataFolder,
    ItemGroups,
    Labels,
    Normalize,
    OnBad,
    Run,
    SourceArgument,
)
from surefind.apps.cli.run_folder import open_run

BLOCK = 10_000
"""Items between two steps of the bar; each block is on the disk before the next."""


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
) -> None:
    """Add images or vectors to a gallery; items with the same id are replaced.

    Example: `surefind index digits:train --run runs/digits --out gallery`
    """
    with ExitStack() as closing:
        gallery = existing_gallery(out, normalize)
        if gallery is not None:
            closing.enter_context(gallery)
            check_model(gallery, run)
        items = read_items(source, run, data, labels=labels, on_bad=on_bad)
        together = None if groups is None else items.column(groups, GROUP_COLUMN)
        ids = [prefix + i for i in items.ids]
        check_items(items, ids, normalize, None if gallery is None else gallery.dim)
        if gallery is None:
            gallery = closing.enter_context(new_gallery(out, run, normalize))
        own = None if items.labels is None else labels_like(gallery, items.labels)
        payload = remember(gallery, run, items.files)
        there = set(gallery)
        updated = sum(i in there for i in ids)
        with count_progress("indexing", len(ids)) as done:
            for at in range(0, len(ids), BLOCK):
                rows = range(at, min(at + BLOCK, len(ids)))
                for known in (False, True):
                    some = [r for r in rows if (ids[r] in there) == known]
                    if some:
                        put = gallery.update if known else gallery.add
                        put(
                            items.embeddings[some],
                            ids=[ids[r] for r in some],
                            labels=None if own is None else [own[r] for r in some],
                            payload=None if payload is None else [payload[r] for r in some],
                            groups=None if together is None else [together[r] for r in some],
                        )
                done(rows.stop)
        gallery.fit_labels()  # so that no search has to, which may be by a process that only reads
        say(
            f"Added {len(ids) - updated} items and updated {updated}; {out} holds {len(gallery)} of "
            f"{gallery.dim} dimensions."
        )
        how = {"run": run, "normalize": normalize, "on_bad": on_bad, "data": data}
        if (renewed := gallery.renew()) is not None:
            say(f"Its calibration was renewed. {renewed.summary}")
        say(f"Next, or with other queries than these: {spelled('search', out, source, **how)}")
    if run is not None and run.resolve() in Path(out).resolve().parents:
        open_run(run).explain()


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
    folder = Path(gallery.about.get("images") or os.path.commonpath([p.parent for p in paths]))
    if folder != Path(folder.anchor):  # or else every file of the machine would be shown
        gallery.describe(images=str(folder))
    inside = [p.relative_to(folder) if p.is_relative_to(folder) else p for p in paths]
    return [{"path": p.as_posix()} for p in inside]


def check_items(items: Items, ids: list[str], normalize: bool, dim: int | None) -> None:
    """Require items that a gallery of this dimension takes, before it is made or changed."""
    from surefind.gallery.items import read_ids, read_vectors

    read_ids(ids)
    for at in range(0, len(ids), BLOCK):
        read_vectors(items.embeddings[at : at + BLOCK], normalize=normalize, dim=dim)
