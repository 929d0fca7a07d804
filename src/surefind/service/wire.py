"""What goes over the wire, described for OpenAPI, and the error of a request that is not answered.

κ is null where it is infinite, that is, where no uncertainty is known: JSON has no infinity. Novelty is
null where it is not known.
"""

from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

from surefind.errors import SurefindError

LARGEST = 2**53 - 1
"""Up to here every program reads a JSON number as the same integer."""


ANONYMOUS = "anonymous"
"""Who asks a service that has no tokens."""


class RefusedError(SurefindError):
    """A request is not answered.

    Attributes:
        status: The HTTP status.
        headers: More headers of the answer.
    """

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def _addressable(id_: str) -> str:
    if id_ in (".", ".."):
        raise ValueError("an id must not be '.' or '..': clients take these out of addresses")
    return id_


String = Annotated[StrictStr, Field(max_length=256)]
Int = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
ItemId = Annotated[String, Field(min_length=1), AfterValidator(_addressable)] | Int
ItemLabel = String | Int | None
KeptId = StrictStr | StrictInt
"""What an answer holds: a gallery that was not filled here may have longer ids and larger numbers."""
KeptLabel = KeptId | None
Group = Annotated[
    ItemLabel,
    Field(description="What it was taken from together with others: a video, a session."),
]
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=2, max_length=16384)]
Kappa = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
PValue = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Payload = dict[str, Any] | None
Scalar = (
    Annotated[StrictStr, Field(max_length=1024)]
    | StrictBool
    | StrictInt
    | Annotated[StrictFloat, Field(allow_inf_nan=False)]
    | None
)
Where = Annotated[
    dict[
        Annotated[str, Field(max_length=256)],
        Scalar | Annotated[list[Scalar], Field(min_length=1, max_length=100)],
    ],
    Field(
        min_length=1,
        max_length=16,
        description="Only items whose payload has these values: of each key one, or one of a list.",
    ),
]
Labels = Annotated[list[ItemLabel], Field(min_length=1, max_length=100)]
WHERE = (
    "Only items whose payload has these values; no label is answered then, and nothing is decided."
)
LABELS = "Only items with one of these labels, which alone are possible for the query too."
Kind = Literal["number", "text"]
Verdict = Literal["accept", "reject", "relabel"]
Decision = Literal["match", "review", "no_match"]


WATCHED = (
    "Compare the query with the calibration's; false for health checks, repeated queries and items."
)


class Message(BaseModel):
    """What a caller sends holds nothing unknown: a misspelt name is refused, not ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class VectorSearch(Message):
    """Queries that are embedded already."""

    vectors: Annotated[list[Vector], Field(min_length=1, max_length=256)]
    kappa: Annotated[list[Kappa] | None, Field(description="One per vector.")] = None
    novelty: Annotated[
        list[PValue] | None,
        Field(
            description="A p-value per vector: small if it is unlike the training data. Needed if the "
            "calibration's queries had one."
        ),
    ] = None
    k: Annotated[int, Field(ge=1, le=100)] = 10
    keep: Annotated[
        bool | None,
        Field(
            description="Let unsure queries wait for a person, and sampled ones; null: only sampled ones; "
            "false: none."
        ),
    ] = None
    watch: Annotated[bool, Field(description=WATCHED)] = True
    where: Annotated[Where | None, Field(description=WHERE)] = None
    labels: Annotated[Labels | None, Field(description=LABELS)] = None

    @model_validator(mode="after")
    def _one_each(self) -> "VectorSearch":
        if len({len(vector) for vector in self.vectors}) > 1:
            raise ValueError("give vectors of one length")
        for name in ("kappa", "novelty"):
            if (own := getattr(self, name)) is not None and len(own) != len(self.vectors):
                raise ValueError(f"give one {name} for each vector, or none at all")
        return self


class Neighbour(BaseModel):
    """An item that was found."""

    id: KeptId
    label: KeptLabel
    score: float = Field(description="Its cosine.")
    payload: Any
    image: bool


class LabelProbability(BaseModel):
    """A label that the query may have."""

    label: KeptLabel
    probability: float = Field(description="By the evidence alone, before calibration.")


class Answered(BaseModel):
    """What the gallery says about a query."""

    label: KeptLabel = Field(
        description="The most probable label, which need not be the nearest item's; null if no item has "
        "one, and in a search with ``where``."
    )
    label_probability: list[LabelProbability] = Field(
        description="At most 5 labels, the most probable first; they and none sum to 1 at most."
    )
    none: float | None = Field(
        description="That no label of the gallery is right, by the evidence alone; null in a search with "
        "``where``."
    )
    decision: Decision | None = Field(
        description="About the label; null without a calibration, and in a search with ``where``."
    )
    probability: float | None = Field(
        description="That the label is right, as calibrated; null where the decision is. It means nothing "
        "for a query that is unlike anything seen, or unusual: only others were tested."
    )
    kappa: float | None = Field(description="How sure the embedding of the query is.")
    novelty: float | None = Field(
        default=None,
        description="p-value of the query, small if it is unlike the training data; null if not known.",
    )
    reasons: list[str] = Field(description="Why it is no match, or why nothing was decided.")
    neighbours: list[Neighbour] = Field(description="The nearest items, nearest first.")


class Answer(Answered):
    """What is known about one query."""

    vector: list[float] | None = Field(description="Of an image; callers know their own vectors.")
    review: str | None = Field(description="Where it waits for a person, if it does.")
    dropped: bool = Field(
        description="Whether it should wait for a person, and cannot: too many do, or the disk fails."
    )


class SearchAnswer(BaseModel):
    """The answers, one per query."""

    answers: list[Answer]
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

    @model_validator(mode="after")
    def _alike(self) -> "NewItems":
        for name in ("id", "novelty"):
            if len({getattr(item, name) is None for item in self.items}) > 1:
                raise ValueError(f"give every item {name}, or none of them")
        if len({len(item.vector) for item in self.items}) > 1:
            raise ValueError("give vectors of one length")
        return self


class ItemChange(Message):
    """What an item gets; what is left out stays."""

    vector: Vector | None = None
    kappa: Kappa = None
    novelty: PValue | None = None
    label: ItemLabel = None
    payload: Payload = None
    group: Group = None

    @model_validator(mode="after")
    def _of_a_vector(self) -> "ItemChange":
        if self.vector is None and (self.kappa is not None or self.novelty is not None):
            raise ValueError("kappa and novelty belong to a vector; give that too")
        return self


class Ids(BaseModel):
    """The ids of what was stored; it is on the disk."""

    ids: list[KeptId]


class ItemView(BaseModel):
    """An item."""

    id: KeptId
    label: KeptLabel
    kappa: float | None
    novelty: float | None
    payload: Any
    group: KeptLabel
    image: bool
    vector: list[float] | None = None


class ItemPage(BaseModel):
    """A part of a list."""

    total: int | None = Field(description="Items in the list; null with a filter.")
    offset: int
    items: list[ItemView]
    next: str | None = Field(
        description="Send it as ``after`` for those that follow; null at the end. With a filter a part "
        "may be empty though others follow."
    )


class Curve(BaseModel):
    """Coverage and wrong matches over thresholds, the strictest first."""

    thresholds: list[float]
    coverage: list[float]
    wrong_rate: list[float]
    upper_bound: list[float]
    chosen: int | None


class IdentificationCurve(BaseModel):
    """FPIR and FNIR over the same thresholds, with exact bounds."""

    unknown: int = Field(description="Unknown queries that tested the thresholds.")
    enrolled: int
    fpir: list[float] = Field(description="Share of unknown queries that are a match.")
    fpir_lower: list[float]
    fpir_upper: list[float]
    fnir: list[float] = Field(description="Share of enrolled queries that are missed.")
    fnir_lower: list[float]
    fnir_upper: list[float]


class Finding(BaseModel):
    """Something that is probably wrong with an item, or with two labels."""

    kind: Literal["mislabelled", "duplicate", "confusion", "unusable", "impostor"]
    id: KeptId | None = Field(description="The item; null for a pair of labels.")
    label: KeptLabel
    suggested: KeptLabel = Field(
        description="What the rest says, or another label it is taken for."
    )
    image: bool = Field(description="Whether there is a picture of the item.")
    other_id: KeptId | None = Field(description="Another item that has to do with it.")
    other_image: bool
    score: float = Field(description="What findings of one kind are ordered by.")
    sentence: str


class AuditView(BaseModel):
    """What an audit found, the most suspect of each kind first."""

    sentences: list[str]
    findings: list[Finding]


class WatchView(BaseModel):
    """Whether queries still look like the calibration's."""

    queries: int = Field(description="Compared since the calibration was made.")
    capital: float = Field(description="100 raises the alarm.")
    alarm: str | None = Field(description="A sentence, once queries differ; null before.")
    since: datetime | None = Field(description="The most likely time of the first that differs.")
    stream: Literal["novelty", "probability"] | None = Field(description="Where they differ most.")
    direction: str | None = Field(description="How, in words.")


class SampleView(BaseModel):
    """What reviews a calibration may use: a random share of all queries."""

    share: float = Field(description="Of all queries that is sampled now.")
    usable: int = Field(description="Decided, in the order in which they were asked.")
    waiting: int
    needed: int = Field(description="Least number with which one can calibrate again.")
    summary: str = Field(description="What can be used, and what is left out and why.")


class CalibrationView(BaseModel):
    """What the decisions rest on; everything but the first is null without a calibration."""

    calibrated: bool
    summary: str | None = None
    max_wrong: float | None = None
    confidence: float | None = None
    threshold: float | None = None
    queries: int | None = None
    unknown: int | None = None
    left_out_queries: int | None = Field(
        default=None,
        description="Queries whose label was left out, and that nothing was fitted to.",
    )
    left_out_matched: int | None = Field(default=None, description="Those that would be a match.")
    max_false_alarms: float | None = Field(
        default=None,
        description="At most this novelty is unlike anything seen, at most ten times as much is unusual; "
        "null without a gate.",
    )
    risk_curve: Curve | None = None
    identification: IdentificationCurve | None = None
    renewals: int | None = Field(
        default=None, description="How often it was renewed since somebody calibrated."
    )
    made: datetime | None = Field(default=None, description="When it was made or last renewed.")
    stale: bool | None = Field(
        default=None, description="Whether the gallery has changed since; it is being renewed then."
    )
    watch: WatchView | None = None
    reviews: SampleView | None = None


class GalleryView(BaseModel):
    """What can be searched, and how."""

    items: int
    dim: int | None
    model: str | None
    images: bool = Field(description="Whether images can be searched with.")
    calibrated: bool
    may_write: bool


class ReviewView(Answered):
    """A query that waits for a person."""

    id: str
    when: str
    image: bool
    sampled: bool = Field(
        default=False, description="Whether it is a random check, whatever was decided about it."
    )
    count: int = Field(default=1, description="How often it was asked, itself included.")


class DecidedView(BaseModel):
    """What a person said."""

    id: str
    when: str
    verdict: Verdict
    label: KeptLabel = Field(description="What the query is; null if it is not in the gallery.")
    by: str | None = Field(
        default=None, description="The name of the decider's token; null if it was not kept then."
    )
    reviewer: str | None = Field(default=None, description="Who said so, by their own account.")


class HistoryEntry(DecidedView):
    """What a person said about which answer."""

    asked_when: str
    answered: KeptLabel = Field(description="The label that was answered.")
    decision: Decision | None = Field(None, description="That was made about it by itself.")
    probability: float | None = None
    sampled: bool = False
    count: int = 1
    image: bool = False


class ReviewList(BaseModel):
    """The queue, the oldest first, and decisions, the newest first."""

    total: int
    matching: int = Field(description="Those that the filters let through.")
    reasons: dict[str, int] = Field(description="Of all that wait: how many have which reason.")
    dropped: int = Field(
        description="Since the service was started: queries that should wait, and for which there was "
        "no room."
    )
    room: int = Field(description="Doubtful queries that may still wait.")
    pending: list[ReviewView]
    decisions: int = Field(description="All decisions.")
    decided: list[HistoryEntry]


Fraction = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


class Recalibration(Message):
    """A calibration to make again: with reviewed queries, or from the gallery's own items."""

    with_reviews: Annotated[
        Literal[True] | None,
        Field(description="Add reviewed random checks to the calibration's queries."),
    ] = None
    from_items: Annotated[
        Literal[True] | None, Field(description="Let the gallery's own items play the queries.")
    ] = None
    max_wrong: Annotated[
        Fraction | None, Field(description="Highest share of wrong answers among matches.")
    ] = None
    max_fpir: Annotated[
        Fraction | None, Field(description="Highest share of unknown queries that may be a match.")
    ] = None
    confidence: Annotated[
        Fraction | None, Field(description="With what probability both are kept.")
    ] = None
    unknown_share: Annotated[
        float | None,
        Field(ge=0, lt=1, description="With from_items: the share of unknown queries to expect."),
    ] = None

    @model_validator(mode="after")
    def _one_source(self) -> "Recalibration":
        if (self.with_reviews is None) == (self.from_items is None):
            raise ValueError("give with_reviews or from_items")
        if self.with_reviews and self.unknown_share is not None:
            raise ValueError("unknown_share belongs to from_items")
        return self


class Recalibrated(BaseModel):
    """What was found; decisions rest on it from now on."""

    reached: bool
    summary: str
    queries: int
    reviewed: int


class SnapshotView(BaseModel):
    """A copy of the gallery, beside it."""

    name: str = Field(description="Of its folder in the service's folder of snapshots.")
    items: int


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
    reviewer: Annotated[
        StrictStr | None, Field(max_length=64, description="Who says so, to be kept with it.")
    ] = None

    @model_validator(mode="after")
    def _has_label(self) -> "Verdicts":
        if self.verdict == "relabel" and self.label is None:
            raise ValueError("relabel needs a label: what the query shows")
        return self


class LabelCount(BaseModel):
    """A label in use."""

    label: KeptLabel = Field(description='A number or a text: 7 and "7" are two labels.')
    kind: Kind
    items: int


class LabelList(BaseModel):
    """Labels in use, those of the most items first."""

    total: int = Field(description="All labels in use.")
    matching: int
    labels: list[LabelCount]


class Health(BaseModel):
    """The service is up."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Whether the service is ready, and what is missing if it is not."""

    ready: bool
    reasons: list[str] = Field(
        description='Phrases that begin with "gallery", "graph", "calibration", "disk" or "service".'
    )
