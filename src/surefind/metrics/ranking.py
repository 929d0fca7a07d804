"""Quality of ranked neighbours: which are relevant, recall@k and mAP@k.

A neighbour is relevant if it has the query's label (`relevance`), if it was taken near the query's
position (`relevance_within`), or by any other notion of a `Relevance` built by hand. With rel_r = 1 where
the query's r-th neighbour is relevant, and R relevant items in the gallery,

    recall@k = 1 if any rel_r (r <= k) else 0              is one of the k nearest right?
    AP@k     = Σ_{r<=k} precision@r · rel_r / min(k, R)    precision@r = Σ_{t<=r} rel_t / r

and `recall_at_k`, `map_at_k` are their means over the queries. At k = 1 both are the accuracy of the
nearest neighbour.

Policy: a query with no relevant item in the gallery (R = 0) cannot be answered. It is left out of the
means and counted (`Relevance.unanswerable`), never scored 1 or 0.

The query itself is never its own answer. ``neighbours`` has it left out already; R leaves it out when the
set is *closed*, that is, when the gallery holds the queries themselves. Unless ``self_in_gallery`` is
given, labels are taken as a closed set when both label arrays are equal and no query is listed among its
own neighbours.

Axes: ``q`` queries, ``a`` of them answerable, ``g`` gallery, ``m`` neighbours listed for each query, ``k``
of them judged.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]

from surefind.checks import as_array, as_vectors, check_int, check_positive, label_codes
from surefind.errors import DegenerateError, InputError

BLOCK = 2**22
"""Distances held at once when positions are compared: 32 MB."""


@dataclass(frozen=True, eq=False)
class Relevance:
    """Which neighbours are right answers, and how many right answers there are.

    Built by `relevance` or `relevance_within`, or by hand for any other notion of relevance.

    Attributes:
        hits: Whether each query's r-th neighbour is relevant (q, m), boolean, nearest first.
        counts: Number of relevant items in the gallery for each query (q), itself left out.
    """

    hits: Any
    counts: Any

    def __post_init__(self) -> None:
        """Check shapes, and that no query has more hits than relevant items."""
        hits, counts = as_array(self.hits), as_array(self.counts)
        table = hits.ndim == 2 and hits.dtype == bool and hits.size > 0
        if not table or counts.shape != hits.shape[:1] or counts.dtype.kind not in "iu":
            raise InputError(
                "hits must be a boolean matrix (q, m) that is not empty, and counts one integer per query "
                f"(q); got {hits.dtype} of shape {hits.shape} and {counts.dtype} of {counts.shape}.",
                field="counts" if table else "hits",
            )
        over = hits.sum(1) > counts
        if over.any():
            row = int(over.argmax())
            raise InputError(
                f"query {row} has {int(hits[row].sum())} relevant neighbours but only "
                f"{int(counts[row])} relevant items: a neighbour is listed twice, or the query is "
                "its own neighbour. Leave the query out of its neighbours.",
                field="hits",
            )
        object.__setattr__(self, "hits", hits)
        object.__setattr__(self, "counts", counts)

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def answerable(self) -> Bool[np.ndarray, " q"]:
        """Whether each query has a relevant item at all."""
        return np.asarray(self.counts > 0)

    @property
    def unanswerable(self) -> int:
        """Number of queries that are left out."""
        return int((self.counts == 0).sum())


def relevance(
    neighbours: Any, query_labels: Any, gallery_labels: Any, *, self_in_gallery: bool | None = None
) -> Relevance:
    """Call a neighbour relevant if its label is the query's.

    Args:
        neighbours: Indices into the gallery (q, m), nearest first, the query itself left out.
        query_labels: A label per query (q).
        gallery_labels: A label per gallery item (g).
        self_in_gallery: Whether the gallery holds the queries too; None means: find out as the
            module says.

    Returns:
        Hits and counts.
    """
    queries, gallery = label_codes(query_labels, gallery_labels)
    indices = _indices(neighbours, len(queries), len(gallery))
    hits = gallery[indices] == queries[:, None]
    size = 1 + int(max(queries.max(), gallery.max()))
    counts = np.bincount(gallery, minlength=size)[queries]
    if self_in_gallery is None:
        self_in_gallery = np.array_equal(queries, gallery) and not _lists_itself(indices)
    return Relevance(hits, _others(counts, self_in_gallery))


def relevance_within(
    neighbours: Any,
    query_positions: Any,
    gallery_positions: Any,
    radius: float,
    *,
    self_in_gallery: bool = False,
) -> Relevance:
    """Call a neighbour relevant if it was taken at most ``radius`` away (place recognition).

    Args:
        neighbours: Indices into the gallery (q, m), nearest first, the query itself left out.
        query_positions: Metric coordinates of the queries (q, axes).
        gallery_positions: Metric coordinates of the gallery (g, axes).
        radius: Distance up to which two are the same place, in the coordinates' unit.
        self_in_gallery: Whether the gallery holds the queries too.

    Returns:
        Hits and counts.
    """
    check_positive("radius", radius)
    queries = as_vectors("query_positions", query_positions).astype(np.float64)
    gallery = as_vectors("gallery_positions", gallery_positions, dim=queries.shape[1]).astype(float)
    indices = _indices(neighbours, len(queries), len(gallery))
    hits = np.linalg.norm(gallery[indices] - queries[:, None], axis=2) <= radius
    size = max(1, BLOCK // len(gallery))
    counts = [
        # By differences: UTM coordinates are millions, and a product of them loses the metres.
        (cdist(queries[i : i + size], gallery) <= radius).sum(1)
        for i in range(0, len(queries), size)
    ]
    return Relevance(hits, _others(np.concatenate(counts), self_in_gallery))


def _indices(neighbours: Any, queries: int, gallery: int) -> Int[np.ndarray, "q m"]:
    indices = as_array(neighbours)
    table = indices.ndim == 2 and indices.dtype.kind in "iu" and len(indices) == queries
    if not table or (indices.size and not 0 <= indices.min() <= indices.max() < gallery):
        span = f", {indices.min()} … {indices.max()}" if table else ""
        raise InputError(
            f"neighbours must be indices into the gallery, 0 … {gallery - 1}, a row for each of {queries} "
            f"queries; got {indices.dtype} of shape {indices.shape}{span}. An index of -1 marks a missing "
            "neighbour: search for fewer.",
            field="neighbours",
        )
    return indices.astype(np.int64)


def _lists_itself(indices: Int[np.ndarray, "q m"]) -> bool:
    return bool((indices == np.arange(len(indices))[:, None]).any())


def _others(counts: Int[np.ndarray, " q"], self_in_gallery: bool) -> Int[np.ndarray, " q"]:
    if self_in_gallery and not counts.all():
        raise InputError(
            f"{int((counts == 0).sum())} queries have no relevant item in the gallery, not even "
            "themselves, so the gallery does not hold them: pass self_in_gallery=False.",
            field="self_in_gallery",
        )
    return counts - int(self_in_gallery)


def recall_per_query(relevant: Relevance, k: int) -> Float[np.ndarray, " a"]:
    """Return recall@k, 1.0 or 0.0, of each query where ``relevant.answerable``, in order."""
    hits, _ = _judged(relevant, k)
    return np.asarray(hits.any(1), np.float64)


def average_precision_per_query(relevant: Relevance, k: int) -> Float[np.ndarray, " a"]:
    """Return AP@k of each query where ``relevant.answerable``, in order."""
    hits, counts = _judged(relevant, k)
    precision = hits.cumsum(1) / np.arange(1, k + 1)
    return np.asarray((precision * hits).sum(1) / np.minimum(counts, k))


def recall_at_k(
    neighbours: Any,
    query_labels: Any,
    gallery_labels: Any,
    k: int,
    *,
    self_in_gallery: bool | None = None,
) -> float:
    """Compute mean recall@k over the answerable queries; arguments as `relevance`."""
    found = relevance(neighbours, query_labels, gallery_labels, self_in_gallery=self_in_gallery)
    return float(recall_per_query(found, k).mean())


def map_at_k(
    neighbours: Any,
    query_labels: Any,
    gallery_labels: Any,
    k: int,
    *,
    self_in_gallery: bool | None = None,
) -> float:
    """Compute mAP@k over the answerable queries; arguments as `relevance`."""
    found = relevance(neighbours, query_labels, gallery_labels, self_in_gallery=self_in_gallery)
    return float(average_precision_per_query(found, k).mean())


def _judged(relevant: Relevance, k: int) -> tuple[Bool[np.ndarray, "a k"], Int[np.ndarray, " a"]]:
    check_int("k", k, least=1)
    if k > relevant.hits.shape[1]:
        raise InputError(
            f"k is {k}, but only {relevant.hits.shape[1]} neighbours are given for each query; "
            "search for more or lower k.",
            field="k",
        )
    answerable = relevant.answerable
    if not answerable.any():
        raise DegenerateError(
            f"none of the {len(relevant)} queries has a relevant item in the gallery, so there is "
            "nothing to score.",
            field="self_in_gallery",
            hint="If the gallery does not hold the queries themselves, pass self_in_gallery=False.",
        )
    return relevant.hits[answerable, :k], relevant.counts[answerable]
