"""Answers as `surefind.service.messages` describes them, written for a whole batch at once.

Everything numeric is computed for all queries together and leaves NumPy in one step: taking single values
out of arrays would cost more than the search.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from surefind.gallery.answers import Answers
from surefind.gallery.engine import Id

Pictured = Callable[[Id, Any], bool]
"""Tells by id and payload whether there is a picture of an item."""


def written(
    found: Answers,
    kappa: np.ndarray,
    ks: Sequence[int],
    quantiles: Sequence[float] | None,
    pictured: Pictured,
) -> list[dict[str, Any]]:
    """Write the answer to each query.

    Args:
        found: The answers.
        kappa: The queries' concentrations (q).
        ks: How many neighbours each of them gets.
        quantiles: Of log κ in the calibration, which κ is compared with; None without one.
        pictured: Which neighbours have a picture.

    Returns:
        What JSON can hold: `surefind.service.messages.Answer`.
    """
    nothing = [None] * len(found)
    decision, probability, reasons = found.decision, found.probability, found.reasons
    return [
        {
            "decision": answer,
            "probability": chance,
            "kappa": own,
            "surer_than": share,
            "reasons": list(why),
            "neighbours": [
                {
                    "id": id_,
                    "label": label,
                    "score": score,
                    "kappa": spread,
                    "payload": payload,
                    "image": pictured(id_, payload),
                }
                for id_, label, score, spread, payload in zip(
                    *(c[:k] for c in columns), strict=True
                )
            ],
            "vector": None,
            "review": None,
        }
        for k, answer, chance, own, share, why, *columns in zip(
            ks,
            nothing if decision is None else decision.tolist(),
            nothing if probability is None else probability.tolist(),
            finite_or_none(kappa),
            surer_than(quantiles, kappa),
            [()] * len(found) if reasons is None else reasons,
            found.ids.tolist(),
            found.labels.tolist(),
            found.scores.tolist(),
            finite_or_none(found.kappa),
            found.payload.tolist(),
            strict=True,
        )
    ]


def finite(kappa: float) -> float | None:
    """Write κ for JSON: None where it is infinite."""
    return kappa if math.isfinite(kappa) else None


def finite_or_none(kappa: np.ndarray) -> list[Any]:
    """Write many κ for JSON, as `finite`."""
    known = np.isfinite(kappa)
    if not known.all():
        kappa = kappa.astype(object)
        kappa[~known] = None
    listed: list[Any] = kappa.tolist()
    return listed


def surer_than(quantiles: Sequence[float] | None, kappa: np.ndarray) -> list[float | None]:
    """Give the share of calibration queries with a lower κ; None without a calibration or a κ.

    Args:
        quantiles: Of their log κ; None without a calibration.
        kappa: Concentrations (q).

    Returns:
        One share each.
    """
    if quantiles is None:
        return [None] * len(kappa)
    below = np.searchsorted(quantiles, np.log(np.maximum(kappa, 1e-300)))
    shares = np.minimum(below / (len(quantiles) - 1), 1.0)
    return [
        share if math.isfinite(k) else None for share, k in zip(shares.tolist(), kappa, strict=True)
    ]
