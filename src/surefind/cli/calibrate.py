"""`surefind calibrate`: learn when an answer is a match, at a stated risk.

The queries are given ones, or the gallery's own items. With reviews, a random share of live queries is
added to given ones or, without these, to those of the calibration that there is.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table
from typer import Option

import surefind as sf
from surefind.cli import options
from surefind.cli.console import check_file, say, show_table, spelled, working
from surefind.cli.items import check_model, labels_like, own_ids, read_items
from surefind.cli.plots import draw_identification
from surefind.errors import InputError

if TYPE_CHECKING:
    from surefind.decisions import Calibration, Contributions, Identification
    from surefind.gallery.calibration_queries import ReviewSample


def calibrate(
    gallery: options.GalleryArgument,
    queries: Annotated[
        str | None,
        options.source_argument(
            help="Queries that neither the model nor the gallery has seen, with labels; one that is "
            "-1, empty or not enrolled has no match in the gallery. Left out: the gallery's own items "
            f"play the queries. {options.SOURCE_HELP}"
        ),
    ] = None,
    run: options.Run = None,
    labels: options.Labels = None,
    unknown: Annotated[
        str | None,
        options.source_option(help="More queries, none of which has a match in the gallery."),
    ] = None,
    with_reviews: Annotated[
        Path | None,
        Option(
            help="Folder of a service (GALLERY.service): adds the random checks that people reviewed there "
            "(serve --review-share) to the queries. Without QUERIES: to those of the calibration there is, "
            "whose target stays unless it is given."
        ),
    ] = None,
    max_wrong: Annotated[
        float | None,
        Option(help="Highest fraction of wrong answers among matches.", show_default="0.01"),
    ] = None,
    max_fpir: Annotated[
        float | None,
        Option(help="Highest share of unknown queries that may be a match; promised as well."),
    ] = None,
    confidence: Annotated[
        float | None, Option(help="Probability with which that holds.", show_default="0.95")
    ] = None,
    max_false_alarms: Annotated[
        float | None,
        Option(
            help="Highest fraction of inputs like those of the training that are stopped as unlike "
            "anything seen, if novelty was fitted; below 0.1.",
            show_default="0.01",
        ),
    ] = None,
    unknown_share: Annotated[
        float | None,
        Option(
            help="Share of unknown queries to expect: some are left out at random until it is so. Where "
            "items play the queries, 0.5 unless given.",
        ),
    ] = None,
    groups: options.Groups = None,
    figure: Annotated[
        Path | None, Option(help="SVG file to write: FNIR against FPIR, with bounds.")
    ] = None,
    forecast: Annotated[
        float | None,
        Option(help="Also say what could be answered with so many times the labels, such as 10."),
    ] = None,
    seed: Annotated[
        int | None, Option(help="Splits the queries, and draws the items.", show_default="0")
    ] = None,
    normalize: options.Normalize = False,
    on_bad: options.OnBad = "refuse",
    data: options.DataFolder = None,
) -> Any:
    """Learn when the answer of a search may be called a match, at a stated risk.

    The queries must come as later ones will, unknown ones in the same proportion. One that is an item of
    the gallery (the same vector, file or id) is answered without that item. They are kept with the gallery,
    so that the calibration renews itself when items are added or deleted.

    Example: `surefind calibrate gallery digits:test --run runs/digits --unknown digits:ood --max-wrong 0.1`
    """
    from surefind.decisions import Gate
    from surefind.service.reviews import read_reviews

    check_target(max_wrong=max_wrong, max_fpir=max_fpir, confidence=confidence)
    if figure is not None:
        check_file(figure, (".svg",))
    if max_false_alarms is not None:
        Gate(max_false_alarms)  # refused before anything is embedded
    check_queries(queries, labels=labels, unknown=unknown, groups=groups)
    reviews = None if with_reviews is None else read_reviews(with_reviews)
    with sf.Gallery.open(gallery, normalize=normalize) as opened:
        check_model(opened, run)
        asked: dict[str, Any] = {"reviews": reviews}
        if queries is not None:
            asked |= read_queries(
                opened,
                queries,
                run,
                data,
                labels=labels,
                unknown=unknown,
                groups=groups,
                on_bad=on_bad,
            )
        expected, share = "", 0.5 if unknown_share is None else unknown_share
        if forecast is not None:
            expected = opened.forecast(forecast, max_wrong=max_wrong, unknown_share=share).summary
        say(announced(gallery, asked.get("labels"), reviews, share))
        with working("calibrating"):
            found = opened.calibrate(
                **asked,
                unknown_share=unknown_share,
                max_wrong=max_wrong,
                max_fpir=max_fpir,
                confidence=confidence,
                max_false_alarms=max_false_alarms,
                seed=seed,
            )
    show(found, expected)
    if figure is not None:
        draw_identification(found, figure)
        say(f"Drew FNIR against FPIR: {figure}")
    say(f"Stored with {gallery}; it renews itself when items are added or deleted.")
    how = {"run": run, "normalize": normalize, "on_bad": on_bad, "data": data}
    again = spelled("search", gallery, queries or "QUERIES", **how)
    say(f"Next, or with other queries than these: {again}")
    return {"gallery": gallery, **as_document(found), "forecast": expected or None}


FACTS = (
    *("reached", "threshold", "floor", "max_wrong", "max_fpir", "confidence", "max_missed"),
    *("queries", "unknown", "right", "fitted", "more_queries", "notes", "summary"),
)
"""What JSON has of a calibration by its own names."""


def as_document(found: "Calibration") -> dict[str, Any]:
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


def check_queries(queries: str | None, *, labels: Any, unknown: Any, groups: Any) -> None:
    """Require options that belong together, before anything is embedded."""
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


def show(found: "Calibration", expected: str) -> None:
    """Print what was found: sentences, what signals add, groups, and FNIR at some FPIR."""
    say(f"{found.summary} {expected}".rstrip())
    if found.contributions is not None:
        show_table(contribution_table(found.contributions))
    for group in found.groups:
        say(f"Group {group.name}: {group.status} threshold, {group.queries} queries tested it.")
    if found.identification.unknown:
        show_table(operating_table(found.identification))


def read_queries(
    opened: "sf.Gallery",
    queries: str,
    run: Path | None,
    data: Path | None,
    *,
    labels: Path | None,
    unknown: str | None,
    groups: Path | None,
    on_bad: Literal["refuse", "skip"],
) -> dict[str, Any]:
    """Read the queries as `surefind.Gallery.calibrate` takes them; those of ``unknown`` have no label."""
    known = read_items(queries, run, data, labels=labels, on_bad=on_bad)
    if known.labels is None:
        raise InputError(f"{queries} has no labels; give them with --labels FILE.", field="labels")
    parts, truth = [known.embeddings], labels_like(opened, [*known.labels])
    same = own_ids(opened, known)
    if unknown is not None:
        others = read_items(unknown, run, data, on_bad=on_bad)
        parts.append(others.embeddings)
        truth += [None] * len(others)
    return {
        "embeddings": together(parts),
        "labels": truth,
        "ids": [same.get(row, f"query {row}, not an item") for row in range(len(truth))],
        "groups": None if groups is None else known.column(groups, options.GROUP_COLUMN),
    }


def announced(
    gallery: str, labels: list[Any] | None, reviews: "ReviewSample | None", unknown_share: float
) -> str:
    """Say which queries calibrate."""
    said = "" if reviews is None else f"{reviews.counts.summary} "
    if labels is not None:
        more = "" if reviews is None else f", and {len(reviews)} reviewed ones"
        return (
            f"{said}Calibrating on {len(labels)} queries, {labels.count(None)} of them without a match in "
            f"the gallery{more}."
        )
    if reviews is not None:
        return f"{said}Calibrating with these and the held-out queries of the calibration there is, if any."
    return f"Calibrating with items of {gallery} as queries, {unknown_share:.0%} of them unknown."


def check_target(**fractions: float | None) -> None:
    """Require fractions between 0 and 1, both excluded, by their names, before anything is embedded."""
    for name, value in fractions.items():
        if value is not None and not 0 < value < 1:
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


def operating_table(found: "Identification") -> Table:
    """Return a table of FNIR at the FPIR levels that are usual in biometrics."""
    table = Table("FPIR at most", "threshold", "FNIR", "FNIR at most")
    for point in found.operating_points:
        needed = f"needs {point.unknown_needed:,} unknown queries to test it"
        if point.threshold is None and found.unknown < point.unknown_needed:
            cells = [f"{needed}; {found.unknown:,} did", "", ""]
        elif point.threshold is None:
            cells = ["none keeps it", "", ""]
        else:
            cells = [f"{point.threshold:.4f}", f"{point.fnir:.2%}", f"{point.fnir_bound:.2%}"]
        table.add_row(f"{point.max_fpir:.1%}", *cells)
    table.caption = (
        f"FPIR: unknown queries that are a match; FNIR: enrolled ones that are missed; bounds "
        f"at {found.confidence:.0%} confidence"
    )
    return table


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
