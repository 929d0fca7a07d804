"""Published numbers beside ours, as values: tables, what to know before comparing, where rows differ."""

from collections.abc import Mapping
from dataclasses import dataclass

from surefind.report.published import Published
from surefind.report.results import ResultSet
from surefind.report.tables import Table, gaps, published_set, published_table
from surefind.report.vocabulary import row_title, set_title


@dataclass(frozen=True)
class Beside:
    """One comparison with what was published.

    Attributes:
        title: Its heading.
        table: Our numbers, each with the published one beside it.
        caveat: What must be known before they are compared; may be empty.
        said: A sentence or more for each row that differs.
    """

    title: str
    table: Table
    caveat: str
    said: tuple[str, ...] = ()


def beside_published(
    results: ResultSet, published: Published, remarks: Mapping[str, str]
) -> list[Beside]:
    """Compare methods, and the rows of the ablation, with published ones.

    Args:
        results: All cells of a data set.
        published: The numbers.
        remarks: Why a row differs, by "set/row", in whole sentences.

    Returns:
        The comparisons that there are numbers for.
    """
    found = []
    methods = published_table(results, published, "method")
    if methods is not None:
        said = tuple(
            f"{row_title(row)}: {phrase}. {remarks.get(f'{results.name}/{row}', '')}".rstrip()
            for row, phrase in gaps(results, published).items()
        )
        found.append(Beside(f"Beside {published.source}", methods, published.caveat, said))
    ablation = published_table(results, published, "ablation")
    if ablation is not None:
        where, caveat = published_set(results, published, "ablation"), ""
        if where != results.name:
            caveat = (
                f"Ours is on {set_title(results.name)}, {published.source}'s on {set_title(where)}: "
                "compare the order of the rows, not the levels."
            )
        found.append(Beside(f"The ablation beside {published.source}", ablation, caveat))
    return found
