"""What goes over the wire, described for OpenAPI.

κ is null where it is infinite, that is, where no uncertainty is known: JSON has no infinity.

Answers as `surefind.apps.service.messages` describes them, written for a whole batch at once.

Everything numeric is computed for all queries together and leaves NumPy in one step: taking single values
out of arrays would cost more than the search.
"""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr

from surefind.gallery.answers import Answers
from surefind.gallery.engine import Id

LARGEST = 2**53 - 1
"""Up to here every program reads a JSON number as the same whole number."""

Text = Annotated[StrictStr, Field(max_length=256)]
Whole = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
ItemId = Annotated[Text, Field(min_length=1)] | Whole
ItemLabel = Text | Whole | None
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=2, max_length=16384)]
Kappa = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
Payload = dict[str, JsonValue] | None
Kind = Literal["number", "text"]
Verdict = Literal["accept", "reject", "relabel"]
Decision = Literal["match", "review", "no_match"]


class Message(BaseModel):
    """What a caller sends holds nothing unknown: a misspelt name is told, not ignored."""

    model_config = ConfigDict(extra="forbid")


class VectorSearch(Message):
    """Queries that are embedded already."""

    vectors: Annotated[list[Vector], Field(min_length=1)]
    kappa: Annotated[list[Kappa] | None, Field(description="One per vector.")] = None
    k: Annotated[int, Field(ge=1, le=100)] = 10
    keep: Annotated[bool, Field(description="Let unsure queries wait for a person.")] = False


class Neighbour(BaseModel):
    """An item that was found."""

    id: ItemId
    label: ItemLabel
    score: float
    kappa: float | None
    payload: Any
    image: bool


class Answer(BaseModel):
    """What is known about one query."""

    decision: Decision | None = Field(description="null without a calibration.")
    probability: float | None = Field(description="That the top answer is right.")
    kappa: float | None = Field(description="How sure the embedding is.")
    surer_than: float | None = Field(description="Share of calibration queries that are less sure.")
    reasons: list[str]
    neighbours: list[Neighbour]
    vector: list[float] | None = Field(description="Of an image; callers know their own vectors.")
    review: str | None = Field(description="Where it waits for a person, if it does.")


class SearchAnswer(BaseModel):
    """The answers, one per query."""

    answers: list[Answer]
    rank: str
    stale: bool = Field(description="Whether the gallery has changed since it was calibrated.")


class NewItem(Message):
    """An item to add."""

    id: ItemId | None = None
    vector: Vector
    kappa: Kappa = None
    label: ItemLabel = None
    payload: Payload = None


class NewItems(Message):
    """Items to add: all of them, or none."""

    items: Annotated[list[NewItem], Field(min_length=1, max_length=1000)]


class ItemChange(Message):
    """What an item gets; what is left out stays."""

    vector: Vector | None = None
    kappa: Kappa = None
    label: ItemLabel = None
    payload: Payload = None


class Ids(BaseModel):
    """The ids of what was stored; it is on the disk."""

    ids: list[ItemId]


class ItemView(BaseModel):
    """An item."""

    id: ItemId
    label: ItemLabel
    kappa: float | None
    payload: Any
    image: bool
    confuses: int | None = None
    vector: list[float] | None = None


class ItemPage(BaseModel):
    """A part of a list."""

    total: int
    offset: int
    items: list[ItemView]


class Curve(BaseModel):
    """Coverage and wrong matches over thresholds, the strictest first."""

    thresholds: list[float]
    coverage: list[float]
    wrong_rate: list[float]
    upper_bound: list[float]
    chosen: int | None


class CalibrationView(BaseModel):
    """What the decisions rest on; everything but the first is null without a calibration."""

    calibrated: bool
    summary: str | None = None
    max_wrong: float | None = None
    confidence: float | None = None
    threshold: float | None = None
    floor: float | None = None
    queries: int | None = None
    unknown: int | None = None
    log_kappa_quantiles: list[float] | None = None
    risk_curve: Curve | None = None
    contributions: list[dict[str, Any]] | None = None


class GalleryView(BaseModel):
    """What can be searched, and how."""

    items: int
    dim: int | None
    model: str | None
    images: bool = Field(description="Whether images can be searched with.")
    calibrated: bool
    may_write: bool
    version: str


class ReviewView(BaseModel):
    """A query that waits for a person."""

    id: str
    when: str
    decision: Decision | None
    probability: float | None
    kappa: float | None
    surer_than: float | None
    reasons: list[str]
    neighbours: list[Neighbour]
    image: bool


class DecidedView(BaseModel):
    """What a person said."""

    id: str
    when: str
    verdict: Verdict
    label: ItemLabel


class ReviewList(BaseModel):
    """The queue, the oldest first, and the latest decisions."""

    total: int
    pending: list[ReviewView]
    decided: list[DecidedView]


class Verdicts(Message):
    """What a person says about a query."""

    id: Annotated[str, Field(max_length=64)]
    verdict: Verdict
    label: ItemLabel = None


class Health(BaseModel):
    """The service is up."""

    status: Literal["ok"]
    items: int


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
        What JSON can hold: `surefind.apps.service.messages.Answer`.
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
