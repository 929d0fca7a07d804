"""`surefind calibrate`: learn from held-out queries when an answer is a match, at a stated risk."""

from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Option

import surefind as sf
from surefind.apps.cli import options
from surefind.apps.cli.console import console, say, spelled
from surefind.apps.cli.items import check_model, labels_like, own_ids, read_items
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.decisions import Contributions


def calibrate(
    gallery: options.GalleryArgument,
    queries: Annotated[
        str,
        options.source_argument(
            help="Queries that neither the model nor the gallery has seen, with labels; one that is "
            f"-1 or empty has no match in the gallery. {options.SOURCE_HELP}"
        ),
    ],
    run: options.Run = None,
    labels: options.Labels = None,
    unknown: Annotated[
        str | None,
        options.source_option(help="More queries, none of which has a match in the gallery."),
    ] = None,
    max_wrong: Annotated[
        float, Option(help="Highest fraction of wrong answers among matches.")
    ] = 0.01,
    confidence: Annotated[float, Option(help="Probability with which that holds.")] = 0.95,
    max_false_alarms: Annotated[
        float,
        Option(
            help="Highest fraction of inputs like those of the training that are stopped as unlike "
            "anything seen, if novelty was fitted; below 0.1."
        ),
    ] = 0.01,
    groups: options.Groups = None,
    seed: Annotated[int, Option(help="Splits the queries.")] = 0,
    normalize: options.Normalize = False,
    on_bad: options.OnBad = "refuse",
    data: options.DataFolder = None,
) -> None:
    """Learn when the answer of a search may be called a match, at a stated risk.

    The queries must come as later ones will, unknown ones in the same proportion. One that is an item of
    the gallery (the same vector, file or id) is answered without that item.

    Example: `surefind calibrate gallery digits:test --run runs/digits --unknown digits:ood --max-wrong 0.1`
    """
    from surefind.decisions import Gate

    check_target(max_wrong=max_wrong, confidence=confidence)
    Gate(max_false_alarms)  # refused before anything is embedded
    if groups is not None and unknown is not None:
        raise InputError(
            "--groups needs a group for every query: put the unknown ones among the queries, with an "
            "empty label, instead of --unknown.",
            field="groups",
        )
    with sf.Gallery.open(gallery, normalize=normalize) as opened:
        check_model(opened, run)
        known = read_items(queries, run, data, labels=labels, on_bad=on_bad)
        if known.labels is None:
            raise InputError(
                f"{queries} has no labels; give them with --labels FILE.", field="labels"
            )
        parts, truth = [known.embeddings], [*known.labels]
        same = own_ids(opened, known)
        if unknown is not None:
            others = read_items(unknown, run, data, on_bad=on_bad)
            parts.append(others.embeddings)
            truth += [None] * len(others)
        members = None if groups is None else known.column(groups, options.GROUP_COLUMN)
        say(
            f"Calibrating on {len(truth)} queries, {truth.count(None)} of them without a match in the "
            "gallery."
        )
        found = opened.calibrate(
            together(parts),
            labels_like(opened, truth),
            ids=[same.get(row, f"query {row}, not an item") for row in range(len(truth))],
            max_wrong=max_wrong,
            confidence=confidence,
            max_false_alarms=max_false_alarms,
            groups=members,
            seed=seed,
        )
    say(found.summary)
    if found.contributions is not None:
        console.print(contribution_table(found.contributions))
    for group in found.groups:
        say(f"Group {group.name}: {group.status} threshold, {group.queries} queries tested it.")
    say(f"Stored with {gallery}.")
    how = {"run": run, "normalize": normalize, "on_bad": on_bad, "data": data}
    again = spelled("search", gallery, queries, **how)
    say(f"Next, or with other queries than these: {again}")


def check_target(**fractions: float) -> None:
    """Require fractions between 0 and 1, both excluded, by their names, before anything is embedded."""
    for name, value in fractions.items():
        if not 0 < value < 1:
            raise InputError(
                f"{name} must lie between 0 and 1, both excluded; got {value!r}.", field=name
            )


def together(parts: list[Any]) -> Any:
    """Concatenate the embeddings of several sources, all with κ or all without, and so with novelty.

    Raises:
        InputError: If some have a κ or a novelty and some do not, or their dimensions differ.
    """
    import numpy as np

    embedded = [p.numpy() for p in parts if isinstance(p, sf.Embeddings)]
    for name, having in (
        ("κ", embedded),
        ("novelty", [e for e in embedded if e.novelty is not None]),
    ):
        if having and len(having) < len(parts):
            raise InputError(
                f"the queries have a {name} and the unknown ones do not, or the other way round; embed "
                "both with one model.",
                field="unknown",
            )
    rows = [e.mean for e in embedded] or [np.asarray(p) for p in parts]
    if len({r.shape[1] for r in rows}) > 1:
        raise InputError(
            "the queries and the unknown ones differ in dimension; use one model.", field="unknown"
        )
    return sf.Embeddings.concatenate(embedded) if embedded else np.concatenate(rows)


def contribution_table(found: "Contributions") -> Table:
    """Return a table of how well each signal separates right from wrong answers."""
    table = Table("signal", "alone", "rest without it", "all together", "adds")
    for signal in found.signals:
        table.add_row(
            signal.name,
            f"{signal.alone_auroc:.3f}",
            f"{signal.without_auroc:.3f}",
            f"{found.auroc:.3f}",
            "yes" if signal.adds else "no",
        )
    table.caption = "AUROC of right answers against wrong ones; 0.5 is chance"
    return table
