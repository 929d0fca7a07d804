"""How good the ranked neighbours are: recall@k and mAP@k.

With rel_r = 1 where the query's r-th neighbour is relevant, and R relevant items in the gallery,

    recall@k = 1 if any rel_r (r <= k) else 0              is one of the k nearest right?
    AP@k     = Σ_{r<=k} precision@r · rel_r / min(k, R)    precision@r = Σ_{t<=r} rel_t / r

and `recall_at_k`, `map_at_k` are their means over the queries. At k = 1 both are the accuracy of the
nearest neighbour.

Policy: a query with no relevant item in the gallery (R = 0) cannot be answered. It is left out of the
means and counted (`Relevance.unanswerable`), never scored 1 or 0. In a closed set R leaves out the
query itself; `surefind.metrics.judgements` says how that is known.

Axes: ``q`` queries, ``a`` of them answerable, ``g`` gallery, ``k`` neighbours judged.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from surefind.errors import DegenerateError, InputError
from surefind.metrics.judgements import Relevance, relevance
from surefind.validation import check_whole


def recall_per_query(relevant: Relevance, k: int) -> Float[np.ndarray, " a"]:
    """Give recall@k of each answerable query: 1.0 or 0.0.

    Args:
        relevant: What is relevant.
        k: How many neighbours to judge.

    Returns:
        One value for each query where ``relevant.answerable``, in order.
    """
    hits, _ = _judged(relevant, k)
    return np.asarray(hits.any(1), np.float64)


def average_precision_per_query(relevant: Relevance, k: int) -> Float[np.ndarray, " a"]:
    """Give AP@k of each answerable query.

    Args:
        relevant: What is relevant.
        k: How many neighbours to judge.

    Returns:
        One value for each query where ``relevant.answerable``, in order.
    """
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
    """Give the share of answerable queries that have a relevant item among their k nearest.

    Args:
        neighbours: Indices into the gallery (q, at least k), nearest first, the query left out.
        query_labels: A label per query (q).
        gallery_labels: A label per gallery item (g).
        k: How many neighbours to judge.
        self_in_gallery: Whether the gallery holds the queries too; None means: find out.

    Returns:
        Mean recall@k.
    """
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
    """Give the mean average precision of the k nearest over the answerable queries.

    Args:
        neighbours: Indices into the gallery (q, at least k), nearest first, the query left out.
        query_labels: A label per query (q).
        gallery_labels: A label per gallery item (g).
        k: How many neighbours to judge.
        self_in_gallery: Whether the gallery holds the queries too; None means: find out.

    Returns:
        mAP@k.
    """
    found = relevance(neighbours, query_labels, gallery_labels, self_in_gallery=self_in_gallery)
    return float(average_precision_per_query(found, k).mean())


def _judged(relevant: Relevance, k: int) -> tuple[Bool[np.ndarray, "a k"], Int[np.ndarray, " a"]]:
    check_whole("k", k, least=1)
    if k > relevant.hits.shape[1]:
        raise InputError(
            f"k is {k}, but only {relevant.hits.shape[1]} neighbours are given for each query; "
            "search for more or lower k."
        )
    answerable = relevant.answerable
    if not answerable.any():
        raise DegenerateError(
            f"none of the {len(relevant)} queries has a relevant item in the gallery, so there is "
            "nothing to score. If the gallery does not hold the queries themselves, pass "
            "self_in_gallery=False."
        )
    return relevant.hits[answerable, :k], relevant.counts[answerable]
