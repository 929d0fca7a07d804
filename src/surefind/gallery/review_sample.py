"""Which reviewed queries a calibration may use: a random share of live ones.

A calibration needs queries drawn like those to come. Queries that were asked about because they were
doubtful are not: sure answers, right or wrong, are missing among them, and no exact binomial bound holds
for a weighted sample. So a service draws a number u, uniform on (0, 1), for every query that it answers,
independently of everything about the query, and the query is *sampled* if

    u < share

whatever was decided about it. Sampled queries are drawn like all live ones. Three things could still spoil
that, and `usable_rows` leaves out what would:

- **Easy ones are decided first.** Sampled queries count in the order in which they were asked, up to the
  first that is not decided yet; what was decided behind it waits for it. Where that is because it is hard,
  the end of the run is not random, by that one query.
- **The share changed**, and periods would count unequally. For a share s, all queries since the last one
  that was sampled with a smaller share are thinned to u < s; they are then a share s of all in that time.
  Of the shares that occurred, the one that leaves the most queries is taken. That looks at the numbers
  drawn and at the order of questions, not at answers.
- **The model changed**: queries count since then.

What is assumed: the decisions of people are right; callers who ask that a query is not kept do not choose
these by how hard they are; and nobody calibrates again and again until the result pleases, or adds items
chosen by how sampled queries were answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from surefind.embeddings import Embeddings
from surefind.gallery.records import Label


@dataclass(frozen=True)
class Draw:
    """What is remembered of the draw of a sampled query.

    Attributes:
        u: The number drawn, below the share.
        share: The share then.
        model: The name of the model that embedded it.
        decided: Whether a person has decided.
    """

    u: float
    share: float
    model: str | None
    decided: bool


@dataclass(frozen=True)
class ReviewCounts:
    """How many reviewed queries a calibration may use, and why not the others.

    Attributes:
        usable: Sampled, decided, and none before them waits.
        waiting: Sampled, and not decided yet.
        behind: Sampled and decided, but asked after one that waits.
        uneven: Sampled with another share or model than those that count.
        doubtful: Decided, but asked about only because they were doubtful.
    """

    usable: int
    waiting: int
    behind: int
    uneven: int
    doubtful: int

    @property
    def summary(self) -> str:
        """What can be used, and what is left out and why."""
        reasons = {
            "were asked about because they were doubtful": self.doubtful,
            "were asked after one that is not decided yet": self.behind,
            "were sampled with another share or by another model": self.uneven,
        }
        left = [f"{count:,} {reason}" for reason, count in reasons.items() if count]
        said = f"{self.usable:,} reviewed random checks can be used, {self.waiting:,} wait."
        return f"{said} Left out: {'; '.join(left)}." if left else said


@dataclass(frozen=True, eq=False)
class ReviewSample:
    """A random share of live queries, reviewed.

    Attributes:
        queries: Their embeddings, with novelty if all have it.
        labels: Theirs; None for one that is not in the gallery.
        model: The name of the model that embedded them.
        counts: How many there are, and what was left out.
    """

    queries: Embeddings
    labels: list[Label]
    model: str | None
    counts: ReviewCounts

    def __len__(self) -> int:
        return len(self.labels)


def usable_rows(draws: Sequence[Draw], doubtful: int) -> tuple[list[int], ReviewCounts]:
    """Choose the sampled queries that a calibration may use.

    Args:
        draws: Of all sampled queries, in the order in which they were asked.
        doubtful: Queries that were decided and not sampled, to be counted.

    Returns:
        Rows of ``draws``, and the counts.
    """
    rows = list(range(len(draws)))
    since = max((i + 1 for i in rows if draws[i].model != draws[-1].model), default=0)
    even: list[int] = []
    for share in sorted({draw.share for draw in draws}):
        start = max((i + 1 for i in rows if draws[i].share < share), default=0)
        thinned = [i for i in rows[max(start, since) :] if draws[i].u < share]
        even = max(even, thinned, key=len)
    usable = list(takewhile(lambda i: draws[i].decided, even))
    behind = sum(draws[i].decided for i in even) - len(usable)
    counts = ReviewCounts(
        usable=len(usable),
        waiting=len(even) - len(usable) - behind,
        behind=behind,
        uneven=len(draws) - len(even),
        doubtful=doubtful,
    )
    return usable, counts
