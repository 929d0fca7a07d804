"""Which labels are probably wrong, by what the other vectors say.

Each labelled vector is judged by a model that was made without it, its group and its copies
(`surefind.labels.left_out`). Wrong labels spoil that model, so it is made twice: vectors whose label is
rather wrong than right are left out of the second one, which then judges them like any query. To its
log-odds of a vector's own label, a third of those of its `NEIGHBOURS` nearest vectors is added, which see a
label of several kinds of vectors.

**How many.** If a share e of the labels was replaced by others at random, a label is observed with
probability (1 - e) p + e/L, p by the model. The share of most likelihood is found by
expectation-maximisation, and with it the probability that each label is wrong. Errors with a pattern, one
label for another throughout, look like hard vectors, and are estimated too low.

Axes: ``n`` vectors, ``r`` those that are judged, ``l`` labels.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from surefind.checks import as_directions, label_values
from surefind.errors import DegenerateError
from surefind.labels.left_out import LeftOut, own_odds
from surefind.labels.model import LabelModel

NEIGHBOURS = 30
SHARPNESS = 10.0
"""Weight of a neighbour: e^(10 cosine)."""

RIDGE = 100.0
"""Of the correction, which orders suspicions better than its likelihood says."""

BLOCK = 1024
STEPS = 100
AT_MOST = 30.0
"""Log-odds of one vector: a wrong label must not be worth more than all right ones."""


@dataclass(frozen=True, eq=False)
class LabelAudit:
    """What was found about labels, the most suspicious first.

    Attributes:
        rows: Vectors that were judged, those with a label that others have too (r).
        labels: Theirs (r).
        wrong: Probability that this label is wrong (r), falling.
        suggested: The most probable other label (r).
        share: Estimated share of wrong labels.
        left_out: What the first model says of its vectors, for more questions.
        model: That model.
    """

    rows: np.ndarray
    labels: np.ndarray
    wrong: np.ndarray
    suggested: np.ndarray
    share: float
    left_out: LeftOut
    model: LabelModel

    def __len__(self) -> int:
        return len(self.rows)

    def to_rows(self, least: float = 0.5) -> list[dict[str, Any]]:
        """Return the vectors whose label is wrong with at least some probability, as plain values."""
        columns = zip(
            self.rows.tolist(), self.labels, self.wrong.tolist(), self.suggested, strict=True
        )
        names = ("row", "label", "wrong", "suggested")
        return [dict(zip(names, found, strict=True)) for found in columns if found[2] >= least]


def audit_labels(vectors: Any, labels: Any, *, groups: Any = None, seed: int = 0) -> LabelAudit:
    """Judge the labels of vectors.

    Args:
        vectors: Vectors of any length (n, d).
        labels: A string or an integer each, or None.
        groups: What vectors were taken from together, or None.
        seed: Deals vectors to folds.

    Returns:
        The findings; the same for the same seed.

    Raises:
        DegenerateError: If no label has two vectors of different groups, or there is one label.
    """
    units = as_directions("vectors", vectors, normalize=True)
    names = np.array([*label_values("labels", labels, count=len(units)), None], dtype=object)[:-1]
    first = LabelModel(seed=seed, open_set=False, ridge=RIDGE).fit(
        units, names.tolist(), groups=groups
    )
    out = first.left_out()
    if not out.enrolled.any() or len(first.labels) == 1:
        raise DegenerateError(
            "labels can be judged where there are two of them, and one has vectors of two groups.",
            field="labels",
        )
    rows, codes = out.rows[out.enrolled], len(first.labels)
    own = out.own[out.enrolled]
    doubted = rows[wrong_labels(own, codes, wrong_share(own, codes)) > 0.5]
    believed = names.copy()
    believed[doubted] = None
    second = LabelModel(seed=seed, open_set=False, ridge=RIDGE).fit(
        units, believed.tolist(), groups=groups
    )
    odds = dict(zip(rows.tolist(), own.tolist(), strict=True))
    again = second.left_out()
    odds.update(
        zip(again.rows[again.enrolled].tolist(), again.own[again.enrolled].tolist(), strict=True)
    )
    place = {name: code for code, name in enumerate(second._now.names.tolist())}
    judged = np.array([row for row in doubted if names[row] in place], dtype=np.int64)
    if len(judged):
        against = own_odds(
            second._now.logits(units[judged]), np.array([place[names[row]] for row in judged])
        )
        odds.update(zip(judged.tolist(), against.tolist(), strict=True))
    near = _agreement(second.transform(units), names, believed, rows)
    alone = np.array([odds[row] for row in rows.tolist()])
    share = wrong_share(alone, codes)
    wrong = wrong_labels(alone + near / 3, codes, share)
    order = np.argsort(-wrong, kind="stable")
    rows = rows[order]
    answer = second.posterior(units[rows]).candidates
    other = answer[:, min(1, answer.shape[1] - 1)]
    suggested = np.where(answer[:, 0] == names[rows], other, answer[:, 0])
    return LabelAudit(rows, names[rows], wrong[order], suggested, share, out, first)


def wrong_share(odds: Float[np.ndarray, " r"], labels: int) -> float:
    """Estimate the share of wrong labels from log-odds of each vector's own label, by its likelihood."""
    share = 0.05
    for _ in range(STEPS):
        share = float(wrong_labels(odds, labels, share).mean())
    return share


def wrong_labels(
    odds: Float[np.ndarray, " r"], labels: int, share: float
) -> Float[np.ndarray, " r"]:
    """Return the probability that each label is wrong, if a share of them is."""
    right = 1 / (1 + np.exp(-np.clip(odds, -AT_MOST, AT_MOST)))
    return np.asarray(share / labels / ((1 - share) * right + share / labels))


def _agreement(
    coordinates: Float[np.ndarray, "n r"],
    names: np.ndarray,
    believed: np.ndarray,
    rows: np.ndarray,
) -> Float[np.ndarray, " r"]:
    """Return log-odds that the nearest believed vectors have the label of each one."""
    lengths = np.maximum(np.linalg.norm(coordinates, axis=1, keepdims=True), 1e-12)
    units = (coordinates / lengths).astype(np.float32)
    there = np.flatnonzero([name is not None for name in believed])
    count = min(NEIGHBOURS, len(there) - 1)
    found = np.zeros(len(rows))
    for start in range(0, len(rows), BLOCK):
        some = rows[start : start + BLOCK]
        cosines = units[some] @ units[there].T
        cosines[some[:, None] == there] = -np.inf
        near = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
        weights = np.exp(SHARPNESS * (np.take_along_axis(cosines, near, axis=1) - 1))
        same = believed[there[near]] == names[some][:, None]
        share = (weights * same).sum(axis=1) / weights.sum(axis=1)
        found[start : start + BLOCK] = np.log((share + 0.02) / (1 - share + 0.02))
    return found
