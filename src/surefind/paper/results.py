"""The results of a benchmark: one schema, one file per data set × method × seed.

A result is the file ``{folder}/{dataset}/{method}-seed{seed}.json``, written whole or not at all, and never
twice. Refused, with the names of file and field: a result that does not follow the schema (NaN and infinity
among them), or whose name says another method, seed or data set than its content; and results of one data
set that were measured by different protocols or on different data, since their numbers do not compare.
Out-of-distribution sets beyond the first are optional: a result lists those that it was measured on.
Results of different versions are read: the report says so over the table.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from surefind.errors import InputError
from surefind.evaluation import DETECTORS
from surefind.files import write_atomically
from surefind.paper.vocabulary import (
    METRICS,
    Kind,
    Metric,
    OodKind,
    kind_of,
    method_order,
    metric_of,
)

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=0)]
Numbers = Annotated[list[Number], Field(min_length=1)]
COMPARABLE = {"protocol": "by different protocols", "examples": "on different data"}
"""What the results of one data set must share, and what it means if they do not."""


class Schema(BaseModel):
    """A part of a result."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class Curve(Schema):
    """Points of a curve."""

    x: Numbers
    y: Numbers


class CorruptionCurve(Schema):
    """Median and quartiles of the uncertainty by strength of a corruption."""

    strength: Numbers
    median: Numbers
    low: Numbers
    high: Numbers


class KappaHistogram(Schema):
    """Counts of in-distribution and OOD inputs in bins of log10 κ."""

    edges: Annotated[list[Number], Field(min_length=2)]
    id: list[Count]
    ood: list[Count] | None = None


class Epoch(Schema):
    """Mean loss and duration of a training epoch."""

    loss: Number
    seconds: Number


class OodResult(Schema):
    """What was measured of one out-of-distribution set.

    Attributes:
        kind: "near" or "far".
        examples: How many of its inputs.
        auroc: By the method's own uncertainty; None without one.
        nearest_distance_auroc: By the distance to the nearest training embedding; None for a baseline.
        novelty_auroc: By novelty; None where it was not fitted, and for a baseline.
    """

    kind: OodKind = "far"
    examples: Count
    auroc: Number | None = None
    nearest_distance_auroc: Number | None = None
    novelty_auroc: Number | None = None

    @property
    def values(self) -> dict[str, float]:
        """What was measured, by name."""
        named = {f"{prefix}auroc": getattr(self, f"{prefix}auroc") for prefix in DETECTORS}
        return {name: value for name, value in named.items() if value is not None}


class Result(Schema):
    """What was measured of one method on one data set with one seed.

    Attributes:
        dataset: The data set's name.
        method: The method, distance baseline or variant of the ablation.
        seed: The seed.
        values: Each metric by name.
        intervals: Bootstrap intervals over queries, (low, high) by metric.
        curves: ROC and other curves by name.
        kappa: Histogram of κ; None for a method without κ.
        corruptions: Uncertainty against strength by corruption.
        left_out: Queries without a relevant item, which no retrieval metric counts.
        ece_samples: Joint samples behind ECE and the agreement metrics.
        posterior: Precision of the weights' posterior, and which fraction of the curvature was clipped.
        votes: How votes over labels were fitted, in results that measured them.
        ood: Each out-of-distribution set by name, the one that `values` are of among them; empty in results
            that were measured on this one only.
        history: Training epochs by stage.
        seconds: Wall-clock time.
        settings: Options of the method.
        protocol: How the data set is benchmarked.
        examples: Sizes of the parts.
        files: Fingerprints of the parts that are image files.
        versions: Of the libraries.
    """

    dataset: str
    method: str
    seed: Count
    values: Annotated[dict[str, Number], Field(min_length=1)]
    intervals: dict[str, tuple[Number, Number]] = {}
    curves: dict[str, Curve] = {}
    kappa: KappaHistogram | None = None
    corruptions: dict[str, CorruptionCurve] = {}
    left_out: Count = 0
    ece_samples: Count | None = None
    posterior: dict[str, Number] | None = None
    votes: dict[str, Any] | None = None
    ood: dict[str, OodResult] = {}
    history: dict[str, list[Epoch]] = {}
    seconds: Number = 0.0
    settings: dict[str, Any] = {}
    protocol: dict[str, Any]
    examples: dict[str, Count]
    files: dict[str, str] = {}
    versions: dict[str, str]

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return f"{self.method}-seed{self.seed}"

    @property
    def version(self) -> str:
        """The version of surefind that measured it."""
        return self.versions.get("surefind", "unknown")


@dataclass(frozen=True, eq=False)
class ResultSet:
    """All results of one data set, ordered by method, then seed."""

    name: str
    results: tuple[Result, ...]

    def by_method(self, *kinds: Kind) -> dict[str, tuple[Result, ...]]:
        """Return the results of each method of some kinds, in the order of the tables."""
        return {
            method: tuple(results)
            for method, results in groupby(self.results, lambda r: r.method)
            if kind_of(method) in kinds
        }

    def metrics(self, *kinds: Kind) -> list[Metric]:
        """Return the metrics that some result of these kinds has, known ones first."""
        present = {m for rs in self.by_method(*kinds).values() for r in rs for m in r.values}
        known = [m for m in METRICS if m.name in present]
        # Of votes over labels, which some results measured, there are no columns.
        extra = {m for m in present if "vote" not in m} - {m.name for m in known} - {"map@1"}
        return [*known, *map(metric_of, sorted(extra))]


@dataclass(frozen=True, eq=False)
class Results:
    """Everything in a folder of results, one entry per data set."""

    folder: Path
    sets: tuple[ResultSet, ...]


def result_file(folder: Path, dataset: str, method: str, seed: int) -> Path:
    """Return where a result is stored."""
    return folder / dataset / f"{method}-seed{seed}.json"


def write_result(folder: Path, result: Result) -> None:
    """Write a result, whole or not at all; one that is there already stays."""
    file = result_file(folder, result.dataset, result.method, result.seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        write_atomically(file, result.model_dump_json(exclude_unset=True) + "\n")


def read_result(file: Path) -> Result:
    """Read a result.

    Returns:
        The result.

    Raises:
        InputError: If it does not follow the schema, or is another result than its name says.
    """
    again = "Delete it, and the same surefind bench command measures it again."
    try:
        result = Result.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error}). {again}") from error
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors()[:5]
        )
        raise InputError(f"{file} is not a valid result ({wrong}). {again}") from error
    named = result_file(file.parent.parent, result.dataset, result.method, result.seed)
    if named != file:
        raise InputError(
            f"{file} holds the result {result.dataset}/{named.name}: it was moved or renamed. Put it back, "
            "or delete it."
        )
    return result


def read_results(folder: Path, *, on_bad: Callable[[str], None] | None = None) -> Results:
    """Read all results of a folder.

    Args:
        folder: Holds ``{dataset}/{method}-seed{seed}.json``.
        on_bad: Called with a sentence for each result that is invalid and left out; None refuses it.

    Returns:
        The results.

    Raises:
        InputError: If there is no result, one is invalid, or those of one data set do not compare.
    """
    files = sorted(p for p in folder.glob("*/*-seed*.json") if not p.name.startswith("."))
    if not files:
        raise InputError(
            f"{folder} holds no results ({{dataset}}/{{method}}-seed{{n}}.json). "
            f"Make some: surefind bench digits --out {folder}."
        )
    read: list[Result] = []
    for file in files:
        try:
            read.append(read_result(file))
        except InputError as error:
            if on_bad is None:
                raise
            on_bad(f"left out: {error}")
    if not read:
        raise InputError(f"none of the {len(files)} results in {folder} is valid.")
    sets = []
    for name, group in groupby(read, lambda r: r.dataset):
        results = sorted(group, key=lambda r: (method_order(r.method), r.seed))
        for field, how in COMPARABLE.items():
            _check_comparable(name, how, {r.name: getattr(r, field) for r in results})
        for other in {other for r in results for other in r.ood}:
            sizes = {
                r.name: (r.ood[other].kind, r.ood[other].examples)
                for r in results
                if other in r.ood
            }
            _check_comparable(name, f"on different inputs of the OOD set {other}", sizes)
        sets.append(ResultSet(name, tuple(results)))
    return Results(folder, tuple(sets))


def _check_comparable(name: str, how: str, conditions: Mapping[str, Any]) -> None:
    """Refuse results, by name, whose conditions differ."""
    groups: dict[str, list[str]] = {}
    for result, condition in conditions.items():
        value = json.dumps(condition, sort_keys=True)
        groups.setdefault(value, []).append(f"{result}.json")
    if len(groups) > 1:
        # The smaller groups are the likely outliers: name those in full.
        most, *others = sorted(groups.items(), key=lambda g: -len(g[1]))
        named = "; ".join(f"{', '.join(files)} {value}" for value, files in others)
        raise InputError(
            f"the results of {name} were measured {how}, and do not compare: {named}; "
            f"{len(most[1])} others such as {most[1][0]} {most[0]}. "
            "Move one kind to another folder, or delete it and run surefind bench again."
        )
