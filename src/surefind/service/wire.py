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
    StrictInt,
    StrictStr,
    model_validator,
)

from surefind.errors import SurefindError

LARGEST = 2**53 - 1
"""Up to here every program reads a JSON number as the same integer."""
MOST_FOUND, MOST_PAYLOADS = 2560, 256
"""Neighbours that a search may return in all, and those with their payloads."""
CALLER = "surefind.caller"
"""Where a request's scope keeps the name of who asks."""
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


def _says(text: str, **more: Any) -> Any:
    return Field(description=text, **more)


String = Annotated[StrictStr, Field(max_length=256)]
Int = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
ItemId = Annotated[String, Field(min_length=1), AfterValidator(_addressable)] | Int
ItemLabel = String | Int | None
KeptId = StrictStr | StrictInt
"""What an answer holds: a gallery that was not filled here may have longer ids and larger numbers."""
KeptLabel = KeptId | None
Group = Annotated[ItemLabel, _says("What it was taken from together with others: a video.")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=2, max_length=16384)]
Kappa = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
PValue = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Payload = Annotated[dict[str, Any] | None, _says("What JSON can hold, in 16,384 characters.")]
Labels = Annotated[list[ItemLabel], Field(min_length=1, max_length=100)]
Fraction = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Kind = Literal["number", "text"]
Verdict = Literal["accept", "reject", "relabel"]
Decision = Literal["match", "review", "no_match"]

LABELS = "Only items with one of these labels, which alone are possible for the query too."
WATCHED = (
    "Compare the query with the calibration's; false for health checks, repeated ones and items."
)
PAYLOADS = f"Return the items' payloads, of at most {MOST_PAYLOADS} neighbours in all."
KEPT = "true: unsure queries wait for a person, and sampled ones; null: only these; false: none."


class Message(BaseModel):
    """What a caller sends holds nothing unknown: a misspelt name is refused, not ignored."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


class VectorSearch(Message):
    """Queries that are embedded already; vectors times k is at most 2,560."""

    vectors: Annotated[list[Vector], Field(min_length=1, max_length=256)]
    kappa: Annotated[list[Kappa] | None, _says("One per vector.")] = None
    novelty: Annotated[
        list[PValue] | None,
        _says("A p-value per vector, small if it is unlike the training data: if they are known."),
    ] = None
    k: Annotated[int, Field(ge=1, le=100)] = 10
    keep: Annotated[bool | None, _says(KEPT)] = None
    watch: Annotated[bool, _says(WATCHED)] = True
    labels: Annotated[Labels | None, _says(LABELS)] = None
    payload: Annotated[bool, _says(PAYLOADS)] = False

    @model_validator(mode="after")
    def _one_each(self) -> "VectorSearch":
        most = MOST_PAYLOADS if self.payload else MOST_FOUND
        if len(self.vectors) * self.k > most:
            raise ValueError(f"vectors times k may be {most:,} at most; send several requests")
        for name in ("kappa", "novelty"):
            if (own := getattr(self, name)) is not None and len(own) != len(self.vectors):
                raise ValueError(f"give one {name} for each vector, or none at all")
        return self


class Neighbour(BaseModel):
    """An item that was found."""

    id: KeptId
    label: KeptLabel
    score: float = _says("Its cosine.")
    payload: Any = _says("null if it was not asked for.")
    image: bool


class LabelProbability(BaseModel):
    """A label that the query may have."""

    label: KeptLabel
    probability: float = _says("By the evidence alone, before calibration.")


class Answered(BaseModel):
    """What the gallery says about a query."""

    label: KeptLabel = _says("The most probable one, perhaps not the nearest item's.")
    label_probability: list[LabelProbability] = _says(
        "At most 5 labels, the most probable first; they and none sum to 1 at most."
    )
    none: float | None = _says("That no label of the gallery is right, by the evidence alone.")
    decision: Decision | None = _says("About the label; null without a calibration.")
    probability: float | None = _says(
        "That the label is right, as calibrated; meaningless for a query that is unusual or unlike "
        "anything seen: only others were tested."
    )
    kappa: float | None = _says("How sure the embedding of the query is.")
    novelty: float | None = _says("Small if it is unlike the training data.", default=None)
    reasons: list[str] = _says("Why it is no match, or why nothing was decided.")
    neighbours: list[Neighbour] = _says("The nearest items, nearest first.")


class Answer(Answered):
    """What is known about one query."""

    vector: list[float] | None = _says("Of an image; callers know their own vectors.")
    review: str | None = _says("Where it waits for a person, if it does.")
    dropped: bool = _says("Whether it should wait, and cannot: too many do, or the disk fails.")


class SearchAnswer(BaseModel):
    """The answers, one per query."""

    answers: list[Answer]
    stale: bool = _says("Whether the gallery has changed since it was calibrated.")


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


class NewItem(ItemChange):
    """An item to add."""

    id: ItemId | None = None
    vector: Vector


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

    total: int = _says("Items in the list.")
    offset: int
    items: list[ItemView]
    next: str | None = _says("Send it as ``after`` for those that follow; null at the end.")


class Curve(BaseModel):
    """Coverage and wrong matches over thresholds, the strictest first."""

    thresholds: list[float]
    coverage: list[float]
    wrong_rate: list[float]
    upper_bound: list[float]
    chosen: int | None


class IdentificationCurve(BaseModel):
    """FPIR and FNIR over the same thresholds, with exact bounds."""

    unknown: int = _says("Unknown queries that tested the thresholds.")
    enrolled: int
    fpir: list[float] = _says("Share of unknown queries that are a match.")
    fpir_lower: list[float]
    fpir_upper: list[float]
    fnir: list[float] = _says("Share of enrolled queries that are missed.")
    fnir_lower: list[float]
    fnir_upper: list[float]


class Finding(BaseModel):
    """Something that is probably wrong with an item, or with two labels."""

    kind: Literal["mislabelled", "duplicate", "confusion", "unusable", "impostor"]
    id: KeptId | None = _says("The item; null for a pair of labels.")
    label: KeptLabel
    suggested: KeptLabel = _says("What the rest says, or another label it is taken for.")
    image: bool
    other_id: KeptId | None = _says("Another item that has to do with it.")
    other_image: bool
    score: float = _says("What findings of one kind are ordered by.")
    sentence: str


class AuditView(BaseModel):
    """What an audit found, the most suspect of each kind first."""

    sentences: list[str]
    findings: list[Finding]


class WatchView(BaseModel):
    """Whether queries still look like the calibration's."""

    queries: int = _says("Compared since the calibration was made.")
    capital: float = _says("100 raises the alarm.")
    alarm: str | None = _says("A sentence, once queries differ; null before.")
    since: datetime | None = _says("The most likely time of the first that differs.")
    stream: Literal["novelty", "probability"] | None = _says("Where they differ most.")
    direction: str | None = _says("How, in words.")


class SampleView(BaseModel):
    """What reviews a calibration may use: a random share of all queries."""

    share: float = _says("Of all queries that is sampled now.")
    usable: int = _says("Decided, in the order in which they were asked.")
    waiting: int
    needed: int = _says("Least number with which one can calibrate again.")
    summary: str = _says("What can be used, and what is left out and why.")


class CalibrationView(BaseModel):
    """What the decisions rest on; only ``calibrated`` and ``reviews`` are known without one."""

    calibrated: bool
    summary: str | None = None
    max_wrong: float | None = None
    confidence: float | None = None
    threshold: float | None = None
    queries: int | None = None
    unknown: int | None = None
    left_out_queries: int | None = _says("Of labels left out, never fitted to.", default=None)
    left_out_matched: int | None = _says("Those that would be a match.", default=None)
    max_false_alarms: float | None = _says(
        "At most this novelty is unlike anything seen, at most ten times as much is unusual.",
        default=None,
    )
    risk_curve: Curve | None = None
    identification: IdentificationCurve | None = None
    renewals: int | None = None
    made: datetime | None = _says("When it was made or last renewed.", default=None)
    stale: bool | None = _says("Whether the gallery has changed since.", default=None)
    watch: WatchView | None = None
    reviews: SampleView


class GalleryView(BaseModel):
    """What can be searched, and how."""

    items: int
    dim: int | None
    model: str | None
    images: bool = _says("Whether images can be searched with.")
    calibrated: bool
    may_write: bool


class ReviewView(Answered):
    """A query that waits for a person; its neighbours are the items as they are now."""

    id: str
    when: str
    image: bool
    sampled: bool = _says("Whether it is a random check.", default=False)
    count: int = _says("How often it was asked, itself included.", default=1)


class DecidedView(BaseModel):
    """What a person said."""

    id: str
    when: str
    verdict: Verdict
    label: KeptLabel = _says("What the query is; null if it is not in the gallery.")
    by: str | None = _says("The name of the decider's token.", default=None)
    reviewer: str | None = _says("Who said so, by their own account.", default=None)


class HistoryEntry(DecidedView):
    """What a person said about which answer."""

    asked_when: str
    answered: KeptLabel = _says("The label that was answered.")
    decision: Decision | None = _says("That was made about it by itself.", default=None)
    probability: float | None = None
    sampled: bool = False
    count: int = 1
    image: bool = False


class ReviewList(BaseModel):
    """The queue, the oldest first, and decisions, the newest first."""

    total: int
    matching: int = _says("Those that the filters let through.")
    reasons: dict[str, int] = _says("Of all that wait: how many have which reason.")
    dropped: int = _says("Queries since the start for which there was no room.")
    room: int = _says("Doubtful queries that may still wait.")
    pending: list[ReviewView]
    decisions: int = _says("All decisions.")
    decided: list[HistoryEntry]


class Recalibration(Message):
    """A calibration to make again: with reviewed queries, or from the gallery's own items."""

    with_reviews: Annotated[Literal[True] | None, _says("Add reviewed random checks.")] = None
    from_items: Annotated[Literal[True] | None, _says("The items play the queries.")] = None
    max_wrong: Annotated[Fraction | None, _says("Of matches, wrong ones.")] = None
    max_fpir: Annotated[Fraction | None, _says("Of unknown queries, matches.")] = None
    confidence: Annotated[Fraction | None, _says("That both are kept.")] = None
    unknown_share: Annotated[
        float | None, Field(ge=0, lt=1, description="Of queries to expect, with from_items.")
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

    name: str = _says("Of its folder in the service's folder of snapshots.")
    items: int


class Verdicts(Message):
    """What a person says: the label is right, none of the gallery is, or another one."""

    id: Annotated[str, Field(max_length=64)]
    verdict: Verdict
    label: Annotated[ItemLabel, _says("For relabel: what it is.")] = None
    reviewer: Annotated[StrictStr | None, _says("To be kept with it.", max_length=64)] = None

    @model_validator(mode="after")
    def _has_label(self) -> "Verdicts":
        if self.verdict == "relabel" and self.label is None:
            raise ValueError("relabel needs a label: what the query shows")
        return self


class LabelCount(BaseModel):
    """A label in use."""

    label: KeptLabel = _says('A number or a text: 7 and "7" are two labels.')
    kind: Kind
    items: int


class LabelList(BaseModel):
    """Labels in use, those of the most items first."""

    total: int = _says("All labels in use.")
    matching: int
    labels: list[LabelCount]


class Health(BaseModel):
    """The service is up."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Whether the service is ready, and what is missing if it is not."""

    ready: bool
    reasons: list[str] = _says(
        'Phrases that begin with "gallery", "graph", "calibration", "disk" or "service".'
    )
