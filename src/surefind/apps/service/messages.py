"""What goes over the wire, described for OpenAPI.

κ is null where it is infinite, that is, where no uncertainty is known: JSON has no infinity. Novelty is
null where it is not known.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StrictInt, StrictStr

LARGEST = 2**53 - 1
"""Up to here every program reads a JSON number as the same integer."""

String = Annotated[StrictStr, Field(max_length=256)]
Int = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
ItemId = Annotated[String, Field(min_length=1)] | Int
ItemLabel = String | Int | None
Group = Annotated[
    ItemLabel,
    Field(description="What it was taken from together with others: a video, a session."),
]
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=2, max_length=16384)]
Kappa = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
PValue = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Payload = dict[str, JsonValue] | None
Kind = Literal["number", "text"]
Verdict = Literal["accept", "reject", "relabel"]
Decision = Literal["match", "review", "no_match"]


class Message(BaseModel):
    """What a caller sends holds nothing unknown: a misspelt name is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")


class VectorSearch(Message):
    """Queries that are embedded already."""

    vectors: Annotated[list[Vector], Field(min_length=1)]
    kappa: Annotated[list[Kappa] | None, Field(description="One per vector.")] = None
    novelty: Annotated[
        list[PValue] | None,
        Field(
            description="A p-value per vector: small if it is unlike the training data. Needed if the "
            "calibration has a gate."
        ),
    ] = None
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


class LabelProbability(BaseModel):
    """A label that the query may have."""

    label: ItemLabel
    probability: float = Field(description="By the neighbourhood alone.")


class EvidenceItem(BaseModel):
    """An item that speaks for a label."""

    id: ItemId
    cosine: float
    payload: Any
    image: bool


class Evidence(LabelProbability):
    """A label that the query may have, and what speaks for it."""

    items: list[EvidenceItem] = Field(description="The nearest of this label, nearest first.")


class Answered(BaseModel):
    """What the gallery says about a query."""

    label: ItemLabel = Field(
        description="The most probable label, which need not be the nearest item's; null if no "
        "neighbour has one."
    )
    label_probability: list[LabelProbability] = Field(
        description="At most 5 labels, the most probable first; they and none sum to 1 at most."
    )
    none: float = Field(
        description="That no label of the gallery is right, by the neighbourhood alone."
    )
    decision: Decision | None = Field(description="About the label; null without a calibration.")
    probability: float | None = Field(
        description="That the label is right, as calibrated; null without a calibration."
    )
    kappa: float | None = Field(description="How sure the embedding of the query is.")
    surer_than: float | None = Field(description="Share of calibration queries that are less sure.")
    novelty: float | None = Field(
        default=None,
        description="p-value of the query, small if it is unlike the training data; null if not known.",
    )
    reasons: list[str] = Field(description="Why it is no match.")
    neighbours: list[Neighbour] = Field(description="The nearest items, of any label.")
    evidence: list[Evidence] = Field(
        description="The label first, then its strongest rival, if that has a probability of 0.01."
    )


class Answer(Answered):
    """What is known about one query."""

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
    novelty: PValue | None = None
    label: ItemLabel = None
    payload: Payload = None
    group: Group = None


class NewItems(Message):
    """Items to add: all of them, or none."""

    items: Annotated[list[NewItem], Field(min_length=1, max_length=1000)]


class ItemChange(Message):
    """What an item gets; what is left out stays."""

    vector: Vector | None = None
    kappa: Kappa = None
    novelty: PValue | None = None
    label: ItemLabel = None
    payload: Payload = None
    group: Group = None


class Ids(BaseModel):
    """The ids of what was stored; it is on the disk."""

    ids: list[ItemId]


class ItemView(BaseModel):
    """An item."""

    id: ItemId
    label: ItemLabel
    kappa: float | None
    novelty: float | None
    payload: Any
    group: ItemLabel
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
    max_false_alarms: float | None = Field(
        default=None,
        description="At most this novelty is unlike anything seen, at most ten times as much is unusual; "
        "null without a gate.",
    )
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


class ReviewView(Answered):
    """A query that waits for a person."""

    id: str
    when: str
    image: bool


class DecidedView(BaseModel):
    """What a person said."""

    id: str
    when: str
    verdict: Verdict
    label: ItemLabel = Field(description="What the query is; null if it is not in the gallery.")


class ReviewList(BaseModel):
    """The queue, the oldest first, and the latest decisions."""

    total: int
    pending: list[ReviewView]
    decided: list[DecidedView]


class Verdicts(Message):
    """What a person says about a query."""

    id: Annotated[str, Field(max_length=64)]
    verdict: Annotated[
        Verdict,
        Field(
            description="The answered label is right; no label of the gallery is; another one is."
        ),
    ]
    label: Annotated[ItemLabel, Field(description="For relabel: what it is.")] = None


class Health(BaseModel):
    """The service is up."""

    status: Literal["ok"]
    items: int
